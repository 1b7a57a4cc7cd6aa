"""Weights to scores and back, each way through them against plain dense matrices."""

from itertools import pairwise

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc

from spacy_crf.features.extractor import CompiledTemplates, FeatureSet, IndexBuilder
from spacy_crf.features.feature_index import FeatureIndex, FeatureNames
from spacy_crf.features.shared_windows import CorpusTokens
from spacy_crf.kernels.sparse_rows import LARGE, add_kind_rows, scatter_kind_rows
from spacy_crf.models.corpus import FixedTokens, TokensPass, items_side_by_side
from spacy_crf.models.table import Table, parts_for
from spacy_crf.models.word_scores import TableScorer
from spacy_crf.types import TokenFeatures

TEMPLATES = [
    "bias",
    "lower[-2..2]",
    "tag[0]|lower[0]",
    "tag[1]",
    "lower[-1]|lower[0]",
    "suffix2[-1]",
    "suffix2[4]",
    "fn:twice[0]",
]
# Windows of tags: narrow ones inside wide ones, one that no wide one reaches, and the same parts in another order
TEMPLATES += ["tag[-2]|tag[-1]|tag[0]", "tag[0]|tag[-1]", "tag[-1]|tag[0]", "tag[1]|tag[2]", "is_title[-1]|is_title[1]"]
FEATURES = {"functions": {"twice": lambda doc: [[2.0 * token.i, 1.0] for token in doc]}}


def random_rows(rng, index, n_columns):
    """Weights for a random half of all pairs, so that rows are narrow and wide."""
    share = rng.random(len(index))[:, None]
    pairs = rng.random((len(index), n_columns)) < share
    starts = np.append(0, np.cumsum(pairs.sum(axis=1))).astype(np.int64)
    return Table(index, starts, np.nonzero(pairs)[1].astype(np.int32), n_columns), pairs


def dense_features(features, n_rows):
    matrix = np.zeros((len(features.starts) - 1, n_rows))
    for t, (begin, end) in enumerate(zip(features.starts, features.starts[1:])):
        for n in range(begin, end):
            matrix[t, features.rows[n]] += 1.0 if features.values is None else features.values[n]
    return matrix


class Corpus:
    """A small corpus with sequences of all lengths, its features, and random weights."""

    def __init__(self, padding, n_columns, seed=0):
        rng = np.random.default_rng(seed)
        nlp = spacy.blank("en")
        words = ["the", "The", "cat", "dog", "runs", "x"]
        self.docs = []
        for length in [4, 1, 0, 2, 7, 3, 9]:
            doc = Doc(nlp.vocab, words=[words[n] for n in rng.integers(len(words), size=length)])
            for token in doc:
                token.tag_ = "AB"[token.i % 2]
            self.docs.append(doc)
        self.docs[4][3].is_sent_start = True
        feature_set = FeatureSet(TEMPLATES, padding=padding, **FEATURES)
        self.compiled = CompiledTemplates(feature_set.templates, feature_set.reader({}))
        reader = self.compiled.reader
        reader.keep_names(True)
        builder = IndexBuilder(self.compiled, FeatureIndex.empty())
        for doc in self.docs:
            builder.add(reader.read([doc]))
        index = builder.freeze(builder.table.counts >= 2, nlp.vocab)
        self.columns = reader.read(self.docs)
        self.rows, pairs = random_rows(rng, index, n_columns)
        self.weights = rng.normal(size=self.rows.n_weights)
        self.pairs = pairs
        self.dense_weights = np.zeros(pairs.shape)
        self.dense_weights[pairs] = self.weights
        self.features = self.compiled.rows(self.columns, index)
        self.dense = dense_features(self.features, len(index))
        self.d_scores = rng.normal(size=(len(self.dense), n_columns))

    @property
    def scores(self):
        return self.dense @ self.dense_weights

    @property
    def gradient(self):
        return (self.dense.T @ self.d_scores)[self.pairs]


