"""Hidden Markov models against their formulas in plain Python, the Baum-Welch algorithm against enumeration, and components."""

import itertools
import logging
import math
from collections import Counter, defaultdict
from importlib.util import find_spec

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import load_config

from spacy_crf.cli.tune import tune
from spacy_crf.inference.pruned_lattice import Orders, key_of
from spacy_crf.schemes import TransitionMask
from spacy_crf_lab.baum_welch import Estimates, Observed, Priors, baum_welch, maximize
from spacy_crf_lab.counting import Counts
from spacy_crf_lab.hmm import Counting
from tests.cli.test_tune import CONFIG
from tests.util import NER_TEXTS, entities, ner_doc, ner_examples, plain, tag_examples

from .util import registered

START, END = "<", ">"
TEXTS = [
    ("The old man runs .", "D A N V ."),
    ("The runs end .", "D N V ."),
    ("A man ends it .", "D N V P ."),
    ("Old runs run .", "A N V ."),
    ("It runs", "P V"),
    ("The man man The old", "D N V D A"),
    ("run", "V"),
]
NEW = ["The running man .", "Man ended", "it", "old Mann mended A"]


def tagger(texts=TEXTS, order=1, labels=None, prune=0.0, init=None, **settings):
    nlp = spacy.blank("en")
    model = {"@architectures": "spacy_crf_lab.HMM.v1", "order": order, "prune": prune, **settings}
    pipe = nlp.add_pipe(
        "crf_tagger", config={"model": model, "optimizer": {"@optimizers": "spacy_crf_lab.Counting.v1"}}
    )
    examples = [example(nlp, *text) for text in texts]
    pipe.initialize(lambda: examples, nlp=nlp, labels=labels)
    return nlp


def example(nlp, words, tags=None):
    words = words.split()
    tags = ["_"] * len(words) if tags is None else tags.split()
    reference = Doc(nlp.vocab, words=words, tags=["" if tag == "_" else tag for tag in tags])
    return Example(Doc(nlp.vocab, words=words), reference)


# ------------------------------------------------------------------------------- the formulas of TnT in plain Python


def short_shape(word):
    kinds = ["X" if c.isupper() else "x" if c.islower() else "d" if c.isdigit() else c for c in word]
    return "".join(kind for kind, _ in itertools.groupby(kinds))


