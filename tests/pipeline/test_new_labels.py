"""Labels and features that come after `initialize`: every optimizer of every component goes on, and nothing is taught as O."""

import numpy as np
import pytest
import spacy
from numpy.testing import assert_array_equal
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.util import registry
from thinc.util import data_validation

from spacy_crf.pipeline.prepared import VIEWS
from tests.util import NER_TEXTS, TAG_TEXTS, entities, ner_examples, plain, tag_examples

# Optimizer: its loss and its settings
OPTIMIZERS = {
    "Adam.v1": ("LogLikelihood", {"learn_rate": 0.05}),
    "spacy_crf.LBFGS.v1": ("LogLikelihood", {"l2": 0.01}),
    "spacy_crf.SGD.v1": ("LogLikelihood", {"l2": 0.01}),
    "spacy_crf.AdaGrad.v1": ("LogLikelihood", {"l2": 0.01}),
    "spacy_crf.AveragedPerceptron.v1": ("Perceptron", {}),
    "spacy_crf.BatchPerceptron.v1": ("Perceptron", {}),
    "spacy_crf.PassiveAggressive.v1": ("Perceptron", {}),
    "spacy_crf.AROW.v1": ("Perceptron", {}),
}
SLOW = {"Adam.v1"}  # come to the same answers in several times as many steps
COMPONENTS = ["crf_ner", "crf_tagger", "semicrf_ner"]
# With a label, and words, that no other text has
NEW = {"crf_tagger": ["wow/UH the/DT dog/NN"]}
NEW_OF_ENTITIES = ["[Ann Lee](PER) likes [Blue Suede Shoes](SONG) ."]


def make(component="crf_ner", optimizer="spacy_crf.LBFGS.v1", steps=5, **config):
    loss, settings = OPTIMIZERS[optimizer]
    nlp = spacy.blank("en")
    nlp.add_pipe(component, config={"loss": {"@losses": f"spacy_crf.{loss}.v1"}, "optimizer": None, **config})
    examples = texts_of(nlp, component)
    sgd = registry.get("optimizers", optimizer)(**settings)
    nlp.initialize(lambda: examples, sgd=sgd)
    for _ in range(steps):
        nlp.update(examples, sgd=sgd)
    return nlp, examples, sgd


def texts_of(nlp, component, *, new=False):
    if component == "crf_tagger":
        return tag_examples(nlp, NEW[component] if new else TAG_TEXTS)
    return ner_examples(nlp, NEW_OF_ENTITIES if new else NER_TEXTS)


def found(nlp, component, examples):
    docs = [nlp(plain(example.reference)) for example in examples]
    return [[token.tag_ for token in doc] if component == "crf_tagger" else entities(doc) for doc in docs]


def wanted(component, examples):
    docs = [example.reference for example in examples]
    return [[token.tag_ for token in doc] if component == "crf_tagger" else entities(doc) for doc in docs]


def weights_of(nlp, component):
    model = nlp.get_pipe(component).model
    return {(node.name, name): node.get_param(name).copy() for node in model.walk() for name in node.param_names}


@pytest.mark.parametrize("emissions", ["SparseEmissions", "HashedEmissions"])
@pytest.mark.parametrize("component", COMPONENTS)
def test_labels_without_examples_are_a_beginning(component, emissions, caplog):
    """As spaCy's `ner`: nlp.initialize() after add_label, and update brings what there is to learn."""
    nlp = spacy.blank("en")
    rows = {"rows": 4096} if emissions == "HashedEmissions" else {}
    features = {"@misc": "spacy_crf.ner_features.v1"}
    block = {"@architectures": f"spacy_crf.{emissions}.v1", "features": features, **rows}
    pipe = nlp.add_pipe(component, config={"model": {"emissions": block}})
    examples = texts_of(nlp, component)
    for example in examples:
        for label in pipe.annotation.gold_labels(example.reference):
            pipe.add_label(label)
    sgd = nlp.initialize()
    assert "CRFW412" in caplog.text and not pipe.model.get_ref("emissions").get_param("states").any()
    assert pipe.model.get_dim("nO") == (
        len(pipe.labels) + (component == "semicrf_ner") if component != "crf_ner" else 13
    )
    found(nlp, component, examples)
    nlp.from_bytes(nlp.to_bytes())
    sgd.learn_rate = 0.05
    for _ in range(20):
        nlp.update(examples, sgd=sgd)
    assert found(nlp, component, examples) == wanted(component, examples)


