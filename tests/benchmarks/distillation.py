"""What a student gains from a teacher's probabilities on raw text: ``python -m tests.benchmarks.distillation``

The teacher is the preset with clusters of words, which knows more than the student's features can say. The student is the preset
alone, trained on the annotated texts and on raw ones as the teacher sees them.
"""

import statistics
import time
from collections.abc import Iterable, Iterator
from functools import partial
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple, Optional

import spacy
import typer
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example

from spacy_crf.cli.distil import distil, find_teacher
from spacy_crf.cli.formats.source import Item
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.types import SOFT_LABELS

from .accuracy import SETTINGS
from .clusters import EXTRA
from .data import Sentence, iob2_tags, make_doc, make_examples, read_sentences, read_texts
from .measure import entity_f1, show
from .ours import WORDS_IN_A_ROW_OF_ENTITIES, make_pipeline

STEP = 10  # iterations of L-BFGS
GAIN, LEAST_SHARE = 0.5, 0.8  # points of F1, and of the speed without
KINDS = ("distilled", "hard", "self")
SURE = 0.9  # of spans that a model teaches itself


class Trained(NamedTuple):
    nlp: Language
    dev: float  # F1 after the step that is best on dev
    test: float
    iterations: int


def main(
    name: Annotated[str, typer.Option("--set", help="Set of entities.")] = "wnut17",
    texts: Annotated[str, typer.Option(help="File under plain/.")] = "tweets.txt",
    limit: Annotated[int, typer.Option(help="Lines of it.")] = 30_000,
    clusters: Annotated[
        str, typer.Option(help="Of the teacher: as in [initialize.components].")
    ] = "spacy-lookups-data",
    weight: Annotated[float, typer.Option(help="Of a raw text beside an annotated one.")] = 1.0,
    min_prob: Annotated[float, typer.Option(help="Less probable spans are left out.")] = 0.05,
    iterations: Annotated[int, typer.Option(help="Of L-BFGS, at most.")] = 70,
    sentences: Annotated[Optional[int], typer.Option(help="Of the training data, at most.")] = None,
    min_count: Annotated[int, typer.Option(help="Of a feature, for a student with raw texts.")] = 1,
    kinds: Annotated[str, typer.Option(help=f"Students, between commas: {', '.join(KINDS)}.")] = "distilled",
) -> None:
    """F1 of entities on dev and test, and the speed of prediction. Students: *distilled*, from probabilities; *hard*, from the
    teacher's best labelling; *self*, from what it is sure of itself, while nothing is said of the tokens that it doubts."""
    run = partial(_train, name, iterations=iterations, sentences=sentences)
    trained = {"without": run(), "teacher": run(clusters=clusters)}
    for kind in kinds.split(","):
        teacher = trained["without" if kind == "self" else "teacher"].nlp
        start = time.process_time()
        raw = [*_annotate(teacher, read_texts(texts, limit), kind, min_prob)]
        print(f"{kind}: {len(raw)} texts annotated in {time.process_time() - start:.0f} s of a core")
        trained[kind] = run(raw=raw, weight=weight, min_count=min_count)
        print(kind, trained[kind][1:], flush=True)
    header = ["set", "", "dev F1", "test F1", "gain", "iterations", "tokens/s", "share", ""]
    note = (
        f"L-BFGS with {SETTINGS}; {limit} lines of {texts}, clusters {clusters}, weight {weight}, min_prob {min_prob}, "
        f"min_count {min_count} of students."
    )
    show("Distillation", header, _rows(name, trained), note=note)


def _rows(name: str, trained: dict[str, Trained]) -> Iterator[list[object]]:
    test = read_sentences(name, "test")
    seconds = _seconds({kind: one.nlp for kind, one in trained.items()}, test)
    without = trained["without"]
    for kind, (_, dev, f1, done) in trained.items():
        share, gain = seconds["without"] / seconds[kind], f1 - without.test
        met = "" if kind != "distilled" else "met" if gain >= GAIN and share >= LEAST_SHARE else "MISSED"
        speed = round(sum(len(sentence.words) for sentence in test) / seconds[kind])
        yield [name, kind, dev, f1, f"{gain:+.2f}", done, speed, f"{share:.2f}", met]


