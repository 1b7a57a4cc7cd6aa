"""Beam search: against a plain one, against the exact search, and in components."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.tokens import Doc

from spacy_crf import arrays
from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.inference.pruned_lattice import key_of
from spacy_crf.inference.semi_markov import SemiMarkov
from spacy_crf.types import GOES_ON, ChainScores
from spacy_crf_lab.beam import Beam, within
from tests.cli.test_rules import run
from tests.structures import STRUCTURES, Enumerated, problems, random_graph, random_problem
from tests.util import draws, entities, ner_examples, plain, tag_examples

ROWS = {name: STRUCTURES[name] for name in ("chain", "scheme", "segments", "segments of one token")}
LATTICES = {name: STRUCTURES[name] for name in ("order 2", "order 3")}
each = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
with_lattices = pytest.mark.parametrize("row", (ROWS | LATTICES).values(), ids=ROWS | LATTICES)
quickly = draws(25)
BEAMS = [Beam(1), Beam(2), Beam(3, 1.0), Beam(100, 0.5)]


def _margin(beam):
    return np.inf if beam.margin is None else beam.margin


def plain_beam(log_potentials, begin, end, beam):
    """RETURNS (List[Dict[int, float]], float): The prefixes that are kept at each token by their states, and the best score."""
    kept = []
    for t in range(begin, end):
        found = {}
        for j, k in itertools.product(
            range(log_potentials.opening.shape[1]), range(min(len(log_potentials.lengths), t - begin + 1))
        ):
            b = t - k
            matrix = log_potentials.transitions[b if len(log_potentials.transitions) > 1 else 0]
            steps = (
                [score + matrix[i, j] for i, score in kept[b - begin - 1].items()]
                if b > begin
                else [log_potentials.first[j]]
            )
            span = log_potentials.span_of[b, k]
            score = max(steps, default=-np.inf) + log_potentials.opening[b, j] + log_potentials.lengths[k, j]
            score += (log_potentials.spans[span, j] if span >= 0 else 0.0) + log_potentials.closing[t, j]
            if log_potentials.reach[t, j] <= b and score > found.get(j, -np.inf):
                found[j] = score
        if t < end - 1:
            following = log_potentials.transitions[t + 1 if len(log_potentials.transitions) > 1 else 0]
            ranks = {j: score + following[j].max() for j, score in found.items()}
            least = max(ranks.values(), default=0.0) - _margin(beam)
            best_first = sorted((j for j in found if ranks[j] > -np.inf), key=lambda j: (-ranks[j], j))
            found = {j: found[j] for j in best_first[: beam.width] if ranks[j] >= least}
        kept.append(found)
    return kept, max(
        (score + log_potentials.last[j] for j, score in kept[-1].items()), default=-np.inf
    ) if kept else 0.0


@with_lattices
@quickly
@given(data=st.data())
def test_a_beam_of_all_states_is_exact(row, data):
    """Same bits, whichever of the two searches it is."""
    structure, scores, clamp = data.draw(problems(row))
    exact = structure.viterbi(scores, clamp=clamp)
    size = np.shape(scores[0])[1]
    limited = within(structure, Beam(size**scores.orders.order if row in LATTICES.values() else size))
    for path in (limited.viterbi(scores, clamp=clamp), *_searched(limited, scores, clamp)):
        np.testing.assert_array_equal(path.states, exact.states)
        np.testing.assert_array_equal(path.scores, exact.scores)
    pairs = zip(limited.n_best(scores, 3, clamp=clamp), structure.n_best(scores, 3, clamp=clamp))
    assert all([(s, p.tolist()) for s, p in ours] == [(s, p.tolist()) for s, p in theirs] for ours, theirs in pairs)


def _searched(structure, scores, clamp):
    """The paths of both kernels: that of any pieces, and that of tokens."""
    work = structure.prepare(scores, clamp)
    return structure.beam.path(work), structure.beam.search(work)[1]


@each
@pytest.mark.parametrize("beam", BEAMS)
@quickly
@given(data=st.data())
def test_beams_match_a_plain_one(row, beam, data):
    structure, scores, clamp = data.draw(problems(row, kinds=["moderate", "ties", "forbidden"]))
    limited = within(structure, beam)
    work = limited.prepare(scores, clamp)
    left, path = limited.beam.search(work)
    for b, (begin, end) in enumerate(itertools.pairwise(scores.starts.tolist())):
        kept, best = plain_beam(work.log_potentials, begin, end, beam)
        assert path.scores[b] == pytest.approx(best, abs=1e-9)
        for t in range(begin, end if best > -np.inf else begin):
            assert set(np.flatnonzero(left[t] > -np.inf).tolist()) == set(kept[t - begin])
    for quick, general in zip(_searched(limited, scores, clamp), [path, path]):
        np.testing.assert_array_equal(quick.states, general.states)
        np.testing.assert_array_equal(quick.scores, general.scores)
    found = structure.path_score(scores, path.states)
    np.testing.assert_allclose(found, path.scores, atol=1e-9)


@each
@quickly
@given(data=st.data())
def test_labellings_come_from_within_the_beam_or_are_the_best_of_all(row, data):
    """Where nothing that is kept can go on, the search for the best of all takes over."""
    structure, scores, clamp = problem = data.draw(problems(row))
    beam = data.draw(st.sampled_from(BEAMS))
    limited, known = within(structure, beam), Enumerated(row, problem)
    path, n_best = limited.viterbi(scores, clamp=clamp), limited.n_best(scores, 4, clamp=clamp)
    [_, alone], [left, _] = _searched(limited, scores, clamp), limited.beam.search(limited.prepare(scores, clamp))
    exact = structure.viterbi(scores, clamp=clamp)
    for b, (begin, end) in enumerate(known.ends):
        ways = known.ways[b]
        if alone.scores[b] > -np.inf:
            ways = [way for way in ways if _ends_are_kept(way.states, left[begin:end])]
        else:
            np.testing.assert_array_equal(path.states[begin:end], exact.states[begin:end])
        assert (path.scores[b] > -np.inf) == bool(known.ways[b])
        np.testing.assert_allclose([s for s, _ in n_best[b]], [way.score for way in ways[:4]], rtol=1e-12, atol=1e-9)
        if n_best[b]:
            np.testing.assert_array_equal(n_best[b][0][1], path.states[begin:end])


def _ends_are_kept(states, left):
    behind = [*states[1:], 0]
    piece, kept = None, True
    for t, (state, after) in enumerate(zip(states, behind)):
        piece = piece if state == GOES_ON else state
        if after != GOES_ON:
            kept = kept and left[t, piece] > -np.inf
    return kept


@pytest.mark.parametrize("per_position", [False, True])
@pytest.mark.parametrize("row", LATTICES.values(), ids=LATTICES)
def test_beams_in_lattices_match_a_plain_one(row, per_position):
    """Without any limit to the lattice, whose nodes are the last tags then."""
    lengths = np.random.default_rng(0).integers(0, 7, size=100).tolist()
    structure, scores, _ = random_problem(row, lengths, 3, seed=5, forbidden=0.3, per_position=per_position)
    for beam in BEAMS:
        limited = within(structure, beam)
        work = limited.prepare(scores)
        node_starts, (kept, path) = work.lattice.level.starts, limited.beam.search(work)
        for b, (begin, end) in enumerate(itertools.pairwise(scores.starts.tolist())):
            counts, best = plain_lattice_beam(scores, begin, end, beam)
            assert path.scores[b] == pytest.approx(best, abs=1e-9)
            if best > -np.inf:
                nodes = itertools.pairwise(node_starts[begin : end + 1].tolist())
                assert [kept[v:w].sum() for v, w in nodes][:-1] == counts[:-1]
        possible = np.repeat(path.scores > -np.inf, lengths)
        assert (path.states[~possible] == -1).all()
        found = structure.path_score(scores, path.states)
        np.testing.assert_allclose(found, path.scores, atol=1e-9)
        answered = limited.viterbi(scores).scores
        np.testing.assert_allclose(answered, np.where(found > -np.inf, found, structure.viterbi(scores).scores))
        first = [ways[0][0] if ways else -np.inf for ways in limited.n_best(scores, 2)]
        np.testing.assert_allclose(first, answered, atol=1e-9)


def plain_lattice_beam(scores, begin, end, beam):
    """RETURNS (List[int], float): How many prefixes are kept at each token, and the best score."""
    orders, counts = scores.orders, []
    grams = dict(zip(orders.keys.tolist(), scores.grams.tolist()))
    kept = {(orders.size,): 0.0}  # by the last tags, and what is in front
    for t in range(begin, end):
        found = {}
        for (tags, score), j in itertools.product(kept.items(), range(orders.size)):
            longer = (*tags, j)
            if t == begin:
                step = scores.first[j]
            else:
                step = _transitions(scores, t)[tags[-1], j]
            for m in range(2, min(orders.order, t - begin + 1) + 1):
                step += grams.get(key_of(longer[-m - 1 :], orders.size), 0.0)
            total, node = score + step + scores.emissions[t, j], longer[-orders.order :]
            if total > found.get(node, -np.inf):
                found[node] = total
        if t < end - 1:
            ranks = {node: score + _transitions(scores, t + 1)[node[-1]].max() for node, score in found.items()}
            least = max(ranks.values(), default=0.0) - _margin(beam)
            best_first = sorted((node for node in found if ranks[node] > -np.inf), key=lambda node: -ranks[node])
            found = {node: found[node] for node in best_first[: beam.width] if ranks[node] >= least}
        kept = found
        counts.append(len(kept))
    if begin == end:
        return counts, 0.0
    return counts, max((score + scores.last[node[-1]] for node, score in kept.items()), default=-np.inf)


def _transitions(scores, t):
    return scores.transitions if scores.transitions.ndim == 2 else scores.transitions[t]


@with_lattices
def test_what_is_proven_is_never_wrong(row):
    """Of 10,000 random chains in all, by any labelling of which none is better, and none is missed."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 12, size=1700).tolist()
    structure, scores, _ = random_problem(row, lengths, 3, seed=1, forbidden=0.1)
    if row is ROWS["chain"]:
        scores = scores._replace(**{name: np.round(array) for name, array in arrays.named(scores).items()})  # ties
    best = np.array([paths[0][0] for paths in structure.n_best(scores, 1)])
    for beam in BEAMS:
        limited = within(structure, beam)
        path = limited.viterbi(scores)
        proven = path.scores >= structure.viterbi(scores).scores
        np.testing.assert_allclose(path.scores[proven], best[proven], atol=1e-9)
        assert (path.scores[~proven] < best[~proven]).all() and proven.any()
        np.testing.assert_allclose(structure.path_score(scores, path.states), path.scores, atol=1e-9)


