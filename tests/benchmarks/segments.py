"""The semi-Markov chain against the linear chain with the same token templates: ``python -m tests.benchmarks.segments``.

*Accuracy*: both components with their defaults, on resamples of the training data. *Dictionaries* (the lesson of Sarawagi &
Cohen 2004): three quarters of the training data give a dictionary of their entities, the others train; the chain learns
whether a token is inside an entry, the segment model whether a whole candidate is one, and how alike to one. *Speed*: passes,
prediction, and the memory of long Docs and long lists. Expect more than an hour, most of it for conll2000.
"""

import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Optional

import spacy
import typer
from spacy.language import Language
from spacy.tokens import Doc
from spacy.util import registry
from spacy.vocab import Vocab

from . import ours
from .data import Sentence, iob2_tags, make_doc, make_examples, make_gold_doc, read_sentences, read_texts
from .measure import entity_f1, in_own_process, show, side_by_side

SETS = ("cora_refs", "usaddress", "mit_restaurant", "wnut17", "conll2000")
DICTIONARY_SETS = ("cora_refs", "usaddress")
# cora_refs and usaddress converge, the others are stopped
SETTINGS = {"l1": 0.05, "l2": 0.05, "max_iterations": 300}
SHARE = 0.9  # of the training data in a resample
# Half of the training data was tried first: on cora_refs, the difference of the two gains was within chance (seven resamples).
DICTIONARY_SHARE = 0.75
DICTIONARY_RESAMPLES = 33  # with nine, the difference is one standard error
LEAST_GAIN, LARGEST_DEFICIT = 0.3, 0.5  # of F1
TABLES = ("accuracy", "dictionaries", "speed")


def main(
    only: str = typer.Option(",".join(TABLES), help=f"Comma-separated, of: {', '.join(TABLES)}."),
    sets: str = typer.Option(",".join(SETS), help=f"Comma-separated, of: {', '.join(SETS)}."),
    resamples: int = typer.Option(3, help="How many resamples of the training data to train on."),
) -> None:
    """F1 of entities on `test`, speed and memory."""
    tables = [name for name in only.split(",") if name]
    names = [name for name in sets.split(",") if name]
    for given, known in ((tables, TABLES), (names, SETS)):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise typer.BadParameter(f"There is no {unknown[0]!r} here, only {', '.join(known)}.")
    if "accuracy" in tables:
        rows = [compare(name, resamples) for name in names]
        won = sum(float(row[3]) >= LEAST_GAIN for row in rows)
        show(
            f"Segments: {won} of {len(rows)} sets gain at least {LEAST_GAIN}",
            ["set", "crf_ner", "semicrf_ner", "gain", "least gain", ""],
            rows,
            note=f"Mean F1 of entities over {resamples} resamples of {SHARE:.0%} of the training data. L-BFGS with {SETTINGS}.",
        )
    chosen = [name for name in DICTIONARY_SETS if name in names]
    if "dictionaries" in tables and chosen:
        show(
            f"Dictionaries from {DICTIONARY_SHARE:.0%} of the training data",
            ["set", "crf_ner", "+ in", "gain", "semicrf_ner", "+ in, near", "gain", ""],
            [compare_dictionaries(name, DICTIONARY_RESAMPLES) for name in chosen],
            note=f"Mean F1 over {DICTIONARY_RESAMPLES} resamples, trained on the rest. The segment model has to gain more.",
        )
    if "speed" in tables:
        rows = [*pass_rows(), *pipe_rows(), *memory_rows()]
        show("Speed and memory", ["", "measured", "", "limit", ""], rows)


# ------------------------------------------------------------------------------------------------------------- accuracy


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
        cut = round(DICTIONARY_SHARE * len(train))
        entries, sample = dictionary(shuffled[:cut]), shuffled[cut:]
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
    vocab = Vocab()
    docs = [make_gold_doc(vocab, sentence) for sentence in sentences]
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


# ---------------------------------------------------------------------------------------------------- speed and memory


def pass_rows(repeats: int = 3) -> list[list[object]]:
    """One evaluation of objective and gradient on conll2000, with segments of at most eight tokens."""
    sentences = read_sentences("conll2000", "train")
    tasks = [_ready_to_train("crf_ner", {}, sentences)]
    tasks.append(_ready_to_train("semicrf_ner", {"model": {"longest_segment": 8}}, sentences))
    seconds = [[task() for task in tasks] for _ in range(repeats)]
    chain, segments = (statistics.median(column) for column in zip(*seconds))
    met = "met" if segments <= 3 * chain else "MISSED"
    return [
        ["a pass over conll2000: crf_ner", chain, "s", "", ""],
        ["a pass over conll2000: semicrf_ner", segments, "s", "", ""],
        ["", segments / chain, "times", "3", met],
    ]


