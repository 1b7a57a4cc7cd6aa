"""What training must show: the optimizers against python-crfsuite's algorithms of the same name, CRF++'s published result, the
worth of partial annotation, memory and progress on a large corpus: ``python -m tests.benchmarks.training``.

One thread each, one training after the other: expect half an hour. Each benchmark below returns lines of one table.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np
import spacy
import typer
from numpy.typing import NDArray
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import registry

from .accuracy import SETTINGS
from .data import ROOT, Sentence, iob2_tags, make_doc, make_examples, read_sentences, save_docbin
from .measure import Training, entity_f1, in_own_process, show
from .ours import EXAMPLE_MODEL, EXAMPLE_TEMPLATES, RecordingLBFGS, make_pipeline, n_weights, train
from .rivals import CRFsuite, CRFsuiteTagger, example_features


class Line(NamedTuple):
    """One line of the table."""

    name: str
    ours: float
    other: Optional[float]
    must: str = ""
    met: Optional[bool] = None

    def cells(self) -> list[object]:
        ratio = self.ours / self.other if self.other else None
        verdict = "" if self.met is None else "met" if self.met else "MISSED"
        return [self.name, self.ours, self.other, ratio, self.must, verdict]


# ----------------------------------------------------------------------------------------------------------- algorithms


class Pair(NamedTuple):
    """An algorithm here and there."""

    optimizer: str
    settings: dict[str, Any]
    loss: str
    algorithm: str
    params: dict[str, Any]


# On CoNLL-2000 with the features of CRFsuite's chunking example
PAIRS = {
    "averaged perceptron": Pair("AveragedPerceptron", {}, "Perceptron", "ap", {}),
    "passive-aggressive": Pair("PassiveAggressive", {}, "Perceptron", "pa", {}),
    "AROW": Pair("AROW", {}, "Perceptron", "arow", {}),
    "SGD": Pair("SGD", {"l2": 1.0}, "LogLikelihood", "l2sgd", {"c2": 1.0}),
    "OWL-QN": Pair("LBFGS", {"l1": 0.1, "l2": 0.1}, "LogLikelihood", "lbfgs", {"c1": 0.1, "c2": 0.1}),
}
# OWL-QN's number of weights is compared, which takes long to settle. From here on CRFsuite's falls by less than 1 % in thirty
# iterations, though it does not stop within a quarter of an hour.
SPARSE_ITERATIONS = 250


class Trained(NamedTuple):
    """One side's result."""

    f1: float
    seconds: float  # those of the optimizer, features looked up
    non_zero: int  # weights


def algorithm(name: str, passes: int) -> list[Line]:
    """Ours against CRFsuite's, with as many passes."""
    pair = PAIRS[name]
    sparse = "l1" in pair.settings
    limit = SPARSE_ITERATIONS if sparse else passes
    theirs = in_own_process(train_crfsuite, pair, limit)
    ours = in_own_process(train_ours, pair, limit)
    a, b = ours.result, theirs.result
    same_size = abs(a.non_zero / b.non_zero - 1) <= 0.1
    return [
        Line(f"{name}: F1 of chunks", a.f1, b.f1, "≥ CRFsuite - 0.2", a.f1 >= b.f1 - 0.2),
        Line(f"{name}: seconds", a.seconds, b.seconds, "ratio ≤ 0.5", a.seconds <= 0.5 * b.seconds),
        Line(f"{name}: weights not zero", a.non_zero, b.non_zero, *(("± 10 %", same_size) if sparse else ())),
        Line(f"{name}: peak memory, MB", ours.peak_mb, theirs.peak_mb),
    ]