@pytest.mark.parametrize("emissions", ["SparseEmissions", "HashedEmissions"])
@pytest.mark.parametrize("component", ["crf_ner", "semicrf_ner"])
def test_without_labels_and_examples_there_is_a_beginning(component, emissions, caplog):
    """As spaCy's `ner`, after `nlp.initialize()` alone."""
    nlp = spacy.blank("en")
    rows = {"rows": 4096} if emissions == "HashedEmissions" else {}
    config = {"@architectures": f"spacy_crf.{emissions}.v1", "features": {"@misc": "spacy_crf.ner_features.v1"}, **rows}
    nlp.add_pipe(component, config={"model": {"emissions": config}})
    sgd = nlp.initialize()
    assert "CRFW412" in caplog.text and "0 labels" in caplog.text
    examples = texts_of(nlp, component)
    nlp.from_bytes(nlp.to_bytes())
    assert not any(found(nlp, component, examples))
    sgd.learn_rate = 0.05
    for _ in range(20):
        nlp.update(examples, sgd=sgd)
    assert found(nlp, component, examples) == wanted(component, examples)


def test_a_tagger_has_labels():
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_tagger")
    with pytest.raises(ValueError, match="CRF403"):
        nlp.initialize()


def test_works_under_data_validation():
    with data_validation(True):
        for component in COMPONENTS:
            nlp, examples, _ = make(component)
            assert found(nlp, component, examples) == wanted(component, examples)


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS])
@pytest.mark.parametrize("component", COMPONENTS)
def test_labels_are_added_between_updates_and_by_them(component, optimizer):
    """Broadcasting errors with Adam, weights that became infinite with the others, and such a model was saved. A label that an
    update brought was taught as O, without a word."""
    nlp, examples, sgd = make(component, optimizer, steps=2)
    pipe = nlp.get_pipe(component)
    pipe.add_label("POEM")
    pipe.add_label("FILM")
    nlp.update(examples, sgd=sgd)
    both = examples + texts_of(nlp, component, new=True)
    for _ in range(40 if optimizer in SLOW else 10):
        losses = nlp.update(both, sgd=sgd)
    assert pipe.labels[-3:] in (("POEM", "FILM", "SONG"), ("POEM", "FILM", "UH"))
    assert np.isfinite(losses[component])
    assert found(nlp, component, both) == wanted(component, both)
    again = spacy.blank("en")
    again.add_pipe(component, config={"loss": nlp.config["components"][component]["loss"]}).from_bytes(pipe.to_bytes())
    assert found(again, component, both) == wanted(component, both)


def test_accumulated_gradients_survive_a_new_label():
    nlp, examples, _ = make(optimizer="Adam.v1")
    ner = nlp.get_pipe("crf_ner")
    nlp.update(examples, sgd=False)
    before = ner.model.get_grad("transitions").copy()
    ner.add_label("SONG")
    assert before.shape == (13, 13) and np.abs(before).sum() > 0
    assert_array_equal(ner.model.get_grad("transitions")[:13, :13], before)
    nlp.update(ner_examples(nlp, NEW_OF_ENTITIES), sgd=False)
    assert ner.model.get_grad("transitions").shape == (17, 17)


@pytest.mark.parametrize("optimizer", ["spacy_crf.AdaGrad.v1", "spacy_crf.AveragedPerceptron.v1", "spacy_crf.AROW.v1"])
@pytest.mark.parametrize("component", COMPONENTS)
def test_online_rules_remember_what_they_knew_of_each_weight(component, optimizer):
    nlp, examples, sgd = make(component, optimizer, steps=3)
    pipe = nlp.get_pipe(component)
    before = sgd._runs[component]
    remembered = {name: array[before.slot_of_weight] for name, array in before.arrays.items()}
    pipe.add_label("NEW")
    view = VIEWS["sequences"](pipe.model, pipe.loss, [pipe.training.data(examples)])
    after = sgd._run_of(view, component)
    places = view.places(before.frame)
    assert after is not before and after.count == before.count
    for name, values in remembered.items():
        assert np.abs(values).sum() > 0
        assert_array_equal(after.arrays[name][after.slot_of_weight][places], values)
    assert_array_equal(after.slots[after.slot_of_weight][places], before.slots[before.slot_of_weight])


