"""Decoding of models with ties between tokens: labellings, probabilities, and the losses that fit each inference method."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import Model

from spacy_crf.arrays import Joined, cut_document
from spacy_crf.errors import announcements
from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.inference.structure import ScoresOrWork
from spacy_crf.losses.clamped import LogLikelihood, MaxMargin, Perceptron, SoftmaxMargin
from spacy_crf.pipeline.annotation.entities import Annotation
from spacy_crf.pipeline.decoding import Decoding, Question, States
from spacy_crf.pipeline.distribution import Distribution, of_doc
from spacy_crf.pipeline.prediction import CRFPipe
from spacy_crf.pipeline.probabilities import Batch
from spacy_crf.schemes import Segments
from spacy_crf.types import ChainScores, Clamp, Floats, Path

from ..errors import Errors, Warnings
from ..local_losses import BesagPseudoLikelihood, Piecewise, SampledLikelihood, no_chain
from .belief_propagation import BeliefPropagation
from .dual_decomposition import DualDecomposition
from .gibbs import Gibbs
from .graph_cut import GraphCut
from .junction_tree import JunctionTree
from .linear_program import LinearProgram
from .losses import SentenceLikelihood
from .mean_field import MeanField
from .method import LOG_PARTITION, MAXIMUM, N_BEST, SAMPLE, WALK, Inference
from .scores import TiedScores, TiedWork, Ties
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
# The result that each loss needs from the inference
_ASKED: dict[type, str] = {
    SentenceLikelihood: _NOTHING,
    BesagPseudoLikelihood: _NOTHING,
    Piecewise: _NOTHING,
    LogLikelihood: LOG_PARTITION,
    SoftmaxMargin: LOG_PARTITION,
    Perceptron: MAXIMUM,
    MaxMargin: MAXIMUM,
    SampledLikelihood: WALK,
}


class DecodedTies(TiedChains):
    """Chains with ties as a component predicts by them: the best labelling is that of independent chains if the inference decodes
    these. Results that have not converged are announced.

    name (str): The component.
    """

    def __init__(self, inference: Inference, name: str):
        super().__init__(inference)
        self.name = name

    def best(self, work: TiedWork) -> Path:
        """The best labelling, with a warning if the inference has not converged."""
        # The messages of ties are in the emissions of these chains
        if self.inference.decodes_chains and work.tied is not None:
            return self.chain.viterbi(self.as_chains(work), clamp=work.clamp)
        path = super().best(work)
        self.inference.warn_unconverged(self.name)
        return path

    def marginals(self, scores: ScoresOrWork, *, clamp: Optional[Clamp] = None) -> Floats:
        """Marginals, with a warning if the inference has not converged."""
        marginals = super().marginals(scores, clamp=clamp)
        self.inference.warn_unconverged(self.name)
        return marginals

    def as_chains(self, scores: ScoresOrWork, *, clamp: Optional[Clamp] = None) -> ChainScores:
        """Chains that approximate the graph, with a warning if the inference has not converged."""
        chains = super().as_chains(scores, clamp=clamp)
        self.inference.warn_unconverged(self.name)
        return chains


class TiedDecoding(Decoding):
    """Decoding of chains with ties.

    Labellings and marginals come from the whole graph, and so do n-best lists and samples if the inference supports them.
    Probabilities of spans come from independent chains, which approximate the graph by adding the messages of ties to the
    emissions. Rules without memory hold in the graph. Under other rules, a junction tree is exact if its tables have room for the
    rules' automata, and dual decomposition searches the best labelling; otherwise the independent chains are used.
    """

    structure: DecodedTies

    def __init__(self, model: Model, annotation: Annotation):
        super().__init__(model, annotation)
        self.chains = Decoding(model, annotation)  # decoding of the independent chains
        self.chains.structure = self.chains.searched = self.chains.explained = self.explained = LinearChain()
        # Labellings come from the graph, probabilities of spans from the chains
        self.structure = self.searched = DecodedTies(self.structure.inference, annotation.name)
        self._has_warned_of_rules = False
        model.attrs["label_of"] = self.label_of_states - self.label_of_states.min(initial=0)

    @property
    def inference(self) -> Inference:
        """The inference by which the component predicts."""
        return self.structure.inference

    @property
    def batches(self) -> "type[TiedBatch]":
        """The class of batches that answer for Docs with ties."""
        return TiedBatch

    def best_with_probabilities(self, scores: TiedScores, clamp: Optional[Clamp]) -> tuple[States, Floats]:
        """The best tags, and the probabilities of their spans by chains."""
        chains = self.structure.as_chains(scores, clamp=clamp)
        if self.inference.decodes_chains:
            return self.chains.best_with_probabilities(chains, clamp)
        tags = self.best_tags(scores, clamp)
        return tags, self.explained.span_probabilities(
            chains, self.spans, self.segments(tags, np.asarray(scores.starts)), clamp=clamp
        )

    def expected(self, scores: TiedScores, worth: dict[str, Floats]) -> TiedScores:
        """Without ties, since the worth of a tag does not depend on other tokens."""
        return super().expected(scores, worth)._replace(ties=Ties.none())

    def decode(self, rules: Any, documents: "Documents", doc_starts: NDArray[np.int64], kept: Any = None) -> "Decoded":
        """The best labelling of each Doc under rules: in the graph where the inference can keep them, else in chains."""
        scores = documents.scores
        clamp = documents.clamp
        if self.inference.decodes_chains or scores.ties.is_empty:
            chains = self.structure.as_chains(scores, clamp=clamp)
            return super().decode(rules, documents._replace(scores=chains), doc_starts, kept)
        from spacy_crf.constraints.decoding import decode_by_masks

        from .rules import search

        rules = rules.upto(int(np.diff(doc_starts).max(initial=0)))
        # Rules without memory hold by masks; only Docs whose best labelling breaks another rule are searched
        decoded, breaking = decode_by_masks(self.structure, rules, documents, doc_starts, kept)
        for d in breaking:
            tokens = slice(int(doc_starts[d]), int(doc_starts[d + 1]))
            of_doc = rules.upto(tokens.stop - tokens.start)
            document = documents.at(tokens)
            chains = document._replace(scores=self.structure.as_chains(document.scores, clamp=document.clamp))
            # The labelling that breaks a rule is a good beginning of the search
            is_known = of_doc is rules and (kept is None or d not in kept.instead)
            begin = decoded.tags[tokens].copy() if is_known else None
            places = None
            if kept is not None:
                places = kept.instead.get(d, kept.places)
            inference = self.inference if self.inference.keeps_rules else None
            answer, is_of_chains = search(inference, of_doc, document, chains, begin, places)
            decoded.take(d, tokens, answer)
            if is_of_chains:
                self.warn_of_rules()
        return decoded

    def warn_of_rules(self) -> None:
        """Warn once that chains answer under some rules."""
        if not self._has_warned_of_rules:
            self._has_warned_of_rules = True
            message = Warnings.CRFW607.format(name=self.annotation.name, inference=self.inference.name)
            announcements.warning(message)


class TiedBatch(Batch):
    """Labellings of several Docs with ties. Probabilities are those of chains, unless a junction tree or no rule is asked."""

    _decoding: TiedDecoding
    scores: TiedScores
    _clamp: Optional[Clamp]

    def __init__(self, question: Question):
        super().__init__(question)
        if self._is_exact:
            self._joins_sequences = True  # under rules, each Doc has a junction tree

    @cached_property
    def _of_chains(self) -> Batch:
        """The Docs as independent chains."""
        chains = self._decoding.structure.as_chains(self.scores, clamp=self._clamp)
        parts = replace(self.parts, decoding=self._decoding.chains)
        found = Batch(self.question._replace(parts=parts, scores=chains))
        found._relaxed = self._relaxed
        return found

    @property
    def _is_exact(self) -> bool:
        return isinstance(self._decoding.inference, JunctionTree) and not self.scores.ties.is_empty

    def by(self, scores: TiedScores, d: Optional[int]) -> "Union[Distribution, TiedDistribution]":
        """The distribution of Doc d, in the graph or by chains; of all Docs by chains."""
        if d is None:
            return self._of_chains.distribution()
        tokens = slice(int(self._bounds[d]), int(self._bounds[d + 1]))
        clamp: Any = self._clamp  # of a chain, as ties have no segments
        if self._rules is None or self._is_exact:
            of_doc: Any = cut_document(scores, clamp, tokens)
            found = self._under_rules(d, tokens, *of_doc)
            if found is not None:
                return found
        return self._of_chains.distribution(d)

    def _under_rules(
        self, d: int, tokens: slice, scores: TiedScores, clamp: Optional[Clamp]
    ) -> "Optional[TiedDistribution]":
        """The distribution over the labellings of a Doc under its rules; None if chains stand for it, since it has no ties or
        no table has room for the rules' automata."""
        from .rules import joined, under

        decoding = self._decoding
        # Automata of rules become states of the graph's chain, so probabilities respect the rules
        automata = frozenset()
        structure = None
        if scores.ties.is_empty:
            return None
        of_doc = Joined(scores, clamp, np.arange(len(scores.emissions)))
        if self._rules is not None:
            rules = self._rules.upto(tokens.stop - tokens.start)
            kept = self._kept_rules(d)
            self._warn_of_ignored(rules)
            scores = rules.apply(scores, self._facts.at(tokens), kept)
            ruled = joined(scores, clamp)
            automata = rules.fitting & rules.binding(kept, len(ruled.scores.emissions))
            of_doc = ruled if automata else of_doc._replace(scores=scores)
        if automata:
            structure = under(decoding.inference, rules, automata, of_doc)
            if structure is None:
                decoding.warn_of_rules()
                return None
        size = len(scores.first)
        starts = np.asarray(scores.starts)
        return TiedDistribution(Distribution(decoding, structure or decoding.structure, of_doc, size, starts))