def train_ours(pair: Pair, passes: int) -> Trained:
    nlp = spacy.blank("en")
    loss = {"@losses": f"spacy_crf.{pair.loss}.v1"}
    pipe = nlp.add_pipe("crf_tagger", config={"model": EXAMPLE_MODEL, "overwrite": True, "loss": loss})
    examples = make_examples(nlp.vocab, read_sentences("conll2000", "train"), entities=False)
    make = registry.optimizers.get(f"spacy_crf.{pair.optimizer}.v1")
    nlp.initialize(lambda: examples)
    warm_up = make(**pair.settings)
    pipe.update(examples[:20], sgd=warm_up)  # compiles
    nlp.initialize(lambda: examples)
    steps = {"max_iterations": passes, "iterations_per_step": passes} if pair.optimizer == "LBFGS" else {}
    optimizer = make(**pair.settings, **(steps or {"epochs_per_step": passes}))
    seconds: list[float] = []
    step = optimizer.step

    def timed(objective, *, key):
        start = time.perf_counter()
        value = step(objective, key=key)
        seconds.append(time.perf_counter() - start)
        return value

    optimizer.step = timed
    pipe.update(examples, sgd=optimizer)
    test = read_sentences("conll2000", "test")
    with nlp.use_params(optimizer.averages or {}):
        predicted = [[token.tag_ for token in doc] for doc in nlp.pipe([make_doc(nlp.vocab, s) for s in test])]
        arrays = [node.get_param(name) for node in pipe.model.walk() for name in node.param_names]
        non_zero = sum(int(np.count_nonzero(array)) for array in arrays)
    return Trained(entity_f1([s.tags for s in test], predicted), seconds[-1], non_zero)


def train_crfsuite(pair: Pair, passes: int) -> Trained:
    vocab = spacy.blank("en").vocab
    sentences = read_sentences("conll2000", "train")
    rival = CRFsuite(example_features, {})
    rival.trainer.select(pair.algorithm)
    rival.trainer.set_params({"max_iterations": passes, **pair.params})
    rival.read((make_doc(vocab, s) for s in sentences), [s.tags for s in sentences])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.crfsuite"
        start = time.perf_counter()
        rival.trainer.train(str(path))
        seconds = time.perf_counter() - start
        tagger = CRFsuiteTagger(example_features, path)
        test = read_sentences("conll2000", "test")
        predicted = [tagger(make_doc(vocab, s)) for s in test]
        model = tagger.tagger.info()
    non_zero = len(model.state_features) + len(model.transitions)
    return Trained(entity_f1([s.tags for s in test], predicted), seconds, non_zero)


# ---------------------------------------------------------------------------------------------------------------- CRF++

PUBLISHED_OBJECTIVE, PUBLISHED_F1 = 9042.07, 93.74


def crfpp(passes: int) -> list[Line]:
    """CRF++'s published result on CoNLL-2000: cut-off 3, C = 1, the template of its example, until it has converged."""
    training, f1 = in_own_process(train_as_crfpp).result
    close = abs(training.objective / PUBLISHED_OBJECTIVE - 1) <= 0.005
    return [
        Line("CRF++: objective", training.objective, PUBLISHED_OBJECTIVE, "± 0.5 %", close),
        Line("CRF++: F1 of chunks", f1, PUBLISHED_F1, "≥ 93.7", f1 >= 93.7),
        Line("CRF++: weights", training.features, None),
        Line("CRF++: iterations", training.iterations, None),
        Line("CRF++: seconds", training.seconds, None),
    ]


def train_as_crfpp() -> tuple[Training, float]:
    # Its template is that of CRFsuite's example, but with values of their own for positions outside the sentence.
    features = {"@misc": "spacy_crf.features.v1", "templates": EXAMPLE_TEMPLATES, "padding": True}
    emissions = {"features": features, "min_count": 3, "possible_states": True}
    model = {"possible_transitions": True, "emissions": emissions}
    nlp = make_pipeline("crf_tagger", {"model": model, "overwrite": True})
    examples = make_examples(nlp.vocab, read_sentences("conll2000", "train"), entities=False)
    # CRF++ divides the squares by 2C
    optimizer = RecordingLBFGS(l2=0.5, delta=1e-6, iterations_per_step=1_000_000)
    nlp.initialize(lambda: examples, sgd=optimizer)
    nlp.get_pipe("crf_tagger").model.attrs["observed"][-2:] = 0  # CRF++ has no weights for first and last tags
    nlp.update(examples, sgd=optimizer)
    test = read_sentences("conll2000", "test")
    predicted = [[token.tag_ for token in doc] for doc in nlp.pipe([make_doc(nlp.vocab, s) for s in test])]
    return optimizer.training(n_weights(nlp)), entity_f1([s.tags for s in test], predicted)


