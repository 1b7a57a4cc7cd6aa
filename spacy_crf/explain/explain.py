"""``component.explain``."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Union

from spacy.tokens import Doc, Span

from .. import checks
from ..errors import Errors
from ..pipeline.annotation.cats import Cats
from ..pipeline.labels import check_doc
from .comparison import NothingToCompare
from .contrast import contrast
from .explanation import Explanation
from .labels import ask_label, contrast_of_labels
from .leave_out import leave_out
from .log_odds import log_odds
from .request import Against, Asked, ask
from .training_texts import texts
from .words import words

if TYPE_CHECKING:
    from ..pipeline.crf_textcat import CRFTextClassifier
    from ..pipeline.prediction import CRFPipe

KINDS: dict[str, Callable[..., Explanation]] = {
    "contrast": contrast,
    "log_odds": log_odds,
    "leave_out": leave_out,
    "words": words,
    "texts": texts,
}

_OF_LABELS = {**KINDS, "contrast": contrast_of_labels}  # of texts
_OPTIONS = {"words": ("candidates",), "texts": ("corpus", "l2", "l1", "effect")}


def explain(
    pipe: "Union[CRFPipe, CRFTextClassifier]",
    doc: Doc,
    span: Union[Span, str, None] = None,
    against: Against = None,
    kind: str = "contrast",
    **options: Any,
) -> Explanation:
    """See `CRFPipe.explain`, and `CRFTextClassifier.explain`, where a label takes the place of the span."""
    check_doc(pipe.name, doc)
    checks.one_of(pipe.owner, "kind", kind, KINDS)
    pipe.require_ready([doc])
    for name in options:
        setting = f"kind = '{kind}': option"
        checks.expect(kind in _OPTIONS, pipe.owner, setting, name, "left out, since this kind has no options")
        checks.one_of(pipe.owner, setting, name, _OPTIONS[kind])
    if pipe.decoding.unexplained is not None:
        values = {"what": "its decisions", "reason": pipe.decoding.unexplained}
        raise NothingToCompare(Errors.CRF838.format(name=pipe.name, **values))
    if isinstance(pipe.annotation, Cats):
        return _OF_LABELS[kind](ask_label(pipe, doc, span, against), **options)
    asked: Asked = ask(pipe, doc, span, against)
    return KINDS[kind](asked, **options)
