"""Two stages: what a first labelling shows of a Doc, and a second component that learns from it."""

import copy
import pickle
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.strings import hash_string
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import Adam

from spacy_crf.features.doc_batch import STAGE_ATTRIBUTES, DocBatch, Labelling, read_stage
from spacy_crf.features.extractor import FeatureSet
from spacy_crf.kernels import document as stage_kernels
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.optimizers.objective import Minibatch
from spacy_crf.optimizers.sgd import SGD
from spacy_crf.pipeline import initialization
from spacy_crf.pipeline.two_stage import FirstStage, first_stage
from spacy_crf.schemes import Segments
from tests.util import draws, entities, ner_examples, plain, signatures, tag_examples

LABELS = ["A", "B"]
# Each is a Doc: what its words are is said where they stand first
TEXTS = [
    "[Ann Lee](PER) left [Rome](GPE) . Lee is ill . Rome is hot .",
    "[Bob](PER) met [Acme Corp](ORG) . Acme lost . Bob won .",
    "[Carla Diaz](PER) runs [Blue Sky](ORG) from [Paris](GPE) . Sky fell .",
    "In [Paris](GPE) it rains . [Bob](PER) left Paris .",
    "[Acme Corp](ORG) hired [Ann Lee](PER) in [Rome](GPE) .",
    "[Dan](PER) and [Ann Lee](PER) sold [Acme Corp](ORG) to Dan .",
]


@pytest.fixture(scope="module", params=["crf_ner", "semicrf_ner", "crf_tagger"])
def trained(request):
    """A pipeline with two stages, and what it was trained with. Do not change."""
    return _train(request.param)


def _examples(nlp, factory):
    return tag_examples(nlp) if factory == "crf_tagger" else ner_examples(nlp, TEXTS)


def _train(factory, *, steps=1, **second_stage):
    nlp = spacy.blank("en")
    nlp.add_pipe(factory, config={"second_stage": {"folds": 3, **second_stage}})
    examples = _examples(nlp, factory)
    optimizer = LBFGS(l2=0.1, iterations_per_step=30)
    nlp.initialize(lambda: examples, sgd=optimizer)
    for _ in range(steps):
        nlp.update(examples, sgd=optimizer)
    return nlp, examples


def _found(nlp, docs):
    return [(entities(doc), [token.tag_ for token in doc]) for doc in nlp.pipe(plain(doc) for doc in docs)]


def _docs(examples):
    return [example.reference for example in examples]


# ------------------------------------------------------------------------------------------- against plain Python


def most(labels):
    """Of equals the first in the order of the labels; outside comes last."""
    counts = Counter(labels)
    return max([*LABELS, ""], key=lambda label: counts[label]) if counts else None


def expected(words, breaks, ents):
    """What the three attributes say of each token of a Doc, None for nothing.

    ents: (start, end, label)
    """
    label = {t: name for start, end, name in ents for t in range(start, end)}
    text = lambda start, end: tuple(words[start:end])  # noqa: E731
    around = lambda part: most(  # noqa: E731
        [
            name
            for start, end, name in ents
            if len(part) < end - start <= 8
            for at in range(start, end - len(part) + 1)
            if text(at, at + len(part)) == part
        ]
    )
    rows = []
    for t, word in enumerate(words):
        others = [label.get(u, "") for u, other in enumerate(words) if other == word and u != t]
        rows.append([most(others), None, around((word,)) if t not in label else None])
    for start, end, _ in ents:
        same = most([n for s, e, n in ents if text(s, e) == text(start, end) and s != start])
        for t in range(start, end):
            rows[t][1:] = [same, around(text(start, end))]
    t = 0
    while t < len(words):
        ends = [
            end
            for end in range(t + 1, min(len(words), t + 8) + 1)
            if not any(u in label for u in range(t, end)) and not any(u in breaks for u in range(t + 1, end))
        ]
        known = [end for end in ends if any(text(s, e) == text(t, end) for s, e, _ in ents)]
        end = max(known, default=t + 1)
        if known:
            found = most([n for s, e, n in ents if text(s, e) == text(t, end)])
            for u in range(t, end):
                rows[u][1] = found
        t = end
    return rows


