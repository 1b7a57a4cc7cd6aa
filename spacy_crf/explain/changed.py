"""Texts with other words: everything else stays what it was."""

from spacy.attrs import DEP, ENT_ID, ENT_IOB, ENT_KB_ID, ENT_TYPE, HEAD, LEMMA, MORPH, POS, SENT_START, TAG
from spacy.tokens import Doc, Span

_KEPT = [TAG, POS, MORPH, LEMMA, ENT_IOB, ENT_TYPE, ENT_KB_ID, ENT_ID]


def changed(doc: Doc, words: dict[int, str]) -> Doc:
    """A copy of a Doc with other words in some places: with its annotation, spans and extensions.

    words (Dict[int, str]): The new ones, by their token.
    RETURNS (Doc)
    """
    texts = [words.get(token.i, token.text) for token in doc]
    other = Doc(doc.vocab, words=texts, spaces=[bool(token.whitespace_) for token in doc])
    kept = [*_KEPT, *([DEP, HEAD] if doc.has_annotation("DEP") else [SENT_START])]
    other.from_array(kept, doc.to_array(kept))
    for key, group in doc.spans.items():
        other.spans[key] = [Span(other, span.start, span.end, label=span.label) for span in group]
    begins = {token.idx: other[token.i].idx for token in doc}
    ends = {token.idx + len(token): other[token.i].idx + len(other[token.i]) for token in doc}
    for key, value in doc.user_data.items():
        if isinstance(key, tuple) and len(key) == 4 and key[0] == "._.":
            key = (*key[:2], begins.get(key[2], key[2]), ends.get(key[3], key[3]))
        other.user_data[key] = value
    return other
