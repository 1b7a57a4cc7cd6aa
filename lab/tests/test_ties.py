"""Which tokens templates of ties tie: against what one sees, and against looking at all pairs."""

import pickle
import random

import numpy as np
import pytest
import spacy
from rapidfuzz.distance import JaroWinkler, Levenshtein
from spacy.tokens import Doc, Span
from spacy.training import Example

from spacy_crf.features.doc_batch import DocBatch
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf_lab.ties.features import SharedFeatures, TieFeatureSet
from spacy_crf_lab.ties.groups import LinkedSpans, RepeatedPhrases
from spacy_crf_lab.ties.spelling import Acronyms, SimilarWords
from spacy_crf_lab.ties.templates import Pairs

from .test_factor_graph import examples, graph, make_doc, name_docs, trained
from .util import registered


@pytest.fixture(scope="module")
def vocab():
    return spacy.blank("en").vocab


def tied(template, *docs):
    found = template.find(DocBatch(docs))
    assert found.source.dtype == found.target.dtype == np.int64
    return sorted(zip(found.source.tolist(), found.target.tolist()))


def with_spans(vocab, words, **groups):
    """Groups of (start, end, id)."""
    doc = Doc(vocab, words=words.split())
    for key, spans in groups.items():
        doc.spans[key] = [Span(doc, start, end, label="X", span_id=name) for start, end, name in spans]
    return doc


def nothing(doc):
    """Pairs of no tokens."""
    return []


def first_and_last(doc):
    """The first name and the last one."""
    return [(1, len(doc) - 1)]


TEMPLATES = [
    RepeatedPhrases,
    SimilarWords,
    Acronyms,
    lambda **s: LinkedSpans("k*", **s),
    lambda **s: Pairs(nothing, **s),
]


@pytest.mark.parametrize("make", TEMPLATES)
def test_empty_docs_and_no_docs_have_no_ties(make, vocab):
    for docs in ((), (Doc(vocab),), (Doc(vocab), Doc(vocab, words=["A"]), Doc(vocab))):
        assert tied(make(), *docs) == []


@pytest.mark.parametrize("make", TEMPLATES)
@pytest.mark.parametrize("settings", [{"features": ["shape"]}, {"max_edges": 0}, {"symmetric": 1}])
def test_settings_that_all_have_are_checked(make, settings):
    with pytest.raises(ValueError, match=f"CRF020.*{next(iter(settings))}"):
        make(**settings)


# Phrases


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({}, [(1, 6), (6, 10)]),
        ({"edges": "all"}, [(1, 6), (1, 10), (6, 10)]),
        ({"edges": "hub"}, [(1, 6), (1, 10)]),
        ({"words": "all"}, [(1, 6), (2, 7), (6, 10), (7, 11)]),
        ({"longest": 1, "shortest": 1}, [(1, 6), (2, 7), (6, 10), (7, 11), (11, 13)]),
        ({"shortest": 3}, []),
        ({"attr": "SHAPE", "edges": "hub", "shortest": 2}, [(1, 5), (1, 6), (1, 10)]),
        ({"only": None, "attr": "LOWER"}, [(1, 6), (6, 10)]),
        ({"max_edges": 1}, []),
    ],
)
def test_words_that_stand_in_the_same_order(settings, expected, vocab, caplog):
    doc = make_doc(vocab, ["says Ann Lee , but", "Mrs Ann Lee . and", "Ann Lee . Lee and"])
    template = RepeatedPhrases(**settings)
    assert tied(template, doc) == expected
    n = len(doc)
    both = tied(template, doc, Doc(vocab), doc)
    assert both == [*expected, *((u + n, v + n) for u, v in expected)]
    assert ("CRFW040" in caplog.text) == ("max_edges" in settings)