def test_paths_depend_on_no_chunk():
    _, scores, _ = random_problem(ROWS["scheme"], [5] * 4000, 3, seed=2)
    alone = within(LinearChain(), Beam(3))
    threads = within(LinearChain(threads=2), Beam(3))
    np.testing.assert_array_equal(alone.viterbi(scores).states, threads.viterbi(scores).states)


def test_transitions_of_single_positions_are_the_same():
    _, scores, _ = random_problem(ROWS["scheme"], [9] * 50, 4, seed=3)
    every = np.array(np.broadcast_to(scores.transitions, (len(scores.emissions), *scores.transitions.shape)))
    for beam in BEAMS:
        shared, single = (within(LinearChain(), beam).viterbi(s) for s in (scores, scores._replace(transitions=every)))
        np.testing.assert_array_equal(shared.states, single.states)
        np.testing.assert_array_equal(shared.scores, single.scores)


@pytest.mark.parametrize("structure", [LinearChain(), SemiMarkov()])
def test_empty_and_very_long_sequences(structure):
    row = ROWS["chain" if isinstance(structure, LinearChain) else "segments of one token"]
    limited = within(structure, Beam(2))
    _, none, _ = random_problem(row, [], 3)
    assert len(limited.viterbi(none).states) == 0
    _, empty, _ = random_problem(row, [0, 0], 3)
    assert limited.viterbi(empty).scores.tolist() == [0.0, 0.0]
    _, long, _ = random_problem(row, [100_000], 3, seed=4)
    found = limited.viterbi(long)
    assert found.scores[0] == pytest.approx(structure.path_score(long, found.states)[0])
    assert found.scores[0] <= structure.viterbi(long).scores[0]


