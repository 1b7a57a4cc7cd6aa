"""Hidden Markov models: ``python -m lab.tests.benchmarks.hmm``

Counting and tagging UD EWT beside nltk's TnT, iterations of Baum-Welch beside hmmlearn's, and the annotation of five simulated
annotators beside majority votes and skweak's HMM. These programs take part where they are installed:
``pip install nltk hmmlearn skweak``. CPU seconds, side by side.
"""

import itertools
import random
import time
from collections import Counter
from importlib.util import find_spec
from typing import Annotated, Any

import numpy as np
import spacy
import typer
from spacy.attrs import LOWER
from spacy.tokens import Doc, Span
from spacy.util import filter_spans

from spacy_crf.features.doc_batch import DocBatch, read_attributes
from spacy_crf.inference.pruned_lattice import Orders
from spacy_crf.schemes import TransitionMask
from spacy_crf_lab.aggregation import aggregate, votes
from spacy_crf_lab.baum_welch import Estimates, Observed, Priors, baum_welch, maximize
from spacy_crf_lab.counting import Counts
from tests.benchmarks.data import make_examples, make_gold_doc, read_sentences
from tests.benchmarks.measure import show, side_by_side, token_accuracy

RIGHT = (0.7, 0.75, 0.8, 0.9, 0.95)  # shares of entities that the annotators get right


def main(
    only: Annotated[
        str, typer.Option(help="Some of tagging, em, annotators, between commas.")
    ] = "tagging,em,annotators",
    repeats: Annotated[int, typer.Option(help="How often the tasks take turns.")] = 5,
) -> None:
    """The tables named by --only."""
    for name in only.split(","):
        {"tagging": tagging, "em": em, "annotators": annotators}[name](repeats)


def tagging(repeats: int) -> None:
    """Order 1 and 2, and nltk's TnT."""
    nlp = spacy.blank("en")
    train, test = (read_sentences("ud_ewt_xpos", part) for part in ("train", "test"))
    examples = make_examples(nlp.vocab, train, entities=False)
    taggers, trainings = {}, {}
    for order in (1, 2):
        taggers[f"HMM.v1, order {order}"] = pipe = nlp.create_pipe(
            "crf_tagger", config={"model": {"@architectures": "spacy_crf_lab.HMM.v1", "order": order}}
        )
        trainings[f"HMM.v1, order {order}"] = lambda pipe=pipe: pipe.initialize(lambda: examples, nlp=nlp)
    docs = [Doc(nlp.vocab, words=sentence.words) for sentence in test]
    n_train, n_test = (sum(len(sentence.words) for sentence in part) for part in (train, test))
    runs: dict[str, Any] = {
        name: lambda pipe=pipe: [pipe.predict(docs[n : n + 256]) for n in range(0, len(docs), 256)]
        for name, pipe in taggers.items()
    }
    if find_spec("nltk"):
        from nltk.tag.tnt import TnT

        theirs, tagged = TnT(), [list(zip(sentence.words, sentence.tags)) for sentence in train]
        trainings["nltk's TnT"] = lambda: theirs.train(tagged)
        runs["nltk's TnT"] = lambda: [theirs.tag(sentence.words) for sentence in test]
    seconds = side_by_side(*trainings.values(), repeats=repeats, clock=time.process_time)
    of_tags = side_by_side(*runs.values(), repeats=repeats, clock=time.process_time)
    rows = []
    for (name, run), to_train, to_tag in zip(runs.items(), seconds, of_tags):
        if name in taggers:
            found = [[token.tag_ for token in doc] for doc in taggers[name].pipe(map(Doc.copy, docs))]
        else:
            found = [[tag for _, tag in sentence] for sentence in run()]
        accuracy = token_accuracy([sentence.tags for sentence in test], found)
        rows.append([name, accuracy, to_train, n_test / to_tag, of_tags[-1] / to_tag])
    header = ["", "accuracy, %", "training, s", "tokens/s", "times as fast"]
    show(f"UD EWT, XPOS: {n_train:,} tokens to count, {n_test:,} to tag", header, rows)


