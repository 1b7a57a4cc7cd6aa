"""Parses texts by the components that `spacy crf export` wrote, with NumPy alone: without spaCy, thinc and numba.

    parse = lite.load("addresses.npz")          # from spacy_crf import lite; or, beside the export, import lite
    parsed = parse("12 Elm Street, Bend OR")
    parsed.entities                             # spans with start, end, text, label and their exact probabilities
    parsed.fields                               # {"AddressNumber": ["12"], ...}

The folder imports nothing else, so it can be copied into other projects. docs/lite_format.md describes the format of exports.
Letters in shapes: T tokens, B texts, S states, C columns of a table (tags, or pairs of tags), K longest segment.
"""

from .component import Component, Entity
from .content import FORMAT, VERSION, LiteError
from .parser import Parsed, Parser, Sentence, Span, Token, load

__all__ = [
    "FORMAT",
    "VERSION",
    "Component",
    "Entity",
    "LiteError",
    "Parsed",
    "Parser",
    "Sentence",
    "Span",
    "Token",
    "load",
]
