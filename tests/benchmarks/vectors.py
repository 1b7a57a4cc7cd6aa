"""What vectors of words gain beside clusters, gazetteers and the document: ``python -m tests.benchmarks.vectors``

The preset of `crf_ner` alone, and one thing after the other added to it. Vectors are those of ``--vectors``, a pipeline, or else
floret's, learned from the texts of the training data and from files under ``plain/``.
"""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple, Optional

import typer
from spacy.language import Language

from spacy_crf.cli.clusters import clusters_of_texts, vectors_of_texts
from spacy_crf.features.clusters import write_clusters
from spacy_crf.optimizers.lbfgs import LBFGS

from .clusters import EXTRA, decoded_by_spans, predict_all, score_of
from .data import data_folder, make_doc, make_examples, read_sentences, write_training_text
from .measure import show, side_by_side
from .ours import make_pipeline

GAZETTEERS = {
    "cities": "cities.txt",
    "countries": "countries.txt",
    "states": "us_states.txt",
    "regions": "regions_iso.txt",
    "first_names": "first_names_us.txt",
    "first_names_elsewhere": "first_names_world.txt",
    "surnames": "surnames_us.txt",
    "companies": "companies_us.txt",
}
DOCUMENT = ["doc:title_elsewhere[0]", "doc:majority_shape[0]"]
LEAST_SHARE = 0.5  # of the speed of the first rung


class Rung(NamedTuple):
    """What is added to the preset."""

    name: str
    extra: list[str]
    initialize: dict[str, Any]
    without: tuple[str, ...] = ()

    def plus(self, name: str, extra: list[str], **initialize: Any) -> "Rung":
        lists = {**self.initialize, **initialize}
        return self._replace(name=f"+ {name}", extra=[*self.extra, *extra], initialize=lists)


def main(
    sets: Annotated[str, typer.Option(help="Sets of entities, between commas.")] = "wnut17",
    vectors: Annotated[Optional[str], typer.Option(help="A pipeline with vectors.")] = None,
    clusters: Annotated[Optional[str], typer.Option(help="A file of clusters, or spacy-lookups-data.")] = None,
    texts: Annotated[
        str, typer.Option(help="Files under plain/, between commas, to make what is not given.")
    ] = "tweets.txt",
    dims: Annotated[int, typer.Option(help="Of the vectors, at most.")] = 100,
    length: Annotated[float, typer.Option(help="Of the vectors, in the mean.")] = 2.0,
    offsets: Annotated[str, typer.Option(help="Of the vectors.")] = "-1..1",
    rungs: Annotated[str, typer.Option(help="Which to train, by their numbers from 0 on.")] = "0,1,2,3,4",
    l1: Annotated[float, typer.Option(help="Of L-BFGS.")] = 0.0,
    l2: Annotated[float, typer.Option(help="Of L-BFGS.")] = 0.5,
    iterations: Annotated[int, typer.Option(help="Of L-BFGS, at most.")] = 30,
    sentences: Annotated[int, typer.Option(help="Of the training data, drawn by chance; 0 for all.")] = 0,
    step: Annotated[int, typer.Option(help="Iterations from one look at dev to the next.")] = 3,
    more: Annotated[str, typer.Option(help="Templates beside those of the clusters, between commas.")] = "",
    without: Annotated[str, typer.Option(help="Templates of the preset to leave out, between commas.")] = "",
) -> None:
    """F1 of entities on dev and test after the step that is best on dev, and the speed of prediction, one beside the other."""
    header = ["set", "features", "dev F1", "test F1", "gain", "iterations", "tokens/s", "of the first", ""]
    header += ["by spans: dev", "test", "min_prob", "by label: dev", "test", "iterations"]
    rows: list[list[object]] = []
    for name in sets.split(","):
        with TemporaryDirectory() as folder:
            files = [
                write_training_text(name, Path(folder)),
                *(data_folder() / "plain" / each for each in texts.split(",")),
            ]
            given = vectors or _made_vectors(files, Path(folder) / "vectors", dims)
            clusters_given = clusters or _made_clusters(files, Path(folder) / "clusters.bin")
            left_out = tuple(filter(None, without.split(",")))
            of_vectors = {"path": given, "dims": dims, "length": length}
            ladder = [
                rung._replace(without=left_out)
                for rung in _ladder(of_vectors, clusters_given, offsets, [t for t in more.split(",") if t])
            ]
            chosen = [ladder[int(number)] for number in rungs.split(",")]
            train = partial(_train, name, sentences)
            make_optimizer = partial(LBFGS, l1=l1, l2=l2, iterations_per_step=step)
            rows += _compare(name, chosen, train, make_optimizer, range(step, iterations + 1, step))
    note = f"L-BFGS with l1 = {l1}, l2 = {l2}; the best of {iterations} iterations by dev. Each row has all of the row above."
    show("Vectors of words", header, rows, note=note)


