"""What clusters of words gain, and what they cost: ``python -m tests.benchmarks.clusters``

The preset of `crf_ner`, for sets of tags of `crf_tagger`: without clusters, with those of spacy-lookups-data where it is
installed, and with Brown clusters of files under ``plain/``.
"""

import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple, Optional

import typer
from spacy.language import Language
from spacy.util import registry

from spacy_crf.cli.clusters import clusters_of_texts
from spacy_crf.features.clusters import write_clusters
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.pipeline.thresholds import best, best_of_labels, measure

from .accuracy import SETTINGS
from .data import SETS, data_folder, iob2_tags, make_doc, make_examples, read_sentences, write_training_text
from .measure import entity_f1, show, side_by_side, token_accuracy
from .ours import WORDS_IN_A_ROW_OF_ENTITIES, make_pipeline

ATTRIBUTES = ["cluster", "cluster4", "cluster6", "cluster10", "cluster20"]
OF_TAGS = [f"{attribute}[-1..1]" for attribute in ATTRIBUTES]
EXTRA = [*OF_TAGS, "cluster6[0]|shape[0]", "cluster[0]|is_title[0]"]
LEAST_SHARE = 0.9  # of the speed without


def main(
    sets: Annotated[str, typer.Option(help="Sets, between commas.")] = "wnut17",
    texts: Annotated[str, typer.Option(help="Files under plain/, between commas; none for no Brown clusters.")] = (
        "tweets.txt,novels.txt,news_reuters.txt,news_wikinews.txt,wikipedia.txt"
    ),
    own: Annotated[bool, typer.Option(help="And the words of the training data.")] = False,
    n: Annotated[int, typer.Option(help="How many Brown clusters.")] = 1000,
    min_count: Annotated[int, typer.Option(help="Words that are rarer are in none.")] = 3,
    lower: Annotated[bool, typer.Option(help="Leave case out of account.")] = False,
    iterations: Annotated[int, typer.Option(help="Of L-BFGS, at most.")] = 70,
    step: Annotated[int, typer.Option(help="Iterations from one look at dev to the next.")] = 5,
) -> None:
    """F1 of entities, or accuracy of tags, on dev and test after the step that is best on dev, and the speed of prediction."""
    header = ["set", "clusters", "words", "dev", "test", "gain", "iterations", "tokens/s", "share", ""]
    rows: list[list[object]] = []
    with TemporaryDirectory() as folder:
        sources = {"none": None}
        if "en" in registry.lookups:
            sources["spacy-lookups-data"] = "spacy-lookups-data"
        if texts:
            files = [data_folder() / "plain" / name for name in texts.split(",")]
            files += [write_training_text(name, Path(folder)) for name in sets.split(",") if own]
            sources[f"Brown, {n}"] = _brown(files, Path(folder) / "clusters.bin", n, min_count, lower)
        for name in sets.split(","):
            rows += _compare(name, sources, range(step, iterations + 1, step))
    note = f"L-BFGS with {SETTINGS}; templates {', '.join(EXTRA)}; for tags the first {len(OF_TAGS)}."
    show("Clusters of words", header, rows, note=note)


def _brown(files: list[Path], path: Path, n: int, min_count: int, lower: bool) -> str:
    start, cpu = time.perf_counter(), time.process_time()
    made = clusters_of_texts(files, n, path, min_count=min_count, lower=lower)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    print(f"{len(made.words)} words in {n} Brown clusters after {seconds:.0f} s ({cpu:.0f} s of a core)")
    write_clusters(path, made)
    return str(path)


def _compare(name: str, sources: dict[str, Optional[str]], steps: range) -> list[list[object]]:
    """Rows of the table."""
    trained = {source: _train(name, given, steps) for source, given in sources.items()}
    pipelines = {source: nlp for source, (nlp, _) in trained.items()}
    docs = {source: [make_doc(nlp.vocab, s) for s in read_sentences(name, "test")] for source, nlp in pipelines.items()}
    tasks = [partial(predict_all, nlp, docs[source]) for source, nlp in pipelines.items()]
    seconds = dict(zip(pipelines, side_by_side(*tasks, repeats=9)))
    rows, without = [], None
    for source, nlp in pipelines.items():
        dev, test, best = trained[source][1]
        without = test if without is None else without
        share = seconds["none"] / seconds[source]
        clusters = nlp.pipeline[0][1].sparse_features.clusters
        speed = round(sum(map(len, docs[source])) / seconds[source])
        met = "met" if share >= LEAST_SHARE else "MISSED"
        gain = f"{test - without:+.2f}"
        rows.append([name, source, len(clusters or ()), dev, test, gain, best, speed, f"{share:.2f}", met])
    return rows


def _train(name: str, clusters: Optional[str], steps: range) -> tuple[Language, tuple[float, float, int]]:
    """The pipeline after all iterations; and the scores on dev and on test after those that are best on dev, and how many these
    are."""
    entities = SETS[name].entities
    factory, features, extra = "crf_ner", {"@misc": "spacy_crf.ner_features.v1"}, EXTRA
    features["without"] = WORDS_IN_A_ROW_OF_ENTITIES
    if not entities:
        factory, features, extra = "crf_tagger", {"@misc": "spacy_crf.tagger_features.v1"}, OF_TAGS
    features["extra"] = extra if clusters else []
    nlp = make_pipeline(factory, {"model": {"emissions": {"features": features}}})
    if clusters:
        nlp.config["initialize"]["components"][factory] = {"clusters": clusters}
    examples = make_examples(nlp.vocab, read_sentences(name, "train"), entities=entities)
    optimizer = LBFGS(iterations_per_step=steps.step, **SETTINGS)
    nlp.initialize(lambda: examples, sgd=optimizer)
    found = []
    for done in steps:
        nlp.update(examples, sgd=optimizer)
        found.append((score_of(nlp, name, "dev"), score_of(nlp, name, "test"), done))
    return nlp, max(found)


def predict_all(nlp: Language, docs: list) -> None:
    [(_, pipe)] = nlp.pipeline
    for begin in range(0, len(docs), 128):
        pipe.predict(docs[begin : begin + 128])


class Spans(NamedTuple):
    """What a pipeline reaches where it decodes by spans, with the least probability that is best on dev: one for all labels, and
    one for each."""

    dev: float
    test: float
    min_prob: float
    dev_by_label: float
    test_by_label: float


def decoded_by_spans(nlp: Language, name: str) -> Spans:
    """The component goes on decoding as before."""
    pipe = nlp.get_pipe("crf_ner")
    before, examples = dict(pipe.cfg), make_examples(nlp.vocab, read_sentences(name, "dev"))
    points, found = measure(pipe, examples), []
    for least in (best(points).min_prob, best_of_labels(points)):
        [chosen] = measure(pipe, examples, [least])
        pipe.cfg.update(decode="spans", min_prob=least)
        found += [100 * chosen.f(), score_of(nlp, name, "test")]
        pipe.cfg.update(before)
    return Spans(*found[:2], best(points).min_prob, *found[2:])


def score_of(nlp: Language, name: str, part: str) -> float:
    """F1 of entities, or accuracy of tags."""
    sentences = read_sentences(name, part)
    gold = [sentence.tags for sentence in sentences]
    docs = nlp.pipe([make_doc(nlp.vocab, sentence) for sentence in sentences])
    if SETS[name].entities:
        return entity_f1(gold, [iob2_tags(doc) for doc in docs])
    return token_accuracy(gold, [[token.tag_ for token in doc] for doc in docs])


if __name__ == "__main__":
    typer.run(main)