# -------------------------------------------------------------------------------------------------------- partial labels


def partial_labels(passes: int) -> list[Line]:
    """wnut17 with half of its annotation unset: all sentences as they are, against the complete ones alone."""
    sentences = read_sentences("wnut17", "train")
    complete = [np.ones(len(s.words), dtype=bool) for s in sentences]
    lines = [Line("wnut17, nothing unset: F1", f1_of_partial(sentences, complete), None)]
    for name, unset in (("anywhere", unset_anywhere), ("around a quarter", unset_around_a_quarter)):
        for seed in range(3):
            rng = np.random.default_rng(seed)
            known = [unset(s.tags, rng) for s in sentences]
            dropping = [tokens if tokens.all() else np.zeros_like(tokens) for tokens in known]
            n_complete = sum(tokens.all() for tokens in known)
            share = 1 - np.concatenate(known).mean()
            ours, other = f1_of_partial(sentences, known), f1_of_partial(sentences, dropping)
            text = f"wnut17, {share:.0%} unset {name}, {n_complete} sentences complete: F1"
            lines.append(Line(text, ours, other, "> dropping others", ours > other))
    return lines


def unset_anywhere(tags: Sequence[str], rng: np.random.Generator) -> NDArray[np.bool_]:
    """Each entity as a whole and each token outside is unset with probability 1/2.

    RETURNS (bool[T]): The tokens that stay annotated.
    """
    starts = _unit_starts(tags)
    return np.repeat(rng.random(len(starts)) < 0.5, np.diff([*starts, len(tags)]))


def unset_around_a_quarter(tags: Sequence[str], rng: np.random.Generator) -> NDArray[np.bool_]:
    """A third of the sentences stays as it is; of the others, all is unset but one stretch of a quarter of the tokens. An entity
    that reaches out of the stretch is unset.

    RETURNS (bool[T]): The tokens that stay annotated.
    """
    if rng.random() < 1 / 3:
        return np.ones(len(tags), dtype=bool)
    size = round(len(tags) / 4)
    begin = rng.integers(len(tags) - size + 1)
    known = np.zeros(len(tags), dtype=bool)
    known[begin : begin + size] = True
    starts = _unit_starts(tags)
    return np.repeat(np.logical_and.reduceat(known, starts), np.diff([*starts, len(tags)]))


def _unit_starts(tags: Sequence[str]) -> list[int]:
    """Where the entities and the tokens outside of them begin: an entity that has lost tokens would be another entity."""
    return [n for n, tag in enumerate(tags) if not tag.startswith("I-")]


def f1_of_partial(sentences: Sequence[Sentence], known: Sequence[NDArray[np.bool_]]) -> float:
    """RETURNS (float): F1 on `test` after training on the sentences of which some tokens (bool[T] each) are annotated. Those with
    none are dropped, for all they would change is what features there are."""
    return in_own_process(train_partially, sentences, known).result


