"""All labellings of a batch of texts by their scores: the best ones, and exact probabilities.

A labelling is a path through states, of which several may belong to one tag where rules have a memory. In a chain each token has
a state; of segments each segment, which is a token O or a span, has one.
"""

from functools import cached_property
from typing import Any, NamedTuple, Optional

import numpy as np

from .content import LEAST, Array, LiteError, numbers
from .features import fits_in_text

MOST_STEPS = 1 << 22  # scores of steps in memory
MOST_SCORE = 1e100  # of steps, first and last states, and lengths


class Spans(NamedTuple):
    """Labelled spans of a batch of texts with their probabilities, by first token."""

    begin: Array  # [N] first token, counted through all texts
    end: Array  # [N]
    label: Array  # [N]
    probability: Array  # [N]


class Paths(NamedTuple):
    """The best labellings of each text, and the segments of all of them, in order."""

    scores: Array  # [B, n], -inf where there are fewer
    rank: Array  # [N] number of each segment's labelling: n times the number of its text, plus its rank
    begin: Array  # [N] first token of each segment
    end: Array  # [N]
    state: Array  # [N]


class Sums(NamedTuple):
    """Log sums over labellings, by token and state, and the log sum over all labellings of each text."""

    before: Array  # [T, S] of what comes before a segment that begins at the token
    ends: Array  # [T, S] of all up to a segment that ends with the token, with this segment
    begins: Array  # [T, S] of all from a segment on that begins at the token, with this segment
    behind: Array  # [T, S] of what comes behind a segment that ends with the token
    log_z: Array  # [B]


def log_sum(scores: Array, axis: int) -> Array:
    """log of the sum of exp(scores) along an axis; -inf where all are -inf."""
    top = scores.max(axis=axis, keepdims=True, initial=LEAST)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(scores - top).sum(axis=axis)) + np.squeeze(top, axis)


class States:
    """The states of labellings.

    content (dict): The tag of each state, and the scores of steps, of first and of last states.
    label_of (int[tags]): The label of each tag, -1 for none.
    continues (bool[tags, tags]): Whether a tag continues the span of the tag before it; by default none does.

    choice (States): States of O and the labels, for sets of spans that are chosen by their probabilities; or None.
    blank (States): States for texts with white space, where no span may begin or end; None if spans may do so there.
    """

    def __init__(self, content: dict[str, Any], label_of: Array, continues: Array = False):
        self.tag_of = numbers(content["tag_of"], np.int64, least=0, most=len(label_of) - 1)  # [S]
        n_states = len(self.tag_of)
        if not n_states:
            raise LiteError("it has no states. Copy the file again.")
        source = numbers(content["source"], np.int64, least=0, most=n_states - 1)
        target = numbers(content["target"], np.int64, source.shape, least=0, most=n_states - 1)
        self.matrix = np.full((n_states, n_states), -np.inf)
        self.matrix[source, target] = numbers(content["scores"], shape=source.shape, most=MOST_SCORE)
        self.first = numbers(content["first"], shape=(n_states,), most=MOST_SCORE)
        self.last = numbers(content["last"], shape=(n_states,), most=MOST_SCORE)
        self.label_of = label_of[self.tag_of]
        n_labels = int(label_of.max(initial=-1)) + 1
        self.has_label = self.label_of[:, np.newaxis] == np.arange(n_labels)  # [S, labels]
        continues_tag = np.broadcast_to(continues, (len(label_of), len(label_of)))
        self.continues = continues_tag[self.tag_of[:, np.newaxis], self.tag_of]  # [S, S]
        self.choice: Optional[States] = None
        if "choice" in content:
            self.choice = States(content["choice"], np.arange(-1, n_labels))
        # Of a `choice`: whether its rules may ask for spans that are less probable than `min_prob`; None without rules
        self.asks: Optional[bool] = content.get("asks")
        # Whether segments that begin or end with white space, and others, may be in a state: bool[2, S]
        self.may: Optional[Array] = None
        if "may" in content:
            self.may = numbers(content["may"], np.bool_, (2, n_states))
        self.blank: Optional[States] = None
        if "blank" in content:
            self.blank = States(content["blank"], label_of, continues)
            self.blank.choice = self.choice

    @cached_property
    def arrivals(self) -> list[tuple[Array, Array, Array]]:
        """How states are entered, for states with few and with many states before them.

        RETURNS (list[tuple]): Of each group of G states: the states (int64[G]); up to P states before each (int64[G, P], or
            [1, P] if they are equal); and the scores of the steps (float64[G, P]).
        """
        is_step = ~np.isneginf(self.matrix.T)  # [S, S] into a state, from another
        n_before = is_step.sum(axis=1)
        has_few = n_before <= n_before.max(initial=0) // 4
        groups = []
        for states in (np.flatnonzero(has_few), np.flatnonzero(~has_few)):
            if not len(states):
                continue
            width = max(1, n_before[states].max())
            # Possible steps come first, in the order of states
            before = np.argsort(~is_step[states], axis=1, kind="stable")[:, :width]
            scores = self.matrix[before, states[:, np.newaxis]]
            is_shared = (before == before[0]).all()
            groups.append((states, before[:1] if is_shared else before, scores))
        return groups


