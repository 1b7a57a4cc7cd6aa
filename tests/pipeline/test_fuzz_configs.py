"""Configs with random mistakes: a pipeline is built, trained and saved, or what is wrong is said with a code."""

import copy
import random
import re
import traceback
from pathlib import Path

import numpy as np
import pytest
import spacy
from catalogue import RegistryError
from confection import Config, ConfigValidationError
from spacy.tokens import Doc
from spacy.util import load_config, registry

from spacy_crf.losses.clamped import LogLikelihood
from spacy_crf.optimizers.perceptron import AROW
from spacy_crf.optimizers.sgd import SGD
from spacy_crf.pipeline import factories
from spacy_crf.pipeline.crf_tagger import CRFTagger
from spacy_crf.pipeline.prediction import CRFEntityRecognizer
from tests.util import TAG_TEXTS, ner_examples, plain, tag_examples

RUNS, CASES = 10, 10
CONFIGS = [
    path
    for path in sorted((Path(__file__).parents[2] / "configs").glob("*.cfg"))
    if len(load_config(path)["components"]) == 1
]
TEXTS = [
    "[Ann Lee](PER) lives in [New York](GPE) .",
    "[Bob](PER) left [Acme Corp](ORG) on Monday .",
    "Nobody was there .",
]
# Work that users may ask for as they like: a large number is no mistake, but nobody waits for it here
LONG = {
    "epochs_per_step",
    "iterations_per_step",
    "max_iterations",
    "calibration_candidates",
    "n",
    "min",
    "max",
    "time_limit",
}
_CODED = re.compile(r"CRF\d{3}: ")


@registry.misc("test_fuzz.letters.v1")
def make_letters():
    return lambda doc: [[str(len(token))] for token in doc]


@registry.misc("test_fuzz.words.v1")
def make_words():
    return lambda span: float(len(span))


@registry.misc("test_fuzz.allowed.v1")
def allowed(doc):
    return np.ones((len(doc), 13), dtype=bool)  # of BILUO and three labels


# -------------------------------------------------------------------------------------------------- what is well made

RULES = [
    {"rule": "forbid_pair", "labels": ["PER", "ORG"]},
    {"rule": "allow_pairs", "labels": [["PER", "ORG"], ["ORG", "PER"]], "weight": 2.0},
    {"rule": "follows", "label": "GPE", "after": ["O", "START"]},
    {"rule": "order", "labels": ["PER", "GPE"], "per": "doc"},
    {"rule": "at_most", "label": "PER", "n": 1, "per": "sentence", "weight": 1.5},
    {"rule": "at_least", "label": ["PER", "ORG"], "n": 1, "weight": 1},
    {"rule": "exactly", "label": "GPE", "n": 1, "weight": 0.5},
    {"rule": "requires", "if": ["PER"], "then": ["ORG"], "weight": 1.0},
    {"rule": "excludes", "if": ["ORG"], "then": ["GPE"], "name": "not both"},
    {"rule": "length", "label": "*", "max": 3},
    {"rule": "only_on", "label": "GPE", "pattern": [{"IS_TITLE": True}]},
    {"rule": "always_on", "label": "PER", "phrases": ["Bob"], "attr": "LOWER", "weight": 3.0},
    {"rule": "never_on", "label": "*", "pattern": [[{"LOWER": "was"}, {}], [{"IS_PUNCT": True}]]},
    {"rule": "starts_with", "label": "ORG", "pattern": [{"SHAPE": "Xxxx"}], "weight": 1.0},
    {"rule": "ends_with", "label": "ORG", "phrases": ["Corp"]},
    {"rule": "same_text_same_label"},
    {"rule": "custom", "function": "test_fuzz.allowed.v1"},
]
LOSSES = [f"spacy_crf.{name}.v1" for name in ("LogLikelihood", "Perceptron", "MaxMargin", "SoftmaxMargin")]
OPTIMIZERS = {
    "spacy_crf.LBFGS.v1": {
        "l1": 0.0,
        "l2": 1.0,
        "memory": 6,
        "tolerance": 1e-5,
        "period": 10,
        "delta": 1e-5,
        "max_line_search": 20,
    },
    "spacy_crf.SGD.v1": {
        "l1": 0.0,
        "l2": 1.0,
        "calibration_eta": 0.1,
        "calibration_rate": 2.0,
        "sequences": None,
        "seed": 0,
    },
    "spacy_crf.AdaGrad.v1": {"l1": 0.0, "l2": 1.0, "learn_rate": 0.3, "epsilon": 1e-6, "sequences": None, "seed": 0},
    "spacy_crf.AveragedPerceptron.v1": {"use_averages": True, "seed": 0},
    "spacy_crf.BatchPerceptron.v1": {"seed": 0},
    "spacy_crf.PassiveAggressive.v1": {"seed": 0},
    "spacy_crf.AROW.v1": {"variance": 1.0, "gamma": 1.0, "seed": 0},
}
MARGIN = {f"spacy_crf.{name}.v1" for name in ("AveragedPerceptron", "BatchPerceptron", "PassiveAggressive", "AROW")}
_ENCODER = {"@architectures": "spacy.HashEmbedCNN.v2", "pretrained_vectors": None, "width": 8, "depth": 1}
_ENCODER |= {"embed_size": 20, "window_size": 1, "maxout_pieces": 2, "subword_features": True}


