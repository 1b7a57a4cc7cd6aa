"""What links between texts are worth: ``python -m tests.benchmarks.linked_texts``.

Texts are titles of stackoverflow_tags with exactly one of ten tags. Each links to two others of its part of the data, of which
four in five have its tag (homophily 0.8). All models read the same features of words; accuracy on titles that training has not
seen.
"""

import os
import time
from collections import Counter
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("SPACY_CRF_THREADS", "1")

import numpy as np
import spacy
import srsly
import typer
from spacy.tokens import Doc
from spacy.training import Example

from .data import data_folder
from .measure import show

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
    return {"@architectures": f"spacy_crf.{architecture}.v1", "emissions": EMISSIONS, **settings}


def main(n_train: int = 500, n_test: int = 2000, homophily: float = 0.8, iterations: int = 40) -> None:
    links = {"cliques": {"links": {"@misc": "spacy_crf.LinkedDocuments.v1"}}}
    flooded = {"inference": {"@misc": "spacy_crf.BeliefPropagation.v1"}}
    kinds: dict[str, tuple[dict[str, Any], str]] = {
        "each text alone (MaxEntText)": (model("MaxEntText"), "LogLikelihood"),
        "LinkedTexts": (model("LinkedTexts", **links), "LogLikelihood"),
        "with SentenceLikelihood": (model("LinkedTexts", **links), "SentenceLikelihood"),
        "with strength = 1": (model("LinkedTexts", **links, strength=1.0), "LogLikelihood"),
        "with belief propagation": (model("LinkedTexts", **links, **flooded), "LogLikelihood"),
    }
    train, test = titles("train")[:n_train], titles("test")[:n_test]
    rows = []
    for name, (settings, loss) in kinds.items():
        nlp = spacy.blank("en")
        optimizer = {"@optimizers": "spacy_crf.LBFGS.v1", "l2": 0.1, "max_iterations": iterations}
        config = {"model": settings, "loss": {"@losses": f"spacy_crf.{loss}.v1"}, "optimizer": optimizer}
        cat = nlp.add_pipe("crf_textcat", config=config)
        docs = linked(nlp, train, "train", homophily, 0)
        examples = [Example(nlp.make_doc(doc.text), doc) for doc in docs]
        begin = time.process_time()
        nlp.initialize(lambda examples=examples: examples)
        while cat.optimizer.stop_reason(cat.name) is None:
            nlp.update(examples, sgd=cat.optimizer)
        seconds = time.process_time() - begin
        gold = linked(nlp, test, "test", homophily, 1)
        begin = time.process_time()
        cat.set_annotations(found := [doc.copy() for doc in gold], cat.predict_together(found))
        predicted = time.process_time() - begin
        right = np.mean([max(doc.cats, key=doc.cats.get) == max(of.cats) for doc, of in zip(found, gold)])
        rows.append([name, f"{100 * right:.1f}", f"{seconds:.1f}", f"{len(gold) / predicted:,.0f}"])
        print(rows[-1], flush=True)
    show("linked_texts", ["", "accuracy, %", "CPU seconds of training", "texts/s"], rows)


if __name__ == "__main__":
    typer.run(main)
