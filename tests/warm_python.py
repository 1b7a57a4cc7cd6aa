"""``python`` for scripts of the tests, without two seconds of imports for each command.

A server imports spaCy and this package once, loads kernels, and forks for each command; a small client takes the place of
``python`` in the PATH. It gives the server its arguments, folder, environment and open files, and ends with the status of the
child, which runs the command as Python would have done.

    with warm_python() as path:
        subprocess.run(["bash", "-c", "python -m spacy crf show ..."], env={**os.environ, "PATH": path})
"""

import gc
import json
import multiprocessing.spawn  # knows the real `sys.executable`
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.repeated_work import do_repeated_work_once
from tests.util import ner_examples

ROOT = Path(__file__).parents[1]
_CLIENT = """\
#!{python} -ISE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    asked = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(asked).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(asked)
    sys.exit(int(server.recv(8) or b"1"))
"""


@contextmanager
def warm_python() -> Iterator[str]:
    """A PATH whose ``python`` is warm."""
    with TemporaryDirectory() as folder:  # not that of a test: names of sockets are short
        address, client = f"{folder}/server", Path(folder, "python")
        client.write_text(_CLIENT.format(python=sys.executable, address=address))
        client.chmod(0o755)
        server = subprocess.Popen([sys.executable, "-m", __name__, address], cwd=ROOT)
        try:
            while not os.path.exists(address) and server.poll() is None:
                time.sleep(0.02)
            yield f"{folder}{os.pathsep}{os.environ['PATH']}"
        finally:
            server.terminate()
            server.wait()


def serve(address: str) -> None:
    import spacy.cli

    import spacy_crf.cli
    import spacy_crf.pipeline.prediction

    assert spacy_crf.cli.app and spacy.cli.app and multiprocessing.spawn.get_executable()
    do_repeated_work_once(setattr)
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner")
    examples = ner_examples(nlp)
    nlp.update(examples, sgd=nlp.initialize(lambda: examples))
    nlp("Ann Lee lives in New York .")
    assert threading.active_count() == 1  # which a fork would lose
    gc.freeze()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{address}.new")
        server.listen()
        os.rename(f"{address}.new", address)  # who finds it can connect
        while True:
            client, _ = server.accept()
            if os.fork() == 0:
                server.close()
                sys.executable = str(Path(address).with_name("python"))  # what a command starts is warm, too
                _answer(client)
            client.close()


def _answer(client: socket.socket) -> None:
    """Runs one command in a child, and tells its status."""
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    size, files, *_ = socket.recv_fds(client, 8, 3)
    with client.makefile("rb") as sent:
        arguments, folder, environment = json.loads(sent.read(int.from_bytes(size, "big")))
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    try:
        _execute(arguments)
        status = 0
    except SystemExit as end:
        status = _status(end.code)
    except BaseException:
        traceback.print_exc()
        status = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    client.sendall(str(status).encode())
    os._exit(0)


def _execute(arguments: list[str]) -> None:
    """What ``python`` does with these arguments: ``-m module``, ``-c code``, ``-`` or a file."""
    first, *rest = arguments
    sys.path[0] = "" if first.startswith("-") else str(Path(first).parent)
    if first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first in ("-c", "-"):
        code, sys.argv = (sys.stdin.read(), arguments) if first == "-" else (rest[0], ["-c", *rest[1:]])
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = arguments
        runpy.run_path(first, run_name="__main__")


def _status(code: Any) -> int:
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1


if __name__ == "__main__":
    serve(sys.argv[1])
