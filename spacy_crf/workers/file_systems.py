"""File systems for archives and folders of work: this machine's, and those that fsspec knows, such as ``s3://bucket/texts``."""

import os
from typing import Any

from ..errors import optional_package


class LocalFiles:
    """The file system of this machine, with fsspec's names."""

    def open(self, path: str, mode: str = "rb") -> Any:
        return open(path, mode)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def isdir(self, path: str) -> bool:
        return os.path.isdir(path)

    def info(self, path: str) -> dict[str, Any]:
        status = os.stat(path)
        return {"name": path, "size": status.st_size, "mtime": status.st_mtime}

    def find(self, path: str) -> list[str]:
        """All files below a folder; the path itself if it is a file."""
        if os.path.isfile(path):
            return [path]
        found = []
        for folder, _, names in os.walk(path):
            found += [f"{folder}/{name}" for name in names]
        return found

    def ls(self, path: str, detail: bool) -> list[dict[str, Any]]:
        return [self.info(f"{path}/{name}") for name in os.listdir(path)]

    def cat_file(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def mv(self, path: str, target: str) -> None:
        os.replace(path, target)

    def rm_file(self, path: str) -> None:
        os.remove(path)

    def unstrip_protocol(self, path: str) -> str:
        return path

    def invalidate_cache(self) -> None:
        """Do nothing: there is no cache."""


LOCAL = LocalFiles()


def file_system(path: str) -> tuple[Any, str]:
    """The file system of a path or an address, and the path there.

    RAISES (ImportError): CRF781 for an address without fsspec.
    """
    if "://" not in path and "::" not in path:
        return LOCAL, os.path.abspath(os.path.expanduser(path)).replace(os.sep, "/")
    return optional_package("fsspec", what=path, install="'spacy-crf[archives]'").core.url_to_fs(path)
