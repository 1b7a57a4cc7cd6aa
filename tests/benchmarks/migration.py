"""The model of the package usaddress as a pipeline, beside the package itself: ``python -m tests.benchmarks.migration``.

All addresses of the benchmark data, cut into words by the package. CPU seconds of one thread, from the words (of Docs, for the
pipelines) to the labels: medians of rounds in turn. The package makes features and asks CRFsuite. One pipeline asks the same
function for each sentence, the other asks the package's function of a word for each word that it meets first. A third one finds
entities, runs of one label, each label at most once in an address.
"""

import gc
import os
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Optional

os.environ.setdefault("SPACY_CRF_THREADS", "1")

import typer
import usaddress
from spacy.language import Language
from spacy.tokens import Doc

from spacy_crf.cli.migrate import find_words, make_pipeline, read_model
from spacy_crf.migrate.checking import scorer_of

from .data import data_folder, parse_conll
from .measure import show

MODEL = Path(usaddress.__file__).with_name("usaddr.crfsuite")
SENTENCES, WORDS, EDGES = "usaddress:tokens2features", "usaddress:tokenFeatures", "address.start,address.end"
Labels = list[list[str]]


def _texts(limit: Optional[int]) -> Labels:
    texts = {}
    for path in sorted((data_folder() / "usaddress").glob("*.conll")):
        with path.open(encoding="utf8") as lines:
            texts.update(dict.fromkeys(" ".join(sentence.words) for sentence in parse_conll(lines)))
    return [usaddress.tokenize(text) for text in islice(texts, limit)]


def _package(words: Labels) -> Labels:
    return [usaddress.TAGGER.tag(usaddress.tokens2features(of_text)) for of_text in words]


def _labels(nlp: Language, docs: list[Doc]) -> Labels:
    return [[token.tag_ or token.ent_type_ for token in doc] for doc in nlp.pipe(docs)]


def _repeats(labels: list[str]) -> bool:
    """Whether a label has two runs."""
    runs = [label for label, before in zip(labels, [None, *labels]) if label != before]
    return len(runs) > len(set(runs))


def main(
    limit: int = typer.Option(None, help="Addresses; all by default."), rounds: int = typer.Option(5, help="Rounds.")
) -> None:
    """Compare labels and time."""
    words, model = _texts(limit), read_model(MODEL.read_bytes(), str(MODEL), "crfsuite")
    native = find_words(model, WORDS, EDGES, None)
    labels: dict[str, Labels] = {}
    seconds: dict[str, list[float]] = {}

    def measure(name: str, task: Callable[[], Labels]) -> None:
        gc.collect()
        start = time.process_time()
        labels[name] = task()
        seconds.setdefault(name, []).append(time.process_time() - start)

    for _ in range(rounds):
        measure("usaddress", partial(_package, words))
        by_sentence = make_pipeline(model, ["orth"], SENTENCES)
        by_word = make_pipeline(model, ["orth"], None, native=native, word_features=WORDS)
        once = make_pipeline(model, ["orth"], None, native=native, word_features=WORDS, entities=True)
        once.get_pipe("crf_ner").add_rule({"rule": "at_most", "label": "*", "n": 1})
        for name, nlp in (
            ("a function of sentences", by_sentence),
            ("a function of words", by_word),
            ("the same, all words met before", by_word),
            ("entities, each label once", once),
        ):
            docs = [Doc(nlp.vocab, words=of_text) for of_text in words]
            nlp(Doc(nlp.vocab, words=words[0]))  # compiles, or reads what was compiled
            measure(name, partial(_labels, nlp, docs))
    score, theirs, rows = scorer_of(model), labels["usaddress"], []
    for name, ours in labels.items():
        different = ties = repaired = 0
        for of_text, a, b in zip(words, ours, theirs):
            if a != b and "once" in name and _repeats(b):
                repaired += 1
            elif a != b:
                features = usaddress.tokens2features(of_text)
                is_tie = abs(score(features, None, a) - score(features, None, b)) < 1e-5
                ties, different = ties + is_tie, different + (not is_tie)
        taken, repeated = median(seconds[name]), sum(map(_repeats, ours))
        faster = f"{median(seconds['usaddress']) / taken:.2f}"
        rows.append((name, f"{taken:.2f}", faster, different, ties, repeated, repaired))
    columns = ("", "CPU seconds", "times as fast", "other labels", "ties", "a label twice", "repaired")
    show(f"{len(words):,} addresses", columns, rows)


if __name__ == "__main__":
    typer.run(main)
