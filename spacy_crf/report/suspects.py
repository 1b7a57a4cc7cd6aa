"""Finds annotation that looks wrong: texts in which the model finds another labelling much more probable than the annotation.

A model reproduces the annotation that it has learned, so each text is judged by a model that was trained without it.
"""

import copy
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from spacy.language import Language
from spacy.training import Example

from ..errors import Errors
from ..features.doc_batch import DocBatch
from ..optimizers.lbfgs import LBFGS
from ..pipeline.annotation.entities import GoldReport
from ..pipeline.annotation.trimming import Mention
from ..pipeline.corpora import origin_of
from ..pipeline.crf_textcat import CRFTextClassifier
from ..pipeline.initialization import earlier_annotation
from ..pipeline.prediction import CRFPipe
from ..types import Bools

ITERATIONS = 100


class Suspect(NamedTuple):
    """A text with its annotation and a more probable labelling."""

    text: str
    log_ratio: float  # log p(best) - log p(annotated); infinite if the annotation is impossible for the model
    gold: list[Mention]
    best: list[Mention]
    origin: dict[str, object]  # "place" and "id" of the text, where they are known


def judged_by(pipe: CRFPipe, examples: Iterable[Example]) -> Iterator[Suspect]:
    """Find suspects among texts that the model has not learned from. Skips texts with unannotated tokens, texts with another
    tokenization than the annotation, and texts for which the model predicts the annotation.
    """
    if labels_texts(pipe):
        for example, log_ratio, gold, best in less_probable(pipe, examples):
            yield Suspect(example.reference.text, log_ratio, gold, best, origin_of(example.reference))
        return
    for example in examples:
        gold = pipe.annotation.mentions_in(example.reference)
        doc = example.predicted
        spans = []
        for mention in gold:
            span = doc.char_span(mention.start, mention.end, label=mention.label)
            if span is not None:
                spans.append(span)
        if not len(doc) or len(spans) < len(gold):
            continue
        supervision = pipe.annotation.gold([example], pipe.decoding.starts([doc]), GoldReport())
        if supervision.unset.any():
            continue
        # One labelling at most, none if the rules or the preset annotation forbid all
        for _, best in pipe.n_best(doc, 1):
            found = [Mention(span.start_char, span.end_char, span.label_) for span in best]
            if {mention.place for mention in found} != {mention.place for mention in gold}:
                log_ratio = pipe.log_probability(doc, best) - pipe.log_probability(doc, spans)
                # `log_probability` puts nested spans on the levels where training has them. If `n_best` found them on others,
                # its labelling may be less probable than the annotation
                if log_ratio > 0.0:
                    yield Suspect(doc.text, log_ratio, gold, found, origin_of(example.reference))


def cross_validated(
    nlp: Language,
    pipe: CRFPipe,
    examples: Sequence[Example],
    folds: int,
    *,
    on_fold: Callable[[], None] = lambda: None,
) -> list[Suspect]:
    """Find suspects among training texts: for each fold, train a copy of the component without it, and judge the fold by it.

    pipe (CRFPipe): The component, which stays unchanged. The copies keep its gazetteers and clusters.
    on_fold (Callable[[], None]): Called after each fold, to show the progress.
    RETURNS (list[Suspect]): The least probable annotation first.
    RAISES (ValueError): CRF890 if there are fewer texts than folds, or the component can't be trained by L-BFGS.
    """
    if not 2 <= folds <= len(examples) or not pipe.is_linear:
        raise ValueError(Errors.CRF890.format(name=pipe.name, folds=folds, texts=len(examples)))
    # The features read what the components before this one predict
    annotate = earlier_annotation(pipe, nlp)
    examples = [Example(annotate(example), example.reference) for example in examples]
    suspects = []
    for fold in range(folds):
        training = [example for n, example in enumerate(examples) if n % folds != fold]
        trained = copy.deepcopy(pipe)
        trained.initialize(lambda training=training: training, nlp=nlp)
        # The weights of models that count are known when they are initialized; others are trained
        if pipe.model.attrs["node"].traits.counts is None:
            objective = trained.training.objective(LBFGS(), training)
            optimizer = LBFGS(l1=0.05, l2=0.05, iterations_per_step=ITERATIONS, max_iterations=ITERATIONS)
            optimizer.step(objective, key=pipe.name)
        suspects.extend(judged_by(trained, examples[fold::folds]))
        on_fold()
    return ranked(suspects)


