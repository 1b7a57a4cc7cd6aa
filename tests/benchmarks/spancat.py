"""``crf_spancat`` beside spaCy's ``spancat`` and beside ``crf_ner``: ``python -m tests.benchmarks.spancat``

Nested: GermEval 2014, whose entities have a second level inside the first. F1 counts the entities of both levels, and those of
each level alone (of what is found: entities inside no other, and the rest). spaCy's ``spancat`` has all n-grams up to 8 words as
candidates and learns for the CPU time that ours takes. Flat: groups = "auto", which finds a single chain. Cost: all labels in
chains of their own. Fit: the nested entities by `spacy_crf.cross_validation.fit` without settings. Times are seconds of CPU;
``crf_ner`` computes probabilities too where `confidence` is named.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, NamedTuple, Optional

import spacy
import typer
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.util import load_config, minibatch
from spacy.vocab import Vocab
from thinc.api import fix_random_seed

from spacy_crf.cross_validation import fit
from spacy_crf.optimizers.lbfgs import LBFGS

from .data import ROOT, Sentence, make_gold_doc, read_sentences
from .measure import show, side_by_side

KEY = "sc"
THRESHOLDS = (0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1)
PARTS = ("nested", "fit", "flat", "cost")
SPANCAT = {
    "suggester": {"@misc": "spacy.ngram_range_suggester.v1", "min_size": 1, "max_size": 8},
    "model": {
        "@architectures": "spacy.SpanCategorizer.v1",
        "scorer": {"@layers": "spacy.LinearLogistic.v1"},
        "reducer": {"@layers": "spacy.mean_max_reducer.v1", "hidden_size": 128},
        "tok2vec": {
            "@architectures": "spacy.HashEmbedCNN.v2",
            "width": 96,
            "depth": 4,
            "embed_size": 2000,
            "window_size": 1,
            "maxout_pieces": 3,
            "subword_features": True,
            "pretrained_vectors": None,
        },
    },
}

OUTER = ["outer[-1..1]", "outer[0]|lower[0]", "outer[0]|suffix3[0]"]
READS_OUTER = {
    "@architectures": "spacy_crf.LinearChain.v1",
    "emissions": {
        "@architectures": "spacy_crf.SparseEmissions.v1",
        "features": {"@misc": "spacy_crf.ner_features.v1", "extra": OUTER},
    },
}

Found = list[tuple[int, int, str]]


class Scores(NamedTuple):
    every: float  # F1 of all entities, percent
    outer: float


def main(
    only: Annotated[str, typer.Option(help=f"Some of {', '.join(PARTS)}, between commas.")] = ",".join(PARTS),
    train: Annotated[int, typer.Option(help="Sentences of GermEval to learn from.")] = 4000,
    test: Annotated[int, typer.Option(help="Sentences of GermEval to test with.")] = 2000,
    sets: Annotated[str, typer.Option(help="Flat sets, between commas.")] = "mit_restaurant,conll2000",
    iterations: Annotated[int, typer.Option(help="Of L-BFGS.")] = 60,
    repeats: Annotated[int, typer.Option(help="Turns, where speed is measured.")] = 5,
) -> None:
    """F1 of nested and of flat entities, and what chains cost."""
    if "nested" in only:
        show(
            f"GermEval 2014, {train} sentences",
            ["learner", "F1", "outer F1", "inner F1", "s"],
            nested(train, test, iterations),
        )
    if "fit" in only:
        show(f"GermEval 2014, {train} sentences", ["learner", "F1", "outer F1", "inner F1", "s"], [fitted(train, test)])
    if "flat" in only:
        rows = [row for name in sets.split(",") for row in flat(name, iterations, repeats)]
        show('Flat sets, groups = "auto"', ["set", "learner", "F1", "pass ms", "words/s"], rows)
    if "cost" in only:
        show("GermEval 2014, the 12 labels", ["learner", "chains", "pass ms", "words/s"], cost(train, repeats))


def spans_doc(vocab: Vocab, words: list[str], *levels: Optional[list[str]]) -> Doc:
    """A Doc whose entities of all levels (IOB2 tags) are in one group of spans."""
    doc = Doc(vocab, words=words)
    ents = [ent for tags in levels for ent in Doc(vocab, words=words, ents=tags).ents]
    places = sorted({(ent.start, ent.end, ent.label_) for ent in ents})
    doc.spans[KEY] = [Span(doc, begin, end, label=label) for begin, end, label in places]
    return doc


def examples_of(docs: Iterable[Doc]) -> list[Example]:
    return [Example(Doc(doc.vocab, words=[token.text for token in doc]), doc) for doc in docs]


def found_in(doc: Doc) -> Found:
    spans = [*doc.spans[KEY]] if KEY in doc.spans else [*doc.ents]
    return [(span.start, span.end, span.label_) for span in spans]


def outer_of(found: Found) -> Found:
    """The spans that are inside no other."""
    return [
        one
        for one in found
        if not any(o[0] <= one[0] and one[1] <= o[1] and o[1] - o[0] > one[1] - one[0] for o in found)
    ]


def f1(gold: Sequence[Iterable], found: Sequence[Iterable]) -> float:
    right = sum(len({*g} & {*f}) for g, f in zip(gold, found))
    return 100 * 2 * right / max(1, sum(len({*g}) + len({*f}) for g, f in zip(gold, found)))


def learn(nlp: Language, examples: list[Example], iterations: int) -> float:
    """Train the only component by L-BFGS. RETURNS (float): Seconds of CPU."""
    begin = time.process_time()
    optimizer = LBFGS(l2=0.1, max_iterations=iterations, iterations_per_step=1_000_000)
    nlp.initialize(lambda: examples, sgd=optimizer)
    nlp.update(examples, sgd=optimizer)
    return time.process_time() - begin


def predicted(nlp: Language, docs: Iterable[Doc]) -> list[Found]:
    plain = (Doc(nlp.vocab, words=[token.text for token in doc]) for doc in docs)
    return [found_in(doc) for doc in nlp.pipe(plain)]


def component(factory: str, **config: Any) -> Language:
    nlp = spacy.blank("de")
    nlp.add_pipe(factory, config=config)
    return nlp


def level_scores(test: list[Sentence], found: list[Found], outer: list[Found]) -> list[float]:
    """F1 of all entities, of the outer ones and of the others, percent."""
    vocab = spacy.blank("de").vocab
    gold = [found_in(spans_doc(vocab, s.words, s.pos, s.tags)) for s in test]
    outer_gold = [found_in(spans_doc(vocab, s.words, s.tags)) for s in test]
    inner_gold = [found_in(spans_doc(vocab, s.words, s.pos)) for s in test]
    inner = [[span for span in every if span not in some] for every, some in zip(found, outer)]
    return [f1(gold, found), f1(outer_gold, outer), f1(inner_gold, inner)]


def spans_of(nlp: Language, sentences: list[Sentence]) -> list[Doc]:
    return [spans_doc(nlp.vocab, s.words, s.pos, s.tags) for s in sentences]


def fitted(n_train: int, n_test: int) -> list[object]:
    """The row of `fit` with its own choices, and of the F1 that it expects."""
    train = read_sentences("germeval14", "train", limit=n_train)
    test = read_sentences("germeval14", "test", limit=n_test)
    config = load_config(ROOT / "configs" / "crf_spancat.cfg", overrides={"nlp.lang": "de"}, interpolate=True)
    begin = time.process_time()
    nlp, [report] = fit(config, lambda nlp: examples_of(spans_of(nlp, train)))
    seconds = time.process_time() - begin
    found = predicted(nlp, spans_of(nlp, test))
    scores = level_scores(test, found, [*map(outer_of, found)])
    return [f"fit, expected {100 * report.f.value:.1f}", *scores, round(seconds)]


def nested(n_train: int, n_test: int, iterations: int) -> list[list[object]]:
    parts = {"train": n_train, "dev": 1000, "test": n_test}
    train, dev, test = (read_sentences("germeval14", part, limit=limit) for part, limit in parts.items())
    rows = []

    def rows_of(name: str, nlp: Language, seconds: float) -> None:
        """With the threshold of the default, and with the best one on dev."""
        pipe = nlp.get_pipe(nlp.pipe_names[0])
        for threshold in (0.5, best_threshold(nlp, spans_of(nlp, dev))):
            pipe.cfg["threshold"] = threshold
            found = predicted(nlp, spans_of(nlp, test))
            scores = level_scores(test, found, [*map(outer_of, found)])
            rows.append([f"{name}, {threshold}", *scores, round(seconds)])

    levels = {"nested": True, "groups": "auto"}
    ways = {"labels": {"groups": "label"}, "levels": levels, "levels, outer": {**levels, "model": READS_OUTER}}
    for name, settings in ways.items():
        nlp = component("crf_spancat", **settings)
        seconds = learn(nlp, examples_of(spans_of(nlp, train)), iterations)
        rows_of(f"crf_spancat, {name}", nlp, seconds)
        longest = max(seconds, rows[0][-1])
    of_levels, total = [], 0.0
    for level in ("tags", "pos"):
        nlp = component("crf_ner")
        own = [sentence._replace(pos=None, tags=getattr(sentence, level)) for sentence in train]
        total += learn(nlp, examples_of(make_gold_doc(nlp.vocab, sentence) for sentence in own), iterations)
        of_levels.append(predicted(nlp, spans_of(nlp, test)))
    both = [[*{*outer, *inner}] for outer, inner in zip(*of_levels)]
    rows.append(["two crf_ner", *level_scores(test, both, of_levels[0]), round(total)])
    nlp = component("spancat", **SPANCAT)
    learn_as_rival(nlp, spans_of(nlp, train), longest)
    rows_of("spaCy's spancat", nlp, longest)
    return rows


def best_threshold(nlp: Language, dev: list[Doc]) -> float:
    """The threshold with the best F1 on some texts."""
    pipe, gold, by_f1 = nlp.get_pipe(nlp.pipe_names[0]), [*map(found_in, dev)], {}
    for threshold in THRESHOLDS:
        pipe.cfg["threshold"] = threshold
        by_f1[threshold] = f1(gold, predicted(nlp, dev))
    return max(by_f1, key=by_f1.__getitem__)


def learn_as_rival(nlp: Language, train: list[Doc], seconds: float) -> None:
    """Train spaCy's spancat for some time of CPU."""
    fix_random_seed(0)
    examples = examples_of(train)
    optimizer = nlp.initialize(lambda: examples)
    begin = time.process_time()
    while True:
        for batch in minibatch(examples, 64):
            if time.process_time() - begin > seconds:
                return
            nlp.update(batch, sgd=optimizer, drop=0.1)


