"""Where vectors of words come from: those of the pipeline, or a path or package that a component names."""

from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import spacy
from spacy.training.initialize import load_vectors_into_model
from spacy.vectors import Vectors
from spacy.vocab import Vocab

from .. import checks
from ..errors import Errors, announcements
from .word_vectors import WordVectors, make_vectors

VectorSource = Union[str, Path, dict[str, Any]]

# Found on wnut17's dev set with l1 = l2 = 0.05: 42.6 F1, 42.0 with 1 and 41.5 with 3
_LENGTH = 2.0


class _Settings(NamedTuple):
    path: Optional[str] = None
    dims: Optional[int] = None
    length: float = _LENGTH


def read_vectors(
    given: Optional[VectorSource], known: Optional[WordVectors], vocab: Vocab, *, name: str
) -> Optional[WordVectors]:
    """The vectors that a config names, or else those of the pipeline, or else those of the model.

    known (WordVectors): Those of the model: what is the same stays as it is.
    name (str): Of the component, for messages.
    RETURNS (WordVectors): None if there are none.
    RAISES (ValueError): CRF020 to CRF701 for what can't be read.
    """
    settings = _settings(given, name)
    if settings.path is None:
        found, source = vocab.vectors, "the pipeline ([initialize] vectors)"
        if isinstance(found, Vectors) and not found.shape[0]:
            return known
    elif known is not None and not _is_there(settings.path):
        text = "Component '%s': the vectors are those of the model: there is nothing at %s"
        announcements.info(text, name, settings.path)
        return known
    else:
        found, source = _load(settings.path, name), settings.path
    made = make_vectors(found, settings.dims, settings.length, source)
    if known is not None and made.source == known.source:
        return known
    words = "words by their parts" if made.parts else f"{len(made.keys)} words"
    announcements.info("%s: vectors of %s, of %d numbers", name, words, made.width)
    return made


def _settings(given: Any, name: str) -> _Settings:
    """RAISES (ValueError): CRF020."""
    fields = dict(given) if isinstance(given, dict) else {"path": given}
    path, dims, length = (fields.get(key, default) for key, default in _Settings._field_defaults.items())
    is_possible = fields.keys() <= {*_Settings._fields}
    is_possible = is_possible and (path is None or (isinstance(path, (str, Path)) and bool(str(path))))
    is_possible = is_possible and (dims is None or (type(dims) is int and dims > 0))
    is_possible = is_possible and type(length) in (int, float) and 0 < length < float("inf")
    must = "the path or name of a pipeline with vectors, or a table with 'path' (by default that of [initialize] vectors), "
    must += "'dims' (how many numbers a vector is reduced to) and 'length' (the mean length of the vectors)"
    checks.expect(is_possible, f"[initialize.components.{name}]", "vectors", given, must)
    return _Settings(None if path is None else str(path), dims, float(length))


def _is_there(path: str) -> bool:
    return Path(path).exists() or spacy.util.is_package(path)


def _load(path: str, name: str) -> Vectors:
    """The vectors of a pipeline, or of a folder as `Vectors.to_disk` writes it. RAISES (ValueError): CRF701."""
    try:
        for folder in (Path(path), Path(path) / "vocab"):
            if (folder / "vectors").is_file():
                return Vectors().from_disk(folder, exclude=["strings"])
        nlp = spacy.blank("xx")
        load_vectors_into_model(nlp, path)
        return nlp.vocab.vectors
    except Exception as error:  # whatever spaCy, numpy and msgpack raise
        reason = f"{error} Give the path or name of a pipeline with vectors, such as `spacy crf vectors` makes"
        place = f"[initialize.components.{name}] vectors = {path}"
        raise ValueError(Errors.CRF701.format(place=place, reason=reason)) from error
