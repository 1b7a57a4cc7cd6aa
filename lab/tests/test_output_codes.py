"""Output codes: against enumeration in plain Python, finite differences, and chains of tags."""

import itertools
import math

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, Span

from spacy_crf.losses.clamped import LogLikelihood
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf_lab.code_matrix import Code, Coder, distances, wrong_tags
from spacy_crf_lab.output_codes import BitChains, BitScores
from tests import reference
from tests.util import check_leave_out, plain, tag_examples

from .test_baselines import EMISSIONS, trained
from .util import registered

LENGTHS = [3, 0, 1, 4]
STARTS = np.array([0, 3, 3, 4, 8])
CODES = np.array([[0, 0, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]], dtype=np.uint8)


def bit_scores(cascade=False, spread=1.5, seed=0):
    rng = np.random.default_rng(seed)
    n_bits = CODES.shape[1]
    shapes = {"transitions": (n_bits, 2, 2), "first": (n_bits, 2), "last": (n_bits, 2)}
    found = {name: rng.normal(scale=spread, size=shape) for name, shape in shapes.items()}
    below = np.tri(n_bits, k=-1) * rng.normal(size=(2, n_bits, n_bits)) if cascade else np.zeros((0, 0, 0))
    units = rng.normal(scale=spread, size=(8, n_bits))
    return BitScores(units, **found, cascade=below, codes=CODES, starts=STARTS)


def annotation(kind):
    """Tags of tokens that are all known, partly known, or impossible in the first sequence."""
    clamp = np.eye(4, dtype=bool)[[0, 2, 1, 1, 3, 2, 2, 0]]
    if kind != "known":
        clamp[1], clamp[4, [0, 1]], clamp[5, [0, 3]] = True, True, True
    if kind == "impossible":
        clamp[2] = False
    return clamp


def agreed(clamp):
    """The bits in which allowed tags agree, None where they differ."""
    return [[(set(CODES[row, c].tolist()) if row.any() else {0, 1}) for c in range(3)] for row in clamp]


def score_of(scores, begin, end, c, bits, seen):
    """Score of the bits of one chain, which reads the signs of earlier ones."""
    total = 0.0
    for t, bit in zip(range(begin, end), bits):
        unit = scores.units[t, c]
        for n, e in itertools.product(range(len(scores.cascade)), range(c)):
            if begin <= (beside := t - 1 + 2 * n) < end:
                unit += scores.cascade[n, c, e] * seen[beside][e]
        total += unit * math.sqrt(0.5) * (1 if bit else -1)
        total += scores.transitions[c, bits[t - begin - 1], bit] if t > begin else scores.first[c, bit]
    return total + scores.last[c, bits[-1]] if bits else total


def losses_by_enumeration(scores, clamp):
    allowed, found = agreed(clamp), []
    seen = [[{(0,): -1, (1,): 1}.get(tuple(bits), 0) for bits in row] for row in allowed]
    for begin, end in itertools.pairwise(STARTS.tolist()):
        total = 0.0
        for c in range(3):
            every = [*itertools.product((0, 1), repeat=end - begin)]
            terms = {bits: score_of(scores, begin, end, c, bits, seen) for bits in every}
            fit = [bits for bits in every if all(bit in allowed[begin + n][c] for n, bit in enumerate(bits))]
            total += reference.log_sum([*terms.values()]) - reference.log_sum([terms[bits] for bits in fit])
        found.append(total if clamp[begin:end].any(axis=1).all() else 0.0)
    return np.array(found)