def _annotate(teacher: Language, lines: Iterable[str], kind: str, min_prob: float) -> Iterator[Doc]:
    """Raw texts, whose tokens are between spaces, with soft labels."""
    docs = (Doc(teacher.vocab, words=line.split()) for line in lines)
    if kind == "hard":
        for doc in teacher.pipe(docs):
            yield _certain(doc, [Span(doc, ent.start, ent.end, label=ent.label) for ent in doc.ents])
        return
    raw = (Item(f"line {number}", doc) for number, doc in enumerate(docs, start=1))
    for doc in distil(find_teacher(teacher), raw, min_prob=min_prob):
        group = doc.spans[SOFT_LABELS]
        if kind == "self":
            sure = [span for span, score in zip(group, group.attrs["scores"]) if score >= SURE]
            told = {token.i for span in sure for token in span}
            doubted = {token.i for span in group for token in span} - told
            _certain(doc, [*sure, *(Span(doc, i, i + 1) for i in sorted(doubted))])
        yield doc


def _certain(doc: Doc, spans: list[Span]) -> Doc:
    """Spans without a label say that nothing is known of their tokens."""
    doc.set_ents([], default="missing")
    doc.spans[SOFT_LABELS] = spans
    doc.spans[SOFT_LABELS].attrs["scores"] = [1.0] * len(spans)
    return doc


def _train(
    name: str,
    *,
    iterations: int,
    sentences: Optional[int],
    clusters: Optional[str] = None,
    raw: Iterable[Doc] = (),
    weight: float = 1.0,
    min_count: int = 1,
) -> Trained:
    features = {"@misc": "spacy_crf.ner_features.v1", "extra": EXTRA if clusters else []}
    features["without"] = WORDS_IN_A_ROW_OF_ENTITIES
    settings: dict[str, Any] = {"model": {"emissions": {"features": features, "min_count": min_count}}}
    if raw:
        settings["loss"] = {"@losses": "spacy_crf.SoftLabels.v1", "weight": weight}
    nlp = make_pipeline("crf_ner", settings)
    if clusters:
        nlp.config["initialize"]["components"]["crf_ner"] = {"clusters": clusters}
    examples = make_examples(nlp.vocab, read_sentences(name, "train", limit=sentences))
    for doc in raw:
        words = [token.text for token in doc]
        gold = Doc(nlp.vocab, words=words)
        spans = [Span(gold, span.start, span.end, label=span.label_) for span in doc.spans[SOFT_LABELS]]
        gold.spans[SOFT_LABELS] = spans
        gold.spans[SOFT_LABELS].attrs.update(doc.spans[SOFT_LABELS].attrs)
        examples.append(Example(Doc(nlp.vocab, words=words), gold))
    optimizer = LBFGS(iterations_per_step=STEP, **SETTINGS)
    nlp.initialize(lambda: examples, sgd=optimizer)
    found = []
    for done in range(STEP, iterations + 1, STEP):
        nlp.update(examples, sgd=optimizer)
        found.append((_f1(nlp, name, "dev"), _f1(nlp, name, "test"), done))
    return Trained(nlp, *max(found))


def _seconds(pipelines: dict[str, Language], sentences: list[Sentence]) -> dict[str, float]:
    """Of a core, to predict them all: as the pipelines are when they were saved, without weights that are zero."""
    times: dict[str, list[float]] = {kind: [] for kind in pipelines}
    with TemporaryDirectory() as folder:
        for kind, nlp in pipelines.items():
            nlp.to_disk(f"{folder}/{kind}")
        loaded = {kind: spacy.load(f"{folder}/{kind}") for kind in pipelines}
    docs = {kind: [make_doc(nlp.vocab, sentence) for sentence in sentences] for kind, nlp in loaded.items()}
    for _ in range(15):
        for kind, nlp in loaded.items():
            start = time.process_time()
            _predict(nlp, docs[kind])
            times[kind].append(time.process_time() - start)
    return {kind: statistics.median(of_kind) for kind, of_kind in times.items()}


def _predict(nlp: Language, docs: list[Doc]) -> None:
    pipe = nlp.get_pipe("crf_ner")
    for begin in range(0, len(docs), 128):
        pipe.predict(docs[begin : begin + 128])


def _f1(nlp: Language, name: str, part: str) -> float:
    sentences = read_sentences(name, part)
    docs = nlp.pipe([make_doc(nlp.vocab, sentence) for sentence in sentences])
    return entity_f1([s.tags for s in sentences], [iob2_tags(doc) for doc in docs])


if __name__ == "__main__":
    typer.run(main)
