"""A few annotated sentences: `crf fit` without a config, with clusters, lists and vectors of installed packages and without,
against python-crfsuite with its strong features, and spaCy's ``ner`` for the same CPU time: F1 and texts that are right as a
whole, both in percent. ``python -m tests.benchmarks.small_data``

Sentences are drawn by seed from the training part, scores on test are means over seeds.

With ``--calibration``: the calibration error of the entities that `fit` finds in test, with ten equal bins, before and after it
divided scores by a temperature. "by chance" is the mean error of exact probabilities: of as many entities, each of which is right
with the probability that it has. Sentences stay in the order of the file.
"""

import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import spacy
import typer
from spacy.language import Language
from spacy.training import Example
from spacy.util import Config, fix_random_seed, minibatch

from spacy_crf.cli.configs import in_language, join_parts, known_of_words
from spacy_crf.cli.look import choose, count
from spacy_crf.cross_validation import fit
from spacy_crf.pipeline.scorers import calibration as calibration_of
from spacy_crf.race import Fitted, divide_scores

from .data import Sentence, iob2_tags, make_doc, make_examples, make_gold_doc, read_sentences
from .measure import Tags, entity_f1, show, whole_texts
from .rivals import STRONG_PARAMS, CRFsuite, CRFsuiteTagger, strong_features

NAMES = "wnut17,mit_restaurant,wikigold,jnlpba,germeval14,usaddress,ingredients_ip"
LANGUAGES = {"germeval14": "de", "german_ler": "de"}
BATCH = 32


def main(
    names: str = typer.Option(NAMES, help="Data sets, between commas."),
    sizes: str = typer.Option("50,100,200,500,1000", help="Numbers of sentences, between commas; 0 for all."),
    seeds: int = typer.Option(3, help="Draws of the sentences."),
    most_test: int = typer.Option(3000, help="Sentences of the test part, at most."),
    ner: bool = typer.Option(True, help="Whether to train spaCy's ner."),
    words: bool = typer.Option(True, help="Whether to train with what installed packages know of words too."),
    calibration: bool = typer.Option(False, "--calibration", help="Measure probabilities in place of F1."),
) -> None:
    if calibration:
        _calibration(names.split(","), [*map(int, sizes.split(","))], most_test, words)
        return
    rows = []
    for name in names.split(","):
        everything = _without_tags(read_sentences(name, "train"))
        test = _without_tags(read_sentences(name, "test", limit=most_test))
        for size in map(int, sizes.split(",")):
            results = []
            for seed in range(seeds if size else 1):
                drawn = random.Random(seed).sample(everything, min(size, len(everything)) if size else len(everything))
                results.append(_row(LANGUAGES.get(name, "en"), drawn, test, ner, words))
            rows.append([f"{name}, {size or 'all'}", *map(_mean, zip(*results))])
            show(f"F1 and whole texts on test, mean of {seeds} draws", HEADER, rows[-1:])
    show(
        f"F1 and whole texts on test, mean of {seeds} draws",
        HEADER,
        [*rows, ["mean", *map(_mean, zip(*(row[1:] for row in rows)))]],
    )


HEADER = (
    "sentences",
    "CRFsuite",
    "fit, no words",
    "fit",
    "ner, same CPU",
    "fit, expected",
    "fit, CPU s",
    "whole texts: CRFsuite",
    "whole texts: fit, no words",
    "whole texts: fit",
)


def _without_tags(sentences: list[Sentence]) -> list[Sentence]:
    """Sentences by their words alone: files of columns may have parts of speech, which new texts have not."""
    return [sentence._replace(pos=None) for sentence in sentences]


def _mean(values) -> "float | None":
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


def _row(lang: str, train: list[Sentence], test: list[Sentence], ner: bool, words: bool) -> list["float | None"]:
    gold = [sentence.tags for sentence in test]
    plain, expected, seconds = _fit(lang, train, test, words=False)
    of_words = _fit(lang, train, test, words=True)[0] if words else None
    crfsuite = _crfsuite(lang, train, test)
    rival = _ner(lang, train, test, gold, seconds) if ner else None
    found = (crfsuite, plain, of_words)
    f = [None if tags is None else entity_f1(gold, tags) for tags in found]
    whole = [None if tags is None else whole_texts(gold, tags) for tags in found]
    return [*f, rival, expected, seconds, *whole]