class TnT:
    """Brants 2000: counts in dictionaries, probabilities by recursion."""

    def __init__(self, texts, order, suffixes=10, smoothing=0.2, rare=10):
        texts = [(words.split(), tags.split()) for words, tags in texts]
        self.order, self.suffixes, self.smoothing = order, suffixes, smoothing
        self.tags = sorted({tag for _, tags in texts for tag in tags})
        self.one, self.two, self.three, self.ends = Counter(), Counter(), Counter(), Counter()
        self.of_feature = defaultdict(Counter)
        frequency = Counter((word, short_shape(word)) for words, _ in texts for word in words)
        for words, tags in texts:
            for u, v in itertools.pairwise([START, *tags]):
                self.two[u, v] += 1
                self.one[v] += 1
            self.ends[tags[-1]] += 1
            self.three.update(zip([START, *tags], tags, tags[1:]))
            for word, tag in zip(words, tags):
                general, *middle, special = self.chain(word)
                used = [general, *(middle if frequency[word, short_shape(word)] <= rare else []), special]
                for feature in used:
                    self.of_feature[feature][tag] += 1
        n = sum(self.one.values())
        self.alone = {tag: (self.one[tag] + smoothing) / (n + smoothing * len(self.tags)) for tag in self.tags}
        self.after = Counter()
        for (u, _), count in self.two.items():
            self.after[u] += count
        self.after_two = Counter()
        for (w, u, _), count in self.three.items():
            self.after_two[w, u] += count
        self.interpolate(n)

    def interpolate(self, n):
        def without_one(count, total):
            return (count - 1) / (total - 1) if total > 1 else 0.0

        self.shares = [1.0] * (self.order + 1)
        for gram, count in (self.three if self.order == 2 else self.two).items():
            u, v = gram[-2:]
            ratios = [without_one(self.one[v], n), without_one(self.two[u, v], self.after[u])]
            if self.order == 2:
                ratios.append(without_one(count, self.after_two[gram[:2]]))
            self.shares[ratios.index(max(ratios))] += count
        self.shares = [share / sum(self.shares) for share in self.shares]

    def step(self, w, u, v):
        terms = [self.alone[v], self.two[u, v] / self.after[u] if self.after[u] else 0.0]
        if self.order == 2:
            seen = self.three[w, u, v] / self.after_two[w, u] if self.after_two[w, u] else 0.0
            terms.append(terms[1] if u == START else seen)
        return sum(share * term for share, term in zip(self.shares, terms))

    def end(self, u):
        return (self.ends[u] + self.smoothing) / (self.after[u] + self.ends[u] + 2 * self.smoothing)

    def chain(self, word):
        shape = short_shape(word)
        endings = [(shape, word[-n:]) for n in range(1, min(self.suffixes, len(word)) + 1)]
        return [(), (shape,), *endings, (shape, word, "word")]

    def of_word(self, word):
        """p(tag | word) / p(tag), by the longest part of it that is known."""
        found = dict.fromkeys(self.tags, 1.0 / len(self.tags))
        for feature in self.chain(word):
            counts = self.of_feature.get(feature)
            if counts is None:
                continue
            n = sum(counts.values())
            of_all, is_word = self.smoothing * len(self.tags), feature[-1:] == ("word",)
            strength = of_all if not feature else self.smoothing if is_word else 4.0
            found = {tag: (counts[tag] + strength * p) / (n + strength) for tag, p in found.items()}
        return {tag: p / self.alone[tag] for tag, p in found.items()}

    def posterior(self, words):
        """Probability of each labelling, by Bayes."""
        of_words, joint = [self.of_word(word) for word in words], {}
        for tags in itertools.product(self.tags, repeat=len(words)):
            p = self.end(tags[-1])
            for t, v in enumerate(tags):
                w, u = [None, START, *tags][t : t + 2]
                p *= self.step(w, u, v) * of_words[t][v] * (1.0 if t == 0 else 1.0 - self.end(u))
            joint[tags] = p
        total = sum(joint.values())
        return {tags: p / total for tags, p in joint.items()}


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("settings", [{}, {"suffixes": 2}, {"suffixes": 0, "smoothing": 1.0}])
def test_the_posterior_is_that_of_bayes(order, settings):
    nlp = tagger(order=order, **settings)
    pipe, theirs = nlp.get_pipe("crf_tagger"), TnT(TEXTS, order, **settings)
    for text in [*NEW, *(words for words, _ in TEXTS[:3])]:
        doc = Doc(nlp.vocab, words=text.split())
        posterior = theirs.posterior(text.split())
        marginals, names = pipe.marginals(doc)
        for t, v in itertools.product(range(len(doc)), range(len(names))):
            expected = sum(p for tags, p in posterior.items() if tags[t] == names[v])
            assert marginals[t, v] == pytest.approx(expected, rel=1e-5, abs=1e-9)
        best = sorted(posterior.items(), key=lambda item: -item[1])[:3]
        for (found, spans), (tags, p) in zip(pipe.n_best(doc, 3), best):
            assert found == pytest.approx(p, rel=1e-5) and [span.label_ for span in spans] == list(tags)


def test_pruned_pairs_are_improbable_ones():
    exact, pruned = tagger(order=2), tagger(order=2, prune=1e-4)
    for text in NEW:
        found = [nlp.get_pipe("crf_tagger").marginals(Doc(nlp.vocab, words=text.split()))[0] for nlp in (exact, pruned)]
        np.testing.assert_allclose(*found, atol=1e-3)


def test_endings_of_frequent_words_do_not_count():
    texts = [("runs runs runs", "V V N"), *TEXTS] * 6
    pipe, theirs = tagger(texts).get_pipe("crf_tagger"), TnT(texts, 1)
    [word] = pipe.marginals(Doc(pipe.vocab, words=["guns"]))[0]
    posterior = theirs.posterior(["guns"])
    assert word == pytest.approx([posterior[tag,] for tag in pipe.tags()], rel=1e-5)


# ------------------------------------------------------------------------------------------------------- Baum-Welch


