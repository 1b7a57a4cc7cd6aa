"""What ties between the words of a document gain, and what they cost: ``python -m lab.tests.benchmarks.graphs``

The same emissions in a chain and in graphs, on pseudo-documents of 90 sentences of court decisions; then a pass of the chains
against an iteration of belief propagation.
"""

import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, Optional

import numpy as np
import typer
from numpy.typing import NDArray
from spacy.tokens import Doc
from spacy.training import Example

from spacy_crf.features.doc_batch import DocBatch
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf_lab.ties.groups import RepeatedWords
from tests.benchmarks.document import SETS, DocumentSet, plain, read, score
from tests.benchmarks.measure import show
from tests.benchmarks.ours import WORDS_IN_A_ROW_OF_ENTITIES, make_pipeline

NAME = "german_ler_docs"
STEP = 20  # iterations of L-BFGS
NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})


class Graph(NamedTuple):
    """Settings of the ties, if any, of the model and of the component."""

    ties: Optional[Mapping[str, Any]] = None
    model: Mapping[str, Any] = NO_SETTINGS
    component: Mapping[str, Any] = NO_SETTINGS


GRAPHS = {
    "chain": Graph(),
    "next": Graph({"edges": "next"}),
    "next, distance": Graph({"edges": "next", "features": ["bias", "sent_distance"]}),
    "all": Graph({"edges": "all"}),
    "shared features": Graph({"features": []}, {"share_features": True}),
    "second stage": Graph(component={"second_stage": {"l1": 0.0, "l2": 0.1, "iterations": 60}}),
}
BELIEFS = {"@misc": "spacy_crf_lab.BeliefPropagation.v1"}
TRAININGS: dict[str, dict[str, Any]] = {
    "sentences": {"loss": {"@losses": "spacy_crf_lab.SentenceLikelihood.v1"}},
    "Bethe": {},
    "reweighted": {"training_inference": {**BELIEFS, "tree_reweighted": True}},
}


def main(
    documents: Annotated[int, typer.Option(help="Training documents; 0 for those that the set says.")] = 0,
    iterations: Annotated[int, typer.Option(help="Of L-BFGS, at most.")] = 60,
    graphs: Annotated[str, typer.Option(help=f"Between semicolons, of: {'; '.join(GRAPHS)}.")] = ";".join(GRAPHS),
    every: Annotated[int, typer.Option(help="Takes each so-many-th training document, and all of dev and test.")] = 0,
    trainings: Annotated[str, typer.Option(help=f"Between commas, of: {', '.join(TRAININGS)}.")] = "sentences",
) -> None:
    """F1 of entities on dev and test after the step that is best on dev, how many pairs of equal words are told apart, and the
    CPU time of prediction."""
    header = [
        "model",
        "trained by",
        "dev",
        "test",
        "told apart %",
        "gold %",
        "of equal ones %",
        "iterations",
        "training (CPU s)",
        "tokens/s",
        "unsettled",
    ]
    rows = []
    for graph in graphs.split(";"):
        for training in trainings.split(",") if GRAPHS[graph].ties is not None else ["chain"]:
            row = [graph, training, *_run(graph, training, documents, every, iterations)]
            print(*row, sep="\t", flush=True)
            rows.append(row)
    show("Ties between equal words", header, rows, note=f"{NAME}; told apart: pairs one of which is in an entity.")


def _run(name: str, training: str, documents: int, every: int, iterations: int) -> list[Any]:
    graph, chosen = GRAPHS[name], _documents(documents, every)
    features = {"@misc": "spacy_crf.ner_features.v1", "without": WORDS_IN_A_ROW_OF_ENTITIES}
    model: dict[str, Any] = {"emissions": {"features": features}}
    settings: dict[str, Any] = {**chosen.settings, **graph.component}
    if graph.ties is not None:
        model["emissions"]["@architectures"] = "spacy_crf.SparseEmissions.v1"
        cliques = {"repeats": {"@misc": "spacy_crf_lab.RepeatedWords.v1", **graph.ties}}
        model |= {"@architectures": "spacy_crf_lab.FactorGraph.v1", "cliques": cliques, "possible_transitions": True}
        model |= graph.model
        settings |= TRAININGS[training]
        if "training_inference" in settings:
            model["training_inference"] = settings.pop("training_inference")
    nlp = make_pipeline("crf_ner", {"model": model, **settings})
    gold = {part: read(NAME, chosen, part, nlp) for part in chosen.parts}
    gold["train"] = gold["train"][:: max(1, every)]
    examples = [Example(plain(doc), doc) for doc in gold["train"]]
    optimizer, found = LBFGS(iterations_per_step=STEP, l2=chosen.l2, delta=5e-4), []
    start = time.process_time()
    nlp.initialize(lambda: examples, sgd=optimizer)
    learning = time.process_time() - start
    for done in range(STEP, iterations + 1, STEP):
        start = time.process_time()
        nlp.update(examples, sgd=optimizer)
        learning += time.process_time() - start
        predicted = [*nlp.pipe(map(plain, gold["test"]))]
        apart = told_apart(predicted), wrongly_apart(predicted, gold["test"])
        found.append((*(score(nlp, gold[part])[0] for part in ("dev", "test")), *apart, done))
        if optimizer.stop_reason("crf_ner"):
            break
    seconds = sorted(score(nlp, gold["test"])[1] for _ in range(3))[1]
    dev, test, apart, wrongly, best = max(found)
    inference = getattr(nlp.get_pipe("crf_ner").decoding.structure, "inference", None)
    unsettled = "" if inference is None else f"{inference.n_unconverged} of {inference.n_asked}"
    speed = round(sum(map(len, gold["test"])) / seconds)
    return [dev, test, apart, told_apart(gold["test"]), wrongly, best, round(learning), speed, unsettled]


def _documents(documents: int, every: int) -> DocumentSet:
    """The first documents of each part, or all."""
    chosen = SETS[NAME]
    if every:
        return chosen._replace(parts={name: part._replace(documents=10**6) for name, part in chosen.parts.items()})
    if documents:
        return chosen._replace(parts={**chosen.parts, "train": chosen.parts["train"]._replace(documents=documents)})
    return chosen


def told_apart(docs: list[Doc]) -> float:
    """How many of the pairs of equal words of a Doc, one of which is in an entity, have different labels, in percent."""
    ends = [_ends(doc, doc) for doc in docs]
    return _share(labels[0] != labels[1] for labels in (each[:, each.any(axis=0)] for each in ends))


def wrongly_apart(docs: list[Doc], gold: list[Doc]) -> float:
    """How many of those that are in entities of one label have different labels, in percent."""
    shares = []
    for doc, annotated in zip(docs, gold):
        found, labels = _ends(doc, doc), _ends(doc, annotated)
        equal = (labels[0] == labels[1]) & (labels[0] != 0)
        shares.append((found[0] != found[1])[equal])
    return _share(shares)


def _ends(doc: Doc, annotated: Doc) -> NDArray[np.uint64]:
    """The labels of pairs of equal words: uint64[2, E]."""
    tied = RepeatedWords(edges="all", max_edges=10**6).find(DocBatch([doc]))
    return np.array([token.ent_type for token in annotated], dtype=np.uint64)[np.stack(tied)]


def _share(flags: Iterable[NDArray[np.bool_]]) -> float:
    every = np.concatenate([*flags, np.zeros(0, dtype=bool)])
    return round(100 * float(every.mean()), 1) if len(every) else 0.0


if __name__ == "__main__":
    typer.run(main)