def _shipped(rng):
    """The component and the optimizer of a config of the repository."""
    config = load_config(rng.choice(CONFIGS), interpolate=True)
    [(_, component)] = config["components"].items()
    return {"component": component, "optimizer": config["training"]["optimizer"], "initialize": {}}


def _composed(rng):
    """A component with many settings, which fit together as a rule."""
    factory = rng.choice(["crf_ner", "crf_ner", "crf_tagger", "semicrf_ner"])
    optimizer = rng.choice(list(OPTIMIZERS))
    loss = "spacy_crf.MaxMargin.v1" if optimizer in MARGIN else rng.choice(LOSSES)
    optimizer = {"@optimizers": optimizer, **OPTIMIZERS[optimizer]}
    component = {
        "factory": factory,
        "confidence": rng.random() < 0.5,
        "decode": rng.choice(["viterbi", "posterior", "spans"]),
        "min_prob": rng.choice([0.0, 0.1]),
        "loss": {"@losses": loss, "label_weights": rng.choice([None, {"PER": 2.0}])},
        "model": {"possible_transitions": True, "emissions": _emissions(rng)},
    }
    if loss.partition(".")[2].startswith(("Log", "Max", "Soft")):
        component["loss"]["cost"] = rng.choice([None, {"PER": {"ORG": 3.0}}])
    if factory == "crf_ner":
        component["scheme"] = rng.choice(["IO", "BIO", "IOB1", "BILUO"])
    elif factory == "crf_tagger":
        component["attribute"], component["overwrite"] = rng.choice(["tag", "morph"]), True
        component["loss"] = {"@losses": component["loss"]["@losses"]}
    else:
        component["model"]["longest_segment"] = rng.choice([None, 3, 0.9, {"PER": 2}])
        component["model"]["segments"] = {"min_count": 1, "possible_states": False, "features": _segments(rng)}
    if rng.random() < 0.1:
        emissions = {"@architectures": "spacy_crf.SparseEmissions.v1", **component["model"]["emissions"]}
        architecture = f"spacy_crf.{'SemiMarkov' if factory == 'semicrf_ner' else 'LinearChain'}.v1"
        component["model"] = {"@architectures": architecture, "tok2vec": dict(_ENCODER)}
        component["model"] |= {"hidden_width": rng.choice([0, 4]), "joint": rng.choice([None, {"sparse_rate": 5.0}])}
        component["model"] |= rng.choice([{"emissions": None}, {"emissions": emissions, "dropout": 0.3}])
        optimizer = {"@optimizers": "Adam.v1"}
    if rng.random() < 0.5 and factory != "crf_tagger":
        component["constraints"] = {
            "@misc": "spacy_crf.constraints.v1",
            "rules": copy.deepcopy(rng.sample(RULES, rng.randrange(1, 3))),
            "in_training": rng.random() < 0.2,
            "max_states": 200,
            "time_limit": 1.0,
        }
    return {
        "component": component,
        "optimizer": optimizer,
        "initialize": {
            "labels": rng.choice([None, ["PER", "ORG", "GPE", "NEW"]] if factory != "crf_tagger" else [None]),
            "gazetteers": {},
            "clusters": None,
        },
    }


