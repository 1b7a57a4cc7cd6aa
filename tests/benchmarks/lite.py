"""Exports for `spacy_crf.lite` against the pipelines that were exported: ``python -m tests.benchmarks.lite``.

Texts in, characters out: tokens, sentences, labels and probabilities of many texts. Sizes of exports, with weights of 32 and of
16 bits; and of a fresh Python, on one thread: memory, CPU seconds to import, load and parse a first text, and texts a second.
"""

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Optional

import spacy
import srsly
import typer
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from spacy_crf import LBFGS, lite
from spacy_crf.migrate.lite import export_lite, write_lite

from . import ours, textcat, words
from .data import data_folder, make_examples, read_sentences, read_texts
from .measure import show

BITS = {"32 bits": (32, 0.0), "16 bits": (16, 0.0), "16 bits, pruned": (16, 0.01)}
_FRESH = """
import re, sys, time
start = time.process_time()
from spacy_crf import lite
parse = lite.load(sys.argv[1])
parse("2 cups flour")
first = time.process_time() - start
peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
texts = sys.stdin.read().split("\\0")
begin = time.process_time()
parse.batch(texts)
print(first, peak, len(texts) / (time.process_time() - begin))
"""


class Pipeline(NamedTuple):
    """A pipeline to export.

    train (Callable[[int], Language]): Trains it, in at most so many iterations.
    texts (Callable[[int], Sequence[str]]): So many texts, or all that there are.
    speed (float): Texts a second that its export has to reach; 0 for no bound.
    """

    train: Callable[[int], Language]
    texts: Callable[[int], Sequence[str]]
    speed: float = 0.0


def train_entities(name: str, factory: str = "crf_ner", first: Sequence[str] = ()) -> Callable[[int], Language]:
    """Train a component on a data set, and put components without weights in front of it."""

    def train(iterations: int) -> Language:
        nlp = ours.make_pipeline(factory)
        examples = make_examples(nlp.vocab, read_sentences(name, "train"))
        for example in examples:
            example.reference.spans["sc"] = example.reference.ents
        ours.train(nlp, examples, max_iterations=iterations)
        for component in first:
            nlp.add_pipe(component, before=factory)
        return nlp

    return train


def train_intents(iterations: int) -> Language:
    model = {**textcat.OURS["MaxEntText"], "emissions": textcat.EMISSIONS}
    return textcat.ours(model, textcat.read("train"), textcat.read("test"), iterations).nlp


def train_sentences(iterations: int) -> Language:
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_senter")
    texts = words.read("ewt_raw", words.SETS["ewt_raw"], "train")
    examples = [Example(nlp.make_doc(text.text), words.with_sentences(nlp, text)) for text in texts]
    optimizer = LBFGS(l2=0.1, iterations_per_step=iterations)
    nlp.initialize(lambda: examples, sgd=optimizer)
    nlp.update(examples, sgd=optimizer)
    return nlp


def train_words(iterations: int) -> Language:
    """Vietnamese words; the tokenizer learns to its optimum."""
    settings = {"@tokenizers": "spacy_crf.Tokenizer.v1"}
    nlp = spacy.blank("vi", config={"nlp": {"tokenizer": settings}})
    texts = words.read("ud_vi_vtb_words", words.SETS["ud_vi_vtb_words"], "train")
    references = [words.with_words(nlp, text) for text in texts]
    examples = [Example(doc.copy(), doc) for doc in references if len(doc)]
    nlp.initialize(lambda: examples)
    return nlp


def lines_of(file_name: str) -> Callable[[int], Sequence[str]]:
    return lambda limit: read_texts(file_name, limit)