def test_longer_phrases_come_first(vocab):
    """Words of one that stand nowhere else are no phrase of their own."""
    doc = make_doc(vocab, ["Sir Ann Lee left", "Sir Ann Lee came", "so Ann Lee went"])
    assert tied(RepeatedPhrases(), doc) == [(0, 4), (1, 5), (5, 9)]
    assert tied(RepeatedPhrases(), doc[:8].as_doc()) == [(0, 4)]
    assert tied(RepeatedPhrases(), doc[:8].as_doc(), doc[8:].as_doc()) == [(0, 4)]
    # not across sentences
    assert tied(RepeatedPhrases(), make_doc(vocab, ["so Ann", "Lee so", "Ann Lee"])) == []


def test_phrases_by_all_pairs(vocab):
    rng = random.Random(1)
    for _ in range(30):
        words = rng.choices("ABC", k=rng.randint(0, 12))
        doc = Doc(vocab, words=words)
        template = RepeatedPhrases(shortest=2, longest=2, edges="all", max_edges=10**6)
        expected = [
            (u, v)
            for u in range(len(words) - 1)
            for v in range(u + 1, len(words) - 1)
            if words[u : u + 2] == words[v : v + 2]
        ]
        assert tied(template, doc) == expected


def test_phrases_of_the_doc(vocab):
    doc = with_spans(
        vocab, "the old man saw an old man , old man", found=[(1, 3, ""), (5, 7, ""), (8, 9, ""), (4, 7, "")]
    )
    assert tied(RepeatedPhrases("spans:found"), doc) == [(1, 5)]
    assert tied(RepeatedPhrases("spans:found", words="all", only="is_digit"), doc) == [(1, 5), (2, 6)]
    assert tied(RepeatedPhrases("spans:found", longest=1, shortest=1), doc) == []
    for phrases in ("spans:other", "noun_chunks"):
        with pytest.raises(ValueError, match="CRF371.*'found'" if phrases != "noun_chunks" else "CRF367"):
            tied(RepeatedPhrases(phrases), doc)
    heads = {
        "heads": [1, 2, 2, 4, 2],
        "deps": ["det", "nsubj", "ROOT", "det", "dobj"],
        "pos": ["DET", "NOUN", "VERB", "DET", "NOUN"],
    }
    parsed = Doc(vocab, words=["a", "dog", "saw", "a", "dog"], **heads)
    chunks = RepeatedPhrases("noun_chunks")
    assert tied(chunks, parsed) == [(0, 3)] and chunks.reads == ["head"]
    other = Doc(spacy.blank("xx").vocab, words=["a", "dog", "saw", "a", "dog"], **heads)
    with pytest.raises(ValueError, match="CRF367"):
        tied(chunks, other)


@pytest.mark.parametrize("settings", [{"phrases": "chunks"}, {"phrases": "spans:"}, {"phrases": 3}, {"shortest": 3, "longest": 2},
                                      {"words": "last"}, {"attr": "TAG"}, {"edges": "some"}])  # fmt: skip
def test_settings_of_phrases_are_checked(settings):
    with pytest.raises(ValueError, match="CRF020"):
        RepeatedPhrases(**settings)


# Similar words


@pytest.mark.parametrize("measure, score", [("jaro_winkler", JaroWinkler), ("levenshtein", Levenshtein)])
@pytest.mark.parametrize("edges", ["all", "next", "hub"])
def test_similar_words_by_all_pairs(measure, score, edges, vocab):
    rng, seen = random.Random(2), 0
    stems = ["Merkel", "Merkels", "Merkl", "Bonn", "Bonns", "Rom"]
    for _ in range(30):
        words = rng.choices(stems, k=rng.randint(0, 14))
        template = SimilarWords(0.85, measure, edges=edges, shortest=4, max_edges=10**6)
        expected = set()
        for a in {*words}:
            for b in {*words} - {a}:
                if min(len(a), len(b)) < 4 or score.normalized_similarity(a, b) < 0.85:
                    continue
                places = [i for i, word in enumerate(words) if word in (a, b)]
                pairs = [(u, v) for u in places for v in places if u < v and words[u] != words[v]]
                if edges == "next":
                    pairs = [(u, v) for u, v in pairs if not any(u < w < v for w in places)]
                if edges == "hub":
                    pairs = [tuple(sorted((words.index(a), words.index(b))))]
                expected.update(pairs)
        found = tied(template, Doc(vocab, words=words))
        assert sorted(found) == sorted(expected)
        seen += len(found)
    assert seen > 5