def _emissions(rng):
    functions = {"letters": {"@misc": "test_fuzz.letters.v1"}}
    templates = ["lower[-1..1]", "bias", "orth[-1]|orth[0]", "suffix2[0]", "fn:letters[0]", "head[0]", "ent_type[0]"]
    features = {"@misc": "spacy_crf.features.v1", "templates": templates, "padding": True, "functions": functions}
    if rng.random() < 0.3:
        return {"@architectures": "spacy_crf.HashedEmissions.v1", "rows": 256, "features": features}
    features["transitions"] = rng.choice([[], ["lower[0]"]])
    return {"min_count": 1, "possible_states": rng.random() < 0.2, "features": features}


def _segments(rng):
    extra = rng.sample(
        ["seg.length", "seg.first:shape|seg.last:shape", "seg.fn:words", "seg.contains:lower", "seg.matches:x"], 2
    )
    functions = {"words": {"@misc": "test_fuzz.words.v1"}}
    return {"extra": extra, "patterns": {"x": [{"IS_TITLE": True}, {"LOWER": "corp"}]}, "functions": functions}


# --------------------------------------------------------------------------------------------------- what goes wrong

_NUMBERS = [0, 1, 2, -1, 1000, 2**31, 2**63, -(2**63), 10**30, 10**400, 0.5, -0.5]
_NUMBERS += [1e-5, 1e-120, 1e-320, 1e50, 1e99, 1e308, -1e308, float("nan"), float("inf"), -float("inf")]
_ODD = [None, True, False, *_NUMBERS, "", "x", "PER", "5", "nan", "inf", [], [1], ["x"], ["PER"], [[]], [None], {}]
_ODD += [{"x": 1}, {"PER": "x"}, {"PER": -1}, {"x": {"y": 1}}, {1: 2}]
_ENDS = ["", "x", "[", "]", "|", "[0]", "[-1..1]", "[99]", "[1..0]", ":", " ", "\ud800", "\0", "é" * 50]
_NAMED = {
    "@losses": [*LOSSES, "CategoricalCrossentropy.v1", "spacy_crf.None.v1"],
    "@optimizers": [*OPTIMIZERS, "Adam.v1", "SGD.v1", "no.v1"],
    "@architectures": [
        *(
            f"spacy_crf.{name}.v1"
            for name in ("SparseEmissions", "HashedEmissions", "Tok2VecEmissions", "SparseSegments")
        ),
        *(
            "spacy_crf.LinearChain.v1",
            "spacy_crf.LinearChain.v1",
            "spacy_crf.SemiMarkov.v1",
            "spacy.HashEmbedCNN.v2",
            "no.v1",
        ),
    ],
    "@misc": [
        *(f"spacy_crf.{name}.v1" for name in ("features", "ner_features", "tagger_features", "segment_features")),
        *(
            "spacy_crf.ner_features.v1",
            "spacy_crf.tagger_features.v1",
            "spacy_crf.segment_features.v1",
            "spacy_crf.constraints.v1",
            "test_fuzz.letters.v1",
            "test_fuzz.words.v1",
            "no.v1",
        ),
    ],
    "@scorers": ["spacy.ner_scorer.v1", "spacy_crf.tagger_scorer.v1", "spacy.textcat_scorer.v2"],
}


