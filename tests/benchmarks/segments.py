"""The semi-Markov chain against the linear chain with the same token templates: ``python -m tests.benchmarks.segments``.

Two tables. *Segments*: both components with their defaults, on resamples of the training data. *Dictionaries* (the lesson of
Sarawagi & Cohen 2004): half of the training data gives a dictionary of its entities, the other half trains; the chain learns
whether a token is inside an entry, the segment model how alike a whole candidate is to the entries. Expect half an hour.
"""

import json
import random
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import spacy
import typer
from spacy.tokens import Doc
from spacy.util import registry

from .data import Sentence, iob2_tags, make_doc, make_examples, make_gold_doc, read_sentences
from .measure import entity_f1, show

SETS = ("cora_refs", "usaddress", "mit_restaurant", "wnut17", "conll2000")
DICTIONARY_SETS = ("cora_refs", "usaddress")
SETTINGS = {"l1": 0.05, "l2": 0.05, "max_iterations": 100}
SHARE = 0.9  # of the training data in a resample
LEAST_GAIN, LARGEST_DEFICIT = 0.3, 0.5  # of F1


def main(
    sets: str = typer.Option(",".join(SETS), help=f"Comma-separated, of: {', '.join(SETS)}."),
    resamples: int = typer.Option(3, help="How many resamples of the training data to train on."),
    dictionaries: bool = typer.Option(True, help="Whether to do the second table too."),
) -> None:
    """F1 of entities on `test`."""
    names = [name for name in sets.split(",") if name]
    unknown = [name for name in names if name not in SETS]
    if unknown:
        raise typer.BadParameter(f"There is no set {unknown[0]!r} here, only {', '.join(SETS)}.")
    note = (
        f"Mean F1 of entities over {resamples} resamples of {SHARE:.0%} of the training data. L-BFGS with {SETTINGS}."
    )
    rows = [compare(name, resamples) for name in names]
    won = sum(float(row[3]) >= LEAST_GAIN for row in rows)
    show(
        f"Segments: {won} of {len(rows)} sets gain at least {LEAST_GAIN}",
        ["set", "crf_ner", "semicrf_ner", "gain", "least gain", ""],
        rows,
        note=note,
    )
    chosen = [name for name in DICTIONARY_SETS if name in names]
    if dictionaries and chosen:
        show(
            "Dictionaries from one half of the training data",
            ["set", "crf_ner", "+ in", "gain", "semicrf_ner", "+ in, near", "gain", ""],
            [compare_dictionaries(name, resamples) for name in chosen],
            note="Mean F1, trained on the other half. The segment model has to gain more.",
        )


def compare(name: str, resamples: int) -> list[object]:
    """Cells of one row of the first table."""
    train, test = read_sentences(name, "train"), read_sentences(name, "test")
    pairs = []
    for seed in range(resamples):
        sample = random.Random(seed).sample(train, round(SHARE * len(train)))
        pairs.append((f1("crf_ner", {}, sample, test), f1("semicrf_ner", {}, sample, test)))
    gains = [segments - chain for chain, segments in pairs]
    chain, segments = (statistics.mean(column) for column in zip(*pairs))
    gain = segments - chain
    met = "met" if gain >= LEAST_GAIN else "level" if gain >= -LARGEST_DEFICIT else "MISSED"
    return [name, chain, segments, f"{gain:+.2f}", f"{min(gains):+.2f}", met]


def compare_dictionaries(name: str, resamples: int) -> list[object]:
    """Cells of one row of the second table."""
    train, test = read_sentences(name, "train"), read_sentences(name, "test")
    scores = []
    for seed in range(resamples):
        shuffled = random.Random(seed).sample(train, len(train))
        half = len(train) // 2
        entries, sample = dictionary(shuffled[:half]), shuffled[half:]
        scores.append(
            (
                f1("crf_ner", {}, sample, test),
                f1("crf_ner", chain_extra(["in:entries[-1..1]"]), sample, test, entries),
                f1("semicrf_ner", {}, sample, test),
                f1("semicrf_ner", segments_extra(["seg.in:entries", "seg.near:entries"]), sample, test, entries),
            )
        )
    chain, chain_with, segments, segments_with = (statistics.mean(column) for column in zip(*scores))
    gains = (chain_with - chain, segments_with - segments)
    met = "met" if gains[1] > gains[0] else "MISSED"
    return [name, chain, chain_with, f"{gains[0]:+.2f}", segments, segments_with, f"{gains[1]:+.2f}", met]


def chain_extra(templates: list[str]) -> dict[str, Any]:
    return {"model": {"emissions": {"features": {"@misc": "spacy_crf.ner_features.v1", "extra": templates}}}}


def segments_extra(templates: list[str]) -> dict[str, Any]:
    return {"model": {"segments": {"features": {"@misc": "spacy_crf.segment_features.v1", "extra": templates}}}}


def dictionary(sentences: Sequence[Sentence]) -> list[dict[str, str]]:
    """The entities of some sentences, as lines of a gazetteer with labels."""
    docs = [make_gold_doc(spacy.blank("en").vocab, sentence) for sentence in sentences]
    found = {(" ".join(token.text for token in ent), ent.label_) for doc in docs for ent in doc.ents}
    return [{"pattern": text, "label": label} for text, label in sorted(found)]


def f1(
    factory: str,
    config: dict[str, Any],
    train: Sequence[Sentence],
    test: Sequence[Sentence],
    entries: Optional[list[dict[str, str]]] = None,
) -> float:
    """Train on some sentences and score on others, in percent."""
    nlp = spacy.blank("en")
    nlp.tokenizer = lambda text: Doc(nlp.vocab, words=text.split())  # the data is cut into words already
    nlp.add_pipe(factory, config=config)
    examples = make_examples(nlp.vocab, train)
    optimizer = registry.get("optimizers", "spacy_crf.LBFGS.v1")(iterations_per_step=1_000_000, **SETTINGS)
    with tempfile.TemporaryDirectory() as folder:
        if entries is not None:
            path = Path(folder) / "entries.jsonl"
            path.write_text("\n".join(map(json.dumps, entries)), encoding="utf8")
            nlp.config["initialize"]["components"][factory] = {"gazetteers": {"entries": str(path)}}
        nlp.initialize(lambda: examples, sgd=optimizer)
    nlp.update(examples, sgd=optimizer)
    found = [iob2_tags(doc) for doc in nlp.pipe([make_doc(nlp.vocab, sentence) for sentence in test])]
    return entity_f1([sentence.tags for sentence in test], found)


if __name__ == "__main__":
    typer.run(main)
