"""Pipelines in other processes and in threads, and copies of them: they say what the original says."""

import copy
import json
import multiprocessing
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import spacy
from spacy.tokens import Span, Token
from spacy.util import registry

from tests.util import NER_TEXTS, ner_examples, plain, tag_examples

PERSONS = [text.replace("(GPE)", "").replace("(ORG)", "") for text in NER_TEXTS]
PLACES = [text.replace("(PER)", "") for text in NER_TEXTS]
TEXTS = ["Ann Lee saw Bob and Carla Diaz in Rome .", "Bob left Acme Corp", "the old dog barks loudly", "", "In Paris ."]
TEXTS = [*TEXTS, "Carla Diaz hired Bob for Blue Sky Ltd", "New York", "a cat runs"]
AFTER = [method for method in ("fork", "spawn") if method in multiprocessing.get_all_start_methods()]
BEFORE = [method for method in AFTER if method != "spawn"]


@registry.misc("test_processes.letters.v1")
def make_letters():
    def letters(doc):  # made by a function, as registered ones usually are: pickle alone can't take it
        return [[str(len(token))] for token in doc]

    return letters


@registry.misc("test_processes.words.v1")
def make_words():
    return lambda span: {"words": float(len(span))}


@registry.misc("test_processes.no_short_names.v1")
def no_short_names(doc):
    allowed = np.ones((len(doc), 5), dtype=bool)
    allowed[[len(token) < 2 for token in doc], 1:] = False
    return allowed


def _rules(*rules):
    return {"@misc": "spacy_crf.constraints.v1", "rules": list(rules)}


def _features(preset, extra, **functions):
    functions = {name: {"@misc": f"test_processes.{name}.v1"} for name in functions}
    return {"features": {"@misc": f"spacy_crf.{preset}", "extra": extra, "functions": functions}}


NER_FEATURES = _features("ner_features.v1", ["in:names[0]", "fn:letters[0]"], letters=True)
NESTED_FEATURES = _features("ner_features.v1", ["outer[0]", "fn:letters[0]", "in:names[0]"], letters=True)
TAG_FEATURES = _features("tagger_features.v1", ["in:names[0]", "fn:letters[0]"], letters=True)
SEGMENT_FEATURES = _features("segment_features.v1", ["seg.near:names", "seg.fn:words"], words=True)
CONFIGS = {
    "crf_tagger": {
        "model": {"emissions": TAG_FEATURES},
        "constraints": _rules(
            {"rule": "at_most", "label": "VB", "n": 1},
            {"rule": "never_on", "label": "NN", "pattern": [{"LOWER": "rome"}]},
        ),
    },
    "crf_ner": {
        "model": {"emissions": NER_FEATURES},
        "constraints": _rules(
            {"rule": "at_most", "label": "PER", "n": 2},
            {"rule": "never_on", "label": "PER", "phrases": ["Lee"], "weight": 1.0},
            {"rule": "custom", "function": "test_processes.no_short_names.v1"},
        ),
    },
    "semicrf_ner": {
        "model": {"emissions": NER_FEATURES, "segments": SEGMENT_FEATURES},
        "constraints": _rules({"rule": "at_most", "label": "*", "n": 1}, {"rule": "same_text_same_label"}),
    },
    "crf_spancat": {
        "model": {"emissions": NESTED_FEATURES},
        "nested": True,
        "groups": "auto",
        "threshold": 0.2,
        "constraints": _rules({"rule": "at_most", "label": "PER", "n": 1}),
    },
}


def _make(folder, factories=tuple(CONFIGS), **settings):
    """A trained pipeline with rules, confidence, a gazetteer and functions."""
    folder.mkdir(exist_ok=True)
    names = folder / "names.txt"
    names.write_text("Ann Lee\nBob\nNew York City\nAcme Inc\n", encoding="utf8")
    nlp = spacy.blank("en")
    for factory in factories:
        confidence = {} if factory == "crf_spancat" else {"confidence": True}
        pipe = nlp.add_pipe(factory, config={**confidence, **CONFIGS[factory], **settings})
        texts = {"crf_ner": PERSONS, "semicrf_ner": PLACES, "crf_spancat": PERSONS}
        examples = tag_examples(nlp) if factory == "crf_tagger" else ner_examples(nlp, texts[factory])
        for doc in (example.reference for example in examples):
            doc.spans["sc"] = [*doc.ents, *(Span(doc, ent.start, ent.start + 1, label="FIRST") for ent in doc.ents)]
        pipe.initialize(lambda: examples, nlp=nlp, gazetteers={"names": names})  # noqa: B023
        optimizer = registry.get("optimizers", "spacy_crf.LBFGS.v1")(l2=0.1)
        for _ in range(3):
            pipe.update(examples, sgd=optimizer)
    return nlp


def _said(doc):
    ents = [(ent.text, ent.label_, round(ent._.crf_prob, 6)) for ent in doc.ents]
    group = doc.spans.get("sc", ())
    scores = group.attrs["scores"].tolist() if group else []
    spans = [(span.text, span.label_, round(score, 6)) for span, score in zip(group, scores)]
    return [token.tag_ for token in doc], ents, [token.i for token in doc if token._.crf_prob], spans