@st.composite
def labelled(draw):
    """Some documents: words, where sentences begin, entities."""
    docs = []
    for _ in range(draw(st.integers(0, 3))):
        words = draw(st.lists(st.sampled_from("abc"), max_size=14))
        breaks = {0} | draw(st.sets(st.integers(1, 13), max_size=3))
        ents, t = [], 0
        while t < len(words):
            most_words = next((u for u in range(t + 1, len(words)) if u in breaks), len(words)) - t
            length = draw(st.integers(0, min(most_words, 10)))
            if length:
                ents.append((t, t + length, draw(st.sampled_from(LABELS))))
            t += length or 1
        docs.append((words, {b for b in breaks if b < len(words)}, ents))
    return docs


@given(labelled())
@draws(150)
def test_majorities_against_python(docs):
    lower = np.array([hash_string(word) for words, _, _ in docs for word in words], dtype=np.uint64)
    doc_starts = np.append(0, np.cumsum([len(words) for words, _, _ in docs])).astype(np.int64)
    shifted = list(zip(docs, doc_starts.tolist()))
    starts = sorted({shift + b for (_, breaks, _), shift in shifted for b in breaks} | {len(lower)})
    spans = [(s + shift, e + shift, LABELS.index(n)) for (_, _, ents), shift in shifted for s, e, n in ents]
    segments = Segments(*np.array(spans, dtype=np.int64).reshape(-1, 3).T)
    labelling = Labelling(segments, np.array([hash_string(label) for label in LABELS], dtype=np.uint64))
    names = {hash_string(label): label for label in LABELS} | {0: "", 1 << 63: None}
    found = read_stage(STAGE_ATTRIBUTES, labelling, lower, doc_starts, np.array(starts))
    rows = [row for words, breaks, ents in docs for row in expected(words, breaks, ents)]
    assert [[names[value] for value in row] for row in found.tolist()] == rows
    alone = read_stage(STAGE_ATTRIBUTES[:1], labelling, lower, doc_starts, np.array(starts))
    assert alone[:, 0].tolist() == found[:, 0].tolist()


def test_majorities_are_compiled_once():
    """Labels came as int32 or int64, by the size of the batch: 13 seconds each."""
    lower, ends = np.ones(3, dtype=np.uint64), np.array([0, 3])
    for dtype in (np.int32, np.int64):
        spans = Segments(*np.array([[0, 1, 0], [1, 2, 1]], dtype=dtype).T)
        assert read_stage(STAGE_ATTRIBUTES, Labelling(spans, lower[:2]), lower, ends, ends).shape == (3, 3)
    assert signatures(stage_kernels).get("majorities", 0) <= 1


def test_long_entities_are_not_taken_apart():
    words = [*"abcdefghi", "b", "c"]
    rows = expected(words, {0}, [(0, 9, "A")])
    assert rows[9] == ["A", None, None]
    assert expected(words, {0}, [(0, 8, "A")])[9] == ["A", None, "A"]


# ----------------------------------------------------------------------------------------------------- held out


@pytest.mark.parametrize("factory", ["crf_ner", "semicrf_ner", "crf_tagger"])
def test_what_training_reads_comes_from_a_model_that_has_not_seen_the_text(factory):
    """The annotation of a text says nothing about what the second stage is told of it; that of the others does."""
    folds, told = 3, []
    for changed in (None, 0, 1):
        nlp = spacy.blank("en")
        pipe = nlp.add_pipe(factory, config={"second_stage": {"folds": folds}})
        examples = _examples(nlp, factory)
        if changed is not None:
            examples[changed] = Example(examples[changed].predicted, _otherwise(examples[changed].reference))
        nlp.initialize(lambda examples=examples: examples)
        stage = pipe.first_stage
        assert len(stage._held_out) == len(examples)
        told.append([stage.to_learn([example.predicted]).labelling.spans for example in examples])
    plain_ones, *others = told
    for changed, found in enumerate(others):
        same = [all(map(np.array_equal, a, b)) for a, b in zip(plain_ones, found)]
        assert all(same[changed::folds])  # its own, and of those that are held out together with it
        assert not all(same)


def _otherwise(doc):
    """Something else is annotated, with labels that are there anyway."""
    other = Doc(doc.vocab, words=[token.text for token in doc])
    if doc.has_annotation("TAG"):
        for token, tag in zip(other, reversed([token.tag_ for token in doc])):
            token.tag_ = tag
    else:
        labels = sorted({ent.label_ for ent in doc.ents})
        other.set_ents([spacy.tokens.Span(other, t, t + 1, labels[t % len(labels)]) for t in range(len(other))])
    return other


