"""Decoding under rules, and the distribution over the labellings of a Doc. What depends on the structure is said by a
`Decoding`: `ChainDecoding` or `SegmentDecoding`."""

from typing import TYPE_CHECKING, Any, Optional, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import Warnings
from ..features.doc_batch import DocBatch
from ..schemes import Segments
from ..types import Floats

if TYPE_CHECKING:
    from ..constraints.decoding import Decoded
    from ..constraints.facts import Facts
    from ..constraints.rule_set import CompiledRules
    from .ruled_pipe import RuledPipe, Rules


class Distribution(Protocol):
    """The distribution over the labellings of one Doc, or of a batch of Docs whose sequences no rule ties together."""

    starts: NDArray[np.int64]  # of the sequences

    def is_possible(self) -> bool:
        """Whether there is any labelling."""

    def marginals(self) -> Floats:
        """Probability of each state at each token: float64[T, S]."""

    def span_probabilities(self, segments: Segments) -> Floats:
        """Probability of each of some spans, which are given by their first token: float64[N]."""

    def likely_spans(self, min_prob: float) -> tuple[Segments, Floats]:
        """All spans of at least some probability."""

    def n_best(self, n: int) -> list[tuple[float, NDArray[np.int32]]]:
        """Probability and tags of the best labellings of one Doc."""

    def log_probability(self, tags: NDArray[np.int32]) -> float:
        """Log probability of a labelling of one Doc."""

    def sample(self, n: int, seed: int) -> NDArray[np.int32]:
        """Tags of labellings drawn: int32[n, T]."""


class Decoding(Protocol):
    """What a structure adds to prediction. Scores and clamps are those of the structure, labellings are tags."""

    def decode(
        self, rules: "CompiledRules", scores: Any, doc_starts: NDArray[np.int64], facts: "Facts", words: Any, clamp: Any
    ) -> "Decoded":
        """Best labellings that keep the rules."""

    def expected(self, scores: Any, marginals: Floats) -> Any:
        """Scores whose best labelling has the largest sum of marginals."""

    def cut(self, scores: Any, clamp: Any, tokens: slice) -> tuple[Any, Any]:
        """The scores and the clamp of one document of a batch."""

    def distribution(self, scores: Any, clamp: Any, graph: Any) -> Distribution:
        """The distribution of scores under the graph of some rules, None for none."""

    def batch(self, scores: Any, clamp: Any) -> Distribution:
        """The same for several Docs, whose sequences nothing ties together: marginals and probabilities of spans."""


def predict(
    pipe: "RuledPipe", docs: DocBatch, scores: Any, clamp: Any, rules: "Optional[Rules]"
) -> tuple[NDArray[np.int32], Optional[Floats]]:
    """Tags of a batch of Docs under rules, or with the best expected number of right tags, and the probabilities of the spans if
    the component's settings ask for them.

    scores: What the model says.
    clamp: What is still allowed, or None.
    rules: The compiled rules, or None.
    RETURNS (int32[T], float64[N] or None)
    """
    settings = pipe.cfg
    facts = rules.matcher(docs) if rules is not None else None
    posterior = settings["decode"] == "posterior"
    weigh = settings["confidence"] or settings["min_prob"] > 0.0
    tags: Optional[NDArray[np.int32]] = None
    relaxed: dict[int, list[str]] = {}
    if rules is not None:
        tags, relaxed = _decode(pipe, docs, scores, clamp, rules.all, facts)
    if not (weigh or posterior):
        return tags, None
    batch = _Batch(pipe, docs, scores, clamp, rules, facts, relaxed)
    if posterior:
        tags = _posterior_tags(pipe, docs, batch, rules, tags)
    if not weigh:
        return tags, None
    return tags, batch.span_probabilities(pipe.segments(tags, scores.starts))


def _decode(pipe, docs, scores, clamp, rule_set, facts):
    found = _best_under_rules(pipe, docs, scores, clamp, rule_set, facts)
    seconds = rule_set.constraints.time_limit
    for d, names in found.relaxed.items():
        message = Warnings.CRF605 if d in found.unfinished else Warnings.CRF601
        pipe._warn(message, doc=docs[d].text[:40], rules=", ".join(names), seconds=seconds)
    for d in found.unfinished:
        if d not in found.relaxed:
            pipe._warn(Warnings.CRF602, doc=docs[d].text[:40], seconds=seconds)
    return found.tags, found.relaxed


