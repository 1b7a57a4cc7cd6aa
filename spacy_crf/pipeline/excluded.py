"""Labellings that training excludes although each of their states is allowed: those with wrong spans, forbidden steps between
tags, white space at the edges of spans, or a broken rule of training."""

from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc

from ..errors import Warnings
from ..features.doc_batch import DocBatch
from ..inference.bridges import BridgedStructure
from ..inference.threads import default_threads
from ..schemes import NO_SEGMENTS, NO_STEPS
from ..types import Bools, ChainScores
from . import supervision
from .annotation.entities import GoldReport, Keys, Supervision
from .decoding import Decoding
from .pipe import LearningPipe


def without_unusable(pipe: LearningPipe, known: Supervision, starts: NDArray[np.int64], kind: str) -> Supervision:
    """Drop supervision that the loss or the optimizer cannot use, and warn once about it."""
    loss = pipe.loss.of_annotation if known.soft is None else pipe.loss
    who = f"The loss {type(pipe.loss).__name__}"
    usable = loss.excludes(pipe.decoding.labelled or "")
    if kind != "objective":
        who = "Optimizers that learn from one sequence after the other"
        usable = pipe.decoding.walks_around_wrong
    # To exclude single spans takes states that know spans
    if usable and "span_probabilities" in pipe.decoding.structure.answers:
        return known
    if len(known.wrong.start):
        pipe.warn_once(Warnings.CRFW402, n=len(known.wrong.start), key=Keys.of(pipe).incorrect, who=who)
    if len(known.steps):
        pipe.warn_once(Warnings.CRFW421, n=len(known.steps), who=who)
        supervision.leave_out(pipe.decoding, known.steps, known.clamp, starts)
    return known._replace(wrong=NO_SEGMENTS, steps=NO_STEPS)


def structure_of(pipe: LearningPipe, docs: list[Doc], known: Supervision, starts: NDArray[np.int64]) -> Any:
    """Structure with the rules, if they apply in training, without wrong spans, and without white space at the edges of
    spans; None to use the model's own structure."""
    node = pipe.model.attrs["node"]
    decoding = pipe.decoding
    blank = _blank(pipe, docs, known)
    if blank is None:
        return _ruled(pipe, decoding, docs, known, starts)
    bridges = decoding.bridges
    wide = known._replace(clamp=bridges.clamp(known.clamp))
    structure = _ruled(pipe, decoding.over_bridges(), docs, wide, starts)
    usual = node.in_training.with_threads(default_threads())
    return BridgedStructure(structure or usual, bridges, blank)


def _blank(pipe: LearningPipe, docs: list[Doc], known: Supervision) -> Optional[Bools]:
    """The tokens that are white space, at which no span begins or ends (bool[T]); None if there are none, if the loss or the
    model is no sum over labellings that could leave these out, and for segments: those with white space at an edge are wrong
    answers to learn from. Without them F1 on raw texts was 0.6 to 0.9 lower (18 of 20 trainings); chains lost nothing."""
    node = pipe.model.attrs["node"]
    is_sum = pipe.decoding.labelled == "tokens" and pipe.loss.excludes("tokens") and known.soft is None
    of_paths = node.gives is ChainScores and type(node.in_training) is type(node.structure)
    if pipe.annotation.space_edges or not (is_sum and of_paths):
        return None
    blank = DocBatch.of(docs).is_space
    return blank if blank.any() else None


def _ruled(
    pipe: LearningPipe, decoding: Decoding, docs: list[Doc], known: Supervision, starts: NDArray[np.int64]
) -> Any:
    """Structure with the rules and without wrong spans over the states of a decoding; None if there are neither."""
    rules = pipe.rules() if pipe.rules_train else None
    if rules is None and not len(known.wrong.start) and not len(known.steps):
        return None
    rules = rules if rules is None or decoding is pipe.decoding else rules.over(decoding)
    from ..constraints.rule import PatternMatches
    from ..constraints.settings import Constraints
    from ..constraints.training import Excluded, RuledChain, RuledSegments

    bounds = DocBatch.of(docs).bounds
    if rules is None:
        rule_set = decoding.compile_rules(Constraints([]))
    else:
        rule_set = rules.all.upto(int(np.diff(bounds).max(initial=0)))
    facts = PatternMatches() if rules is None else rules.matcher(docs)
    costs = pipe.loss.least_costs(len(pipe.decoding.label_of_states))
    if decoding is not pipe.decoding:
        costs = costs[pipe.decoding.bridges.tag_of]
    ruled = RuledSegments if rule_set.of_segments else RuledChain
    structure = ruled(
        rule_set,
        facts,
        known.clamp,
        starts,
        bounds,
        pipe.decoding.longest,
        excluded=Excluded(known.wrong, known.steps, costs),
        threads=default_threads(),
    )
    _warn_of_broken(pipe, structure.broken, docs)
    if rule_set.global_:
        pipe.warn_once(Warnings.CRFW610, rules=", ".join(rule.name for rule in rule_set.global_))
    return structure


def _warn_of_broken(pipe: LearningPipe, broken: list, docs: list[Doc]) -> None:
    """Warn once about rules that documents break, if there are any."""
    if broken and "broken" not in pipe.warned:
        pipe.warned.add("broken")
        report = GoldReport()
        for rule, d, beside in broken:
            problem = f"break the rule '{rule.name}'"
            if beside:
                others = ", ".join(f"'{other.name}'" for other in beside)
                problem = f"can't keep the rule '{rule.name}' together with {others}"
            report.add(f"gold annotations {problem}, and are trained without it", f"'{docs[d].text[:40]}'")
        report.log(pipe.name)
