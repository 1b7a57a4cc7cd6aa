"""Rules about segments as an integer linear program, see `integer_program`.

A segmentation is a unit of flow that steps into a segment of some state, leaves it behind its last token, steps into the next
one, and so on. Automata move where a segment is entered, and rest at its other tokens.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..arrays import Joined
from ..inference.semi_markov import SegmentSteps, SemiMarkov
from ..types import GOES_ON
from .automaton import Automaton, SpanTags
from .integer_program import Program, Solution, solve_with_few


def solve_segments(
    joined: Joined,
    tags: SpanTags,
    automata: Sequence[Automaton],
    texts: Sequence[list[tuple[int, int]]],
    *,
    time_limit: float,
) -> Solution:
    """Best segmentation of joined sequences of at least one token, as a path of segments; otherwise as
    `integer_program.solve`."""
    structure = SemiMarkov()
    every = structure.steps(structure.prepare(joined.scores, joined.clamp))
    tokens = len(joined.scores.tokens)

    def optimise(chosen: NDArray[np.bool_], seconds: float):
        return _optimise(SegmentSteps(*(column[chosen] for column in every)), tokens, tags, automata, texts, seconds)

    return solve_with_few(every.best, automata, optimise, time_limit)


def _optimise(steps: SegmentSteps, tokens: int, tags: SpanTags, automata, texts, time_limit: float):
    """RETURNS: The path or None, its score, and whether the solver finished."""
    numbers = np.arange(len(steps.begin))
    is_segment = steps.end >= 0
    at = [numbers[~is_segment & (steps.begin == t)] for t in range(tokens)]
    if not len(at[0]):
        return None, -np.inf, True
    program = Program(steps.scores)
    program.add_row(at[0], 1.0, 1.0, 1.0)
    beginning = [numbers[is_segment & (steps.begin == t)] for t in range(tokens)]
    ending = [numbers[steps.end == t] for t in range(tokens)]
    for t in range(tokens):
        for state in np.unique(steps.state[np.concatenate([at[t], beginning[t]])]):
            into = at[t][steps.state[at[t]] == state]
            program.conserve(into, beginning[t][steps.state[beginning[t]] == state])
        for state in np.unique(np.concatenate([steps.state[ending[t]], steps.before[at[t]]])) if t > 0 else ():
            into = ending[t][steps.state[ending[t]] == state]
            program.conserve(into, at[t][steps.before[at[t]] == state])
    events = np.where(is_segment, -1, tags.events[steps.before, steps.state])
    for automaton in automata:
        program.add_automaton(automaton, events, at, rests=True)
    for occurrences in texts:
        _add_text(program, occurrences, steps, numbers, tags)
    taken, value, in_time = program.run(time_limit)
    if taken is None:
        return None, value, in_time
    path = np.full(tokens, GOES_ON, dtype=np.int32)
    taken = taken[is_segment[taken]]
    path[steps.begin[taken]] = steps.state[taken]
    return path, value, in_time


def _add_text(program: Program, occurrences, steps: SegmentSteps, numbers: NDArray[np.int64], tags: SpanTags) -> None:
    """One variable for each label that an occurrence may have; at most one of them is 1."""
    label_of = np.append(tags.label_of, -1)  # of the break
    variable: dict[int, int] = {}
    for begin, end in occurrences:
        for n in numbers[(steps.begin == begin) & (steps.end == end) & (label_of[steps.state] >= 0)].tolist():
            label = int(steps.state[n])
            if label not in variable:
                variable[label] = program.add_variable()
            program.add_row([n, variable[label]], [1.0, -1.0], -np.inf, 0.0)
    if variable:
        program.add_row(list(variable.values()), 1.0, -np.inf, 1.0)
