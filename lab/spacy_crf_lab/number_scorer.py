"""The component `crf_scorer`: a number for each token, sentence or text, with its variance."""

import math
import zlib
from collections.abc import Callable, Iterable
from itertools import chain
from statistics import NormalDist
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from spacy.tokens import Doc, Span, Token
from spacy.training import Example

from spacy_crf import checks
from spacy_crf.features.doc_batch import DocBatch
from spacy_crf.pipeline.annotation.entities import Annotation, GoldReport, Starts, Supervision
from spacy_crf.pipeline.pipe import LearningPipe, check_doc, only_docs
from spacy_crf.types import Floats

from .gaussian_chain import GaussianNode, Gaussians, NumberDecoding
from .numbers import HOLDERS, numbers_of, parts_of, register


class NumberAnnotation(Annotation):
    """Numbers in custom extensions. The only label is the name of the extension."""

    def __init__(self, unit: str, attribute: str):
        self.unit = unit
        self.attribute = attribute
        owner = "span" if unit == "sent" else unit
        self.assigns = [f"{owner}._.{attribute}"]

    def numbers(self, docs: Iterable[Doc]) -> Floats:
        """The numbers of Docs, NaN where they are not known: float64[N]. RAISES (ValueError): CRF640 for other values."""
        return numbers_of(docs, self.unit, self.attribute)

    def gold_labels(self, doc: Doc) -> Iterable[str]:
        """The name of the extension, if the Doc has any number."""
        is_annotated = self.unit != "sent" or doc.has_annotation("SENT_START")
        return {self.attribute} if is_annotated and not np.isnan(self.numbers([doc])).all() else set()

    def gold(self, examples: list[Example], starts: Starts, report: GoldReport) -> Supervision:
        """The numbers of the references, for parts of the predicted Docs with the same characters."""
        values = []
        for example in examples:
            predicted = example.predicted
            doc = example.reference
            if not self.gold_labels(doc):
                values.append(np.full(len(parts_of(predicted, self.unit)), np.nan))
                continue
            # By characters: the component may cut other tokens than the annotation
            known = {_place(part): value for part, value in zip(parts_of(doc, self.unit), self.numbers([doc]).tolist())}
            values.append(np.array([known.pop(_place(part), np.nan) for part in parts_of(predicted, self.unit)]))
            if not all(map(math.isnan, known.values())):
                what = "tokens" if self.unit == "token" else "sentences"
                report.add(f"numbers belong to other {what} than those of the component", f"'{doc.text[:40]}'")
        # NaN is what the annotation leaves open
        clamp = np.concatenate([np.zeros(0), *values])
        return Supervision(clamp, np.isnan(clamp))

    def compared(self, examples: Iterable[Example]) -> tuple[Floats, Floats]:
        """The numbers of references, and those of predicted Docs, of the parts that have both: float64[N] each."""
        examples = list(examples)
        gold = self.gold(examples, np.zeros(0, np.int64), GoldReport()).clamp
        found = self.numbers(example.predicted for example in examples)
        both = ~np.isnan(gold) & ~np.isnan(found)
        return gold[both], found[both]

    def fingerprint(self, docs: list[Doc]) -> int:
        """Equal for Docs with the same numbers."""
        annotated = [doc for doc in docs if self.gold_labels(doc)]
        return zlib.crc32(self.numbers(annotated).tobytes())


def _place(part: Any) -> tuple[int, int]:
    """First character of a token or sentence, and the one behind its last; the same for all Docs."""
    if isinstance(part, Doc):
        return 0, 0
    return (part.idx, part.idx + len(part)) if hasattr(part, "idx") else (part.start_char, part.end_char)


class NumberPrediction(NamedTuple):
    means: Floats  # [N] numbers that are known are themselves
    deviations: Floats  # [N] standard deviations, 0 for numbers that are known