def random_estimates(rng, order, size, codes):
    grams = sorted(key_of(g, size) for g in itertools.product(range(size + 1), range(size), range(size)))
    keys = np.array(grams if order == 2 else [], dtype=np.int64)
    steps = Counts(rng.random((size + 1, size + 1)), keys, rng.random(len(keys)))
    return Estimates(steps, [rng.random((n, size)) for n in codes]), Orders(order, keys, size)


def random_texts(rng, size, codes, n=6):
    for _ in range(n):
        starts = np.append(0, np.cumsum(rng.integers(1, 4, 2)))
        said = np.array([rng.integers(-(len(codes) > 1), n, starts[-1]) for n in codes])
        allowed = rng.random((starts[-1], size)) < 0.7
        allowed[~allowed.any(axis=1)] = True
        yield Observed(said, allowed, starts, rng.choice([0.5, 1.0, 2.0], 2))


def iterate(texts, estimates, mask, prior, order):
    """One iteration by enumeration: the expected numbers, and the log-likelihood before."""
    size = len(mask.first)
    follows = np.vstack([mask.transitions, mask.first])
    steps, grams = estimates.steps.steps, dict(zip(estimates.steps.keys.tolist(), estimates.steps.grams))

    def shares(n, total):
        return n / total if total else 0.0

    def step(w, u, v):
        if not follows[u, v]:
            return 0.0
        if order == 2 and w is not None:
            after = {i: grams[key_of((w, u, i), size)] + prior.steps for i in range(size) if follows[u, i]}
            return shares(after[v], sum(after.values()))
        return shares(steps[u, v] + prior.steps, sum(steps[u, i] + prior.steps for i in range(size) if follows[u, i]))

    def end(u):
        ends = (steps[u, size] + prior.steps) * mask.last[u]
        return shares(ends, ends + (steps[u, :size].sum() + prior.steps) * mask.transitions[u].any())

    new_steps, new_grams = np.zeros((size + 1, size + 1)), Counter()
    new_codes, total = [np.zeros_like(n) for n in estimates.codes], 0.0
    for text in texts:
        for (begin, stop), weight in zip(itertools.pairwise(text.starts), text.weights):
            joint = {}
            for tags in itertools.product(range(size), repeat=stop - begin):
                p = end(tags[-1]) * all(text.allowed[t, v] for t, v in enumerate(tags, begin))
                for t, v in enumerate(tags):
                    w, u = [None, size, *tags][t : t + 2]
                    p *= step(w, u, v) * (1.0 if t == 0 else 1.0 - end(u))
                    for n, more, said in zip(estimates.codes, prior.codes, text.codes[:, begin + t]):
                        p *= 1.0 if said < 0 else shares(n[said, v] + more, (n[:, v] + more).sum())
                joint[tags] = p
            z = sum(joint.values())
            if z == 0.0:
                continue
            total += weight * math.log(z)
            for tags, p in joint.items():
                share = weight * p / z
                new_steps[tags[-1], size] += share
                for u, v in itertools.pairwise([size, *tags]):
                    new_steps[u, v] += share
                for gram in zip([size, *tags], tags, tags[1:]):
                    new_grams[key_of(gram, size)] += share
                for t, v in enumerate(tags):
                    for n, said in zip(new_codes, text.codes[:, begin + t]):
                        if said >= 0:
                            n[said, v] += share
    return new_steps, [new_grams[key] for key in estimates.steps.keys.tolist()], new_codes, total


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("codes", [[4], [3, 2, 3]])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_an_iteration_is_that_of_enumeration(order, codes, smoothing):
    rng, size = np.random.default_rng(len(codes) + 2 * order), 3
    texts, prior = [*random_texts(rng, size, codes)], Priors(smoothing, [smoothing] * len(codes))
    mask = TransitionMask(rng.random((size, size)) < 0.8, np.array([True, False, True]), np.array([True, True, False]))
    estimates, orders = random_estimates(rng, order, size, codes)
    found = baum_welch(texts, estimates, mask, prior, orders, 1)
    steps, grams, of_codes, log_likelihood = iterate(texts, estimates, mask, prior, order)
    assert found.log_likelihood == pytest.approx(log_likelihood, rel=1e-10)
    np.testing.assert_allclose(found.steps.steps, steps, atol=1e-10)
    np.testing.assert_allclose(found.steps.grams, grams, atol=1e-10)
    for ours, theirs in zip(found.codes, of_codes):
        np.testing.assert_allclose(ours, theirs, atol=1e-10)