@dataclass(frozen=True)
class TiedDistribution:
    """The distribution over the labellings of one Doc with ties, with the methods of `Distribution`.

    main (Distribution): By a structure with ties. Under the automata of rules it gives the probabilities of spans too.
    """

    main: Distribution

    @property
    def starts(self) -> NDArray[np.int64]:
        """Bounds of the sequences, see `Distribution`."""
        return self.main.starts

    @property
    def joined(self) -> Joined:
        """The scores of the Doc, see `Distribution`."""
        return self.main.joined

    @property
    def structure(self) -> Any:
        """The structure that answers, under rules one of their automata."""
        return self.main.structure

    def _replace(self, **changes: object) -> "TiedDistribution":
        """The distribution with other fields of `main`."""
        return TiedDistribution(self.main._replace(**changes))

    def marginals(self) -> Floats:
        """Probability of each tag at each token, in the graph: float64[T, S]."""
        return self.main.marginals()

    def worth(self) -> dict[str, Floats]:
        """Expected use of each score, by its name."""
        return self.main.worth()

    def log_probability(self, tags: States) -> float:
        """Log probability of a labelling (int32[T]) in the graph."""
        return self.main.log_probability(tags)

    def certainties(self, segments: Segments) -> dict[str, Floats]:
        """Probabilities of spans (float64[N]), by their name."""
        return {"crf_prob": self.span_probabilities(segments)}

    def span_probabilities(self, segments: Segments) -> Floats:
        """Probabilities of spans: float64[N]; without rules those of chains."""
        return self._chains.span_probabilities(segments)

    def likely_spans(self, min_prob: float) -> tuple[Segments, Floats]:
        """Spans of at least some probability, and their probabilities; without rules those of chains."""
        return self._chains.likely_spans(min_prob)

    def n_best(self, n: int) -> list[tuple[float, States]]:
        """The n best labellings of the Doc with their probabilities. RAISES (ValueError): CRF366 if the inference has none."""
        scores, clamp, _ = self.joined
        if n == 1 and N_BEST not in self.structure.answers:
            tags = self.main.decoding.best_tags(scores, clamp)
            return [(float(np.exp(self.log_probability(tags))), tags)]
        self._require(N_BEST, "labellings beside the best one")
        found = self.structure.n_best_of_all(scores, n, clamp=clamp)
        # P(y) = exp(score(y) - log Z), where the sequences' log partitions are added up
        log_z = self.structure.log_partition(scores, clamp=clamp).sum()
        return [(min(1.0, float(np.exp(score - log_z))), self.main.tags(states)) for score, states in found]

    def sample(self, n: int, seed: int) -> States:
        """Draw n labellings: int32[n, T]. RAISES (ValueError): CRF366 if the inference can't."""
        self._require(SAMPLE, "samples")
        return self.main.sample(n, seed)

    @property
    def _chains(self) -> Distribution:
        decoding: Any = self.main.decoding
        # Under automata the structure is a chain of its own, which knows spans
        if self.structure is not decoding.structure:
            return self.main
        scores, clamp, _ = self.joined
        chains = decoding.structure.as_chains(scores, clamp=clamp)
        return of_doc(decoding.chains, chains, clamp, None)._replace(kept=self.main.kept, starts=self.starts)

    def _require(self, question: str, what: str) -> None:
        """Check that the inference supports a question. RAISES (ValueError): CRF366 if it does not."""
        if question not in self.structure.answers:
            raise ValueError(
                Errors.CRF366.format(
                    name=self.main.decoding.annotation.name,
                    inference=self.structure.inference.name,
                    question=what,
                    fitting=", ".join(that_answer(question)) or "nothing",
                )
            )


