"""Every config trains and every name resolves; spaCy's commands take our pipelines like its own."""

import io
import sys
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

import numba
import numpy as np
import pytest
import spacy
import srsly
from numba.core.dispatcher import Dispatcher
from spacy import registry
from spacy.cli import app
from spacy.cli.init_config import fill_config
from spacy.language import Language
from spacy.tokens import DocBin
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config, load_model_from_config
from spacy.vectors import Vectors
from typer.testing import CliRunner

from tests.util import NER_TEXTS, entities, ner_doc, plain, write_corpus

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # a dependency of pytest there

ROOT = Path(__file__).parents[1]
HAS_TRANSFORMERS = pytest.mark.skipif(
    not find_spec("spacy_curated_transformers"), reason="pip install 'spacy-crf[transformers]' has not been run"
)
CONFIGS = [
    pytest.param(path, id=path.stem, marks=[HAS_TRANSFORMERS] if path.stem == "crf_ner_transformer" else [])
    for path in sorted((ROOT / "configs").glob("*.cfg"))
]


def unresolved(root):
    """Entry points of a distribution, by its folder, that lead elsewhere: after an edit of them run ``pip install -e`` again."""
    wrong, groups = [], tomllib.loads((root / "pyproject.toml").read_text())["project"]["entry-points"]
    spacy.blank("en")  # which fills the registry of factories
    for group, name, target in ((group, *entry) for group, names in groups.items() for entry in names.items()):
        wanted = EntryPoint(name, target, group).load()
        if [entry.load() for entry in entry_points(group=group, name=name)] != [wanted]:
            wrong.append((group, name))
        kind = group.partition("_")[2]
        assert not hasattr(registry, kind) or registry.get(kind, name) is wanted
        if group == "spacy_factories":
            assert Language.has_factory(name)
            assert spacy.blank("en").add_pipe(name).name == name
    assert groups
    return wrong


def _write_vectors(path):
    """A pipeline with vectors of words."""
    nlp = spacy.blank("en")
    words = sorted({token.text for text in NER_TEXTS for token in ner_doc(nlp, text)})
    data = np.random.default_rng(0).normal(size=(len(words), 8)).astype(np.float32)
    nlp.vocab.vectors = Vectors(strings=nlp.vocab.strings, data=data, keys=words)
    nlp.to_disk(path)
    return path


@pytest.fixture(scope="module")
def model(corpus, tmp_path_factory):
    """A trained crf_ner on disk. Do not change."""
    return _train(ROOT / "configs" / "crf_ner.cfg", corpus, tmp_path_factory.mktemp("trained"))[1]


def overrides_of(corpus):
    return {"paths.train": str(corpus), "paths.dev": str(corpus)}


def _train(config_path, corpus, output=None, stdout=None, **overrides):
    overrides = {
        **overrides_of(corpus),
        "training.max_epochs": min(0, load_config(config_path)["training"]["max_epochs"]),
        "training.max_steps": 2,  # the loop takes one more
        "training.eval_frequency": 1,
        **overrides,
    }
    if config_path.stem == "crf_ner_vectors":
        overrides["paths.vectors"] = str(_write_vectors(corpus.parent / "vectors"))
    config = load_config(config_path, overrides=overrides)
    if "transformer" in config["components"]:
        _shrink(config, corpus.parent / "pieces.txt")
    if "use_averages" in config["training"]["optimizer"]:
        # The averages are what is saved, the last weights what is in memory: here they shall be the same.
        config["training"]["optimizer"]["use_averages"] = False
    return train(init_nlp(config), output, stdout=stdout or io.StringIO(), stderr=io.StringIO())


def _shrink(config, pieces):
    """Makes a transformer of a config a tiny random one, whose pieces of words are single characters."""
    characters = sorted({character for text in NER_TEXTS for character in text})
    pieces.write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *characters, *(f"##{each}" for each in characters)])
    )
    sizes = {"vocab_size": 4 + 2 * len(characters), "hidden_width": 16, "intermediate_width": 16}
    config["components"]["transformer"]["model"] |= {**sizes, "num_attention_heads": 2, "num_hidden_layers": 1}
    loader = {"@model_loaders": "spacy-curated-transformers.WordpieceLoader.v1", "path": str(pieces)}
    config["initialize"]["components"]["transformer"] = {"piecer_loader": loader}