@pytest.mark.parametrize("component", COMPONENTS)
def test_new_features_of_a_loaded_model_get_weights(component):
    nlp, _, _ = make(component)
    again = spacy.blank("en")
    pipe = again.add_pipe(component).from_bytes(nlp.get_pipe(component).to_bytes())
    before, counts = weights_of(again, component), pipe.sparse_features.states.counts
    new = texts_of(again, component, new=True)
    again.update(new, sgd=registry.get("optimizers", "spacy_crf.LBFGS.v1")(l2=1e6))
    names = pipe.sparse_features.states.index.names()
    assert "lower[0]=wow" in names or "lower[0]=suede" in names
    assert pipe.sparse_features.states.counts[: len(counts)].sum() > counts.sum()
    assert all(after.size >= before[key].size for key, after in weights_of(again, component).items())
    assert len(pipe.sparse_features.states.index) == len(names)


def test_weights_of_new_labels_are_those_of_pairs_that_were_met():
    nlp, examples, sgd = make()
    ner = nlp.get_pipe("crf_ner")
    n_weights = ner.sparse_features.states.n_weights
    ner.add_label("SONG")
    assert ner.sparse_features.states.n_weights == n_weights
    nlp.update(examples + ner_examples(nlp, NEW_OF_ENTITIES), sgd=sgd)
    states = ner.sparse_features.states
    of_new = states.pair_columns >= len(ner.tags()) - 4
    names = np.array(states.index.names())[states.rows_of_pairs()[of_new]]
    assert "lower[0]=suede" in names and "lower[0]=nobody" not in names


def test_labels_of_alternatives_are_labels():
    nlp, _, sgd = make(alternatives_spans_key="maybe")
    [example] = ner_examples(nlp, ["Nobody likes [Rome](GPE) ."])
    reference = example.reference
    reference.set_ents([], missing=[reference[2:3]], default="outside")
    reference.spans["maybe"] = [Span(reference, 2, 3, label) for label in ("O", "FILM")]
    nlp.update([example], sgd=sgd)
    assert nlp.get_pipe("crf_ner").labels == ("GPE", "ORG", "PER", "FILM")


def test_labels_that_were_left_out_stay_so():
    """`labels` in [initialize] says which of the data's labels count; later ones are added all the same."""
    nlp = spacy.blank("en")
    ner = nlp.add_pipe("crf_ner")
    examples = ner_examples(nlp)
    sgd = registry.get("optimizers", "spacy_crf.LBFGS.v1")(l2=0.01)
    ner.initialize(lambda: examples, nlp=nlp, labels=["PER"])
    nlp.update(examples, sgd=sgd)
    assert ner.labels == ("PER",)
    again = spacy.blank("en")
    loaded = again.add_pipe("crf_ner").from_bytes(ner.to_bytes())
    again.update(ner_examples(again, [*NER_TEXTS, *NEW_OF_ENTITIES]), sgd=sgd)
    assert loaded.labels == ("PER", "SONG")


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_not_saved(component, value, tmp_path):
    nlp, _, _ = make(component)
    nlp.to_disk(tmp_path)
    saved = (tmp_path / component / "model").read_bytes()
    pipe = nlp.get_pipe(component)
    for node in pipe.model.walk():
        for name in node.param_names:
            weights = node.get_param(name)
            if weights.size:
                broken = weights.copy()
                broken.flat[-1] = value
                node.set_param(name, broken)
                with pytest.raises(ValueError, match=rf"CRF413.*'{name}'"):
                    nlp.to_bytes()
                with pytest.raises(ValueError, match="CRF413"):
                    nlp.to_disk(tmp_path)
                node.set_param(name, weights)
    assert (tmp_path / component / "model").read_bytes() == saved
    nlp.to_disk(tmp_path)


