"""Maximum entropy Markov models (McCallum, Freitag & Pereira 2000): each token chooses its tag by its features and by the one or
two tags before it.

    p(y | x) = prod_t exp(emissions[t, y_t] + transitions[y_(t-1), y_t]) / Z(t, y_(t-1))
    log Z(t, i) = log sum_j exp(emissions[t, j] + transitions[i, j])

The product is a chain again: log Z(t, i) is a score of state i at the token before, so the emissions of that chain are
emissions[t, i] - log Z(t + 1, i), and its log partition is 0. With two tags before, log Z(t, h, i) is a score of the step from h
to i. So prediction decodes as a chain, while training sums over the T choices along the annotation, in time O(T · S). Where the
annotation leaves tags open, training sums over the chain. The tag scheme limits the choices; the last one knows that it is last.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, Optional

import numpy as np
from spacy.tokens import Doc
from thinc.api import Model, Optimizer

from spacy_crf import arrays, checks
from spacy_crf.errors import cant_train
from spacy_crf.features.doc_batch import DocBatch
from spacy_crf.inference.higher_order import HigherOrder, HigherOrderWork
from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.inference.scaling import ChainWork
from spacy_crf.inference.structure import States, Structure
from spacy_crf.losses.clamped import ClampedLoss
from spacy_crf.models.emissions import Emissions, check_emissions
from spacy_crf.models.higher_order import HigherOrderNode
from spacy_crf.models.linear_chain import ChainNode
from spacy_crf.models.node import AnnotatedDocs
from spacy_crf.models.structure import Explained, SharedScores, StructureNode, TokenTerms, build, exact_weights
from spacy_crf.pipeline.prediction import CRFPipe
from spacy_crf.types import Clamp, Floats, Settings

from .kernels import memm as kernels

# ---------------------------------------------------------------------------------------------------------- structures


class LocalChoices(Structure):
    """Answers the questions of training for scores of choices, which are not normalised yet: log partitions are 0.

    ruled: The structure with the rules that hold in training, if any.
    """

    prepare: Callable[..., Any]

    def __init__(self, ruled: Any = None, *, threads: int = 1):
        super().__init__(threads=threads)
        self.ruled = ruled
        self.answers = self.answers if ruled is None else self.answers - {"path"}

    def normalised(self, scores: Any) -> Any:
        """The scores of a chain whose log partition is 0."""
        work = self.prepare(scores)
        opens, goes_on, normalizers = _places(work)
        kernels.every(work.choices, normalizers)
        # [T, pairs, S] log Z(t + 1, i) at the token of the state i
        behind = np.zeros((work.n_tokens, normalizers.shape[1], work.n_states))  # of the choices at the next tokens
        behind[:-1][goes_on] = normalizers[1:, :, :-1][goes_on]
        # The first choice of a sequence has a normalizer as well
        behind[opens, -1] += normalizers[opens, -1, -1:]
        local = work.scores._replace(emissions=_minus(work.scores.emissions, behind[:, -1]))
        return local if behind.shape[1] == 1 else local._replace(transitions=_minus(work.transitions, behind[:, :-1]))

    def expectations(
        self, scores: Any, *, clamp: Optional[Clamp] = None, weights: Optional[Floats] = None
    ) -> tuple[Floats, Any]:
        """0, and the derivative of 0: choices are normalised. With a clamp, sums over the labellings that it allows."""
        work = self.prepare(scores)
        if clamp is None and self.ruled is None:
            return np.zeros(work.n_sequences), arrays.zeros(work.original)
        ask = super().expectations if self.ruled is None else self.ruled.expectations
        # Partial annotation: sum over the allowed labellings of the normalised chain
        log_z, expected = ask(self.normalised(work), clamp=clamp, weights=weights)
        opens, goes_on, uses = _places(work)
        behind = np.zeros((work.n_tokens, uses.shape[1], work.n_states))
        steps = expected.transitions
        behind[:, -1] = expected.emissions
        if behind.shape[1] > 1:
            behind[~opens, -1] = 0.0
            behind[:, :-1] = steps
            steps = steps if arrays.per_position(work.original) else steps.sum(axis=0)
        uses[1:, :, :-1][goes_on] = behind[:-1][goes_on]
        uses[opens, -1, -1] = behind[opens, -1].sum(axis=1)
        found = work.original._replace(**{**arrays.named(expected), "transitions": steps})
        of_steps = np.zeros(work.choices.steps.shape)
        of_grams = getattr(found, "grams", np.zeros(0))
        kernels.learn_every(work.choices, uses, (found.emissions, of_steps, found.last, of_grams))
        found.transitions[...] += of_steps[:, :-1].reshape(steps.shape)
        found.first[:] += of_steps[:, -1].sum(axis=0)
        return log_z, found

    def differentiate_path(self, work: Any, states: States, weights: Floats) -> tuple[Floats, Floats, Any]:
        """0 for the log partitions, the log probabilities of a path, and the derivative of their weighted difference."""
        return np.zeros(work.n_sequences), *follow(work, work.choices, states, weights)


class LocalChain(LocalChoices, LinearChain):
    """Choices that depend on the tag before them."""

    class work(ChainWork):
        choices = cached_property(kernels.make_choices)


class LocalPairs(LocalChoices, HigherOrder):
    """Choices that depend on the two tags before them."""

    class work(HigherOrderWork):
        choices = cached_property(kernels.make_choices)


def _places(work: Any) -> tuple[Any, Any, Floats]:
    """Which tokens open a sequence (bool[T]), and which have a next one (bool[T - 1]); and room for normalizers, by the two tags
    before the choice: float64[T, 1 or S + 1, S + 1]."""
    opens, closes = arrays.ends(work.starts, work.n_tokens)
    pairs = work.n_states + 1 if hasattr(work.scores, "grams") else 1
    return opens, ~closes[:-1], np.zeros((work.n_tokens, pairs, work.n_states + 1))


def _minus(scores: Floats, normalizers: Floats) -> Floats:
    return np.where(normalizers > -np.inf, scores - normalizers, -np.inf)


def follow(work: Any, choices: kernels.Choices, states: States, weights: Floats) -> tuple[Floats, Any]:
    """Log probabilities of paths (float64[B]), and the derivative of the sum of -weights times them."""
    totals = np.empty(work.n_sequences)
    emissions = np.empty(choices.emissions.shape)
    last = np.zeros(work.n_states)
    steps = np.zeros(choices.steps.shape)
    grams = np.zeros(choices.grams.shape)
    kernels.follow(choices, states, weights, totals, (emissions, steps, last, grams))
    found = {"emissions": emissions, "last": last, "first": steps[:, -1].sum(axis=0)}
    found["transitions"] = steps[:, :-1].reshape(np.shape(work.original.transitions))
    return totals, work.original._replace(**found, **({"grams": grams} if "grams" in work.original._fields else {}))


# ----------------------------------------------------------------------------------------------------------- the models


def check_loss(pipe: CRFPipe) -> None:
    """RAISES (ValueError): CRF347 if the loss of a component is no sum over choices."""
    if not isinstance(pipe.loss, ClampedLoss) or not pipe.loss.smooth:
        what = f"the choices of '{pipe.name}'"
        reason = "it is no sum over choices that are normalised one by one"
        raise cant_train(pipe.loss, what, reason, "LogLikelihood or SoftmaxMargin")


class Normalising(ChainNode):
    """Joins the scores that prediction reads."""

    def join(self, outputs: tuple[Emissions, ...], shared: SharedScores) -> Any:
        """The normalised scores of the chain."""
        return LocalChain().normalised(super().join(outputs[:1], shared))


class Choosing(StructureNode):
    """Base of the nodes of models that choose tag by tag."""

    of_choices: type[LocalChoices]  # structure that sums over choices along the annotation

    @property
    def in_training(self) -> Structure:
        """The structure that sums over choices along the annotation."""
        return self.of_choices()

    def training_batch(self, model: Model, batch: AnnotatedDocs, name: str) -> AnnotatedDocs:
        """The batch, whose rules, if it has some, hold for choices."""
        return batch if batch.structure is None else batch._replace(structure=self.of_choices(batch.structure))

    def in_prediction(self, model: Model, scores: Any) -> Any:
        """The scores of a chain whose log partition is 0."""
        return self.of_choices().normalised(scores)

    def check_fit(self, model: Model, pipe: CRFPipe, optimizer: Optional[Optimizer]) -> None:
        """RAISES (ValueError): CRF347 for a loss that is no sum over choices."""
        check_loss(pipe)


class MEMMNode(Choosing, ChainNode):
    """Node of a model whose choices depend on the tag before."""

    of_choices = LocalChain

    traits = ChainNode.traits._replace(
        is_online=False,
        no_shares_of_texts="the normalizers of its choices are no sums over texts. The other kinds of explanations know them",
    )

    def explained(self, model: Model) -> Explained:
        """Explanations of normalised scores."""
        return Explained(Normalising(), exact_weights(model), terms=self._token_terms)

    def _token_terms(self, model: Model, outputs: tuple[Emissions, ...], docs: DocBatch) -> TokenTerms:
        """The normalizer of the next choice, which is subtracted from the score of each tag. It grows with the number of tags
        that may follow."""
        weights = {name: np.asarray(model.get_param(name), dtype=np.float64) for name in self.traits.params}
        raw = self.join(outputs, self.potentials(model, weights))
        paid = LocalChain().normalised(raw).emissions - raw.emissions
        return TokenTerms(["normalizer"] * len(paid), np.arange(len(paid)), paid, "normalizer")


class PairsNode(Choosing, HigherOrderNode):
    """Node of a model whose choices depend on the two tags before."""

    of_choices = LocalPairs


def MEMM(
    emissions: Model[list[Doc], Emissions], order: int = 1, possible_transitions: bool = False
) -> Model[list[Doc], Any]:
    """A maximum entropy Markov model: each token chooses its tag by its features and by the tags before it.

    emissions (Model): From SparseEmissions, HashedEmissions or Tok2VecEmissions.
    order (int): Number of tags before a token that its choice depends on, 1 or 2.
    possible_transitions (bool): Whether all pairs (with order 2, also triples) of tags that the scheme allows get a weight, not
        only those seen in training.
    """
    owner = "MEMM"
    check_emissions(owner, emissions)
    order = checks.count(owner, "order", order, most=2)
    possible = checks.flag(owner, "possible_transitions", possible_transitions)
    layers = {"emissions": emissions}
    if order == 1:
        return build("memm", MEMMNode(), layers, possible_transitions=possible)
    grams: Settings = {"keep": None, "keys": None, "parts": None, "thresholds": None}
    weighed = {"possible_transitions": possible, "transitions_from": "possible" if possible else "seen"}
    return build("memm", PairsNode(), layers, order=order, **weighed, **grams)