def test_similar_words_are_of_one_doc_and_not_too_many(vocab, caplog):
    docs = [Doc(vocab, words=["Merkel", "x", "Merkels"]), Doc(vocab, words=["Merkel", "Bonn"])]
    assert tied(SimilarWords(), *docs) == [(0, 2)]
    assert tied(SimilarWords(only="is_digit"), *docs) == []
    assert "CRFW" not in caplog.text
    few = SimilarWords(max_words=1)
    assert tied(few, *docs, *docs) == []
    assert caplog.text.count("CRFW369") == 1
    often = Doc(vocab, words=["Merkel", "Merkels"] * 3)
    assert tied(SimilarWords(max_edges=4), often) == []
    assert caplog.text.count("CRFW040") == 1
    assert len(tied(SimilarWords(max_edges=5), often)) == 5


@pytest.mark.parametrize("settings", [{"similarity": 0.0}, {"similarity": 1.1}, {"measure": "soundex"}, {"max_words": 0},
                                      {"max_words": 10**6}, {"shortest": -1}, {"only": "is_name"}])  # fmt: skip
def test_settings_of_similar_words_are_checked(settings):
    with pytest.raises(ValueError, match="CRF020"):
        SimilarWords(**settings)


# Acronyms


@pytest.mark.parametrize(
    "text, expected",
    [
        ("the Federal Court of Justice ( FCJ ) said / The FCJ", [(1, 6), (1, 10)]),
        ("das Bundesverfassungsgericht ( BVerfG ) / so BVerfG", [(1, 3), (1, 6)]),
        ("World Health Organization said / and WHO", [(0, 5)]),
        ("Court of the European Union met / CEU", [(0, 6)]),
        ("Court of the very old European Union met / CEU", []),  # too much between
        ("World Health / Organization said / and WHO", []),  # in two sentences
        ("World Health , Organization said / and WHO", []),
        ("an eel ( BVG ) / BVG", []),
        ("Die Bahn ( DB ] / DB", [(0, 3), (0, 5)]),  # brackets that don't match, but initials
        ("NATO / NATO", []),
        ("Ann Berg / A / ABCDEFGHIJKL", []),
        ("the Xy Yx ( XY ) / the Xylo Yak / XY", [(1, 4), (7, 9)]),
    ],
)
def test_acronyms_and_what_they_stand_for(text, expected, vocab):
    doc = make_doc(vocab, text.split(" / "))
    assert tied(Acronyms(), doc) == expected
    n = len(doc)
    assert tied(Acronyms(), doc, doc) == [*expected, *((u + n, v + n) for u, v in expected)]


def test_which_acronyms_are_tied(vocab, caplog):
    doc = make_doc(vocab, ["the XY", "the Xy Yx ( XY )", "the Xylo Yak", "XY"])
    assert tied(Acronyms(), doc) == [(3, 1), (3, 6), (9, 11)]
    assert tied(Acronyms(edges="hub"), doc) == [(3, 1), (3, 6), (3, 11)]
    assert tied(Acronyms(edges="all"), doc) == [(3, 1), (3, 6), (3, 11), (9, 1), (9, 6), (9, 11)]
    assert tied(Acronyms(shortest=3), doc) == [] == tied(Acronyms(max_edges=2), doc)
    assert caplog.text.count("CRFW040") == 1
    with pytest.raises(ValueError, match="CRF020"):
        Acronyms(shortest=4, longest=3)