def test_equal_texts_are_held_out_together():
    nlp = spacy.blank("en")
    stage = nlp.add_pipe("crf_ner", config={"second_stage": {"folds": 2}}).first_stage
    twice = ner_examples(nlp, [text for text in TEXTS[:3] for _ in range(2)])
    seen = []
    train = stage._train

    def record(read, part):
        seen.append([example.predicted.text for example in read()])
        train(read, part)

    stage._train = record
    nlp.initialize(lambda: twice)
    texts = [example.predicted.text for example in twice]
    assert seen == [texts[2:4], [*texts[:2], *texts[4:]], texts]


def test_texts_that_were_not_there_are_labelled_by_the_whole_first_stage(trained):
    nlp, examples = trained
    stage = nlp.pipeline[0][1].first_stage
    other = Doc(nlp.vocab, words=["Rome", "and", "the", "dog"])
    batch = [examples[1].predicted, other, Doc(nlp.vocab), examples[0].predicted]
    spans = stage.to_learn(batch).labelling.spans
    parts = [*map(stage.to_learn, ([doc] for doc in batch))]
    bounds = DocBatch(batch).bounds.tolist()
    for n, column in enumerate(spans):
        moved = [part.labelling.spans[n] + (shift if n < 2 else 0) for part, shift in zip(parts, bounds)]
        assert column.tolist() == np.concatenate(moved).tolist()
    assert all(map(np.array_equal, parts[1].labelling.spans, stage(DocBatch([other])).spans))


# ------------------------------------------------------------------------------------------- learning, prediction


def test_the_rest_of_a_text_says_what_a_word_is():
    """A name is told where it stands beside "mr" or "in", and once it does not."""
    rng = random.Random(0)
    names = [f"{a}{b}" for a in "BCDFGHKLMNPRST" for b in ("ano", "eri", "ilo")]
    rng.shuffle(names)

    def text(name):
        kind = rng.choice(["PER", "GPE"])
        cued = f"{'mr' if kind == 'PER' else 'in'} [{name}]({kind}) . "
        return cued * 3 + f"then [{name}]({kind})"

    texts = [text(name) for name in names]
    scores = {}
    for stages in (1, 2):
        nlp = spacy.blank("en")
        nlp.add_pipe("crf_ner", config={"second_stage": {"folds": 2} if stages == 2 else None})
        examples, held_out = ner_examples(nlp, texts[:26]), ner_examples(nlp, texts[26:])
        optimizer = LBFGS(l2=0.1, iterations_per_step=40)
        nlp.initialize(lambda examples=examples: examples, sgd=optimizer)
        nlp.update(examples, sgd=optimizer)
        scores[stages] = nlp.evaluate(held_out)["ents_f"]
    assert scores[1] < 0.95 and scores[2] == 1.0


def test_training_is_deterministic(trained):
    nlp, examples = trained
    again, _ = _train(nlp.pipe_names[0])
    assert again.pipeline[0][1].to_bytes() == nlp.pipeline[0][1].to_bytes()
    assert _found(again, _docs(examples)) == _found(nlp, _docs(examples))


def test_batches_processes_and_threads_say_the_same(trained):
    nlp, _ = trained
    rng = random.Random(1)
    words = sorted({word for text in TEXTS for word in text.replace("[", " ").replace("](", " ").split()})
    docs = [Doc(nlp.vocab, words=rng.choices(words, k=rng.randrange(25))) for _ in range(30)]
    one_by_one = [_found(nlp, [doc])[0] for doc in docs]
    assert _found(nlp, docs) == one_by_one
    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(lambda doc: _found(nlp, [doc])[0], docs)] == one_by_one
    piped = nlp.pipe([plain(doc) for doc in docs], n_process=2, batch_size=7)
    assert [(entities(doc), [token.tag_ for token in doc]) for doc in piped] == one_by_one


def test_it_is_saved_as_one_component(trained, tmp_path):
    nlp, examples = trained
    docs = _docs(examples)
    nlp.to_disk(tmp_path)
    assert [path.name for path in (tmp_path / nlp.pipe_names[0]).iterdir()] == ["model"]
    for other in (spacy.load(tmp_path), copy.deepcopy(nlp), pickle.loads(pickle.dumps(nlp))):
        assert _found(other, docs) == _found(nlp, docs)
        assert other.pipeline[0][1].to_bytes() == nlp.pipeline[0][1].to_bytes()