def annotation(nlp, docs):
    """What a pipeline says of Docs: their entities, and what else it writes."""
    docs = list(nlp.pipe(plain(doc) for doc in docs))
    spans = [[(span.start, span.end, span.label_) for span in doc.spans.get("sc", ())] for doc in docs]
    tags = [[token.tag_ for token in doc] for doc in docs]
    return [(entities(doc), (of_tokens, doc.cats, of_doc)) for doc, of_tokens, of_doc in zip(docs, tags, spans)]


def _run(*args):
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exit_code == 0, result.output
    return result.output


# --------------------------------------------------------------------------------------------------------- configs


@pytest.mark.parametrize("path", CONFIGS)
def test_trains_three_steps_and_predicts_the_same_after_loading(path, corpus, tmp_path):
    stdout = io.StringIO()
    nlp, saved = _train(path, corpus, tmp_path, stdout)
    rows = [line.split() for line in stdout.getvalue().splitlines() if line.strip()[:1].isdigit()]
    assert [row[1] for row in rows] == ["0", "1", "2"]
    if nlp.pipe_names:
        column = 1 + len(nlp.pipe_names)  # the loss of the last component; some converge in the first step
        assert float(rows[-1][column]) <= float(rows[0][column])
    docs = list(DocBin().from_disk(corpus).get_docs(nlp.vocab))
    loaded = spacy.load(saved)
    assert loaded.config["components"] == nlp.config["components"]
    assert annotation(loaded, docs) == annotation(nlp, docs)
    again = load_model_from_config(loaded.config).from_bytes(loaded.to_bytes())
    assert annotation(again, docs) == annotation(nlp, docs)


# Optimizer, its settings, loss, and whether three steps are enough
VARIATIONS = [
    ("spacy_crf.LBFGS.v1", {"l1": 0.1}, "spacy_crf.LogLikelihood.v1", True),
    ("spacy_crf.LBFGS.v1", {}, "spacy_crf.SoftmaxMargin.v1", True),
    ("spacy_crf.SGD.v1", {"l1": 0.01}, "spacy_crf.SoftmaxMargin.v1", False),
    ("spacy_crf.AdaGrad.v1", {}, "spacy_crf.LogLikelihood.v1", False),
    ("spacy_crf.AveragedPerceptron.v1", {}, "spacy_crf.Perceptron.v1", True),
    ("spacy_crf.BatchPerceptron.v1", {}, "spacy_crf.MaxMargin.v1", False),
    ("spacy_crf.PassiveAggressive.v1", {"type": 2}, "spacy_crf.Perceptron.v1", True),
    ("spacy_crf.AROW.v1", {}, "spacy_crf.MaxMargin.v1", True),
    ("Adam.v1", {}, "spacy_crf.LogLikelihood.v1", False),
]


def train_three_steps(component, optimizer, settings, loss, corpus, folder):
    """RETURNS (Language): What `spacy train` saves, with another optimizer and another loss in the component's config."""
    path = ROOT / "configs" / f"{component}.cfg"
    config = load_config(path, overrides=overrides_of(corpus), interpolate=False)
    config["training"]["optimizer"] = {"@optimizers": optimizer, **settings}
    config["training"]["max_steps"] = 3
    if optimizer == "Adam.v1":  # it learns from one batch after the other
        config["training"]["batcher"] = {"@batchers": "spacy_crf.full_batch.v1"}
        config["training"]["max_epochs"] = 0
    config["components"][component]["loss"] = {"@losses": loss}
    _, saved = train(init_nlp(config.interpolate()), folder, stdout=io.StringIO(), stderr=io.StringIO())
    return spacy.load(saved)


@pytest.mark.parametrize("optimizer, settings, loss, enough", VARIATIONS)
def test_every_optimizer_and_loss_trains_three_steps(optimizer, settings, loss, enough, corpus, tmp_path):
    trained = train_three_steps("crf_ner", optimizer, settings, loss, corpus, tmp_path)
    assert isinstance(trained("Ann Lee lives in New York .").ents, tuple)
    if enough:
        assert [ent.label_ for ent in trained("Bob left Paris for Acme Corp .").ents] == ["PER", "GPE", "ORG"]


