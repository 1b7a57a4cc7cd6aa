"""`spacy train` with a config of ours: what is read how often, when a step is evaluated, and when it ends."""

import atexit
import gc
import io
import logging
import sys
import weakref
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config, registry

from spacy_crf import progress
from spacy_crf.optimizers import batch
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.pipeline import training
from spacy_crf.pipeline.corpora import ClockMessage, Corpus, clock, not_searched, without_collection_at_exit
from tests.util import NER_TEXTS, entities, ner_doc, ner_examples, plain

CONFIGS = Path(__file__).parents[2] / "configs"


def run(config, output=None):
    """RETURNS: The pipeline and the rows of the log."""
    stdout = io.StringIO()
    nlp, _ = train(init_nlp(config), output, stdout=stdout, stderr=io.StringIO())
    return nlp, [line.split() for line in stdout.getvalue().splitlines() if line.strip()[:1].isdigit()]


def config_of(tagged_paths, name="crf_ner", **overrides):
    return load_config(CONFIGS / f"{name}.cfg", overrides={**tagged_paths, **overrides})


# ---------------------------------------------------------------------------------------------------------- the loop


@pytest.mark.parametrize("name", ["crf_ner", "crf_tagger", "semicrf_ner", "crf_ner_owlqn"])
def test_each_corpus_is_read_once(name, tagged_paths, monkeypatch):
    read, read_docbin = [], Corpus.read_docbin

    def counted(self, vocab, locs):
        read.append(str(self.path))
        return read_docbin(self, vocab, locs)

    monkeypatch.setattr(Corpus, "read_docbin", counted)
    _, rows = run(config_of(tagged_paths, name, **{"training.optimizer.iterations_per_step": 5}))
    assert len(rows) > 1
    assert sorted(read) == sorted(tagged_paths.values())


@pytest.mark.parametrize("name", ["crf_ner", "crf_tagger", "semicrf_ner"])
def test_training_ends_with_the_step_that_converges(name, tagged_paths, caplog, monkeypatch):
    evaluated, evaluate = [], Language.evaluate
    monkeypatch.setattr(Language, "evaluate", lambda self, *a, **k: evaluated.append(1) or evaluate(self, *a, **k))
    overrides = {"training.patience": 0, "training.optimizer.iterations_per_step": 3}
    with caplog.at_level(logging.INFO, "spacy.spacy_crf"):
        _, rows = run(config_of(tagged_paths, name, **overrides))
    [said] = [record.getMessage() for record in caplog.records if "LBFGS stopped after" in record.getMessage()]
    iterations = int(said.split("stopped after ")[1].split()[0])
    assert len(rows) == len(evaluated) == -(-iterations // 3)


def test_the_model_is_that_of_full_batches(tagged_paths):
    steps = {"training.optimizer.iterations_per_step": 4, "training.max_steps": 3, "training.patience": 0}
    nlp, _ = run(config_of(tagged_paths, **steps))
    config = config_of(tagged_paths, **steps, **{"training.max_epochs": 0})
    config["training"]["batcher"] = {"@batchers": "spacy_crf.full_batch.v1"}
    config["corpora"]["train"]["@readers"] = config["corpora"]["dev"]["@readers"] = "spacy.Corpus.v1"
    other, _ = run(config)
    ours, theirs = (pipe.training.frame().weights() for pipe in (nlp.get_pipe("crf_ner"), other.get_pipe("crf_ner")))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)  # but for the order of the texts


@pytest.mark.parametrize("max_steps, patience, n_rows", [(2, 0, 3), (0, 1, 2)])
def test_other_ends_are_as_everywhere(max_steps, patience, n_rows, tagged_paths, monkeypatch):
    settings = {"training.max_steps": max_steps, "training.patience": patience}
    config = config_of(tagged_paths, **settings, **{"training.optimizer.iterations_per_step": 1})
    if patience:
        monkeypatch.setattr(Language, "evaluate", lambda self, examples: {"ents_f": 0.5})
    assert len(run(config)[1]) == n_rows


def test_only_some_steps_are_evaluated(tagged_paths):
    steps = {"training.optimizer.iterations_per_step": 2, "training.optimizer.max_iterations": 10}
    _, rows = run(config_of(tagged_paths, **steps, **{"training.eval_frequency": 3}))
    assert [row[1] for row in rows] == ["0", "3"]


def test_parts_of_a_batch_are_one_step(tagged_paths):
    nlp, _ = run(config_of(tagged_paths, **{"training.accumulate_gradient": 3}))
    assert_knows_the_texts(nlp)


def assert_knows_the_texts(nlp):
    docs = [ner_doc(nlp, text) for text in NER_TEXTS]
    assert [entities(doc) for doc in nlp.pipe(plain(doc) for doc in docs)] == [entities(doc) for doc in docs]


