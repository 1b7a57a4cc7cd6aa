"""What annotating a text gives, however many there are and wherever it is written."""

import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Optional

from spacy.language import Language
from spacy.tokens import Doc

from ..errors import Errors, shown
from .formats.texts import SPAN_KEYS
from .formats.writers import WRITERS, check_spans, probability
from .formats.writers import Annotated as Found
from .shared import our_pipes
from .texts import Item

if TYPE_CHECKING:
    from ..pipeline.crf_pipe import CRFPipe


class Options(NamedTuple):
    """format (str): Of the output, a name of ``WRITERS``. sort (bool): Whether what is least certain comes first.
    min_prob (float): Spans that are less probable are not written."""

    format: str
    sort: bool
    min_prob: float


class Record(NamedTuple):
    """A text as it will be written, and what of it is needed besides: a checksum that tells texts apart, its uncertainty, and
    how many spans were written and left out."""

    checksum: int
    uncertainty: float
    spans: int
    doubtful: int
    text: str


def without_annotation(item: Item, place: str) -> Item:
    """RAISES (ValueError): CRF873 if it is annotated, which would be lost."""
    for key in SPAN_KEYS:
        if isinstance(item.get(key), (list, dict)) and item[key]:
            raise ValueError(Errors.CRF873.format(place=place, key=key, value=shown(item[key])))
    return {key: value for key, value in item.items() if key not in (*SPAN_KEYS, "tokens", "answer")}


def records(nlp: Language, items: Iterable[Item], options: Options, component: Optional[str]) -> Iterator[Record]:
    """Of any pipeline; what is found without a probability is certain.

    component (str): The only one whose certainty counts; by default that of all of ours.
    RAISES (ValueError): As `certain_pipes`.
    """
    from ..pipeline.prediction import tell_probabilities

    pipes = certain_pipes(nlp, options, component)
    tell_probabilities(pipes)
    for doc, item in nlp.pipe(((item["text"], item) for item in items), as_tuples=True):
        check_spans(options.format, doc)
        found = [(span, probability(span)) for span in doc.ents]
        likely = [(span, prob) for span, prob in found if prob >= options.min_prob]
        doubtful = [span for span, prob in found if prob < options.min_prob]
        uncertainty = _uncertainty(doc, pipes) if options.sort else 0.0
        text = WRITERS[options.format].render(Found(doc, item, likely, doubtful))
        yield Record(checksum(item), uncertainty, len(likely), len(doubtful), text)


def certain_pipes(nlp: Language, options: Options, component: Optional[str]) -> list["CRFPipe"]:
    """The components whose certainty counts. RAISES (ValueError): CRF710 if that is asked for, and there are none."""
    is_asked = options.sort or options.min_prob > 0.0 or component is not None
    return our_pipes(nlp, component, Errors.CRF710 if is_asked else None)


def _uncertainty(doc: Doc, pipes: list["CRFPipe"]) -> float:
    """The share of tokens whose most probable tag is expected to be wrong: long texts do not come first for being long."""
    return sum(float((1.0 - pipe.marginals(doc)[0].max(axis=1)).mean()) for pipe in pipes) if len(doc) else 0.0


def checksum(item: Item) -> int:
    return zlib.crc32(item["text"].encode("utf8", "surrogatepass"))
