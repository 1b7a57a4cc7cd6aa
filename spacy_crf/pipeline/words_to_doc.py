"""Makes Docs of texts whose words are known by their places."""

from collections.abc import Sequence
from typing import Optional, Union

from spacy.tokens import Doc
from spacy.vocab import Vocab


def words_to_doc(
    vocab: Vocab, text: str, starts: Sequence[int], ends: Sequence[int], is_sentence: Optional[Sequence[bool]] = None
) -> Doc:
    """Make the Doc of a text. White space becomes what spaCy makes of it: one space belongs to the token before; the rest is a
    token.

    vocab (Vocab): The vocabulary.
    text (str): The text.
    starts (Sequence[int]), ends (Sequence[int]): Where its words begin and end.
    is_sentence (Optional[Sequence[bool]]): Whether a sentence begins with each word; None for no sentences.
    RETURNS (Doc): The Doc, whose text is `text`.
    """
    next_starts = [*starts, len(text)]
    first_start = next_starts[0]
    # White space at the beginning is a token, which belongs to the first sentence
    words = [text[:first_start]] if first_start else []
    spaces = [False] * len(words)
    sent_starts: list[Union[bool, int, None]] = [True] * len(words)
    begins_sentence = [False] * len(starts) if is_sentence is None else [*is_sentence]
    if begins_sentence:
        begins_sentence[0] = not words
    for start, end, next_start, flag in zip(starts, ends, next_starts[1:], begins_sentence):
        words.append(text[start:end])
        sent_starts.append(flag)
        if end == next_start:
            spaces.append(False)
            continue
        has_space = text[end] == " "
        spaces.append(has_space)
        if next_start > end + has_space:
            words.append(text[end + has_space : next_start])
            spaces.append(False)
            sent_starts.append(False)
    with_sentences = is_sentence is not None and bool(words)
    return Doc(vocab, words=words, spaces=spaces, sent_starts=sent_starts if with_sentences else None)