@pytest.mark.parametrize("kind", ["known", "partly", "impossible"])
@pytest.mark.parametrize("cascade", [False, True])
@pytest.mark.parametrize("spread", [1.5, 12.0, 400.0])
def test_loss_is_a_sum_over_chains(kind, cascade, spread):
    scores, clamp, weights = bit_scores(cascade, spread), annotation(kind), np.array([1.0, 2.0, 0.5, 3.0])
    loss = LogLikelihood()
    losses, derivative, impossible = loss(BitChains(), scores, clamp, weights=weights)
    expected = weights * losses_by_enumeration(scores, clamp)
    np.testing.assert_allclose(losses, expected, rtol=1e-10, atol=1e-10 * spread)
    assert impossible.tolist() == [kind == "impossible", False, False, False]
    if spread > 10.0:
        return
    for name in BitScores.AXES:
        for index in np.ndindex(getattr(scores, name).shape):
            if name == "cascade" and index[2] >= index[1]:
                continue
            ends = []
            for step in (1e-5, -1e-5):
                moved = getattr(scores, name).copy()
                moved[index] += step
                ends.append(loss(BitChains(), scores._replace(**{name: moved}), clamp, weights=weights)[0].sum())
            assert getattr(derivative, name)[index] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-6)


# --------------------------------------------------------------------------------------------------------------- codes

TAGS = {3: ["O", "B-A", "I-A"], 13: [f"T{n}" for n in range(13)], 60: [f"T{n}" for n in range(60)]}


@pytest.mark.parametrize("n_tags", [1, 2, *TAGS])
@pytest.mark.parametrize("kind", ["random", "one_vs_rest", "parts"])
def test_codes_tell_tags_apart(n_tags, kind):
    tags = TAGS.get(n_tags, [f"T{n}" for n in range(n_tags)])
    labels = [tag.split("-")[-1] for tag in tags]
    matrix, names = Coder(kind, 24, 0).code(tags, labels)
    assert len(names) == matrix.shape[1] == len(set(names)) and len(np.unique(matrix, axis=0)) == n_tags
    if n_tags > 1:  # neither equal nor complementary nor constant columns
        signs = matrix ^ matrix[0]
        assert signs.any(axis=0).all() and len(np.unique(signs, axis=1).T) == len(names)
    if kind == "random":
        assert len(names) == max(1, min(24, 2 ** (n_tags - 1) - 1))


def test_distances_are_as_promised():
    matrix = Coder("random", 24, 0).code(TAGS[60], TAGS[60]).matrix
    apart = [sum(a != b for a, b in zip(*rows)) for rows in itertools.combinations(matrix.tolist(), 2)]
    assert sorted(apart) == sorted(distances(matrix)[np.triu_indices(60, 1)].tolist())
    assert min(apart) >= 5
    chances = np.array([2 * math.sqrt(0.05 * 0.95)]) ** np.array(apart)
    assert wrong_tags(matrix) == pytest.approx(2 * chances.sum() / 60, rel=1e-5)


def test_bounded_codes_are_short():
    coder = Coder("bounded", 40, 0)
    bounded = coder.code(TAGS[60], TAGS[60]).matrix
    assert wrong_tags(bounded) <= 0.01 and 20 <= bounded.shape[1] < 30
    with pytest.raises(ValueError, match=r"CRF636.*up to 3 bits keeps 3 tags"):
        coder.code(TAGS[3], ["O", "A", "A"])


def test_parts_of_tags():
    tags, labels = ["O", "B-X|n=1", "I-X|n=1", "B-Y|n=1|m=2", "I-Y|n=1|m=2"], ["O", *["X|n=1"] * 2, *["Y|n=1|m=2"] * 2]
    matrix, names = Coder("parts", 1, 0).code(tags, labels)
    assert names == ["O", "B-", "X", "I-", "Y"]  # n=1 is the complement of O, and m=2 goes with Y
    assert matrix.tolist() == [[1, 0, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 1, 0, 0, 1], [0, 0, 0, 1, 1]]
    more = Coder("parts", 1, 0).code([*tags, "B-X|m=2"], [*labels, "X|m=2"], Code(matrix, names))
    assert more.names == [*names, "n=1", "m=2"] and (more.matrix[:5, :5] == matrix).all()
    with pytest.raises(ValueError, match=r"CRF636: OutputCodes: the tags a\|b and b\|a have the same"):
        Coder("parts", 1, 0).code(["a|b", "b|a", "c"], ["a|b", "b|a", "c"])