def _ladder(vectors: dict[str, Any], clusters: str, offsets: str, more: list[str]) -> list[Rung]:
    preset = Rung("preset", [], {})
    with_clusters = preset.plus("clusters", [*EXTRA, *more], clusters=clusters)
    template = f"vector[{offsets}]"
    with_vectors = with_clusters.plus("vectors", [template], vectors=vectors)
    files = {name: str(data_folder() / "gazetteers" / file) for name, file in GAZETTEERS.items()}
    with_lists = with_vectors.plus("gazetteers", [f"in:{name}[-1..1]" for name in GAZETTEERS], gazetteers=files)
    return [preset, with_clusters, with_vectors, with_lists, with_lists.plus("document", DOCUMENT)]


def _made_vectors(files: list[Path], output: Path, dims: int) -> str:
    options = {"dim": dims, "bucket": 50_000, "minn": 3, "maxn": 5, "model": "skipgram", "epoch": 10, "minCount": 2}
    vectors_of_texts(files, **options, thread=1, verbose=0).to_disk(output)
    return str(output)


def _made_clusters(files: list[Path], output: Path) -> str:
    write_clusters(output, clusters_of_texts(files, 1000, output))
    return str(output)


def _compare(
    name: str, ladder: list[Rung], train: Callable, make_optimizer: Callable[[], LBFGS], steps: range
) -> list[list[object]]:
    """Rows of the table."""
    pipelines, found = {}, {}
    for rung in ladder:
        pipelines[rung.name], found[rung.name] = train(rung, make_optimizer(), steps)
    docs = {rung: [make_doc(nlp.vocab, s) for s in read_sentences(name, "test")] for rung, nlp in pipelines.items()}
    tasks = [partial(predict_all, nlp, docs[rung]) for rung, nlp in pipelines.items()]
    seconds = dict(zip(pipelines, side_by_side(*tasks, repeats=9)))
    rows, first = [], None
    for rung in ladder:
        dev, test, best = found[rung.name].viterbi
        first = test if first is None else first
        share = seconds[ladder[0].name] / seconds[rung.name]
        speed = round(sum(map(len, docs[rung.name])) / seconds[rung.name])
        met = "met" if share >= LEAST_SHARE else "MISSED"
        rows.append([name, rung.name, dev, test, f"{test - first:+.2f}", best, speed, f"{share:.2f}", met])
        rows[-1] += [*found[rung.name].spans]
    return rows


class Found(NamedTuple):
    """F1 on dev and test after the iterations that are best on dev, and how many these are."""

    viterbi: tuple[float, float, int]
    spans: tuple[float, float, float, float, float, int]  # see `Spans`


def _train(name: str, n_sentences: int, rung: Rung, optimizer: LBFGS, steps: range) -> tuple[Language, Found]:
    """The pipeline after all iterations, and what it reached."""
    features = {"@misc": "spacy_crf.ner_features.v1", "extra": rung.extra}
    if rung.without:
        features["without"] = list(rung.without)
    model = {"emissions": {"features": features}}
    nlp = make_pipeline("crf_ner", {"scheme": "auto", "model": model})
    nlp.config["initialize"]["components"]["crf_ner"] = rung.initialize
    known = read_sentences(name, "train")
    if n_sentences:
        random.Random(1).shuffle(known)
        known = known[:n_sentences]
    examples = make_examples(nlp.vocab, known)
    nlp.initialize(lambda: examples, sgd=optimizer)
    found, by_spans = [], []
    for done in steps:
        nlp.update(examples, sgd=optimizer)
        found.append((score_of(nlp, name, "dev"), score_of(nlp, name, "test"), done))
        by_spans.append((*decoded_by_spans(nlp, name), done))
    return nlp, Found(max(found), max(by_spans))


if __name__ == "__main__":
    typer.run(main)
