"""Decoding of models with ties between tokens: labellings, probabilities, and the losses that fit each inference method."""

from functools import partial
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
from numpy.typing import NDArray

from spacy_crf.arrays import Joined
from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.inference.structure import Structure
from spacy_crf.losses.clamped import LabelledLoss, LogLikelihood, MaxMargin, Perceptron, SoftmaxMargin
from spacy_crf.pipeline.decoding import Decoding, Distribution, States
from spacy_crf.schemes import Segments
from spacy_crf.types import ChainScores, Floats

from ..errors import Errors
from ..local_losses import BesagPseudoLikelihood, Piecewise, SampledLikelihood
from .belief_propagation import BeliefPropagation
from .dual_decomposition import DualDecomposition
from .gibbs import Gibbs
from .graph_cut import GraphCut
from .junction_tree import JunctionTree
from .linear_program import LinearProgram
from .losses import SentenceLikelihood
from .mean_field import MeanField
from .method import LOG_PARTITION, MAXIMUM, N_BEST, SAMPLE, WALK, Inference
from .scores import TiedScores
from .structure import TiedChains

if TYPE_CHECKING:
    from spacy_crf.constraints.decoding import Decoded, Documents

METHODS: tuple[type[Inference], ...] = (
    BeliefPropagation,
    DualDecomposition,
    Gibbs,
    GraphCut,
    JunctionTree,
    LinearProgram,
    MeanField,
)
_NOTHING = "nothing"
_LOSSES: dict[str, tuple[type[LabelledLoss], ...]] = {  # by the result that they need from the inference
    _NOTHING: (SentenceLikelihood, BesagPseudoLikelihood, Piecewise),
    LOG_PARTITION: (LogLikelihood, SoftmaxMargin),
    MAXIMUM: (Perceptron, MaxMargin),
    WALK: (SampledLikelihood,),
}


class TiedDecoding(Decoding):
    """Decoding of chains with ties.

    Labellings and marginals come from the whole graph, and so do n-best lists and samples if the inference supports them.
    Probabilities of spans come from independent chains, which approximate the graph by adding the messages of ties to the
    emissions. Rules without memory hold in the graph. Under other rules, a junction tree is exact if its tables have room for the
    rules' automata, and dual decomposition searches the best labelling; otherwise the independent chains are used.
    """

    structure: TiedChains

    def __init__(self, model: Any, annotation: Any):
        super().__init__(model, annotation)
        self.chains = Decoding(model, annotation)  # decoding of the independent chains
        self.chains.structure = self.chains.searched = self.chains.explained = self.explained = LinearChain()
        model.attrs["label_of"] = self.label_of_states - self.label_of_states.min(initial=0)

    @property
    def ties(self) -> "TiedDecoding":
        return self

    @property
    def inference(self) -> Inference:
        return self.structure.inference

    def as_chains(self, scores: Any, clamp: Any) -> ChainScores:
        """Approximate scores with ties by scores of independent chains."""
        if isinstance(scores, ChainScores):
            return scores
        chains = self.structure.as_chains(scores, clamp=clamp)
        self.warn_unsettled()
        return chains

    def are_exact_in(self, scores: Any) -> bool:
        """Whether `under_rules` uses a junction tree for these scores."""
        if not isinstance(self.inference, JunctionTree) or isinstance(scores, ChainScores):
            return False
        return not scores.ties.is_empty

    def of_doc(self, scores: TiedScores, clamp: Any) -> "Optional[TiedDistribution]":
        """The distribution over the labellings of a Doc without rules; None for a Doc without ties."""
        if scores.ties.is_empty:
            return None
        joined = Joined(scores, clamp, np.arange(len(scores.emissions)))
        return TiedDistribution(self, self.structure, joined, len(scores.first), np.asarray(scores.starts))

    def under_rules(self, rules: Any, document: "Documents", kept: frozenset[int]) -> Optional[Distribution]:
        """The distribution over the labellings of a Doc that keep some rules, given by their places; None if the tables have no
        room for the rules' automata."""
        from .rules import joined, under

        scores = rules.apply(document.scores, document.facts, kept)
        of_doc = joined(scores, document.clamp)
        automata = rules.fitting & rules.binding(kept, len(of_doc.scores.emissions))
        if not automata:
            return self.of_doc(scores, document.clamp)
        tree: Any = self.inference  # a `JunctionTree`, see `are_exact_in`
        structure = under(tree, rules, automata, of_doc)
        if structure is None:
            return None
        return RuledDistribution(self, structure, of_doc, len(scores.first), np.asarray(scores.starts))

    def warn_unsettled(self) -> None:
        """Warn once if the inference has not converged."""
        self.inference.warn_unsettled(self.annotation.name)

    @property
    def in_training(self) -> TiedChains:
        return self.model.attrs["role"].in_training()

    def check_fit(self, pipe: Any) -> None:
        kinds, inference = type(pipe.loss).__mro__, self.in_training.inference
        # The result that the loss needs from the inference; None for other losses
        asked = next((question for kind in kinds for question, losses in _LOSSES.items() if kind in losses), None)
        answers = [_NOTHING, *sorted(inference.answers)]
        if asked not in answers:
            losses = [loss.__name__ for question in answers for loss in _LOSSES.get(question, ())]
            message = Errors.CRF361.format(
                name=pipe.name,
                loss=type(pipe.loss).__name__,
                inference=inference.name,
                losses=", ".join(f"spacy_crf_lab.{name}.v1" for name in losses),
                inferences=", ".join(that_answer(asked)) or "none",
            )
            raise ValueError(message)
        templates = self.model.get_ref("cliques").attrs["templates"].values()
        if asked == _NOTHING and any(template.edges == "group" for template in templates):
            raise ValueError(Errors.CRF353.format(name=pipe.name, loss=type(pipe.loss).__name__))
        if pipe.rules_train:
            raise ValueError(Errors.CRF362.format(name=pipe.name))

    def best_tags(self, scores: Any, clamp: Any) -> States:
        if isinstance(scores, ChainScores):
            return self.chains.best_tags(scores, clamp)
        if self.inference.decodes_chains or scores.ties.is_empty:
            return self.chains.best_tags(self.as_chains(scores, clamp), clamp)
        tags = self.structure.viterbi(scores, clamp=clamp).states
        self.warn_unsettled()
        return tags

    def decode(self, rules: Any, documents: "Documents", doc_starts: NDArray[np.int64], kept: Any = None) -> "Decoded":
        scores = documents.scores
        if isinstance(scores, ChainScores) or self.inference.decodes_chains or scores.ties.is_empty:
            return super().decode(
                rules, documents._replace(scores=self.as_chains(scores, documents.clamp)), doc_starts, kept
            )
        from spacy_crf.constraints.decoding import decode

        from .rules import TiedSearch

        of_documents = self.inference if self.inference.keeps_rules else None
        search = partial(TiedSearch, of_documents, self.as_chains)
        decoded = decode(rules, documents, doc_starts, kept, structure=self.structure, make_search=search)
        self.warn_unsettled()
        return decoded

    def best_with_probabilities(self, scores: Any, clamp: Any) -> tuple[States, Floats]:
        chains = self.as_chains(scores, clamp)
        if self.inference.decodes_chains:
            return self.chains.best_with_probabilities(chains, clamp)
        tags = self.best_tags(scores, clamp)
        segments = self.segments(tags, scores.starts)
        return tags, self.explained.span_probabilities(chains, self.spans, segments, clamp=clamp)

    def distribution(self, scores: Any, clamp: Any, graph: Optional[Structure]) -> Distribution:
        return self.chains.distribution(self.as_chains(scores, clamp), clamp, graph)

    def batch(self, scores: Any, clamp: Any) -> Distribution:
        return self.chains.batch(self.as_chains(scores, clamp), clamp)