def test_structures_without_a_beam_refuse_one():
    graph = random_graph(2, np.random.default_rng(0), copies=2, several=False)
    with pytest.raises(ValueError, match=r"CRF340: .* LinearChain"):
        Beam(4).searched(SimpleNamespace(structure=LinearChain().over(graph)))


def test_a_margin_keeps_equals():
    scores = ChainScores(np.zeros((3, 4)), np.zeros((4, 4)), np.zeros(4), np.zeros(4), np.array([0, 3]))
    beam, work = Beam(4, 0.0), LinearChain().prepare(scores)
    assert beam.path(work).states.tolist() == [0, 0, 0]
    assert (beam.search(work)[0] > -np.inf).all()


# ------------------------------------------------------------------------------------------------------------ components

FACTORIES = ["crf_ner", "crf_tagger", "semicrf_ner"]
of_each_factory = pytest.mark.parametrize("factory", FACTORIES)
RULE = {"rule": "at_most", "label": "PER", "n": 1, "per": "doc"}


def block(**settings):
    return {"@misc": "spacy_crf_lab.beam.v1", **settings}


def _trained(factory, **config):
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe(factory, name="it", config=config)
    examples = (tag_examples if factory == "crf_tagger" else ner_examples)(nlp)
    optimizer = nlp.initialize(lambda: examples)
    for _ in range(5):
        nlp.update(examples, sgd=optimizer)
    return nlp, pipe, examples


