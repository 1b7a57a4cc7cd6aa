"""Benefit and cost of averages over drawn weights: ``python -m tests.benchmarks.uncertainty``

Models of few sentences, drawn at random: how far the probabilities of the entities that they find are from the truth, by trained
weights and averaged; active learning by the variance of probabilities and by their entropy; and times.
"""

import random
import time
from typing import Annotated, Any

import numpy as np
import spacy
import typer
from spacy.training import Example

from spacy_crf.lab.laplace_propagation import LaplacePropagation
from spacy_crf.lab.posterior import variance
from spacy_crf.optimizers.sgd import SGD
from spacy_crf.pipeline.scorers import calibration

from .data import SETS, make_examples, read_sentences
from .measure import show


def main(
    sets: Annotated[str, typer.Option(help="Between commas.")] = "mit_restaurant,wnut17",
    sentences: Annotated[int, typer.Option(help="Of the training data.")] = 200,
    draws: Annotated[int, typer.Option(help="Of these sentences.")] = 5,
    l2: Annotated[float, typer.Option(help="Of all weights.")] = 0.1,
    average: Annotated[int, typer.Option(help="Drawn weight vectors.")] = 20,
    rounds: Annotated[int, typer.Option(help="Of active learning, 20 sentences each; 0 for none.")] = 10,
) -> None:
    """Calibration error and log loss of `crf_prob`, F1, active learning, and times."""
    for name in sets.split(","):
        part, test = (read_sentences(name, getattr(SETS[name], which)) for which in ("train", "test"))
        rows = []
        for draw in range(draws):
            some = random.Random(draw).sample(part, sentences)
            rows.append(_row(name, some, test[:1000], l2, average))
        columns = [*zip(*rows)]
        header = ["F1", "F1, posterior", "calibration error", "averaged", "ratio", "log loss", "averaged", "ratio"]
        means = [*map(np.mean, columns)]
        means[4], means[7] = means[3] / means[2], means[6] / means[5]
        show(
            name,
            header,
            [[f"{mean:.3f}" for mean in means]],
            note=f"{draws} draws of {sentences} sentences, l2 = {l2}.",
        )
        _times(name, part[:1000], test[:1000], l2, average)
        for kind in ("variance", "entropy") if rounds else ():
            found = [_active(name, part, test[:500], kind, rounds, l2, average, draw) for draw in range(min(draws, 2))]
            print(f"F1 after {rounds} rounds by {kind}: {np.mean(found):.2f}", flush=True)


def _trained(name: str, sentences: Any, optimizer: Any) -> tuple[Any, Any]:
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe("crf_ner", config={"scheme": "BIO", "confidence": True})
    examples = make_examples(nlp.vocab, sentences, entities=SETS[name].entities)
    nlp.initialize(lambda: examples, sgd=optimizer)
    nlp.update(examples, sgd=optimizer)
    return nlp, pipe


def _laplace(l2: float) -> LaplacePropagation:
    return LaplacePropagation(method="diagonal_laplace", l2=l2, iterations_per_step=100)


def _judged(nlp: Any, examples: list[Example]) -> tuple[float, float, float]:
    """F1, calibration error and log loss of the entities that are found."""
    right, probabilities, n_gold = [], [], 0
    for example in examples:
        gold = {(ent.start, ent.end, ent.label_) for ent in example.reference.ents}
        doc = nlp.get_pipe("crf_ner")(nlp.make_doc(example.reference.text))
        n_gold += len(gold)
        for ent in doc.ents:
            right.append((ent.start, ent.end, ent.label_) in gold)
            probabilities.append(ent._.crf_prob)
    p, is_right = np.clip(probabilities, 1e-9, 1 - 1e-9), np.array(right, dtype=bool)
    loss = float(-np.log(np.where(is_right, p, 1 - p)).mean())
    return 200 * sum(right) / (n_gold + len(right)), calibration(p, is_right)["calibration_error"], loss


def _examples(nlp: Any, name: str, sentences: Any) -> list[Example]:
    examples = make_examples(nlp.vocab, sentences, entities=SETS[name].entities)
    return [each for each in examples if len(nlp.make_doc(each.reference.text)) == len(each.reference)]


def _row(name: str, some: Any, test: Any, l2: float, average: int) -> list[float]:
    nlp, pipe = _trained(name, some, _laplace(l2))
    examples = _examples(nlp, name, test)
    f1, error, loss = _judged(nlp, examples)
    pipe.cfg["average"] = average
    _, its_error, its_loss = _judged(nlp, examples)
    pipe.cfg["decode"] = "posterior"
    f1_posterior, _, _ = _judged(nlp, examples)
    return [f1, f1_posterior, error, its_error, 0.0, loss, its_loss, 0.0]


def _times(name: str, part: Any, test: Any, l2: float, average: int) -> None:
    """CPU seconds of an epoch of SGD, of five sweeps, and of prediction with and without draws."""
    nlp, steps = spacy.blank("en"), []
    nlp.add_pipe("crf_ner", config={"scheme": "BIO"})
    examples = make_examples(nlp.vocab, part, entities=SETS[name].entities)
    for optimizer in (SGD(l2=l2), LaplacePropagation(l2=l2, sweeps=5)):
        nlp.initialize(lambda: examples, sgd=optimizer)
        nlp.update(examples, sgd=optimizer)
        begin = time.process_time()
        nlp.update(examples, sgd=optimizer)
        steps.append(time.process_time() - begin)
    print(f"epoch of SGD {steps[0]:.3f} s, 5 sweeps: {steps[1] / steps[0]:.1f} times", flush=True)
    nlp, pipe = _trained(name, part, _laplace(l2))
    texts, times = [each.reference.text for each in _examples(nlp, name, test)], []
    for n in (0, average):
        pipe.cfg["average"] = n
        [*nlp.pipe(texts[:50])]
        begin = time.process_time()
        [*nlp.pipe(texts)]
        times.append(time.process_time() - begin)
    print(
        f"nlp.pipe with confidence {times[0]:.3f} s, average = {average}: {times[1] / times[0]:.1f} times", flush=True
    )


def _active(name: str, part: Any, test: Any, kind: str, rounds: int, l2: float, average: int, draw: int) -> float:
    """F1 after all rounds, each of which adds the 20 of 500 sentences that rank first."""
    pool = random.Random(draw).sample(part, 500)
    known, left = pool[:50], pool[50:]
    for _ in range(rounds):
        nlp, pipe = _trained(name, known, _laplace(l2))
        docs = [example.predicted for example in make_examples(nlp.vocab, left, entities=SETS[name].entities)]
        pipe.cfg["average"] = average if kind == "variance" else 0
        doubt = [variance(pipe, doc) if kind == "variance" else _entropy(pipe, doc) for doc in docs]
        order = np.argsort(-np.array(doubt), kind="stable").tolist()
        known, left = [*known, *(left[n] for n in order[:20])], [left[n] for n in order[20:]]
        pipe.cfg["average"] = 0
    nlp, _ = _trained(name, known, _laplace(l2))
    return _judged(nlp, _examples(nlp, name, test))[0]


def _entropy(pipe: Any, doc: Any) -> float:
    """Mean entropy of the tags of a token."""
    marginals = np.maximum(pipe.marginals(doc)[0], 1e-12)
    return float(-(marginals * np.log(marginals)).sum(axis=1).mean())


if __name__ == "__main__":
    typer.run(main)
