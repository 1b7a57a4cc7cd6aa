"""Scorers for components whose annotation spaCy's own scorers do not know."""

from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter
from typing import Any

from spacy.scorer import Scorer
from spacy.tokens import Token
from spacy.training import Example

MISSING_VALUES = frozenset([None, ""])
POS_AND_MORPH = "pos+morph"


def make_tagger_scorer() -> Callable:
    """Accuracy of the attribute a ``crf_tagger`` writes (``spacy_crf.tagger_scorer.v1``)."""
    return score_tags


def score_tags(examples: Iterable[Example], *, attribute: str = "tag", **kwargs: Any) -> dict[str, Any]:
    """Share of tokens with the right value, under the attribute's own name (``tag_acc``) and, so that one name serves
    every attribute, as ``crf_tag_acc``.

    attribute (str): ``tag``, ``pos``, ``morph``, ``pos+morph`` (of which each is scored by itself too), or a Token extension.
    """
    if attribute == POS_AND_MORPH:
        examples = list(examples)
        parts = [score_tags(examples, attribute=part) for part in attribute.split("+")]
        single = {name: value for part in parts for name, value in part.items() if name != "crf_tag_acc"}
    else:
        single = {}
    getter = attribute_getter(attribute)
    name = attribute if attribute in ("tag", "pos", "morph") else "custom"
    scores = Scorer.score_token_attr(
        examples, name, getter=lambda token, _: getter(token), missing_values=MISSING_VALUES
    )
    accuracy = scores[f"{name}_acc"]
    return {**single, f"{attribute}_acc": accuracy, "crf_tag_acc": accuracy}


def attribute_getter(attribute: str) -> Callable[[Token], str]:
    """How to read an attribute of a token as text; the empty string where it is not set."""
    if attribute == "morph":
        return _morph
    if attribute == POS_AND_MORPH:
        return _pos_and_morph
    if attribute in ("tag", "pos"):
        return attrgetter(attribute + "_")
    return partial(_extension, attribute)


def _morph(token: Token) -> str:
    return str(token.morph) if token.has_morph() else ""


def _pos_and_morph(token: Token) -> str:
    """In the form of spaCy's morphologizer: "Number=Sing|POS=NOUN"."""
    pos, feats = token.pos_, _morph(token)
    fields = [f"POS={pos}"] * bool(pos) + feats.split("|") * bool(feats)
    return "|".join(sorted(fields, key=lambda field: field.partition("=")[0]))


def pos_and_feats(label: str) -> tuple[str, str]:
    """Takes such a label apart."""
    fields = label.split("|")
    pos = next((field[4:] for field in fields if field.startswith("POS=")), "")
    return pos, "|".join(field for field in fields if not field.startswith("POS="))


def _extension(name: str, token: Token) -> str:
    value = token._.get(name)
    return "" if value is None else str(value)