def timed(nlp: Language, docs: list[Doc]) -> Callable[[], Any]:
    words = [[token.text for token in doc] for doc in docs]
    return lambda: [*nlp.pipe(Doc(nlp.vocab, words=of_doc) for of_doc in words)]


def one_pass(nlp: Language, examples: list[Example]) -> Callable[[], Any]:
    """A pass over the training data."""
    pipe = nlp.get_pipe(nlp.pipe_names[0])
    objective = pipe.training.objective(LBFGS(), examples)
    weights = objective.weights()
    return lambda: objective.evaluate(weights)


def flat(name: str, iterations: int, repeats: int) -> list[list[object]]:
    train, test = read_sentences(name, "train"), read_sentences(name, "test")
    pipelines, rows = {}, []
    for learner, config in {
        "crf_ner": {},
        "confidence": {"confidence": True},
        "crf_spancat": {"groups": "auto"},
    }.items():
        nlp = component("crf_spancat" if learner == "crf_spancat" else "crf_ner", **config)
        make = spans_doc if learner == "crf_spancat" else None
        golds = [
            make(nlp.vocab, s.words, s.tags) if make else make_gold_doc(nlp.vocab, s._replace(pos=None)) for s in train
        ]
        examples = examples_of(golds)
        learn(nlp, examples, iterations)
        docs = [spans_doc(nlp.vocab, s.words, s.tags) for s in test]
        pipelines[learner] = f1([*map(found_in, docs)], predicted(nlp, docs)), one_pass(nlp, examples), timed(nlp, docs)
    passes = side_by_side(*(of_pass for _, of_pass, _ in pipelines.values()), repeats=repeats, clock=time.process_time)
    speeds = side_by_side(*(predict for *_, predict in pipelines.values()), repeats=repeats, clock=time.process_time)
    words = sum(len(sentence.words) for sentence in test)
    for (learner, (value, *_)), of_pass, speed in zip(pipelines.items(), passes, speeds):
        rows.append([name, learner, value, 1000 * of_pass, round(words / speed)])
    return rows


