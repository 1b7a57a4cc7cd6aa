"""Best labellings by dual decomposition, against enumeration, linear programming and toulbar2."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy.optimize import linprog

from spacy_crf_lab.ties import prices
from spacy_crf_lab.ties.dual_decomposition import DualDecomposition
from spacy_crf_lab.ties.junction_tree import JunctionTree
from spacy_crf_lab.ties.structure import TiedChains

from .graphs import EnumeratedGraph, random_graph
from .test_factor_graph import TIED_RULES, graph, make_doc, tied_tagger, trained
from .test_graphs import problems

METHODS = ["ad3", "subgradient"]
DUAL = {"@misc": "spacy_crf_lab.DualDecomposition.v1"}


def _strong(n, seed, **settings):
    """Random graphs whose ties are as strong as chains, and the score of their best labelling."""
    for scores, clamp in problems(n, seed=seed, **settings):
        scores = scores._replace(tables=3.0 * scores.tables)
        known = EnumeratedGraph(scores, clamp).ways
        yield scores, clamp, known[0][0] if known else -np.inf


def _frustrated(n, rng):
    """Tokens all of which repel each other, so that the dual stays above the best score."""
    pairs = [(u, v) for v in range(n) for u in range(v)]
    scores = random_graph([1] * n, 2, pairs, rng, labels=2, features=2)
    scores.ties.symmetric[:] = False
    return scores._replace(tables=np.stack([-2.0 * np.eye(2)] * 2), label_of=np.arange(2))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(1))
def test_what_is_proved_is_best(method, seed):
    certified, asked = 0, 0
    for scores, clamp, best in _strong(250, (40, seed, METHODS.index(method))):
        inference = DualDecomposition(method=method)
        structure = TiedChains(inference)
        path = structure.viterbi(scores, clamp=clamp)
        assert structure.path_score(scores, path.states).sum() == pytest.approx(path.scores.sum(), abs=1e-9)
        assert path.scores.sum() <= best + 1e-6
        work = structure.prepare(scores, clamp)
        if work.tied is None:
            continue
        of_free = structure.chain.viterbi(work.free).scores.sum()
        assert inference.decompose(work.tied).bounds.sum() + of_free >= best - 1e-6
        asked += 1
        if not inference.n_unconverged:
            certified += 1
            assert path.scores.sum() == pytest.approx(best, abs=1e-6)
    assert 0.9 < certified / asked < 1.0


@pytest.mark.parametrize("method", METHODS)
def test_branching_proves_all(method):
    for scores, clamp, best in _strong(120, 41):
        inference = DualDecomposition(method=method, iterations=5, exact=True)
        assert TiedChains(inference).viterbi(scores, clamp=clamp).scores.sum() == pytest.approx(best, abs=1e-6)
        assert inference.n_unconverged == 0
    rng = np.random.default_rng(0)
    for _ in range(3):
        scores = _frustrated(7, rng)
        path = TiedChains(DualDecomposition(method=method, iterations=5, exact=True)).viterbi(scores)
        assert path.scores.sum() == pytest.approx(EnumeratedGraph(scores).ways[0][0])


def test_sweeps_are_enough_without_cycles():
    for scores, clamp, best in _strong(60, 42, tree=True):
        inference = DualDecomposition(iterations=8)
        assert TiedChains(inference).viterbi(scores, clamp=clamp).scores.sum() == pytest.approx(best, abs=1e-6)
        assert inference.n_unconverged == 0


def _relaxed(scores):
    """The maximum of the linear program over pairs of neighbours and of tied tokens, of sequences of one token."""
    own, tables = scores.emissions + scores.first + scores.last, scores.ties.sums(scores.tables)
    n, size = own.shape
    costs, rows, right = [own.ravel()], [], []
    width = n * size + len(scores.ties.source) * size**2
    for t in range(n):
        rows.append(np.zeros(width))
        rows[-1][t * size : (t + 1) * size] = 1.0
        right.append(1.0)
    for e, (u, v, kind) in enumerate(zip(*scores.ties[:3])):
        costs.append(tables[kind].ravel())
        pairs = n * size + e * size**2 + np.arange(size**2).reshape(size, size)
        for token, places in ((u, pairs), (v, pairs.T)):
            for k in range(size):
                rows.append(np.zeros(width))
                rows[-1][places[k]] = 1.0
                rows[-1][token * size + k] = -1.0
                right.append(0.0)
    return -linprog(-np.concatenate(costs), A_eq=np.stack(rows), b_eq=right).fun


@pytest.mark.parametrize("method, apart", [("ad3", 1e-3), ("subgradient", 0.1)])
def test_the_dual_falls_to_the_linear_program(method, apart):
    rng = np.random.default_rng(3)
    for _ in range(4):
        scores = _frustrated(5, rng)
        found = DualDecomposition(method=method, iterations=300).decompose(
            TiedChains(JunctionTree()).prepare(scores).tied
        )
        assert -1e-6 <= found.bounds.sum() - _relaxed(scores) <= apart


def test_toulbar2_agrees():
    toulbar2 = pytest.importorskip("pytoulbar2", reason="pytoulbar2 is not installed")
    rng, size, n = np.random.default_rng(4), 4, 24
    for number in range(4):
        pairs = [tuple(rng.choice(n, 2, replace=False).tolist()) for _ in range(30)]
        scores = random_graph([6] * 4, size, pairs, rng, labels=size, spread=1.0 + number)
        problem = TiedChains(JunctionTree()).prepare(scores).tied
        network = toulbar2.CFN(resolution=6)
        for t in range(n):
            network.AddVariable(f"t{t}", range(size))
            network.AddFunction([f"t{t}"], (-problem.own[t]).tolist())
            if t % 6:
                network.AddFunction([f"t{t - 1}", f"t{t}"], (-scores.transitions).ravel().tolist())
        for u, v, kind in zip(problem.source, problem.target, problem.kind):
            table = problem.tables[kind][np.ix_(problem.label_of, problem.label_of)]
            network.AddFunction([f"t{u}", f"t{v}"], (-table).ravel().tolist())
        known = -network.Solve()[1]
        found = TiedChains(DualDecomposition(exact=True)).viterbi(scores).scores.sum()
        assert found == pytest.approx(known, abs=1e-3)


def test_sparse_steps_say_the_same(monkeypatch):
    for scores, clamp, _ in _strong(20, 43):
        found = []
        for dense in (10**6, 0):
            monkeypatch.setattr(prices, "_DENSE", dense)
            found.append(TiedChains(DualDecomposition()).viterbi(scores, clamp=clamp).states)
        np.testing.assert_array_equal(*found)


def test_large_scores():
    for scores, clamp, _ in _strong(20, 44):
        large = scores._replace(
            **{name: 1e4 * getattr(scores, name) for name in ("emissions", "transitions", "first", "last", "tables")}
        )
        known = EnumeratedGraph(large, clamp).ways
        path = TiedChains(DualDecomposition(exact=True)).viterbi(large, clamp=clamp)
        assert path.scores.sum() == pytest.approx(known[0][0] if known else -np.inf, rel=1e-8)
        assert (path.states == -1).any() == (not known)


def test_a_batch_and_threads_say_the_same():
    rng = np.random.default_rng(5)
    pairs = [(0, 2), (1, 4), (0, 4), (6, 8), (9, 7), (5, 8)]
    both = random_graph([3, 2, 3, 2], 3, pairs, rng, spread=3.0)
    inference = DualDecomposition()
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: TiedChains(inference).viterbi(both).states, range(4)))
    for part, tokens in TiedChains(inference).prepare(both).tied.parts():
        [alone] = DualDecomposition().best(part)
        for states in found:
            np.testing.assert_array_equal(states[tokens], alone)


def test_what_is_not_proved_is_told_of_once_with_its_gap(caplog):
    scores = _frustrated(7, np.random.default_rng(0))
    inference = DualDecomposition(iterations=3)
    path = TiedChains(inference).viterbi(scores)
    assert (inference.n_asked, inference.n_unconverged) == (1, 1)
    least = EnumeratedGraph(scores).ways[0][0] - path.scores.sum()
    assert inference.gap > max(least, 1e-3) - 1e-9
    limited = DualDecomposition(iterations=3, exact=True, time_limit=1e-9)
    TiedChains(limited).viterbi(scores)
    assert limited.n_unconverged == 1 and limited.gap <= inference.gap
    pipe, doc = tied_tagger(inference={**DUAL, "iterations": 1})
    for _ in range(2):
        pipe(doc.copy())
    assert pipe.decoding.inference.n_unconverged == 2
    assert caplog.text.count("CRFW041") == 1 and f"within {pipe.decoding.inference.gap:.3g} of" in caplog.text


@pytest.mark.parametrize("name", TIED_RULES)
def test_rules_and_ties_together(name, caplog):
    """The joined document is one chain over the states of the rules, with its ties outside it."""
    rules, cost = TIED_RULES[name]
    pipe, doc = tied_tagger()
    known = {
        tuple(span.label_ for span in spans): p * np.exp(-cost([span.label_ for span in spans]))
        for p, spans in pipe.n_best(doc, 3**5)
    }
    for settings in ({"exact": True}, {}, {"iterations": 2, "method": "subgradient"}):
        pipe, doc = tied_tagger(rules, {**DUAL, **settings})
        found = known[tuple(token.tag_ for token in pipe(doc.copy()))]
        assert found > 0.0  # no rule is broken
        if not pipe.decoding.inference.n_unconverged:
            assert found == pytest.approx(max(known.values()))
    assert "CRFW607" not in caplog.text


def test_rules_that_no_automaton_holds_are_told_of(caplog):
    """The warning asked for the tables of a junction tree: AttributeError."""
    pipe, doc = tied_tagger([{"rule": "same_text_same_label"}], DUAL)
    tables = pipe.model.get_param("tables")
    tables[:] = -5.0 * np.eye(tables.shape[-1])  # equal words repel each other
    found = [token.tag_ for token in pipe(doc)]
    assert found[0] == found[2] == found[4]
    assert caplog.text.count("CRFW607") == 1 and "spacy_crf_lab.DualDecomposition.v1 can't keep" in caplog.text


def test_documents_larger_than_junction_trees():
    """Ties beside a rule about the whole document, of names in 20 sentences that ties connect."""
    rules = {"@misc": "spacy_crf.constraints.v1", "rules": [{"rule": "exactly", "label": "PER", "n": 3}]}
    cliques = {"words": {"@misc": "spacy_crf_lab.RepeatedWords.v1"}}
    training = {"@misc": "spacy_crf_lab.BeliefPropagation.v1"}
    nlp = trained(graph(cliques, inference=DUAL, training_inference=training), steps=2, constraints=rules)
    sentences = ["Mr Lund spoke", "in Berg yesterday", "Lund and Berg again"] * 7
    [doc] = nlp.pipe([make_doc(nlp.vocab, sentences)])
    assert sum(ent.label_ == "PER" for ent in doc.ents) == 3
    assert nlp.get_pipe("crf_ner").decoding.inference.n_asked > 0


@pytest.mark.parametrize(
    "settings", [{"method": "newton"}, {"iterations": 0}, {"exact": 1}, {"time_limit": 0.0}, {"method": None}]
)
def test_settings_are_checked(settings):
    with pytest.raises(ValueError, match="CRF020"):
        DualDecomposition(**settings)
