"""What a few annotated sentences give: `crf fit` without a config, with what installed packages know of words and without,
against python-crfsuite with its strong features, and spaCy's ``ner`` for the same CPU time: F1 and texts that are right as a
whole, both in percent. ``python -m tests.benchmarks.small_data``

Sentences are drawn by seed from the training part, scores on test are means over seeds.
"""

import random
import statistics
import tempfile
import time
from pathlib import Path

import spacy
import typer
from spacy.training import Example
from spacy.util import Config, fix_random_seed, minibatch

from spacy_crf.cli.configs import in_language, join_parts, known_of_words
from spacy_crf.cli.look import choose, count
from spacy_crf.cross_validation import fit

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
) -> None:
    rows = []
    for name in names.split(","):
        everything, test = read_sentences(name, "train"), read_sentences(name, "test", limit=most_test)
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


def _mean(values) -> "float | None":
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


def _row(lang: str, train: list[Sentence], test: list[Sentence], ner: bool, words: bool) -> list["float | None"]:
    gold = [sentence.tags for sentence in test]
    plain, expected, seconds = _fit(lang, train, test, words=False)
    of_words = _fit(lang, train, test, words=True)[0] if words else None
    crfsuite = _crfsuite(lang, train, test)
    rival = _ner(lang, train, test, gold, seconds) if ner else None
    f = [tags and entity_f1(gold, tags) for tags in (crfsuite, plain, of_words)]
    whole = [tags and whole_texts(gold, tags) for tags in (crfsuite, plain, of_words)]
    return [*f, rival, expected, seconds, *whole]


def _fit(lang: str, train: list[Sentence], test: list[Sentence], *, words: bool) -> tuple[Tags, float, float]:
    """RETURNS: The tags of the test sentences, the F1 that the folds expect, and the CPU seconds of the training."""
    start = time.process_time()
    vocab = spacy.blank(lang).vocab
    (task,) = choose(count([make_gold_doc(vocab, sentence) for sentence in train]), is_spacy=False)
    config = Config().from_str(in_language(join_parts([task.part], ""), lang))
    nlp, (fitted,) = fit(
        config,
        lambda nlp: make_examples(nlp.vocab, train),
        words=known_of_words(lang) if words else {},
        **task.search._asdict(),
    )
    seconds = time.process_time() - start
    docs = nlp.pipe(make_doc(nlp.vocab, sentence) for sentence in test)
    return [iob2_tags(doc) for doc in docs], 100 * fitted.f.value, seconds


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