def test_a_tagger_refuses_what_is_no_part_of_speech_before_anything_changes():
    nlp = spacy.blank("en")
    tagger = nlp.add_pipe("crf_tagger", config={"attribute": "pos"})
    examples = tag_examples(nlp, ["dogs/NOUN bark/VERB"], attribute="pos_")
    sgd = registry.get("optimizers", "spacy_crf.LBFGS.v1")()
    nlp.initialize(lambda: examples, sgd=sgd)
    nlp.update(tag_examples(nlp, ["oh/INTJ dogs/NOUN"], attribute="pos_"), sgd=sgd)
    assert tagger.labels == ("NOUN", "VERB", "INTJ")


def test_examples_of_other_tokens_bring_their_labels():
    nlp, _, sgd = make()
    [example] = ner_examples(nlp, NEW_OF_ENTITIES)
    apart = Example(nlp.make_doc("Ann Lee likes Blue Suede Shoes."), example.reference)
    nlp.update([apart], sgd=sgd)
    assert "SONG" in nlp.get_pipe("crf_ner").labels


def test_of_several_new_labels_all_are_added_or_none():
    """The first ones stayed, with weights, where a later one was refused."""
    nlp = spacy.blank("en")
    textcat = nlp.add_pipe("crf_textcat")
    sgd = registry.get("optimizers", "spacy_crf.LBFGS.v1")(l2=0.01)

    def texts_with(*labels):
        return [Example.from_dict(nlp.make_doc(f"text {n}"), {"cats": {x: 1.0}}) for n, x in enumerate(labels)]

    nlp.initialize(lambda: texts_with("A", "B"), sgd=sgd)
    nlp.update(texts_with("A", "B"), sgd=sgd)
    before = textcat.to_bytes()
    with pytest.raises(ValueError, match="CRF020"):
        nlp.update(texts_with("A", "C", "\udc80"), sgd=sgd)
    assert textcat.labels == ("A", "B") and textcat.to_bytes() == before
    nlp.update(texts_with("A", "B", "C"), sgd=sgd)
    assert textcat.labels == ("A", "B", "C") and set(nlp("text 0").cats) == {"A", "B", "C"}


@pytest.mark.parametrize(
    "component, config",
    [
        *((component, {}) for component in (*COMPONENTS, "crf_spancat", "crf_textcat")),
        ("crf_tagger", {"attribute": ["tag", "morph"]}),
    ],
)
def test_a_label_learned_in_a_memory_zone_is_known_after_it(component, config):
    """Docs had hashes of labels that the vocabulary had forgotten: their annotation could not be read (E084)."""
    nlp = spacy.blank("en")
    nlp.add_pipe(component, config=config)

    def annotated(*, new):
        examples = texts_of(nlp, component, new=new)
        for example in examples:
            example.reference.spans["sc"] = [*example.reference.ents]
            for token in example.reference:
                token.set_morph("Case=Odd" if new else "Case=Nom")
            example.reference.cats = {"OLD": 1.0, "OTHER": 0.0, **({"NEW": 0.0} if new else {})}
        return examples

    def labels_of(doc):
        spans = [span.label_ for span in doc.spans.get("sc", ())]
        return [*spans, *(ent.label_ for ent in doc.ents), *(token.tag_ + str(token.morph) for token in doc), *doc.cats]

    examples = annotated(new=False)
    sgd = registry.get("optimizers", "spacy_crf.LBFGS.v1")(l2=0.01)
    nlp.initialize(lambda: examples, sgd=sgd)
    with nlp.memory_zone():
        new = annotated(new=True)
        words = [token.text for token in new[0].reference]
        for _ in range(10):
            nlp.update([*examples, *new], sgd=sgd)
        expected = labels_of(nlp(plain(new[0].reference)))
    assert {"UH", "SONG", "NEW", "UHCase=Odd"} & {*expected}
    assert labels_of(nlp(Doc(nlp.vocab, words=words))) == expected
    assert labels_of(next(nlp.pipe([Doc(nlp.vocab, words=words)]))) == expected
