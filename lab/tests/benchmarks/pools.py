"""Opinion pools beside single chains: ``python -m lab.tests.benchmarks.pools``

A chain without regularizer, one with the `l2` that is best on held-out sentences, and pools of experts with that of `--l2`, 0 by
default: what they find in the test data, and what a pass over the training data takes (of the chain's; of k experts at most
0.3 + 0.7 k).
"""

import time
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

import numpy as np
import typer
from spacy.language import Language
from spacy.training import Example

from spacy_crf_lab.opinion_pool import PoolLBFGS
from tests.benchmarks.data import make_examples, read_sentences
from tests.benchmarks.measure import in_own_process, show, side_by_side
from tests.benchmarks.ours import make_pipeline

from .baselines import EXTRA

_POOL = {"@architectures": "spacy_crf_lab.OpinionPool.v1"}
_CHAIN = {"@architectures": "spacy_crf.LinearChain.v1"}
MODELS: dict[str, dict[str, Any]] = {
    "chain, l2 = 0": _CHAIN,
    "chain": _CHAIN,
    "random": {**_POOL, "experts": "random"},
    "positions": {**_POOL, "experts": "positions"},
    "labels": {**_POOL, "experts": "labels"},
    "random, equal": {**_POOL, "experts": "random", "weights": "equal"},
}


def main(
    sets: Annotated[str, typer.Option(help="Between commas.")] = "conll2000,mit_restaurant,wnut17",
    models: Annotated[str, typer.Option(help="Between semicolons.")] = ";".join(MODELS),
    sentences: Annotated[int, typer.Option(help="Of the training data.")] = 1000,
    iterations: Annotated[int, typer.Option(help="Of L-BFGS, at most.")] = 100,
    strengths: Annotated[str, typer.Option(help="l2 of the regularized chain, between commas.")] = "0.03,0.1,0.3",
    l2: Annotated[float, typer.Option(help="Of the experts.")] = 0.0,
    settings: Annotated[str, typer.Option(help="Further settings of random experts, as n=4,share=0.5.")] = "",
) -> None:
    """F1 of entities, and times."""
    changed = {key: float(value) if "." in value else int(value) for key, _, value in _pairs(settings)}
    for name in sets.split(","):
        rows, names = [], models.split(";")
        passes = side_by_side(*_passes(name, names, sentences, changed), clock=time.process_time)
        for model, seconds in zip(names, passes):
            tried = {"chain": [*map(float, strengths.split(","))], "chain, l2 = 0": [0.0]}.get(model, [l2])
            rows.append([model, f"{seconds / passes[0]:.2f}"])
            rows[-1] += in_own_process(_best, name, model, sentences, iterations, tried, changed).result
            print(name, *rows[-1], sep="\t", flush=True)
        header = ["model", "a pass, of the first", "l2", "F1, test", "training (CPU s)", "weights of the experts"]
        show(name, header, rows, note=f"{sentences} sentences, BIO.")


def _pairs(settings: str) -> list[tuple[str, str, str]]:
    return [each.partition("=") for each in settings.split(",") if each]


def _pipeline(name: str, model: str, changed: dict[str, Any]) -> Language:
    features = {"@misc": "spacy_crf.ner_features.v1", "extra": EXTRA.get(name, [])}
    emissions = {"@architectures": "spacy_crf.SparseEmissions.v1", "features": features}
    own = changed if model.startswith("random") else {}
    return make_pipeline("crf_ner", {"model": {**MODELS[model], **own, "emissions": emissions}, "scheme": "BIO"})


def _passes(name: str, models: list[str], limit: int, changed: dict[str, Any]) -> Iterator[Any]:
    """The value and the gradient of each objective, at weights of 0."""
    optimizer = PoolLBFGS()
    for model in models:
        nlp = _pipeline(name, model, changed)
        [(_, pipe)], train = nlp.pipeline, make_examples(nlp.vocab, read_sentences(name, "train", limit=limit))
        nlp.initialize(lambda train=train: train, sgd=optimizer)
        objective = pipe.training.objective(optimizer, train)
        yield partial(objective.evaluate, objective.weights())


def _best(name: str, model: str, limit: int, iterations: int, tried: list[float], changed: dict[str, Any]) -> list[Any]:
    """Train with each l2, and test the one that is best on the 500 sentences behind those of the training."""
    best: list[Any] = []
    for l2 in tried:
        nlp = _pipeline(name, model, changed)
        every = read_sentences(name, "train", limit=limit + 500)
        train, held_out = (make_examples(nlp.vocab, part) for part in (every[:limit], every[limit:]))
        optimizer: Any = PoolLBFGS(l2=l2, iterations_per_step=iterations, max_iterations=iterations)
        begin, [(key, _)] = time.process_time(), nlp.pipeline
        nlp.initialize(lambda train=train: train, sgd=optimizer)
        while optimizer.stop_reason(key) is None:
            nlp.update(train, sgd=optimizer)
        seconds, score = time.process_time() - begin, _f1(nlp, held_out) if len(tried) > 1 else 0.0
        if not best or score > best[0]:
            best = [score, l2, nlp, seconds]
    _, l2, nlp, seconds = best
    [(_, pipe)] = nlp.pipeline
    shares: Any = pipe.model.get_param("shares") if pipe.model.has_param("shares") else np.zeros(0)
    test = make_examples(nlp.vocab, read_sentences(name, "test"))
    return [f"{l2:g}", f"{_f1(nlp, test):.2f}", f"{seconds:.1f}", " ".join(f"{share:.2f}" for share in shares)]


def _f1(nlp: Language, examples: list[Example]) -> float:
    return 100 * nlp.evaluate(examples)["ents_f"]


if __name__ == "__main__":
    typer.run(main)
