"""Labellings that training excludes although each of their states is allowed: those with wrong spans, forbidden steps between
tags, white space at the edges of spans, or a broken rule of training."""

from typing import Optional, TypeVar

import numpy as np
from spacy.tokens import Doc

from ..errors import Warnings
from ..features.doc_batch import DocBatch
from ..inference.bridges import BridgedStructure
from ..inference.linear_chain import LinearChain
from ..inference.threads import default_threads
from ..models.node import TrainingStructure
from ..schemes import NO_SEGMENTS, NO_STEPS
from ..types import Bools, ChainScores, Clamp, Ints, PathScores
from .annotation.entities import GoldReport, Keys, Supervision
from .decoding import Decoding
from .pipe import LearningPipe

ScoresOfPaths = TypeVar("ScoresOfPaths", bound=PathScores)


def drop_unusable(pipe: LearningPipe, known: Supervision, starts: Ints, kind: str) -> Supervision:
    """Drop wrong spans and forbidden steps that the loss or the optimizer cannot exclude, and warn once about them.

    pipe (LearningPipe): The component.
    known (Supervision): The supervision of a batch. Its clamp is changed in place, to exclude the steps as far as it can.
    starts (int64[B + 1]): Where the sequences start.
    kind (str): What the optimizer learns from: a key of `prepared.VIEWS`.
    RETURNS (Supervision): The supervision that is left.
    """
    loss = pipe.loss.of_annotation if known.soft is None else pipe.loss
    if kind == "objective":
        reader = f"The loss {type(pipe.loss).__name__}"
        can_exclude = loss.excludes(pipe.decoding.labelled or "")
    else:
        reader = "Optimizers that learn from one sequence after the other"
        can_exclude = pipe.decoding.walks_around_wrong
    # A span can be excluded only if paths of states determine spans
    if can_exclude and "span_probabilities" in pipe.decoding.structure.answers:
        return known
    if len(known.wrong.start):
        pipe.warn_once(Warnings.CRFW402, n=len(known.wrong.start), key=Keys.of(pipe).incorrect, who=reader)
    if len(known.steps):
        pipe.warn_once(Warnings.CRFW421, n=len(known.steps), who=reader)
        leave_out(pipe.decoding, known.steps, known.clamp, starts)
    return known._replace(wrong=NO_SEGMENTS, steps=NO_STEPS)


def structure_of(pipe: LearningPipe, docs: list[Doc], known: Supervision, starts: Ints) -> Optional[TrainingStructure]:
    """A structure that excludes labellings from the training on a batch: labellings that break rules of training, have wrong
    spans, or have white space at the edges of spans.

    pipe (LearningPipe): The component.
    docs (List[Doc]): The texts, whose sequences start at `starts` (int64[B + 1]).
    known (Supervision): The supervision of the texts.
    RETURNS (Optional[TrainingStructure]): None if the model's own structure will do.
    """
    node = pipe.model.attrs["node"]
    decoding = pipe.decoding
    blank = _tokens_without_edges(pipe, docs, known)
    if blank is None:
        return _ruled_structure(pipe, decoding, docs, known, starts)
    # The structure has states for blank tokens too, so what is known is widened to them
    bridges = decoding.bridges
    wide = known._replace(clamp=bridges.clamp(known.clamp))
    structure = _ruled_structure(pipe, decoding.over_bridges(), docs, wide, starts)
    usual = node.in_training.with_threads(default_threads())
    return BridgedStructure(structure or usual, bridges, blank)  # pyright: ignore[reportArgumentType]  no bridges


def _tokens_without_edges(pipe: LearningPipe, docs: list[Doc], known: Supervision) -> Optional[Bools]:
    """The tokens that are white space, at which no span may begin or end: bool[T]. None if there are none, or if the loss or the
    model does not sum over labellings, so that none can be excluded.

    Also None for segments: they should learn that segments with white space at an edge are wrong. When these were excluded, F1 on
    raw texts was 0.6 to 0.9 lower (18 of 20 trainings); chains lost nothing."""
    node = pipe.model.attrs["node"]
    loss_sums = pipe.decoding.labelled == "tokens" and pipe.loss.excludes("tokens") and known.soft is None
    model_sums = node.gives is ChainScores and type(node.in_training) is type(node.structure)
    if pipe.annotation.space_edges or not (loss_sums and model_sums):
        return None
    blank = DocBatch.of(docs).is_space
    return blank if blank.any() else None