class CRFScorer(LearningPipe):
    """Gives each token, sentence or text a number (factory ``crf_scorer``). Numbers that a Doc has already are kept, and the
    others are those that fit to them.

    attribute (str): Name of the extension that holds the number.
    unit (str): What has a number: "token", "sent" or "doc".
    """

    decoding: NumberDecoding
    annotation: NumberAnnotation

    def __init__(
        self, vocab, model, name="crf_scorer", *, loss, attribute: str = "crf_number", unit: str = "doc", **settings
    ):
        self.name = name
        checks.one_of(self.owner, "unit", unit, tuple(HOLDERS))
        is_name = isinstance(attribute, str) and attribute.isidentifier()
        checks.expect(is_name, self.owner, "attribute", attribute, "the name of an extension, such as price")
        register(unit, attribute)
        # Another extension may have the name: its number must be readable and writable
        _, method, getter, setter = HOLDERS[unit].get_extension(attribute)
        must = "the name of an extension that can be set, without a method or a getter alone"
        checks.expect(
            method is None and (getter is None or setter is not None), self.owner, "attribute", attribute, must
        )
        node: Any = getattr(model, "attrs", {}).get("node")
        must = "an architecture of numbers: spacy_crf_lab.GaussianChain.v1"
        checks.expect(isinstance(node, GaussianNode), self.owner, "model", getattr(model, "name", model), must)
        node.use(model, unit, self.owner)
        own = {"attribute": attribute, "unit": unit, "fixed_settings": ("unit", "attribute")}
        super().__init__(vocab, model, name, annotation=NumberAnnotation(unit, attribute), loss=loss, **own, **settings)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        register(self.cfg["unit"], self.cfg["attribute"])  # another process may not have it

    def predict(self, docs: Iterable[Doc], *, keep_annotation: bool = True) -> NumberPrediction:
        """Means and standard deviations of the numbers of a batch. The Docs are not changed.

        keep_annotation (bool): Whether numbers that the Docs have already are known.
        RAISES (ValueError): CRF402 if the component is not initialized; CRF470 for Docs without sentences if sentences have
            numbers; CRF640 for a present value that is no number.
        """
        if not isinstance(docs, DocBatch):
            docs = DocBatch(only_docs(self.name, docs))
        self.require_ready(docs)
        scale = self.model.attrs["scale"]
        given = self.annotation.numbers(docs)
        if not keep_annotation:
            given[:] = np.nan
        # The model's numbers have mean 0 and variance 1 in training: number = center + scale · z
        found = Gaussians().moments(self.model.predict(docs), self.decoding.measured(given))
        means = np.where(np.isnan(given), found.mean * scale + self.model.attrs["center"], given)
        return NumberPrediction(means, np.sqrt(found.variance) * scale)

    def set_annotations(self, docs: Iterable[Doc], prediction: NumberPrediction) -> None:
        """Write the numbers that the Docs do not have."""
        parts = chain.from_iterable(parts_of(doc, self.cfg["unit"]) for doc in docs)
        for part, mean, deviation in zip(parts, prediction.means.tolist(), prediction.deviations.tolist()):
            # Numbers that are known have none
            if deviation > 0.0:
                part._.set(self.cfg["attribute"], mean)

    def predict_interval(
        self, doc: Doc, probability: float = 0.9
    ) -> list[tuple[Union[Doc, Span, Token], float, float]]:
        """Intervals that contain the numbers of a Doc with some probability each. The Doc is not changed.

        probability (float): Above 0 and below 1.
        RETURNS (List[Tuple[Union[Token, Span, Doc], float, float]]): Each token or sentence, or the Doc, with the least and the
            largest number.
        RAISES (ValueError): As `predict`.
        """
        check_doc(self.name, doc)
        is_between = checks.is_number(probability) and 0.0 < probability < 1.0
        checks.expect(is_between, self.owner, "probability", probability, "above 0 and below 1")
        found = self.predict([doc])
        # mean ± z · deviation, with P(|N(0, 1)| < z) = probability
        width = NormalDist().inv_cdf(0.5 + 0.5 * probability) * found.deviations
        return [*zip(parts_of(doc, self.cfg["unit"]), (found.means - width).tolist(), (found.means + width).tolist())]

    def score(self, examples: Iterable[Example], **settings: object) -> dict[str, Optional[float]]:
        """Scores by the component's scorer, and the share of annotated numbers in their intervals (`number_coverage`). All of
        them also by the name of the attribute (`price_rmse`), since a pipeline may have several components."""
        examples = list(examples)
        settings = {"unit": self.cfg["unit"], "attribute": self.cfg["attribute"], **settings}
        scores = super().score(examples, **settings)
        gold = self.annotation.gold(examples, np.zeros(0, np.int64), GoldReport()).clamp
        found = self.predict([example.predicted for example in examples], keep_annotation=False)
        known = ~np.isnan(gold)
        # Intervals that should contain 90 %
        width = NormalDist().inv_cdf(0.95) * found.deviations
        if known.any():
            scores["number_coverage"] = float((np.abs(found.means - gold) <= width)[known].mean())
        return scores | {name.replace("number", self.cfg["attribute"], 1): value for name, value in scores.items()}

    def table(self, doc: Doc) -> list[tuple[str, str, str]]:
        """Rows of a table of the numbers of a Doc: words, the name of the number, and the number."""
        attribute = self.cfg["attribute"]
        return [(part.text, attribute, f"{part._.get(attribute):.6g}") for part in parts_of(doc, self.cfg["unit"])]


def make_number_scorer() -> Callable:
    """Scorer of the numbers of tokens, sentences or texts (``spacy_crf_lab.number_scorer.v1``)."""
    return score_numbers


def score_numbers(
    examples: Iterable[Example], *, unit: str = "doc", attribute: str = "crf_number", **settings: object
) -> dict[str, Optional[float]]:
    """How close numbers are to annotated ones: `number_rmse`, the root of the mean squared error; `number_mae`, the mean absolute
    error; `number_correlation` (Pearson); `number_r2`, the share of the variance that is explained. None without annotation."""
    gold, found = NumberAnnotation(unit, attribute).compared(examples)
    names = ("number_rmse", "number_mae", "number_correlation", "number_r2")
    scores: dict[str, Optional[float]] = dict.fromkeys([*names, "number_coverage"])
    if len(gold):
        errors = found - gold
        varies = len(gold) > 1 and np.ptp(gold) > 0.0
        scores["number_rmse"] = math.sqrt(np.mean(errors**2))
        scores["number_mae"] = float(np.abs(errors).mean())
        if varies:
            # 1 - residual variance / variance; undefined for equal numbers
            scores["number_r2"] = float(1.0 - np.mean(errors**2) / np.var(gold))
            scores["number_correlation"] = float(np.corrcoef(found, gold)[0, 1]) if np.ptp(found) > 0.0 else 0.0
    return scores
