"""Exports for `spacy_crf.lite` against the components that were exported: ``python -m tests.benchmarks.lite``.

Labels and probabilities on test data; F1 with weights of 16 bits; sizes; and the times of a fresh Python: to import, to load the
model and label a first text, and texts a second.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import spacy
import typer
from spacy.language import Language
from spacy.tokens import Doc

from spacy_crf import lite
from spacy_crf.migrate.lite import export_lite, write_lite

from . import ours, textcat
from .data import SETS, make_examples, read_sentences
from .measure import show

PIPELINES = {  # factory, by data set
    "conll2000": "crf_ner",
    "usaddress": "crf_ner",
    "mit_restaurant": "crf_ner",
    "ingredients_ip": "crf_ner",
    "cora_refs": "semicrf_ner",
    "snips_intents": "crf_textcat",
}
BITS = {"npz": (32, 0.0), "16 bits": (16, 0.0), "16 bits, pruned": (16, 0.01)}
_FRESH = """
import sys, time
start = time.perf_counter(); import numpy
alone = time.perf_counter(); from spacy_crf import lite
imported = time.perf_counter(); model = lite.load(sys.argv[1]); answer = model.{method}(["2", "cups", "flour"])
first = time.perf_counter()
texts = [line.split() for line in sys.stdin.read().splitlines()]
read = time.perf_counter(); model.{method}_all(texts)
print(alone - start, imported - alone, first - imported, len(texts) / (time.perf_counter() - read))
"""


def trained(name: str, folder: Optional[Path], iterations: int) -> Language:
    """A pipeline trained on one data set; kept in `folder`, if it is given."""
    path = None if folder is None else folder / name
    if path is not None and path.exists():
        return spacy.load(path)
    if name == "snips_intents":
        model = {**textcat.OURS["MaxEntText"], "emissions": textcat.EMISSIONS}
        nlp = textcat.ours(model, textcat.read("train"), textcat.read("test"), iterations).nlp
    else:
        nlp = ours.make_pipeline(PIPELINES[name])
        ours.train(nlp, make_examples(nlp.vocab, read_sentences(name, "train")), max_iterations=iterations)
    if path is not None:
        nlp.to_disk(path)
    return nlp


def texts_of(name: str) -> list[list[str]]:
    if name in SETS:
        return [sentence.words for sentence in read_sentences(name, "test")]
    tokenize = spacy.blank("en").tokenizer
    return [[token.text for token in tokenize(item["text"])] for item in textcat.read("test")]


def differences(nlp: Language, model: lite.Component, texts: Sequence[list[str]]) -> tuple[int, float]:
    """Number of texts with other labels, and the largest difference of probabilities in the others."""
    [(_, pipe)] = nlp.pipeline
    pipe.cfg["confidence"] = True
    docs = [*nlp.pipe(Doc(nlp.vocab, words=words) for words in texts)]
    if model.kind == "text":
        found = [*zip((doc.cats for doc in docs), model.classify_all(texts))]
        n = sum(max(ours, key=ours.get) != max(theirs, key=theirs.get) for ours, theirs in found)
        return n, max(abs(ours[label] - theirs[label]) for ours, theirs in found for label in ours)
    n, largest = 0, 0.0
    for doc, entities in zip(docs, model.entities_all(texts)):
        known = {(span.start, span.end, span.label_): span._.crf_prob for span in doc.ents}
        same = known.keys() == {entity[:3] for entity in entities}
        n += not same
        largest = max([largest, *(abs(known[entity[:3]] - entity.prob) for entity in entities if same)])
    return n, largest


def f1(name: str, model: lite.Component, texts: Sequence[list[str]]) -> float:
    """F1 of the entities, or accuracy of the labels of texts, in percent."""
    if model.kind == "text":
        gold = [item["intent"] for item in textcat.read("test")]
        return 100 * sum(next(iter(row)) == label for row, label in zip(model.classify_all(texts), gold)) / len(gold)
    vocab = spacy.blank("en").vocab
    gold = [
        {(e.start, e.end, e.label_) for e in Doc(vocab, words=s.words, ents=s.tags).ents}
        for s in read_sentences(name, "test")
    ]
    found = [{entity[:3] for entity in entities} for entities in model.entities_all(texts)]
    return 200 * sum(len(a & b) for a, b in zip(gold, found)) / sum(len(a) + len(b) for a, b in zip(gold, found))


def fresh(path: Path, method: str, texts: Sequence[list[str]]) -> list[float]:
    """Seconds to import NumPy, to import lite besides, and to load and label one text; and texts a second."""
    command = [sys.executable, "-c", _FRESH.format(method=method), str(path)]
    lines = "\n".join(" ".join(words) for words in texts)
    return [
        *map(float, subprocess.run(command, input=lines, capture_output=True, text=True, check=True).stdout.split())
    ]


def main(name: Optional[str] = None, keep: Optional[Path] = None, iterations: int = 100, limit: int = 10_000) -> None:
    """name: One data set of the table; all by default. keep: Folder for the trained pipelines. limit: Texts for the speed."""
    for one in [name] if name else PIPELINES:
        nlp, texts = trained(one, keep, iterations), texts_of(one)
        rows: list[list[Any]] = []
        with tempfile.TemporaryDirectory() as folder:
            sizes, scores = {}, {}
            for kind, (bits, prune) in BITS.items():
                path = Path(folder) / f"{kind}.npz"
                begin = time.perf_counter()
                write_lite(export_lite(nlp, bits=bits, prune=prune), path, "npz")
                seconds, model = time.perf_counter() - begin, lite.load(path)
                sizes[kind], scores[kind] = path.stat().st_size, f1(one, model, texts)
                changed, largest = differences(nlp, model, texts)
                target = "0" if bits == 32 else ""
                rows.append([f"{kind}: texts with other labels, of {len(texts):,}", changed, "", target, ""])
                rows.append(
                    [f"{kind}: largest difference of probabilities", f"{largest:.1e}", "", "1e-6" * (bits == 32), ""]
                )
                rows.append([f"{kind}: F1", f"{scores[kind]:.2f}", "%", "-0.05" * (bits == 16), ""])
                share = f"{sizes[kind] / sizes['npz']:.2f} of npz, in {seconds:.1f} s"
                rows.append([f"{kind}: size", f"{sizes[kind] / 1e6:.2f}", "MB", "0.3" * (bits == 16), share])
            many = (texts * (1 + limit // len(texts)))[:limit]
            for method in ["classify"] if model.kind == "text" else ["tag", "entities"]:
                alone, imported, first, speed = fresh(Path(folder) / "npz.npz", method, many)
                rows.append([f"{method}: import, besides NumPy's {alone:.2f}", f"{imported:.3f}", "s", "0.15", ""])
                rows.append([f"{method}: load and first answer", f"{first:.3f}", "s", "0.3", ""])
                rows.append([f"{method}: texts a second", f"{speed:,.0f}", "", "1,500", ""])
        show(one, ["", "measured", "", "must", ""], rows)


if __name__ == "__main__":
    typer.run(main)
