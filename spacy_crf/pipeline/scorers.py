"""Scorers for annotation that spaCy's own scorers do not know, the share of texts that are right as a whole, and the calibration
of probabilities."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Union

import numpy as np
from spacy.scorer import Scorer
from spacy.tokens import Token
from spacy.training import Example

from ..types import Bools, Floats
from .annotation.entities import Annotation

POS_AND_MORPH = "pos+morph"
IS_SENT_START = "is_sent_start"


def make_tagger_scorer() -> Callable:
    """Make a scorer for the accuracy of the attribute that a ``crf_tagger`` writes (``spacy_crf.tagger_scorer.v1``)."""
    return score_tags


def score_tags(examples: Iterable[Example], *, attribute: Union[str, Sequence[str]] = "tag", **kwargs: object) -> dict:
    """Score the values that a tagger has written: the share of the tokens with the right value, None if no token is annotated.

    examples (Iterable[Example]): Examples with predicted Docs.
    attribute (Union[str, Sequence[str]]): ``tag``, ``pos``, ``morph``, ``pos+morph`` (both are also scored separately), a Token
        extension, or several of these.
    RETURNS (Dict): The accuracy of each attribute under its name (``tag_acc``), and the mean of these accuracies as
        ``crf_tag_acc``.
    """
    if not isinstance(attribute, str):
        examples = list(examples)
        scores = {}
        accuracies = []
        for part in attribute:
            scores.update(score_tags(examples, attribute=part))
            if scores["crf_tag_acc"] is not None:
                accuracies.append(scores["crf_tag_acc"])
        return {**scores, "crf_tag_acc": sum(accuracies) / len(accuracies) if accuracies else None}
    scores_of_parts = {}
    if attribute == POS_AND_MORPH:
        examples = list(examples)
        scores_of_parts = score_tags(examples, attribute=["pos", "morph"])
    getter = attribute_getter(attribute)
    name = attribute if attribute in ("tag", "pos", "morph") else "custom"  # spaCy's scorer takes any name
    scores = Scorer.score_token_attr(examples, name, getter=lambda token, _: getter(token), missing_values={None, ""})
    accuracy = scores[f"{name}_acc"]
    return {**scores_of_parts, f"{attribute}_acc": accuracy, "crf_tag_acc": accuracy}


def attribute_getter(attribute: str) -> Callable[[Token], str]:
    """A function that returns the `attribute` of a token as text; the empty string if it is not set."""
    if attribute == "morph":
        return _morph
    if attribute == POS_AND_MORPH:
        return _pos_and_morph
    if attribute in ("tag", "pos"):
        return attrgetter(attribute + "_")
    if attribute == IS_SENT_START:
        return _is_sent_start
    return partial(_extension, attribute)


def _is_sent_start(token: Token) -> str:
    return str(token.is_sent_start)


def _morph(token: Token) -> str:
    return str(token.morph) if token.has_morph() else ""


def _pos_and_morph(token: Token) -> str:
    """The morphology and part of speech in the form of spaCy's morphologizer: "Number=Sing|POS=NOUN"."""
    pos = token.pos_
    feats = _morph(token)
    fields = feats.split("|") if feats else []
    if pos:
        fields.insert(0, f"POS={pos}")
    return "|".join(sorted(fields, key=lambda field: field.partition("=")[0]))


def pos_and_feats(label: str) -> tuple[str, str]:
    """Split a label in the form of spaCy's morphologizer, "Number=Sing|POS=NOUN".

    RETURNS (Tuple[str, str]): The part of speech ("NOUN"), and the morphological features ("Number=Sing").
    """
    fields = label.split("|")
    pos = next((field[4:] for field in fields if field.startswith("POS=")), "")
    return pos, "|".join(field for field in fields if not field.startswith("POS="))


def _extension(name: str, token: Token) -> str:
    value = token._.get(name)
    return "" if value is None else str(value)


N_BINS = 10


def calibration(probabilities: Floats, right: Bools) -> dict:
    """Compare the probabilities of spans with the shares of spans that are right.

    probabilities (float64[N]): The probabilities of N spans or tokens.
    right (bool[N]): Whether each span or token is right.
    RETURNS (Dict): "calibration", ten bins with their bounds, the number of spans, their mean probability and the share
        of right spans (None without spans); "calibration_error", the mean distance of the two, weighted by the number of spans
        (Naeini et al. 2015); "brier", the mean squared distance of probability and truth. Both are None without spans.
    """
    bins = []
    error = 0.0
    # A probability of 1 is in the last bin
    bin_of_span = np.minimum((probabilities * N_BINS).astype(np.int64), N_BINS - 1)  # [N]
    for n in range(N_BINS):
        inside = bin_of_span == n  # [N]
        count = int(inside.sum())
        mean = share = None
        if count:
            mean = float(probabilities[inside].mean())
            share = float(right[inside].mean())
            error += count * abs(mean - share)
        bins.append({"from": n / N_BINS, "to": (n + 1) / N_BINS, "spans": count, "probability": mean, "right": share})
    total = len(probabilities)
    return {
        "calibration": bins,
        "calibration_error": error / total if total else None,
        "brier": float(((probabilities - right) ** 2).mean()) if total else None,
    }


def score_calibration(annotation: Annotation, examples: Iterable[Example]) -> dict:
    """Compare the probabilities (``crf_prob``) of predicted spans with the shares of spans that are right, see `calibration`.
    Spans whose gold annotation is missing do not count.

    annotation (Annotation): Where the predicted Docs have the spans, such as in ``doc.ents``.
    RETURNS (Dict): The scores of `calibration` under the names ``ents_…`` (``tags_…`` for taggers).
    """
    # For each predicted span its probability and whether it is right
    decisions = list(chain.from_iterable(map(annotation.decisions, examples)))
    probabilities, right = zip(*decisions) if decisions else ((), ())
    scores = calibration(np.array(probabilities, dtype=np.float64), np.array(right, dtype=bool))
    return {f"{annotation.scores_prefix}_{name}": value for name, value in scores.items()}