@pytest.mark.parametrize("order", [1, 2])
def test_the_likelihood_never_falls(order):
    rng, size, said = np.random.default_rng(order), 3, []
    texts = [*random_texts(rng, size, [5], n=20)]
    mask = TransitionMask(np.ones((size, size), bool), np.ones(size, bool), np.ones(size, bool))
    estimates, orders = random_estimates(rng, order, size, [5])
    baum_welch(texts, estimates, mask, Priors(0.0, [0.0]), orders, 30, lambda iteration, found: said.append(found))
    assert len(said) == 30 and (np.diff(said) >= -1e-9).all() and said[-1] > said[0] + 1.0


@pytest.mark.skipif(not find_spec("hmmlearn"), reason="hmmlearn is not installed")
def test_iterations_are_those_of_hmmlearn():
    from hmmlearn.hmm import CategoricalHMM

    rng, size, n_words = np.random.default_rng(0), 3, 6
    lengths = rng.integers(1, 9, 40)
    starts, words = np.append(0, np.cumsum(lengths)), rng.integers(0, n_words, lengths.sum())
    estimates, orders = random_estimates(rng, 1, size, [n_words])
    mask = TransitionMask(np.ones((size, size), bool), np.ones(size, bool), np.ones(size, bool))
    texts = [Observed(words[np.newaxis], np.ones((len(words), size), bool), starts, np.ones(len(lengths)))]
    prior = Priors(0.0, [0.0])
    # To hmmlearn, the end of a text is one more word, and one more state that gives this word alone
    given = maximize(estimates, mask, prior)
    theirs = CategoricalHMM(size + 1, n_iter=1, tol=-np.inf, init_params="", n_features=n_words + 1)
    theirs.startprob_ = np.append(np.exp(given.first), 0.0)
    theirs.transmat_ = np.full((size + 1, size + 1), 1.0 / (size + 1))
    theirs.transmat_[:size] = np.column_stack([np.exp(given.transitions), np.exp(given.last)])
    theirs.emissionprob_ = np.zeros((size + 1, n_words + 1))
    theirs.emissionprob_[:size, :n_words], theirs.emissionprob_[size, n_words] = np.exp(given.codes[0]).T, 1.0
    with_ends = np.concatenate([np.append(words[a:b], n_words) for a, b in itertools.pairwise(starts)])
    for _ in range(5):
        theirs.transmat_[size] = 1.0 / (size + 1)  # nothing follows an end
        theirs.fit(with_ends[:, np.newaxis], lengths + 1)
        estimates = baum_welch(texts, estimates, mask, prior, orders, 1)
        ours = maximize(estimates, mask, prior)
        assert estimates.log_likelihood == pytest.approx(theirs.monitor_.history[-1], rel=1e-8)
        np.testing.assert_allclose(np.exp(ours.first), theirs.startprob_[:size], atol=1e-8)
        np.testing.assert_allclose(np.exp(ours.transitions), theirs.transmat_[:size, :size], atol=1e-8)
        np.testing.assert_allclose(np.exp(ours.codes[0]).T, theirs.emissionprob_[:size, :n_words], atol=1e-8)


# ------------------------------------------------------------------------------------------------------- components


@pytest.fixture(scope="module", params=[1, 2])
def model(request):
    """A pipeline for tags, and one for entities. Do not change."""
    nlp = spacy.blank("en")
    settings = {"@architectures": "spacy_crf_lab.HMM.v1", "order": request.param, "prune": 0.0}
    for name, examples in (("crf_tagger", tag_examples(nlp)), ("crf_ner", ner_examples(nlp))):
        pipe = nlp.add_pipe(name, config={"model": settings, "confidence": True})
        pipe.initialize(lambda examples=examples: examples, nlp=nlp)
    return nlp


def answers(docs):
    """Tags and entities with their probabilities."""
    found = [[doc[t : t + 1] for t in range(len(doc))] + list(doc.ents) for doc in docs]
    return [[(s[0].tag_, s.label_, s._.crf_prob) for s in spans] for spans in found]


