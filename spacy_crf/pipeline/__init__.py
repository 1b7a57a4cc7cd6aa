"""Extensions of spaCy's objects that components read or write. Importing the package sets them, so that one program can read the
extensions that another has written."""

from functools import partial
from typing import NamedTuple, Optional, Union

from spacy.tokens import Doc, Span, Token


class Field(NamedTuple):
    """A field of a text. prob (Optional[float]): Its probability, if the component has ``confidence = true``."""

    text: str
    prob: Optional[float]


def fields_of(doc: Doc) -> dict[str, Field]:
    """The entities of a text that is one address, name or reference, as fields in their order: ``doc._.crf_fields``. Commas and
    semicolons at the ends of a field are left out. A label that occurs again gets a number, "Name 2" (the rule ``at_most``
    avoids that)."""
    fields: dict[str, Field] = {}
    for ent in doc.ents:
        name = ent.label_
        n = 1
        while name in fields:
            n += 1
            name = f"{ent.label_} {n}"
        fields[name] = Field(_field_text(ent), ent._.crf_prob)
    return fields


def _field_text(ent: Span) -> str:
    """The text of a field; if another program found words in its tokens, those words, joined by spaces."""
    words = [token._.crf_word for token in ent]
    text = " ".join(words) if all(words) else ent.text
    return text.strip(" ,;") or text


# Of spans and tokens, with the value of annotation that is certain: the probability of the entity, or of the label, that a
# component with confidence = true has found (which texts have too), and what decoders add
CERTAINTIES: dict[str, float] = {}
# Names of the extensions that a kind of decoder adds to `crf_prob`
BY_DECODER: dict[type, list[str]] = {}
# The label that these belong to; a dict of the attributes of a token that have it, or of the values in doc.cats
OF_LABEL = "crf_prob_label"

Found = Union[Span, Token, Doc]


def place_of(found: Found) -> tuple[Optional[int], Optional[int]]:
    """Start and end, in characters, in the keys that the extensions of a span, token or Doc (`found`) have in
    ``doc.user_data``; None for what the key lacks."""
    if isinstance(found, Doc):
        return None, None
    return (found.idx, None) if isinstance(found, Token) else (found.start_char, found.end_char)


def user_data_of(found: Found) -> dict:
    """The user data in which a span, token or Doc (`found`) has its extensions; its keys are not only texts."""
    return found.user_data if isinstance(found, Doc) else found.doc.user_data


def certainty(name: str, found: Found) -> Optional[float]:
    """The value that a span, token or Doc (`found`) has in the extension `name`, if a component has found it with the label that
    it has now. Values are kept with the user data of the Doc, so they survive DocBin(store_user_data=True)."""
    user_data = user_data_of(found)
    place = place_of(found)
    value = user_data.get(("._.", name, *place))
    label = user_data.get(("._.", OF_LABEL, *place)) if value is not None else None
    return value if label is None or label == _label_now(found, label) else None


def _label_now(found: Found, label: Union[str, dict[str, object]]) -> Union[str, dict[str, object]]:
    """Read the annotation that `label` is compared with: the label of a span. For a token or a Doc, the keys of `label` name
    attributes or labels in ``doc.cats``, whose values are read."""
    if isinstance(found, Span):
        return found.label_
    if isinstance(found, Doc):
        return {name: found.cats.get(name) for name in label}
    from .scorers import attribute_getter  # importing the package does not need it

    return {name: attribute_getter(name)(found) for name in label}


def set_certainty(name: str, found: Union[Span, Token], value: Optional[float]) -> None:
    """Set the value of a span or token (`found`) in the extension `name`. The value of a span belongs to its label. That of a
    token, or of a span without a label as `Doc.from_json` makes it, belongs to any label."""
    user_data = user_data_of(found)
    place = place_of(found)
    label = (found.label_ or None) if isinstance(found, Span) else None
    # Values of an earlier label do not belong to this one
    if user_data.get(("._.", OF_LABEL, *place)) != label:
        for other in CERTAINTIES:
            user_data.pop(("._.", other, *place), None)
        user_data[("._.", OF_LABEL, *place)] = label
    user_data[("._.", name, *place)] = value


def add_certainty(name: str, certain: float, decoder: Optional[type] = None) -> None:
    """Register an extension of spans and tokens whose value belongs to a label that a component has found.

    name (str): Name of the extension.
    certain (float): The value of annotation that is certain.
    decoder (Optional[type]): The kind of decoder whose distributions give spans this value.
    """
    CERTAINTIES[name] = certain
    if decoder is not None:
        BY_DECODER.setdefault(decoder, []).append(name)
    for owner in (Span, Token):
        if not owner.has_extension(name):
            owner.set_extension(name, getter=partial(certainty, name), setter=partial(set_certainty, name))


def certainties_of(decoder: object) -> list[str]:
    """The extensions that a component with this `decoder` sets for the spans that it finds."""
    return ["crf_prob", *BY_DECODER.get(type(decoder), [])]


def set_text_certainty(doc: Doc, value: Optional[float], cats: Optional[dict[str, float]] = None) -> None:
    """Set ``doc._.crf_prob`` to a value.

    cats (Dict[str, float]): The values of ``doc.cats`` to which the value belongs, and with which it is lost; None to keep it
        whatever ``doc.cats`` has.
    """
    user_data = user_data_of(doc)
    user_data["._.", OF_LABEL, None, None] = cats
    user_data["._.", "crf_prob", None, None] = value


for owner, name, default in (
    (Doc, "crf_weight", 1.0),  # how much a Doc counts in training
    (Doc, "crf_evidence", None),  # what speaks for the label of a text
    (Doc, "crf_source", None),  # where a text comes from: its "place" in a file, and its "id"
    (Token, "crf_boundary_prob", None),  # how probable it is that a token begins here
    (Token, "crf_word", None),  # the word that another program finds in this token
):
    if not owner.has_extension(name):
        owner.set_extension(name, default=default)

add_certainty("crf_prob", 1.0)
if not Doc.has_extension("crf_prob"):
    Doc.set_extension("crf_prob", getter=partial(certainty, "crf_prob"), setter=set_text_certainty)

if not Doc.has_extension("crf_fields"):
    Doc.set_extension("crf_fields", getter=fields_of)
