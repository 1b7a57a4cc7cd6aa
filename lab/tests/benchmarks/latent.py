"""Hidden states: ``python -m lab.tests.benchmarks.latent``

Noun phrases of CoNLL-2000, with the features of CRFsuite's chunking example: the chain against `spacy_crf_lab.LatentChain.v1`
with several seeds, and what a pass over the corpus takes (CPU seconds, one thread).
"""

import time
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

import typer
from spacy.language import Language
from spacy.training import Example

from spacy_crf.models.objective import CorpusObjective
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf_lab.latent_chain import Labelling
from tests.benchmarks.data import iob2_tags, make_examples, read_sentences
from tests.benchmarks.measure import entity_f1, show, side_by_side
from tests.benchmarks.ours import EXAMPLE_TEMPLATES, make_pipeline

FEATURES = {"@misc": "spacy_crf.features.v1", "templates": EXAMPLE_TEMPLATES, "padding": False}
EMISSIONS = {"@architectures": "spacy_crf.SparseEmissions.v1", "features": FEATURES}


def main(
    sentences: Annotated[int, typer.Option(help="Of the training data; 0 for all.")] = 0,
    hidden: Annotated[int, typer.Option(help="States of each tag.")] = 2,
    spread: Annotated[float, typer.Option(help="Of the weights that training begins with.")] = 0.1,
    seeds: Annotated[int, typer.Option(help="How many trainings.")] = 3,
    l2: Annotated[str, typer.Option(help="Of the chain and of the hidden states, between commas.")] = "0.25,0.25",
    iterations: Annotated[int, typer.Option(help="Of L-BFGS, at most.")] = 150,
    test: Annotated[
        str, typer.Option(help="test, or dev for the last thousand sentences of the training data.")
    ] = "test",
) -> None:
    """F1 of noun phrases for each way to decode, and what training takes."""
    of_chain, of_latent = map(float, l2.split(","))
    header = ["model", "viterbi", "posterior", "labelling", "iterations", "objective", "training (CPU s)"]
    run = partial(_row, sentences, iterations, test)
    rows = [run("chain", _chain(), of_chain)]
    print(*rows[0], sep="\t", flush=True)
    for seed in range(seeds):
        rows.append(run(f"hidden = {hidden}, seed {seed}", _latent(hidden, spread, seed), of_latent))
        print(*rows[-1], sep="\t", flush=True)
    columns = list(zip(*rows[1:]))
    means = [f"{sum(map(float, column)) / len(column):.2f}" for column in columns[1:4]]
    rows.append(["mean", *means, "", "", ""])
    show("Noun phrases of CoNLL-2000", header, rows, note="BIO; features of CRFsuite's chunking example.")
    chain, latent = _passes(sentences, hidden)
    show(
        "A pass over the corpus",
        ["chain (s)", "latent (s)", "ratio"],
        [[f"{chain:.3f}", f"{latent:.3f}", f"{latent / chain:.2f}"]],
    )


def _chain() -> dict[str, Any]:
    return {"@architectures": "spacy_crf.LinearChain.v1", "emissions": EMISSIONS}


def _latent(hidden: int, spread: float, seed: int) -> dict[str, Any]:
    settings = {"hidden": hidden, "spread": spread, "seed": seed}
    return {"@architectures": "spacy_crf_lab.LatentChain.v1", "emissions": EMISSIONS, **settings}


def _examples(nlp: Language, part: str, sentences: int) -> list[Example]:
    """Of the noun phrases alone. "dev" are the last thousand sentences of the training data, which "train" then has not."""
    found = read_sentences("conll2000", "test" if part == "test" else "train")
    found = found[-1000:] if part == "dev" else found
    only = [each._replace(tags=[tag if tag.endswith("-NP") else "O" for tag in each.tags]) for each in found]
    return make_examples(nlp.vocab, only[: sentences or None])


def _row(sentences: int, iterations: int, test: str, name: str, model: dict[str, Any], l2: float) -> list[object]:
    nlp = make_pipeline("crf_ner", {"scheme": "BIO", "model": model})
    train = _examples(nlp, "train", sentences)
    train = train[:-1000] if test == "dev" and not sentences else train
    optimizer = LBFGS(l2=l2, iterations_per_step=iterations, max_iterations=iterations)
    begin = time.process_time()
    nlp.initialize(lambda: train)
    losses = nlp.update(train, sgd=optimizer)
    seconds, taken = time.process_time() - begin, optimizer._runs["crf_ner"].iteration
    scores = [f"{score:.2f}" for score in _scores(nlp, _examples(nlp, test, 0))]
    return [name, *scores, taken, f"{losses['crf_ner']:.1f}", f"{seconds:.0f}"]


def _scores(nlp: Language, examples: list[Example]) -> Iterator[float]:
    ner = nlp.get_pipe("crf_ner")
    for decode in ("viterbi", "posterior", "labelling"):
        ner.decoder = Labelling() if decode == "labelling" else None
        ner.cfg["decode"] = "posterior" if decode == "posterior" else "viterbi"
        ner.follow_settings()
        docs = list(nlp.pipe([example.predicted.copy() for example in examples]))
        gold, found = ([iob2_tags(doc) for doc in side] for side in ([example.reference for example in examples], docs))
        yield entity_f1(gold, found)


def _passes(sentences: int, hidden: int) -> list[float]:
    """CPU seconds of the value and the gradient of the objective."""
    tasks = []
    for model in (_chain(), _latent(hidden, 0.1, 0)):
        nlp = make_pipeline("crf_ner", {"scheme": "BIO", "model": model})
        train, ner = _examples(nlp, "train", sentences), nlp.get_pipe("crf_ner")
        nlp.initialize(lambda train=train: train)
        objective = CorpusObjective(
            ner.model, ner.loss, [ner.training.data(block) for block in ner.training.blocks(train)]
        )
        tasks.append(partial(objective.evaluate, objective.weights()))
    return side_by_side(*tasks, clock=time.process_time)


if __name__ == "__main__":
    typer.run(main)
