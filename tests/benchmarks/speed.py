"""Time and memory beside CRFsuite, spaCy's ``ner`` and the tokenizer: ``python -m tests.benchmarks.speed``.

Every ratio is of medians of tasks that took turns in this run. Each benchmark below returns lines of the table.
"""

import os
import random
import statistics
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Union

import spacy
import typer
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.util import load_config
from spacy.vocab import Vocab

from . import ours as crf
from . import rivals, tagged_corpus
from .data import ROOT, Sentence, iob2_tags, make_doc, make_examples, read_sentences, read_texts, save_docbin
from .measure import busy_siblings, in_own_process, memory_mb, show, side_by_side, size_mb
from .training import save_part, watch


class Line(NamedTuple):
    """One line of the table. An aim below the must says that less is better."""

    name: str
    ours: float
    other: float
    unit: str
    measured: float  # what must and aim speak of: the ratio, or a difference in seconds
    must: float
    aim: float

    @classmethod
    def of_ratio(cls, name: str, ours: float, other: float, unit: str, must: float, aim: float) -> "Line":
        return cls(name, ours, other, unit, ours / other, must, aim)

    def cells(self) -> list[object]:
        more_is_better = self.aim > self.must
        relation = "≥" if more_is_better else "≤"

        def reaches(goal: float) -> bool:
            return self.measured >= goal if more_is_better else self.measured <= goal

        verdict = "aim" if reaches(self.aim) else "must" if reaches(self.must) else "MISSED"
        goals = (f"{relation} {self.must}", f"{relation} {self.aim}")
        return [self.name, self.ours, self.other, self.unit, self.measured, *goals, verdict]


# ------------------------------------------------------------------------------------------------------------- training


def passes(repeats: int) -> list[Line]:
    """One evaluation of objective and gradient, CoNLL-2000 with the features of CRFsuite's example."""
    sentences = read_sentences("conll2000", "train")
    rival = rivals.CRFsuite(rivals.example_features, rivals.EXAMPLE_PARAMS)
    ours = (_ready_to_train("crf_tagger", {"model": crf.EXAMPLE_MODEL}, sentences, threads=n) for n in (1, 2))
    theirs, one, two = _seconds_of_passes(rival, sentences, ours, repeats)
    return [
        Line.of_ratio("L-BFGS pass, two threads, CRFsuite", two, theirs, "s", 0.20, 0.12),
        Line.of_ratio("L-BFGS pass, one thread, CRFsuite", one, theirs, "s", 0.33, 0.20),
    ]


def many_tags(repeats: int) -> list[Line]:
    """One pass on one thread, BILUO against the BIO of CRFsuite, with the same features."""
    lines = []
    for corpus in ("usaddress", "german_ler", "snips_cased"):
        sentences = read_sentences(corpus, "train", limit=8000)
        rival = rivals.CRFsuite(rivals.strong_features, rivals.STRONG_PARAMS)
        config = {"model": {"emissions": {"features": crf.STRONG_FEATURES}}, "scheme": "BILUO"}
        theirs, ours = _seconds_of_passes(rival, sentences, [_ready_to_train("crf_ner", config, sentences)], repeats)
        lines.append(Line.of_ratio(f"L-BFGS pass, {corpus}, CRFsuite", ours, theirs, "s", 0.35, 0.20))
    return lines


def _seconds_of_passes(
    rival: rivals.CRFsuite, sentences: Sequence[Sentence], ours: Iterable[Callable[[], float]], repeats: int
) -> list[float]:
    """RETURNS (list[float]): Of CRFsuite, then of those of `_ready_to_train`."""
    vocab, tasks, seconds = Vocab(), [*ours], []
    rival.read((make_doc(vocab, s) for s in sentences), (s.tags for s in sentences))
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repeats):
            theirs = rival.train(Path(folder) / "model", max_iterations=6).seconds_per_pass
            seconds.append((theirs, *(task() for task in tasks)))
    return [statistics.median(column) for column in zip(*seconds)]


def _ready_to_train(
    factory: str, config: dict[str, Any], sentences: Sequence[Sentence], *, threads: int = 1
) -> Callable[[], float]:
    """RETURNS (Callable): Six iterations more, from where the last ones stopped; gives the seconds of a pass."""
    os.environ["SPACY_CRF_THREADS"] = str(threads)
    nlp = crf.make_pipeline(factory, config)
    examples = make_examples(nlp.vocab, sentences, entities=factory == "crf_ner")
    crf.train(nlp, examples, l2=1.0, max_iterations=1)  # which makes the objective that all later iterations use
    del os.environ["SPACY_CRF_THREADS"]

    def train() -> float:
        optimizer = crf.RecordingLBFGS(l2=1.0, iterations_per_step=6)
        nlp.update(examples, sgd=optimizer)
        return optimizer.training(crf.n_weights(nlp)).seconds_per_pass

    return train