@pytest.mark.parametrize("kind", ["random", "one_vs_rest"])
@pytest.mark.parametrize("before", [1, 2, 3, 13])
def test_codes_go_on(kind, before):
    coder, tags = Coder(kind, 24, 0), [f"T{n}" for n in range(16)]
    known = coder.code(tags[:before], tags[:before])
    more = coder.code(tags, tags, known)
    rows, columns = known.matrix.shape
    assert len(np.unique(more.matrix, axis=0)) == 16 and more.matrix.shape == coder.code(tags, tags).matrix.shape
    assert before == 1 or (more.matrix[:rows, :columns] == known.matrix).all()


REFUSED = {
    "the tags a and c have the same 2 bits. Raise": [[0, 0], [1, 0], [0, 0], [0, 1]],
    "bits 0 and 1 of the tags are equal or complements": [[0, 1], [1, 0], [0, 1]][:2],
    "bit 1 is the same for all tags": [[0, 1, 0], [1, 1, 0], [0, 1, 1]],
    "one row of bits for each of 3 tags": [[0, 1], [1, 0]],
    "codes returns": [[0, 2], [1, 0], [1, 1]],
}


@pytest.mark.parametrize("said", REFUSED)
def test_bad_codes_are_refused(said):
    rows = REFUSED[said]
    tags = ["a", "b", "c", "d"][: 3 if "3 tags" in said else len(rows)]
    with pytest.raises(ValueError, match=f"CRF636.*{said}"):
        Coder(lambda tags: rows, 40, 0).code(tags, tags)


def test_too_few_bits():
    with pytest.raises(ValueError, match=r"CRF636.*Raise bits"):
        Coder("random", 3, 0).code(TAGS[13], TAGS[13])


# ---------------------------------------------------------------------------------------------------------- components


def tagger(texts, steps=0, l2=0.1, **settings):
    nlp = spacy.blank("en")
    model = {"@architectures": "spacy_crf_lab.OutputCodes.v1", "emissions": EMISSIONS, **settings}
    pipe = nlp.add_pipe("crf_tagger", config={"model": model})
    examples = tag_examples(nlp, texts)
    nlp.initialize(lambda: examples)
    if steps:
        nlp.update(examples, sgd=LBFGS(l2=l2, iterations_per_step=steps, tolerance=1e-10))
    return nlp, pipe, examples


@pytest.mark.parametrize("cascade", [False, True])
def test_product_is_the_product_of_all_chains(cascade):
    nlp, pipe, _ = tagger(["a/A b/B c/C d/D", "b/C a/D"], cascade=cascade)
    rng, model, doc = np.random.default_rng(0), pipe.model, Doc(nlp.vocab, words=["a", "c", "b"])
    for node in model.walk():
        for name in node.param_names:
            node.set_param(name, rng.normal(size=node.get_param(name).shape).astype(np.float32))
    node, units = model.attrs["node"], model.get_ref("emissions").predict([doc]).scores
    shared = node.potentials(model, {name: model.get_param(name) for name in node.traits.params})
    scores = BitScores(
        units, *(shared[name] for name in ("transitions", "first", "last")), np.zeros((0, 0, 0)), *2 * [None]
    )
    if cascade:
        scores = scores._replace(cascade=shared["cascade"] * np.tri(units.shape[1], k=-1))
    seen = [[] for _ in doc]
    for c in range(units.shape[1]):
        for of_token, one in zip(seen, ones_of(scores, 3, c, seen)):
            of_token.append(2 * one - 1)
    if cascade:
        model.set_param("cascade", scores.cascade.astype(np.float32))
    found, codes = model.predict([doc]), model.attrs["matrix"]
    for path in itertools.product(range(4), repeat=3):
        rows = codes[list(path)].T.tolist()
        expected = sum(score_of(scores, 0, 3, c, bits, seen) for c, bits in enumerate(rows))
        assert reference.path_score(found, 0, 3, path) == pytest.approx(expected, abs=1e-4)


def ones_of(scores, length, c, seen=()):
    """Probability at each token of a sequence that a bit is 1."""
    terms = {bits: score_of(scores, 0, length, c, bits, seen) for bits in itertools.product((0, 1), repeat=length)}
    log_z = reference.log_sum([*terms.values()])
    return sum(np.array(bits) * math.exp(score - log_z) for bits, score in terms.items())