def _places(tree, path=()):
    """All places of a config that are ours: their containers and keys, with the way there."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    foreign = isinstance(tree, dict) and any(
        str(key).startswith("@") and not str(value).startswith(("spacy_crf", "test_fuzz"))
        for key, value in tree.items()
    )
    for key, value in items:
        if not foreign or str(key).startswith("@"):
            yield tree, key, (*path, key)
            yield from _places(value, (*path, key))


def _weight(place):
    """Names of registered functions and components are looked up by spaCy, which says when there is none."""
    return 0.2 if str(place[1]).startswith(("@", "factory")) else 1.0


def _odd(key, rng):
    return rng.choice([value for value in _ODD if not (key in LONG and _is_large(value))])


def _is_large(value):
    return isinstance(value, (int, float)) and value > 1000


def _break(config, rng):
    """Makes one mistake, and says which."""
    places = [place for place in _places(config) if len(place[2]) > 1]
    [(container, key, path)] = rng.choices(places, map(_weight, places))
    before, kind = container[key], rng.random()
    if isinstance(key, str) and key in _NAMED:
        container[key] = rng.choice(_NAMED[key])
    elif kind < 0.1 and isinstance(container, dict):
        del container[key]
        return f"{path} is gone"
    elif kind < 0.13 and isinstance(container, dict):
        container["odd"] = copy.deepcopy(rng.choice(_ODD))
        return f"{(*path[:-1], 'odd')} = {container['odd']!r}"
    elif kind < 0.6 and isinstance(before, (int, float)) and not isinstance(before, bool):
        container[key] = rng.choice([value for value in _NUMBERS if not (key in LONG and value > 1000)])
    elif kind < 0.5 and isinstance(before, str):
        at = rng.randrange(len(before) + 1)
        container[key] = before[:at] + rng.choice(_ENDS) + before[at + rng.randrange(2) :]
    elif kind < 0.3 and isinstance(before, list) and before:
        container[key] = [*before, copy.deepcopy(rng.choice([*before, *_ODD]))]
    elif kind < 0.4:
        container[key] = [before]
    else:
        container[key] = copy.deepcopy(_odd(key, rng))
    return f"{path} = {container[key]!r}"


# ------------------------------------------------------------------------------------------------------------ the test


def _use(config, *, by_config):
    """Builds, trains, predicts, saves and loads."""
    build = _by_config if by_config else _by_hand
    nlp, pipe, optimizer = build(config)
    if isinstance(pipe, CRFTagger):
        examples = tag_examples(nlp, TAG_TEXTS[:3])
        for example in examples:
            for token in example.reference:
                token.set_morph(f"X={token.tag_}")
    else:
        examples = ner_examples(nlp, TEXTS)
    if by_config:
        nlp.initialize(lambda: examples)
    else:
        pipe.initialize(lambda: examples, nlp=nlp, **config["initialize"])
    for _ in range(2):
        pipe.update(examples, sgd=optimizer)
    docs = [plain(example.reference) for example in examples] + [nlp.make_doc("")]
    said = _said(pipe.pipe(docs))
    nlp, again, _ = build(config)
    again.from_bytes(pipe.to_bytes())
    assert _said(again.pipe(plain(doc) if len(doc) else Doc(nlp.vocab) for doc in docs)) == said


def _by_config(config):
    """As spaCy does it, which looks at the types of most settings and converts some."""
    config = copy.deepcopy(config)
    optimizer = registry.resolve({"optimizer": config["optimizer"]})["optimizer"]
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe(config["component"].pop("factory", "crf_ner"), name="it", config=config["component"])
    nlp.config["initialize"]["components"]["it"] = config["initialize"]
    return nlp, pipe, optimizer


def _by_hand(config):
    """As in Python: nobody has looked at settings before they are ours."""
    config = copy.deepcopy(config)
    component, nlp = config["component"], spacy.blank("en")
    factory = component.pop("factory", "crf_ner")
    defaults = nlp.get_factory_meta(factory).default_config
    settings = {key: _resolved(value) for key, value in Config(defaults).merge(component).items()}
    return nlp, getattr(factories, f"make_{factory}")(nlp, "it", **settings), _resolved(config["optimizer"])


def _resolved(tree):
    """What a block of a config makes."""
    if isinstance(tree, list):
        return [_resolved(value) for value in tree]
    if not isinstance(tree, dict):
        return tree
    kind = next((key for key in tree if isinstance(key, str) and key.startswith("@")), None)
    arguments = {key: _resolved(value) for key, value in tree.items() if key != kind}
    return arguments if kind is None else registry.get(kind[1:], tree[kind])(**arguments)


def _said(docs):
    return [([(e.start, e.end, e.label_) for e in doc.ents], [(t.tag_, str(t.morph)) for t in doc]) for doc in docs]


def _is_said(error):
    """Whether a message has a code, or is one of spaCy's own about configs, before anything of ours is called."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, (ConfigValidationError, RegistryError)) or not any("spacy_crf/" in f.filename for f in frames):
        return True
    if isinstance(error, TypeError) and re.search(
        "unexpected keyword|required positional|required keyword", str(error)
    ):
        return True  # Python's
    return isinstance(error, ValueError) and bool(_CODED.match(str(error)) or re.match(r"\[E\d{3,4}\]", str(error)))


