"""What rules are worth and what they cost: accuracy and speed on addresses and recipes, and how far probabilities can be
trusted."""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Optional

import typer
from spacy.language import Language
from spacy.tokens import Doc

from . import ours as crf
from .data import Sentence, iob2_tags, make_doc, make_examples, read_sentences
from .measure import entity_f1, show, side_by_side, token_accuracy


def _words(words: str) -> list[dict[str, Any]]:
    """A pattern for one of these words, whatever punctuation sticks to it."""
    return [{"LOWER": {"REGEX": rf"^({'|'.join(words.split())})[.,]*$"}}]


# The United States Postal Service's lists, shortened.
_STATES = _words(
    "al ak az ar ca co ct de fl ga hi id il ia ks ky la me md ma mi mn ms mo mt ne nv nh nj nm ny nc nd oh ok pa ri sc sd tn tx "
    "ut vt va wa wv wi wy dc"
)
_SUFFIXES = _words(
    "st street ave avenue rd road dr drive blvd boulevard ln lane ct court pl place pkwy parkway cir circle ter terrace way hwy "
    "highway trl trail sq square"
)
_UNITS = _words("apt ste suite unit rm room fl floor")

# What somebody who knows addresses would write.
ADDRESS_RULES: list[dict[str, Any]] = [
    {"rule": "only_on", "label": "ZipCode", "pattern": [{"TEXT": {"REGEX": r"\d"}}], "name": "ZIP codes have digits"},
    {"rule": "never_on", "label": "AddressNumber", "pattern": [{"IS_ALPHA": True, "LENGTH": {">": 4}}], "weight": 4.0},
    {"rule": "follows", "label": "ZipPlus4", "after": ["ZipCode"], "name": "ZIP+4 stands behind a ZIP code"},
    {"rule": "always_on", "label": "IntersectionSeparator", "pattern": _words("& and at @"), "weight": 1.0},
    {"rule": "always_on", "label": "StateName", "pattern": _STATES, "weight": 1.0},
    {"rule": "only_on", "label": "StreetNamePostType", "pattern": _SUFFIXES, "weight": 0.5},
    {"rule": "always_on", "label": "OccupancyType", "pattern": _UNITS, "weight": 1.0},
    {
        "rule": "never_on",
        "label": "Recipient",
        "pattern": [{"LOWER": {"REGEX": r"^\d+(st|nd|rd|th)$|^\d{5}$"}}],
        "weight": 3.0,
        "name": "nobody is called 3rd",
    },
    {"rule": "at_most", "label": "*", "n": 1, "name": "each part once"},
    {"rule": "order", "labels": ["PlaceName", "StateName", "ZipCode"], "weight": 2.0, "name": "city, state, ZIP"},
    {
        "rule": "order",
        "labels": ["AddressNumber", "StreetNamePreDirectional", "StreetName", "StreetNamePostType", "PlaceName"],
        "weight": 1.0,
        "name": "number, street, city",
    },
    {"rule": "requires", "if": "USPSBoxID", "then": "USPSBoxType", "weight": 1.0},
]
# And somebody who cooks.
RECIPE_RULES: list[dict[str, Any]] = [
    {"rule": "only_on", "label": "QTY", "pattern": [{"TEXT": {"REGEX": r"[\d½¼¾⅓⅔⅛]"}}], "weight": 1.0},
    {"rule": "always_on", "label": "QTY", "pattern": [{"IS_DIGIT": True}], "weight": 0.5},
    {"rule": "follows", "label": "UNIT", "after": ["QTY", "UNIT", "SIZE", "COMMENT", "NAME", "O", "START"]},
]
MASKS = [rule for rule in ADDRESS_RULES if rule["rule"] in ("only_on", "never_on", "follows")]
# One automaton of 40 states or so, which every address needs that does not keep it.
AUTOMATA = [
    {
        "rule": "order",
        "labels": ["Recipient", "AddressNumber", "StreetName", "StreetNamePostType", "PlaceName", "StateName"],
    },
    {"rule": "at_most", "label": ["StreetName", "OccupancyIdentifier", "PlaceName"], "n": 1},
]
# Most of which a text of many addresses without sentences breaks again and again.
SEVEN = [
    {"rule": "at_most", "label": "ZipCode", "n": 3},
    {"rule": "at_most", "label": "StateName", "n": 5},
    {"rule": "order", "labels": ["PlaceName", "StateName", "ZipCode"], "weight": 2.0},
    {"rule": "requires", "if": "USPSBoxID", "then": "USPSBoxType"},
    {"rule": "same_text_same_label"},
    {"rule": "exactly", "label": "Recipient", "n": 2},
    {"rule": "length", "label": "StreetName", "max": 2},
]
SIX = [
    {"rule": "at_most", "label": "CornerOf", "n": 1},
    {"rule": "excludes", "if": "CornerOf", "then": "USPSBoxType"},
    {"rule": "length", "label": "StreetName", "max": 3},
    {"rule": "at_most", "label": "LandmarkName", "n": 10},
    {"rule": "order", "labels": ["PlaceName", "StateName", "ZipCode"]},
    {"rule": "requires", "if": "USPSBoxID", "then": "USPSBoxType", "per": "sentence"},
]