def _say(nlp, **options):
    return json.loads(json.dumps([_said(doc) for doc in nlp.pipe(TEXTS, **options)]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    _make(folder).to_disk(folder / "model")
    return folder / "model"


def test_processes_say_the_same_before_and_after_predicting(folder):
    """They failed under spawn once a pipeline with rules had predicted, and with crf_tagger always. (What is started by spawn
    gets a pickle, and `test_copies_say_the_same_and_learn_by_themselves` has pickles from before.)"""
    command = [sys.executable, "-m", __name__, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    before, here, after = json.loads(done.stdout)
    assert before == [here] * len(BEFORE) and after == [here] * len(AFTER)
    labels = {label for _, ents, *_ in here for _, label, _ in ents}
    assert labels == {"PER", "GPE", "ORG"} and all(tags for tags, *_ in here[:3])
    assert {label for *_, spans in here for _, label, _ in spans} == {"PER", "FIRST"}


COPIES = {"pickle": lambda nlp: pickle.loads(pickle.dumps(nlp)), "deepcopy": copy.deepcopy}


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("factory", CONFIGS)
def test_copies_say_the_same_and_learn_by_themselves(factory, copied, tmp_path):
    nlp = _make(tmp_path, [factory])
    fresh = COPIES[copied](nlp)
    expected = _say(nlp)
    again = COPIES[copied](nlp)
    assert _say(fresh) == _say(again) == expected
    assert again.to_bytes() == nlp.to_bytes()
    pipe = again.get_pipe(factory)
    if factory == "crf_tagger":
        examples = tag_examples(again, ["Rome/VB Bob/VB"])
    else:
        examples = ner_examples(again, [f"In [In Rome]({pipe.labels[0]}) in Rome"])
    for _ in range(3):
        pipe.update(examples, sgd=registry.get("optimizers", "spacy_crf.LBFGS.v1")(l2=0.1))
    assert _say(again) != expected == _say(nlp)


OPTIMIZERS = ["spacy_crf.LBFGS.v1", "spacy_crf.SGD.v1", "spacy_crf.AveragedPerceptron.v1", "Adam.v1"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_copies_in_the_middle_of_training(name):
    """The component's own optimizer comes along, and goes on where it was."""
    loss = "spacy_crf.Perceptron.v1" if "Perceptron" in name else "spacy_crf.LogLikelihood.v1"
    nlp = spacy.blank("en")
    config = {"optimizer": {"@optimizers": name}, "loss": {"@losses": loss}}
    pipe = nlp.add_pipe("crf_ner", config=config)
    examples = ner_examples(nlp)
    pipe.initialize(lambda: examples)
    for _ in range(2):
        nlp.update(examples)
    twin, other = pickle.loads(pickle.dumps(nlp)), copy.deepcopy(nlp)
    for each in (nlp, twin, other):
        # `spacy train` copies the predicted Docs, and nobody else the references
        own = ner_examples(each)
        for _ in range(2):
            each.update(own)
    ours, *theirs = (each.get_pipe("crf_ner").to_bytes() for each in (nlp, twin, other))
    assert theirs == [ours, ours]


@pytest.mark.parametrize("copied", COPIES)
def test_a_schedule_stays_behind_and_that_is_said(copied):
    schedule = {"@schedules": "warmup_linear.v1", "initial_rate": 0.1, "warmup_steps": 2, "total_steps": 9}
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe("crf_ner", config={"optimizer": {"@optimizers": "Adam.v1", "learn_rate": schedule}})
    examples = ner_examples(nlp)
    pipe.initialize(lambda: examples)
    nlp.update(examples)
    again = COPIES[copied](nlp)
    before = again.get_pipe("crf_ner").to_bytes()
    with pytest.raises(ValueError, match=r"CRF507.*'crf_ner'"):
        again.update(ner_examples(again))
    assert again.get_pipe("crf_ner").to_bytes() == before == pipe.to_bytes()


def test_tagger_of_an_extension_pickles():
    Token.set_extension("kind", default=None, force=True)
    nlp = spacy.blank("en")
    tagger = nlp.add_pipe("crf_tagger", config={"attribute": "kind"})
    examples = tag_examples(nlp)
    for example in examples:
        for token in example.reference:
            token._.kind = token.tag_
    tagger.initialize(lambda: examples)
    tagger.update(examples, sgd=registry.get("optimizers", "spacy_crf.LBFGS.v1")())
    doc = pickle.loads(pickle.dumps(nlp))("the dog barks")
    assert [token._.kind for token in doc] == ["DT", "NN", "VB"]
    Token.remove_extension("kind")


@pytest.mark.parametrize("factory", CONFIGS)
def test_threads_say_the_same(factory, folder):
    """Each of them may be the first one that needs what is kept: compiled rules, words, near phrases."""
    nlp = spacy.load(folder, exclude=[name for name in CONFIGS if name != factory])
    expected = _say(nlp)
    words = [token.text for text in TEXTS for token in nlp.make_doc(text)]
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(words, 15)) for _ in range(5)]
    docs = [nlp.make_doc(text) for text in texts for _ in range(4)]
    alone = [_said(doc) for doc in nlp.pipe(map(plain, docs))]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(3):
            fresh = pickle.loads(pickle.dumps(nlp)).get_pipe(factory)
            with ThreadPoolExecutor(4) as pool:
                together = list(pool.map(lambda doc: _said(fresh(plain(doc))), docs))  # noqa: B023
            assert together == alone
    finally:
        sys.setswitchinterval(interval)
    assert _say(nlp) == expected


def say_in_processes(nlp, methods):
    """RETURNS (list): What two processes say, for each way to start them."""
    answers = []
    for method in methods:
        multiprocessing.set_start_method(method, force=True)
        answers.append(_say(nlp, n_process=2))
    return answers


def main(folder):
    nlp = spacy.load(folder)
    print(json.dumps([say_in_processes(nlp, BEFORE), _say(nlp), say_in_processes(nlp, AFTER)]))


if __name__ == "__main__":
    main(*sys.argv[1:])