def spacy_train(repeats: int) -> list[Line]:
    """From a .spacy file to the saved best model, against a python-crfsuite script that reads the same file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_docbin(folder / "train.spacy", read_sentences("conll2000", "train"))
        save_docbin(folder / "dev.spacy", read_sentences("conll2000", "test", limit=500))
        config = crf.make_pipeline("crf_ner", {"model": crf.EXAMPLE_MODEL, "scheme": "BIO"}).config
        for part in ("train", "dev"):
            path = str(folder / f"{part}.spacy")
            config["corpora"][part] = {"@readers": "tests.benchmarks.tagged_corpus", "path": path}
        # As configs/crf_ner_large.cfg does it: with Docs in memory, spaCy copies all of them at every step.
        config["initialize"]["components"] = {"crf_ner": {"corpus": config["corpora"]["train"]}}
        config["training"]["batcher"] = {"@batchers": "spacy_crf.clock.v1"}
        config["training"]["optimizer"] = {"@optimizers": "spacy_crf.LBFGS.v1", "l2": 1.0, "iterations_per_step": 20}
        config["training"].update(max_epochs=-1, max_steps=9, eval_frequency=1)
        config.to_disk(folder / "config.cfg")
        command = [sys.executable, "-m", "spacy", "train", folder / "config.cfg", "--output", folder / "ours"]
        command += ["--code", tagged_corpus.__file__]
        script = f"from tests.benchmarks import speed; speed.train_crfsuite_from_file({name!r})"
        ours, theirs = side_by_side(
            lambda: _run(command), lambda: _run([sys.executable, "-c", script]), repeats=repeats, warm_up=False
        )
    return [Line.of_ratio("spacy train, file to model, CRFsuite", ours, theirs, "s", 0.6, 0.3)]


def train_crfsuite_from_file(folder: str, feature_set: str = "example", max_iterations: int = 10_000) -> None:
    """What people write around python-crfsuite to train on a .spacy file. No Doc is kept."""
    feature_function, params = rivals.FEATURE_FUNCTIONS[feature_set]
    rival = rivals.CRFsuite(feature_function, {**params, "max_iterations": max_iterations})
    for doc in DocBin().from_disk(Path(folder) / "train.spacy").get_docs(spacy.blank("en").vocab):
        rival.trainer.append(feature_function(doc), iob2_tags(doc))
    print(rival.train(Path(folder) / "model.crfsuite"))


def large_corpus(repeats: int) -> list[Line]:
    """german_ler, 1.7 million tokens, from one .spacy file: `spacy train configs/crf_ner_large.cfg` with CRFsuite's features and
    tags, which evaluates on a few sentences, against a script, which does not evaluate. Fifty iterations, since the size of the
    model depends on what L1 leaves of it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("train", "dev"):
            in_own_process(save_part, "german_ler", part, folder / f"{part}.spacy")
        config = load_config(ROOT / "configs" / "crf_ner_large.cfg")
        config["paths"].update(train=str(folder / "train.spacy"), dev=str(folder / "dev.spacy"))
        config["components"]["crf_ner"]["scheme"] = "BIO"
        config["components"]["crf_ner"]["model"]["emissions"]["features"] = crf.STRONG_FEATURES
        config["training"]["optimizer"].update(l1=0.05, l2=0.05, iterations_per_step=10)
        config["training"].update(max_steps=4, eval_frequency=4)  # the loop takes one more
        config["corpora"]["dev"]["limit"] = 500
        config.to_disk(folder / "config.cfg")
        command = [sys.executable, "-m", "spacy", "train", f"{name}/config.cfg", "--output", f"{name}/ours"]
        ours = watch(command)
        script = f"from tests.benchmarks import speed; speed.train_crfsuite_from_file({name!r}, 'strong', 50)"
        theirs = watch([sys.executable, "-c", script])
        sizes = [size_mb(folder / "ours" / "model-last" / "crf_ner"), size_mb(folder / "model.crfsuite")]
    return [
        Line.of_ratio("german_ler, peak memory, CRFsuite", ours.peak_mb, theirs.peak_mb, "MB", 1.0, 0.6),
        Line.of_ratio("german_ler, saved model, CRFsuite", *sizes, "MB", 0.5, 0.3),
    ]