class Outcome(NamedTuple):
    accuracy: float  # of tokens, percent
    f1: float  # of entities, percent
    repeated: int  # sentences in which a label occurs twice


def outcome(nlp: Language, sentences: Sequence[Sentence]) -> Outcome:
    found = [iob2_tags(doc) for doc in nlp.pipe([make_doc(nlp.vocab, s) for s in sentences])]
    gold = [s.tags for s in sentences]
    begun = [[tag for tag in tags if tag.startswith("B-")] for tags in found]
    repeated = sum(len(tags) > len(set(tags)) for tags in begun)
    return Outcome(token_accuracy(gold, found), entity_f1(gold, found), repeated)


def trained(
    name: str,
    *,
    limit: Optional[int] = None,
    l1: float = 0.05,
    l2: float = 0.05,
    max_iterations: Optional[int] = 100,
    **config: Any,
) -> Language:
    """A crf_ner with the default features."""
    nlp = crf.make_pipeline("crf_ner", config)
    examples = make_examples(nlp.vocab, read_sentences(name, "train", limit=limit))
    crf.train(nlp, examples, l1=l1, l2=l2, max_iterations=max_iterations)
    return nlp


def with_rules(nlp: Language, rules: Sequence[dict[str, Any]], *, time_limit: float = 1.0, **settings: Any) -> Language:
    """The same weights under rules."""
    constraints = {"@misc": "spacy_crf.constraints.v1", "rules": list(rules), "time_limit": time_limit}
    config = {"constraints": constraints, **settings}
    other = crf.make_pipeline("crf_ner", config)
    other.from_bytes(nlp.to_bytes())
    return other


def accuracy(repeats: int) -> None:
    """With and without rules, for the most probable labelling and for that with the most right tokens."""
    rows = []
    for name, rules, limit in (("usaddress", ADDRESS_RULES, None), ("ingredients_ip", RECIPE_RULES, 10_000)):
        nlp = trained(name, limit=limit, max_iterations=None)
        pipelines = {"no rules": nlp, "rules": with_rules(nlp, rules)}
        pipelines["no rules, posterior"] = with_rules(nlp, [], decode="posterior")
        pipelines["rules, posterior"] = with_rules(nlp, rules, decode="posterior")
        for part in ("dev", "test"):
            sentences = read_sentences(name, part)
            for what, pipeline in pipelines.items():
                found = outcome(pipeline, sentences)
                rows.append((f"{name} {part}, {what}", found.accuracy, found.f1, found.repeated))
    show("Rules of an expert", ("data", "token accuracy %", "F1", "sentences with a label twice"), rows)


def speed(repeats: int) -> None:
    """The component alone on Docs that are there already, and whole pipelines on texts."""
    sentences = read_sentences("usaddress", "train")
    addresses = trained("usaddress")
    ruled = {"masks": MASKS, "automata": AUTOMATA, "all rules": ADDRESS_RULES}
    pipelines = {"no rules": addresses, **{name: with_rules(addresses, rules) for name, rules in ruled.items()}}
    pipelines["confidence"] = with_rules(addresses, [], confidence=True)
    _compare("What rules cost, usaddress", pipelines, sentences, repeats)
    sentences = read_sentences("conll2000", "test")
    chunks = trained("conll2000", limit=2000)
    pipelines = {"no rules": chunks, "confidence": with_rules(chunks, [], confidence=True)}
    _compare("What confidence costs, conll2000", pipelines, sentences, repeats)
    _lattice(addresses, read_sentences("usaddress", "train"))


def _compare(title: str, pipelines: dict[str, Language], sentences: Sequence[Sentence], repeats: int) -> None:
    alone, whole = [], []
    for pipeline in pipelines.values():
        alone.append(_decoding(pipeline, [make_doc(pipeline.vocab, s) for s in sentences]))
        whole.append(partial(_processing, pipeline, [" ".join(s.words) for s in sentences]))
    seconds = side_by_side(*alone, *whole, repeats=repeats)
    of_alone, of_whole = seconds[: len(alone)], seconds[len(alone) :]
    limits = {"masks": 1.1, "automata": 10.0, "confidence": 2.0}
    rows = [
        (name, 1e6 * a / len(sentences), a / of_alone[0], 1e6 * w / len(sentences), w / of_whole[0], limits.get(name))
        for name, a, w in zip(pipelines, of_alone, of_whole)
    ]
    show(title, ("", "component, µs a document", "ratio", "pipeline, µs a document", "ratio", "must"), rows)


