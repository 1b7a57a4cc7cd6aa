"""Writes a page of one file that parses texts by an export, without a server: `crf export MODEL page.html --to page`."""

import base64
import gzip
import hashlib
import re
from importlib import resources

from ...errors import Errors
from ...types import Settings
from ..lite import as_json

# The modules of lite.js, each behind those that it imports
MODULES = (
    "unicode",
    "characters",
    "content",
    "hashing",
    "features",
    "labellings",
    "component",
    "character_tokenizer",
    "tokenizer",
    "lite",
)
_IMPORT = re.compile(r"^import \{[^}]*\} from .*\n", re.MULTILINE)
_EXPORTED_LATER = re.compile(r"^export \{[^}]*\};\n", re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)


def bundle() -> str:
    """Join the modules of lite.js into one script, in which all of their names are known."""
    modules = []
    for name in MODULES:
        source = _source(f"{name}.js")
        for pattern in (_IMPORT, _EXPORTED_LATER, _EXPORT):
            source = pattern.sub("", source)
        modules.append(source)
    return "\n".join(modules)


def render_page(content: Settings, title: str) -> str:
    """Make the page of an export.

    content (dict): The content of the export.
    title (str): The name of the pipeline.
    RETURNS (str): The HTML of the page, which has the model, the reader, the style and nothing from elsewhere.
    RAISES (ValueError): CRF791 if the page could not cut texts into words.
    """
    from jinja2 import Environment
    from markupsafe import Markup

    _check_tokenizer(content)
    packed = base64.b64encode(gzip.compress(as_json(content), mtime=0)).decode("ascii")
    # The page's own names do not meet those of the reader
    reader = f"const load = (() => {{\n{bundle()}\nreturn load;\n}})();\n"
    script = f'"use strict";\n(() => {{\n{reader}{_source("page.js")}}})();'
    style = "".join((_shared("report", "page.css"), _shared("cli", "demo.css"), _source("page.css")))
    environment = Environment(autoescape=True)
    return environment.from_string(_source("page.html.jinja")).render(
        title=title,
        version=content["made_by"].replace("_", "-"),
        size=f"{len(packed) / 1e3:,.0f} kB",
        model=packed,
        script=Markup(script),
        style=Markup(style),
        script_hash=_hash(script),
        style_hash=_hash(style),
    )


def _check_tokenizer(content: Settings) -> None:
    """RAISES (ValueError): CRF791 if the export has no tokenizer, or one that JavaScript can't replay."""
    tokenizer = content["tokenizer"]
    if tokenizer is None and content["columns"] == ["orth"]:
        raise _refused("tokenizer", "been left out", "Leave it in, without --words")
    if tokenizer is None:
        columns = ", ".join(content["columns"])
        how = "Train without those columns, or take --to json and parse.words"
        raise _refused(content["components"][0]["name"], f"the columns {columns} in place of texts", how)
    # A trained tokenizer has lists of patterns, and may read the tokens of rules
    for rules in (tokenizer, tokenizer.get("language_rules") or {}):
        for name, patterns in rules.get("patterns_js", {}).items():
            for pattern in patterns if isinstance(patterns, list) else [patterns]:
                if pattern is not None and "untranslated" in pattern:
                    what = f"the pattern '{name}', of which JavaScript has no like ({pattern['why']})"
                    raise _refused("tokenizer", what, "Change the pattern")


def _refused(name: str, what: str, how: str) -> ValueError:
    """The error CRF791: a page cannot hold this part of a component."""
    return ValueError(Errors.CRF791.format(name=name, what=what, form="a page", how=how))


def _source(name: str) -> str:
    """The text of a file of this folder."""
    return resources.files(__name__).joinpath(name).read_text(encoding="utf8")


def _shared(package: str, name: str) -> str:
    """The text of a file of another package, whose pages look the same."""
    return resources.files(f"spacy_crf.{package}").joinpath(name).read_text(encoding="utf8")


def _hash(source: str) -> str:
    """The hash of a script or style as the page's Content-Security-Policy names it."""
    digest = hashlib.sha256(source.encode("utf8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