def test_nearest_rows():
    texts = ["a/A b/B c/C d/D", "b/C a/D", "d/A a/A"]
    nlp, pipe, _ = tagger(texts, steps=3)
    node, doc, codes = pipe.model.attrs["node"], Doc(nlp.vocab, words=["a", "c", "d"]), pipe.model.attrs["matrix"]
    units = pipe.model.get_ref("emissions").predict([doc]).scores
    shared = [pipe.model.get_param(name).astype(float) for name in node.traits.params]
    scores = BitScores(units, *shared, np.zeros((0, 0, 0)), *2 * [None])
    ones, best = np.zeros(units.shape), np.zeros(units.shape)
    for c in range(units.shape[1]):
        ones[:, c], every = ones_of(scores, 3, c), itertools.product((0, 1), repeat=3)
        best[:, c] = max((score_of(scores, 0, 3, c, bits, ()), bits) for bits in every)[1]
    for decode, bits in (("marginals", ones), ("hamming", best)):
        node.decode, node._latest = decode, None
        found = pipe.model.predict([doc])
        np.testing.assert_allclose(found.emissions, -np.abs(bits[:, np.newaxis] - codes).sum(axis=2), atol=1e-6)
        assert not found.transitions.any() and not found.first.any() and not found.last.any()


def test_one_bit_is_a_chain_of_two_tags():
    texts = ["the/A dog/B runs/A", "dog/A the/B the/B", "runs/B dog/B a/A"]
    nlp, pipe, examples = tagger(texts, steps=200, l2=0.3)
    assert pipe.model.attrs["matrix"].shape == (2, 1)
    other = spacy.blank("en", vocab=nlp.vocab)
    emissions = {**EMISSIONS, "possible_states": True}
    model = {"@architectures": "spacy_crf.LinearChain.v1", "emissions": emissions, "possible_transitions": True}
    chain = other.add_pipe("crf_tagger", config={"model": model})
    other.initialize(lambda: examples)
    loss = other.update(examples, sgd=LBFGS(l2=0.3, iterations_per_step=200, tolerance=1e-10))["crf_tagger"]
    assert loss == pytest.approx(nlp.update(examples, sgd=LBFGS(l2=0.3))["crf_tagger"], rel=0.2)
    for text in texts:
        doc = Doc(nlp.vocab, words=[word.split("/")[0] for word in text.split()])
        np.testing.assert_allclose(pipe.marginals(doc)[0], chain.marginals(doc)[0], atol=1e-4)


@pytest.mark.parametrize(
    "settings", [{"codes": "parts"}, {"codes": "one_vs_rest"}, {"decode": "hamming"}, {"decode": "marginals"}]
)
def test_settings_learn_and_are_saved(settings):
    texts = ["the/DET|n=1 dog/NOUN|n=1 runs/VERB|n=1", "the/DET|n=2 dogs/NOUN|n=2 run/VERB|n=2"]
    nlp, pipe, examples = tagger(texts, steps=30, l2=0.01, **settings)
    assert nlp.evaluate(examples)["crf_tag_acc"] == 1.0
    loaded, _, _ = tagger(texts[:1], **settings)
    loaded.from_bytes(nlp.to_bytes())
    for example in examples:
        assert [t.tag_ for t in loaded(plain(example.reference))] == [t.tag_ for t in example.reference]
    rows = pipe.weights()
    assert any(row.tags[0].startswith("bit ") for row in rows) and pipe.dump()
    assert {row.tags[1:] for row in rows if row.feature == "transition"} <= {*itertools.product("01", repeat=2)}


