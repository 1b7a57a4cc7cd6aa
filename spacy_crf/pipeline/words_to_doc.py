"""Makes Docs of texts whose words are known by their places."""

from typing import Optional

import numpy as np
from spacy.tokens import Doc
from spacy.vocab import Vocab

from ..types import Bools, Ints


def words_to_doc(vocab: Vocab, text: str, starts: Ints, ends: Ints, is_sentence: Optional[Bools] = None) -> Doc:
    """Make the Doc of a text. White space becomes what spaCy makes of it: one space belongs to the token before; the rest is a
    token.

    vocab (Vocab): The vocabulary.
    text (str): The text.
    starts (int64[W]), ends (int64[W]): Where its words begin and end.
    is_sentence (Optional[bool[W]]): Whether a sentence begins with each word; None for no sentences.
    RETURNS (Doc): The Doc, whose text is `text`.
    """
    if not len(starts):
        words = [text] if text else []
        has_sentence = is_sentence is not None and bool(text)
        return Doc(vocab, words=words, spaces=[False] * len(words), sent_starts=[True] if has_sentence else None)
    next_starts = np.append(starts[1:], len(text))
    ends_in_space = np.array([text[end : end + 1] == " " for end in ends.tolist()])
    has_space = ends_in_space & (ends < next_starts)
    # Tokens for the rest of the white space behind words
    blank_starts = ends + has_space
    has_blank = blank_starts < next_starts
    no_flags = np.zeros(has_blank.sum(), dtype=bool)
    token_starts = np.concatenate([starts, blank_starts[has_blank]])
    token_ends = np.concatenate([ends, next_starts[has_blank]])
    order = np.argsort(token_starts)
    words = [text[start:end] for start, end in zip(token_starts[order].tolist(), token_ends[order].tolist())]
    spaces = np.concatenate([has_space, no_flags])[order].tolist()
    sent_starts = None
    if is_sentence is not None:
        sent_starts = np.concatenate([is_sentence, no_flags])[order].tolist()
        sent_starts[0] = True
    if starts[0] > 0:
        # White space at the beginning belongs to the first sentence
        words.insert(0, text[: starts[0]])
        spaces.insert(0, False)
        if sent_starts is not None:
            sent_starts[0] = False
            sent_starts.insert(0, True)
    return Doc(vocab, words=words, spaces=spaces, sent_starts=sent_starts)
