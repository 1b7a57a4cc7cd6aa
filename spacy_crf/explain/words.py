"""The influence of each word on a decision: the change of the log-odds without the word, and words that would reverse it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from spacy.attrs import DEP, ENT_ID, ENT_IOB, ENT_KB_ID, ENT_TYPE, HEAD, LEMMA, MORPH, POS, SENT_START, TAG
from spacy.tokens import Doc, Span

from .. import checks
from ..models.structure import Block
from .comparison import Comparison
from .explanation import Explanation, Flip, Row
from .weights import largest

UNKNOWN = "\u2047"  # a word that no training text has
# Templates whose features are words
_WORDS = ("orth[0]", "lower[0]", "norm[0]", "lemma[0]")
_MOST_PLACES = 5  # largest number of words that are replaced one by one
_MOST_CHANGES = 3  # largest number of words that are replaced together
_KEPT = [TAG, POS, MORPH, LEMMA, ENT_IOB, ENT_TYPE, ENT_KB_ID, ENT_ID]


def words(comparison: Comparison, candidates: int = 5, near: int = 50) -> Explanation:
    """Explain by words: each row has the decrease of the log-odds without a word, that is, without the features that read it, and
    with an unknown word for an encoder. Then other words replace the most influential words, one by one and together.

    candidates (int): Number of words to try for each label, those with the largest weights. With 0, no words are replaced.
    near (int): Number of words on each side of a span that are left out one by one. If a label of the whole text is explained,
        all words are.
    """
    candidates = checks.count(comparison.pipe.owner, "candidates", candidates, least=0, most=1000)
    near = checks.count(comparison.pipe.owner, "near", near, least=0, most=checks.ANY)
    odds = comparison.measure().odds
    first = comparison.tokens.start
    last = comparison.tokens.stop
    if comparison.compares_labels:
        first = 0
        last = len(comparison.doc)
    elif comparison.span is not None:
        first = max(first, comparison.span[0] - near)
        last = min(last, comparison.span[1] + near)
    label = () if comparison.span is None else (comparison.span[2],)
    rows = []
    for token in range(first, last):
        loss = odds - _odds_without(comparison, token)
        rows.append(
            Row(
                feature=comparison.doc[token].text,
                template="word",
                offset=0,
                token=token,
                end=token + 1,
                tags=label,
                value=1.0,
                weight=loss,
                use=1.0,
                contribution=loss,
            )
        )
    flips: list[Flip] = []
    if candidates:
        influential = sorted(rows, key=lambda row: -abs(row.contribution))
        tokens = [row.token for row in influential[:_MOST_PLACES]]
        flips = _flips(comparison, tokens, candidates)
        flips.sort(key=lambda flip: (len(flip.words), flip.characters))
    return comparison.explanation("words", odds, 0.0, rows, comparison.probability(odds), flips=flips, additive=False)


def _odds_without(comparison: Comparison, token: int) -> float:
    """Compute the log-odds without a word. An encoder reads the Doc again, with an unknown word."""
    docs = None
    if comparison.reading.reads_docs:
        docs = comparison.pipe.batch_class([changed(comparison.doc, {token: UNKNOWN})])
        comparison.pipe.require_ready(docs)
    return comparison.measure(comparison.cut(comparison.reading.erased(token, docs))).odds


def changed(doc: Any, words: dict[int, str]) -> Doc:
    """Copy a Doc with its annotation, spans and extensions, and replace some of its words.

    words (Dict[int, str]): The new words by token.
    """
    texts: list[Any] = [words.get(token.i, token.text) for token in doc]
    other = Doc(doc.vocab, words=texts, spaces=[bool(token.whitespace_) for token in doc])
    # spaCy sets no sentence starts beside a parse, which has them already
    attributes = [*_KEPT, *([DEP, HEAD] if doc.has_annotation("DEP") else [SENT_START])]
    other.from_array(attributes, doc.to_array(attributes))
    for key, group in doc.spans.items():
        other.spans[key] = [Span(other, span.start, span.end, label=span.label) for span in group]
    # Extensions are stored by ("._.", name, first character, character behind the last), which moves with other words
    user_data: Any = other.user_data
    begins = {token.idx: other[token.i].idx for token in doc}
    ends = {token.idx + len(token): other[token.i].idx + len(other[token.i]) for token in doc}
    for key, value in doc.user_data.items():
        if isinstance(key, tuple) and len(key) == 4 and key[0] == "._.":
            key = (*key[:2], begins.get(key[2], key[2]), ends.get(key[3], key[3]))
        user_data[key] = value
    return other


# -------------------------------------------------------------------------------------------- words that would flip it


def _flips(comparison: Comparison, tokens: list[int], candidates: int) -> list[Flip]:
    """Find changes of one word that reverse the decision; changes of several words if there are none.

    tokens (List[int]): The tokens whose words are replaced.
    candidates (int): Number of words to try for each label.
    """
    doc = comparison.doc
    flips = []
    decision = comparison.margin() > 0

    def try_words(words: dict[int, str]) -> float:
        """Replace words, and add a flip if the decision changes. RETURNS (float): The log-odds of the other decision."""
        other = changed(doc, words)
        docs = comparison.pipe.batch_class([other])
        comparison.pipe.require_ready(docs)
        of_other = comparison.repeat(docs)
        odds = of_other.measure().odds
        if (of_other.margin() > 0) != decision:
            changes = [(token, doc[token].text, word) for token, word in words.items()]
            flips.append(Flip(changes, odds, _predicted_spans(comparison, other)))
        return -odds if decision else odds

    learned = _learned_words(comparison, candidates)
    # For each token the word that comes nearest to the other decision
    best: dict[int, tuple[float, str]] = {}
    for token in tokens:
        for word in _replacements(doc[token].text, learned):
            odds = try_words({token: word})
            best[token] = max(best.get(token, (-np.inf, "")), (odds, word))
    together: dict[int, str] = {}
    for token, (_, word) in sorted(best.items(), key=lambda item: -item[1][0])[:_MOST_CHANGES]:
        together[token] = word
        if len(together) > 1 and not flips:
            try_words(dict(together))
    return flips


def _predicted_spans(comparison: Comparison, doc: Doc) -> list[tuple[int, int, str]]:
    """The spans that the component predicts in a text; the label of the text as a span of all tokens."""
    if comparison.compares_labels:
        return [(0, len(doc), label) for label in comparison.pipe.labels_of(doc)]
    best = comparison.pipe.n_best(doc, 1)
    return [(span.start, span.end, span.label_) for span in best[0][1]] if best else []


def _learned_words(comparison: Comparison, n: int) -> list[str]:
    """List the n words with the largest weights for each label, and for each tag without a label, such as O."""
    pipe = comparison.pipe
    tags_without_label = pipe.decoding.annotation.tags()[: pipe.decoding.tag_spans.offset]
    words = []
    for label in (*tags_without_label, *pipe.labels):
        for row in largest(pipe, label, n, _speak_for_words):
            _, _, word = row.feature.partition("=")
            if not word.startswith("<"):  # such as <BOS1>, a position outside the text
                words.append(word)
    return words


def _speak_for_words(block: Block) -> np.ndarray:
    """Which weights of a block are above 0 and belong to a word at the token itself: bool[W]."""
    if block.templates is None or len(block.states) > 1:
        return np.zeros(len(block.weights), dtype=bool)
    templates, template_of_weight = block.templates
    is_word = np.array([template in _WORDS for template in templates], dtype=bool)
    return is_word[template_of_weight] & (block.weights > 0)


def _replacements(word: str, learned: list[str]) -> Iterator[str]:
    """Yield words that might replace a word: the word in another case, an unknown word, and learned words."""
    words = [word.lower(), word.title(), word.upper(), UNKNOWN, *(_in_case_of(word, text) for text in learned)]
    for replacement in dict.fromkeys(words):
        if replacement != word and replacement.strip():
            yield replacement


def _in_case_of(word: str, text: str) -> str:
    """Change a text to the case of a word, unless the text contains capitals itself."""
    if text != text.lower() or word == word.lower():
        return text
    return text.upper() if word == word.upper() and len(word) > 1 else text.title()
