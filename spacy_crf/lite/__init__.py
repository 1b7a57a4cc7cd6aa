"""Labels words by a model that `spacy crf export` wrote, with NumPy alone: without spaCy, thinc and numba.

    model = lite.load("addresses.npz")          # from spacy_crf import lite; or, beside the export, import lite
    model.tag(["12", "Elm", "Street"])          # a tag for each word
    model.entities(["12", "Elm", "Street"])     # spans with their exact probabilities

The folder imports nothing else, so it can be copied into other projects. The format of exports is described in
docs/lite_format.md. Letters in shapes: T tokens, B texts, S states, C columns of a table (tags, or pairs of tags), K longest
segment.
"""

from .component import Component, Entity, load
from .content import FORMAT, VERSION, LiteError

__all__ = ["FORMAT", "VERSION", "Component", "Entity", "LiteError", "load"]
