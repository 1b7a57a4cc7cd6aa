"""Extensions of spaCy's objects that components read or write. Importing the package sets them, so that one program can read the
extensions that another has written."""

from typing import NamedTuple, Optional

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
        name, n = ent.label_, 1
        while name in fields:
            n += 1
            name = f"{ent.label_} {n}"
        fields[name] = Field(_field_text(ent), ent._.crf_prob)
    return fields


def _field_text(ent: Span) -> str:
    """The text of a field; of a program's words, it is these joined by spaces."""
    words = [token._.crf_word for token in ent]
    text = " ".join(words) if all(words) else ent.text
    return text.strip(" ,;") or text


for owner, name, default in (
    (Doc, "crf_weight", 1.0),  # how much a Doc counts in training
    (Doc, "crf_hidden", None),  # what speaks for the label of a text
    # Links between Docs: the id of a Doc, the ids that it links to, and the collection that these belong to
    (Doc, "crf_id", None),
    (Doc, "crf_links", None),
    (Doc, "crf_group", None),
    # Probability of what a component with confidence = true has found: an entity, the label of a token, the label of a text. Kept
    # with the Doc's user data, so it survives DocBin(store_user_data=True)
    (Span, "crf_prob", None),
    (Token, "crf_prob", None),
    (Token, "crf_word", None),  # the word that another program finds in this token
    (Doc, "crf_prob", None),
    # Standard deviation of that probability between weights drawn from their posterior, with average > 0
    (Span, "crf_prob_sd", None),
    (Token, "crf_prob_sd", None),
):
    if not owner.has_extension(name):
        owner.set_extension(name, default=default)

if not Doc.has_extension("crf_fields"):
    Doc.set_extension("crf_fields", getter=fields_of)
