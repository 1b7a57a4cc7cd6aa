"""Tokenizers that cut texts as other programs do, so that an imported model meets the words that its program would give it."""

import re
from itertools import pairwise
from typing import NamedTuple

from spacy.language import Language
from spacy.tokens import Doc
from spacy.util import DummyTokenizer
from spacy.vocab import Vocab

from .. import checks


class Words(NamedTuple):
    """How a program finds the words of a text.

    pattern (re.Pattern): Matches a word.
    spellings (dict[str, str]): Words that the program spells in another way.
    """

    pattern: "re.Pattern[str]"
    spellings: dict[str, str]

    def of_token(self, text: str) -> str:
        """The word that a token contains; the whole text of a token without one."""
        match = self.pattern.search(text)
        return text if match is None else self.spelling(match)

    def spelling(self, match: "re.Match[str]") -> str:
        """The word of a match, as the program spells it."""
        return self.spellings.get(match[0], match[0])


# By the name of the package that has the functions of features
WORDS_OF = {
    "usaddress": Words(
        re.compile(r"\(*\b[^\s,;#&()]+[.,;)\n]*|&(?:#38|amp);|[#&]"),
        {"&#38;": "&", "&amp;": "&"},
    ),
    "probablepeople": Words(
        re.compile(r"""\bc/o\b|[("']*\b[^\s/,;#&()]+\b[.,;:'")]*|[#&@/]""", re.IGNORECASE),
        {},
    ),
}


def make_program_tokenizer(program: str):
    """Make the tokenizer of another program, ``spacy_crf.ProgramTokenizer.v1``.

    program (str): "usaddress" or "probablepeople"; the program itself is not needed.
    RAISES (ValueError): CRF020 for another program.
    """
    words = WORDS_OF[checks.one_of("ProgramTokenizer", "program", program, WORDS_OF)]

    def make(nlp: Language) -> ProgramTokenizer:
        return ProgramTokenizer(nlp.vocab, words)

    return make


class ProgramTokenizer(DummyTokenizer):
    """Cuts a text where the next word begins: what stands between two words belongs to the token of the first. So no character is
    lost, and ``token._.crf_word`` is the word alone. A text without words has no tokens."""

    def __init__(self, vocab: Vocab, words: Words) -> None:
        self.vocab = vocab
        self._words = words

    def __call__(self, text: str) -> Doc:
        matches = list(self._words.pattern.finditer(text))
        starts = [0, *(match.start() for match in matches[1:]), len(text)]
        pieces = [text[start:end] for start, end in pairwise(starts)] if matches else []
        spaces = [piece.endswith(" ") for piece in pieces]
        tokens = [piece[:-1] if space else piece for piece, space in zip(pieces, spaces)]
        doc = Doc(self.vocab, words=tokens, spaces=spaces)
        for token, match in zip(doc, matches):
            token._.crf_word = self._words.spelling(match)
        return doc
