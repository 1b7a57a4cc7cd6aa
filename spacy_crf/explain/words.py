"""What each word has to do with a span: what changes without it, and which other words would change the decision."""

from collections.abc import Iterator

import numpy as np
from spacy.tokens import Doc

from .. import checks
from ..features.doc_batch import DocBatch
from .changed import changed
from .explanation import Explanation, Flip, Row
from .request import Asked
from .weights import Block, largest

UNKNOWN = "\u2047"  # a word that nobody has learned
_WORDS = ("orth[0]", "lower[0]", "norm[0]", "lemma[0]")  # templates whose features are words
_NEAR = 50  # words on each side of a span that are looked at
_MOST_PLACES = 5  # words that are replaced
_MOST_CHANGES = 3  # words that are replaced together


def words(asked: Asked, candidates: int = 5) -> Explanation:
    """Each row says what the log-odds lose without a word: every feature that reads it is left out, and an encoder reads an
    unknown word instead. The words that matter most are replaced by others too, one by one and then together.

    candidates (int): How many words of each label are tried: those with the largest weights.
    """
    question = asked.question
    candidates = checks.count(question.pipe.owner, "candidates", candidates, least=0, most=1000)
    odds, first, last = question.measure().odds, question.tokens.start, question.tokens.stop
    if question.is_of_texts:
        first, last = 0, len(asked.doc)
    elif asked.span is not None:
        first, last = max(first, asked.span[0] - _NEAR), min(last, asked.span[1] + _NEAR)
    rows = [_row(asked, token, odds - _erased(asked, token)) for token in range(first, last)]
    places = [row.token for row in sorted(rows, key=lambda row: -abs(row.contribution))[:_MOST_PLACES]]
    flips = sorted(_flips(asked, places, candidates), key=lambda flip: (len(flip.words), flip.characters))
    return asked.explanation("words", odds, 0.0, rows, asked.probability(odds), flips=flips, additive=False)


def _row(asked: Asked, token: int, loss: float) -> Row:
    label = () if asked.span is None else (asked.span[2],)
    return Row(asked.doc[token].text, "word", 0, token, token + 1, label, 1.0, loss, 1.0, loss)


def _flips(asked: Asked, places: list[int], n: int) -> list[Flip]:
    """Changes that make the decision another one: of one word, or if there is none, of several."""
    trials, learned = _Trials(asked), _learned(asked, n)
    best: dict[int, tuple[float, str]] = {}  # of each place, the word that changes most towards the other decision
    for token in places:
        for word in _others(asked.doc[token].text, learned):
            best[token] = max(best.get(token, (-np.inf, "")), (trials.change({token: word}), word))
    together: dict[int, str] = {}
    for token, (_, word) in sorted(best.items(), key=lambda item: -item[1][0])[:_MOST_CHANGES]:
        together[token] = word
        if len(together) > 1 and not trials.flips:
            trials.change(dict(together))
    return trials.flips


def _erased(asked: Asked, token: int) -> float:
    """The log-odds without a word."""
    question, docs = asked.question, None
    if question.pipe.has_encoder:
        docs = DocBatch([changed(asked.doc, {token: UNKNOWN})])
        question.pipe.require_ready(docs)
    return question.measure(question.cut(question.reading.erased(token, docs))).odds


class _Trials:
    """Asks the same about texts with other words, and keeps those that change the decision."""

    def __init__(self, asked: Asked):
        self._asked = asked
        self._decision = asked.question.best()[2] > 0
        self.flips: list[Flip] = []

    def change(self, words: dict[int, str]) -> float:
        """RETURNS (float): How far the log-odds speak for the other decision."""
        question, doc = self._asked.question, self._asked.doc
        pipe, other = question.pipe, changed(doc, words)
        docs = DocBatch([other])
        pipe.require_ready(docs)
        asked = question.about(docs)
        odds = asked.measure().odds
        if (asked.best()[2] > 0) != self._decision:
            changes = [(token, doc[token].text, word) for token, word in words.items()]
            self.flips.append(Flip(changes, odds, _found(self._asked, other)))
        return -odds if self._decision else odds


def _found(asked: Asked, doc: Doc) -> list[tuple[int, int, str]]:
    if asked.question.is_of_texts:
        return [(0, len(doc), next(iter(asked.question.pipe.probabilities(doc))))]
    best = asked.question.pipe.n_best(doc, 1)
    return [(span.start, span.end, span.label_) for span in best[0][1]] if best else []


def _learned(asked: Asked, n: int) -> list[str]:
    """The words that weigh most for each label."""
    pipe, labels = asked.question.pipe, asked.outside_and_labels
    rows = (row for label in labels for row in largest(pipe, label, n, _of_words)) if n else ()
    return [text for text in (row.feature.partition("=")[2] for row in rows) if not text.startswith("<")]


def _others(word: str, learned: list[str]) -> Iterator[str]:
    """Words that might stand in the place of a word: it in another case, an unknown one, and those that were learned."""
    words = [word.lower(), word.title(), word.upper(), UNKNOWN, *(_like(text, word) for text in learned)]
    yield from (other for other in dict.fromkeys(words) if other != word and other.strip())


def _of_words(block: Block) -> np.ndarray:
    if block.templates is None or len(block.states) > 1:
        return np.zeros(len(block.weights), dtype=bool)
    names, of_weight = block.templates
    is_word = np.array([name in _WORDS for name in names], dtype=bool)
    return is_word[of_weight] & (block.weights > 0)


def _like(text: str, word: str) -> str:
    """A word in the case of another one, unless it has one of its own."""
    if text != text.lower() or word == word.lower():
        return text
    return text.upper() if word == word.upper() and len(word) > 1 else text.title()
