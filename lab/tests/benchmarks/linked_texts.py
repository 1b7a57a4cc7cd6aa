"""Accuracy of labels of texts with and without their links: ``python -m lab.tests.benchmarks.linked_texts``.

Texts are titles of stackoverflow_tags with exactly one of ten tags. Each links to two others of its part of the data, of which
four in five have its tag (homophily 0.8). All models read the same features of words; accuracy on titles that training has not
seen.
"""

import os
import time
from collections import Counter
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("SPACY_CRF_THREADS", "1")

import numpy as np
import spacy
import srsly
import typer
from spacy.tokens import Doc
from spacy.training import Example

from spacy_crf_lab.linked_texts import predict_together
from spacy_crf_lab.links import pass_links
from tests.benchmarks.data import data_folder
from tests.benchmarks.measure import show

from ..util import registered

EMISSIONS = {"@architectures": "spacy_crf.SparseEmissions.v1", "features": {"@misc": "spacy_crf.text_features.v1"}}
TAGS = 10


def titles(part: str) -> list[tuple[str, str]]:
    rows = [*srsly.read_jsonl(data_folder() / "stackoverflow_tags" / f"{part}.jsonl")]
    often = [tag for tag, _ in Counter(tag for row in rows for tag in row["cats"]).most_common(TAGS)]
    alone = [(row["text"], [tag for tag in row["cats"] if tag in often]) for row in rows]
    return [(text, found[0]) for text, found in alone if len(found) == 1]


def linked(nlp: Any, items: list[tuple[str, str]], group: str, homophily: float, seed: int) -> list[Doc]:
    random, docs = np.random.default_rng(seed), []
    labels = np.array([tag for _, tag in items])
    for n, (text, tag) in enumerate(items):
        doc = nlp.make_doc(text)
        same, other = (np.flatnonzero((labels == tag) == is_same) for is_same in (True, False))
        picked = [random.choice(same if random.random() < homophily else other) for _ in range(2)]
        doc._.crf_id, doc._.crf_links, doc._.crf_group = n, [int(each) for each in picked if each != n], group
        doc.cats = {tag: 1.0}
        docs.append(doc)
    return docs


def model(architecture: str, **settings: Any) -> dict[str, Any]:
    return {"@architectures": registered(architecture), "emissions": EMISSIONS, **settings}


class Judged(NamedTuple):
    accuracy: float  # in %
    seconds: float  # CPU seconds of training
    speed: float  # texts a second


def judge(settings: dict[str, Any], loss: str = "LogLikelihood", *, texts: int, homophily: float) -> Judged:
    """Train on so many texts, and label 2,000 others."""
    nlp = spacy.blank("en")
    optimizer = {"@optimizers": "spacy_crf.LBFGS.v1", "l2": 0.1, "max_iterations": 40}
    config = {"model": settings, "loss": {"@losses": registered(loss)}, "optimizer": optimizer}
    cat: Any = nlp.add_pipe("crf_textcat", config=config)
    docs = linked(nlp, titles("train")[:texts], "train", homophily, 0)
    examples = [*pass_links(Example(nlp.make_doc(doc.text), doc) for doc in docs)]
    begin = time.process_time()
    nlp.initialize(lambda: examples)
    while cat.optimizer.stop_reason(cat.name) is None:
        nlp.update(examples, sgd=cat.optimizer)
    seconds = time.process_time() - begin
    gold = linked(nlp, titles("test")[:2000], "test", homophily, 1)
    found = [doc.copy() for doc in gold]
    begin = time.process_time()
    cat.set_annotations(found, predict_together(cat, found))
    speed = len(found) / (time.process_time() - begin)
    right = [max(doc.cats, key=doc.cats.__getitem__) == max(of.cats) for doc, of in zip(found, gold)]
    return Judged(100.0 * float(np.mean(right)), seconds, speed)


LINKS = {"cliques": {"links": {"@misc": "spacy_crf_lab.LinkedDocuments.v1"}}}
ALONE, LINKED = model("MaxEntText"), model("LinkedTexts", **LINKS)


def main(texts: int = 500, homophily: float = 0.8) -> None:
    beliefs = {"inference": {"@misc": "spacy_crf_lab.BeliefPropagation.v1"}}
    kinds: dict[str, tuple[Any, ...]] = {
        "each text alone (MaxEntText)": (ALONE,),
        "LinkedTexts": (LINKED,),
        "with SentenceLikelihood": (LINKED, "SentenceLikelihood"),
        "with strength = 1": (model("LinkedTexts", **LINKS, strength=1.0),),
        "with belief propagation": (model("LinkedTexts", **LINKS, **beliefs),),
    }
    rows = []
    for name, settings in kinds.items():
        accuracy, seconds, speed = judge(*settings, texts=texts, homophily=homophily)
        rows.append([name, f"{accuracy:.1f}", f"{seconds:.1f}", f"{speed:,.0f}"])
    show("Linked titles", ["", "accuracy, %", "CPU seconds of training", "texts/s"], rows)


if __name__ == "__main__":
    typer.run(main)