@pytest.mark.parametrize("codes", ["random", "one_vs_rest", "parts"])
def test_codes_that_went_on_are_saved(codes):
    """Their number of bits may differ from that of a new code for the same labels."""
    nlp, pipe, _ = tagger(["the/x|n=1 dog/y|n=1"], codes=codes)
    pipe.add_label("z|n=2")
    for texts in (["a/x|n=1"], ["the/x|n=1 dog/y|n=1"], ["c/z c/v c/w c/u"]):
        loaded, other, _ = tagger(texts, codes=codes)
        loaded.from_bytes(nlp.to_bytes())
        np.testing.assert_array_equal(other.model.attrs["matrix"], pipe.model.attrs["matrix"])
        assert other.add_label("more") and len(other.model.attrs["matrix"]) == 4
        assert [token.tag_ for token in loaded("the dog")] == [token.tag_ for token in nlp("the dog")]


def test_new_labels_keep_the_bits():
    nlp, pipe, examples = tagger(["the/A dog/B runs/C"], steps=20)
    before, doc = pipe.model.attrs["matrix"], Doc(nlp.vocab, words=["the", "dog"])
    pipe.add_label("D")
    assert (pipe.model.attrs["matrix"][:3, : before.shape[1]] == before).all() and len(pipe.model.attrs["matrix"]) == 4
    nlp.update([*examples, *tag_examples(nlp, ["cats/D sleep/C"])], sgd=LBFGS(l2=0.01, iterations_per_step=30))
    assert [token.tag_ for token in nlp("cats sleep")] == ["D", "C"] and pipe.marginals(doc)[0].shape == (2, 4)
    for codes, said in (("bounded", "CRF637"), ("random", "")):
        tags = [f"{word}/{word.upper()}" for word in "abcdefghijkl"]
        _, pipe, _ = tagger([" ".join(tags)], codes=codes)
        if said:
            with pytest.raises(ValueError, match=said):
                pipe.add_label("NEW")
            assert len(pipe.labels) == 12
        else:
            assert pipe.add_label("NEW") and len(pipe.model.attrs["matrix"]) == 13


def test_what_bits_cannot_learn_is_refused():
    for loss in ("MaxMargin", "SoftmaxMargin"):
        nlp = spacy.blank("en")
        model = {"@architectures": "spacy_crf_lab.OutputCodes.v1", "emissions": EMISSIONS}
        with pytest.raises(ValueError, match=r"CRF347.*LogLikelihood"):
            nlp.add_pipe("crf_ner", config={"model": model, "loss": {"@losses": registered(loss)}})
    rules = {
        "@misc": "spacy_crf.constraints.v1",
        "rules": [{"rule": "length", "label": "PER", "max": 2}],
        "in_training": True,
    }
    with pytest.raises(ValueError, match="CRF638"):
        trained("codes", constraints=rules)
    for said, settings in {"codes": {"codes": "gray"}, "bits": {"bits": 0}, "decode": {"decode": "sum"}}.items():
        with pytest.raises(ValueError, match=f"CRF.*{said}"):
            tagger(["a/A"], **settings)
    pairs = {"@misc": "spacy_crf.features.v1", "templates": ["orth[0]"], "transitions": ["orth[0]"]}
    with pytest.raises(ValueError, match=r"CRF020.*single tags"):
        tagger(["a/A"], emissions={**EMISSIONS, "features": pairs})


# -------------------------------------------------------------------------------------------------------- explanations

RULES = {"@misc": "spacy_crf.constraints.v1", "rules": [{"rule": "at_most", "label": "PER", "n": 1, "weight": 0.5}]}