def _ready_to_train(factory: str, config: dict[str, Any], sentences: Sequence[Sentence]) -> Callable[[], float]:
    """RETURNS (Callable): Six iterations more, from where the last ones stopped; gives the seconds of a pass."""
    nlp = ours.make_pipeline(factory, config)
    examples = make_examples(nlp.vocab, sentences)
    ours.train(nlp, examples, l2=0.05, max_iterations=1)

    def train() -> float:
        optimizer = ours.RecordingLBFGS(l2=0.05, iterations_per_step=6)
        nlp.update(examples, sgd=optimizer)
        return optimizer.training(ours.n_weights(nlp)).seconds_per_pass

    return train


def pipe_rows(repeats: int = 3) -> list[list[object]]:
    """From texts that nobody has seen before to entities, tokenizer included."""
    rows: list[list[object]] = []
    for file, corpus, n_texts in (("novels.txt", "wnut17", 200), ("ingredients.txt", "ingredients_ip", 6000)):
        texts = read_texts(file, n_texts * (repeats + 1))
        turns = [texts[k * n_texts : (k + 1) * n_texts] for k in range(repeats + 1)]  # the first to warm up
        pipelines = [_trained(corpus, factory) for factory in ("semicrf_ner", "crf_ner")]
        seconds = side_by_side(*(partial(_read_next, nlp, iter(turns)) for nlp in pipelines), repeats=repeats)
        n_tokens = sum(map(len, spacy.blank("en").pipe(texts[n_texts:]))) / repeats
        segments, chain = (round(n_tokens / s) for s in seconds)
        met = "met" if segments >= 60_000 else "MISSED"
        rows.append([f"nlp.pipe on {file}: semicrf_ner", segments, "tokens/s", "60,000", met])
        rows.append([f"nlp.pipe on {file}: crf_ner", chain, "tokens/s", "", ""])
    return rows


def _trained(corpus: str, factory: str = "semicrf_ner", *, limit: int = 3000) -> Language:
    """Good enough for the speed: thirty iterations on some of the corpus."""
    nlp = ours.make_pipeline(factory)
    examples = make_examples(nlp.vocab, read_sentences(corpus, "train", limit=limit))
    ours.train(nlp, examples, l1=0.05, l2=0.05, max_iterations=30)
    return nlp


def _read_next(nlp: Language, turns: Any) -> None:
    for _ in nlp.pipe(next(turns)):
        pass


def memory_rows() -> list[list[object]]:
    """Peak memory of processes of their own, all imports included."""
    long_doc, gazetteer = in_own_process(_read_long_doc), in_own_process(_index_entries)
    return [
        ["a Doc of 100,000 tokens", round(long_doc.peak_mb), "MiB", "1,024", _below(long_doc.peak_mb, 1024)],
        ["", long_doc.result, "s", "", ""],
        ["a gazetteer of 1,000,000 entries", round(gazetteer.peak_mb), "MiB", "1,024", _below(gazetteer.peak_mb, 1024)],
        ["", gazetteer.result, "s", "60", _below(gazetteer.result, 60)],
    ]


def _below(measured: float, limit: float) -> str:
    return "met" if measured < limit else "MISSED"


def _read_long_doc() -> float:
    nlp = _trained("conll2000", limit=500)
    words = [word for sentence in read_sentences("conll2000", "train") for word in sentence.words]
    doc = Doc(nlp.vocab, words=words[:100_000])
    start = time.perf_counter()
    nlp(doc)
    return time.perf_counter() - start


def _index_entries() -> float:
    """A component made ready with a list of made-up names, up to its first prediction."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 10))) for _ in range(100_000)]
    nlp = ours.make_pipeline("semicrf_ner", segments_extra(["seg.in:entries", "seg.near:entries"]))
    sentence = Sentence([*words[:3], "lives"], None, ["B-X", "I-X", "I-X", "O"])
    examples = make_examples(nlp.vocab, [sentence])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "entries.txt"
        lines = (" ".join(rng.choices(words, k=rng.randint(2, 4))) + "\n" for _ in range(1_000_000))
        with path.open("w", encoding="utf8") as file:
            file.writelines(lines)
        nlp.config["initialize"]["components"]["semicrf_ner"] = {"gazetteers": {"entries": str(path)}}
        start = time.perf_counter()
        nlp.initialize(lambda: examples)
        nlp(make_doc(nlp.vocab, sentence))
    return time.perf_counter() - start


if __name__ == "__main__":
    typer.run(main)