def _fit(lang: str, train: list[Sentence], test: list[Sentence], *, words: bool) -> tuple[Tags, float, float]:
    """RETURNS: The tags of the test sentences, the F1 that the folds expect, and the CPU seconds of the training."""
    start = time.process_time()
    nlp, fitted = _trained(lang, train, words)
    seconds = time.process_time() - start
    docs = nlp.pipe(make_doc(nlp.vocab, sentence) for sentence in test)
    return [iob2_tags(doc) for doc in docs], 100 * fitted.f.value, seconds


def _trained(lang: str, train: list[Sentence], words: bool) -> tuple[Language, Fitted]:
    vocab = spacy.blank(lang).vocab
    (task,) = choose(count([make_gold_doc(vocab, sentence) for sentence in train]), is_spacy=False)
    config = Config().from_str(in_language(join_parts([task.part], ""), lang))
    nlp, (fitted,) = fit(
        config,
        lambda nlp: make_examples(nlp.vocab, train),
        words=known_of_words(lang) if words else {},
        **task.search._asdict(),
    )
    return nlp, fitted


def _calibration(names: list[str], sizes: list[int], most_test: int, words: bool) -> None:
    title = "Calibration error of the entities found in test"
    header = (
        "sentences",
        "entities",
        "before",
        "after",
        "by chance",
        "temperature",
        "held-out, before",
        "held-out, after",
    )
    rows = []
    for name in names:
        everything, test = read_sentences(name, "train"), read_sentences(name, "test", limit=most_test)
        for size in sizes:
            n_drawn = min(size or len(everything), len(everything))
            numbers = sorted(random.Random(0).sample(range(len(everything)), n_drawn))
            drawn = [everything[n] for n in numbers]
            rows.append([f"{name}, {n_drawn}", *_errors(LANGUAGES.get(name, "en"), drawn, test, words)])
            show(title, header, rows[-1:])
    show(title, header, [*rows, ["mean", *map(_mean, zip(*(row[1:] for row in rows)))]])


def _errors(lang: str, train: list[Sentence], test: list[Sentence], words: bool) -> list[float]:
    nlp, fitted = _trained(lang, train, words)
    pipe: Any = nlp.get_pipe(fitted.name)
    pipe.cfg["confidence"] = True
    after, probabilities = _error(nlp, pipe, test)
    divide_scores(pipe, 1 / fitted.temperature)
    before, _ = _error(nlp, pipe, test)
    draws = np.random.default_rng(0).random((100, len(probabilities))) < probabilities
    by_chance = statistics.mean(calibration_of(probabilities, right)["calibration_error"] for right in draws)
    found = len(probabilities)
    return [found, before, after, by_chance, fitted.temperature, fitted.error_before, fitted.error_after]


def _error(nlp: Language, pipe, test: list[Sentence]) -> tuple[float, np.ndarray]:
    """RETURNS: The calibration error of the entities found in test, and their probabilities."""
    examples = make_examples(nlp.vocab, test)
    docs = nlp.pipe(example.predicted for example in examples)
    predicted = [Example(doc, example.reference) for doc, example in zip(docs, examples)]
    decisions = [decision for example in predicted for decision in pipe.annotation.decisions(example)]
    probabilities, right = np.array(decisions).T
    return calibration_of(probabilities, right)["calibration_error"], probabilities


def _crfsuite(lang: str, train: list[Sentence], test: list[Sentence]) -> Tags:
    vocab = spacy.blank(lang).vocab
    docs = [make_gold_doc(vocab, sentence) for sentence in train]
    rival = CRFsuite(strong_features, STRONG_PARAMS).read(docs, [iob2_tags(doc) for doc in docs])
    with tempfile.TemporaryDirectory() as folder:
        rival.train(Path(folder) / "model", max_iterations=150)
        tagger = CRFsuiteTagger(strong_features, Path(folder) / "model")
        return [tagger(make_doc(vocab, sentence)) for sentence in test]


def _ner(lang: str, train: list[Sentence], test: list[Sentence], gold, seconds: float) -> float:
    """spaCy's default ``ner``, trained on all sentences until the CPU time is over."""
    fix_random_seed(0)
    nlp = spacy.blank(lang)
    nlp.add_pipe("ner")
    examples: list[Example] = make_examples(nlp.vocab, train)
    start = time.process_time()
    optimizer = nlp.initialize(lambda: examples)
    while time.process_time() - start < seconds:
        random.shuffle(examples)
        for batch in minibatch(examples, BATCH):
            nlp.update(batch, sgd=optimizer, drop=0.1)
    docs = nlp.pipe(make_doc(nlp.vocab, sentence) for sentence in test)
    return entity_f1(gold, [iob2_tags(doc) for doc in docs])


if __name__ == "__main__":
    typer.run(main)