def em(repeats: int, size: int = 12, n_words: int = 2000, n_texts: int = 2000) -> None:
    """An iteration of Baum-Welch on random texts."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 40, n_texts)
    starts = np.append(0, np.cumsum(lengths))
    words = rng.zipf(1.3, starts[-1]) % n_words
    steps = Counts(rng.random((size + 1, size + 1)), np.zeros(0, dtype=np.int64), np.zeros(0))
    begin = Estimates(steps, [rng.random((n_words, size))])
    mask, prior = (
        TransitionMask(np.ones((size, size), bool), np.ones(size, bool), np.ones(size, bool)),
        Priors(0.0, [0.0]),
    )
    text = Observed(words[np.newaxis], np.ones((len(words), size), bool), starts, np.ones(n_texts))
    orders = Orders(1, steps.keys, size)
    tasks: dict[str, Any] = {
        "Baum-Welch": lambda: maximize(baum_welch([text], begin, mask, prior, orders, 1), mask, prior)
    }
    if find_spec("hmmlearn"):
        from hmmlearn.hmm import CategoricalHMM

        given = maximize(begin, mask, prior)
        theirs = CategoricalHMM(size, n_iter=1, tol=-np.inf, init_params="", n_features=n_words)
        steps_only = np.exp(given.transitions)
        theirs.startprob_, theirs.transmat_ = np.exp(given.first), steps_only / steps_only.sum(axis=1, keepdims=True)
        theirs.emissionprob_ = np.exp(given.codes[0]).T
        tasks["hmmlearn"] = lambda: theirs.fit(words[:, np.newaxis], lengths)
    seconds = side_by_side(*tasks.values(), repeats=repeats, clock=time.process_time)
    rows = [[name, each, len(words) / each, seconds[-1] / each] for name, each in zip(tasks, seconds)]
    show(f"An iteration of EM: {len(words):,} tokens, {size} states", ["", "s", "tokens/s", "times as fast"], rows)


def annotators(repeats: int) -> None:
    """F1 against the truth of what five annotators say together, who see all texts or 60 % of them."""
    rows = []
    for name, sees in itertools.product(("wikigold", "mit_restaurant", "wnut17"), (0.6, 1.0)):
        nlp, rng = spacy.blank("en"), random.Random(0)
        docs = [make_gold_doc(nlp.vocab, sentence) for sentence in read_sentences(name, "train", limit=1500)]
        gold = [{(ent.start, ent.end, ent.label_) for ent in doc.ents} for doc in docs]
        labels = sorted({label for ents in gold for *_, label in ents})
        keys = [f"annotator {n}" for n in range(len(RIGHT))]
        for doc in docs:
            for key, right in zip(keys, RIGHT):
                if rng.random() < sees:
                    doc.spans[key] = simulated(doc, right, labels, rng)
        row = [
            f"{name}, each sees {100 * sees:.0f} %",
            f1(gold, [*map(majority, docs)]),
            f1(gold, [*map(_tokens(keys), docs)]),
        ]
        row.append(f1(gold, aggregated(docs, keys, labels)))
        if find_spec("skweak"):
            from skweak.generative import HMM

            theirs = HMM("theirs", labels, prefixes="BIO")
            theirs.fit(docs)
            row.append(f1(gold, [_spans(doc.spans.get("theirs", ())) for doc in theirs.pipe(docs)]))
        rows.append(row)
    header = ["F1 against the truth", "majority of spans", "majority of tokens", "aggregate", "skweak's HMM"]
    show("Five annotators, who get 70 to 95 % of the entities right", header[: len(rows[0])], rows)


def simulated(doc: Doc, right: float, labels: list[str], rng: random.Random) -> list[Span]:
    """The spans of a simulated annotator, whose mistakes are missing entities, other labels, other ends and needless spans."""
    said = []
    for ent in doc.ents:
        begin, end, label = ent.start, ent.end, ent.label_
        if rng.random() >= right:
            mistake = rng.choice(["left out", "label", "ends"])
            if mistake == "left out":
                continue
            if mistake == "label":
                label = rng.choice([each for each in labels if each != label] or labels)
            else:
                begin, end = max(0, begin + rng.choice([-1, 0, 1])), min(len(doc), end + rng.choice([-1, 0, 1]))
        said.append((begin, end, label))
    if rng.random() >= right:
        begin = rng.randrange(len(doc))
        said.append((begin, min(len(doc), begin + rng.choice([1, 2])), rng.choice(labels)))
    return filter_spans(Span(doc, *span) for span in said if span[0] < span[1])


def majority(doc: Doc) -> set:
    """Spans on which more than half of those agree who have seen the text."""
    counts = Counter(span for group in doc.spans.values() for span in _spans(group))
    return {span for span, n in counts.items() if 2 * n > len(doc.spans)}


def _tokens(keys: list[str]) -> Any:
    """A function that returns the spans of the tags that most sources give each token."""
    from spacy_crf.schemes import get_scheme

    def voted(doc: Doc) -> set:
        labels = sorted({span.label_ for group in doc.spans.values() for span in group})
        said = votes([doc], keys, labels)
        tags = np.array([(said == tag).sum(axis=0) for tag in range(1 + 2 * len(labels))]).argmax(axis=0)
        found = get_scheme("BIO").decode(tags, np.array([0, len(doc)]))
        return {(begin, end, labels[label]) for begin, end, label in zip(*(column.tolist() for column in found))}

    return voted


def aggregated(docs: list[Doc], keys: list[str], labels: list[str]) -> list[set]:
    """Spans that are more probable than not."""
    starts, (_, words) = DocBatch(docs).bounds, np.unique(read_attributes(docs, [LOWER])[:, 0], return_inverse=True)
    found = aggregate(votes(docs, keys, labels), words, starts, len(labels), min_prob=0.5)
    parts = [found.of_tokens(slice(*bounds)).spans for bounds in itertools.pairwise(starts.tolist())]
    return [{(b, e, labels[label]) for b, e, label in zip(*(column.tolist() for column in part))} for part in parts]


def _spans(group: Any) -> set:
    return {(span.start, span.end, span.label_) for span in group}


def f1(gold: list[set], found: list[set]) -> float:
    """Percent."""
    return 200 * sum(len(a & b) for a, b in zip(gold, found)) / sum(len(a) + len(b) for a, b in zip(gold, found))


if __name__ == "__main__":
    typer.run(main)