@pytest.fixture(params=[(True, 3), (False, 3), (True, 22), (False, 1)], ids=str, scope="module")
def corpus(request):
    return Corpus(*request.param)


def test_scores_and_gradient_token_by_token(corpus):
    scores = np.zeros_like(corpus.d_scores)
    corpus.rows.add_scores(corpus.features, corpus.rows.slots(corpus.weights), scores)
    assert scores == pytest.approx(corpus.scores)
    assert corpus.rows.scatter(corpus.features, corpus.d_scores) == pytest.approx(corpus.gradient)


def by_kinds(corpus, threads):
    """Scores and gradient of the corpus in batches, as the training objective adds them up."""
    rows, fixed = corpus.rows, FixedTokens(corpus.compiled, corpus.rows)
    for batch in (corpus.docs[:3], corpus.docs[3:]):
        fixed.add(corpus.compiled.reader.read(batch))
    fixed.finish()
    some_occur_once = any((numbers < 0).any() for batch in fixed.blocks for numbers in batch.kinds)
    assert not fixed.windows or some_occur_once
    of_pass, parts = TokensPass(fixed, rows.slots(corpus.weights), threads=threads), parts_for(threads)
    scores, gradient, d_slots = np.zeros_like(corpus.d_scores), np.zeros(rows.n_weights), rows.zero_slots()
    begin = 0
    for number, batch in enumerate(fixed.blocks):
        tokens = slice(begin, begin + batch.starts[-1])
        begin = tokens.stop
        of_pass.add_scores(number, scores[tokens])
        for part in parts:
            of_pass.scatter(number, corpus.d_scores[tokens], d_slots, gradient, part=part)
            for table in range(of_pass.n_tables):
                of_pass.scatter_windows(table, number, corpus.d_scores[tokens], part=part)
    for part in parts:
        of_pass.finish(d_slots, part=part)
    return scores, gradient + rows.weights_of(d_slots)


def test_scores_and_gradient_by_kinds(corpus):
    scores, gradient = by_kinds(corpus, threads=1)
    assert scores == pytest.approx(corpus.scores)
    assert gradient == pytest.approx(corpus.gradient)


def test_threads_give_the_same_bits(corpus):
    for threads in (2, 3):
        for one, several in zip(by_kinds(corpus, threads=1), by_kinds(corpus, threads=threads)):
            assert (one == several).all()


@pytest.mark.parametrize("few", [0.0, 1.0], ids=["no windows shared", "all windows shared"])
def test_sharing_does_not_change_the_answer(corpus, few, monkeypatch):
    monkeypatch.setattr("spacy_crf.features.shared_windows._FEW", few)
    scores, gradient = by_kinds(corpus, threads=1)
    assert scores == pytest.approx(corpus.scores)
    assert gradient == pytest.approx(corpus.gradient)


