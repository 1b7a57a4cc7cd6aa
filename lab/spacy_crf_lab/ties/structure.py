"""Structure of chains with ties: inference for tied sequences is delegated to any of the methods.

Sequences that no tie touches are ordinary chains. The others form components. The first sequence of a component
has the component's value (such as its log partition); its other sequences have 0.
"""

from hashlib import blake2b
from itertools import product
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from spacy_crf import arrays, checks
from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.inference.structure import ScoresOrWork, States, Structure
from spacy_crf.kernels import linear_chain as chain_kernels
from spacy_crf.types import ChainScores, Clamp, Floats, Path

from ..errors import Errors
from ..local_losses import SampledLikelihood
from .belief_propagation import BeliefPropagation
from .blocks import best_improved
from .losses import own_terms
from .mean_field import MeanField
from .method import LOG_PARTITION, Inference
from .scores import TiedScores, TiedWork, shared_labels

# Method for the lower bound of log partitions
_LOWER = MeanField(iterations=200, tolerance=1e-6)
_UPPER = BeliefPropagation(iterations=500, damping=0.3, tolerance=1e-6, tree_reweighted=True)


class TiedChains(Structure[TiedScores]):
    """Implements `Structure` for `TiedScores`; clamps are bool[T, S]."""

    work = TiedWork

    def __init__(self, inference: Inference, *, threads: int = 1):
        super().__init__(threads=threads)
        self.inference = inference

    @property
    def answers(self) -> frozenset[str]:
        """The optional questions that the inference answers."""
        inference = self.inference
        is_exact = inference.exact and LOG_PARTITION in inference.answers
        return inference.answers | ({"path", "exact"} if is_exact else {"path"})

    @property
    def chain(self) -> LinearChain:
        """The structure of single sequences."""
        return LinearChain(threads=self.threads)

    def prepare(self, scores: Any, clamp: Optional[Clamp] = None, *, annotated: Optional[Clamp] = None) -> Any:
        """Check the scores. RAISES (ValueError): As `Structure.prepare`; CRF040 for invalid ties."""
        work = super().prepare(scores, clamp, annotated=annotated)
        if not isinstance(scores, TiedWork):
            self._check(scores)
        return work

    def _check(self, scores: TiedScores) -> None:
        """RAISES (ValueError): CRF040 for invalid ties."""
        ties = scores.ties
        n_tokens = len(scores.emissions)
        n_features, n_labels, _ = np.shape(scores.tables)
        if len(ties.group_kind) and not self.inference.takes_groups:
            raise ValueError(Errors.CRF040.format(reason=f"{self.inference.name} takes no groups"))
        if not ties.is_empty:
            ends = np.concatenate(ties.links)
            kinds = np.append(ties.kind, ties.group_kind)
            possible = ends.min() >= 0 and ends.max() < n_tokens and np.not_equal(*ties.links).all()
            possible = possible and kinds.min() >= 0 and kinds.max() < len(ties.rows)
            if not possible or not ties.rows.max(initial=-1) < n_features == len(ties.symmetric):
                reason = f"each joins two different tokens of {n_tokens}, and has features among the {n_features} of the tables"
                raise ValueError(Errors.CRF040.format(reason=reason))
            label_of = np.asarray(scores.label_of)
            if label_of.shape != np.shape(scores.first) or not (label_of.min() >= 0 and label_of.max() < n_labels):
                reason = f"label_of gives each of {len(scores.first)} states one of the {n_labels} labels of the tables"
                raise ValueError(Errors.CRF040.format(reason=reason))

    # --------------------------------------------------------------------------------------------------- sums

    def forward(self, work: TiedWork) -> Floats:
        """Log partitions (float64[B]): of components at their first sequences, and of free sequences."""
        log_z = np.zeros(work.n_sequences)
        if work.tied is not None:
            log_z = work.spread(self.inference.log_partition(work.tied))
        log_z[work.free_sequences] = self.chain.log_partition(work.free)
        return log_z

    def expect(self, work: TiedWork, weights: Floats, out: TiedScores) -> Floats:
        """Log partitions, with derivatives in `out`; see `Structure.expect`."""
        log_z = np.zeros(work.n_sequences)
        tied = work.tied
        if tied is not None:
            found = self.inference.expectations(tied, weights[work.tied_sequences[tied.firsts]])
            log_z = work.spread(found.log_z)
            work.scores.ties.by_feature(found.tables, out.tables)
            arrays.add(out.chains, found.chains, work.tied_tokens)
        if len(work.free_sequences):
            log_z[work.free_sequences], free = self.chain.expectations(work.free, weights=weights[work.free_sequences])
            arrays.add(out.chains, free, work.free_tokens)
        return log_z

    def marginals(self, scores: ScoresOrWork, *, clamp: Optional[Clamp] = None) -> Floats:
        """Probability of each tag at each token: float64[T, S]."""
        work = self.prepare(scores, clamp)
        if work.tied is None:
            return self.chain.marginals(work.free)
        marginals = np.empty(work.scores.emissions.shape)
        marginals[work.free_tokens] = self.chain.marginals(work.free)
        marginals[work.tied_tokens] = np.clip(self.inference.marginals(work.tied), 0.0, 1.0)
        if work.tag_of is None:
            return marginals
        return np.minimum(arrays.by_tag(marginals, work.tag_of, work.n_tags), 1.0)

    # ------------------------------------------------------------------------------------------------- maxima

    def best(self, work: TiedWork) -> Path:
        """The best labelling that the inference finds, improved if it gives several."""
        if work.tied is None:
            return self.chain.viterbi(work.free)
        states = np.empty(work.n_tokens, dtype=np.int32)
        states[work.free_tokens] = self.chain.viterbi(work.free).states
        found = self.inference.best(work.tied)
        states[work.tied_tokens] = found[0] if len(found) == 1 else best_improved(work.tied, found)
        return Path(states, self.score_path(work, states))

    def score_path(self, work: TiedWork, states: States) -> Floats:
        """Score of a labelling, -inf where it is forbidden: float64[B]."""
        scores = work.scores
        of_chains = np.empty(work.n_sequences)
        free = chain_kernels.ChainArrays(scores.emissions, work.transitions, scores.first, scores.last, work.starts)
        chain_kernels.path_score(free, states, of_chains)
        if work.tied is None:
            return of_chains
        values: Any = np.bincount(work.first_of, of_chains, minlength=work.n_sequences)
        kind, i, j, sequences = self._pairs(work, states)
        # table[kind, label at source, label at target]
        of_ties = work.tied.tables[kind, i, j]
        return values + np.bincount(sequences, of_ties, minlength=work.n_sequences)

    def add_path(self, work: TiedWork, states: States, weights: Floats, out: TiedScores) -> None:
        """Add the weighted use of each score by a labelling to `out`."""
        uses = chain_kernels.ChainArrays(
            out.emissions, out.transitions.reshape(work.transitions.shape), out.first, out.last, work.starts
        )
        chain_kernels.path_expectations(states, weights[work.first_of], uses)
        if work.tied is not None:
            kind, i, j, sequences = self._pairs(work, states)
            of_kinds = np.zeros(work.tied.tables.shape)
            np.add.at(of_kinds, (kind, i, j), weights[sequences])
            work.scores.ties.by_feature(of_kinds, out.tables)

    def _pairs(self, work: TiedWork, states: States):
        """The ties both of whose ends have a label, and the groups whose members share one: their kinds, the two labels, and the
        sequences that have their values."""
        ties = work.scores.ties
        states = np.asarray(states)
        labels = np.where(states >= 0, work.label_of[states], -1)
        shared = shared_labels(labels, ties)
        known = np.flatnonzero((labels[ties.source] >= 0) & (labels[ties.target] >= 0))
        agreed = np.flatnonzero(shared >= 0)
        source = ties.source[known]
        target = ties.target[known]
        first = np.append(source, ties.members[ties.group_starts[:-1][agreed]])
        sequences = work.first_of[np.searchsorted(work.starts, first, side="right") - 1]
        kind = np.append(ties.kind[known], ties.group_kind[agreed])
        shared = shared[agreed]
        return kind, np.append(labels[source], shared), np.append(labels[target], shared), sequences

    # ---------------------------------------------------------------------------------------- lists and samples

    def n_best_of_all(
        self, scores: ScoresOrWork, n: int, *, clamp: Optional[Clamp] = None
    ) -> list[tuple[float, States]]:
        """The n best labellings of all sequences together, with their scores, best first."""
        checks.count("n_best", "n", n, most=checks.ANY)
        work = self.prepare(scores, clamp)
        parts = []
        for b, found in enumerate(self.chain.n_best(work.free, n)):
            begin, end = work.free.starts[b : b + 2]
            parts.append((work.free_tokens[begin:end], found))
        if work.tied is not None:
            for part, tokens in work.tied.parts():
                parts.append((work.tied_tokens[tokens], self.inference.rank(part, n)))
        best: list[tuple[float, States]] = [(0.0, np.full(work.n_tokens, -1, dtype=np.int32))]
        for tokens, found in parts:
            # The n best of two parts are among the n best of each
            choices = [(before + score, rest, states) for (before, rest), (score, states) in product(best, found)]
            choices.sort(key=lambda choice: -choice[0])
            best = []
            for score, rest, states in choices[:n]:
                rest = rest.copy()
                rest[tokens] = states
                best.append((score, rest))
        return [(score, self.labels(work, states)) for score, states in best]

    def draw(self, work: TiedWork, uniforms: Floats) -> States:
        """Draw n labellings: int32[n, T]."""
        states = np.empty(uniforms.shape, dtype=np.int32)
        states[:, work.free_tokens] = self.chain.draw(work.free, np.ascontiguousarray(uniforms[:, work.free_tokens]))
        if work.tied is not None:
            # The bits of random numbers as a seed, so that one seed gives one answer
            seed = np.ascontiguousarray(uniforms[:1, work.tied_tokens]).view(np.uint32).ravel().tolist()
            states[:, work.tied_tokens] = self.inference.draw(work.tied, len(uniforms), seed)
        return states

    def walk_samples(
        self, work: TiedWork, n: int, *, seed: int, loss: SampledLikelihood, begin: Optional[States], annotation: Clamp
    ) -> States:
        """Draw labellings; for tied sequences they are the ends of walks.

        loss (SampledLikelihood): Has the settings of walks, and keeps their ends.
        begin (int32[1, T]): The labelling from which walks start; None for labellings drawn without ties.
        annotation (bool[T, S]): Identifies the walks, which continue from where the last call left them.
        """
        states = self.chain.sample(work.scores.chains, n, seed=seed, clamp=work.clamp)
        if work.tied is None:
            return states
        states = np.array(states)
        tied = work.tied_tokens
        if begin is not None:
            states[:, tied] = begin[:, tied]
        keys = _keys(work, annotation) if loss.persistent else []
        for tokens, key in keys:
            if key in loss.kept:
                states[:, tokens] = loss.kept[key]
        states[:, tied] = self.inference.walk_on(work.tied, states[:, tied], loss.steps, loss.random)
        loss.kept.update({key: states[:, tokens].copy() for tokens, key in keys})
        return states

    own_terms = staticmethod(own_terms)

    def bounds(self, scores: ScoresOrWork, *, clamp: Optional[Clamp] = None) -> tuple[float, float]:
        """Lower and upper bound of the log partition of all sequences together. RAISES (ValueError): CRF352 for groups."""
        work = self.prepare(scores, clamp)
        if len(work.scores.ties.group_kind):
            raise ValueError(Errors.CRF352)
        free = float(self.chain.log_partition(work.free).sum())
        if work.tied is None:
            return free, free
        if "exact" in self.answers:
            exact = free + float(self.inference.log_partition(work.tied).sum())
            return exact, exact
        lower = _LOWER.log_partition(work.tied)
        return free + float(lower.sum()), free + float(_UPPER.log_partition(work.tied).sum())

    # ------------------------------------------------------------------------------------- approximated by chains

    def as_chains(self, scores: ScoresOrWork, *, clamp: Optional[Clamp] = None) -> ChainScores:
        """Independent chains, each with the distribution that the method computes for its sequence; they answer any question
        about a single sequence. Scores without ties are returned unchanged."""
        if isinstance(scores, TiedScores) and scores.ties.is_empty:
            return scores.chains
        work = self.prepare(scores, clamp)
        chains = work.scores.chains
        if work.tied is None:
            return chains
        found = self.inference.as_chains(work.tied)
        emissions = chains.emissions.copy()
        emissions[work.tied_tokens] = found.emissions
        if found.transitions is work.tied.chains.transitions and found.first is work.tied.chains.first:
            return chains._replace(emissions=emissions)
        # Transitions of their own: what all sequences begin and end with becomes emissions
        opens, closes = arrays.ends(work.starts, work.n_tokens)
        is_free = np.zeros(work.n_tokens, dtype=bool)
        is_free[work.free_tokens] = True
        emissions[opens & is_free] += chains.first
        emissions[closes & is_free] += chains.last
        shape = (work.n_tokens, *chains.transitions.shape[-2:])
        transitions = np.array(np.broadcast_to(chains.transitions, shape))
        transitions[work.tied_tokens] = found.transitions
        nothing = np.zeros(work.n_states)
        return ChainScores(emissions, transitions, nothing, nothing.copy(), chains.starts)


def _keys(work: TiedWork, clamp: Clamp) -> list[tuple[NDArray[np.int64], bytes]]:
    """The tokens of each component, and what tells it from others: its annotation and its ties. (Texts for which these are the
    same share their walks, which may go on from any labelling.)"""
    found = []
    tied: Any = work.tied
    starts = np.zeros(work.n_tokens, dtype=bool)
    starts[work.starts[work.starts < work.n_tokens]] = True
    for part, tokens in tied.parts():
        of_batch = work.tied_tokens[tokens]
        ends = (part.source, part.target)
        identity = [np.array([work.clamp is None]), clamp[of_batch], starts[of_batch], *ends, np.shape(clamp)[1:]]
        digest = blake2b(digest_size=16)
        for array in identity:
            digest.update(np.ascontiguousarray(array).tobytes())
        found.append((of_batch, digest.digest()))
    return found