def test_saved_models_say_the_same(model, tmp_path):
    texts = [*(ner_doc(model, text).text for text in NER_TEXTS), "", "Ann", "new words , unheard of"]
    before = answers(model.pipe(texts))
    model.to_disk(tmp_path)
    assert answers(spacy.load(tmp_path).pipe(texts)) == before
    again = spacy.util.load_model_from_config(model.config).from_bytes(model.to_bytes())
    assert answers(again.pipe(texts)) == before
    assert answers(model.pipe(texts, n_process=2, batch_size=3)) == before
    assert answers(map(model, texts)) == before


def test_learns_its_texts(model):
    for factory, examples in (("crf_tagger", tag_examples(model)), ("crf_ner", ner_examples(model))):
        pipe = model.get_pipe(factory)
        for example in examples:
            [doc] = pipe.pipe([plain(example.reference)])
            if factory == "crf_ner":
                assert entities(doc) == entities(example.reference)
            else:
                assert [token.tag_ for token in doc] == [token.tag_ for token in example.reference]


def test_rules_spans_and_explanations(model):
    pipe = model.get_pipe("crf_ner")
    doc = plain(ner_doc(model, "[Bob](PER) left [Paris](GPE) for [Acme Corp](ORG) ."))
    spans = {(s.start, s.end, s.label_): p for s, p in pipe.span_probabilities(doc)}
    assert spans[0, 1, "PER"] > 0.5 and len(pipe.n_best(doc, 4)) == 4
    assert sum(p for p, _ in pipe.n_best(doc, 200)) == pytest.approx(1.0, abs=0.05)
    if pipe.model.attrs["order"] == 1:
        explained = pipe.explain(doc, doc[0:1], kind="contrast")
        assert explained.check < 1e-6 and "orth[0]|short_shape[0]=Bob|Xx" in explained.to_text()
    else:
        with pytest.raises(ValueError, match=r"CRF838.*only chains of order 1"):
            pipe.explain(doc, doc[0:1], kind="contrast")


@pytest.mark.parametrize("order", [1, 2])
def test_rules(order):
    model = {"@architectures": "spacy_crf_lab.HMM.v1", "order": order}
    rules = {"@misc": "spacy_crf.constraints.v1", "rules": [{"rule": "at_most", "label": "PER", "n": 1}]}
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe("crf_ner", config={"model": model, "constraints": rules})
    pipe.initialize(lambda: ner_examples(nlp), nlp=nlp)
    doc = pipe(plain(ner_doc(nlp, NER_TEXTS[3])))
    assert [ent.label_ for ent in doc.ents].count("PER") == 1


def test_partial_annotation_and_unknown_labels():
    texts = [
        (words, " ".join("_" if n % 3 == 2 else tag for n, tag in enumerate(tags.split()))) for words, tags in TEXTS
    ]
    for iterations in (0, 3):
        pipe = tagger(texts, em_iterations=iterations, labels=["A", "D", "N", "P", "V", ".", "NEW"]).get_pipe(
            "crf_tagger"
        )
        marginals, names = pipe.marginals(Doc(pipe.vocab, words=["The", "man", "runs", "."]))
        assert np.isfinite(marginals).all() and marginals[:, names.index("NEW")].max() < 0.1
        assert [names[tag] for tag in marginals.argmax(axis=1)] == ["D", "N", "V", "."]
    assert pipe.add_label("LATER") == 1
    assert pipe.marginals(Doc(pipe.vocab, words=["The", "man"]))[0][:, -1].max() < 0.2


@pytest.mark.parametrize("order", [1, 2])
def test_expectation_maximization_learns_from_raw_texts(order, caplog):
    """Words that only raw texts have get the tag of their neighbourhood."""
    raw = [("A dog runs .", None), ("The dog man ends .", None), ("Old dog runs .", None)] * 5
    before = tagger(order=order).get_pipe("crf_tagger")
    with caplog.at_level(logging.INFO, logger="spacy.spacy_crf"):
        after = tagger([*TEXTS, *raw], order=order, em_iterations=8, prune=1e-4).get_pipe("crf_tagger")
    said = [float(record.message.split()[-1]) for record in caplog.records if "log-likelihood" in record.message]
    assert len(said) == 8 and said[-1] > said[0]
    found = []
    for pipe in (before, after):
        marginals, names = pipe.marginals(Doc(pipe.vocab, words=["The", "dog", "runs"]))
        found.append(marginals[1, names.index("N")])
    assert found[1] > max(0.9, found[0])


