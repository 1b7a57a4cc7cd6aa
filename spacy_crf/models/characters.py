"""A chain over the units of texts, whose tags say where words and sentences begin."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..arrays import of_file
from ..features.characters import KINDS, Items, Lexicon, Texts
from ..features.feature_index import CountingTable, HashTable
from ..inference.linear_chain import LinearChain
from ..kernels import characters as kernels
from ..kernels.characters import LONGEST_NGRAM, WINDOW
from ..kernels.hashing import find_rows
from ..losses.clamped import LogLikelihood
from ..types import Bools, ChainScores, Clamp, Floats, Ints

if TYPE_CHECKING:
    from spacy.tokenizer import Tokenizer

# What the columns of weights add up to, by tag. Tags of a chain for words: a word begins here, a word goes on
WORD_TAGS = np.array([[1.0, 0.0]])
# For sentences too: a sentence (and its first word) begins, a word begins, a word goes on
SENTENCE_TAGS = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
INSIDE = -1  # the last tag
_PARTS = ("begins", "ended before", "goes on")
_NGRAMS = [*KINDS, LONGEST_NGRAM, WINDOW]  # saved, since weights fit no others
N_MARKS = 3 * Lexicon.LONGEST  # bits of `Lexicon.marks`, each of which has a row of weights
_NO_PLACES = np.zeros(0, dtype=np.int64)  # so that `find_rows` adds no keys


class Annotated(NamedTuple):
    """Texts, and the tags that their annotation allows at each unit."""

    texts: Texts
    clamp: Clamp  # [U, S]


class NGrams(NamedTuple):
    """The n-grams of texts, with the rows of their weights."""

    rows: NDArray[np.int32]  # [LONGEST_NGRAM, N] the first row of the weights of each, -1 for unknown ones
    places: Ints  # [N] see `Items`
    starts: Ints  # [Q + 1]


@dataclass
class CharacterModel:
    """The weights of features of characters. Each feature has a row of weights for each boundary near it, see the kernels.

    has_sentences (bool): Whether the chain finds sentences too.
    joins_words (bool): Whether words never begin inside a run of letters, marks and digits.
    has_blanks (bool): Whether words may have white space inside.
    lexicon (Lexicon): Words whose places in a text are features.
    keys (uint64[F]): Hash of each n-gram that is a feature.
    widths (int32[F]): Number of rows of weights of each n-gram.
    weights (float64[R, C]): The rows of the n-grams, then one row for each bit of `Lexicon.marks`. Saved as float32.
    transitions (float64[S, S]): Weights of pairs of tags.
    """

    has_sentences: bool
    joins_words: bool
    has_blanks: bool
    lexicon: Lexicon
    keys: NDArray[np.uint64]
    widths: NDArray[np.int32]
    weights: Floats
    transitions: Floats

    def __post_init__(self) -> None:
        self.tags = SENTENCE_TAGS if self.has_sentences else WORD_TAGS
        slots, features = HashTable(self.keys).arrays
        first_rows = np.cumsum(self.widths) - self.widths
        rows_or_none = np.append(first_rows, -1).astype(np.int32)  # the last for free slots, whose feature is -1
        self._table = slots, rows_or_none[features]

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
            for n, hashes in enumerate(kernels.hash_ngrams(items.codes, items.starts, items.seeds), 1):
                n_new = len(table.add(hashes))
                widths.append(np.full(n_new, 2 * WINDOW - n + 1, dtype=np.int32))
        is_frequent = table.counts >= min_count
        kept_widths = np.concatenate(widths)[is_frequent]
        counts = np.repeat(table.counts[is_frequent], kept_widths)
        frequencies = np.append(counts, np.zeros(N_MARKS)).astype(np.float64)
        n_columns, n_tags = (SENTENCE_TAGS if settings["has_sentences"] else WORD_TAGS).shape
        weights = np.zeros((len(frequencies), n_columns))
        transitions = np.zeros((n_tags, n_tags))
        keys = table.keys[is_frequent]
        model = cls(
            **settings, lexicon=lexicon, keys=keys, widths=kept_widths, weights=weights, transitions=transitions
        )
        return model, frequencies

    def texts(self, texts: Sequence[str], language_rules: "Optional[Tokenizer]" = None) -> Texts:
        """Find the units of some texts; `language_rules` and the error are those of `Texts.of`."""
        return Texts.of(texts, joins_words=self.joins_words, language_rules=language_rules)

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

    def marks(self, texts: Texts) -> NDArray[np.uint32]:
        """Where words of the lexicon are, by unit: uint32[U], see `Lexicon.marks`."""
        return self.lexicon.marks(texts)[texts.units]

    def sums(self, texts: Texts, ngrams: NGrams, marks: NDArray[np.uint32], weights: Floats) -> Floats:
        """Sum the weights of the features at each unit.

        texts (Texts): The texts.
        ngrams (NGrams), marks (uint32[U]): From the methods of these names.
        weights (float64[R, C]): The weights.
        RETURNS (float64[U, C]): The sums.
        """
        item_sums = np.zeros((len(ngrams.places), len(self.tags)))
        kernels.add_windows(ngrams.rows, ngrams.starts, weights, item_sums, False)
        sums = np.empty((len(texts.units), len(self.tags)))
        for column, sums_of_column in enumerate(item_sums.T):
            sums[:, column] = np.bincount(ngrams.places, sums_of_column, len(texts.points))[texts.units]
        kernels.add_marks(marks, weights[-N_MARKS:], sums, False)
        return sums

    def chain(self, scores: Floats, transitions: Floats, texts: Texts) -> ChainScores:
        """The potentials of the tags of units.

        scores (float64[U, C]): Sums of weights.
        transitions (float64[S, S]): Weights of pairs of tags.
        texts (Texts): The texts of the units.
        """
        no_scores = np.zeros(len(transitions))
        # BLAS would take ten times as long, on several threads
        emissions = np.einsum("uc,cs->us", scores, self.tags)
        return ChainScores(emissions, transitions, no_scores, no_scores, texts.starts)

    def ngrams(self, texts: Texts) -> NGrams:
        """The n-grams of texts, with the rows of their weights."""
        codes, places, starts, seeds = Items.of(texts)
        hashes = kernels.hash_ngrams(codes, starts, seeds)
        rows = np.empty(hashes.shape, dtype=np.int32)
        find_rows(*self._table, hashes.reshape(-1), 0, rows.reshape(-1), _NO_PLACES)
        return NGrams(rows, places, starts)

    def features_of(self, text: str, texts: Texts, units: Sequence[int]) -> Iterator[list[tuple[str, float]]]:
        """Name the features of boundaries before units.

        text (str): A text.
        texts (Texts): The same text alone.
        units (Sequence[int]): The units.
        YIELDS (list[tuple[str, float]]): For each unit the names of the features that speak for or against a boundary before it,
            such as ``characters[-1..0]=ab``, with offsets from the boundary, and their weights.
        """
        ngrams = self.ngrams(texts)
        marks = self.marks(texts)
        for unit in units:
            place = int(texts.units[unit])
            features = []
            for kind, first, behind in zip(KINDS, ngrams.starts, ngrams.starts[1:]):
                j = first + int(np.searchsorted(ngrams.places[first:behind], place))
                if j < behind and ngrams.places[j] == place:  # and not inside of a run
                    features += self._features_of_kind(kind, text, ngrams, range(first, behind), j)
            for bit in np.flatnonzero(_bits(marks[[unit]])).tolist():
                part, length = divmod(bit, Lexicon.LONGEST)
                weight = float(self.weights[bit - N_MARKS, 0])
                features.append((f"lexicon: a word of length {length + 1} {_PARTS[part]} here", weight))
            yield features

    def _features_of_kind(
        self, kind: str, text: str, ngrams: NGrams, items: range, j: int
    ) -> Iterator[tuple[str, float]]:
        """Name the n-grams of one kind in the window of a boundary.

        kind (str): The kind.
        text (str): The text.
        ngrams (NGrams): Its n-grams.
        items (range): The numbers of the items of this kind.
        j (int): The item behind the boundary.
        YIELDS (tuple[str, float]): Names and weights.
        """
        for n in range(1, LONGEST_NGRAM + 1):
            for i in range(max(items.start, j - WINDOW), min(j + WINDOW, items.stop) - n + 1):
                row = ngrams.rows[n - 1, i]
                if row >= 0:
                    end = ngrams.places[i + n] if i + n < items.stop else len(text)
                    name = f"{kind}[{i - j}..{i - j + n - 1}]={text[ngrams.places[i] : end]}"
                    yield name, float(self.weights[row + j - (i + n - WINDOW), 0])

    def pruned(self) -> "CharacterModel":
        """This model without the n-grams all of whose weights are 0."""
        is_used = np.asarray(self.weights.any(axis=1))
        first_rows = np.cumsum(self.widths) - self.widths
        n_rows = int(self.widths.sum())
        keeps = np.zeros(len(self.keys), dtype=bool)
        if n_rows:
            keeps = np.logical_or.reduceat(is_used[:n_rows], first_rows)
        kept_rows = np.append(np.repeat(keeps, self.widths), np.ones(len(self.weights) - n_rows, dtype=bool))
        return replace(self, keys=self.keys[keeps], widths=self.widths[keeps], weights=self.weights[kept_rows])

    def to_msg(self) -> dict[str, Any]:
        """The model as values for msgpack."""
        return {
            "has_sentences": self.has_sentences,
            "joins_words": self.joins_words,
            "has_blanks": self.has_blanks,
            "ngrams": _NGRAMS,
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
        if msg["ngrams"] != _NGRAMS:
            raise ValueError(f"it has the n-grams {msg['ngrams']}, not {_NGRAMS}")
        lexicon_keys, lexicon_lengths = msg["lexicon"]
        lexicon_keys = of_file("the lexicon", lexicon_keys, np.uint64, (None,))
        lexicon_lengths = of_file("the lexicon", lexicon_lengths, np.int32, lexicon_keys.shape)
        if len(lexicon_lengths) and lexicon_lengths.min() < 0:
            raise ValueError("a word of the lexicon has an impossible length")
        keys = of_file("the features", msg["keys"], np.uint64, (None,))
        widths = of_file("the features", msg["widths"], np.int32, keys.shape)
        if len(widths) and not 0 < widths.min() <= widths.max() <= 2 * WINDOW:
            raise ValueError("a feature has an impossible number of weights")
        tags = SENTENCE_TAGS if msg["has_sentences"] else WORD_TAGS
        n_rows = int(widths.sum()) + N_MARKS
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
            frequencies[-N_MARKS:] += _bits(marks).sum(axis=0)
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
            d_sums = np.einsum("us,cs->uc", derivative.emissions, model.tags)
            kernels.add_marks(marks, d_rows[-N_MARKS:], d_sums, True)
            d_scores = np.zeros((len(texts.points), len(model.tags)))
            d_scores[texts.units] = d_sums
            kernels.add_windows(ngrams.rows, ngrams.starts, d_rows, d_scores[ngrams.places], True)
        return loss, gradient


def _bits(marks: NDArray[np.uint32]) -> Bools:
    """The bits of the marks (uint32[U]) of units, see `Lexicon.marks`: bool[U, N_MARKS]."""
    shifts = np.arange(N_MARKS, dtype=np.uint32)
    return (marks[:, np.newaxis] >> shifts & 1) > 0