@pytest.mark.parametrize("constraints", [None, RULES])
@pytest.mark.parametrize("scheme", ["IO", "BIO", "BILUO"])
@pytest.mark.parametrize("name", ["codes", "codes in a cascade"])
def test_scores_split_up_into_bits(name, scheme, constraints):
    nlp = trained(name, steps=1, scheme=scheme, constraints=constraints)
    ner, doc = nlp.get_pipe("crf_ner"), nlp("Ann Lee met Bob in New York")
    span, bits = doc[5:7], {f"bit {n}" for n in ner.model.attrs["bit_names"]}
    ways = [{"span": span}, {"span": Span(doc, 5, 7, label="ORG"), "against": Span(doc, 5, 7, label="GPE")}, {}]
    for asked in ways:
        why = ner.explain(doc, kind="contrast", **asked)
        assert why.check == pytest.approx(0.0, abs=1e-9)
        of_features = [row for row in why.rows if row.template not in ("transitions", "first", "last", "at_most")]
        assert of_features and {row.tags[0] for row in of_features} <= bits
        assert np.allclose([abs(row.use) for row in of_features], math.sqrt(2.0))  # the bits that differ
        beside = {row.feature for row in why.rows if row.template == "cascade"}
        assert beside <= {f"{bit} {side}" for bit in bits for side in ("before", "behind")}
        assert bool(beside) == ("cascade" in name)
    log_odds = ner.explain(doc, Span(doc, 5, 7, label="GPE"), kind="log_odds")
    assert log_odds.check == pytest.approx(0.0, abs=2e-7 * abs(log_odds.target))
    if constraints is None:
        found = np.log(log_odds.totals["probability"]) - np.log(log_odds.totals["1 - probability"])
        assert found == pytest.approx(log_odds.target, abs=1e-6)
        if "cascade" not in name:  # there what neighbours read is a row of its own, which stays
            check_leave_out(ner, doc, Span(doc, 5, 7, label="GPE"))


@pytest.mark.parametrize("cascade", [False, True])
def test_a_word_is_left_out_with_what_its_neighbours_read(cascade):
    emissions = {**EMISSIONS, "features": {**EMISSIONS["features"], "templates": ["lower[-1..1]"]}}
    _, pipe, examples = tagger(
        ["the/A dog/B runs/C home/D", "a/A dog/B"], steps=3, cascade=cascade, emissions=emissions
    )
    doc = examples[0].reference
    span = Span(doc, 2, 3, label="C")
    why = pipe.explain(doc, span, kind="words", candidates=0)
    layer = pipe.model.layers[0]
    table, weights = layer.attrs["features"].states, layer.get_param("states")
    reads = np.array([table.index.name(n).endswith("=dog") for n in range(len(table.index))])
    layer.set_param("states", np.where(reads[table.rows_of_pairs()], np.float32(0.0), weights))
    pipe.clear_scores()
    without = pipe.explain(doc, span, kind="log_odds").target
    [of_word] = [row.contribution for row in why.rows if row.token == 1]
    assert of_word == pytest.approx(why.target - without, abs=1e-9) and abs(of_word) > 0.1


@pytest.mark.parametrize("decode", ["marginals", "hamming"])
def test_distances_of_bits_are_not_explained(decode):
    _, pipe, examples = tagger(["the/A dog/B runs/C"], steps=5, decode=decode)
    doc = examples[0].reference
    with pytest.raises(ValueError, match=rf"CRF838.*decode = '{decode}'.*'product'"):
        pipe.explain(doc, doc[0:1], kind="contrast")
    _, pipe, examples = tagger(["the/A dog/B runs/C"], steps=5)
    with pytest.raises(ValueError, match=r"CRF840.*bits of tags"):
        pipe.explain(doc, Span(doc, 0, 1, label="A"), kind="texts", corpus=examples, l2=0.1)


@pytest.mark.parametrize("codes", ["random", "one_vs_rest"])
def test_cascade_learns_transitions(codes):
    """Eight tags follow one another, and some words do not show their tag (Hao & Fern 2007: bits by themselves know too little
    of transitions)."""
    rng = np.random.default_rng(0)

    def text(begin):
        tags = (begin + np.arange(12)) % 8
        return " ".join(f"{f'w{tag}' if rng.random() < 0.6 else 'x'}/T{tag}" for tag in tags)

    texts, held_out, found = [text(n) for n in range(60)], [text(n) for n in range(40)], []
    emissions = {**EMISSIONS, "features": {**EMISSIONS["features"], "templates": ["bias", "orth[0]"]}}
    for cascade in (False, True):
        nlp, _, _ = tagger(texts, steps=40, cascade=cascade, codes=codes, bits=12, emissions=emissions)
        found.append(nlp.evaluate(tag_examples(nlp, held_out))["crf_tag_acc"])
    assert found[0] < 0.85 and found[1] > found[0] + 0.1
