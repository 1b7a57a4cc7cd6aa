"""Compares the tokens of the training data with those that the pipeline's tokenizer makes of the same texts. A component that
learned from other tokens scores well on data with these, and finds little in raw texts."""

from collections.abc import Iterable

from spacy.language import Language
from spacy.tokens import Doc

from ..errors import Warnings
from .pipe import LearningPipe

MOST_TOKENS = 2000  # of the first texts, which take the tokenizer some milliseconds
MOST_OTHER = 0.01  # of the tokens


class TokenComparison:
    """Counts the tokens of some texts that the tokenizer of a pipeline would not make."""

    def __init__(self, nlp: Language) -> None:
        self._nlp = nlp
        self._n_tokens = 0
        self._n_others = 0
        self._example = ""

    def read(self, docs: Iterable[Doc]) -> None:
        """Count the tokens of Docs, up to the first `MOST_TOKENS`."""
        for doc in docs:
            if self._n_tokens >= MOST_TOKENS:
                return
            text = doc.text.rstrip(" ") if doc.has_unknown_spaces else doc.text
            if not text.strip() or len(text) > self._nlp.max_length:
                continue
            places = {(token.idx, token.idx + len(token)) for token in self._nlp.make_doc(text)}
            words = [token for token in doc if not token.is_space]
            others = [token for token in words if (token.idx, token.idx + len(token)) not in places]
            self._n_tokens += len(words)
            self._n_others += len(others)
            if others and not self._example:
                self._example = f"'{others[0].text}' in '{text[:40]}'"

    def warn(self, pipe: LearningPipe) -> None:
        """Warn if the tokenizer would not make more than a share `MOST_OTHER` of the tokens."""
        if self._n_others > MOST_OTHER * self._n_tokens:
            share = self._n_others / self._n_tokens
            pipe.warn(Warnings.CRFW986, share=share, n=self._n_tokens, example=self._example)
