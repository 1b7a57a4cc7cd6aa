"""What ties between the words of a document gain, and what they cost: ``python -m tests.benchmarks.graphs``

The same emissions in a chain and in graphs, on pseudo-documents of 90 sentences of court decisions; then a pass of the chains
against an iteration of belief propagation.
"""

import time
from typing import Annotated, Any

import numpy as np
import typer
from spacy.tokens import Doc
from spacy.training import Example

from spacy_crf.cliques.repeated_words import RepeatedWords
from spacy_crf.features.doc_batch import DocBatch
from spacy_crf.optimizers.lbfgs import LBFGS

from .document import SETS, plain, read, score
from .measure import show
from .ours import make_pipeline

NAME = "german_ler_docs"
STEP = 20  # iterations of L-BFGS
GRAPHS: dict[str, dict[str, Any]] = {
    "chain": {},
    "next": {"edges": "next"},
    "next, distance": {"edges": "next", "features": ["bias", "sent_distance"]},
    "all": {"edges": "all"},
    "shared features": {"features": []},
}
BELIEFS = {"@misc": "spacy_crf.BeliefPropagation.v1"}
TRAININGS: dict[str, dict[str, Any]] = {
    "sentences": {"loss": {"@losses": "spacy_crf.SentenceLikelihood.v1"}},
    "Bethe": {},
    "reweighted": {"training_inference": {**BELIEFS, "tree_reweighted": True}},
}


def main(
    documents: Annotated[int, typer.Option(help="Training documents; 0 for those that the set says.")] = 0,
    iterations: Annotated[int, typer.Option(help="Of L-BFGS, at most.")] = 60,
    graphs: Annotated[str, typer.Option(help=f"Between semicolons, of: {'; '.join(GRAPHS)}.")] = ";".join(GRAPHS),
    trainings: Annotated[str, typer.Option(help=f"Between commas, of: {', '.join(TRAININGS)}.")] = "sentences",
) -> None:
    """F1 of entities on dev and test after the step that is best on dev, how many pairs of equal words are told apart, and the
    CPU time of prediction."""
    header = [
        "model",
        "dev",
        "test",
        "told apart %",
        "gold %",
        "iterations",
        "training (CPU s)",
        "tokens/s",
        "unsettled",
    ]
    rows = []
    for graph in graphs.split(";"):
        for training in trainings.split(",") if GRAPHS[graph] else ["chain"]:
            row = [graph, training, *_run(graph, training, documents, iterations)]
            print(*row, sep="\t", flush=True)
            rows.append(row)
    show("Ties between equal words", header, rows, note=f"{NAME}; told apart: pairs one of which is in an entity.")


def _run(graph: str, training: str, documents: int, iterations: int) -> list[Any]:
    chosen = SETS[NAME]
    if documents:
        chosen = chosen._replace(parts={**chosen.parts, "train": chosen.parts["train"]._replace(documents=documents)})
    model: dict[str, Any] = {"emissions": {"features": {"@misc": "spacy_crf.ner_features.v2"}}}
    if GRAPHS[graph]:
        model["emissions"]["@architectures"] = "spacy_crf.SparseEmissions.v1"
        cliques = {"repeats": {"@misc": "spacy_crf.RepeatedWords.v1", **GRAPHS[graph]}}
        model |= {"@architectures": "spacy_crf.FactorGraph.v1", "cliques": cliques, "possible_transitions": True}
        model["share_features"] = graph.startswith("shared")
        settings = dict(TRAININGS[training])
        if "training_inference" in settings:
            model["training_inference"] = settings.pop("training_inference")
        nlp = make_pipeline("crf_ner", {"model": model, **chosen.settings, **settings})
    else:
        nlp = make_pipeline("crf_ner", {"model": model, **chosen.settings})
    gold = {part: read(NAME, chosen, part, nlp) for part in chosen.parts}
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
        apart = told_apart(predicted)
        found.append((*(score(nlp, gold[part])[0] for part in ("dev", "test")), apart, done))
        if optimizer.stop_reason("crf_ner"):
            break
    seconds = sorted(score(nlp, gold["test"])[1] for _ in range(3))[1]
    dev, test, apart, best = max(found)
    inference = getattr(nlp.get_pipe("crf_ner").decoding.structure, "inference", None)
    unsettled = "" if inference is None else f"{inference.n_unsettled} of {inference.n_asked}"
    speed = round(sum(map(len, gold["test"])) / seconds)
    return [dev, test, apart, told_apart(gold["test"]), best, round(learning), speed, unsettled]


def told_apart(docs: list[Doc]) -> float:
    """How many of the pairs of equal words of a Doc, one of which is in an entity, have different labels, in percent."""
    pairs, different = 0, 0
    for doc in docs:
        tied = RepeatedWords(edges="all", max_edges=10**6).find(DocBatch([doc]))
        labels = np.array([token.ent_type for token in doc], dtype=np.uint64)
        ends = labels[np.stack(tied)]
        asked = ends.any(axis=0)
        pairs += int(asked.sum())
        different += int((ends[0] != ends[1])[asked].sum())
    return round(100 * different / max(1, pairs), 1)


if __name__ == "__main__":
    typer.run(main)