# ----------------------------------------------------------------------------------------------------------- prediction


def novels(repeats: int) -> list[Line]:
    """Docs of 330 tokens, labels of wnut17."""
    return _pipes("novels", "novels.txt", 300, "wnut17", repeats, share=(0.70, 0.90))


def ingredients(repeats: int) -> list[Line]:
    """Docs of seven tokens, labels of ingredients_ip."""
    return _pipes("ingredients", "ingredients.txt", 19_000, "ingredients_ip", repeats, share=(0.35, 0.55))


def _pipes(name: str, file: str, n_texts: int, corpus: str, repeats: int, *, share: tuple[float, float]) -> list[Line]:
    """All the ways from texts to entities, side by side. Each turn is about texts that nobody has seen before: at the second
    reading, the tokenizer would find each of them in its cache."""
    texts = read_texts(file, n_texts * (repeats + 1))
    turns = [texts[k * n_texts : (k + 1) * n_texts] for k in range(repeats + 1)]  # the first to warm up
    with tempfile.TemporaryDirectory() as folder:
        crfsuite = _trained_crfsuite(corpus, Path(folder) / "model")
        pipelines = [_trained(corpus), spacy.blank("en"), rivals.spacy_ner(corpus), _trained(corpus, confidence=True)]
        pipelines.append(spacy.blank("en"))
        pipelines[-1].add_pipe("tag_with_crfsuite").tag = crfsuite
        tasks = [partial(_read_next, nlp, iter(turns)) for nlp in pipelines]
        seconds = side_by_side(*tasks, repeats=repeats)
    n_tokens = sum(map(len, spacy.blank("en").pipe(texts[n_texts:]))) / repeats
    ours, tokenizer, ner, confident, tagger = (n_tokens / s for s in seconds)
    return [
        Line.of_ratio(f"{name}, tokenizer alone", ours, tokenizer, "tokens/s", *share),
        Line.of_ratio(f"{name}, spaCy's ner", ours, ner, "tokens/s", 8.0, 15.0),
        Line.of_ratio(f"{name}, CRFsuite with Python features", ours, tagger, "tokens/s", 4.0, 8.0),
        Line.of_ratio(f"{name}, confidence, without", confident, ours, "tokens/s", 0.6, 0.8),
    ]


@Language.factory("tag_with_crfsuite")
class _TagWithCRFsuite:
    """python-crfsuite's tagger as a component."""

    def __init__(self, nlp: Language, name: str):
        self.tag: Callable[[Doc], list[str]] = lambda doc: []

    def __call__(self, doc: Doc) -> Doc:
        self.tag(doc)
        return doc


def _read_next(nlp: Language, turns: Iterator[list[str]]) -> None:
    for _ in nlp.pipe(next(turns)):
        pass


@lru_cache(maxsize=4)
def _trained(corpus: str, *, confidence: bool = False, limit: int = 3000) -> Language:
    """Good enough for the speed: thirty iterations on some of the corpus; saved and loaded, as people use it."""
    nlp = crf.make_pipeline("crf_ner", {"confidence": confidence})
    examples = make_examples(nlp.vocab, read_sentences(corpus, "train", limit=limit))
    crf.train(nlp, examples, l1=0.05, l2=0.05, max_iterations=30)
    with tempfile.TemporaryDirectory() as folder:
        nlp.to_disk(folder)
        return spacy.load(folder)


def _trained_crfsuite(corpus: str, model_path: Path, *, limit: int = 3000) -> rivals.CRFsuiteTagger:
    vocab = spacy.blank("en").vocab
    sentences = read_sentences(corpus, "train", limit=limit)
    rival = rivals.CRFsuite(rivals.strong_features, rivals.STRONG_PARAMS)
    rival.read((make_doc(vocab, s) for s in sentences), (s.tags for s in sentences))
    rival.train(model_path, max_iterations=30)
    return rivals.CRFsuiteTagger(rivals.strong_features, model_path)


# --------------------------------------------------------------------------------------------------------------- growth


def show_growth() -> None:
    """Seconds of the fastest pass as the data grows, and as the tags do: a table of its own, since nothing is compared."""
    sentences = read_sentences("german_ler", "train")
    rows = [_growth(f"german_ler, 1/{part}", sentences[::part]) for part in (8, 4, 2, 1)]
    sentences = read_sentences("conll2000", "train")
    for n in (5, 10, 20, 40, 80):
        rows.append(_growth(f"conll2000, {n} tags", [_with_tags(s, n) for s in sentences], factory="crf_tagger"))
    note = "Word windows and suffixes, all cores."
    show("Growth", ("data", "tokens", "s a pass", "ns a token and pass"), rows, note=note)