def test_rows_of_a_table_that_no_cache_holds():
    """They are asked for ahead, the last ones of the table and of the tokens too."""
    rng, reach, starts = np.random.default_rng(3), 1, np.array([0, 4, 4, 5, 12])
    n_columns, width = 7, 3
    table = np.zeros((LARGE // (width * n_columns) + 1, width, n_columns))
    kinds = rng.integers(len(table) - 6, len(table), size=12 + 2 * reach * 4).astype(np.int32)
    kinds[rng.random(len(kinds)) < 0.2] = -1
    table[-6:] = rng.normal(size=(6, width, n_columns))
    d_scores = rng.normal(size=(12, n_columns))
    scores, expected = np.zeros((2, 12, n_columns))
    d_table, d_expected = np.zeros((2, *table.shape))
    for b, (begin, end) in enumerate(pairwise(starts)):
        for position in range(begin - reach, end + reach):
            kind = kinds[position + (2 * b + 1) * reach]
            for o, token in enumerate(range(position - 1, position + 2)):
                if kind >= 0 and begin <= token < end:
                    expected[token] += table[kind, o]
                    d_expected[kind, o] += d_scores[token]
    add_kind_rows(kinds, starts, reach, -1, table, scores)
    for part in parts_for(2):
        scatter_kind_rows(kinds, starts, reach, -1, d_scores, *part, d_table)
    np.testing.assert_allclose(scores, expected, rtol=1e-12)
    np.testing.assert_allclose(d_table, d_expected, rtol=1e-12)


@pytest.mark.parametrize("kept", [None, 1.0, 2.5], ids=["strings", "numbers 0 and 1", "other numbers"])
def test_items_side_by_side_are_the_same(corpus, kept):
    rng, rows = np.random.default_rng(1), corpus.rows
    starts = np.append(0, np.cumsum(rng.integers(2, 5, size=20)))
    numbers = rng.integers(len(rows.index), size=starts[-1]).astype(np.int32)
    values = None if kept is None else (kept * rng.integers(2, size=starts[-1])).astype(np.float32)
    items = TokenFeatures(numbers, values, starts)
    before = CorpusTokens(np.array([0, 20]), [], np.full((1, 20), 0, dtype=np.int32), items)
    after = items_side_by_side(before)
    assert (len(after.items.rows) == 0) == (kept != 2.5)
    slots = rows.slots(corpus.weights)
    scores = np.zeros((2, 20, rows.n_columns))
    for block, of_block in zip((before, after), scores):
        rows.add_references(rows.first_slots(block.rest), slots, of_block)
        rows.add_scores(block.items, slots, of_block)
    assert scores[1] == pytest.approx(scores[0])


def test_scores_of_lexemes(corpus):
    """What prediction sums per lexeme, and the rest per token, is the whole."""
    scores = np.zeros_like(corpus.d_scores)
    TableScorer(corpus.compiled, corpus.rows, corpus.weights, by_lexeme=True).add(corpus.columns, scores)
    assert scores == pytest.approx(corpus.scores, abs=1e-5)  # summed in float32


@pytest.mark.parametrize("columns, same", [([0, 1, 2], True), ([2, 0, 1], False)])
def test_slots_may_be_the_weights_themselves(columns, same):
    """Merged states are numbered anew, so that columns need not rise."""
    table = Table([0, 1], np.array([0, 3, 6]), np.array(2 * columns, dtype=np.int32), 3)
    weights = np.arange(6.0)
    slots = table.slots(weights)
    assert table.slots_are_weights is same and np.shares_memory(slots, weights) is same
    np.testing.assert_array_equal(slots.reshape(2, 3)[:, columns], weights.reshape(2, 3))
    np.testing.assert_array_equal(table.weights_of(slots), weights)


def test_saved_rows_are_the_same(corpus):
    again = Table.from_dict(corpus.rows.to_dict())
    assert again.pair_starts.tolist() == corpus.rows.pair_starts.tolist()
    assert again.pair_columns.tolist() == corpus.rows.pair_columns.tolist()
    assert again.index.names() == corpus.rows.index.names()


def test_many_columns_are_saved_too():
    """Pairs of 300 tags: neither the columns nor the widths fit into two bytes."""
    n_columns = 300 * 300
    names = FeatureNames(["bias"], np.zeros(1, np.int32), np.array([0, 1]), np.zeros(1, np.int32), ["1"])
    index = FeatureIndex(np.array([5], dtype=np.uint64), names)
    rows = Table(index, np.array([0, n_columns]), np.arange(n_columns, dtype=np.int32), n_columns)
    assert Table.from_dict(rows.to_dict()).pair_columns.tolist() == list(range(n_columns))


def test_no_tokens_no_features():
    rows = Table.empty(4)
    none = TokenFeatures(np.zeros(0, np.int32), None, np.zeros(1, np.int64))
    scores = np.zeros((0, 4))
    rows.add_scores(none, rows.slots(np.zeros(0)), scores)
    assert rows.scatter(none, scores).shape == (0,)