def ranked(suspects: Iterable[Suspect]) -> list[Suspect]:
    """Sort suspects, those with the least probable annotation first."""
    return sorted(suspects, key=lambda suspect: -suspect.log_ratio)


def labels_texts(pipe: object) -> bool:
    """Whether a component labels texts."""
    return isinstance(pipe, CRFTextClassifier)


def less_probable(
    pipe: CRFTextClassifier, examples: Iterable[Example]
) -> Iterator[tuple[Example, float, list[Mention], list[Mention]]]:
    """Find texts whose labels are less probable than the best labels. Skips texts whose annotation leaves labels open.

    RETURNS (Iterator): Each text, log p(best) - log p(annotated), its annotated labels and its best labels.
    """
    structure = pipe.decoding.structure
    # With several labels, each of them is either present or absent
    n_decisions = len(pipe.labels) if pipe.cfg["multilabel"] else 1
    for example in examples:
        doc = example.predicted
        [annotated] = pipe.annotation.gold([example], np.zeros(0, np.int64), GoldReport()).clamp
        if not len(doc) or annotated.sum() != n_decisions:
            continue
        best = pipe.best_labels(doc)
        clamp = _clamp(pipe, best)
        if (clamp == annotated).all():
            continue
        scores = pipe.model.predict(DocBatch([doc]))
        # The partition functions cancel out
        log_p_best = structure.log_partition(scores, clamp=clamp[np.newaxis]).sum()
        log_p_annotated = structure.log_partition(scores, clamp=annotated[np.newaxis]).sum()
        size = len(example.reference.text)
        gold = [Mention(0, size, label) for label, is_gold in zip(pipe.labels, annotated.tolist()) if is_gold]
        yield example, float(log_p_best - log_p_annotated), gold, [Mention(0, size, label) for label in best]


def _clamp(pipe: CRFTextClassifier, labels: list[str]) -> Bools:
    """The states of a text that has exactly these labels: bool[Y], a state for each label; with `multilabel` bool[2 Y], first a
    state for the presence of each label, then one for its absence."""
    has = np.array([label in labels for label in pipe.labels])
    return np.concatenate([has, ~has]) if pipe.cfg["multilabel"] else has


def to_jsonl(suspects: Iterable[Suspect]) -> str:
    """Write suspects as lines of JSON for `of_jsonl`."""
    lines = []
    for suspect in suspects:
        row = {
            "text": suspect.text,
            **suspect.origin,
            "log_ratio": suspect.log_ratio if math.isfinite(suspect.log_ratio) else None,
            "gold": [mention.place for mention in suspect.gold],
            "best": [mention.place for mention in suspect.best],
        }
        lines.append(json.dumps(row, ensure_ascii=False))
    return "".join(f"{line}\n" for line in lines)


def of_jsonl(text: str) -> list[Suspect]:
    """Read the suspects that `to_jsonl` wrote. RAISES (ValueError, KeyError, TypeError): For any other text."""
    suspects = []
    # Not `splitlines`: texts in JSON may contain U+2028 and other separators of lines
    for line in text.split("\n"):
        if not line:
            continue
        row = json.loads(line)
        suspects.append(
            Suspect(
                text=row["text"],
                log_ratio=math.inf if row["log_ratio"] is None else float(row["log_ratio"]),
                gold=[Mention(*place) for place in row["gold"]],
                best=[Mention(*place) for place in row["best"]],
                origin={key: row[key] for key in ("place", "id") if key in row},
            )
        )
    return suspects