def _processing(nlp: Language, texts: list[str]) -> None:
    for _ in nlp.pipe(texts):
        pass


def _lattice(nlp: Language, sentences: Sequence[Sentence]) -> None:
    """Documents with two spans of one text and different labels: no automaton holds that rule."""
    ruled = with_rules(nlp, [{"rule": "same_text_same_label"}]).get_pipe("crf_ner")
    plain = nlp.get_pipe("crf_ner")
    times = []
    for sentence in sentences:
        doc = make_doc(ruled.vocab, sentence)
        start = time.perf_counter()
        found = ruled.predict([doc])
        seconds = time.perf_counter() - start
        if (found.tags != plain.predict([make_doc(nlp.vocab, sentence)]).tags).any():
            times.append(seconds)
    if times:
        header = ("documents", "ms, median", "ms, slowest", "must")
        rows = [(str(len(times)), 1e3 * statistics.median(times), 1e3 * max(times), 50.0)]
        show("Documents that need a lattice, usaddress", header, rows)


def _decoding(nlp: Language, docs: list[Doc]) -> Callable[[], None]:
    component = nlp.get_pipe("crf_ner")

    def decode() -> None:
        for begin in range(0, len(docs), 128):
            component.predict(docs[begin : begin + 128])

    return decode


def calibration(repeats: int) -> None:
    """Of the spans to which the component gives 80 %, are 80 % right?"""
    rows = []
    for name in ("conll2000", "usaddress"):
        nlp = trained(name, l1=0.0, l2=1.0, confidence=True)
        scores = nlp.evaluate(make_examples(nlp.vocab, read_sentences(name, "test")))
        error, brier = scores["ents_calibration_error"], scores["ents_brier"]
        rows.append((name, 100 * scores["ents_f"], error, brier, 0.02 if name == "conll2000" else None))
    show("Calibration of crf_prob", ("data", "F1", "calibration error", "Brier", "must"), rows)


def limits(repeats: int) -> None:
    """What rules cost a document beyond its prediction without them, in CPU seconds: on a usual machine about time_limit; and
    what large numbers cost."""
    nlp = trained("usaddress", limit=1000)
    words = [word for sentence in read_sentences("usaddress", "train") for word in sentence.words]
    words *= 1 + 100_000 // len(words)
    rows = []
    for tokens, rules, limit in (
        (436, SEVEN, 0.01),
        (436, SEVEN, 1.0),
        (5_000, SIX, 1.0),
        (5_000, SIX, 5.0),
        (5_000, ADDRESS_RULES, 1.0),
        (100_000, SIX, 1.0),
        (5_000, [], 1.0),
    ):
        ruled = with_rules(nlp, rules, time_limit=limit)
        _seconds(ruled, words[:40])  # compiles
        free = min(_seconds(nlp, words[:tokens]) for _ in range(3))
        beyond = _seconds(ruled, words[:tokens])
        must = limit + max(0.3 * limit, 0.05)
        rows.append((f"{tokens} tokens, {len(rules)} rules", limit, free, beyond - free, must))
    show("Documents under rules", ("", "time_limit, s", "without rules, s", "beyond, s", "must"), rows)
    rows = []
    for kind, n in (("exactly", 10**6), ("at_most", 1000)):
        start = time.perf_counter()
        ruled = with_rules(nlp, [{"rule": kind, "label": "ZipCode", "n": n}])
        ruled.get_pipe("crf_ner").rules()
        rows.append((f"{kind}, n = {n}", time.perf_counter() - start, _seconds(ruled, words[:200]), 0.5))
    show("Large numbers", ("", "pipeline with rules, s", "document of 200 tokens, s", "must"), rows)


def _seconds(nlp: Language, words: list[str]) -> float:
    """Of all threads, whatever else the machine does."""
    doc = Doc(nlp.vocab, words=words)
    start = time.process_time()
    nlp.get_pipe("crf_ner").predict([doc])
    return time.process_time() - start


BENCHMARKS: dict[str, Callable[[int], None]] = {
    "accuracy": accuracy,
    "speed": speed,
    "calibration": calibration,
    "limits": limits,
}


def main(
    only: str = typer.Option("", help=f"Comma-separated, of: {', '.join(BENCHMARKS)}. All by default."),
    repeats: int = typer.Option(5, help="Turns that each task takes; medians are compared."),
) -> None:
    """Rules and probabilities: what they are worth, and what they cost."""
    names = [name for name in only.split(",") if name] or list(BENCHMARKS)
    for name in names:
        if name not in BENCHMARKS:
            raise typer.BadParameter(f"There is no benchmark {name!r}, only {', '.join(BENCHMARKS)}.")
    print(f"{os.cpu_count()} cores")
    for name in names:
        BENCHMARKS[name](repeats)


if __name__ == "__main__":
    typer.run(main)