def _kernels():
    modules = [module for name, module in sys.modules.items() if name.startswith("spacy_crf")]
    return {id(each): each for module in modules for each in vars(module).values() if isinstance(each, Dispatcher)}


def _ready():
    """What is compiled, or loaded."""
    return {(n, signature) for n, each in _kernels().items() for signature in each.overloads}


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")
@pytest.mark.parametrize(
    "stem",
    [
        "crf_ner",
        "crf_ner_threshold",
        "crf_ner_listener",
        "crf_tagger_order",
        "crf_textcat",
        "semicrf_ner",
        "crf_spancat",
    ],
)
def test_kernels_of_prediction_are_there_before_an_evaluation_is_timed(stem, corpus):
    for kernel in _kernels().values():
        kernel._reset_overloads()
    nlp = init_nlp(load_config(ROOT / "configs" / f"{stem}.cfg", overrides=overrides_of(corpus)))
    config = nlp.config.interpolate()
    examples = list(registry.resolve(config["corpora"])["train"](nlp))
    nlp.update(examples, sgd=registry.resolve({"optimizer": config["training"]["optimizer"]})["optimizer"])
    before = _ready()
    assert before
    list(nlp.pipe(example.predicted.copy() for example in examples))
    assert _ready() == before


@pytest.mark.parametrize("path", CONFIGS)
def test_config_is_complete(path, tmp_path):
    ours, filled = fill_config(tmp_path / "filled.cfg", path, silent=True)
    assert ours == filled
    assert {*ours["initialize"]["components"]} <= {*ours["components"]}  # spaCy passes over the others


BASE = """
[paths]
train = null
[nlp]
lang = "en"
pipeline = ["crf_ner"]
[components]
[components.crf_ner]
factory = "crf_ner"
[initialize]
[initialize.components]
[initialize.components.crf_ner]
"""


@pytest.mark.parametrize(
    "block",
    [
        'labels = ["A"]\ngazetteers = {"cities": "cities.txt"}\nstart_from = "model"',
        '[initialize.components.crf_ner.gazetteers.cities]\npath = "cities.txt"\nattr = "ORTH"',
        '[initialize.components.crf_ner.corpus]\n@readers = "spacy.Corpus.v1"\npath = ${paths.train}\nlimit = 7',
        '[initialize.components.crf_ner.labels]\n@readers = "spacy.read_labels.v1"\npath = "labels.json"\nrequire = true',
    ],
)
@pytest.mark.parametrize("source", [False, True])
def test_filling_keeps_what_initialize_is_given(model, tmp_path, block, source):
    base = BASE.replace('factory = "crf_ner"', f'source = "{model}"') if source else BASE
    if "gazetteers.cities" in block:
        base += "[initialize.components.crf_ner.gazetteers]\n"
    (tmp_path / "base.cfg").write_text(base + block)
    ours, filled = fill_config(tmp_path / "filled.cfg", tmp_path / "base.cfg", silent=True)
    for written in (filled, load_config(tmp_path / "filled.cfg")):
        found = written["initialize"]["components"]["crf_ner"]
        for key, value in ours["initialize"]["components"]["crf_ner"].items():
            assert found[key] == value or value.items() <= found[key].items()


@pytest.mark.parametrize("path", CONFIGS)
def test_debug_config(path, corpus):
    assert "Config is valid" in _run("debug", "config", path, "--paths.train", corpus, "--paths.dev", corpus)


