"""What changes of a preset gain where no test has been: ``python -m tests.benchmarks.feature_search --variants preset,bio``.

Small sets are cut into folds of their training data, of the others some sentences train and others (of dev, where there is one)
test. What is known from an earlier run is not measured again: delete the file that is named to begin anew.
"""

import json
import random
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import typer

from .data import SETS, Sentence, iob2_tags, make_doc, make_examples, read_sentences
from .measure import entity_f1, in_own_process, show, token_accuracy
from .ours import make_pipeline, train
from .rivals import STRONG_PARAMS, cache_folder

FOLDS = {"wnut17": 3, "cora_refs": 4, "usaddress": 4}
ENTITIES = (*FOLDS, "mit_restaurant", "conll2000", "ingredients_ip", "jnlpba", "snips_cased")
TAGS = ("ud_ewt_xpos",)


@dataclass(frozen=True)
class Variant:
    """How a pipeline differs from one with the preset."""

    features: dict[str, Any] = field(default_factory=dict)
    component: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, float] = field(default_factory=dict)


def _with(*templates: str) -> Variant:
    return Variant(features={"extra": list(templates)})


def _without(*templates: str) -> Variant:
    return Variant(features={"without": list(templates)})


_FLAGS = ["if:is_title[-2..2]", "if:is_upper[-2..2]", "if:is_digit[-2..2]", "if:has_hyphen[-2..2]"]
_TRIPLES = [f"lower[{n - 1}]|lower[{n}]|lower[{n + 1}]" for n in (-1, 0, 1)]
VARIANTS = {
    "preset": Variant(),
    "bio": Variant(component={"scheme": "BIO"}),
    "padding": Variant(features={"padding": True}),
    "window 1": Variant(features={"window": 1}),
    "window 3": Variant(features={"window": 3}),
    "no n-grams": _without("ngrams3[0]", "ngrams4[0]"),
    "no n-grams of 4": _without("ngrams4[0]"),
    "n-grams of 2": _with("ngrams2[0]"),
    "n-grams of neighbours": _with("ngrams3[-1]", "ngrams3[1]"),
    "no affixes": _without(*(f"{side}{n}[0]" for side in ("prefix", "suffix") for n in range(1, 5))),
    "affixes of 5": _with("prefix5[0]", "suffix5[0]"),
    "affixes of neighbours": _with("suffix3[-1]", "suffix3[1]"),
    "not folded": _without("folded[-1..1]"),
    "no flags": _without(*_FLAGS),
    "joined flags": Variant(
        features={
            "without": _FLAGS,
            "extra": [f"is_title[{n}]|is_upper[{n}]|is_digit[{n}]|has_hyphen[{n}]" for n in range(-2, 3)],
        }
    ),
    "short shapes": _with("short_shape[-1..1]"),
    "pair around": _with("lower[-1]|lower[1]"),
    "no outer pairs": _without("lower[-2]|lower[-1]", "lower[1]|lower[2]"),
    "no triples": _without(*_TRIPLES),
    "no outer pairs, triples": _without("lower[-2]|lower[-1]", "lower[1]|lower[2]", *_TRIPLES),
    "pairs of shapes": _with("shape[-1]|shape[0]", "shape[0]|shape[1]"),
    "transitions by word": Variant(features={"transitions": ["lower[0]"]}),
    "transitions by shape": Variant(features={"transitions": ["short_shape[0]"]}),
    "min_count 2": Variant(component={"model": {"emissions": {"min_count": 2}}}),
    "l2 0.2": Variant(optimizer={"l2": 0.2}),
    "l1 0.1": Variant(optimizer={"l1": 0.1}),
    "l1 0, l2 0.2": Variant(optimizer={"l1": 0.0, "l2": 0.2}),
}


def main(
    variants: str = typer.Option(",".join(VARIANTS), help="Comma-separated."),
    sets: str = typer.Option(",".join(ENTITIES), help=f"Comma-separated, of: {', '.join([*ENTITIES, *TAGS])}."),
    sentences: int = typer.Option(3000, help="Of the sets that are not cut into folds, so many sentences train."),
    iterations: int = typer.Option(80, help="Of L-BFGS."),
) -> None:
    """F1 of entities, or accuracy of tags, as differences to the first variant."""
    path = cache_folder() / f"feature_search-{sentences}-{iterations}.jsonl"
    known = {}
    if path.is_file():
        known = {(row["set"], row["variant"]): row["scores"] for row in map(json.loads, path.open(encoding="utf8"))}
    names, asked = sets.split(","), variants.split(",")
    for variant in asked:
        for name in names:
            if (name, variant) not in known:
                scores = in_own_process(_scores, name, VARIANTS[variant], sentences, iterations).result
                known[name, variant] = scores
                with path.open("a", encoding="utf8") as results:
                    results.write(json.dumps({"set": name, "variant": variant, "scores": scores}) + "\n")
    means = {key: statistics.mean(scores) for key, scores in known.items()}
    rows = []
    for variant in asked:
        gains = [means[name, variant] - means[name, asked[0]] for name in names]
        cells = [means[name, variant] for name in names] if variant == asked[0] else [f"{gain:+.2f}" for gain in gains]
        rows.append([variant, *cells, f"{statistics.mean(gains):+.2f}"])
    note = f"Kept in {path}. {sentences} sentences, {iterations} iterations, l1 = l2 = {STRONG_PARAMS['c1']}."
    show(f"Differences to {asked[0]}", ["variant", *names, "mean"], rows, note=note)


def _scores(name: str, variant: Variant, n_sentences: int, iterations: int) -> list[float]:
    return [_score(name, variant, *split, iterations) for split in _splits(name, n_sentences)]


def _splits(name: str, n_sentences: int) -> Iterator[tuple[list[Sentence], list[Sentence]]]:
    """Sentences to train on, and to test on."""
    known = read_sentences(name, "train")
    random.Random(1).shuffle(known)
    if name in FOLDS:
        for fold in range(FOLDS[name]):
            held_out = known[fold :: FOLDS[name]]
            yield [sentence for n, sentence in enumerate(known) if n % FOLDS[name] != fold], held_out
    else:
        dev = read_sentences(name, "dev") or known[n_sentences:]
        yield known[:n_sentences], dev[:2000]


def _score(name: str, variant: Variant, known: list[Sentence], held_out: Iterable[Sentence], iterations: int) -> float:
    entities = SETS[name].entities
    features = {"@misc": f"spacy_crf.{'ner' if entities else 'tagger'}_features.v1", **variant.features}
    if name == "conll2000":
        features = {**features, "extra": [*features.get("extra", []), "tag[-2..2]"]}
    model = variant.component.get("model", {})
    emissions = {**model.get("emissions", {}), "features": features}
    config = {**variant.component, "model": {**model, "emissions": emissions}}
    nlp = make_pipeline("crf_ner" if entities else "crf_tagger", config)
    settings = {"l1": STRONG_PARAMS["c1"], "l2": STRONG_PARAMS["c2"], "max_iterations": iterations, **variant.optimizer}
    train(nlp, make_examples(nlp.vocab, known, entities=entities), **settings)
    gold = [sentence.tags for sentence in held_out]
    docs = nlp.pipe([make_doc(nlp.vocab, sentence) for sentence in held_out])
    if entities:
        return entity_f1(gold, [iob2_tags(doc) for doc in docs])
    return token_accuracy(gold, [[token.tag_ for token in doc] for doc in docs])


if __name__ == "__main__":
    typer.run(main)