def test_copies_have_a_first_stage_of_their_own(trained):
    nlp, examples = trained
    [(_, pipe)] = nlp.pipeline
    before = pipe.to_bytes()
    for other in (copy.deepcopy(nlp), pickle.loads(pickle.dumps(nlp))):
        [(_, copied)] = other.pipeline
        assert copied.first_stage is not pipe.first_stage
        assert all(features.first_stage is copied.first_stage for features in copied.feature_stores)
        other.initialize(lambda: examples[:3])
    assert pipe.to_bytes() == before


def test_pruned_models_are_saved_without_a_copy_of_the_first_stage(monkeypatch):
    """It would be one of its vocab too."""
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe("crf_ner", config={"second_stage": {"folds": 2, "l1": 0.1}})
    examples = ner_examples(nlp, TEXTS)
    optimizer = LBFGS(l1=0.1, l2=0.1, iterations_per_step=10)
    nlp.initialize(lambda: examples, sgd=optimizer)
    nlp.update(examples, sgd=optimizer)
    monkeypatch.setattr(FirstStage, "__deepcopy__", lambda *_: pytest.fail("copied"), raising=False)
    n_weights = pipe.sparse_features.states.n_weights
    again = spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes())
    loaded = again.get_pipe("crf_ner")
    assert loaded.sparse_features.states.n_weights < n_weights
    of_first = [stage.component.sparse_features.states.n_weights for stage in (pipe.first_stage, loaded.first_stage)]
    assert of_first[1] < of_first[0]
    assert _found(again, _docs(examples)) == _found(nlp, _docs(examples))


def test_what_is_saved_belongs_to_the_config(trained):
    nlp, _ = trained
    [(name, pipe)] = nlp.pipeline
    other = spacy.blank("en").add_pipe(name)
    with pytest.raises(ValueError, match=r"CRF505.*CRF301.*stage:token_majority"):
        other.from_bytes(pipe.to_bytes())
    with_stage = spacy.blank("en").add_pipe(name, config={"second_stage": {}})
    before = with_stage.to_bytes()
    data = bytearray(pipe.to_bytes())
    data[len(data) // 2] ^= 1
    with pytest.raises(ValueError, match="CRF50"):
        with_stage.from_bytes(bytes(data))
    assert with_stage.to_bytes() == before


def test_an_error_leaves_both_stages_as_they_were(monkeypatch):
    nlp, examples = _train("crf_ner")
    pipe = nlp.get_pipe("crf_ner")
    before = pipe.to_bytes()
    held_out = {**pipe.first_stage._held_out}
    train, calls = pipe.first_stage._train, []

    def interrupted(read, part):
        train(read, part)
        calls.append(part)
        if len(calls) == 2:
            raise KeyboardInterrupt

    def fail(*args):
        raise KeyboardInterrupt

    for owner, name, error in ((pipe.first_stage, "_train", interrupted), (initialization, "count", fail)):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, error)
            with pytest.raises(KeyboardInterrupt):
                nlp.initialize(lambda: examples[:4])
        assert pipe.to_bytes() == before
        assert pipe.first_stage._held_out.keys() == held_out.keys()


def test_updates_teach_the_second_stage(trained, tmp_path):
    nlp, examples = trained
    nlp = pickle.loads(pickle.dumps(nlp))
    [(name, pipe)] = nlp.pipeline
    first, whole = pipe.first_stage.component.to_bytes(), pipe.to_bytes()
    more = (
        tag_examples(nlp, ["birds/NN sing/VB"]) if name == "crf_tagger" else ner_examples(nlp, ["[Eve](PER) sings ."])
    )
    nlp.update(more, sgd=nlp.resume_training())
    assert pipe.first_stage.component.to_bytes() == first
    assert pipe.to_bytes() != whole
    nlp.to_disk(tmp_path)
    again = spacy.blank("en")
    again.add_pipe(name, config={"second_stage": {"folds": 3}})
    again.config["initialize"]["components"][name] = {"start_from": str(tmp_path)}
    again.initialize(lambda: more)
    assert again.pipeline[0][1].first_stage.component.to_bytes() == first
    assert _found(again, _docs(examples)) == _found(nlp, _docs(examples))


