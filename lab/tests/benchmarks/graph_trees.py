"""What ties along dependency arcs gain for taggers: ``python -m lab.tests.benchmarks.graph_trees``

The same features of words alone, in a chain, along the arcs of the annotation (its heads: what a perfect parser would give), and
in both at once, on sentences of the English Web Treebank: universal parts of speech, or these with their morphology.
"""

import time
from itertools import islice
from typing import Annotated, Any, Optional

import typer
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from spacy_crf.cli.texts import read_docs
from spacy_crf.optimizers.lbfgs import LBFGS
from tests.benchmarks.data import data_folder
from tests.benchmarks.measure import show, token_accuracy
from tests.benchmarks.ours import WORDS_IN_A_ROW, make_pipeline

from ..util import registered

STEP = 20  # iterations of L-BFGS
GRAPHS: dict[str, dict[str, Any]] = {
    "tokens": {"chain": False},
    "chain": {},
    "tree": {"chain": False, "inference": {"@misc": "spacy_crf_lab.JunctionTree.v1"}},
    "chain + tree": {},
    "chain + tree, exact": {"inference": {"@misc": "spacy_crf_lab.JunctionTree.v1", "max_table": 10_000_000}},
}
ARCS = {"syntax": {"@misc": "spacy_crf_lab.DependencyArcs.v1"}}
LOSSES = {"likelihood": "LogLikelihood", "sentences": "SentenceLikelihood", "piecewise": "Piecewise"}


def main(
    tags: Annotated[str, typer.Option(help="pos, or morph for parts of speech with their morphology.")] = "morph",
    sentences: Annotated[int, typer.Option(help="Training sentences.")] = 2000,
    iterations: Annotated[int, typer.Option(help="Of L-BFGS, at most.")] = 60,
    graphs: Annotated[str, typer.Option(help=f"Between semicolons, of: {'; '.join(GRAPHS)}.")] = ";".join(
        [*GRAPHS][:4]
    ),
    losses: Annotated[
        str, typer.Option(help=f"Of both at once; between commas, of: {', '.join(LOSSES)}.")
    ] = "likelihood",
    l2: Annotated[str, typer.Option(help="Between commas.")] = "0.1",
    tested: Annotated[int, typer.Option(help="Sentences of dev, and of test; 0 for all.")] = 0,
    strength: Annotated[str, typer.Option(help="Of the ties; between commas.")] = "1",
) -> None:
    """Accuracy on dev and test after the step that is best on dev."""
    rows: list[list[Any]] = []
    sizes = {"train": sentences, "dev": tested or None, "test": tested or None}
    for graph in graphs.split(";"):
        for loss in losses.split(",") if graph == "chain + tree" else ["likelihood"]:
            for factor in strength.split(",") if "tree" in graph else ["1"]:
                for penalty in l2.split(","):
                    model = {**GRAPHS[graph], "strength": float(factor)}
                    found = _run(tags, sizes, iterations, model, "tree" in graph, loss, float(penalty))
                    rows.append([graph, loss, factor, penalty, *found])
                    print(*rows[-1], sep="\t", flush=True)
    header = ["model", "loss", "strength", "l2", "dev", "test", "iterations", "training (CPU s)", "labels"]
    show(
        "Ties along dependency arcs",
        header,
        rows,
        note=f"ud_ewt, {tags}, {sentences} sentences, heads of the annotation.",
    )


def _run(
    tags: str,
    sizes: dict[str, Optional[int]],
    iterations: int,
    settings: dict[str, Any],
    has_arcs: bool,
    loss: str,
    l2: float,
) -> list[Any]:
    emissions = {
        "@architectures": "spacy_crf.SparseEmissions.v1",
        "features": {"@misc": "spacy_crf.tagger_features.v1", "without": ["lower[-1]|lower[1]", *WORDS_IN_A_ROW]},
    }
    model = {"@architectures": "spacy_crf_lab.FactorGraph.v1", "emissions": emissions, **settings}
    model["cliques"] = ARCS if has_arcs else {}
    nlp = make_pipeline("crf_tagger", {"model": model, "loss": {"@losses": registered(LOSSES[loss])}})
    gold = {part: _read(part, tags, n, nlp) for part, n in sizes.items()}
    examples = [Example(_untagged(doc), doc) for doc in gold["train"]]
    optimizer, found, start = LBFGS(iterations_per_step=STEP, l2=l2, delta=5e-4), [], time.process_time()
    nlp.initialize(lambda: examples, sgd=optimizer)
    learning = time.process_time() - start
    for done in range(STEP, iterations + 1, STEP):
        start = time.process_time()
        nlp.update(examples, sgd=optimizer)
        learning += time.process_time() - start
        found.append((*(_accuracy(nlp, gold[part]) for part in ("dev", "test")), done))
        if optimizer.stop_reason("crf_tagger"):
            break
    dev, test, best = max(found)
    return [f"{dev:.2f}", f"{test:.2f}", best, round(learning), len(nlp.get_pipe("crf_tagger").labels)]


def _read(part: str, tags: str, n: Optional[int], nlp: Language) -> list[Doc]:
    """Sentences, tagged with what is asked for."""
    docs = list(islice(read_docs(data_folder() / "ud_ewt_docs" / f"{part}.conllu", nlp), n))
    for doc in docs:
        for token in doc:
            token.tag_ = token.pos_ if tags == "pos" or not str(token.morph) else f"{token.pos_}|{token.morph}"
    return docs


def _untagged(doc: Doc) -> Doc:
    """Words and heads."""
    heads, deps = [token.head.i for token in doc], [token.dep_ for token in doc]
    return Doc(doc.vocab, words=[token.text for token in doc], heads=heads, deps=deps)


def _accuracy(nlp: Language, gold: list[Doc]) -> float:
    found = nlp.pipe([_untagged(doc) for doc in gold])
    return token_accuracy(*([[token.tag_ for token in doc] for doc in docs] for docs in (gold, found)))


if __name__ == "__main__":
    typer.run(main)