def test_without_any_annotation_the_seed_decides():
    texts = [("a b a b a b", None), ("b a b a", None), ("c a c a b", None)] * 4
    found = []
    for seed in (0, 0, 1):
        pipe = tagger(texts, em_iterations=20, seed=seed, labels=["X", "Y"]).get_pipe("crf_tagger")
        found.append(pipe.marginals(Doc(pipe.vocab, words=["a", "b", "a", "b"]))[0])
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.allclose(found[0], found[2])
    assert (found[0].argmax(axis=1) == found[0].argmax(axis=1)[[2, 3, 0, 1]]).all() and found[0].max(axis=1).min() > 0.9


def test_counting_is_the_only_optimizer():
    nlp = spacy.blank("en")
    hmm = {"@architectures": "spacy_crf_lab.HMM.v1"}
    lbfgs, counting = ({"@optimizers": registered(name)} for name in ("LBFGS", "Counting"))
    with pytest.raises(
        ValueError, match=r"CRF347: LBFGS can't train hmm of 'crf_tagger'.*Take spacy_crf_lab.Counting.v1"
    ):
        nlp.add_pipe("crf_tagger", config={"model": hmm, "optimizer": lbfgs})
    with pytest.raises(ValueError, match=r"CRF347: Counting can't train linear_chain of 'crf_ner'.*spacy_crf.LBFGS.v1"):
        nlp.add_pipe("crf_ner", config={"optimizer": counting})
    nlp.add_pipe("crf_tagger", config={"model": hmm})
    nlp.config["training"]["optimizer"] = lbfgs
    with pytest.raises(ValueError, match=r"CRF347: LBFGS can't train hmm"):
        nlp.initialize(lambda: tag_examples(nlp))
    nlp.config["training"]["optimizer"] = counting
    optimizer = nlp.initialize(lambda: tag_examples(nlp))
    assert isinstance(optimizer, Counting)


@pytest.mark.parametrize("sgd", [None, Counting()])
def test_an_update_changes_nothing_and_warns_unless_the_optimizer_says_so(sgd, caplog):
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_tagger", config={"model": {"@architectures": "spacy_crf_lab.HMM.v1"}})
    nlp.initialize(lambda: tag_examples(nlp))
    before = nlp.to_bytes()
    for _ in range(2):
        nlp.update(tag_examples(nlp), sgd=sgd)
    assert nlp.to_bytes() == before
    assert any("CRFW465" in record.message for record in caplog.records) == (sgd is None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"order": 3}, r"CRF020.*order = 3.*one of 1, 2"),
        ({"suffixes": 11}, r"CRF020.*suffixes = 11.*from 0 to 10"),
        ({"words": "orth[-1..1]"}, r"CRF020.*words.*one template"),
        ({"words": "ngrams3[0]"}, r"CRF020.*words.*one value for each token"),
        ({"words": "nonsense[0]"}, r"CRF106.*nonsense"),
        ({"smoothing": 0.0}, r"CRF020.*smoothing"),
        ({"prune": 0.5}, r"CRF020.*prune"),
        ({"em_iterations": -1}, r"CRF020.*em_iterations"),
    ],
)
def test_settings_that_are_not_possible(settings, message):
    with pytest.raises(ValueError, match=message):
        spacy.blank("en").add_pipe(
            "crf_tagger", config={"model": {"@architectures": "spacy_crf_lab.HMM.v1", **settings}}
        )


def test_a_model_that_counts_has_one_training(paths):
    config = load_config(CONFIG, overrides=paths)
    model = {"@architectures": "spacy_crf_lab.HMM.v1", "em_iterations": 1}
    config["components"]["crf_ner"]["model"] = model
    _, [trial] = tune(config, optimizers=["Counting"])
    assert trial.score > 0.9 and trial.candidate.settings == ()
    with pytest.raises(ValueError, match=r"CRF347.*Counting"):
        tune(config, optimizers=["LBFGS"])
