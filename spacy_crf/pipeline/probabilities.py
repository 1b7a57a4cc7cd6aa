"""Decoding under rules, and the distribution over the labellings of a Doc."""

from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc

from ..errors import Warnings
from ..features.columns import doc_bounds
from ..inference import spans as chain_spans
from ..inference.linear_chain import LinearChain
from ..inference.spans import SpanStates
from ..inference.state_graph import GraphChain, Joined, join_sequences
from ..schemes import Segments
from ..types import ChainScores, Clamp, Floats

if TYPE_CHECKING:
    from .chain_pipe import ChainPipe, _Rules


def predict(
    pipe: "ChainPipe", docs: list[Doc], scores: ChainScores, clamp: Optional[Clamp], rules: "Optional[_Rules]"
) -> tuple[NDArray[np.int32], Optional[Floats]]:
    """Tags of a batch of Docs as the component's settings ask for, and the probabilities of the spans if they do.

    scores (ChainScores): What the model says.
    clamp (bool[T, S]): Tags still allowed, or None.
    rules: The compiled rules, or None.
    RETURNS (int32[T], float64[N] or None)
    """
    settings = pipe.cfg
    facts = rules.matcher(docs) if rules is not None else {}
    posterior = settings["decode"] == "posterior"
    weigh = settings["confidence"] or settings["min_prob"] > 0.0
    relaxed: dict[int, list[str]] = {}
    if rules is None:
        tags = None if posterior else pipe.model.attrs["structure"].viterbi(scores, clamp=clamp).states
    else:
        tags, relaxed = _decode(pipe, docs, scores, clamp, rules.all, facts)
    if not (weigh or posterior):
        return tags, None
    batch = _Batch(pipe, docs, scores, clamp, rules, facts, relaxed)
    if posterior:
        tags = _posterior_tags(pipe, docs, batch, rules)
    if not weigh:
        return tags, None
    return tags, batch.span_probabilities(pipe.segments(tags, scores.starts))


def _decode(pipe, docs, scores, clamp, rule_set, facts, *, tell=True):
    from ..constraints.decoding import decode
    from .chain_pipe import words_of

    words = words_of(docs) if rule_set.global_ else None
    found = decode(rule_set, scores, doc_bounds(docs), facts, words, pipe.span_states(), clamp=clamp)
    if tell:
        for d, names in found.relaxed.items():
            pipe._warn(Warnings.CRF601, doc=docs[d].text[:40], rules=", ".join(names))
        for d in found.unfinished:
            pipe._warn(Warnings.CRF602, doc=docs[d].text[:40], seconds=rule_set.constraints.time_limit)
    return found.tags, found.relaxed


def _posterior_tags(pipe, docs, batch: "_Batch", rules) -> NDArray[np.int32]:
    """The valid labelling with the largest sum of marginals."""
    ruled = batch.ruled
    marginals = batch.marginals()
    forbidden = ChainScores(
        np.where(ruled.emissions > -np.inf, marginals, -np.inf),
        *(np.where(part > -np.inf, 0.0, -np.inf) for part in (ruled.transitions, ruled.first, ruled.last)),
        ruled.starts,
    )
    if rules is None:
        return LinearChain().viterbi(forbidden, clamp=batch.clamp).states
    return _decode(pipe, docs, forbidden, batch.clamp, rules.hard, batch.facts, tell=False)[0]


class _Batch:
    """The distributions over the labellings of several Docs."""

    def __init__(self, pipe, docs, scores, clamp, rules, facts, relaxed):
        self._pipe = pipe
        self._docs = docs
        self.clamp = clamp
        self.facts = facts
        self._bounds = doc_bounds(docs)
        self._rules = rules.all if rules is not None else None
        self._relaxed = relaxed
        self.ruled = scores if rules is None else self._rules.apply(scores, facts)
        self._scores = scores
        self._fitting: frozenset[int] = frozenset()
        if self._rules is not None:
            self._fitting, left_out = self._rules.fitting()
            _tell_ignored(pipe, self._rules, left_out)

    def span_probabilities(self, segments: Segments) -> Floats:
        if not self._fitting and not self._relaxed:
            spans = self._pipe.span_states()
            return chain_spans.span_probabilities(self.ruled, spans, segments, clamp=self.clamp)
        probabilities = np.zeros(len(segments.start))
        of_doc = np.searchsorted(segments.start, self._bounds)
        for d in range(len(self._docs)):
            n = slice(of_doc[d], of_doc[d + 1])
            if n.start < n.stop:
                shift = self._bounds[d]
                of_segments = Segments(segments.start[n] - shift, segments.end[n] - shift, segments.label[n])
                probabilities[n] = self._distribution(d).span_probabilities(of_segments)
        return probabilities

    def marginals(self) -> Floats:
        if not self._fitting and not self._relaxed:
            return LinearChain().marginals(self.ruled, clamp=self.clamp)
        parts = [self._distribution(d).marginals() for d in range(len(self._docs)) if len(self._docs[d])]
        return np.concatenate(parts) if parts else np.zeros(self.ruled.emissions.shape)

    def _distribution(self, d: int) -> "Distribution":
        from ..constraints.decoding import _cut

        tokens = slice(int(self._bounds[d]), int(self._bounds[d + 1]))
        scores = self._scores
        starts = np.unique(np.clip(scores.starts, tokens.start, tokens.stop)) - tokens.start
        of_doc = scores._replace(
            emissions=scores.emissions[tokens],
            transitions=scores.transitions[tokens] if np.ndim(scores.transitions) == 3 else scores.transitions,
            starts=starts,
        )
        clamp = None if self.clamp is None else self.clamp[tokens]
        facts = {place: _cut(fact, tokens) for place, fact in self.facts.items()}
        return _make(
            self._pipe.span_states(), of_doc, clamp, self._rules, facts, self._fitting, self._relaxed.get(d, [])
        )


