"""Benefit and cost of averages over drawn weights: ``python -m lab.tests.benchmarks.uncertainty``

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

from spacy_crf.optimizers.sgd import SGD
from spacy_crf.pipeline.scorers import calibration
from spacy_crf_lab.laplace_propagation import LaplacePropagation
from spacy_crf_lab.posterior import Draws, disagreement
from tests.benchmarks.data import SETS, make_examples, read_sentences
from tests.benchmarks.measure import show


def main(
    sets: Annotated[str, typer.Option(help="Between commas.")] = "mit_restaurant,wnut17",
    sentences: Annotated[int, typer.Option(help="Of the training data.")] = 200,
    draws: Annotated[int, typer.Option(help="Of these sentences.")] = 5,
    l2: Annotated[
        str, typer.Option(help="Of all weights, between commas; times and active learning take the first.")
    ] = "0.1,0.01",
    average: Annotated[int, typer.Option(help="Drawn weight vectors.")] = 20,
    rounds: Annotated[int, typer.Option(help="Of active learning, 20 sentences each; 0 for none.")] = 10,
) -> None:
    """Calibration error and log loss of `crf_prob`, F1, active learning, and times."""
    strengths = [float(value) for value in l2.split(",")]
    for name in sets.split(","):
        part, test = (_read(name, getattr(SETS[name], which)) for which in ("train", "test"))
        samples, rows = [random.Random(draw).sample(part, sentences) for draw in range(draws)], []
        for strength in strengths:
            every = [_row(name, some, test[:1000], strength, average) for some in samples]
            rows.append([strength, *(f"{mean:.3f}" for mean in np.mean(every, axis=0))])
        header = ["l2", "F1", "F1, posterior", "averaged", "accuracy, posterior", "averaged"]
        header += ["calibration error", "averaged", "log loss", "averaged", "log loss of tags", "averaged"]
        show(name, header, rows, note=f"{draws} draws of {sentences} sentences.")
        _times(name, part[:1000], test[:1000], strengths[0], average)
        for kind in ("variance", "entropy") if rounds else ():
            found = [
                _active(name, part, test[:500], kind, rounds, strengths[0], average, draw)
                for draw in range(min(draws, 2))
            ]
            print(f"F1 after {rounds} rounds by {kind}: {np.mean(found):.2f}", flush=True)


def _read(name: str, which: str) -> Any:
    """The sentences of a part; of wnut17 those with entities, as models of 200 others find next to nothing."""
    sentences = read_sentences(name, which)
    return [each for each in sentences if set(each.tags) != {"O"}] if name == "wnut17" else sentences


def _trained(name: str, sentences: Any, optimizer: Any) -> tuple[Any, Any]:
    nlp = spacy.blank("en")
    pipe = nlp.add_pipe("crf_ner", config={"scheme": "BIO", "confidence": True})
    examples = make_examples(nlp.vocab, sentences, entities=SETS[name].entities)
    nlp.initialize(lambda: examples, sgd=optimizer)
    nlp.update(examples, sgd=optimizer)
    return nlp, pipe


def _laplace(l2: float) -> LaplacePropagation:
    return LaplacePropagation(method="diagonal_laplace", l2=l2, iterations_per_step=100)


def _judged(nlp: Any, examples: list[Example]) -> tuple[float, float, float, float]:
    """F1, accuracy of the tags of tokens, and calibration error and log loss of the entities that are found."""
    right, probabilities, equal, n_gold = [], [], [], 0
    docs = nlp.get_pipe("crf_ner").pipe(nlp.make_doc(example.reference.text) for example in examples)
    for example, doc in zip(examples, docs):
        gold = {(ent.start, ent.end, ent.label_) for ent in example.reference.ents}
        n_gold += len(gold)
        equal += [tag == other for tag, other in zip(_tags(doc), _tags(example.reference))]
        for ent in doc.ents:
            right.append((ent.start, ent.end, ent.label_) in gold)
            probabilities.append(ent._.crf_prob)
    p, is_right = np.clip(probabilities, 1e-9, 1 - 1e-9), np.array(right, dtype=bool)
    loss = float(-np.log(np.where(is_right, p, 1 - p)).mean())
    f1, accuracy = 200 * sum(right) / (n_gold + len(right)), 100 * float(np.mean(equal))
    return f1, accuracy, calibration(p, is_right)["calibration_error"], loss


def _tags(doc: Any) -> list[str]:
    return [f"{token.ent_iob_}-{token.ent_type_}" if token.ent_type_ else "O" for token in doc]


def _log_loss(pipe: Any, nlp: Any, examples: list[Example]) -> float:
    """Mean log loss of tokens: of those whose annotated tag occurs in training."""
    losses, column = [], {tag: n for n, tag in enumerate(pipe.tags())}
    for example in examples[:300]:
        marginals = pipe.marginals(nlp.make_doc(example.reference.text))[0]
        losses += [
            -np.log(max(row[column[tag]], 1e-9))
            for row, tag in zip(marginals, _tags(example.reference))
            if tag in column
        ]
    return float(np.mean(losses))


def _examples(nlp: Any, name: str, sentences: Any) -> list[Example]:
    examples = make_examples(nlp.vocab, sentences, entities=SETS[name].entities)
    return [each for each in examples if len(nlp.make_doc(each.reference.text)) == len(each.reference)]


def _row(name: str, some: Any, test: Any, l2: float, average: int) -> list[float]:
    nlp, pipe = _trained(name, some, _laplace(l2))
    examples, found = _examples(nlp, name, test), {}
    for n in (0, average):
        pipe.decoder = Draws(n) if n else None
        for decode in ("viterbi", "posterior"):
            pipe.cfg["decode"] = decode
            found[n, decode] = _judged(nlp, examples)
        found[n, "tags"] = _log_loss(pipe, nlp, examples)
    (f1, _, *plain), (_, _, *averaged) = found[0, "viterbi"], found[average, "viterbi"]
    posterior = zip(found[0, "posterior"][:2], found[average, "posterior"][:2])
    pairs = [*posterior, *zip(plain, averaged), (found[0, "tags"], found[average, "tags"])]
    return [f1, *(value for pair in pairs for value in pair)]


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
        pipe.decoder = Draws(n) if n else None
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
        pipe.decoder = Draws(average) if kind == "variance" else None
        doubt = [disagreement(pipe, doc) if kind == "variance" else _entropy(pipe, doc) for doc in docs]
        order = np.argsort(-np.array(doubt), kind="stable").tolist()
        known, left = [*known, *(left[n] for n in order[:20])], [left[n] for n in order[20:]]
        pipe.decoder = None
    nlp, _ = _trained(name, known, _laplace(l2))
    return _judged(nlp, _examples(nlp, name, test))[0]


def _entropy(pipe: Any, doc: Any) -> float:
    """Mean entropy of the tags of a token."""
    marginals = np.maximum(pipe.marginals(doc)[0], 1e-12)
    return float(-(marginals * np.log(marginals)).sum(axis=1).mean())


if __name__ == "__main__":
    typer.run(main)
