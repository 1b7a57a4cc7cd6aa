"""What the context of the document gains, and what it costs: ``python -m tests.benchmarks.document``

The presets without outer pairs and triples of words: alone, with attributes of the document, with a second stage, and with both,
on sets that keep the boundaries of their documents.
"""

import time
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from random import Random
from statistics import mean, median
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, Optional

import numpy as np
import typer
from numpy.typing import NDArray
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from spacy_crf.cli.texts import read_docs
from spacy_crf.optimizers.lbfgs import LBFGS

from .data import ROOT, Sentence, data_folder, iob2_tags, parse_conll
from .measure import entity_f1, show, token_accuracy
from .ours import WORDS_IN_A_ROW, WORDS_IN_A_ROW_OF_ENTITIES, make_pipeline

OF_DOCUMENT = ["doc:title_elsewhere[0]", "doc:majority_shape[0]", "doc:cased_form[0]"]


class Part(NamedTuple):
    """Files of a set, and how many of their documents are taken."""

    file: str
    documents: int


class DocumentSet(NamedTuple):
    parts: dict[str, Part]
    factory: str = "crf_ner"
    settings: Mapping[str, Any] = MappingProxyType({})
    l1: float = 0.0
    l2: float = 0.1


SETS = {
    "german_ler_docs": DocumentSet(
        {"train": Part("train.conll", 25), "dev": Part("dev.conll", 20), "test": Part("test.conll", 40)},
        settings={"scheme": "BIO"},
    ),
    "wikigold": DocumentSet({"train": Part("train.conll", 60), "test": Part("test.conll", 48)}),
    "news": DocumentSet(  # of the repository: documents of one or two sentences
        {"train": Part("train.jsonl", 240), "dev": Part("dev.jsonl", 51), "test": Part("test.jsonl", 53)}
    ),
    "ud_ewt_docs": DocumentSet(
        {"train": Part("train.conllu", 150), "dev": Part("dev.conllu", 150), "test": Part("test.conllu", 316)},
        "crf_tagger",
    ),
}


def main(
    sets: Annotated[str, typer.Option(help=f"Between commas, of: {', '.join(SETS)}.")] = ",".join(SETS),
    iterations: Annotated[int, typer.Option(help="Of L-BFGS, at most.")] = 100,
    documents: Annotated[int, typer.Option(help="Training documents; 0 for those that the set says.")] = 0,
    seeds: Annotated[int, typer.Option(help="Draws of the training documents.")] = 3,
    factory: Annotated[Optional[str], typer.Option(help="crf_ner or semicrf_ner, for sets of entities.")] = None,
) -> None:
    """F1 of entities, or accuracy of tags, on test after the same number of iterations for each model, and the CPU time."""
    rows: list[list[object]] = []
    for name in sets.split(","):
        chosen = SETS[name]
        if documents:
            parts = {**chosen.parts, "train": chosen.parts["train"]._replace(documents=documents)}
            chosen = chosen._replace(parts=parts)
        if factory is not None and chosen.factory != "crf_tagger":
            chosen = chosen._replace(factory=factory)
        for row in _compare(name, chosen, iterations, seeds):
            print(*row, sep="\t", flush=True)  # it takes a while
            rows.append(row)
    show(
        "Context of the document",
        ["set", "features", "test", "gain", "95 %", "training (CPU s)", "tokens/s", "share"],
        rows,
        note=f"Means of {seeds} draws of the training documents; intervals by bootstrap over test documents; CPU time.",
    )


class Run(NamedTuple):
    test: float  # score of the test documents
    counts: NDArray[np.float64]  # [documents, 3]: annotated, found and right entities; tokens, tokens and right tags
    seconds: float  # of training
    speed: float  # tokens a second


def _compare(name: str, chosen: DocumentSet, iterations: int, seeds: int) -> Iterator[list[object]]:
    """Rows of the table."""
    stage = {"second_stage": {"l1": chosen.l1, "l2": chosen.l2, "iterations": iterations}}
    variants: dict[str, tuple[list[str], dict[str, Any]]] = {
        "preset": ([], {}),
        "+ doc: attributes": (OF_DOCUMENT, {}),
        "+ second stage": ([], stage),
        "+ both": (OF_DOCUMENT, stage),
    }
    before: list[Run] = []
    for variant, (extra, settings) in variants.items():
        if settings and chosen.factory == "crf_tagger":
            settings = {"second_stage": {**stage["second_stage"], "features": ["token_majority"]}}
        runs = [_run(name, chosen, extra, settings, iterations, seed) for seed in range(seeds)]
        before = before or runs
        test, seconds, speed = (mean(values) for values in zip(*((run.test, run.seconds, run.speed) for run in runs)))
        gain = test - mean(run.test for run in before)
        low, high = _interval(runs, before)
        share = speed / mean(run.speed for run in before)
        interval = f"{low:+.2f} to {high:+.2f}"
        yield [name, variant, test, f"{gain:+.2f}", interval, round(seconds), round(speed), f"{share:.2f}"]


