"""This package's side: its pipelines, and trainings with L-BFGS counted the way CRFsuite's log counts them."""

import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Optional

import spacy
from spacy.language import Language
from spacy.training import Example

from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.pipeline.thresholds import best, measure

from .data import SETS, iob2_tags, make_doc, make_examples, read_sentences
from .measure import Result, Training, entity_f1, in_own_process, size_mb, token_accuracy
from .rivals import EXAMPLE_TAGS, EXAMPLE_WORDS

# The features of CRFsuite's chunking example; `first` and `last` weights stand for its __BOS__ and __EOS__.
EXAMPLE_TEMPLATES = ["|".join(f"orth[{offset}]" for offset in offsets) for offsets in EXAMPLE_WORDS]
EXAMPLE_TEMPLATES += ["|".join(f"tag[{offset}]" for offset in offsets) for offsets in EXAMPLE_TAGS]
# The features of rivals.strong_features; `first` and `last` weights stand for its BOS and EOS.
STRONG_FEATURES = {
    "@misc": "spacy_crf.features.v1",
    "templates": [
        *("bias", "lower[-2..2]", "shape[-2..2]", "orth[0]"),
        *(f"{side}{n}[0]" for side in ("prefix", "suffix") for n in range(1, 5)),
        *("lower[-1]|lower[0]", "lower[0]|lower[1]", "shape[-1]|shape[0]|shape[1]"),
        *(f"is_title[{n}]|is_upper[{n}]|is_digit[{n}]|has_hyphen[{n}]" for n in range(-2, 3)),
    ],
    "padding": False,
}
# Of the presets, what they have beside the pairs of a word with the ones before and behind it
WORDS_IN_A_ROW = ["lower[-2]|lower[-1]", "lower[1]|lower[2]", "lower[-1]|lower[0]|lower[1]"]
WORDS_IN_A_ROW_OF_ENTITIES = [*WORDS_IN_A_ROW, "lower[-2]|lower[-1]|lower[0]", "lower[0]|lower[1]|lower[2]"]
EXAMPLE_MODEL = {
    "possible_transitions": False,
    "emissions": {
        "features": {"@misc": "spacy_crf.features.v1", "templates": EXAMPLE_TEMPLATES, "padding": False},
    },
}


def make_pipeline(factory: str, config: Optional[dict[str, Any]] = None) -> Language:
    """A blank English pipeline with one component."""
    nlp = spacy.blank("en")
    nlp.add_pipe(factory, config=config or {})
    return nlp


def train(nlp: Language, examples: Sequence[Example], **settings: Any) -> Training:
    """Train the pipeline's only component from zero, in one step that goes on until L-BFGS stops.

    settings: Of `LBFGS`, above all l1, l2 and max_iterations.
    """
    optimizer = RecordingLBFGS(iterations_per_step=1_000_000, **settings)
    nlp.initialize(lambda: examples, sgd=optimizer)
    nlp.update(examples, sgd=optimizer)
    return optimizer.training(n_weights(nlp))