def _said(docs):
    return [(entities(doc), [token.tag_ for token in doc]) for doc in docs]


@of_each_factory
def test_a_component_finds_within_its_beam_what_it_finds_without(factory, tmp_path):
    nlp, pipe, examples = _trained(factory)
    texts = [plain(example.reference) for example in examples]
    expected = _said(nlp.pipe(doc.copy() for doc in texts))
    assert all(pipe.proven(doc) for doc in texts)
    nlp.to_disk(tmp_path)
    for beam in ({"width": 100}, {"width": 4, "margin": None}, {"width": 2, "margin": 50.0}):
        searching = spacy.load(tmp_path, config={"components": {"it": {"decoder": block(**beam)}}})
        docs = [doc.copy() for doc in texts]
        assert _said(searching.pipe(docs)) == expected or beam["width"] == 2
        proven = [searching.get_pipe("it").proven(doc) for doc in texts]
        assert all(proven) if beam["width"] == 100 else True
        for doc, ours, is_proven in zip(docs, expected, proven):
            assert not is_proven or _said([doc]) == [ours]
        best = [searching.get_pipe("it").n_best(doc, 2)[0] for doc in texts]
        assert all(0.0 < probability <= 1.0 for probability, _ in best)
        assert len(searching(Doc(searching.vocab))) == 0