# ------------------------------------------------------------------------------------------------ what a terminal shows


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    "file, short, is_shown", [(Terminal, 0.0, True), (Terminal, 9.0, False), (io.StringIO, 0.0, False)]
)
def test_long_reading_is_shown_in_a_terminal(file, short, is_shown, monkeypatch):
    stderr, nlp = file(), spacy.blank("en")
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(progress, "SHORT", short)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    nlp.add_pipe("crf_ner").initialize(lambda: ner_examples(nlp))
    text = stderr.getvalue()
    assert ("crf_ner: reading features" in text and f"{len(NER_TEXTS)} texts" in text) == is_shown
    assert is_shown or "texts" not in text


def test_a_reading_that_fails_ends_the_bar(monkeypatch):
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(progress, "SHORT", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(training, "block_tokens", lambda features: 1)
    nlp = spacy.blank("en")
    reading = nlp.add_pipe("crf_ner").training.blocks(ner_examples(nlp))
    next(reading)
    next(reading)
    reading.close()
    assert stderr.getvalue().endswith("\x1b[2K") and "\x1b[?25h" in stderr.getvalue()  # no line, and the cursor is back


@pytest.mark.parametrize(
    "file, short, is_shown", [(Terminal, 0.0, True), (Terminal, 9.0, False), (io.StringIO, 0.0, False)]
)
def test_the_iterations_of_a_long_step_are_shown_in_a_terminal(file, short, is_shown, monkeypatch, caplog):
    """With the objective and how long it will take, in place of a line every ten seconds."""
    stderr, nlp = file(), spacy.blank("en")
    nlp.add_pipe("crf_ner").initialize(lambda: ner_examples(nlp))
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(progress, "SHORT", short)
    monkeypatch.setattr(batch, "SILENCE", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    optimizer = LBFGS(iterations_per_step=9, max_iterations=5)
    nlp.update(ner_examples(nlp), sgd=optimizer)
    text = stderr.getvalue()
    assert ("crf_ner: LBFGS" in text and "4 of 9 iterations" in text and "objective" in text) == is_shown
    assert is_shown or "iterations" not in text
    told = [record.getMessage() for record in caplog.records if record.levelname == "INFO"]
    # The first iteration is over before there is a bar, and the last one when it is gone
    assert sum("crf_ner: iteration " in line for line in told) == (2 if is_shown else 5)
    assert sum("max_iterations = 5 reached" in line for line in told) == 1
    assert not optimizer._bar.is_shown


# ------------------------------------------------------------------------------------------------ garbage collection


@pytest.fixture
def nothing_frozen():
    """The tests may run in a process that has frozen what they all need."""
    n = gc.get_freeze_count()
    gc.unfreeze()
    yield
    gc.unfreeze()
    if n:
        gc.freeze()


@pytest.mark.usefixtures("nothing_frozen")
def test_what_lasts_is_not_searched_for_garbage_while_training(tagged_paths, monkeypatch):
    seen, limits, update, set_threshold = [], [], Language.update, gc.set_threshold
    monkeypatch.setattr(Language, "update", lambda *a, **k: seen.append(gc.get_freeze_count()) or update(*a, **k))
    monkeypatch.setattr(gc, "set_threshold", lambda *to: limits.append(to) or set_threshold(*to))
    before = gc.get_threshold()
    run(config_of(tagged_paths, **{"training.max_steps": 2, "training.optimizer.iterations_per_step": 5}))
    assert len(seen) > 1 and min(seen) > 10_000
    assert gc.get_freeze_count() == 0
    assert limits[0][:2] == before[:2] and limits[0][2] > 1_000_000
    assert limits[1:] == [before] and gc.get_threshold() == before


@pytest.mark.usefixtures("nothing_frozen")
def test_searching_goes_on_after_errors():
    nlp, before = spacy.blank("en"), gc.get_threshold()
    with pytest.raises(TypeError):
        nlp.add_pipe("crf_ner").initialize(lambda: [])
    assert gc.get_threshold() == before
    batches = iter(clock()(ner_examples(nlp)))
    next(batches)
    assert gc.get_freeze_count() > 0
    batches.close()
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("nothing_frozen")
def test_what_is_in_use_when_the_process_ends_is_not_taken_apart(monkeypatch):
    class Cycle:
        pass

    registered = []
    monkeypatch.setattr(atexit, "register", registered.append)
    without_collection_at_exit.cache_clear()
    for _ in range(2):
        next(iter(clock()(ner_examples(spacy.blank("en")))))
    without_collection_at_exit.cache_clear()  # what is registered here ends with the test
    [leave] = registered
    garbage = Cycle()
    garbage.itself, known = garbage, weakref.ref(garbage)
    del garbage
    leave()
    assert known() is None and gc.get_freeze_count() > 10_000


@pytest.mark.usefixtures("nothing_frozen")
def test_what_others_have_frozen_stays_so():
    gc.freeze()
    with not_searched():
        pass
    assert gc.get_freeze_count() > 0


# ---------------------------------------------------------------------------------------------------- several components


def test_it_goes_on_until_all_components_have_converged(tagged_paths, caplog):
    config = config_of(tagged_paths, **{"training.patience": 0, "training.optimizer.iterations_per_step": 2})
    tagger = config_of(tagged_paths, "crf_tagger")["components"]["crf_tagger"]
    config["nlp"]["pipeline"], config["components"]["crf_tagger"] = ["crf_ner", "crf_tagger"], tagger
    with caplog.at_level(logging.INFO, "spacy.spacy_crf"):
        nlp, rows = run(config)
    said = [record.getMessage() for record in caplog.records if "LBFGS stopped after" in record.getMessage()]
    iterations = [int(text.split("stopped after ")[1].split()[0]) for text in said]
    assert len(said) == 2 and len(rows) == -(-max(iterations) // 2)
    assert_knows_the_texts(nlp)


def test_a_frozen_component_has_no_say(tagged_paths, tmp_path):
    run(config_of(tagged_paths), tmp_path)
    config = config_of(
        tagged_paths, "crf_tagger", **{"training.patience": 0, "training.frozen_components": ["crf_ner"]}
    )
    config["nlp"]["pipeline"] = ["crf_ner", "crf_tagger"]
    config["components"]["crf_ner"] = {"source": str(tmp_path / "model-last")}
    nlp, _ = run(config)
    assert_knows_the_texts(nlp)


def test_a_sourced_component_goes_on_with_all_texts(tagged_paths, tmp_path):
    """It was not initialized in this run, and has read nothing before the first batch."""
    run(config_of(tagged_paths, **{"training.optimizer.max_iterations": 1}), tmp_path)
    config = config_of(tagged_paths, **{"training.optimizer.iterations_per_step": 1, "training.max_steps": 20})
    config["components"]["crf_ner"] = {"source": str(tmp_path / "model-last")}
    nlp, rows = run(config)
    assert len(rows) > 2 and float(rows[-1][2]) < float(rows[0][2])
    assert nlp.get_pipe("crf_ner").training.corpus.n_tokens == 2 * sum(len(ner_doc(nlp, text)) for text in NER_TEXTS)


@pytest.mark.parametrize("optimizer", ["Adam.v1", "spacy_crf.AveragedPerceptron.v1"])
def test_components_that_learn_from_batches_want_another_batcher(optimizer, tagged_paths):
    config = config_of(tagged_paths)
    config["training"]["optimizer"] = {"@optimizers": optimizer}
    if "Perceptron" in optimizer:
        config["components"]["crf_ner"]["loss"] = {"@losses": "spacy_crf.Perceptron.v1"}
        assert len(run(config)[1]) > 1  # they see the corpus, which is kept for them
    else:
        with pytest.raises(ValueError, match=r"CRF930.*'crf_ner'.*spacy\.batch_by_words"):
            run(config)


def test_what_changed_meanwhile_is_told():
    nlp = spacy.blank("en")
    pipe, sgd, examples = nlp.add_pipe("crf_ner"), LBFGS(iterations_per_step=1), ner_examples(nlp)
    nlp.initialize(lambda: examples)
    batches = clock()(examples)
    nlp.update(next(batches), sgd=sgd)
    pipe.add_label("DATE")
    with pytest.raises(ValueError, match="CRF411"):
        nlp.update(next(batches), sgd=sgd)


def test_batches_of_the_clock():
    examples = ner_examples(spacy.blank("en"))
    batches = clock()(examples)
    *texts, tick = next(batches)
    assert texts == examples and not len(tick.reference)
    assert next(batches) == [tick] and next(batches) == [tick]
    ClockMessage.of(tick).goes_on.update(a=False, b=True)
    assert next(batches) == [tick]
    ClockMessage.of(tick).goes_on.update(b=False)
    assert list(batches) == []
    assert list(clock()([])) == []
    assert {ClockMessage.of(example) for example in examples} == {None}


# ------------------------------------------------------------------------------------------------- iterations of a step


class IllConditioned:
    """An objective that takes long: 10 + Σ scale · (w − 1)²."""

    signature = "x²"
    scale = np.geomspace(1.0, 1e3, 100)

    def __init__(self):
        self.model = np.zeros(100)

    def weights(self):
        return self.model.copy()

    def evaluate(self, weights):
        return 10.0 + float(self.scale @ (weights - 1) ** 2), 2 * self.scale * (weights - 1)

    def assign(self, weights):
        self.model = weights.copy()


@pytest.mark.parametrize("passes, later", [(None, 10), (1.0, 10), (3.0, 17), (100.0, 30)])
@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_iterations_between_evaluations(passes, later, l2):
    objective, made = IllConditioned(), []
    if passes is not None:
        objective.passes_per_evaluation = passes
    optimizer = LBFGS(l2=l2, iterations_per_step="auto", tolerance=0, delta=0, max_iterations=90)
    optimizer.on_iteration = made.append
    is_near = l2 == 0.0  # without a regularizer there may be no minimum, and dev alone tells when to stop
    while len(made) < 60:
        before = len(made)
        optimizer.step(objective, key="x")
        assert len(made) - before == (later if is_near else 5)
        is_near = optimizer.is_worth_evaluating("x")
    assert is_near


@pytest.mark.parametrize("make", [LBFGS, partial(LBFGS, l1=0.1)])
@pytest.mark.parametrize("moved", [False, True])
def test_models_are_worth_evaluating_within_5_percent_of_the_minimum(make, moved):
    objective, optimizer = IllConditioned(), make(l2=0.1, iterations_per_step="auto")
    values = []
    while not values or not optimizer.is_worth_evaluating("x"):
        values.append(optimizer.step(objective, key="x"))
        if moved:
            optimizer = make(l2=0.1, iterations_per_step="auto").from_bytes(optimizer.to_bytes())
    minimum = make(l2=0.1, iterations_per_step=10_000, delta=1e-9).step(IllConditioned(), key="x")
    assert values[-1] <= 1.05 * minimum
    assert values[1] > 1.05 * minimum  # that of ten iterations


@pytest.mark.parametrize("name", ["crf_ner", "crf_ner_owlqn", "crf_tagger", "semicrf_ner"])
def test_no_model_is_evaluated_far_from_the_minimum(name, tagged_paths):
    to_the_end = {"training.patience": 0, "training.optimizer.delta": 1e-6, "training.optimizer.tolerance": 0.0}
    _, rows = run(config_of(tagged_paths, name, **to_the_end, **{"training.optimizer.l2": 0.01}))
    objective = [float(row[2]) for row in rows]
    assert len(objective) > 1
    assert max(objective) <= 1.05 * objective[-1]


def test_a_larger_dev_set_is_scored_less_often(tagged_paths):
    nlp = spacy.blank("en")
    pipe, sgd, examples = nlp.add_pipe("crf_ner"), LBFGS(iterations_per_step="auto"), ner_examples(nlp)
    nlp.initialize(lambda: examples, sgd=sgd)
    found = []
    for n in (0, 1, 5):
        if n:
            nlp.evaluate(examples * n)
        nlp.update(examples, sgd=sgd)
        found.append(pipe.training.corpus.objective.passes_per_evaluation)
    assert found[0] == 0 < found[1] and found[2] == pytest.approx(5 * found[1])


@pytest.mark.parametrize("value", ["often", 0, 1.5])
def test_iterations_are_a_number_or_auto(value):
    with pytest.raises(ValueError, match="iterations_per_step"):
        LBFGS(iterations_per_step=value)


# ------------------------------------------------------------------------------------------------------- the reader


def test_what_is_read_is_kept(tagged_paths):
    nlp, reader = spacy.blank("en"), Corpus(Path(tagged_paths["paths.dev"]))
    first = list(reader(nlp))
    assert [a is b for a, b in zip(first, reader(nlp), strict=True)] == [True] * len(NER_TEXTS)
    again = list(Corpus(Path(tagged_paths["paths.dev"]))(nlp))  # as for the training after the initialization
    assert all(a is b for a, b in zip(first, again, strict=True))
    assert next(iter(reader(spacy.blank("en")))).reference.vocab is not nlp.vocab


def test_a_part_is_not_taken_for_the_whole(tagged_paths):
    nlp = spacy.blank("en")
    reader = Corpus(Path(tagged_paths["paths.dev"]))
    some = reader(nlp)
    next(some)
    some.close()
    assert len(list(reader(nlp))) == len(NER_TEXTS)
    assert len(list(Corpus(Path(tagged_paths["paths.dev"]), limit=2)(nlp))) == 2


def test_augmenters_are_asked_by_each_reader(tagged_paths):
    asked = []

    def augment(nlp, example):
        asked.append(example)
        yield example

    nlp = spacy.blank("en")
    for _ in range(2):
        reader = Corpus(Path(tagged_paths["paths.dev"]), augmenter=augment)
        assert list(reader(nlp)) == list(reader(nlp))
    assert len(asked) == 2 * len(NER_TEXTS)


def test_it_takes_what_spacys_takes():
    made = registry.resolve({"reader": {"@readers": "spacy_crf.Corpus.v1", "path": "a.spacy", "gold_preproc": False}})
    assert made["reader"].path == Path("a.spacy")
    with pytest.raises(ValueError, match="E913"):
        Corpus(None)
