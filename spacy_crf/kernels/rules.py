"""Scores of many documents by automata."""

import numpy as np

from . import kernel


@kernel
def run_automata(events, doc_starts, following, scores, last, offsets, totals):
    """Compute the score that each automaton gives to each document.

    events (int32[T]): The event at each token.
    doc_starts (int64[D + 1]): Where the documents start.
    following (int32[Q, E]), scores (float64[Q, E]), last (float64[Q]): The automata, stacked; states are numbered from the first
        state of their automaton.
    offsets (int64[N + 1]): First state of each automaton.
    totals (float64[D, N]): Receives the scores, -inf where the automaton rejects the document.
    """
    for d in range(doc_starts.shape[0] - 1):
        for n in range(offsets.shape[0] - 1):
            state = 0
            total = 0.0
            for t in range(doc_starts[d], doc_starts[d + 1]):
                total += scores[offsets[n] + state, events[t]]
                state = following[offsets[n] + state, events[t]]
                if state < 0:
                    total = -np.inf
                    break
            if state >= 0:
                total += last[offsets[n] + state]
            totals[d, n] = total
