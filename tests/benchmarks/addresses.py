"""The pipeline of projects/addresses against usaddress' features with CRFsuite, trained on the same addresses as parserator does:
``python -m tests.benchmarks.addresses PIPELINE``. (usaddress' own model has learned all addresses of its repository.)

The pipeline is the folder ``packaged`` of the project, made with `--assets` of a folder that has usaddress/heldout_train.conll
as train.conll. Fields are compared without the punctuation at their ends, since usaddress cuts at blanks.
"""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pycrfsuite
import spacy
import typer
import usaddress

from .data import Sentence, read_sentences
from .measure import show

PARAMS = {"c1": 0.1, "c2": 0.01, "feature.minfreq": 0}
Fields = set[tuple[int, int, str]]


def main(pipeline: Path) -> None:
    nlp = spacy.load(pipeline)
    texts = [*read_sentences("usaddress", "dev"), *read_sentences("usaddress", "test")]
    with TemporaryDirectory() as folder:
        tagger = _crfsuite(read_sentences("usaddress", "train"), f"{folder}/model")
        ours, theirs, gold = [], [], []
        for text in texts:
            words = " ".join(text.words)
            ents = [(ent.start_char, ent.end_char, ent.label_) for ent in nlp(words).ents]
            ours.append(_trimmed(words, ents))
            theirs.append(_trimmed(words, _runs(text.words, tagger.tag(usaddress.tokens2features(text.words)))))
            gold.append(_trimmed(words, _runs(text.words, [tag.partition("-")[2] for tag in text.tags])))
    rows = [("spacy_crf", *_figures(gold, ours)), ("usaddress' features, CRFsuite", *_figures(gold, theirs))]
    header = ("", "F1 of fields", "% addresses without a mistake", "addresses with a repeated field")
    show(f"{len(texts)} addresses", header, [*rows, ("annotation", *_figures(gold, gold))])


def _crfsuite(sentences: list[Sentence], path: str) -> "pycrfsuite.Tagger":
    trainer = pycrfsuite.Trainer(verbose=False)
    for sentence in sentences:
        trainer.append(usaddress.tokens2features(sentence.words), [tag.partition("-")[2] for tag in sentence.tags])
    trainer.set_params(PARAMS)
    trainer.train(path)
    tagger = pycrfsuite.Tagger()
    tagger.open(path)
    return tagger


def _runs(words: list[str], labels: list[str]) -> list[tuple[int, int, str]]:
    """Neighbours with one label, by characters. Words without a label end a run."""
    runs, begin, before = [], 0, ""
    for word, label in zip(words, labels):
        end = begin + len(word)
        if label and label == before:
            runs[-1] = (runs[-1][0], end, label)
        elif label:
            runs.append((begin, end, label))
        begin, before = end + 1, label
    return runs


def _trimmed(text: str, fields: list[tuple[int, int, str]]) -> Fields:
    found = set()
    for begin, end, label in fields:
        while begin < end and not (text[begin].isalnum() or text[begin] in "#&"):
            begin += 1
        while begin < end and not text[end - 1].isalnum():
            end -= 1
        found |= {(begin, end, label)} if begin < end else set()
    return found


def _figures(gold: list[Fields], found: list[Fields]) -> tuple[float, float, int]:
    right = sum(len(one & other) for one, other in zip(gold, found))
    f = 200 * right / (sum(map(len, gold)) + sum(map(len, found)))
    whole = 100 * sum(one == other for one, other in zip(gold, found)) / len(gold)
    return f, whole, sum(max(Counter(label for *_, label in fields).values(), default=0) > 1 for fields in found)


if __name__ == "__main__":
    typer.run(main)