@pytest.mark.filterwarnings("ignore:.*W090")
@pytest.mark.parametrize("config", ["crf_ner", "crf_ner_stream", "crf_tagger", "semicrf_ner", "crf_spancat"])
@pytest.mark.parametrize("labels", [None, ["PER"]])
def test_a_corpus_without_texts_is_told_from_one_without_labels(config, labels, corpus, tmp_path):
    (tmp_path / "train.jsonl").write_text('{"text": "Ann Lee"}\n')
    (tmp_path / "folder").mkdir()
    DocBin().to_disk(tmp_path / "empty.spacy")
    config = load_config(ROOT / "configs" / f"{config}.cfg")
    [name] = config["nlp"]["pipeline"]
    config["initialize"]["components"].setdefault(name, {})["labels"] = labels
    own = "corpus" in config["initialize"]["components"][name]
    section = f"initialize.components.{name}.corpus" if own else "corpora.train"
    for path, why in (
        ("train.jsonl", "spacy crf convert"),
        ("folder", "without .spacy"),
        ("nothing", "does not exist"),
    ):
        config["paths"] = {**config["paths"], "train": str(tmp_path / path), "dev": str(corpus)}
        with pytest.raises(ValueError, match=rf"CRF712.*\[{section}\].*{path}.*{why}"):
            init_nlp(config)
    config["paths"]["train"] = str(tmp_path / "empty.spacy")
    with pytest.raises(ValueError, match=r"CRF712.*empty.spacy holds no texts"):
        init_nlp(config)


def test_no_examples_in_python():
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner")
    with pytest.raises(ValueError, match=r"CRF712.*get_examples gave none"):
        nlp.initialize(lambda: iter([]))


def test_training_stops_soon_after_convergence_and_keeps_the_best_model(corpus, tmp_path, caplog):
    config = ROOT / "configs" / "crf_ner.cfg"
    stdout = io.StringIO()
    overrides = dict.fromkeys(["training.max_epochs", "training.max_steps"], 0)
    _train(config, corpus, tmp_path, stdout, **overrides)
    rows = [line.split() for line in stdout.getvalue().splitlines() if line.strip()[:1].isdigit()]
    assert len(rows) <= 15
    assert [record.message for record in caplog.records if "LBFGS stopped after" in record.message]
    assert spacy.load(tmp_path / "model-best").meta["performance"]["ents_f"] == 1.0


@pytest.mark.parametrize("at", [14, 20])
def test_an_interrupt_keeps_the_best_model(at, corpus, tmp_path, monkeypatch):
    """As with spaCy's own components: what was best so far is on disk, and the interrupt is not swallowed."""
    from spacy_crf.models.objective import CorpusObjective

    evaluations = 0
    evaluate = CorpusObjective.evaluate

    def interrupted(self, weights):
        nonlocal evaluations
        evaluations += 1
        if evaluations == at:  # in the middle of the second step, of the third
            raise KeyboardInterrupt
        return evaluate(self, weights)

    monkeypatch.setattr(CorpusObjective, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        settings = {"training.optimizer.delta": 0.0, "training.optimizer.iterations_per_step": 8}
        _train(ROOT / "configs" / "crf_ner.cfg", corpus, tmp_path, **settings)
    best = spacy.load(tmp_path / "model-best")
    docs = list(DocBin().from_disk(corpus).get_docs(best.vocab))
    assert [found for found, _ in annotation(best, docs)] == [entities(doc) for doc in docs]
    assert annotation(spacy.load(tmp_path / "model-last"), docs)


# --------------------------------------------------------------------------------------------------------- commands


def test_debug_data(tmp_path):
    corpus = write_corpus(tmp_path / "large_enough.spacy", copies=20)
    output = _run("debug", "data", ROOT / "configs" / "crf_ner.cfg", "--paths.train", corpus, "--paths.dev", corpus)
    assert "Corpus is loadable" in output


def test_evaluate(model, corpus):
    assert "NER F   100.00" in _run("evaluate", model, corpus)


# spaCy leaves the files that it writes to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_package_requires_us(model, tmp_path):
    _run("package", model, tmp_path, "--build", "none", "--name", "tiny")
    [folder] = tmp_path.iterdir()
    meta = srsly.read_json(folder / "meta.json")
    assert any(requirement.startswith("spacy-crf") for requirement in meta["requirements"])
    packaged = spacy.load(next(folder.glob("en_tiny/en_tiny-*")))
    assert [ent.label_ for ent in packaged("Ann Lee lives in New York .").ents] == ["PER", "GPE"]


def test_benchmark_speed(model, corpus):
    assert "words/s" in _run("benchmark", "speed", model, corpus, "--batches", 30, "--warmup", 0, "--batch-size", 3)


# ----------------------------------------------------------------------------------------------------- entry points


def test_entry_points_resolve():
    assert not unresolved(ROOT)