def _growth(name: str, sentences: Sequence[Sentence], *, factory: str = "crf_ner") -> list[object]:
    features = {"@misc": "spacy_crf.features.v1", "templates": ["orth[-2..2]", "suffix3[0]"]}
    nlp = crf.make_pipeline(factory, {"model": {"emissions": {"features": features}}})
    examples = make_examples(nlp.vocab, sentences, entities=factory == "crf_ner")
    optimizer = crf.RecordingLBFGS(l2=1.0, iterations_per_step=12)
    nlp.initialize(lambda: examples, sgd=optimizer)
    nlp.update(examples, sgd=optimizer)
    seconds = min(after - before for before, after in pairwise([*optimizer.starts, optimizer.end]))
    n_tokens = sum(len(s.words) for s in sentences)
    return [name, n_tokens, seconds, round(1e9 * seconds / n_tokens)]


def _with_tags(sentence: Sentence, n: int) -> Sentence:
    """The sentence with one of n made-up tags for each word."""
    return sentence._replace(tags=[f"T{zlib.crc32(word.encode()) % n}" for word in sentence.words])


# --------------------------------------------------------------------------------------------------------------- stream


def show_stream() -> None:
    """Memory while a stream goes by in which every third text has a word that nobody has seen, in spaCy's memory zones."""
    with tempfile.TemporaryDirectory() as folder:
        _trained("usaddress").to_disk(folder)
        rows = in_own_process(_follow_stream, folder, 12_000_000).result
    note = "Words are kept until their scores take 256 MB, about 115,000 of them with 117 tags; then the table starts anew."
    show("A long stream", ("tokens", "memory, MB", "words kept"), rows, note=note)


def _follow_stream(folder: str, n_tokens: int) -> list[tuple[str, float, int]]:
    nlp = spacy.load(folder)
    texts, rng, rows, seen = read_texts("ingredients.txt", 20_000), random.Random(0), [], 0
    while seen < n_tokens:
        with nlp.memory_zone():
            some = (rng.choice(texts) + (f" {rng.getrandbits(60):x}" if n % 3 == 0 else "") for n in range(50_000))
            seen += sum(map(len, nlp.pipe(some)))
        if seen >= len(rows) * n_tokens / 8:
            words = nlp.get_pipe("crf_ner").model.get_ref("emissions").attrs["features"]._scorer.reader.table.size
            rows.append((f"{seen:,}", memory_mb(), words))
    return rows


# -------------------------------------------------------------------------------------------------------------- command

BENCHMARKS: dict[str, Callable[[int], list[Line]]] = {
    "passes": passes,
    "many_tags": many_tags,
    "train": spacy_train,
    "novels": novels,
    "ingredients": ingredients,
    "memory": large_corpus,
}
TABLES: dict[str, Callable[[], None]] = {"growth": show_growth, "stream": show_stream}  # where nothing is compared
SLOW = ("train", "memory", *TABLES)
NAMES = ", ".join([*BENCHMARKS, *TABLES])


def main(
    only: str = typer.Option("", help=f"Comma-separated, of: {NAMES}. By default all but {', '.join(SLOW)}."),
    repeats: int = typer.Option(5, help="Turns that each task takes; medians are compared."),
    beside: bool = typer.Option(False, help="Keep all other cores busy meanwhile, as on a host that is shared."),
) -> None:
    """Speed and memory against the others, with the ratios that must be reached and those aimed at."""
    names = [name for name in only.split(",") if name] or [name for name in BENCHMARKS if name not in SLOW]
    for name in names:
        if name not in BENCHMARKS and name not in TABLES:
            raise typer.BadParameter(f"There is no benchmark {name!r}, only {NAMES}.")
    with busy_siblings() if beside else nullcontext():
        lines = [line for name in names if name in BENCHMARKS for line in BENCHMARKS[name](repeats)]
    if lines:
        header = ("benchmark, compared with", "spacy_crf", "other", "", "ratio, or s more", "must", "aim", "reached")
        note = f"Medians of {repeats} turns{', beside busy cores' if beside else ''}."
        show("Speed", header, [line.cells() for line in lines], note=note)
    for name in names:
        if name in TABLES:
            TABLES[name]()


def _run(command: Sequence[Any], *, cwd: Union[str, Path] = ROOT, **environment: str) -> None:
    """Run a command to its end; what it printed is shown only if it failed."""
    environment = {**os.environ, **environment}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


if __name__ == "__main__":
    typer.run(main)
