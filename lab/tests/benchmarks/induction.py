"""Feature induction beside L-BFGS on all features, and beside l1 (OWL-QN): ``python -m lab.tests.benchmarks.induction``

All choose among the features of the same templates: those of the preset, or pairs of single attributes that occur three times.
"""

import time
from typing import Annotated, Any

import numpy as np
import spacy
import typer

from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf_lab.feature_induction import FeatureInduction
from tests.benchmarks.data import make_examples, read_sentences
from tests.benchmarks.measure import in_own_process, show

FEATURES: dict[str, dict[str, Any]] = {
    "preset": {"features": {"@misc": "spacy_crf.ner_features.v1"}},
    "pairs": {
        "min_count": 3,
        "features": {
            "@misc": "spacy_crf_lab.feature_pairs.v1",
            "templates": ["bias", "lower[-2..2]", "shape[-1..1]", "prefix3[0]", "suffix3[0]", "folded[0]"],
        },
    },
}


def main(
    sets: Annotated[str, typer.Option(help="Between commas.")] = "mit_restaurant",
    pools: Annotated[str, typer.Option(help="Between commas: preset, pairs.")] = "preset,pairs",
    weights: Annotated[
        str, typer.Option(help="Most weights that induction adds, between commas.")
    ] = "5000,10000,20000",
    prices: Annotated[str, typer.Option(help="l1 of OWL-QN, between commas.")] = "0.5,1,2",
    l1: Annotated[float, typer.Option(help="Of induction.")] = 0.3,
    l2: Annotated[float, typer.Option(help="Of all.")] = 0.1,
    rounds: Annotated[int, typer.Option(help="Of induction.")] = 10,
) -> None:
    """Weights, F1 of entities and CPU time of training, all relative to L-BFGS."""
    for name in sets.split(","):
        rows = []
        for pool in pools.split(","):
            optimizers: dict[str, Any] = {"L-BFGS": LBFGS(l2=l2, iterations_per_step=100, max_iterations=100)}
            for price in prices.split(","):
                owlqn = LBFGS(l1=float(price), l2=l2, iterations_per_step=100, max_iterations=100)
                optimizers[f"OWL-QN, l1 = {price}"] = owlqn
            for most in map(int, weights.split(",")):
                inner = LBFGS(l1=l1, l2=l2, max_iterations=50)
                grown = FeatureInduction(per_round=most // rounds, max_weights=most, inner=inner, iterations=10)
                optimizers[f"induction of {most:,}"] = grown
            first: list[float] = []
            for label, optimizer in optimizers.items():
                found = in_own_process(_train, name, pool, optimizer).result
                first = first or found
                n_weights, score, seconds, speed = found
                share = f"{100 * n_weights / first[0]:.1f} %"
                gain, ratio = f"{score - first[1]:+.2f}", f"{seconds / first[2]:.2f}"
                rows.append([pool, label, f"{n_weights:,.0f}", share, f"{score:.2f}", gain, f"{seconds:.1f}", ratio])
                rows[-1].append(f"{speed:,.0f}")
                print(name, *rows[-1], sep="\t", flush=True)
        header = ["features", "training", "weights", "share", "F1", "gain", "CPU s", "ratio", "words/s"]
        show(name, header, rows, note="Of the weights that are not 0; with transitions.")


def _train(name: str, pool: str, optimizer: Any) -> list[float]:
    """Train until the optimizer stops, and test the saved model."""
    nlp = spacy.blank("en")
    emissions = {"@architectures": "spacy_crf.SparseEmissions.v1", **FEATURES[pool]}
    config = {"model": {"@architectures": "spacy_crf.LinearChain.v1", "emissions": emissions}, "scheme": "BIO"}
    pipe: Any = nlp.add_pipe("crf_ner", config=config)
    train, test = (make_examples(nlp.vocab, read_sentences(name, part)) for part in ("train", "test"))
    nlp.initialize(lambda: train)
    nlp.update(train[:50], sgd=optimizer)  # kernels are compiled
    optimizer.forget("crf_ner")
    nlp.initialize(lambda: train)
    begin = time.process_time()
    while optimizer.stop_reason("crf_ner") is None:
        nlp.update(train, sgd=optimizer)
    seconds = time.process_time() - begin
    layers = [*pipe.model.layers, pipe.model]
    params = [layer.get_param(name) for layer in layers for name in layer.param_names if layer.has_param(name)]
    loaded: Any = spacy.blank("en")
    loaded.add_pipe("crf_ner", config=config)
    loaded.from_bytes(nlp.to_bytes())
    loaded.evaluate(test[:100])
    scores = loaded.evaluate(test)
    return [float(sum(map(np.count_nonzero, params))), 100 * scores["ents_f"], seconds, scores["speed"]]


if __name__ == "__main__":
    typer.run(main)