def case(seed):
    rng = random.Random(seed)
    config = _shipped(rng) if rng.random() < 0.3 else _composed(rng)
    mistakes = [_break(config, rng) for _ in range(rng.choice([0, 1, 1, 1, 2, 3]))]
    return config, mistakes, rng.random() < 0.3


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("seed", range(RUNS))
def test_configs_with_mistakes_work_or_say_what_is_wrong(seed):
    """40 of 1,000 ended with an error of Python's or numpy's."""
    for number in range(seed * CASES, (seed + 1) * CASES):
        config, mistakes, by_config = case(number)
        try:
            _use(config, by_config=by_config)
        except Exception as error:
            if not _is_said(error):
                pytest.fail(f"seed {seed}, by_config = {by_config}: {'; '.join(mistakes)}\n{config}\n{error!r}")


@pytest.mark.parametrize(
    ("factory", "settings", "named"),
    [
        ("crf_ner", {"loss": -1}, "loss = -1"),
        ("crf_ner", {"min_prob": "x"}, "min_prob = 'x'"),
        ("crf_ner", {"optimizer": 5}, "optimizer = 5"),
        ("crf_tagger", {"overwrite": None}, "overwrite = None"),
        ("crf_tagger", {"attribute": ["tag"]}, "attribute"),
    ],
)
def test_settings_of_components_are_checked_when_they_are_made(factory, settings, named):
    """A loss that is none was noticed at the first update."""
    nlp = spacy.blank("en")
    model = nlp.create_pipe(factory).model
    make = {"crf_ner": CRFEntityRecognizer, "crf_tagger": CRFTagger}[factory]
    with pytest.raises(ValueError, match=f"CRF020: Component 'it': {re.escape(named)}"):
        make(nlp.vocab, model, "it", **{"loss": LogLikelihood(), **settings})


def test_numbers_that_overflow_are_refused_or_taken():
    with pytest.raises(ValueError, match=r"CRF020: AROW: gamma = 1e-320"):
        AROW(gamma=1e-320)
    for value in (True, "1", 10**400, 1e308):
        with pytest.raises(ValueError, match=r"CRF020: SGD: l2 = "):
            SGD(l2=value)
    assert SGD(l2=2**63).l2 == float(2**63)


@pytest.mark.parametrize("label", ["x", "B=1|A=1"])
def test_a_label_of_morphology_is_spelled_as_tokens_spell_it(label):
    """Another order of its features was written as no morphology at all."""
    tagger = spacy.blank("en").add_pipe("crf_tagger", config={"attribute": "morph"})
    with pytest.raises(ValueError, match=f"CRF020.*{re.escape(label)}"):
        tagger.add_label(label)
    assert tagger.add_label("A=1|B=1") and tagger.labels == ("A=1|B=1",)
