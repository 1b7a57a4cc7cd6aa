"""Labels of a text, from the features of all its tokens: a log-linear model of one label or of several, or naive Bayes.

The output of a model of one label is ``TextScores``: a chain of a single state for each text, so every loss and optimizer of
linear chains can train it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import Model, Optimizer

from .. import checks
from ..errors import Errors
from ..features.doc_batch import TEXT, TOKEN, DocBatch, UnitRows
from ..inference.independent_labels import IndependentLabels, LabelSetScores
from ..inference.linear_chain import TextScores, TextSoftmax
from ..types import Bools, Floats, Ints
from .emissions import Emissions, check_emissions
from .linear_chain import ChainNode
from .node import AnnotatedDocs, Batches, Node, Traits, read_params, write_param
from .sparse import SparseNode
from .structure import SharedScores, build
from .table import Table


class Reasons(NamedTuple):
    """Scores of the labels of D texts, with and without each of their U units (tokens or sentences), for explanations."""

    scores: Floats  # [D, Y] of the labels
    units: UnitRows
    left_out: Floats  # [U, Y] scores of the labels of the unit's text, without the features of the unit
    are_odds: bool = False  # whether scores are the log-odds of labels, which do not exclude each other
    further: Optional[Callable[[Ints], dict[str, Floats]]] = (
        None  # further numbers of units, from the label of each text
    )

    def of_units(self, labels: Ints) -> dict[str, Floats]:
        """Numbers that explain each unit's part in the label of its text.

        labels (int64[D]): The label of each text.
        RETURNS (dict[str, float64[U]]): "evidence", the log-odds of the label that are lost without the unit, and further arrays.
        """
        text_of = np.repeat(np.arange(len(labels)), np.diff(self.units.texts))  # [U]
        label_of = labels[text_of]  # [U]
        if self.are_odds:
            odds = self.scores[text_of, label_of]
            without_unit = self.left_out[np.arange(len(text_of)), label_of]
        else:
            odds = _log_odds(self.scores, labels)[text_of]
            without_unit = _log_odds(self.left_out, label_of)
        further = {} if self.further is None else self.further(labels)
        return {"evidence": odds - without_unit, **further}


def _log_odds(scores: Floats, labels: Ints) -> Floats:
    """Log-odds of one label (`labels`, int64[N]) for each row of scores (float64[N, Y]): float64[N]."""
    # log p(label) - log p(any other label) = score - logsum of the other scores
    rows = np.arange(len(scores))
    others = scores.copy()
    others[rows, labels] = -np.inf
    return scores[rows, labels] - np.logaddexp.reduce(others, axis=1)


class OfTexts(Node):
    """Mixin for the nodes of models whose sequences are texts."""

    traits: Traits
    several = False  # whether a text may have several labels

    def check_fit(self, model: Model, pipe: Any, optimizer: Optional[Optimizer]) -> None:
        """Check the labels and the loss of the component `pipe` of `model`, with any `optimizer`.

        RAISES (ValueError): CRF480 if only one of model and component allows a text several labels; CRF482 for a loss with costs,
            if labels do not exclude each other.
        """
        super().check_fit(model, pipe, optimizer)
        multilabel = pipe.cfg["multilabel"]
        if self.several != multilabel:
            raise ValueError(
                Errors.CRF480.format(
                    name=pipe.name,
                    model=model.name,
                    what="several labels" if self.several else "one label",
                    asked=multilabel,
                )
            )
        if self.several and (pipe.loss.cost or pipe.loss.label_weights):
            raise ValueError(
                Errors.CRF482.format(
                    name=pipe.name,
                    loss=type(pipe.loss).__name__,
                    reason="leave out its cost and label_weights: a label is present or absent. Thresholds weigh mistakes",
                )
            )

    def possible(self, model: Model) -> SharedScores:
        """Masks of the parameters of `model`: all scores are possible."""
        return dict.fromkeys(self.traits.params, np.True_)

    def reasons(self, model: Model, docs: DocBatch) -> Reasons:
        """Scores from which explanations compute the evidence of units.

        model (Model): The model.
        docs (DocBatch): The texts.
        """
        raise NotImplementedError

    def rows(self, docs: DocBatch) -> UnitRows:
        """The units of Docs that have scores.

        docs (DocBatch): The Docs.
        """
        return UnitRows.of(self.traits.unit, docs.sequence_starts(), docs.bounds)

    def starts(self, docs: DocBatch) -> Ints:
        """Where the rows of scores of each text of `docs` start."""
        return self.rows(docs).texts

    def layer_batch(self, batch: AnnotatedDocs) -> AnnotatedDocs:
        """The `batch` of texts as a batch of their tokens."""
        return at_tokens(batch, batch.allowed)


def at_tokens(batch: AnnotatedDocs, allowed: Bools) -> AnnotatedDocs:
    """A batch of texts as a batch of their tokens.

    batch (AnnotatedDocs): The texts.
    allowed (bool[D, C]): Columns that each text, and so each of its tokens, allows.
    """
    docs = DocBatch.of(batch.docs)
    lengths = np.diff(docs.bounds)
    return batch._replace(
        allowed=np.repeat(allowed, lengths, axis=0),
        unset=np.repeat(batch.unset, lengths),
        starts=docs.sequence_starts(),
    )


class TextNode(OfTexts, ChainNode):
    """Node of a log-linear model of texts: each label has a bias besides the scores of features."""

    gives = TextScores
    traits = ChainNode.traits._replace(labelled="texts")
    structure = TextSoftmax()

    def join(self, outputs: tuple[Emissions, ...], shared: SharedScores) -> TextScores:
        """emissions[b, j] = sum over the tokens of text b of the `outputs`; `first`, one of the `shared` scores, holds the bias
        of each label.
        """
        return TextScores(*super().join(outputs, shared))

    def reasons(self, model: Model, docs: DocBatch) -> Reasons:
        """Scores of the labels of `docs` by `model`, with and without each token."""
        scores = model.predict(docs)
        units, token_scores = scores_of_tokens(model, docs)
        label_scores = scores.emissions + scores.first
        left_out = np.repeat(label_scores, np.diff(docs.bounds), axis=0) - token_scores
        return Reasons(label_scores, units, left_out)

    def init_weights(self, model: Model, corpus: Batches, n_states: int, is_new: bool) -> None:
        """Give each of the `n_states` biases of `model` a weight. `corpus` and `is_new` are not used."""
        model.attrs["observed"] = self._possible_steps(model, n_states).astype(np.uint8)

    def _possible_steps(self, model: Model, n_states: int) -> Bools:
        """Texts have biases, which are the firsts, and neither transitions nor lasts: bool[S + 2, S]."""
        possible = np.zeros((n_states + 2, n_states), dtype=bool)
        possible[-2] = True
        return possible


class LabelSetNode(TextNode):
    """Node of a log-linear model of texts with any number of labels: a logistic regression for each label."""

    gives: type = LabelSetScores
    structure = IndependentLabels()
    several = True
    traits = TextNode.traits._replace(is_online=False, no_shares_of_texts="its labels do not exclude each other")

    def layer_batch(self, batch: AnnotatedDocs) -> AnnotatedDocs:
        """The batch with the labels that the annotation says are present."""
        present, absent = np.hsplit(batch.allowed, 2)
        return at_tokens(batch, present & ~absent)

    def join(self, outputs: tuple[Emissions, ...], shared: SharedScores) -> LabelSetScores:
        """labels[b] = the score of each present label, from the `outputs` and the bias among the `shared` scores, then 0
        for absent ones.
        """
        [(scores, _, starts)] = outputs
        # A logistic regression: the score of an absent label is 0
        present = scores + shared["first"]
        return LabelSetScores(np.hstack([present, np.zeros(present.shape)]), starts)

    def part(self, d_scores: LabelSetScores, outputs: tuple[Emissions, ...]) -> tuple[tuple, SharedScores]:
        """Split `d_scores` into derivatives with respect to the `outputs` of the layer, and those with respect to the
        biases."""
        present, _ = np.hsplit(d_scores.labels, 2)
        return (Emissions(present, None, d_scores.starts),), {"first": present.sum(axis=0)}

    def reasons(self, model: Model, docs: DocBatch) -> Reasons:
        """Log-odds of the labels of `docs` by `model`, with and without each token."""
        odds, _ = np.hsplit(model.predict(docs).labels, 2)
        units, token_scores = scores_of_tokens(model, docs)
        left_out = np.repeat(odds, np.diff(docs.bounds), axis=0) - token_scores
        return Reasons(odds, units, left_out, are_odds=True)


def allow_several(model: object) -> None:
    """Let texts have several labels by a MaxEntText, whose labels are then independent. Other models stay as they are.

    model (object): The model.
    """
    if isinstance(model, Model) and type(model.attrs.get("node")) is TextNode:
        model.attrs["node"] = LabelSetNode()


def scores_of_tokens(model: Model, docs: DocBatch) -> tuple[UnitRows, Floats]:
    """The sum of the weights of each token's features.

    model (Model): A model of texts.
    docs (DocBatch): The texts.
    RETURNS (UnitRows, float64[U, Y]): The tokens, and the scores.
    """
    emissions = model.get_ref("emissions")
    features = emissions.attrs["node"].features(emissions)
    weights = read_params(emissions, features.tables)
    token_features = features.of_unit(TOKEN)
    units = UnitRows.of(TOKEN, docs.sequence_starts(), docs.bounds)
    found = token_features.look_up(docs)
    return units, token_features.score(found, token_features.slots(weights)).scores


def MaxEntText(emissions: Model[list[Doc], Emissions]) -> Model[list[Doc], TextScores]:
    """A log-linear model of the label of a text (Berger, Della Pietra & Della Pietra 1996): sums of the weights of its tokens'
    features. In a component with `multilabel` it is a logistic regression for each label, and labels are independent.

    emissions (Model): Sums of weights of features, from SparseEmissions or HashedEmissions.
    """
    check_text_emissions("MaxEntText", emissions, TEXT)
    return build("max_ent_text", TextNode(), {"emissions": emissions})


def check_text_emissions(owner: str, emissions: Model, unit: str) -> None:
    """Check emissions, and let them score the units of texts.

    owner (str): The architecture, for messages.
    emissions (object): The emissions.
    unit (str): The unit, one of `features.doc_batch.UNITS`.
    RAISES (ValueError): CRF020 for emissions without sparse features, or with weights of transitions.
    """
    check_emissions(owner, emissions)
    node = emissions.attrs["node"]
    checks.expect(
        isinstance(node, SparseNode),
        owner,
        "emissions",
        emissions.name,
        "sums of weights of features, from spacy_crf.SparseEmissions.v1 or spacy_crf.HashedEmissions.v1",
    )
    features = node.features(emissions)
    templates = [*map(str, features.feature_set.transitions)]
    checks.expect(not templates, owner, "transitions", templates, "empty: a text has no transitions between labels")
    features.unit = unit


# ------------------------------------------------------------------------------------------------------- naive Bayes


class NaiveBayesNode(TextNode):
    """Node of naive Bayes, which sets weights by counting and not by an optimizer."""

    traits = TextNode.traits._replace(
        meaning=("alpha",),
        counts="annotated",
        no_shares_of_texts="naive Bayes counts, and has no optimum",
    )

    def init_weights(self, model: Model, corpus: Batches, n_states: int, is_new: bool) -> None:
        """Set the weights to logarithms of probabilities.

        p(label) = (n(label) + alpha) / (n + alpha · Y), and p(feature | label) = (n(feature, label) + alpha) / (sum_f
        n(f, label) + alpha · F).

        model (Model): The model.
        corpus (Batches): The texts that are counted.
        n_states (int): Y.
        is_new (bool): Whether all weights are new; others stay.
        """
        super().init_weights(model, corpus, n_states, is_new)
        if not is_new:
            return
        alpha = model.attrs["alpha"]
        emissions = model.get_ref("emissions")
        table, n_texts, n_pairs = _count(emissions, corpus, model.get_dim("nO"))
        columns = table.pair_columns
        n_labels = np.bincount(columns, n_pairs, minlength=len(n_texts))  # [Y] sum_f n(f, label)
        # [W] log p(feature | label)
        log_likelihoods = np.log((n_pairs + alpha) / (n_labels + alpha * len(table.index))[columns])
        write_param(emissions, "states", log_likelihoods)
        log_priors = np.log((n_texts + alpha) / (n_texts.sum() + alpha * len(n_texts)))  # [Y] log p(label)
        write_param(model, "first", log_priors)


def _count(emissions: Model, corpus: Batches, n_labels: int) -> tuple[Table, NDArray, NDArray]:
    """Count in the texts of a corpus whose annotation allows a single label.

    RETURNS (Table, float64[Y], float64[W]): The table of the features, the number of texts with each label, and the count of each
        pair of feature and label.
    """
    features = emissions.attrs["node"].features(emissions)
    table = features.states
    n_texts = np.zeros(n_labels)
    n_pairs = np.zeros(table.n_weights)
    for batch in corpus():
        factors = np.ones(len(batch.docs)) if batch.weights is None else batch.weights
        has_one_label = batch.allowed.sum(axis=1) == 1
        label_counts = factors[:, np.newaxis] * (batch.allowed & has_one_label[:, np.newaxis])  # [D, Y]
        n_texts += label_counts.sum(axis=0)
        # The gradient for these numbers as derivatives adds them up at each feature of a text
        found = features.look_up(DocBatch.of(batch.docs))
        features.scatter(found, Emissions(label_counts, None, found.starts), {"states": n_pairs})
    return table, n_texts, n_pairs


def NaiveBayes(emissions: Model[list[Doc], Emissions], alpha: float = 1.0) -> Model[list[Doc], TextScores]:
    """Naive Bayes: given the label of a text, its features are independent. The weights follow from counts, for which
    `initialize` reads the training data once.

    emissions (Model): Emissions whose features are counted, from SparseEmissions. Each feature has a weight for every label.
    alpha (float): Number added to each count.
    """
    owner = "NaiveBayes"
    check_text_emissions(owner, emissions, TEXT)
    checks.expect(
        "possible_states" in emissions.attrs,
        owner,
        "emissions",
        emissions.name,
        "features that are counted: spacy_crf.SparseEmissions.v1",
    )
    emissions.attrs["possible_states"] = True
    alpha = checks.positive(owner, "alpha", alpha)
    return build("naive_bayes", NaiveBayesNode(), {"emissions": emissions}, alpha=alpha)