def test_groups_have_all_tokens_that_pairs_connect(vocab):
    """Groups of two are ties; the words of phrases one by one."""
    doc = make_doc(vocab, ["New York and Rome", "in New York or Rome", "New York ."])
    cliques = {
        "words": {"@misc": "spacy_crf_lab.RepeatedWords.v1"},
        "phrases": {"@misc": "spacy_crf_lab.RepeatedPhrases.v1", "words": "all"},
    }
    for clique in cliques.values():
        clique.update(edges="group", associative=True)
    pipe = spacy.blank("en").add_pipe(
        "crf_ner",
        config={
            "model": graph(cliques, inference={"@misc": "spacy_crf_lab.GraphCut.v1"}, chain=False),
            "loss": {"@losses": "spacy_crf.MaxMargin.v1"},
            "scheme": "IO",
        },
    )
    doc.ents = [Span(doc, 0, 2, label="LOC")]
    pipe.initialize(lambda: examples(vocab, [doc]))
    ties = pipe.model.get_ref("cliques").predict([doc, Doc(vocab), doc])
    assert list(zip(ties.source, ties.target)) == [(3, 8), (15, 20)]
    groups = [ties.members[a:b].tolist() for a, b in zip(ties.group_starts, ties.group_starts[1:])]
    of_doc = [[0, 5, 9], [1, 6, 10]]
    assert groups == [*of_doc, *([t + 12 for t in group] for group in of_doc)] * 2
    cut = ties.among(np.arange(12), 24)
    assert list(cut.members) == [0, 5, 9, 1, 6, 10] * 2 and len(cut.source) == 1
    assert not len(ties.among(np.arange(9), 24).members)


# Linked spans


def test_linked_spans(vocab):
    doc = with_spans(vocab, "Ann Lee said she saw her", links=[(0, 2, "a"), (3, 4, "a"), (4, 5, ""), (5, 6, "b")])
    assert tied(LinkedSpans(), doc) == [(0, 3)]
    assert tied(LinkedSpans(), doc, doc) == [(0, 3), (6, 9)]
    clusters = with_spans(
        vocab, "Ann Lee said she saw her", c_1=[(0, 2, ""), (3, 4, "")], c_2=[(0, 1, ""), (5, 6, ""), (3, 4, "")]
    )
    assert tied(LinkedSpans("c_*"), clusters) == [(0, 3), (3, 5)]
    assert tied(LinkedSpans("c_*", edges="hub"), clusters) == [(0, 3), (0, 5)]
    assert tied(LinkedSpans("d_*"), clusters) == []
    twice = with_spans(vocab, "Ann Lee said Ann Lee", links=[(0, 2, "a"), (3, 5, "a"), (3, 4, "a")])
    assert tied(LinkedSpans(words="all"), twice) == [(0, 3), (1, 4)]
    with pytest.raises(ValueError, match=r"CRF371.*'links'.*c_1"):
        tied(LinkedSpans(), clusters)
    with pytest.raises(ValueError, match="CRF020"):
        LinkedSpans("")


def test_linked_spans_have_words(vocab):
    doc = with_spans(vocab, "Ann Lee", links=[(0, 2, "a"), (1, 1, "a")])
    with pytest.raises(ValueError, match=r"CRF369.*1 to 1"):
        tied(LinkedSpans(), doc)


# Functions


def test_pairs_that_a_function_gives(vocab):
    doc, other = Doc(vocab, words=["a", "b", "c"]), Doc(vocab, words=["a", "b", "c"])
    pairs = Pairs(lambda doc: ([end, doc[2]] for end in (0, doc[1:2]) if len(doc)))
    assert tied(pairs, doc, Doc(vocab), doc) == [(0, 2), (1, 2), (3, 5), (4, 5)]
    wrong = [None, 3, [3], [(0, 0)], [(0, 3)], [(-1, 1)], [(0, True)], [(0, 1, 2)], [(0, other[1])], ["ab"], [(0, 1.0)]]
    for given in wrong:
        with pytest.raises(ValueError, match="CRF372"):
            tied(Pairs(lambda doc, given=given: given), doc)
    pairs = Pairs(nothing, reads=["head"], features=["pos[0]"])
    assert TieFeatureSet({"ties": pairs}).token_attributes == ["pos"] and pairs.reads == ["head"]
    for settings in ({"function": "x"}, {"function": nothing, "reads": "head"}, {"function": nothing, "reads": [1]}):
        with pytest.raises(ValueError, match="CRF020"):
            Pairs(**settings)


