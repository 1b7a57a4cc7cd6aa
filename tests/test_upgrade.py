"""Registered names that were removed: configs that have them are refused, and `crf upgrade` rewrites them with equal meaning."""

import zlib

import pytest
import spacy
from spacy import registry
from spacy.util import Config, load_config, load_model_from_config
from typer.testing import CliRunner

from spacy_crf.cli import app
from spacy_crf.cli.configs import upgrade
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.removed import NAMES

from .test_neural import ENCODER
from .util import entities, ner_examples, plain, tag_examples

# Checksums of the templates that the removed presets had
SPELLED = {
    "ner_features.v1": 2615634854,
    "ner_features.v2": 3952177493,
    "tagger_features.v1": 1770208904,
    "tagger_features.v2": 820911839,
    "segment_features.v1": 3853622077,
}
SPARSE = "spacy_crf.SparseEmissions.v1"
OF_ENCODER = {"@architectures": "spacy_crf.Tok2VecEmissions.v1", "tok2vec": ENCODER}


def _chain(preset, **settings):
    emissions = {"@architectures": SPARSE, "features": {"@misc": f"spacy_crf.{preset}", **settings}}
    return {"@architectures": "spacy_crf.LinearChain.v1", "emissions": emissions, "tie_boundaries": False}


def _segments(**settings):
    return {**_chain("ner_features.v1"), "@architectures": "spacy_crf.SemiMarkov.v1", **settings}


# Models of version 0.12 and 0.13
MODELS = {
    "first preset": ("crf_ner", _chain("ner_features.v1", extra=["tag[0]"])),
    "second preset": ("crf_ner", _chain("ner_features.v2", without=["shape[0]"], window=0, padding=True)),
    "tags": ("crf_tagger", _chain("tagger_features.v2", transitions=["lower[0]"])),
    "first preset of tags": ("crf_tagger", _chain("tagger_features.v1")),
    "encoder": ("crf_ner", {"@architectures": "spacy_crf.LinearChain.v1", "emissions": OF_ENCODER}),
    "encoder, version 2": ("crf_ner", {"@architectures": "spacy_crf.LinearChain.v2", "tok2vec": ENCODER}),
    "segments": ("semicrf_ner", _segments(segments=None)),
    "segments of their own": (
        "semicrf_ner",
        _segments(
            segments={
                "@architectures": "spacy_crf.SparseSegments.v1",
                "features": {"@misc": "spacy_crf.segment_features.v1", "templates": ["seg.lower", "seg.matches:x"]}
                | {"patterns": {"x": [{"TEXT": "$"}]}},
            }
        ),
    ),
    "no segments, version 2": ("semicrf_ner", {**_segments(), "@architectures": "spacy_crf.SemiMarkov.v2"}),
}
for _, _model in MODELS.values():
    if not _model["@architectures"].endswith("LinearChain.v1"):
        _model.pop("tie_boundaries", None)


def _says(nlp, examples):
    docs = nlp.pipe([plain(example.reference) for example in examples])
    return [entities(doc) or [token.tag_ for token in doc] for doc in docs]


def _write(path, factory, model):
    nlp = spacy.blank("en")
    config = nlp.config.copy()
    config["nlp"]["pipeline"] = ["it"]
    config["components"] = {"it": {"factory": factory, "model": model}}
    Config(config).to_disk(path)


@pytest.mark.issue(34)
@pytest.mark.parametrize("name", NAMES)
def test_removed_names_name_their_successor(name):
    kind = "misc" if "features" in name else "architectures"
    with pytest.raises(ValueError, match=f"CRF035: spacy_crf.{name} was removed.*{NAMES[name][0]}\\..*crf upgrade"):
        registry.resolve({"block": {f"@{kind}": f"spacy_crf.{name}"}})


@pytest.mark.issue(34)
@pytest.mark.parametrize("name", MODELS)
def test_models_of_before_predict_the_same(name, tmp_path):
    factory, model = MODELS[name]
    _write(tmp_path / "old.cfg", factory, model)
    upgrade(tmp_path / "old.cfg", tmp_path / "new.cfg")
    nlp = load_model_from_config(load_config(tmp_path / "new.cfg"))
    examples = tag_examples(nlp) if factory == "crf_tagger" else ner_examples(nlp)
    optimizer = registry.get("optimizers", "Adam.v1")(0.01) if "HashEmbed" in str(model) else LBFGS()
    nlp.initialize(lambda: examples)
    for _ in range(3):
        nlp.update(examples, sgd=optimizer)
    nlp.to_disk(tmp_path / "old")
    config = load_config(tmp_path / "old" / "config.cfg", interpolate=False)
    config["components"]["it"]["model"] = model
    config.to_disk(tmp_path / "old" / "config.cfg", interpolate=False)
    if "version 2" not in name:
        with pytest.raises(ValueError, match="CRF035"):
            spacy.load(tmp_path / "old")
    result = CliRunner().invoke(app, ["upgrade", str(tmp_path / "old"), str(tmp_path / "new")])
    assert result.exit_code == 0, result.output
    assert _says(spacy.load(tmp_path / "new"), examples) == _says(nlp, examples)


@pytest.mark.issue(34)
@pytest.mark.parametrize("name", SPELLED)
def test_presets_are_written_out_as_they_were(name, tmp_path):
    block = {"@misc": f"spacy_crf.{name}"}
    Config({"features": block}).to_disk(tmp_path / "old.cfg")
    [change] = upgrade(tmp_path / "old.cfg", tmp_path / "new.cfg")
    assert change[:2] == ("features", f"spacy_crf.{name}")
    features = registry.resolve(load_config(tmp_path / "new.cfg"))["features"]
    assert zlib.crc32(repr(features.spelled()).encode("utf8")) == SPELLED[name]


@pytest.mark.issue(34)
def test_what_can_not_be_rewritten(tmp_path):
    _write(tmp_path / "old.cfg", "semicrf_ner", {**_segments(), "emissions": OF_ENCODER})
    with pytest.raises(ValueError, match=r"CRF037.*Version 0.13 reads"):
        upgrade(tmp_path / "old.cfg", tmp_path / "new.cfg")
    assert not (tmp_path / "new.cfg").exists()
    with pytest.raises(ValueError, match="CRF750"):
        upgrade(tmp_path / "old.cfg", tmp_path / "old.cfg")