@of_each_factory
def test_changed_settings_act_at_once(factory):
    """As if the component had been made with them, with a rule as without."""
    rules = {"constraints": {"@misc": "spacy_crf.constraints.v1", "rules": [RULE]}} if factory != "crf_tagger" else {}
    nlp, pipe, examples = _trained(factory, **rules)
    for decoder in (Beam(1, 0.5), Beam(100), None):
        pipe.decoder = decoder
        given = None if decoder is None else block(width=decoder.width, margin=decoder.margin)
        made, other, _ = _trained(factory, **rules, decoder=given)
        for doc in (plain(example.reference) for example in examples):
            assert _said([nlp(doc.copy())]) == _said([made(doc.copy())])
            assert pipe.proven(doc) == other.proven(doc) and pipe.decoding.decoder == other.decoding.decoder
            assert [p for p, _ in pipe.n_best(doc, 3)] == [p for p, _ in other.n_best(doc, 3)]


@of_each_factory
def test_impossible_settings_are_told(factory):
    widths, margins = (0, -1, 2.5, "x", True, None, np.nan), (-0.5, np.nan, np.inf, "x", True)
    for name, value in [*(("width", n) for n in widths), *(("margin", m) for m in margins)]:
        with pytest.raises(ValueError, match=rf"CRF020: .* {name} = |decoder -> {name}\s|E961"):
            spacy.blank("en").add_pipe(factory, config={"decoder": block(**{name: value})})
    with pytest.raises(ValueError, match=r"CRF020: .* decoder = "):
        spacy.blank("en").add_pipe(factory, config={"decoder": "beam"})


@pytest.mark.parametrize("factory", ["crf_ner", "crf_tagger"])
def test_chains_of_higher_order_are_searched_too(factory, tmp_path):
    """Rules hold, and what is proven is what is found without a beam."""
    emissions = {
        "@architectures": "spacy_crf.SparseEmissions.v1",
        "features": {"@misc": "spacy_crf.tagger_features.v1"},
    }
    model = {"@architectures": "spacy_crf.HigherOrder.v1", "order": 2, "keep": 3.0, "emissions": emissions}
    rule = {**RULE, "label": "PER" if factory == "crf_ner" else "NN"}
    rules = {"constraints": {"@misc": "spacy_crf.constraints.v1", "rules": [rule]}}
    nlp, pipe, examples = _trained(factory, model=model, confidence=True, **rules)
    texts = [plain(example.reference) for example in examples]
    expected = _said(nlp.pipe(doc.copy() for doc in texts))
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path, config={"components": {"it": {"decoder": block(width=1000)}}})
    assert _said(loaded.pipe(doc.copy() for doc in texts)) == expected
    for width in (1, 2, 3):
        pipe.decoder = Beam(width)
        for doc, said in zip(texts, expected):
            assert not pipe.proven(doc) or _said([nlp(doc.copy())]) == [said]
            assert all(sum(span.label_ == rule["label"] for span in spans) <= 1 for _, spans in pipe.n_best(doc, 2))


@pytest.mark.parametrize("factory", ["crf_ner", "semicrf_ner"])
def test_rules_hold_under_a_beam(factory, tmp_path):
    rules = {"constraints": {"@misc": "spacy_crf.constraints.v1", "rules": [RULE]}}
    nlp, pipe, examples = _trained(factory, decoder=block(width=2), confidence=True, **rules)
    exact, other, _ = _trained(factory, confidence=True, **rules)
    texts = [plain(example.reference) for example in examples]
    found = list(nlp.pipe(doc.copy() for doc in texts))
    for doc, expected in zip(found, exact.pipe(doc.copy() for doc in texts)):
        assert sum(ent.label_ == "PER" for ent in doc.ents) <= 1
        if pipe.proven(plain(doc)):
            assert entities(doc) == entities(expected)
        assert all(0.0 < ent._.crf_prob <= 1.0 for ent in doc.ents)
    assert other.proven(texts[0])
    nlp.to_disk(tmp_path)
    assert "Beam(width=2, margin=None)" in run("inspect", tmp_path).output


def test_scores_say_how_much_is_proven():
    nlp, _, examples = _trained("crf_ner", decoder=block(width=100))
    assert nlp.evaluate(examples)["ents_proven"] == 1.0
    assert "ents_proven" not in _trained("crf_ner")[0].evaluate(examples)