class RecordingLBFGS(LBFGS):
    """L-BFGS that remembers when each pass began and what it found."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.starts: list[float] = []
        self.values: list[float] = []  # the first is the objective at zero weights
        self.iterations: list[Any] = []
        self.on_iteration = self.iterations.append

    def evaluate(self, objective, weights):
        self.starts.append(time.perf_counter())
        position = super().evaluate(objective, weights)
        self.values.append(position.value)
        self.end = time.perf_counter()
        return position

    def training(self, features: int) -> Training:
        times = [*self.starts, self.end]
        return Training(
            features=features,
            iterations=len(self.iterations),
            objective=self.iterations[-1].objective,
            seconds=self.end - self.starts[0],
            seconds_per_pass=statistics.median(after - before for before, after in pairwise(times)),
            passes=len(self.starts),
            objective_at_zero=self.values[0],
        )


def n_weights(nlp: Language) -> int:
    """Weights as CRFsuite counts features: pairs of feature and tag, pairs of tags, first and last tags."""
    [(_, component)] = nlp.pipeline
    chain = component.model
    features = chain.get_ref("emissions").attrs["features"]
    return features.states.n_weights + features.transitions.n_weights + int(chain.attrs["observed"].sum())


class SpansF1(NamedTuple):
    """F1 where entities are decoded by their probabilities, with the least probability that was chosen so."""

    held_out: float  # by F1 on dev, or on a fifth of the training data of a pipeline that is trained on the rest
    min_prob: float
    expected: float  # by the F1 that the model itself expects on these texts
    expected_min_prob: float


def spans_f1(name: str, nlp: Language, config: Optional[dict[str, Any]], **settings: Any) -> SpansF1:
    """F1 of a trained pipeline that decodes by spans.

    config (Optional[dict]), settings: As those of `crf_result`.
    """
    pipe, [(factory, _)] = nlp.pipeline[0][1], nlp.pipeline
    held_out, judge = read_sentences(name, "dev"), nlp
    if not held_out:
        known = read_sentences(name, "train")
        random.Random(1).shuffle(known)
        fifth = len(known) // 5
        held_out, judge = known[:fifth], make_pipeline(factory, config)
        train(judge, make_examples(judge.vocab, known[fifth:]), **settings)
    points = measure(judge.get_pipe(factory), make_examples(judge.vocab, held_out))
    test, found = read_sentences(name, "test"), []
    for chosen in (best(points), best(points, expected=True)):
        pipe.cfg.update(decode="spans", min_prob=chosen.min_prob)
        docs = nlp.pipe([make_doc(nlp.vocab, sentence) for sentence in test])
        found += [entity_f1([s.tags for s in test], [iob2_tags(doc) for doc in docs]), chosen.min_prob]
    return SpansF1(*found)


def crf_result(
    name: str,
    factory: str,
    config: Optional[dict[str, Any]] = None,
    *,
    threads: Optional[int] = None,
    by_spans: bool = False,
    **settings: Any,
) -> Result:
    """Train and test a component on one data set, in a process of its own.

    name (str): A key of data.SETS.
    factory (str): "crf_ner", or "crf_tagger" to take the tags of the file as they are.
    config (Optional[dict]): Settings of the component, on top of its defaults.
    threads (Optional[int]): Cores to use, all of them by default.
    by_spans (bool): Whether entities are decoded by their probabilities too.
    settings: Of L-BFGS.
    """
    result, _, peak_mb = in_own_process(_crf_result, name, factory, config, threads, by_spans, settings)
    return result._replace(peak_mb=peak_mb)


def _crf_result(
    name: str,
    factory: str,
    config: Optional[dict[str, Any]],
    threads: Optional[int],
    by_spans: bool,
    settings: dict[str, Any],
) -> Result:
    if threads is not None:
        os.environ["SPACY_CRF_THREADS"] = str(threads)
    entities = factory == "crf_ner"
    nlp = make_pipeline(factory, config)
    examples = make_examples(nlp.vocab, read_sentences(name, "train"), entities=entities)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        training = train(nlp, examples, **settings)
        nlp.to_disk(folder)
        train_seconds = time.perf_counter() - start
        model_mb = size_mb(Path(folder) / factory)
    test = read_sentences(name, "test")
    docs = [make_doc(nlp.vocab, sentence) for sentence in test]
    nlp(docs[0].copy())  # so that no kernel is compiled while the clock runs
    start = time.perf_counter()
    tagged = list(nlp.pipe(docs))
    tokens_per_second = sum(map(len, docs)) / (time.perf_counter() - start)
    gold = [sentence.tags for sentence in test]
    predicted = [iob2_tags(doc) if entities else [token.tag_ for token in doc] for doc in tagged]
    return Result(
        f1=entity_f1(gold, predicted) if SETS[name].entities else None,
        accuracy=token_accuracy(gold, predicted),
        train_seconds=train_seconds,
        tokens_per_second=tokens_per_second,
        model_mb=model_mb,
        peak_mb=0.0,
        training=training,
        spans=spans_f1(name, nlp, config, **settings) if by_spans else None,
    )
