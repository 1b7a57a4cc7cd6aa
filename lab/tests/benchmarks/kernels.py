"""Kernels beside conjunctions that are written out: ``python -m lab.tests.benchmarks.kernels``

The first sentences of the training data, with single attributes as features (atoms): a chain of the atoms, one with all pairs of
them, and kernels on the atoms. The sentences behind those of the training choose l2 of each model.
"""

import time
from itertools import combinations, product
from typing import Annotated, Any

import spacy
import typer

from spacy_crf.optimizers.lbfgs import LBFGS
from tests.benchmarks.data import make_examples, read_sentences
from tests.benchmarks.measure import in_own_process, show

# Coarse attributes, of which combinations say more: with words among them, pairs overfit so few sentences
ATOMS = ["bias", *(f"shape[{n}]" for n in range(-1, 2)), "prefix2[0]", "suffix2[0]"]
TAGS = [f"tag[{n}]" for n in range(-1, 2)]
WITH_TAGS = ("conll2000",)
_KERNEL = {"@architectures": "spacy_crf_lab.KernelEmissions.v1"}
_SPARSE = {"@architectures": "spacy_crf.SparseEmissions.v1"}
MODELS: dict[str, dict[str, Any]] = {
    "atoms": {**_SPARSE, "possible_states": True},
    "all pairs": {**_SPARSE, "possible_states": True},
    "poly, degree 2": _KERNEL,
    "poly, degree 3": {**_KERNEL, "degree": 3},
    "rbf": {**_KERNEL, "kernel": "rbf"},
    "linear kernel": {**_KERNEL, "kernel": "linear"},
}
# What the factors of l2 multiply: kernels have values of different sizes
STRENGTHS = {
    "atoms": 0.3,
    "all pairs": 0.3,
    "poly, degree 2": 1.0,
    "poly, degree 3": 10.0,
    "rbf": 0.01,
    "linear kernel": 0.3,
}


def main(
    sets: Annotated[str, typer.Option(help="Between commas.")] = "mit_restaurant,wnut17,conll2000",
    models: Annotated[str, typer.Option(help="Between semicolons.")] = ";".join(MODELS),
    sentences: Annotated[int, typer.Option(help="Of the training data.")] = 300,
    basis: Annotated[str, typer.Option(help="Tokens of the basis, between commas.")] = "2000",
    select: Annotated[str, typer.Option(help="How the basis is chosen, between commas.")] = "all",
    factors: Annotated[str, typer.Option(help="Of l2, between commas.")] = "0.1,0.3,1,3",
    seed: Annotated[int, typer.Option(help="Of the random choice.")] = 0,
) -> None:
    """F1 of entities, and the words that prediction labels in a second."""
    for name in sets.split(","):
        rows = []
        for model in models.split(";"):
            tried = [STRENGTHS[model] * float(factor) for factor in factors.split(",")]
            is_kernel = "Kernel" in MODELS[model]["@architectures"]
            for n, how in product(basis.split(","), select.split(",")) if is_kernel else [("", "")]:
                own = {"basis": int(n), "select": how, "seed": seed} if is_kernel else {}
                rows.append([model, n, how, *in_own_process(_best, name, model, sentences, own, tried).result])
                print(name, *rows[-1], sep="\t", flush=True)
        header = ["emissions", "basis", "select", "l2", "F1, held out", "F1, test", "training (s)", "words/s"]
        show(name, header, rows, note=f"{sentences} sentences.")


def _best(name: str, model: str, sentences: int, own: dict[str, Any], tried: list[float]) -> list[Any]:
    """Train with each l2, and test the one that is best on held-out sentences."""
    atoms = ATOMS + TAGS if name in WITH_TAGS else ATOMS
    pairs = [f"{one}|{other}" for one, other in combinations(atoms[1:], 2)] if model == "all pairs" else []
    features = {"@misc": "spacy_crf.features.v1", "templates": atoms + pairs}
    emissions = {**MODELS[model], **own, "features": features}
    config = {"model": {"@architectures": "spacy_crf.LinearChain.v1", "emissions": emissions}, "scheme": "BIO"}
    nlp, best = spacy.blank("en"), []
    pipe: Any = nlp.add_pipe("crf_ner", config=config)
    every = read_sentences(name, "train", limit=sentences + 500)
    train, held_out = (make_examples(nlp.vocab, part) for part in (every[:sentences], every[sentences:]))
    test = make_examples(nlp.vocab, read_sentences(name, "test"))
    begin = time.perf_counter()
    nlp.initialize(lambda: train)
    for l2 in tried:
        pipe.training.begin()
        nlp.update(train, sgd=LBFGS(l2=l2, iterations_per_step=100, max_iterations=100))
        score = _f1(nlp, held_out)[0]
        if not best or score > best[1]:
            best = [l2, score, *_f1(nlp, test)]
    l2, score, on_test, speed = best
    return [
        f"{l2:g}",
        f"{score:.2f}",
        f"{on_test:.2f}",
        f"{(time.perf_counter() - begin) / len(tried):.1f}",
        f"{speed:,.0f}",
    ]


def _f1(nlp: Any, examples: list[Any]) -> tuple[float, float]:
    scores = nlp.evaluate(examples)
    return 100 * scores["ents_f"], scores["speed"]


if __name__ == "__main__":
    typer.run(main)