def distribution(
    pipe: "ChainPipe", doc: Doc, scores: ChainScores, clamp: Optional[Clamp], rules: "Optional[_Rules]"
) -> "Distribution":
    """The distribution over the labellings of one Doc, under the scheme, the clamp and all rules that an automaton holds."""
    facts: dict[int, Any] = {}
    fitting: frozenset[int] = frozenset()
    relaxed: list[str] = []
    if rules is not None:
        facts = rules.matcher([doc])
        fitting, left_out = rules.all.fitting()
        _tell_ignored(pipe, rules.all, left_out)
    rule_set = rules.all if rules is not None else None
    made = _make(pipe.span_states(), scores, clamp, rule_set, facts, fitting, relaxed)
    if rule_set is not None and len(doc) and not made.is_possible():
        _, by_doc = _decode(pipe, [doc], scores, clamp, rule_set, facts)
        made = _make(pipe.span_states(), scores, clamp, rule_set, facts, fitting, by_doc.get(0, []))
    return made


def _make(spans: SpanStates, scores, clamp, rule_set, facts, fitting: frozenset[int], relaxed) -> "Distribution":
    structure: Any = LinearChain()
    if rule_set is not None:
        kept = {rule.place for rule in rule_set.rules if rule.name not in relaxed}
        scores = rule_set.apply(scores, facts, kept)
        automata = frozenset(n for n in fitting if rule_set.automata[n].rule.place in kept)
        if automata:
            structure = rule_set.graph(automata)
    padded = SpanStates(np.pad(spans.continues, (0, 1)), spans.offset, spans.width)
    return Distribution(structure, join_sequences(scores, clamp), padded, np.asarray(scores.starts))


def _tell_ignored(pipe, rule_set, left_out) -> None:
    """Once for each set of rules: which of them probabilities don't know."""
    if rule_set.told:
        return
    rule_set.told = True
    if left_out:
        limit = rule_set.constraints.max_states
        reason = f"with them the automaton of all rules has more than max_states = {limit} states"
        pipe._warn(Warnings.CRF603, rules=", ".join(rule.name for rule in left_out), reason=reason)
    if rule_set.global_:
        names = ", ".join(rule.name for rule in rule_set.global_)
        pipe._warn(Warnings.CRF603, rules=names, reason="no automaton holds them")


class Distribution(NamedTuple):
    """The distribution over the labellings of one Doc, its sequences joined."""

    structure: Any  # LinearChain or GraphChain
    joined: Joined
    spans: SpanStates  # with the break as one more tag
    starts: NDArray[np.int64]  # of the sequences

    def is_possible(self) -> bool:
        return bool(self.structure.log_partition(self.joined.scores, clamp=self.joined.clamp)[0] > -np.inf)

    def marginals(self) -> Floats:
        marginals = self.structure.marginals(self.joined.scores, clamp=self.joined.clamp)
        return np.ascontiguousarray(marginals[self.joined.tokens, :-1])

    def span_probabilities(self, segments: Segments) -> Floats:
        places = self.joined.tokens
        moved = Segments(places[segments.start], places[segments.end - 1] + 1, segments.label)
        if isinstance(self.structure, GraphChain):
            return self.structure.span_probabilities(self.joined.scores, self.spans, moved, clamp=self.joined.clamp)
        return chain_spans.span_probabilities(self.joined.scores, self.spans, moved, clamp=self.joined.clamp)

    def likely_spans(self, min_prob: float) -> tuple[Segments, Floats]:
        if isinstance(self.structure, GraphChain):
            likely = self.structure.likely_spans(self.joined.scores, self.spans, min_prob, clamp=self.joined.clamp)
        else:
            likely = chain_spans.likely_spans(self.joined.scores, self.spans, min_prob, clamp=self.joined.clamp)
        begin, end, label = likely.segments
        token_at = np.full(len(self.joined.scores.emissions), -1)
        token_at[self.joined.tokens] = np.arange(len(self.joined.tokens))
        real = token_at[begin] >= 0  # a break is no span
        segments = Segments(token_at[begin[real]], token_at[end[real] - 1] + 1, label[real])
        return segments, likely.probabilities[real]

    def n_best(self, n: int) -> list[tuple[float, NDArray[np.int32]]]:
        log_z = self.structure.log_partition(self.joined.scores, clamp=self.joined.clamp)[0]
        [best] = self.structure.n_best(self.joined.scores, n, clamp=self.joined.clamp)
        return [(min(1.0, float(np.exp(score - log_z))), tags[self.joined.tokens]) for score, tags in best]

    def log_probability(self, tags: NDArray[np.int32]) -> float:
        n_tags = len(self.joined.scores.first) - 1
        if (tags < 0).any():
            return -np.inf
        whole = np.full(len(self.joined.scores.emissions), n_tags, dtype=np.int32)
        whole[self.joined.tokens] = tags
        if self.joined.clamp is not None and not self.joined.clamp[np.arange(len(whole)), whole].all():
            return -np.inf
        score = self.structure.path_score(self.joined.scores, whole)[0]
        if score == -np.inf:
            return -np.inf
        log_z = self.structure.log_partition(self.joined.scores, clamp=self.joined.clamp)[0]
        return min(0.0, float(score - log_z))

    def sample(self, n: int, seed: int) -> NDArray[np.int32]:
        drawn = self.structure.sample(self.joined.scores, n, seed=seed, clamp=self.joined.clamp)
        return drawn[:, self.joined.tokens]
