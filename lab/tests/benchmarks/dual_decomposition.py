"""Best labellings of court decisions with ties by dual decomposition: ``python -m lab.tests.benchmarks.dual_decomposition``

How many are proved to be best and after how many iterations, the time beside that of belief propagation, and the same under rules
about the whole document.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf_lab.ties.belief_propagation import BeliefPropagation
from spacy_crf_lab.ties.dual_decomposition import DualDecomposition
from spacy_crf_lab.ties.method import Inference
from spacy_crf_lab.ties.structure import TiedChains
from tests.benchmarks.document import SETS, plain, read
from tests.benchmarks.measure import show
from tests.benchmarks.ours import WORDS_IN_A_ROW_OF_ENTITIES, make_pipeline

from .graphs import NAME, STEP, TRAININGS

METHODS: dict[str, Callable[[int], Inference]] = {
    "BeliefPropagation": lambda _: BeliefPropagation(),
    "max_product": lambda _: BeliefPropagation(max_product=True),
    "ad3": lambda iterations: DualDecomposition(iterations=iterations),
    "subgradient": lambda iterations: DualDecomposition(method="subgradient", iterations=iterations),
}


LIMITED = ("GRT", "GS")  # courts and laws


def main(
    iterations: Annotated[int, typer.Option(help="Of dual decomposition, at most.")] = 50,
    steps: Annotated[int, typer.Option(help=f"Of training, of {STEP} iterations each.")] = 3,
    most: Annotated[int, typer.Option(help="Entities of each of two labels that the rules allow in a document.")] = 4,
    scheme: Annotated[str, typer.Option(help="BIO has 35 tags, BILUO 69.")] = "BIO",
) -> None:
    """Labellings of all dev and test documents by each method, without rules and with rules."""
    rules = [{"rule": "at_most", "label": label, "n": most} for label in LIMITED]
    nlp, docs = _trained(steps, scheme, rules)
    ner: Any = nlp.get_pipe("crf_ner")
    scores = [ner.model.predict([doc]) for doc in docs]
    rows, first = [], 0.0
    for name, make in METHODS.items():
        seconds, found = [], []
        for _ in range(3):
            start = time.process_time()
            found = [_label(TiedChains(make(iterations)), each) for each in scores]
            seconds.append(time.process_time() - start)
        first = first or median(seconds)
        totals = [TiedChains(make(1)).path_score(each, states).sum() for each, (states, _) in zip(scores, found)]
        proved = "" if None in (n for _, n in found) else round(100 * np.mean([n == 0 for _, n in found]), 1)
        rows.append([name, proved, 1000 * median(seconds) / len(docs), median(seconds) / first, sum(totals)])
    header = ["method", "proved %", "ms a document", "times", "score"]
    show("Best labellings of documents with ties", header, rows, note=f"{NAME}; CPU time, medians of 3.")
    rows = []
    for name in ("BeliefPropagation", "ad3"):
        ner.decoding.structure.inference = inference = METHODS[name](iterations)
        start, broken = time.process_time(), 0
        for doc in nlp.pipe(map(plain, docs)):
            broken += any(sum(ent.label_ == label for ent in doc.ents) > most for label in LIMITED)
        seconds = time.process_time() - start
        rows.append([name, broken, inference.n_unconverged, inference.n_asked, 1000 * seconds / len(docs)])
    header = ["method", "documents that break one", "unsettled groups", "of", "ms a document"]
    show(f"Under rules: at most {most} of {' and of '.join(LIMITED)}", header, rows, note="With reading of features.")


def _trained(steps: int, scheme: str, rules: list[dict[str, Any]]) -> tuple[Language, list[Doc]]:
    """A model with ties, trained on the first documents; and the documents of dev and test."""
    chosen = SETS[NAME]
    features = {"@misc": "spacy_crf.ner_features.v1", "without": WORDS_IN_A_ROW_OF_ENTITIES}
    model = {
        "@architectures": "spacy_crf_lab.FactorGraph.v1",
        "emissions": {"@architectures": "spacy_crf.SparseEmissions.v1", "features": features},
        "cliques": {"repeats": {"@misc": "spacy_crf_lab.RepeatedWords.v1", "edges": "next"}},
        "possible_transitions": True,
    }
    constraints = {"@misc": "spacy_crf.constraints.v1", "rules": rules}
    config = {"model": model, "scheme": scheme, "constraints": constraints, **TRAININGS["sentences"]}
    nlp = make_pipeline("crf_ner", config)
    examples = [Example(plain(doc), doc) for doc in read(NAME, chosen, "train", nlp)]
    optimizer = LBFGS(iterations_per_step=STEP, l2=chosen.l2)
    nlp.initialize(lambda: examples, sgd=optimizer)
    for _ in range(steps):
        nlp.update(examples, sgd=optimizer)
    return nlp, [doc for part in ("dev", "test") for doc in read(NAME, chosen, part, nlp)]


def _label(structure: TiedChains, scores: Any) -> tuple[np.ndarray, Any]:
    """The labelling of a document, and how many of its components are not proved; None if the method proves none."""
    inference = structure.inference
    if inference.decodes_chains:
        return structure.chain.viterbi(structure.as_chains(scores)).states, None
    states = structure.viterbi(scores).states
    return states, inference.n_unconverged if isinstance(inference, DualDecomposition) else None


if __name__ == "__main__":
    typer.run(main)