def _ruled_structure(
    pipe: LearningPipe, decoding: Decoding, docs: list[Doc], known: Supervision, starts: Ints
) -> Optional[TrainingStructure]:
    """Make the structure for training over the states of a decoding, which keeps rules and excludes wrong spans.

    RETURNS (Optional[TrainingStructure]): None if there are neither rules nor wrong spans.
    """
    rules = pipe.rules() if pipe.rules_train else None
    if rules is None and not len(known.wrong.start) and not len(known.steps):
        return None
    if rules is not None and decoding is not pipe.decoding:
        rules = rules.over(decoding)
    from ..constraints.rule import PatternMatches
    from ..constraints.settings import Constraints
    from ..constraints.training import Excluded, RuledChain, RuledSegments

    bounds = DocBatch.of(docs).bounds
    if rules is None:
        rule_set = decoding.compile_rules(Constraints([]))
    else:
        rule_set = rules.all.upto(int(np.diff(bounds).max(initial=0)))
    facts = PatternMatches() if rules is None else rules.matcher(docs)
    # [S] how much a loss with costs at least charges for a wrong span in each state
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


# ------------------------------------------------------------------------------------------- steps between tags


def without_steps(decoding: Decoding, scores: ScoresOfPaths, steps: Ints) -> ScoresOfPaths:
    """Forbid certain steps in the scores of a chain.

    decoding (Decoding): The component's decoding.
    scores (PathScores): The scores.
    steps (int64[N, 3]): For each step, the token into which it leads, its label, and 1 if it continues a span, as in
        `Scheme.encode_clamp`.
    RETURNS (PathScores): With transitions for each token: float64[T, S, S].
    """
    label = decoding.label_of_states  # [S]
    continues = np.asarray(decoding.spans.continues)  # [S, S], None only for segments, which have no steps
    transitions = np.array(np.broadcast_to(scores.transitions, (len(scores[0]), *continues.shape)))
    for token, to_label, goes_on in steps.tolist():
        is_step = (continues == goes_on) & (label == to_label)  # [S, S]
        transitions[token, is_step] = -np.inf
    return scores._replace(transitions=transitions)


def leave_out(decoding: Decoding, steps: Ints, clamp: Clamp, starts: Ints) -> None:
    """Remove states from a clamp, in place, until no labelling takes any of the given steps. This also excludes some allowed
    labellings; it serves losses and optimizers that cannot handle steps. At least one labelling remains if there was one.

    decoding (Decoding): The component's decoding.
    steps (int64[N, 3]): See `without_steps`.
    clamp (bool[T, S]): The allowed states of sequences that start at `starts` (int64[B + 1]).
    """
    allowed = clamp.copy()
    label = decoding.label_of_states  # [S]
    continues = np.asarray(decoding.spans.continues)  # [S, S]
    for token, to_label, goes_on in steps.tolist():
        has_label = label == to_label  # [S]
        # A step is impossible once one of its two tokens lacks the states of the step. A step that continues a span has the label
        # at both tokens; a step that begins a span has the label at the second token only
        if goes_on:
            choices = [(token - 1, has_label), (token, has_label & continues[has_label].any(axis=0))]
        else:
            choices = [(token, has_label), (token - 1, ~has_label)]
        # The first of the two tokens that has other states too loses the states of the step
        for at, states in choices:
            if (clamp[at] & ~states).any():
                clamp[at] &= ~states
                break
    # The removed states may have left a sequence without labellings, or with some of the forbidden ones
    sequence_of_step = np.searchsorted(starts, steps[:, 0], side="right") - 1
    for b in np.unique(sequence_of_step).tolist():
        tokens = slice(int(starts[b]), int(starts[b + 1]))
        mask = decoding.mask()
        # Scores of 0 count labellings: their log partition is the logarithm of the number of possible labellings
        free = ChainScores(
            emissions=np.zeros((tokens.stop - tokens.start, decoding.n_states)),
            transitions=np.where(mask.transitions, 0.0, -np.inf),
            first=np.where(mask.first, 0.0, -np.inf),
            last=np.where(mask.last, 0.0, -np.inf),
        )
        steps_here = steps[sequence_of_step == b] - [tokens.start, 0, 0]  # counted from the first token of the sequence
        without = without_steps(decoding, free, steps_here)
        [n_left] = LinearChain().log_partition(without, clamp=clamp[tokens])
        [n_possible] = LinearChain().log_partition(free, clamp=clamp[tokens])
        if n_left > -np.inf and np.isclose(n_left, n_possible, rtol=0.0, atol=1e-9):
            continue  # some labellings are left, and none of them takes a step
        # A state that was removed for one step may be needed by another. Allow a single labelling without steps instead
        path, best = LinearChain().viterbi(without, clamp=allowed[tokens])
        has_tag = decoding.tags(path)[:, np.newaxis] == np.arange(len(decoding.annotation.tags()))  # [T, tags]
        clamp[tokens] = has_tag[:, decoding.tag_of] & (best[0] > -np.inf)
