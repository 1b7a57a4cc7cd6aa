"""What the context of the document gains, and what it costs: ``python -m tests.benchmarks.document``

The presets without outer pairs and triples of words: alone, with attributes of the document, with a second stage, and with both,
on sets that keep the boundaries of their documents.
"""

import time
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, Optional

import typer
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from spacy_crf.cli.texts import read_docs
from spacy_crf.optimizers.lbfgs import LBFGS

from .data import ROOT, Sentence, data_folder, iob2_tags, parse_conll
from .measure import entity_f1, show, token_accuracy
from .ours import WORDS_IN_A_ROW, WORDS_IN_A_ROW_OF_ENTITIES, make_pipeline

STEP = 20  # iterations of L-BFGS
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
    "news": DocumentSet(  # of the repository: documents of one or two sentences
        {"train": Part("train.jsonl", 267), "dev": Part("dev.jsonl", 51), "test": Part("test.jsonl", 53)}
    ),
    "ud_ewt_docs": DocumentSet(
        {"train": Part("train.conllu", 150), "dev": Part("dev.conllu", 150), "test": Part("test.conllu", 316)},
        "crf_tagger",
    ),
}


def main(
    sets: Annotated[str, typer.Option(help=f"Between commas, of: {', '.join(SETS)}.")] = ",".join(SETS),
    iterations: Annotated[int, typer.Option(help="Of L-BFGS, at most.")] = 60,
    documents: Annotated[int, typer.Option(help="Training documents; 0 for those that the set says.")] = 0,
    factory: Annotated[Optional[str], typer.Option(help="crf_ner or semicrf_ner, for sets of entities.")] = None,
) -> None:
    """F1 of entities, or accuracy of tags, on dev and test after the step that is best on dev, and the time of prediction."""
    header = ["set", "features", "dev", "test", "gain", "iterations", "training (CPU s)", "tokens/s", "share"]
    rows: list[list[object]] = []
    for name in sets.split(","):
        chosen = SETS[name]
        if documents:
            parts = {**chosen.parts, "train": chosen.parts["train"]._replace(documents=documents)}
            chosen = chosen._replace(parts=parts)
        if factory is not None and chosen.factory != "crf_tagger":
            chosen = chosen._replace(factory=factory)
        for row in _compare(name, chosen, iterations):
            print(*row, sep="\t", flush=True)  # it takes a while
            rows.append(row)
    show(
        "Context of the document",
        header,
        rows,
        note="The step that is best on dev; l1, l2 as in the configs; CPU time.",
    )


def _compare(name: str, chosen: DocumentSet, iterations: int) -> Iterator[list[object]]:
    """Rows of the table."""
    stage = {"second_stage": {"l1": chosen.l1, "l2": chosen.l2, "iterations": iterations}}
    variants: dict[str, tuple[list[str], dict[str, Any]]] = {
        "preset": ([], {}),
        "+ doc: attributes": (OF_DOCUMENT, {}),
        "+ second stage": ([], stage),
        "+ both": (OF_DOCUMENT, stage),
    }
    without: Optional[tuple[float, float]] = None
    for variant, (extra, settings) in variants.items():
        dev, test, best, seconds, speed = _run(name, chosen, extra, settings, iterations)
        without = without or (test, speed)
        gain, share = f"{test - without[0]:+.2f}", f"{speed / without[1]:.2f}"
        yield [name, variant, dev, test, gain, best, round(seconds), round(speed), share]


def _run(name: str, chosen: DocumentSet, extra: list[str], settings: dict[str, Any], iterations: int) -> tuple:
    preset = "tagger" if chosen.factory == "crf_tagger" else "ner"
    without = ["lower[-1]|lower[1]", *WORDS_IN_A_ROW] if preset == "tagger" else WORDS_IN_A_ROW_OF_ENTITIES
    features = {"@misc": f"spacy_crf.{preset}_features.v3", "extra": extra, "without": without}
    config = {"model": {"emissions": {"features": features}}, **chosen.settings, **settings}
    nlp = make_pipeline(chosen.factory, config)
    gold = {part: read(name, chosen, part, nlp) for part in chosen.parts}
    examples = [Example(plain(doc), doc) for doc in gold["train"]]
    optimizer = LBFGS(iterations_per_step=STEP, l1=chosen.l1, l2=chosen.l2, delta=5e-4)
    start, found = time.process_time(), []
    nlp.initialize(lambda: examples, sgd=optimizer)
    learning = time.process_time() - start
    for done in range(STEP, iterations + 1, STEP):
        start = time.process_time()
        nlp.update(examples, sgd=optimizer)
        learning += time.process_time() - start
        found.append((*(score(nlp, gold[part])[0] for part in ("dev", "test")), done))
        if optimizer.stop_reason(chosen.factory):
            break
    seconds = sorted(score(nlp, gold["test"])[1] for _ in range(5))[2]
    return *max(found), learning, sum(map(len, gold["test"])) / seconds


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
