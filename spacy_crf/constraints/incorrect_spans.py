"""Spans known to be wrong, in training.

"These tokens are no PER" excludes the labellings with precisely that span and label, and no others: a longer, a shorter or
another span of PER stays possible. No mask of single tokens says that, so tags get a memory: a span of PER that begins where
a wrong one begins is written in copies of the tags of PER, from which it can't end where the wrong one ends. Each labelling
is still one path, with the same score.

    tokens          in  New  York  City
    New York        O   B'   L'    ✗       nothing may follow L' here
    New York City   O   B'   I'    L       behind the end of the wrong span the copy is left
    York City       O   O    B     L       nothing wrong begins at York
"""

from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..schemes import NO_SEGMENTS, NO_STEPS, Segments
from ..types import ChainScores, Clamp, Floats
from .automaton import SpanTags


class Excluded(NamedTuple):
    """What no labelling that the annotation allows has, and no clamp says."""

    wrong: Segments = NO_SEGMENTS  # spans, by their first token; none crosses the start of a sequence
    steps: NDArray[np.int64] = NO_STEPS  # steps between tags, see `Scheme.spell`
    # [S] what a labelling costs that has one of them: of spans by their last state, of steps by the second one
    costs: Optional[Floats] = None

    def costs_more(self, clamp: Any) -> bool:
        """Whether what is excluded makes a difference: beside a clamp it is not possible, without one it has its costs."""
        return clamp is not None or (self.costs is not None and bool(self.costs.any()))


class TagCopies(NamedTuple):
    """The S tags of some sequences and C copies of tags, as S + C states."""

    tag_of: NDArray[np.int64]  # [S + C]
    label_of: NDArray[np.int64]  # [S + C]
    copy_of: NDArray[np.int64]  # [S + C] number of the copy, 0 for the tags themselves
    goes_on: NDArray[np.bool_]  # [S + C, S + C] whether the second state goes on with the span of the first one
    opened: NDArray[np.int64]  # [T, S + C] on which copy a span is of the state's label that begins here
    kept: NDArray[np.int64]  # [T, S + C] on which copy a span is here that was in this state before
    may_end: NDArray[np.bool_]  # [T + 1, S + C] whether a span in this state may end in front of this token
    excluded: Excluded
    starts: NDArray[np.int64]  # [B + 1] of the sequences

    def widen(self, scores: ChainScores, clamp: Optional[Clamp]) -> tuple[ChainScores, Clamp]:
        """Scores and clamp of tags, as those of the states. Under a clamp what is excluded is not possible; else it has its
        costs, which are added to the scores."""
        tags = self.tag_of
        prices = np.full(len(tags), -np.inf) if clamp is not None else self.excluded.costs[tags]
        is_path = np.where(
            self.goes_on, self.kept[:, :, None] == self.copy_of, (self.opened == self.copy_of)[:, None, :]
        )  # [T, S + C, S + C]
        steps = np.where(is_path, np.asarray(scores.transitions)[..., tags[:, None], tags], -np.inf)
        steps += np.where(~self.goes_on & ~self.may_end[:-1, :, None], prices[:, None], 0.0)
        for token, label, goes_on in self.excluded.steps.tolist():
            steps[token] += np.where((self.goes_on == goes_on) & (self.label_of == label), prices, 0.0)
        starts = self.starts[np.append(True, self.starts[1:] > self.starts[:-1])]  # without empty sequences
        emissions = np.ascontiguousarray(scores.emissions[:, tags])
        emissions[starts[1:] - 1] += np.where(self.may_end[starts[1:]], 0.0, prices)
        possible = np.ones(self.opened.shape, dtype=bool)
        possible[starts[:-1]] &= (self.opened == self.copy_of)[starts[:-1]]
        of_states = {
            "emissions": emissions,
            "transitions": steps,
            "first": scores.first[tags],
            "last": scores.last[tags],
        }
        widened = scores._replace(**of_states)
        if hasattr(widened, "orders"):  # n-grams are of tags; what is left out might be what the annotation has
            widened = widened._replace(orders=widened.orders._replace(digit_of=tags, keep=None))
        return widened, possible if clamp is None else possible & clamp[:, tags]

    def narrow(self, expected: ChainScores, n_tags: int, *, per_position: bool) -> ChainScores:
        """Derivatives with respect to scores of the states, as those of the tags."""
        of_tag = (self.tag_of[:, None] == np.arange(n_tags)).astype(np.float64)  # [S + C, S]
        transitions = expected.transitions if per_position else expected.transitions.sum(axis=0)
        return expected._replace(
            emissions=expected.emissions @ of_tag,
            transitions=of_tag.T @ transitions @ of_tag,
            first=expected.first @ of_tag,
            last=expected.last @ of_tag,
        )


def copy_tags(tags: SpanTags, excluded: Excluded, starts: NDArray[np.int64]) -> TagCopies:
    """The copies that the wrong spans of some sequences need.

    tags (SpanTags): What tags say about spans.
    excluded (Excluded): The spans, and the steps.
    starts (int64[B + 1]): Where the sequences start.
    """
    ends: dict[tuple[int, int], list[int]] = {}  # of the wrong spans, by first token and label
    for begin, end, label in zip(*(column.tolist() for column in excluded.wrong)):
        ends.setdefault((begin, label), []).append(end)
    # Spans of one label that begin at different tokens and overlap need a copy each; others share it.
    free_at: dict[int, list[int]] = {}  # by label, where each of its copies is free again
    numbers: dict[tuple[int, int], int] = {}
    for (begin, label), of_span in sorted(ends.items()):
        until = free_at.setdefault(label, [])
        copy = next((n for n, end in enumerate(until) if end <= begin), len(until))
        until[copy : copy + 1] = [max(of_span)]
        numbers[begin, label] = copy + 1
    tag_of, copy_of = [np.arange(len(tags.label_of))], [np.zeros(len(tags.label_of), dtype=np.int64)]
    for label, until in free_at.items():
        of_label = np.flatnonzero(tags.label_of == label)
        for copy in range(1, len(until) + 1):
            tag_of.append(of_label)
            copy_of.append(np.full(len(of_label), copy))
    tag_of, copy_of = np.concatenate(tag_of), np.concatenate(copy_of)
    label_of, tokens = tags.label_of[tag_of], int(starts[-1])
    opened, kept = np.zeros((2, tokens, len(tag_of)), dtype=np.int64)
    may_end = np.ones((tokens + 1, len(tag_of)), dtype=bool)
    for (begin, label), of_span in ends.items():
        copy = numbers[begin, label]
        on_copy = (label_of == label) & (copy_of == copy)
        opened[begin, label_of == label] = copy
        kept[begin + 1 : max(of_span), on_copy] = copy
        may_end[np.ix_(of_span, on_copy)] = False
    goes_on = tags.continues[np.ix_(tag_of, tag_of)]
    return TagCopies(tag_of, label_of, copy_of, goes_on, opened, kept, may_end, excluded, starts)