def test_functions_that_never_end(vocab, caplog):
    def forever(doc):
        while True:
            yield 0, 1

    doc = Doc(vocab, words=["a", "b"])
    assert tied(Pairs(forever, max_edges=100), doc, doc) == []
    assert caplog.text.count("CRFW370") == 1


def test_functions_go_along_to_other_processes(vocab):
    copied = pickle.loads(pickle.dumps(Pairs(lambda doc: [(0, 1)])))
    assert tied(copied, Doc(vocab, words=["a", "b"])) == [(0, 1)]


# Features that tied tokens share


def test_tied_tokens_share_features(vocab):
    source = SharedFeatures("X", {"a": RepeatedPhrases(), "b": Acronyms()}, ["lower[-1..1]", "shape[0]|is_title[0]"])
    doc = make_doc(vocab, ["the Ann Lee spoke", "so Ann Lee wept", "says Ann Lee"])
    rows = source(doc)
    assert [bool(row) for row in rows] == [word == "Ann" for word in map(str, doc)]
    both = {"lower[0]=ann", "lower[1]=lee", "shape[0]|is_title[0]=Xxx|1"}
    assert {*rows[1]} == {*rows[9]} == {"lower[-1]=so", *both}
    assert {*rows[5]} == {"lower[-1]=the", "lower[-1]=says", *both}
    assert all(len(row) == len({*row}) for row in rows)
    hashes, values, starts = source.read_items(DocBatch([doc, Doc(vocab), doc]), None)
    assert len(hashes) == len(values) == 2 * sum(map(len, rows)) == starts[-1] and len(starts) == 2 * len(doc) + 1
    for docs in ([], [Doc(vocab)], [Doc(vocab, words=["A"])]):
        assert len(source.read_items(docs, {}).hashes) == 0
    copied = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(copied.read_items([doc], None).hashes, hashes[: len(hashes) // 2])


def test_sharing_features_is_a_chain(vocab, tmp_path):
    """Without tables: the context of the first mention is a feature of the second one, and all questions are answered."""
    ties = {"ties": {"@misc": "spacy_crf_lab.RepeatedWords.v1", "features": []}}
    nlp = trained(graph(ties, share_features=True))
    pipe, data = nlp.get_pipe("crf_ner"), examples(nlp.vocab, name_docs(nlp.vocab, 20, seed=1))
    assert nlp.evaluate(data)["ents_f"] == 1.0
    assert not len(pipe.model.get_param("tables"))
    doc = data[0].predicted
    assert pipe.n_best(doc, 2)[0][0] > 0.5
    found = pipe.explain(doc, Span(doc, 5, 6, label=data[0].reference.ents[1].label_), kind="contrast")
    assert any(row.feature.startswith("fn:share_features[0]=lower[") for row in found.rows)
    nlp.to_disk(tmp_path)
    np.testing.assert_array_equal(spacy.load(tmp_path).get_pipe("crf_ner").marginals(doc)[0], pipe.marginals(doc)[0])
    other = spacy.blank("en")
    other.add_pipe("crf_ner", config={"model": graph(ties, share_features=["lower[-1]"])})
    with pytest.raises(ValueError, match="CRF510"):
        other.from_bytes(nlp.to_bytes())


@pytest.mark.parametrize("given", [[], ["pos[0]"], ["in:x[0]"], ["ngrams2[0]"], ["cluster4[0]"]])
def test_features_that_are_shared_are_checked(given):
    with pytest.raises(ValueError, match=r"CRF020.*share_features"):
        spacy.blank("en").add_pipe("crf_ner", config={"model": graph(share_features=given)})


def test_sharing_needs_cliques():
    with pytest.raises(ValueError, match=r"CRF020.*share_features"):
        spacy.blank("en").add_pipe("crf_ner", config={"model": graph({}, share_features=True)})


def test_the_strength_of_ties():
    """Tables are multiplied, as are derivatives; a model of another strength is another model."""
    models = {strength: trained(graph(strength=strength)).get_pipe("crf_ner") for strength in (1.0, 0.1)}
    sizes = {}
    for strength, pipe in models.items():
        node, tables = pipe.model.attrs["node"], pipe.model.get_param("tables")
        effective = node.potentials(pipe.model, {name: pipe.model.get_param(name) for name in node.traits.params})[
            "tables"
        ]
        np.testing.assert_allclose(effective, strength * tables, rtol=1e-6)
        sizes[strength] = abs(effective).max()
        shown = [row.weight for row in pipe.weights() if row.feature == "repeats: bias"]
        assert max(map(abs, shown)) == pytest.approx(abs(effective[0]).max(), rel=1e-5)
    assert sizes[0.1] < 0.6 * sizes[1.0]
    with pytest.raises(ValueError, match="CRF510"):
        models[0.1].from_bytes(models[1.0].to_bytes())
    with pytest.raises(ValueError, match=r"CRF020.*strength"):
        spacy.blank("en").add_pipe("crf_ner", config={"model": graph(strength=0.0)})


# In components

spacy.registry.misc.register("spacy_crf_tests.first_and_last.v1", func=lambda: first_and_last)

IN_CONFIGS = {
    "RepeatedPhrases": {},
    "SimilarWords": {"similarity": 0.8},
    "Acronyms": {},
    "LinkedSpans": {},
    "Pairs": {"function": {"@misc": "spacy_crf_tests.first_and_last.v1"}},
}


@pytest.mark.parametrize("name", IN_CONFIGS)
def test_templates_in_configs(name, vocab, tmp_path):
    """What a text says of the first name of a pair is known to the second one, in training, prediction and loaded models."""
    nlp, data = spacy.blank("en"), []
    pipe = nlp.add_pipe("crf_ner", config={"model": graph({"ties": {"@misc": registered(name), **IN_CONFIGS[name]}}),
                                           "loss": {"@losses": "spacy_crf_lab.SentenceLikelihood.v1"}})  # fmt: skip
    for n in range(20):
        label = "PER" if n % 2 else "LOC"
        doc = _mentions(nlp.vocab, name, "Mr" if n % 2 else "in", "Zorbel" if n % 4 < 2 else "Quintel")
        gold = doc.copy()
        gold.ents = [Span(gold, 1, 3, label=label), Span(gold, 7, len(gold), label=label)]
        data.append(Example(doc, gold))
    nlp.initialize(lambda: data)
    optimizer = LBFGS(l2=0.02)
    for _ in range(3):
        nlp.update(data, sgd=optimizer)
    assert len(pipe.model.get_ref("cliques").attrs["known"]) == 1
    nlp.to_disk(tmp_path)
    for one in (nlp, spacy.load(tmp_path)):
        for word, label in (("Mr", "PER"), ("in", "LOC")):
            found = one.get_pipe("crf_ner")(_mentions(nlp.vocab, name, word, "Marla"))
            assert [ent.label_ for ent in found.ents] == [label, label], name


def _mentions(vocab, template, word, name):
    """The last word is the second mention."""
    last = {"SimilarWords": [f"{name}s"], "Acronyms": [f"{name[0]}U"], "RepeatedPhrases": [name, "Under"]}
    words = [word, name, "Under", "said", ".", "so", "said", *last.get(template, [name])]
    doc = Doc(vocab, words=words, sent_starts=[n in (0, 5) for n in range(len(words))])
    doc.spans["links"] = [Span(doc, 1, 3, span_id="a"), Span(doc, 7, len(doc), span_id="a")]
    return doc