def check_loss(model: Model, pipe: CRFPipe) -> None:
    """Check whether the inference of a model with ties answers what the loss of a component asks. RAISES (ValueError): CRF347,
    CRF353, CRF361, and CRF362 for rules in training."""
    kinds = type(pipe.loss).__mro__
    inference = model.attrs["node"].in_training.inference
    # The result that the loss needs from the inference, by its nearest base; None for other losses
    asked = next((_ASKED[kind] for kind in kinds if kind in _ASKED), None)
    answers = [_NOTHING, *sorted(inference.answers)]
    if asked not in answers:
        losses = [loss.__name__ for loss, question in _ASKED.items() if question in answers]
        message = Errors.CRF361.format(
            name=pipe.name,
            loss=type(pipe.loss).__name__,
            inference=inference.name,
            losses=", ".join(f"spacy_crf_lab.{name}.v1" for name in losses),
            inferences=", ".join(that_answer(asked)) or "none",
        )
        raise ValueError(message)
    if getattr(pipe.loss, "block", 1) > 1:
        # Blocks of tokens are summed along a chain, which ties leave
        raise no_chain(pipe.loss, f"the ties of '{pipe.name}'")
    templates = model.get_ref("cliques").attrs["templates"].values()
    # These losses have no terms for groups
    if asked == _NOTHING and any(template.edges == "group" for template in templates):
        raise ValueError(Errors.CRF353.format(name=pipe.name, loss=type(pipe.loss).__name__))
    # Rules in training are states of one chain; the ties connect several
    if pipe.rules_train:
        raise ValueError(Errors.CRF362.format(name=pipe.name))


def bounds(pipe: CRFPipe, doc: Doc, *, keep_annotation: bool = False) -> tuple[float, float]:
    """Lower and upper bound of the log partition of a Doc: the logarithm of the sum over all labellings of exp(score), which
    normalises probabilities.

    pipe (CRFPipe): The component. keep_annotation (bool): See `CRFPipe.marginals`.
    RAISES (ValueError): CRF352 for groups.
    """
    found: Any = pipe.distribution(doc, keep_annotation=keep_annotation)
    scores, clamp, _ = found.joined
    if isinstance(found, TiedDistribution):
        return found.structure.bounds(scores, clamp=clamp)
    log_z = float(found.structure.log_partition(scores, clamp=clamp).sum())
    return log_z, log_z


def that_answer(question: Optional[str]) -> list[str]:
    """The registered names of the inference methods that support a question."""
    return sorted(each().name for each in METHODS if question in each.answers)