def test_new_labels_need_no_first_stage(trained):
    nlp, examples = trained
    nlp = pickle.loads(pickle.dumps(nlp))
    [(_, pipe)] = nlp.pipeline
    pipe.add_label("NEW")
    assert "NEW" not in pipe.first_stage.component.labels
    assert len(_found(nlp, _docs(examples))) == len(examples)


@pytest.mark.parametrize("optimizer", ["Minibatch", "SGD", "Adam"])
def test_any_optimizer_trains_the_second_stage(optimizer):
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"second_stage": {"folds": 2, "iterations": 20}, "optimizer": None})
    examples = ner_examples(nlp, TEXTS)
    sgd = {"Minibatch": Minibatch, "SGD": SGD, "Adam": lambda: Adam(0.05)}[optimizer]()
    nlp.initialize(lambda: examples, sgd=sgd)
    for _ in range(20):
        nlp.update(examples, sgd=sgd)
    assert [ents for ents, _ in _found(nlp, _docs(examples))] == [entities(doc) for doc in _docs(examples)]


def test_rules_and_probabilities_are_of_the_second_stage():
    rules = {"@misc": "spacy_crf.constraints.v1", "rules": [{"rule": "at_most", "label": "PER", "n": 1}]}
    nlp = spacy.blank("en")
    config = {"second_stage": {"folds": 2}, "constraints": rules, "confidence": True, "decode": "posterior"}
    pipe = nlp.add_pipe("crf_ner", config=config)
    examples = ner_examples(nlp, TEXTS)
    optimizer = LBFGS(l2=0.1, iterations_per_step=30)
    nlp.initialize(lambda: examples, sgd=optimizer)
    nlp.update(examples, sgd=optimizer)
    first = pipe.first_stage.component
    assert first.constraints is None and not first.cfg["confidence"]
    for example in examples:
        doc = nlp(plain(example.reference))
        assert sum(ent.label_ == "PER" for ent in doc.ents) <= 1
        probabilities = {(span.start, span.end, span.label_): p for span, p in pipe.span_probabilities(doc, 0.0)}
        for ent in doc.ents:
            assert ent._.crf_prob == pytest.approx(probabilities[ent.start, ent.end, ent.label_])
    marked = Doc(nlp.vocab, words=["Rome", "met", "Bob"], ents=["B-ORG", "O", "O"])
    assert entities(nlp(marked))[0] == (0, 1, "ORG")
    assert not nlp(Doc(nlp.vocab)).ents


# ----------------------------------------------------------------------------------------------------- templates


def test_templates_name_what_they_read():
    nlp = spacy.blank("en")
    features = {"@misc": "spacy_crf.ner_features.v1", "extra": ["stage:entity_majority[0]|shape[0]"]}
    config = {"model": {"emissions": {"features": features}}, "second_stage": {"features": []}}
    pipe = nlp.add_pipe("crf_ner", config=config)
    examples = ner_examples(nlp, TEXTS)
    nlp.initialize(lambda: examples)
    read = [str(t) for t in pipe.sparse_features.feature_set.templates if "stage:" in str(t)]
    assert read == ["stage:entity_majority[0]|shape[0]"]
    assert not pipe.first_stage.component.sparse_features.feature_set.reads_stage
    known = pipe.sparse_features.states.index
    assert any("stage:entity_majority[0]|shape[0]=" in name for name in known.names())


def test_segment_templates_read_it_too():
    nlp = spacy.blank("en")
    segments = {"@misc": "spacy_crf.segment_features.v1", "extra": ["seg.first:stage:entity_majority"]}
    config = {"model": {"segments": {"features": segments}}, "second_stage": {"features": [], "folds": 2}}
    pipe = nlp.add_pipe("semicrf_ner", config=config)
    nlp.initialize(lambda: ner_examples(nlp, TEXTS))
    assert [features.feature_set.reads_stage for features in pipe.feature_stores].count(True) == 1
    assert not any(features.feature_set.reads_stage for features in pipe.first_stage.component.feature_stores)
    nlp(Doc(nlp.vocab, words=["Rome", "or", "Rome"]))


# -------------------------------------------------------------------------------------------------------- errors


