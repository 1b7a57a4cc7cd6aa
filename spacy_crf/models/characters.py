"""A chain over the units of texts, whose tags say where words and sentences begin."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays import of_file
from ..features.characters import NGRAMS, Items, Lexicon, Texts
from ..features.feature_index import CountingTable, HashTable
from ..inference.linear_chain import LinearChain
from ..kernels import characters as kernels
from ..losses.clamped import LogLikelihood
from ..types import Bools, ChainScores, Clamp, Floats, Ints

# What the columns of weights add up to, by tag. Tags of a chain for words: a word begins here, a word goes on
WORD_TAGS = np.array([[1.0, 0.0]])
# For sentences too: a sentence (and its first word) begins, a word begins, a word goes on
SENTENCE_TAGS = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
INSIDE = -1  # the last tag
_PARTS = ("begins", "ended before", "goes on")
_SAVED_NGRAMS = [[name, *ngrams] for name, ngrams in NGRAMS.items()]


class Annotated(NamedTuple):
    """Texts, and the tags that their annotation allows at each unit."""

    texts: Texts
    clamp: Clamp  # [U, S]


class NGrams(NamedTuple):
    """The n-grams of texts, with the rows of their weights."""

    rows: NDArray[np.int32]  # [M, N] from `kernels.find_ngrams`
    places: Ints  # [N] see `Items`
    starts: Ints  # [Q + 1]
    sizes: Ints  # [Q, 2]


class CharacterModel:
    """The weights of features of characters. Each feature has a row of weights for each boundary near it, see the kernels.

    has_sentences (bool): Whether the chain finds sentences too.
    joins_words (bool): Whether words never begin inside a run of letters, marks and digits.
    has_blanks (bool): Whether words may have white space inside.
    lexicon (Lexicon): Words whose places in a text are features.
    keys (uint64[F]): Hash of each n-gram that is a feature.
    widths (int32[F]): Number of rows of weights of each n-gram.
    weights (float64[R, C]): The rows of the n-grams, then one row for each column of `Lexicon.marks`. Saved as float32.
    transitions (float64[S, S]): Weights of pairs of tags.
    """

    def __init__(
        self,
        has_sentences: bool,
        joins_words: bool,
        has_blanks: bool,
        lexicon: Lexicon,
        keys: NDArray[np.uint64],
        widths: NDArray[np.int32],
        weights: Floats,
        transitions: Floats,
    ):
        self.has_sentences = has_sentences
        self.joins_words = joins_words
        self.has_blanks = has_blanks
        self.lexicon = lexicon
        self.keys = keys
        self.widths = widths
        self.weights = weights
        self.transitions = transitions
        self.tags = SENTENCE_TAGS if has_sentences else WORD_TAGS
        slots, features = HashTable(keys).arrays
        first_rows = np.cumsum(widths) - widths
        rows = np.where(features >= 0, first_rows[features] if len(keys) else -1, -1).astype(np.int32)
        self._table = slots, rows

    @classmethod
    def untrained(
        cls, corpus: Iterable[Texts], lexicon: Lexicon, min_count: int, **settings: bool
    ) -> tuple["CharacterModel", Floats]:
        """Make a model without weights, whose features are the n-grams of a corpus.

        corpus (Iterable[Texts]): The texts.
        lexicon (Lexicon): The words of a lexicon.
        min_count (int): How often an n-gram must occur.
        settings: The other arguments of the constructor, by name.
        RETURNS (CharacterModel, float64[R]): The model, and how often the corpus has the feature of each row of weights.
        """
        table = CountingTable()
        widths = [np.zeros(0, dtype=np.int32)]
        for texts in corpus:
            items = Items.of(texts)
            windows = np.repeat(items.sizes[:, 1], np.diff(items.starts))  # [N]
            hashes = kernels.hash_ngrams(items.codes, items.starts, items.seeds, items.sizes)
            for n, hashes_of_size in enumerate(hashes, 1):
                new_items = table.add(hashes_of_size)
                widths.append((2 * windows[new_items] - n + 1).astype(np.int32))
        is_frequent = table.counts >= min_count
        kept_widths = np.concatenate(widths)[is_frequent]
        counts = np.repeat(table.counts[is_frequent], kept_widths)
        frequencies = np.append(counts, np.zeros(3 * lexicon.LONGEST)).astype(np.float64)
        n_columns, n_tags = (SENTENCE_TAGS if settings["has_sentences"] else WORD_TAGS).shape
        weights = np.zeros((len(frequencies), n_columns))
        transitions = np.zeros((n_tags, n_tags))
        keys = table.keys[is_frequent]
        model = cls(
            **settings, lexicon=lexicon, keys=keys, widths=kept_widths, weights=weights, transitions=transitions
        )
        return model, frequencies

    def texts(self, texts: Iterable[str]) -> Texts:
        """Find the units of some texts. RAISES (ValueError): CRF990, see `Texts.of`."""
        return Texts.of(texts, joins_words=self.joins_words)

    def possible(self, texts: Texts) -> Bools:
        """The tags that each unit may have, whatever the weights: bool[U, S]."""
        possible = np.ones((len(texts.units), self.tags.shape[1]), dtype=bool)
        if not self.has_blanks:
            possible[texts.gaps == kernels.BLANK, INSIDE] = False
        possible[texts.gaps == kernels.BEGINNING, 1:] = False
        return possible

    def scores(self, texts: Texts) -> ChainScores:
        """Score the tags of the units of texts."""
        return self.chain(
            self.sums(texts, self.ngrams(texts), self.marks(texts), self.weights), self.transitions, texts
        )

    def marks(self, texts: Texts) -> NDArray[np.uint8]:
        """Where words of the lexicon are, by unit: uint8[U, M], see `Lexicon.marks`; uint8[U, 0] without a lexicon."""
        if not len(self.lexicon.keys):
            return np.zeros((len(texts.units), 0), dtype=np.uint8)
        return self.lexicon.marks(texts)[texts.units]

    def sums(self, texts: Texts, ngrams: NGrams, marks: NDArray[np.uint8], weights: Floats) -> Floats:
        """Sum the weights of the features at each unit.

        texts (Texts): The texts.
        ngrams (NGrams), marks (uint8[U, M]): From the methods of these names.
        weights (float64[R, C]): The weights.
        RETURNS (float64[U, C]): The sums.
        """
        scores = np.zeros((len(texts.points), len(self.tags)))
        kernels.add_scores(tuple(ngrams), weights, scores)
        sums = scores[texts.units]
        kernels.add_marks(marks, weights[len(weights) - marks.shape[1] :], sums)
        return sums

    def chain(self, scores: Floats, transitions: Floats, texts: Texts) -> ChainScores:
        """The potentials of the tags of units.

        scores (float64[U, C]): Sums of weights.
        transitions (float64[S, S]): Weights of pairs of tags.
        texts (Texts): The texts of the units.
        """
        no_scores = np.zeros(len(transitions))
        return ChainScores(scores @ self.tags, transitions, no_scores, no_scores, texts.starts)

    def ngrams(self, texts: Texts) -> NGrams:
        """The n-grams of texts, with the rows of their weights."""
        codes, places, starts, seeds, sizes = Items.of(texts)
        return NGrams(kernels.find_ngrams(codes, starts, seeds, sizes, self._table), places, starts, sizes)

    def features_at(self, text: str, place: int) -> list[tuple[str, float]]:
        """The weights that speak for or against a boundary, with the names of their features.

        text (str): A text.
        place (int): The character before which the boundary is.
        RETURNS (list[tuple[str, float]]): Names such as ``characters[-1..0]=ab``, with offsets from the boundary, and weights.
        """
        texts = self.texts([text])
        features = []
        rows, places, starts, sizes = self.ngrams(texts)
        for kind, first, behind, (longest, window) in zip(NGRAMS, starts, starts[1:], sizes):
            j = first + int(np.searchsorted(places[first:behind], place))
            if j == behind or places[j] != place:  # inside of a run
                continue
            ends = [*places[first + 1 : behind].tolist(), len(text)]
            for n in range(1, longest + 1):
                for i in range(max(first, j - window), min(j + window, behind) - n + 1):
                    row = rows[n - 1, i]
                    if row >= 0:
                        value = text[places[i] : ends[i - first + n - 1]]
                        name = f"{kind}[{i - j}..{i - j + n - 1}]={value}"
                        features.append((name, float(self.weights[row + j - (i + n - window), 0])))
        marks = self.lexicon.marks(texts)[place]
        for column in np.flatnonzero(marks).tolist():
            part, length = divmod(column, Lexicon.LONGEST)
            weight = float(self.weights[column - len(marks), 0])
            features.append((f"lexicon: a word of length {length + 1} {_PARTS[part]} here", weight))
        return features

    def pruned(self) -> "CharacterModel":
        """This model without the n-grams all of whose weights are 0."""
        is_used = np.asarray(self.weights.any(axis=1))
        first_rows = np.cumsum(self.widths) - self.widths
        n_rows = int(self.widths.sum())
        keeps = np.zeros(len(self.keys), dtype=bool)
        if n_rows:
            keeps = np.logical_or.reduceat(is_used[:n_rows], first_rows)
        kept_rows = np.append(np.repeat(keeps, self.widths), np.ones(len(self.weights) - n_rows, dtype=bool))
        return CharacterModel(
            self.has_sentences,
            self.joins_words,
            self.has_blanks,
            self.lexicon,
            self.keys[keeps],
            self.widths[keeps],
            self.weights[kept_rows],
            self.transitions,
        )

    def to_msg(self) -> dict[str, Any]:
        """The model as values for msgpack."""
        return {
            "has_sentences": self.has_sentences,
            "joins_words": self.joins_words,
            "has_blanks": self.has_blanks,
            "ngrams": _SAVED_NGRAMS,
            "lexicon": [self.lexicon.keys, self.lexicon.lengths],
            "keys": self.keys,
            "widths": self.widths,
            "weights": self.weights.astype(np.float32),
            "transitions": self.transitions.astype(np.float32),
        }

    @classmethod
    def from_msg(cls, msg: dict[str, Any]) -> "CharacterModel":
        """The model that `to_msg` returned.

        RAISES: An error of any class if the values are damaged.
        """
        if msg["ngrams"] != _SAVED_NGRAMS:
            raise ValueError(f"it has the n-grams {msg['ngrams']}, not {_SAVED_NGRAMS}")
        lexicon_keys, lexicon_lengths = msg["lexicon"]
        lexicon_keys = of_file("the lexicon", lexicon_keys, np.uint64, (None,))
        lexicon_lengths = of_file("the lexicon", lexicon_lengths, np.int32, lexicon_keys.shape)
        if len(lexicon_lengths) and lexicon_lengths.min() < 0:
            raise ValueError("a word of the lexicon has an impossible length")
        keys = of_file("the features", msg["keys"], np.uint64, (None,))
        widths = of_file("the features", msg["widths"], np.int32, keys.shape)
        largest = max(2 * window for _, window in NGRAMS.values())
        if len(widths) and not 0 < widths.min() <= widths.max() <= largest:
            raise ValueError("a feature has an impossible number of weights")
        tags = SENTENCE_TAGS if msg["has_sentences"] else WORD_TAGS
        n_rows = int(widths.sum()) + 3 * Lexicon.LONGEST
        n_columns, n_tags = tags.shape
        return cls(
            bool(msg["has_sentences"]),
            bool(msg["joins_words"]),
            bool(msg["has_blanks"]),
            Lexicon(lexicon_keys, lexicon_lengths),
            keys,
            widths,
            of_file("the weights", msg["weights"], np.float32, (n_rows, n_columns)).astype(np.float64),
            of_file("the transitions", msg["transitions"], np.float32, (n_tags, n_tags)).astype(np.float64),
        )


class CharacterObjective:
    """The negative log-likelihood of annotated texts, as a function of all weights: first the rows, then the transitions.

    model (CharacterModel): The model, whose weights training changes.
    corpus (Sequence[Annotated]): The texts in batches, one of which at a time has scores in memory.
    frequencies (float64[R]): How often the corpus has the feature of each row.
    """

    signature = "characters"  # training never continues from a checkpoint

    def __init__(self, model: CharacterModel, corpus: Sequence[Annotated], frequencies: Floats):
        self._model = model
        self._loss = LogLikelihood()
        self._structure = LinearChain()
        self._batches = []
        n_units = 0
        for texts, clamp in corpus:
            possible = model.possible(texts)
            marks = model.marks(texts)
            frequencies[len(frequencies) - marks.shape[1] :] += marks.sum(axis=0)
            forbidden = np.where(possible, 0.0, -np.inf)
            self._batches.append((texts, model.ngrams(texts), marks, forbidden, clamp & possible))
            n_units += len(texts.units)
        n_columns = len(model.tags)
        self.frequencies = np.append(np.repeat(frequencies, n_columns), np.full(model.transitions.size, n_units))

    def weights(self) -> Floats:
        """The weights of the model: float64[n]."""
        return np.concatenate([self._model.weights.ravel(), self._model.transitions.ravel()])

    def _split(self, weights: Floats) -> tuple[Floats, Floats]:
        """The rows (float64[R, C]) and the transitions (float64[S, S]) in a vector, as views."""
        model = self._model
        n = model.weights.size
        return weights[:n].reshape(model.weights.shape), weights[n:].reshape(model.transitions.shape)

    def assign(self, weights: Floats) -> None:
        """Write weights (float64[n]) to the model."""
        rounded = weights.astype(np.float32).astype(np.float64)
        self._model.weights, self._model.transitions = self._split(rounded)

    def evaluate(self, weights: Floats) -> tuple[float, Floats]:
        """The loss at some weights (float64[n]), and its gradient (float64[n])."""
        model = self._model
        rows, transitions = self._split(weights)
        gradient = np.zeros(len(weights))
        d_rows, d_transitions = self._split(gradient)
        loss = 0.0
        for texts, ngrams, marks, forbidden, clamp in self._batches:
            potentials = model.chain(model.sums(texts, ngrams, marks, rows), transitions, texts)
            potentials.emissions[:] += forbidden
            losses, derivative, _ = self._loss(self._structure, potentials, clamp)
            loss += float(losses.sum())
            d_transitions += derivative.transitions
            d_sums = derivative.emissions @ model.tags.T
            d_rows[len(rows) - marks.shape[1] :] += marks.T.astype(np.float64) @ d_sums
            d_scores = np.zeros((len(texts.points), len(model.tags)))
            d_scores[texts.units] = d_sums
            kernels.add_gradient(tuple(ngrams), d_rows, d_scores)
        return loss, gradient