def train_partially(sentences: Sequence[Sentence], known: Sequence[NDArray[np.bool_]]) -> float:
    nlp = make_pipeline("crf_ner")
    for label in sorted({tag[2:] for s in sentences for tag in s.tags if tag != "O"}):
        nlp.get_pipe("crf_ner").add_label(label)  # though no entity of it may be left
    examples = []
    for sentence, tokens in zip(sentences, known, strict=True):
        if tokens.any():
            ents = [tag if is_known else "" for tag, is_known in zip(sentence.tags, tokens)]
            examples.append(Example(make_doc(nlp.vocab, sentence), Doc(nlp.vocab, words=sentence.words, ents=ents)))
    train(nlp, examples, **SETTINGS)
    test = read_sentences("wnut17", "test")
    predicted = [iob2_tags(doc) for doc in nlp.pipe([make_doc(nlp.vocab, s) for s in test])]
    return entity_f1([s.tags for s in test], predicted)


# ---------------------------------------------------------------------------------------------------------- large corpus

LONGEST_SILENCE = 60.0  # seconds without a sign of life that a person bears


def large_corpus(passes: int) -> list[Line]:
    """`spacy train` with the config for entities on german_ler, 1.7 million tokens: two rows of its table."""
    with tempfile.TemporaryDirectory() as folder:
        for part in ("train", "dev"):
            in_own_process(save_part, "german_ler", part, Path(folder) / f"{part}.spacy")
        command = [sys.executable, "-m", "spacy", "train", str(ROOT / "configs" / "crf_ner.cfg")]
        command += ["--paths.train", f"{folder}/train.spacy", "--paths.dev", f"{folder}/dev.spacy"]
        command += ["--output", f"{folder}/model", "--training.max_steps", "2"]
        watched = watch(command)
    peak, silence = watched.peak_mb, watched.longest_silence
    return [
        Line("german_ler: peak memory of spacy train, MB", peak, 4096.0, "≤ 4 GiB", peak <= 4096),
        Line("german_ler: longest silence, s", silence, None, f"≤ {LONGEST_SILENCE:.0f}", silence <= LONGEST_SILENCE),
        Line("german_ler: seconds in all", watched.seconds, None),
    ]


def save_part(name: str, part: str, path: Path) -> None:
    save_docbin(path, read_sentences(name, part))


class Watched(NamedTuple):
    """A command that was waited for."""

    seconds: float
    longest_silence: float  # seconds between two lines that it printed
    peak_mb: float


def watch(command: Sequence[str]) -> Watched:
    """Run a command, and print its lines with the seconds since its start."""
    start = time.perf_counter()
    times = [0.0]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout:
            times.append(time.perf_counter() - start)
            print(f"{times[-1]:6.1f} s  {line}", end="", flush=True)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed.")
    times.append(time.perf_counter() - start)
    # Never less than this process had itself when it started the command
    peak_mb = usage.ru_maxrss / (1024 * 1024 if sys.platform == "darwin" else 1024)
    return Watched(times[-1], float(np.diff(times).max()), peak_mb)


# -------------------------------------------------------------------------------------------------------------- command

BENCHMARKS: dict[str, Callable[[int], list[Line]]] = {
    **{name: partial(algorithm, name) for name in PAIRS},
    "CRF++": crfpp,
    "partial labels": partial_labels,
    "large corpus": large_corpus,
}


def main(
    only: str = typer.Option("", help=f"Only those whose name begins with this, of: {', '.join(BENCHMARKS)}."),
    passes: int = typer.Option(30, help="Passes of the online algorithms over the data."),
) -> None:
    """What training must show, against python-crfsuite in the same run where there is something to compare."""
    names = [name for name in BENCHMARKS if name.startswith(only)]
    if not names:
        raise typer.BadParameter(f"There is no benchmark {only!r}, only {', '.join(BENCHMARKS)}.")
    os.environ["SPACY_CRF_THREADS"] = "1"
    lines = [line for name in names for line in BENCHMARKS[name](passes)]
    header = ("training", "spacy_crf", "other", "ratio", "must", "")
    note = (
        f"CoNLL-2000 against CRFsuite: {passes} passes, OWL-QN {SPARSE_ITERATIONS}. Seconds are those of the optimizer."
    )
    show("Training", header, [line.cells() for line in lines], note=note)


if __name__ == "__main__":
    typer.run(main)