def _add(factory="crf_ner", **config):
    return spacy.blank("en").add_pipe(factory, config=config)


@pytest.mark.parametrize(
    "config, message",
    [
        ({"second_stage": {"folds": 1}}, "CRF020: Component 'crf_ner': second_stage.folds = 1 .*from 2"),
        ({"second_stage": {"per": "batch"}}, "CRF020: .*second_stage.per = 'batch' .*'doc'"),
        (
            {"second_stage": {"features": ["majority"]}},
            "CRF020: .*second_stage.features = 'majority' .*entity_majority",
        ),
        ({"second_stage": {"fold": 5}}, "CRF020: .*second_stage: setting = 'fold'"),
        ({"second_stage": {"l2": -1}}, "CRF020: .*second_stage.l2 = -1"),
        ({"second_stage": {"features": []}}, "CRF811: Component 'crf_ner'"),
        ({"second_stage": {}, "loss": {"@losses": "spacy_crf.Perceptron.v1"}}, "CRF210: .*'crf_ner.first_stage'"),
        (
            {"model": {"emissions": {"features": {"extra": ["stage:token_majority[0]"]}}}},
            "CRF810: The features of component 'crf_ner' read stage:NAME, but there is no first stage",
        ),
    ],
)
def test_settings_that_cannot_be(config, message):
    with pytest.raises(ValueError, match=message):
        _add(**config)


def test_a_tagger_has_no_entities():
    with pytest.raises(ValueError, match=r"CRF020: .*'entity_majority' .*one of 'token_majority'"):
        _add("crf_tagger", second_stage={"features": ["token_majority", "entity_majority"]})


def test_encoders_have_one_stage():
    encoder = {"@architectures": "spacy.HashEmbedCNN.v2", "width": 8, "depth": 1, "embed_size": 10, "window_size": 1}
    encoder |= {"maxout_pieces": 2, "subword_features": False, "pretrained_vectors": None}
    model = {"emissions": None, "tok2vec": encoder}
    with pytest.raises(ValueError, match="CRF811: Component 'crf_ner'"):
        _add(second_stage={}, model=model)


def test_a_model_that_is_none_is_named():
    """A list ended with an AttributeError."""
    component = spacy.blank("en").add_pipe("crf_ner")
    with pytest.raises(ValueError, match=r"CRF020: Component 'it': model = .*an architecture"):
        first_stage(type(component), component.vocab, {"name": "it", "model": [component.model]}, {})


def test_unknown_attributes_of_a_stage_are_named():
    with pytest.raises(ValueError, match=r"CRF106: .* the attribute 'stage:label'.*stage:token_majority"):
        FeatureSet(["stage:label[0]"])


def test_features_alone_know_no_first_stage():
    reader = FeatureSet(["stage:token_majority[0]"]).reader({})
    with pytest.raises(ValueError, match="CRF810: The features read"):
        reader.read([Doc(spacy.blank("en").vocab, words=["a"])])


@pytest.mark.parametrize(
    "texts, code",
    [
        (TEXTS[:1], "CRF811: .*there is one different"),
        (TEXTS[:1] * 5, "CRF811"),
        (["no names .", "none"], "CRF81[23]|CRF4"),
    ],
)
def test_too_little_to_learn_from(texts, code):
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"second_stage": {}})
    with pytest.raises(ValueError, match=code):
        nlp.initialize(lambda: ner_examples(nlp, texts))


def test_nothing_annotated():
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"second_stage": {}})
    nlp.config["initialize"]["components"]["crf_ner"] = {"labels": ["PER"]}
    blank = [Example(doc, doc) for doc in map(nlp.make_doc, ["Ann left .", "Bob came ."])]
    with pytest.raises(ValueError, match="CRF811: Component 'crf_ner'"):
        nlp.initialize(lambda: blank)


def test_annotators_that_learn_in_the_same_run():
    nlp = spacy.blank("en")
    nlp.add_pipe("tagger")
    nlp.add_pipe("crf_ner", config={"second_stage": {}})
    nlp.config["training"]["annotating_components"] = ["tagger"]
    examples = ner_examples(nlp, TEXTS)
    for example in examples:
        for token in example.reference:
            token.tag_ = "X"
    with pytest.raises(ValueError, match=r"CRF815: Component 'crf_ner' .*'tagger'"):
        nlp.initialize(lambda: examples)