class _Steps:
    """Scores of the steps from one state to the next: a matrix, and one more for each token if features weigh pairs of tags.

    matrix (float64[S, S]): Scores from state to state.
    tag_of (int64[S]): The tag of each state.
    pairs (float64[T, tags, tags]): The scores of pairs of tags at each token; None if they are equal everywhere.
    """

    def __init__(self, matrix: Array, tag_of: Array, pairs: Optional[Array]):
        self._matrix = matrix
        self._tag_of = tag_of
        self._pairs = pairs
        self._shift = max(0.0, float(matrix.max(initial=0.0)))
        self._exp = np.exp(matrix - self._shift)

    def _at(self, tokens: Array) -> Array:
        """Steps into tokens, if features weigh pairs of tags: float64[N, S, S]."""
        assert self._pairs is not None  # the callers have asked
        return self._matrix + self._pairs[tokens][:, self._tag_of[:, np.newaxis], self._tag_of]

    def best_into(self, scores: Array, tokens: Array, arrivals: list) -> tuple[Array, Array]:
        """The n best scores of labellings that enter each state at N tokens.

        scores (float64[N, S, n]): The n best scores of labellings up to the tokens before, by their last state.
        arrivals (list): `States.arrivals`.
        RETURNS (float64[N, S, n], int64[N, S, n]): The scores, and where they come from: the state before · n + the rank.
        """
        n_tokens, size, n = scores.shape
        if self._pairs is not None:
            steps = self._at(tokens).transpose(0, 2, 1)[..., np.newaxis]
            return _best((scores[:, np.newaxis] + steps).reshape(n_tokens, size, -1), n)
        best = np.empty_like(scores)
        origins = np.empty(scores.shape, dtype=np.int64)
        for states, before, steps in arrivals:
            entered = scores[:, before] + steps[..., np.newaxis]  # [N, G, P, n]
            best[:, states], places = _best(entered.reshape(n_tokens, len(states), -1), n)
            place, rank = np.divmod(places, n)
            row = np.arange(len(before))[:, np.newaxis]  # of the states before: one for each state, or for all
            origins[:, states] = before[row, place] * n + rank
        return best, origins

    def sums_into(self, scores: Array, tokens: Array) -> Array:
        """log sum_i exp(scores[n, i] + steps[n, i, j]) for steps into tokens (int[N]): float64[N, S]."""
        if self._pairs is None:
            return self._sums(scores, self._exp, self._matrix.T)
        return self._sums_of_pairs(scores, tokens, (0, 1, 2))

    def sums_from(self, scores: Array, tokens: Array) -> Array:
        """log sum_j exp(steps[n, i, j] + scores[n, j]) for steps into tokens (int[N]): float64[N, S]."""
        if self._pairs is None:
            return self._sums(scores, self._exp.T, self._matrix)
        return self._sums_of_pairs(scores, tokens, (0, 2, 1))

    def _sums(self, scores: Array, exp_steps: Array, steps_of: Array) -> Array:
        """Log sums over equal steps: the product with their exponentials, exp_steps (float64[S, S]).

        steps_of (float64[S, S]): In row j the steps that are summed in column j.
        """
        top = scores.max(axis=1, keepdims=True, initial=LEAST)
        sums = np.exp(scores - top) @ exp_steps
        with np.errstate(divide="ignore"):
            log_sums = np.log(sums) + top + self._shift
        # A sum of zero may be too small a number for this domain, rather than the sum of no steps
        is_zero = sums == 0.0
        if is_zero.any():
            n_steps = (scores > -np.inf).astype(np.float64) @ (steps_of > -np.inf).T.astype(np.float64)
            rows, columns = np.nonzero(is_zero & (n_steps > 0.0))
            log_sums[rows, columns] = log_sum(scores[rows] + steps_of[columns], 1)
        return log_sums

    def _sums_of_pairs(self, scores: Array, tokens: Array, axes: tuple[int, int, int]) -> Array:
        """Log sums over the steps of each token, whose axes are moved so that the second one is summed."""
        n_parts = 1 + scores.size * scores.shape[1] // MOST_STEPS
        parts = []
        # Part by part, so that the steps of all tokens are not in memory together
        for part_scores, part_tokens in zip(np.array_split(scores, n_parts), np.array_split(tokens, n_parts)):
            steps = self._at(part_tokens).transpose(axes)
            parts.append(log_sum(part_scores[:, :, np.newaxis] + steps, 1))
        return np.concatenate(parts)