class TiedDistribution(Distribution):
    """The distribution over the labellings of one Doc with ties."""

    structure: TiedChains

    def span_probabilities(self, segments: Segments) -> Floats:
        return self._chains.span_probabilities(segments)

    def likely_spans(self, min_prob: float) -> tuple[Segments, Floats]:
        return self._chains.likely_spans(min_prob)

    def n_best(self, n: int) -> list[tuple[float, States]]:
        if n == 1 and N_BEST not in self.structure.answers:
            tags = self.decoding.best_tags(self.joined.scores, self.joined.clamp)
            return [(float(np.exp(self.log_probability(tags))), tags)]
        self._require(N_BEST, "labellings beside the best one")
        found = self.structure.n_best_of_all(self.joined.scores, n, clamp=self.joined.clamp)
        log_z = self._log_partition().sum()
        return [(min(1.0, float(np.exp(score - log_z))), self._tags(states)) for score, states in found]

    def sample(self, n: int, seed: int) -> States:
        self._require(SAMPLE, "samples")
        return super().sample(n, seed)

    def bounds(self) -> tuple[float, float]:
        return self.structure.bounds(self.joined.scores, clamp=self.joined.clamp)

    @property
    def _chains(self) -> Distribution:
        scores, clamp, _ = self.joined
        return self.decoding.distribution(scores, clamp, None)._replace(kept=self.kept)

    def _require(self, question: str, what: str) -> None:
        """Check that the inference supports a question. RAISES (ValueError): CRF366 if it does not."""
        if question not in self.structure.answers:
            inference, name = self.structure.inference, self.decoding.annotation.name
            fitting = ", ".join(that_answer(question)) or "nothing"
            raise ValueError(Errors.CRF366.format(name=name, inference=inference.name, question=what, fitting=fitting))


class RuledDistribution(TiedDistribution):
    """The distribution under the automata of rules. Its probabilities of spans are exact under the automata."""

    span_probabilities, likely_spans = Distribution.span_probabilities, Distribution.likely_spans


def that_answer(question: Optional[str]) -> list[str]:
    """The registered names of the inference methods that support a question."""
    return sorted(each().name for each in METHODS if question in each.answers)