def _interval(runs: list[Run], before: list[Run]) -> tuple[float, float]:
    """Bootstrap interval of the mean difference: the same test documents are drawn for all runs."""
    n = len(runs[0].counts)
    draws = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=1000)

    def f(counts: NDArray[np.float64]) -> NDArray[np.float64]:
        gold, found, right = (draws @ counts).T
        return 200 * right / (gold + found)

    gains = np.mean([f(run.counts) - f(other.counts) for run, other in zip(runs, before)], axis=0)
    return tuple(np.quantile(gains, [0.025, 0.975]))


def _run(name: str, chosen: DocumentSet, extra: list[str], settings: dict[str, Any], iterations: int, seed: int) -> Run:
    preset = "tagger" if chosen.factory == "crf_tagger" else "ner"
    without = ["lower[-1]|lower[1]", *WORDS_IN_A_ROW] if preset == "tagger" else WORDS_IN_A_ROW_OF_ENTITIES
    features = {"@misc": f"spacy_crf.{preset}_features.v1", "extra": extra, "without": without}
    config = {"model": {"emissions": {"features": features}}, **chosen.settings, **settings}
    nlp = make_pipeline(chosen.factory, config)
    n_documents = chosen.parts["train"].documents
    whole = {**chosen.parts, "train": chosen.parts["train"]._replace(documents=10**6)}
    drawn = Random(seed).sample(read(name, chosen._replace(parts=whole), "train", nlp), n_documents)
    test = read(name, chosen, "test", nlp)
    examples = [Example(plain(doc), doc) for doc in drawn]
    optimizer = LBFGS(iterations_per_step=iterations, l1=chosen.l1, l2=chosen.l2, delta=5e-4)
    start = time.process_time()
    nlp.initialize(lambda: examples, sgd=optimizer)
    nlp.update(examples, sgd=optimizer)
    seconds = time.process_time() - start
    answers = [score(nlp, test) for _ in range(3)]
    found = list(nlp.pipe(plain(doc) for doc in test))
    counts = np.array([_counts(gold, doc, chosen.factory) for gold, doc in zip(test, found)], dtype=float)
    return Run(answers[0][0], counts, seconds, sum(map(len, test)) / median(answer[1] for answer in answers))


def _counts(gold: Doc, found: Doc, factory: str) -> tuple[int, int, int]:
    if factory == "crf_tagger":
        return len(gold), len(found), sum(one.tag_ == other.tag_ for one, other in zip(gold, found))
    one, other = ({(ent.start, ent.end, ent.label_) for ent in doc.ents} for doc in (gold, found))
    return len(one), len(other), len(one & other)


def score(nlp: Language, gold: list[Doc]) -> tuple[float, float]:
    """The score of some Docs, and the CPU seconds of `nlp.pipe`."""
    docs, start = [plain(doc) for doc in gold], time.process_time()
    docs = list(nlp.pipe(docs))
    seconds = time.process_time() - start
    if nlp.has_pipe("crf_tagger"):
        tags = [[[token.tag_ for token in doc] for doc in some] for some in (gold, docs)]
        return token_accuracy(*tags), seconds
    return entity_f1(*([iob2_tags(doc) for doc in some] for some in (gold, docs))), seconds


def plain(doc: Doc) -> Doc:
    """The same words and sentences, without annotation."""
    starts = [token.is_sent_start for token in doc]
    return Doc(doc.vocab, words=[token.text for token in doc], sent_starts=starts)


def read(name: str, chosen: DocumentSet, part: str, nlp: Language) -> list[Doc]:
    """Some of the documents of a file."""
    file, n = chosen.parts[part]
    if name == "news":
        return read_docs(ROOT / "assets" / "news" / file, nlp)[:n]
    docs, path = [], data_folder() / name / file
    for sentences in islice(_documents(path), n):
        words, tags = [word for s in sentences for word in s.words], [tag for s in sentences for tag in s.tags]
        starts = [n == 0 for s in sentences for n in range(len(s.words))]
        annotation = {"tags": tags} if chosen.factory == "crf_tagger" else {"ents": tags}
        docs.append(Doc(nlp.vocab, words=words, sent_starts=starts, **annotation))
    return docs


def _documents(path: Path) -> Iterator[list[Sentence]]:
    """Sentences by document: of columns, where a line -DOCSTART- comes before each, and of CoNLL-U (with XPOS)."""
    with path.open(encoding="utf8") as lines:
        sentences = _conllu(lines) if path.suffix == ".conllu" else parse_conll(lines)
        document: list[Sentence] = []
        for sentence in sentences:
            if sentence.words[0] != "-DOCSTART-":
                document.append(sentence)
            elif document:
                yield document
                document = []
        yield document


def _conllu(lines: Iterator[str]) -> Iterator[Sentence]:
    columns: list[str] = []
    for line in lines:
        fields = line.rstrip("\n").split("\t")
        if line.startswith("# newdoc"):
            columns += ["-DOCSTART-\tO", ""]
        elif len(fields) == 1 and not line.startswith("#"):
            columns.append("")
        elif fields[0].isdigit():
            columns.append(f"{fields[1]}\t{fields[4]}")
    yield from parse_conll(columns)


if __name__ == "__main__":
    typer.run(main)