def cost(n_train: int, repeats: int) -> list[list[object]]:
    """A pass and prediction of the outer entities, by one chain and by a chain for each label."""
    sentences = [s._replace(pos=None) for s in read_sentences("germeval14", "train", limit=n_train)]
    found, rows = {}, []
    for learner, config in {"crf_ner": {}, "crf_spancat": {"groups": "label"}}.items():
        nlp = component(learner, **config)
        make = (lambda vocab, s: spans_doc(vocab, s.words, s.tags)) if learner == "crf_spancat" else make_gold_doc
        docs = [make(nlp.vocab, sentence) for sentence in sentences]
        learn(nlp, examples_of(docs), 20)
        found[learner] = nlp, one_pass(nlp, examples_of(docs)), timed(nlp, docs)
    passes = side_by_side(*(of_pass for _, of_pass, _ in found.values()), repeats=repeats, clock=time.process_time)
    speeds = side_by_side(*(predict for *_, predict in found.values()), repeats=repeats, clock=time.process_time)
    words = sum(len(sentence.words) for sentence in sentences)
    for (learner, (nlp, *_)), of_pass, speed in zip(found.items(), passes, speeds):
        chains = getattr(nlp.get_pipe(learner), "chains", [None])
        rows.append([learner, len(chains), 1000 * of_pass, round(words / speed)])
    return rows


if __name__ == "__main__":
    typer.run(main)