def mixed(read: Callable[[], Sequence[str]]) -> Callable[[int], Sequence[str]]:
    """Texts, and further ones that have the first words of one and the last words of another."""

    def texts(limit: int) -> Sequence[str]:
        rng = random.Random(0)
        found = [*read()][:limit]
        n_read = len(found)
        while len(found) < limit:
            head = found[rng.randrange(n_read)].split(" ")
            tail = found[rng.randrange(n_read)].split(" ")
            found.append(" ".join(head[: len(head) // 2] + tail[len(tail) // 2 :]))
        return found

    return texts


def sentences_of(name: str) -> Sequence[str]:
    parts = [sentence for part in ("train", "test") for sentence in read_sentences(name, part)]
    return [" ".join(sentence.words) for sentence in parts]


def texts_of(name: str) -> Sequence[str]:
    return [
        item["text"] for part in ("train", "test") for item in srsly.read_jsonl(data_folder() / name / f"{part}.jsonl")
    ]


PIPELINES = {
    "news": Pipeline(
        train_entities("wikigold", first=["sentencizer"]), mixed(lambda: read_texts("news_reuters.txt", 2000))
    ),
    "addresses": Pipeline(train_entities("usaddress"), mixed(lambda: read_texts("addresses_us.txt", 20_000)), 1200.0),
    "ingredients": Pipeline(train_entities("ingredients_ip"), lines_of("ingredients.txt"), 3000.0),
    "references": Pipeline(train_entities("cora_refs", "semicrf_ner"), mixed(lambda: sentences_of("cora_refs"))),
    "intents": Pipeline(train_intents, mixed(lambda: texts_of("snips_intents"))),
    "spans": Pipeline(train_entities("mit_restaurant", "crf_spancat"), mixed(lambda: sentences_of("mit_restaurant"))),
    "Vietnamese words": Pipeline(train_words, mixed(lambda: texts_of("ud_vi_vtb_words"))),
    "sentences": Pipeline(train_sentences, lines_of("tweets.txt")),
}


def trained(name: str, folder: Optional[Path], iterations: int) -> Language:
    """A pipeline, which is kept in `folder` if that is given."""
    path = None if folder is None else folder / name
    if path is not None and path.exists():
        return spacy.load(path)
    nlp = PIPELINES[name].train(iterations)
    if path is not None:
        nlp.to_disk(path)
    return nlp


def found_by_spacy(doc: Doc) -> tuple[Any, dict[Any, float]]:
    """The tokens and sentences of a Doc; and the probabilities of its labels, by their places."""
    starts = [token.idx for token in doc if token.is_sent_start or token.i == 0]
    probabilities = {(span.start_char, span.end_char, span.label_): span._.crf_prob for span in doc.ents}
    for key, group in doc.spans.items():
        for span, probability in zip(group, group.attrs["scores"]):
            probabilities[key, span.start_char, span.end_char, span.label_] = float(probability)
    return ([token.idx for token in doc], starts), {**probabilities, **doc.cats}


def found_by_lite(parsed: lite.Parsed) -> tuple[Any, dict[Any, float]]:
    """The tokens and sentences that an export found; and the probabilities of its labels, by their places."""
    tokens = [token.start for token in parsed.tokens]
    starts = [sentence.start for sentence in parsed.sentences] or tokens[:1]
    probabilities = {(span.start, span.end, span.label): span.prob for span in parsed.entities}
    for key, spans in parsed.spans.items():
        probabilities |= {(key, span.start, span.end, span.label): span.prob for span in spans}
    return (tokens, starts), {**probabilities, **parsed.cats}


def differences(nlp: Language, parse: lite.Parser, texts: Sequence[str]) -> tuple[int, float]:
    """The number of texts with other tokens, sentences or labels, and the largest difference of probabilities in the others."""
    for _, pipe in nlp.pipeline:
        getattr(pipe, "cfg", {})["confidence"] = True
    n_different = 0
    largest = 0.0
    for begin in range(0, len(texts), 1000):
        some_texts = texts[begin : begin + 1000]
        for doc, parsed in zip(nlp.pipe(some_texts), parse.batch(some_texts)):
            places, ours_found = found_by_spacy(doc)
            other_places, theirs = found_by_lite(parsed)
            if places != other_places or ours_found.keys() != theirs.keys():
                n_different += 1
            else:
                largest = max([largest, *(abs(theirs[place] - p) for place, p in ours_found.items())])
    return n_different, largest


def fresh(path: Path, texts: Sequence[str]) -> list[float]:
    """CPU seconds to import, load and label one text; MB then; texts a second."""
    command = [sys.executable, "-c", _FRESH, str(path)]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    given = "\0".join(texts)
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=True, env=one_thread)
    return [*map(float, done.stdout.split())]


def main(
    names: Annotated[str, typer.Option(help="Names of pipelines, between commas.")] = ",".join(PIPELINES),
    keep: Annotated[Optional[Path], typer.Option(help="Folder for the trained pipelines.")] = None,
    iterations: Annotated[int, typer.Option(help="Of training, at most.")] = 100,
    limit: Annotated[int, typer.Option(help="Texts of each pipeline.")] = 20_000,
) -> None:
    """Equal answers, sizes, memory and speed."""
    for name in names.split(","):
        nlp = trained(name, keep, iterations)
        pipeline = PIPELINES[name]
        texts = pipeline.texts(limit)
        rows: list[list[Any]] = []
        with tempfile.TemporaryDirectory() as folder:
            for kind, (bits, prune) in BITS.items():
                path = Path(folder) / f"{bits}{prune}.npz"
                write_lite(export_lite(nlp, bits=bits, prune=prune), path, "npz")
                rows.append([f"size with {kind}, MB", f"{path.stat().st_size / 1e6:.2f}", ""])
            path = Path(folder) / "320.0.npz"
            n_different, largest = differences(nlp, lite.load(path), texts)
            rows.append([f"texts with other labels, of {len(texts):,}", f"{n_different:,}", "0"])
            rows.append(["largest difference of probabilities", f"{largest:.1e}", "1e-6"])
            seconds, peak, speed = fresh(path, texts[:5000])
            rows.append(["CPU seconds to import, load and parse a text", f"{seconds:.2f}", "0.25"])
            rows.append(["memory then, MB", f"{peak:.0f}", "60" if name == "addresses" else ""])
            rows.append(["texts a second", f"{speed:,.0f}", f"{pipeline.speed:,.0f}" if pipeline.speed else ""])
        show(name, ["", "measured", "must"], rows)


if __name__ == "__main__":
    typer.run(main)
