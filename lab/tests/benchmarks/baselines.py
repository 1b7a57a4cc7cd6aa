"""MaxEnt and MEMM beside the chain: ``python -m lab.tests.benchmarks.baselines``

Maximum entropy, maximum entropy Markov models and the chain with the same features (the presets; on conll2000 parts of speech as
well): what they find in the test data, what a pass over the training data takes, and the most memory of training.
"""

import time
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

import typer
from spacy.language import Language
from spacy.training import Example

from spacy_crf.optimizers.lbfgs import LBFGS
from tests.benchmarks.data import SETS, iob2_tags, make_examples, read_sentences
from tests.benchmarks.measure import entity_f1, in_own_process, peak_mb, show, side_by_side, token_accuracy
from tests.benchmarks.ours import make_pipeline

MODELS = {
    "MaxEnt": {"@architectures": "spacy_crf_lab.MaxEnt.v1"},
    "MEMM, order 1": {"@architectures": "spacy_crf_lab.MEMM.v1"},
    "MEMM, order 2": {"@architectures": "spacy_crf_lab.MEMM.v1", "order": 2},
    "LinearChain": {"@architectures": "spacy_crf.LinearChain.v1"},
}
EXTRA = {"conll2000": ["tag[-2..2]"]}


def main(
    sets: Annotated[str, typer.Option(help="Between commas.")] = "conll2000,wnut17,mit_restaurant,ud_ewt_xpos",
    models: Annotated[str, typer.Option(help="Between semicolons.")] = ";".join(MODELS),
    scheme: Annotated[str, typer.Option(help="Of entities.")] = "BIO",
    sentences: Annotated[int, typer.Option(help="Of the training data; 0 for all.")] = 0,
    iterations: Annotated[int, typer.Option(help="Of L-BFGS, at most.")] = 100,
    l2: Annotated[float, typer.Option(help="Of all weights.")] = 0.1,
    scores: Annotated[bool, typer.Option(help="Whether to train and test, or to measure passes alone.")] = True,
) -> None:
    """F1 of entities or accuracy of tags, the time of a pass, and memory."""
    names = models.split(";")
    for name in sets.split(","):
        pipelines = [_pipeline(name, model, scheme) for model in names]
        limit = sentences or None
        passes = side_by_side(*_passes(name, pipelines, limit), clock=time.process_time)
        of_chain = passes[names.index("LinearChain")] if "LinearChain" in names else float("nan")
        rows = []
        for model, seconds in zip(names, passes):
            row = [model, f"{seconds:.3f}", f"{seconds / of_chain:.2f}"]
            if scores:
                row += in_own_process(_trained, name, model, scheme, limit, iterations, l2).result
            print(*row, sep="\t", flush=True)
            rows.append(row)
        kind = "F1" if SETS[name].entities else "accuracy"
        header = ["model", "pass (CPU s)", "of the chain's"]
        header += [kind, "iterations", "training (CPU s)", "its peak (MB)", "tokens/s"] if scores else []
        show(name, header, rows, note=f"l2 = {l2}, {scheme}.")


def _pipeline(name: str, model: str, scheme: str) -> Language:
    preset = "ner_features.v1" if SETS[name].entities else "tagger_features.v1"
    features = {"@misc": f"spacy_crf.{preset}", "extra": EXTRA.get(name, [])}
    emissions = {"@architectures": "spacy_crf.SparseEmissions.v1", "features": features}
    config: dict[str, Any] = {"model": {**MODELS[model], "emissions": emissions}}
    if SETS[name].entities:
        return make_pipeline("crf_ner", {**config, "scheme": scheme})
    return make_pipeline("crf_tagger", config)


def _examples(nlp: Language, name: str, part: str, limit: Any = None) -> list[Example]:
    sentences = read_sentences(name, getattr(SETS[name], part), limit=limit)
    return make_examples(nlp.vocab, sentences, entities=SETS[name].entities)


def _passes(name: str, pipelines: list[Language], limit: Any) -> Iterator[Any]:
    """The value and the gradient of each objective, at weights of 0."""
    optimizer = LBFGS()
    for nlp in pipelines:
        [(_, pipe)], train = nlp.pipeline, _examples(nlp, name, "train", limit)
        nlp.initialize(lambda train=train: train, sgd=optimizer)
        objective = pipe.training.objective(optimizer, train)
        yield partial(objective.evaluate, objective.weights())


def _trained(name: str, model: str, scheme: str, limit: Any, iterations: int, l2: float) -> list[Any]:
    nlp = _pipeline(name, model, scheme)
    train, test = (_examples(nlp, name, part, some) for part, some in (("train", limit), ("test", None)))
    optimizer, begin = LBFGS(l2=l2, iterations_per_step=iterations, max_iterations=iterations), time.process_time()
    nlp.initialize(lambda: train, sgd=optimizer)
    nlp.update(train, sgd=optimizer)
    seconds, most, [(key, _)] = time.process_time() - begin, peak_mb(), nlp.pipeline
    docs, begin = [example.predicted.copy() for example in test], time.process_time()
    docs = list(nlp.pipe(docs))
    speed = sum(map(len, docs)) / (time.process_time() - begin)
    if SETS[name].entities:
        score = entity_f1([iob2_tags(example.reference) for example in test], list(map(iob2_tags, docs)))
    else:
        gold, found = ([[token.tag_ for token in doc] for doc in side] for side in ([e.reference for e in test], docs))
        score = token_accuracy(gold, found)
    return [f"{score:.2f}", optimizer.iterations_made(key), f"{seconds:.0f}", f"{most:.0f}", f"{speed:,.0f}"]


if __name__ == "__main__":
    typer.run(main)