def _best(scores: Array, n: int) -> tuple[Array, Array]:
    """The n largest scores along the last axis and their places, in falling order; equal scores keep their order."""
    if n > 1:
        places = np.argsort(-scores, axis=-1, kind="stable")[..., :n]
    else:
        places = scores.argmax(axis=-1)[..., np.newaxis]
    return np.take_along_axis(scores, places, -1), places


class Segments:
    """Labellings of a batch of texts by segments: O, one token long, and spans.

    states (States): The states.
    scores (float64[T, K, C]): The score of each tag for the segments that begin at each token, by their length.
    bounds (int64[B + 1]): Where texts begin and end.
    pairs (float64[T, C, C]): The scores of pairs of tags at each token, or None.
    blank (bool[T]): Which tokens are white space.
    """

    def __init__(self, states: States, scores: Array, bounds: Array, pairs: Optional[Array], blank: Array):
        self.states = states
        self.bounds = bounds
        self._pairs = pairs
        n_tokens, longest = scores.shape[:2]
        self.scores = scores[:, :, states.tag_of]  # [T, K, S]
        self.scores[~fits_in_text(bounds, longest)] = -np.inf
        # [T, K] the last token of each segment, where the segments of the last tokens end with the last token
        self._last_token = np.minimum(np.add.outer(np.arange(n_tokens), np.arange(longest)), n_tokens - 1)
        if states.may is not None:
            has_blank_edge = np.logical_or(blank[:, np.newaxis], blank[self._last_token])  # [T, K]
            may = states.may[np.where(has_blank_edge, 0, 1)]  # [T, K, S]
            self.scores[~may] = -np.inf
        lengths = np.diff(bounds)
        self.text_of = np.repeat(np.arange(len(lengths)), lengths)  # [T]
        # Texts are worked on together, the longest first: those that have a token at some place come before all others
        self._order = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
        lengths = lengths[self._order]
        self._first = bounds[:-1][self._order]
        self._last = self._first + lengths - 1
        # For each place in a text: the tokens there, one of each text that is long enough
        self._tokens_at = []
        for place in range(int(lengths.max(initial=0))):
            n_texts = np.count_nonzero(lengths > place)
            self._tokens_at.append(self._first[:n_texts] + place)

    def _steps(self, allowed: Any = True) -> _Steps:
        """The steps between states. allowed (bool[S, S]): Steps that are not forbidden; by default all."""
        return _Steps(np.where(allowed, self.states.matrix, -np.inf), self.states.tag_of, self._pairs)

    def n_best(self, n: int) -> Paths:
        """The n best labellings of each text. Of equal ones the lower last state, then the shorter last segment comes first."""
        steps = self._steps()
        n_tokens, longest, size = self.scores.shape
        # [T, S, n] the best scores of what comes before a segment that begins at a token, and of all up to one that ends with it
        enters = np.full((n_tokens, size, n), -np.inf)
        ends = np.full((n_tokens, size, n), -np.inf)
        # [T, S, n] where these come from: previous state · n + its rank, and (length - 1) · n + rank
        origins = np.empty((n_tokens, size, n), dtype=np.int64)
        lengths = np.empty((n_tokens, size, n), dtype=np.int64)
        enters[self._first, :, 0] = self.states.first
        for place, tokens in enumerate(self._tokens_at):
            if place:
                enters[tokens], origins[tokens] = steps.best_into(ends[tokens - 1], tokens, self.states.arrivals)
            segments = []
            for k in range(min(longest, place + 1)):
                begin = tokens - k
                segments.append(enters[begin] + self.scores[begin, k][..., np.newaxis])
            ends[tokens], lengths[tokens] = _best(np.concatenate(segments, axis=2), n)
        scores = np.full((len(self.bounds) - 1, n), -np.inf)
        scores[:, 0] = 0.0  # of empty texts
        final = (ends[self._last] + self.states.last[:, np.newaxis]).reshape(-1, size * n)
        scores[self._order], places = _best(final, n)
        text, rank = np.nonzero(scores[self._order] > -np.inf)
        number = n * self._order[text] + rank
        end = self._last[text]
        place = places[text, rank]
        # Follow all labellings back from their last segments, one segment of each at a time
        segments = [(number[:0], number[:0], number[:0], number[:0])]
        while len(number):
            state, rank = np.divmod(place, n)
            length, rank = np.divmod(lengths[end, state, rank], n)
            begin = end - length
            segments.append((number, begin, end + 1, state))
            has_more = begin > self.bounds[number // n]
            number = number[has_more]
            end = begin[has_more] - 1
            place = origins[begin, state, rank][has_more]
        ranks, begins, segment_ends, states = map(np.concatenate, zip(*segments[::-1]))
        order = np.argsort(ranks, kind="stable")
        return Paths(scores, ranks[order], begins[order], segment_ends[order], states[order])

    @cached_property
    def sums(self) -> Sums:
        """Log sums over all labellings, by the forward and backward recursions."""
        steps = self._steps()
        n_tokens, longest, size = self.scores.shape
        before, ends, begins, behind = np.zeros((4, n_tokens, size))
        # ends[t, s] = logsum_k(before[t - k, s] + scores[t - k, k, s])
        for place, tokens in enumerate(self._tokens_at):
            before[tokens] = steps.sums_into(ends[tokens - 1], tokens) if place else self.states.first
            segments = [before[tokens - k] + self.scores[tokens - k, k] for k in range(min(longest, place + 1))]
            ends[tokens] = np.logaddexp.reduce(segments)
        behind[self._last] = self.states.last
        # begins[t, s] = logsum_k(scores[t, k, s] + behind[t + k, s])
        for place in reversed(range(len(self._tokens_at))):
            tokens = self._tokens_at[place]
            segments = []
            for k in range(min(longest, len(self._tokens_at) - place)):
                segments.append(self.scores[tokens, k] + behind[self._last_token[tokens, k]])
            begins[tokens] = np.logaddexp.reduce(segments)
            if place:
                behind[tokens - 1] = steps.sums_from(begins[tokens], tokens)
        log_z = np.zeros(len(self.bounds) - 1)
        log_z[self._order] = log_sum(begins[self._first] + self.states.first, 1)
        return Sums(before, ends, begins, behind, log_z)

    def tags(self, begin: Array, end: Array, state: Array) -> Array:
        """The tags of the tokens of segments (int[N]), in BIO: int64[T]."""
        inside = 2 * self.states.tag_of[state]  # tags are O, B-0, I-0, B-1, I-1 …
        lengths = end - begin
        tags = np.repeat(inside, lengths)
        first_tokens = np.cumsum(lengths) - lengths
        tags[first_tokens] -= inside > 0
        return tags

    def spans(self, begin: Array, end: Array, state: Array) -> tuple[Array, Array, Array]:
        """First tokens, ends and labels of the spans that segments (int[N]) make."""
        label = self.states.label_of[state]
        is_span = label >= 0
        return begin[is_span], end[is_span], label[is_span]

    def likely(self, least: float) -> Spans:
        """All spans whose probability is at least `least`."""
        begin, length, label = np.nonzero(self._probabilities >= least)
        return self.weighed(begin, begin + length + 1, label)

    def weighed(self, begin: Array, end: Array, label: Array) -> Spans:
        """Some spans (int64[N]) with their probabilities."""
        return Spans(begin, end, label, self._probabilities[begin, end - begin - 1, label])

    @cached_property
    def _probabilities(self) -> Array:
        """The probability of each span by first token, length and label: float64[T, K, labels]."""
        # p[t, k, label] = sum over the label's states s of exp(before[t, s] + scores[t, k, s] + behind[t + k, s] - log_z)
        sums = self.sums
        before = sums.before - sums.log_z[self.text_of, np.newaxis]
        log_p = before[:, np.newaxis] + self.scores + sums.behind[self._last_token]
        return np.minimum(np.exp(log_p) @ self.states.has_label, 1.0)


class Chain(Segments):
    """Labellings by segments of one token, whose spans are runs of tags."""

    def tags(self, begin: Array, end: Array, state: Array) -> Array:
        """The tags of tokens (int[T]): int64[T]."""
        return self.states.tag_of[state]

    def spans(self, begin: Array, end: Array, state: Array) -> tuple[Array, Array, Array]:
        """First tokens, ends and labels of the spans that tokens (int[T]) with these states make."""
        label = self.states.label_of[state]
        # Whether a token continues the span of the token before it: bool[T + 1]
        is_continued = np.zeros(1 + len(state), dtype=bool)
        is_same_text = self.text_of[:-1] == self.text_of[1:]
        is_continued[1:-1] = self.states.continues[state[:-1], state[1:]] & is_same_text
        is_first = (label >= 0) & ~is_continued[:-1]
        is_last = (label >= 0) & ~is_continued[1:]
        return begin[is_first], end[is_last], label[is_first]

    def marginals(self, of_states: Array) -> Array:
        """The probability of each set of states (bool[S, C]) at each token: float64[T, C]."""
        sums = self.sums
        log_p = sums.ends + sums.behind - sums.log_z[self.text_of, np.newaxis]
        return np.minimum(np.exp(log_p) @ of_states, 1.0)

    def likely(self, least: float) -> Spans:
        """All spans whose probability is at least `least`."""
        begin, label = np.nonzero(self.marginals(self.states.has_label) >= least)
        return self.weighed(begin, self.bounds[1:][self.text_of[begin]], label, least)

    def weighed(self, begin: Array, end: Array, label: Array, least: Optional[float] = None) -> Spans:
        """Some spans (int64[N]) with their probabilities.

        least (float): If it is given, the result is all spans of at least this probability that begin as these do and end where
            these end or earlier.
        """
        sums = self.sums
        log_z = sums.log_z[self.text_of]
        emissions = self.scores[:, 0]
        inside = self._steps(self.states.continues)
        around = self._steps(~self.states.continues)
        tokens = np.arange(1, len(emissions))
        # Log sums of what comes before a span that begins at a token, and behind one that ends there: float64[T, S]
        opening = np.empty_like(emissions)
        closing = np.empty_like(emissions)
        opening[1:] = around.sums_into(sums.ends[:-1], tokens)
        closing[:-1] = around.sums_from(sums.begins[1:], tokens)
        opening[self._first] = self.states.first
        closing[self._last] = self.states.last
        # Extend all spans by a token at a time: scores of what comes before, and of the span up to its `last` token so far
        scores = np.where(self.states.has_label.T[label], opening[begin] + emissions[begin], -np.inf)
        number = np.arange(len(begin))
        last = begin
        found = [(number[:0], number[:0], log_z[:0])]  # number of the span, last token and probability
        while len(number):
            probability = np.exp(log_sum(scores + closing[last], 1) - log_z[last])
            is_longer = end[number] > last + 1
            is_wanted = end[number] == last + 1
            if least is not None:
                # A longer span is at most as probable as all continuations of this one
                of_continuations = np.exp(log_sum(scores + sums.behind[last], 1) - log_z[last]) - probability
                is_longer &= of_continuations >= least
                is_wanted = probability >= least
            found.append((number[is_wanted], last[is_wanted], probability[is_wanted]))
            number = number[is_longer]
            last = last[is_longer] + 1
            scores = inside.sums_into(scores[is_longer], last) + emissions[last]
        span_numbers, last_tokens, probabilities = map(np.concatenate, zip(*found))
        order = np.argsort(span_numbers, kind="stable")
        span_numbers = span_numbers[order]
        ends = last_tokens[order] + 1
        return Spans(begin[span_numbers], ends, label[span_numbers], np.minimum(probabilities[order], 1.0))
