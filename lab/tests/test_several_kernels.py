"""Kernels of subtrees, and several kernels with learned weights: against enumeration, and a dense model of all features."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import pytest
import spacy
from scipy.optimize import minimize
from scipy.special import logsumexp
from spacy.tokens import Doc
from spacy.training import Example

from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf_lab import kernel_choice
from spacy_crf_lab.dual_perceptron import DualPerceptron
from spacy_crf_lab.kernel_basis import Basis, HashedTokens, Kernel, read_trees
from spacy_crf_lab.kernel_choice import AnnotatedTokens, import_vectors, weighted
from tests.util import signatures, tag_examples

from .test_kernel_emissions import annotated_tokens, emissions_of, layer_of, random_tokens
from .util import registered

# Head, relation and part of speech of each word
TREES = {
    "the dog saw a cat": "1/det/DET 2/nsubj/NOUN 2/ROOT/VERB 4/det/DET 2/obj/NOUN",
    "a man saw the big dog": "1/det/DET 2/nsubj/NOUN 2/ROOT/VERB 5/det/DET 5/amod/ADJ 2/obj/NOUN",
    "dogs sleep": "1/nsubj/NOUN 1/ROOT/VERB",
    "go": "0/ROOT/VERB",
    "the cat of the man of Rome sleeps": "1/det/DET 7/nsubj/NOUN 4/case/ADP 4/det/DET "
    "1/nmod/NOUN 6/case/ADP 4/nmod/PROPN 7/ROOT/VERB",
}
TREE = {"kernel": "subtree", "degree": 3}


def parsed(vocab, text):
    heads, deps, pos = zip(*(item.split("/") for item in TREES[text].split()))
    return Doc(vocab, words=text.split(), heads=[*map(int, heads)], deps=[*deps], pos=[*pos])


def docs_of(vocab):
    return [parsed(vocab, text) for text in TREES]


def production(token):
    return token.pos_, *((child.dep_, child.pos_) for child in token.children)


def subtrees(token, n_levels):
    """All subtrees that begin at a token, with their numbers of productions: a child is cut off, or has a subtree."""
    choices = [[None]] * len([*token.children])
    if n_levels > 1:
        choices = [[None, *subtrees(child, n_levels - 1)] for child in token.children]
    return [(1 + sum(c[0] for c in chosen if c), production(token), chosen) for chosen in product(*choices)]


def below(token, n_levels):
    """Tokens on the levels of a tree, with the levels below each."""
    deeper = [each for child in token.children for each in below(child, n_levels - 1)] if n_levels > 1 else []
    return [(token, n_levels), *deeper]


@pytest.mark.parametrize("n_levels", [1, 2, 3, 5])
@pytest.mark.parametrize("decay", [0.4, 1.0])
def test_common_subtrees_are_those_of_enumeration(n_levels, decay):
    docs = docs_of(spacy.blank("en").vocab)
    tokens = [token for doc in docs for token in doc]
    counts = [Counter(s for node, n in below(token, n_levels) for s in subtrees(node, n)) for token in tokens]
    values = np.array([[sum(n * b[s] * decay ** s[0] for s, n in a.items()) for b in counts] for a in counts])
    lengths = np.sqrt(values.diagonal())
    basis = Basis((Kernel("subtree", n_levels, 1.0, decay),), read_trees(docs, n_levels))
    np.testing.assert_allclose(basis.matrix(), values / np.outer(lengths, lengths), rtol=1e-12)
    np.testing.assert_allclose(basis.diagonal(), 1.0)
    assert np.linalg.eigvalsh(basis.matrix())[0] > -1e-12  # positive


def test_trees_with_the_same_productions_in_other_places_differ():
    vocab = spacy.blank("en").vocab
    tags = {"deps": ["conj", "ROOT", "conj", "amod"], "pos": ["NOUN", "VERB", "NOUN", "ADJ"]}
    left = Doc(vocab, words=list("abcd"), heads=[1, 1, 1, 0], **tags)
    right = Doc(vocab, words=list("abcd"), heads=[1, 1, 1, 2], **tags)
    trees = read_trees([left, right], 3)
    assert trees.fingerprints[1] != trees.fingerprints[5]
    values = Basis((Kernel("subtree", 3, 1.0, 0.4),), trees).matrix()
    assert values[1, 5] < 0.999 and values[0, 6] == pytest.approx(1.0)


def two_kernels(n=60, seed=0):
    """Annotated tokens that show the first kernel what decides their states, and the second one noise."""
    (some, dense), (noise, dense_noise) = random_tokens(n, seed, values=False), random_tokens(n, seed + 1, values=False)
    tokens = HashedTokens.abreast([some, noise])
    gold = (dense[:, 0] + 2 * dense[:, 1] * dense[:, 2]).astype(int)
    annotated = AnnotatedTokens(tokens, np.arange(n), gold[:, np.newaxis] == np.arange(4), np.ones(n))
    return annotated, dense, dense_noise


@pytest.mark.parametrize("norm", [1.0, 2.0, 50.0])
def test_weights_of_kernels_are_the_fixed_point(norm, monkeypatch):
    """The features of linear kernels side by side, each block times √d: the norms of what is learned give d again."""
    monkeypatch.setattr(kernel_choice, "_CHANGE", 1e-4)
    monkeypatch.setattr(kernel_choice, "_ROUNDS", 300)
    annotated, *blocks = two_kernels()
    linear = Kernel("linear", 1, 0.0, None)
    found = weighted((linear, linear), annotated, norm, np.random.default_rng(0))
    sizes = [(block**2).sum(axis=1).mean() for block in blocks]
    shares = np.array([kernel.weight * size for kernel, size in zip(found, sizes)])
    assert (shares**norm).sum() == pytest.approx(1.0)
    scaled = [block * np.sqrt(share / size) for block, share, size in zip(blocks, shares, sizes)]
    features = np.column_stack([np.ones(60), *scaled])

    def loss(weights):
        scores = features @ weights.reshape(-1, 4)
        losses = logsumexp(scores, axis=1) - scores[annotated.allowed]
        return losses.sum() + 0.02 * (weights**2).sum()

    weights = minimize(loss, np.zeros(features.shape[1] * 4), tol=1e-9).x.reshape(-1, 4)
    lengths = np.array([np.linalg.norm(weights[1:10]), np.linalg.norm(weights[10:])]) * np.sqrt(shares)
    wanted = lengths ** (2 / (norm + 1))
    np.testing.assert_allclose(shares, wanted / (wanted**norm).sum() ** (1 / norm), atol=0.02)
    assert shares[0] > shares[1]
    if norm == 1.0:
        assert shares[1] < 0.2
    if norm == 50.0:
        assert shares[1] > 0.9


def test_weights_that_do_not_converge_are_said_once(monkeypatch, caplog):
    monkeypatch.setattr(kernel_choice, "_ROUNDS", 1)
    linear = Kernel("linear", 1, 0.0, None)
    weighted((linear, linear), two_kernels()[0], 1.0, np.random.default_rng(0))
    [message] = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert message.startswith("CRFW621: KernelEmissions: the weights of the kernels still change by 0.")


def test_tokens_that_all_states_fit_leave_the_weights_equal():
    annotated, *_ = two_kernels()
    linear = Kernel("linear", 1, 0.0, None)
    annotated = annotated._replace(allowed=np.ones_like(annotated.allowed))
    one, other = weighted((linear, linear._replace(offset=1.0)), annotated, 1.0, np.random.default_rng(0))
    sizes = [annotated.tokens.of(n).squares.mean() for n in (0, 1)]
    np.testing.assert_allclose([one.weight * sizes[0], other.weight * sizes[1]], 0.5)


def test_the_kernel_of_a_sum_is_the_sum_of_kernels():
    (some, _), (others, _) = random_tokens(20), random_tokens(20, seed=4)
    kernels = Kernel("poly", 2, 1.0, None, 0.3), Kernel("rbf", 1, 1.0, 0.2, 2.0)
    together = Basis(kernels, HashedTokens.abreast([some, others]))
    alone = [Basis((kernel,), tokens) for kernel, tokens in zip(kernels, (some, others))]
    np.testing.assert_allclose(together.matrix(), sum(basis.matrix() for basis in alone), rtol=1e-12)
    np.testing.assert_allclose(together.diagonal(), together.matrix().diagonal(), rtol=1e-6)
    chosen = together.tokens.some(np.array([3, 1]))
    for number, tokens in enumerate((some, others)):
        for found, expected in zip(chosen.of(number)[:3], tokens.some(np.array([3, 1]))[:3]):
            np.testing.assert_array_equal(found, expected)


def test_import_vectors_of_several_kernels():
    annotated, _ = annotated_tokens(30)
    both = annotated._replace(tokens=HashedTokens.abreast([annotated.tokens, annotated.tokens]))
    half = Kernel("poly", 2, 1.0, None, 0.5)
    found = import_vectors((half, half), both, 6, np.random.default_rng(0))
    same = import_vectors((half._replace(weight=1.0),), annotated, 6, np.random.default_rng(0))
    assert found.tolist() == same.tolist()


# -------------------------------------------------------------------------------------------------------- pipelines


def made(architecture="LinearChain", loss=None, **settings):
    nlp = spacy.blank("en")
    settings = settings or {"kernels": {"words": {"templates": ["lower[-1..0]"]}, "trees": TREE}}
    model = {"@architectures": registered(architecture), "emissions": emissions_of(**settings)}
    return nlp, nlp.add_pipe("crf_tagger", config={"model": model, **({} if loss is None else {"loss": loss})})


def tree_examples(nlp):
    """The tag of a token is whether it has a determiner."""
    examples = []
    for doc in docs_of(nlp.vocab):
        gold = doc.copy()
        for token in gold:
            token.tag_ = "WITH" if any(child.dep_ == "det" for child in token.children) else "WITHOUT"
        examples.append(Example(doc, gold))
    return examples


def trained(**settings):
    nlp, tagger = made(**settings)
    examples = tree_examples(nlp)
    nlp.initialize(lambda: examples)
    nlp.update(examples, sgd=LBFGS(l2=1e-4, iterations_per_step=60))
    return nlp, tagger


def tags(doc):
    return [token.tag_ for token in doc]


@pytest.mark.parametrize("architecture", ["LinearChain", "MaxEnt"])
@pytest.mark.parametrize("select", ["random", "greedy", "all"])
def test_learns_from_trees_saves_and_loads(architecture, select, tmp_path):
    settings = {"kernels": {"words": {"templates": ["lower[0]"]}, "trees": TREE}, "select": select, "basis": 12}
    nlp, tagger = trained(architecture=architecture, **settings)
    _, kernel = layer_of(tagger)
    assert all(each.weight > 0.0 for each in kernel.basis.kernels) and len(kernel.basis.kernels) == 2
    right = [tags(nlp(example.predicted.copy())) == tags(example.reference) for example in tree_examples(nlp)]
    assert all(right)
    nlp.to_disk(tmp_path)
    loaded = [spacy.load(tmp_path), made(architecture=architecture, **settings)[0].from_bytes(nlp.to_bytes())]
    for other in loaded:
        docs = docs_of(nlp.vocab)
        for doc in docs:
            found = [each.get_pipe("crf_tagger").marginals(doc)[0] for each in (nlp, other)]
            np.testing.assert_allclose(*found, atol=1e-12)
    # Threads, an empty Doc, and one token
    docs = [*docs_of(nlp.vocab), Doc(nlp.vocab)]
    alone = [tags(nlp(doc.copy())) for doc in docs]
    with ThreadPoolExecutor(2) as threads:
        assert [tags(doc) for doc in threads.map(nlp, (doc.copy() for doc in docs))] == alone


def test_in_two_processes():
    nlp, _ = trained()
    alone = [tags(nlp(doc)) for doc in docs_of(nlp.vocab)]
    assert [tags(doc) for doc in nlp.pipe(docs_of(nlp.vocab), n_process=2)] == alone


def test_trees_alone():
    nlp, _ = trained(kernel="subtree", degree=2, select="all")
    assert all(tags(nlp(e.predicted.copy())) == tags(e.reference) for e in tree_examples(nlp))


def test_the_dual_perceptron_counts_with_the_learned_weights():
    loss = {"@losses": "spacy_crf.Perceptron.v1"}
    nlp, tagger = made(kernels={"words": {}, "trees": TREE}, loss=loss)
    examples = tree_examples(nlp)
    nlp.initialize(lambda: examples)
    before = layer_of(tagger)[1].basis.kernels
    sgd = DualPerceptron(use_averages=False, epochs_per_step=30)
    nlp.update(examples, sgd=sgd)
    assert layer_of(tagger)[1].basis.kernels == before
    assert all(tags(nlp(e.predicted.copy())) == tags(e.reference) for e in tree_examples(nlp))


def test_docs_without_a_parse_are_refused():
    nlp, _ = made()
    examples = tag_examples(nlp)
    with pytest.raises(ValueError, match="CRF367: KernelEmissions needs heads of a parser, and 'the dog barks"):
        nlp.initialize(lambda: examples)
    doc = Doc(nlp.vocab, words=["a", "b"], heads=[1, 1], deps=["det", "ROOT"])
    with pytest.raises(ValueError, match="CRF367: KernelEmissions needs parts of speech, and 'a b"):
        read_trees([doc], 2)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"kernels": {"a": {"kernl": "poly"}}}, r"CRF020.*kernels\.a\.setting = 'kernl'"),
        ({"kernels": {"a": {"kernel": "tree"}}}, r"CRF020.*kernels\.a\.kernel = 'tree'"),
        ({"kernels": {"a": {"degree": 0}}}, r"CRF020.*kernels\.a\.degree = 0"),
        ({"kernels": {"a": {"templates": ["shape[3]"]}}}, r"CRF020.*kernels\.a\.templates = 'shape\[3\]'"),
        ({"kernels": {"a": {**TREE, "templates": ["lower[0]"]}}}, r"CRF020.*kernels\.a\.templates.*compares trees"),
        ({"norm": 0.5}, "CRF020.*norm = 0.5"),
    ],
)
def test_settings_that_are_not_possible(settings, message):
    with pytest.raises(ValueError, match=message):
        made(**settings)


def test_a_model_of_other_kernels_is_refused():
    nlp, _ = trained()
    others = {"words": {"templates": ["lower[0]"]}, "trees": TREE}
    with pytest.raises(ValueError, match=r"CRF510.*compares"):
        made(kernels=others)[0].from_bytes(nlp.to_bytes())


def test_each_kernel_is_compiled_once():
    trained()
    from spacy_crf_lab.kernels import subtrees as compiled

    assert set(signatures(compiled).values()) <= {1}