def _best_under_rules(pipe, docs, scores, clamp, rule_set, facts) -> "Decoded":
    words = docs.words if rule_set.global_ else None
    return pipe.decoding().decode(rule_set, scores, docs.bounds, facts, words, clamp)


def _posterior_tags(pipe, docs, batch: "_Batch", rules, most_probable) -> NDArray[np.int32]:
    """The valid labelling with the largest sum of marginals; where that is not found in time, the most probable one."""
    expected = batch.decoding.expected(batch.ruled, batch.marginals())
    if rules is None:
        return pipe.best_tags(expected, batch.clamp)
    found = _best_under_rules(pipe, docs, expected, batch.clamp, rules.hard, batch.facts)
    for d in found.unfinished:
        tokens = slice(int(batch.bounds[d]), int(batch.bounds[d + 1]))
        found.tags[tokens] = most_probable[tokens]
        pipe._warn(Warnings.CRF606, doc=docs[d].text[:40], seconds=rules.hard.constraints.time_limit)
    return found.tags


class _Batch:
    """The distributions over the labellings of several Docs."""

    def __init__(self, pipe, docs, scores, clamp, rules, facts, relaxed):
        self.decoding: Decoding = pipe.decoding()
        self._docs = docs
        self.clamp = clamp
        self.facts = facts
        self.bounds = docs.bounds
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
            return self.decoding.batch(self.ruled, self.clamp).span_probabilities(segments)
        probabilities = np.zeros(len(segments.start))
        of_doc = np.searchsorted(segments.start, self.bounds)
        for d in range(len(self._docs)):
            n = slice(of_doc[d], of_doc[d + 1])
            if n.start < n.stop:
                shift = self.bounds[d]
                of_segments = Segments(segments.start[n] - shift, segments.end[n] - shift, segments.label[n])
                probabilities[n] = self._distribution(d).span_probabilities(of_segments)
        return probabilities

    def marginals(self) -> Floats:
        if not self._fitting and not self._relaxed:
            return self.decoding.batch(self.ruled, self.clamp).marginals()
        parts = [
            self._distribution(d).marginals() for d in range(len(self._docs)) if self.bounds[d] < self.bounds[d + 1]
        ]
        return np.concatenate(parts) if parts else self.decoding.batch(self.ruled, self.clamp).marginals()

    def _distribution(self, d: int) -> Distribution:
        tokens = slice(int(self.bounds[d]), int(self.bounds[d + 1]))
        scores, clamp = self.decoding.cut(self._scores, self.clamp, tokens)
        facts = self.facts.at(tokens)
        return _make(self.decoding, scores, clamp, self._rules, facts, self._fitting, self._relaxed.get(d, []))


def distribution(pipe: "RuledPipe", docs: DocBatch, scores: Any, clamp: Any, rules: "Optional[Rules]") -> Distribution:
    """The distribution over the labellings of a single Doc, under the scheme, the clamp and all rules that an automaton holds."""
    facts = None
    fitting: frozenset[int] = frozenset()
    if rules is not None:
        facts = rules.matcher(docs)
        fitting, left_out = rules.all.fitting()
        _tell_ignored(pipe, rules.all, left_out)
    rule_set = rules.all if rules is not None else None
    decoding = pipe.decoding()
    made = _make(decoding, scores, clamp, rule_set, facts, fitting, [])
    if rule_set is not None and docs.bounds[-1] and not made.is_possible():
        _, by_doc = _decode(pipe, docs, scores, clamp, rule_set, facts)
        made = _make(decoding, scores, clamp, rule_set, facts, fitting, by_doc.get(0, []))
    return made


def _make(decoding: Decoding, scores, clamp, rule_set, facts, fitting: frozenset[int], relaxed) -> Distribution:
    graph = None
    if rule_set is not None:
        kept = {rule.place for rule in rule_set.rules if rule.name not in relaxed}
        scores = rule_set.apply(scores, facts, kept)
        automata = frozenset(n for n in fitting if rule_set.automata[n].rule.place in kept)
        if automata:
            graph = rule_set.graph(automata)
    return decoding.distribution(scores, clamp, graph)


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
