"""The training texts behind a decision: the share of each text in it, and the effect of leaving a text out of training.

*Shares.* At the optimum of the objective with l2 the derivative is 0, so every weight is a sum over the texts (Yeh et al. 2018,
"Representer Point Selection for Explaining Deep Neural Networks"):

    2 · l2 · w_f = sum_i (observed_f,i - expected_f,i) - l1 · sign(w_f)

A contrast is a sum of weights, each times its uses D_f. So text i has the share sum_f D_f (observed - expected)_f,i / (2 · l2):
the scores that the weights D give the text, times the derivative of its loss with respect to its scores.

*Effects.* Training without a text changes a decision by more than the text's share. To avoid a new training, one step of Newton's
method approximates it, for the objective without the text, from the weights w that were learned with it:

    (H - H_i + 2 l2) x = g_i        weights without text i: w + x

g_i is the first derivative of the text's loss, H_i its second derivative, and H the second derivative for all texts. Subtracting
H_i matters: few other texts have most features of a text, so with H alone (Koh & Liang 2017) effects come out three to nine times
too small. Conjugate gradients (Hestenes & Stiefel 1952) solve the equations; they need only products H v, which are differences
of gradients. With l1, weights that are 0 stay 0, and weights that would change their sign become 0.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Optional, Union

import numpy as np
from spacy.training import Example, validate_examples
from thinc.api import Model

from .. import arrays, checks
from ..errors import Errors
from ..features.doc_batch import DocBatch
from ..inference.chain_set import evaluate
from ..models.node import AnnotatedDocs
from ..models.objective import CorpusObjective
from ..models.sparse import FoundFeatures, SparseFeatures, SparseNode
from ..pipeline.prediction import CRFPipe
from ..types import Floats, PathScores, ScoreArrays
from .comparison import Comparison, LabelComparison
from .contributions import difference, rows_between, uses_between_labels
from .explanation import Explanation, Row, shorter

_LARGEST_ERROR = 0.01  # of the sum of all shares, relative to the contrast
_PRECISION = 0.05  # error of a solution relative to the right side: the Newton step itself is less exact
_MOST_PRODUCTS = 50
_SMALL = 1e-5  # largest change of a weight for differences of gradients


def texts(
    comparison: Comparison,
    corpus: Optional[Iterable[Example]] = None,
    l2: Optional[float] = None,
    l1: Optional[float] = None,
    effect: Union[bool, int] = False,
) -> Explanation:
    """Explain by training texts: the rows are texts. They add up to the contrast as far as training has converged.

    corpus (Iterable[Example]): All texts of the training.
    l2 (float), l1 (float): Regularization of the training; by default that of the component's own optimizer.
    effect (Union[bool, int]): Number of texts for which to compute the effect, the change of the log-odds without the text: those
        with the largest effects; True for all texts.
    RAISES (ValueError): CRF840 if the model has no shares of texts, CRF834 if it has no effects.
    """
    pipe = comparison.pipe

    def refuse(reason: str) -> ValueError:
        return ValueError(Errors.CRF840.format(name=pipe.name, reason=reason))

    reason = _why_no_shares(comparison)
    if reason is not None:
        raise refuse(reason)
    if corpus is None:
        raise refuse("give the texts of the training: corpus=examples")
    examples = list(corpus)
    validate_examples(examples, "explain")
    n_wanted = effect * len(examples) if isinstance(effect, bool) else effect
    n_effects = min(checks.count(pipe.owner, "effect", n_wanted, least=0, most=checks.ANY), len(examples))
    optimizer = pipe.learner.optimizer
    l2 = checks.number(pipe.owner, "l2", getattr(optimizer, "l2", 0.0) if l2 is None else l2)
    l1 = checks.number(pipe.owner, "l1", getattr(optimizer, "l1", 0.0) if l1 is None else l1)
    if not l2:
        raise refuse("only with l2 > 0 weights are sums over texts. Give the l2 and l1 of [training.optimizer]")
    left_out = LeftOut(pipe, examples, l2, l1) if n_effects else None
    if isinstance(comparison, LabelComparison):
        target = comparison.margin()
        uses_of_scores = uses_between_labels(comparison, comparison.measure())
        rows_of_weights = comparison.reading.rows(uses_of_scores)
    else:
        ours, theirs, target = comparison.best()
        uses_of_scores = comparison.extend_to_doc(difference(comparison, ours, theirs))
        rows_of_weights = rows_between(comparison, ours, theirs)
    # D, the uses of each weight in the contrast. At the optimum, only weights other than 0 are the sums over texts
    uses = Direction.of_scores(pipe, pipe.batch_class([comparison.doc]), uses_of_scores).without_zeros()
    of_rules = sum(row.contribution for row in rows_of_weights if row.feature.startswith("rule "))
    # No text contributes the rules and the second term of w_f, - l1 · sign(w_f)
    base = of_rules - l1 * uses.signs() / (2 * l2)
    # share[i] = sum_f D_f (observed - expected)_f,i / (2 l2)
    shares = np.array([slope for _, slope in uses.slopes(examples)]) / (-2 * l2)
    error = base + shares.sum() - target
    scale = sum(abs(row.contribution) for row in rows_of_weights)
    if abs(error) > _LARGEST_ERROR * max(scale, 1e-9):
        raise refuse(
            f"they add up to {target + error:.4f}, but the contrast is {target:.4f}. Give exactly the texts of the training, its "
            f"l2 and l1 (here {l2:g} and {l1:g}), and train until L-BFGS stops by itself, with a smaller delta"
        )
    totals = {"score": target}
    effects = {}
    if left_out is not None:
        odds, effects = effects_of_texts(comparison, left_out, n_effects)
        totals |= comparison.probability(odds)
    rows = []
    for n, (example, share) in enumerate(zip(examples, shares.tolist())):
        if share or n in effects:
            text = shorter(" ".join(example.reference.text.split()))
            rows.append(
                Row(
                    feature=f"#{n} {text}",
                    template="text",
                    offset=None,
                    token=None,
                    end=None,
                    tags=(),
                    value=1.0,
                    weight=share,
                    use=1.0,
                    contribution=share,
                    effect=effects.get(n),
                )
            )
    return comparison.explanation("texts", target, base, rows, totals)


def _why_no_shares(comparison: Comparison) -> Optional[str]:
    """The reason why the weights of a model are not sums over the texts; None if they are."""
    pipe = comparison.pipe
    traits = pipe.model.attrs["node"].traits
    if traits.no_shares_of_texts is not None:
        return traits.no_shares_of_texts
    if comparison.compares_labels and "path" not in pipe.decoding.structure.answers:
        return "several paths spell a label, so that scores are not sums of weights"
    if not pipe.is_linear or not all(isinstance(layer.attrs["node"], SparseNode) for layer in pipe.model.layers):
        return "it has scores other than those of sparse features, whose weights are sums over texts"
    return None


def effects_of_texts(comparison: Comparison, left_out: "LeftOut", n: int) -> tuple[float, dict[int, float]]:
    """Compute the log-odds, and their change without each of the n texts with the largest effects.

    RETURNS (float, Dict[int, float]): The log-odds, and the changes by the number of the text.
    """
    likelihoods = comparison.measure()
    effects = {}
    uses = comparison.extend_to_doc(comparison.uses(likelihoods, likelihoods.shares()))
    for number in left_out.influential(Direction.of_scores(comparison.pipe, comparison.reading.docs, uses), n):
        change = comparison.cut(left_out.change(number).scores(comparison.reading.docs))
        without_text = comparison.measure(arrays.added(comparison.scores, change))
        effects[number] = without_text.odds - likelihoods.odds
    return likelihoods.odds, effects


# ----------------------------------------------------------------------------------------------- without single texts


class LeftOut:
    """Computes the weights after training without single texts.

    examples (List[Example]): All texts of the training.
    l2 (float), l1 (float): Regularization of the training.
    RAISES (ValueError): CRF834 if the objective has no second derivatives, or several optima.
    """

    def __init__(self, pipe: CRFPipe, examples: list[Example], l2: float, l1: float):
        self._pipe = pipe
        learner = pipe.learner
        reason: Optional[str] = None
        if not getattr(learner.loss, "smooth", True):
            reason = f"its loss {type(learner.loss).__name__} has no second derivatives"
        elif not learner.model.attrs["node"].traits.names_states:
            reason = "annotation does not name its states, and training anew may end at another optimum"
        if reason is not None:
            raise ValueError(Errors.CRF834.format(name=learner.name, reason=reason))
        self._examples = examples
        self._l2 = l2
        self._l1 = l1
        self._objective = self._make_objective(learner.training.blocks(examples))
        self._weights = self._objective.weights()
        self._gradient = self._objective.evaluate(self._weights)[1]
        # [W] 1 for weights that may change, 0 for others: with l1, weights that are 0 stay 0
        self._free = np.ones(len(self._weights)) if not l1 else (self._weights != 0.0).astype(np.float64)

    def _make_objective(self, blocks: Iterable[list[Example]]) -> CorpusObjective:
        """The objective of some texts, without its penalties."""
        learner = self._pipe.learner
        return CorpusObjective(learner.model, learner.loss, (learner.training.data(block) for block in blocks))

    def influential(self, uses: "Direction", n: int) -> list[int]:
        """Find the numbers of the n texts with the largest effects on a score.

        uses (Direction): The derivative of the score with respect to the weights.
        """

        def gradient(weights: Floats) -> Floats:
            return self._objective.evaluate(weights)[1]

        def product(v: Floats) -> Floats:
            return self._times_hessian(v, self._free, gradient, self._gradient)

        # The effect of text i is uses · H⁻¹ g_i, approximated by H of all texts: then one solution H⁻¹ uses serves all texts
        step = _solve(product, self._free * self._objective.join(uses.of_layers, uses.shared))
        slopes = [abs(slope) for _, slope in self._direction(step).slopes(self._examples)]
        return np.argsort(slopes)[::-1][:n].tolist()

    def change(self, number: int) -> "Direction":
        """Compute the change of the weights without a text."""
        return self._direction(self._step(number))

    def _step(self, number: int) -> Floats:
        """The Newton step x of (H - H_i + 2 l2) x = g_i for text i."""
        objective_of_text = self._make_objective([[self._examples[number]]])
        weights = self._weights
        free = self._free
        gradient_of_text = objective_of_text.evaluate(weights)[1]

        def gradient(weights: Floats) -> Floats:
            return self._objective.evaluate(weights)[1] - objective_of_text.evaluate(weights)[1]

        def product(v: Floats) -> Floats:
            return self._times_hessian(v, free, gradient, self._gradient - gradient_of_text)

        step = _solve(product, free * gradient_of_text)
        if self._l1:
            # Weights that would change their sign become 0; then the equations are solved again for the other weights
            becomes_zero = (weights + step) * weights <= 0.0
            fixed = np.where(becomes_zero, -weights, 0.0)
            rest = gradient_of_text - product(fixed)
            free = np.where(becomes_zero, 0.0, free)  # `product` reads this, too
            step = fixed + _solve(product, free * rest)
            step = np.where((weights + step) * weights < 0.0, -weights, step)
        return step

    def _times_hessian(
        self, v: Floats, free: Floats, gradient: Callable[[Floats], Floats], gradient_here: Floats
    ) -> Floats:
        """Multiply a vector by H + 2 l2, where H has the second derivatives of an objective at the learned weights.

        v (float64[W]): The vector.
        free (float64[W]): 1 for weights that may change, 0 for others.
        gradient (Callable): The gradient of the objective without penalties, by weights.
        gradient_here (float64[W]): The gradient at the learned weights.
        """
        size = np.abs(v).max()
        if size == 0.0:
            return v
        # H v ≈ (g(w + e v) - g(w)) / e, with e so small that no weight changes by more than _SMALL
        small = _SMALL / size
        return free * (gradient(self._weights + small * v) - gradient_here) / small + 2 * self._l2 * v

    def _direction(self, step: Floats) -> "Direction":
        return Direction(self._pipe, *self._objective.split(step))


def _solve(product: Callable[[Floats], Floats], right: Floats) -> Floats:
    """Solve A x = right by conjugate gradients, to `_PRECISION`.

    product (Callable): Multiplies a vector by A.
    """
    x = np.zeros_like(right)
    residual = right.copy()
    direction = right.copy()
    size = residual @ residual
    enough = _PRECISION**2 * size
    for _ in range(_MOST_PRODUCTS):
        if size <= enough:
            break
        image = product(direction)
        curvature = direction @ image
        if curvature <= 0.0:
            break  # with partial annotation the loss may be concave
        step = size / curvature
        x += step * direction
        residual -= step * image
        size_before = size
        size = residual @ residual
        direction = residual + size / size_before * direction
    return x


# --------------------------------------------------------------------------------------------- directions of weights


class Direction:
    """A direction in the space of a model's weights, for models whose scores are sums of weights.

    of_layers (Dict[str, float64[W]]): Changes of the weights of features, by table.
    shared (Dict[str, Floats]): Changes of the weights that all tokens share.
    """

    def __init__(self, pipe: CRFPipe, of_layers: dict[str, Floats], shared: dict[str, Floats]):
        self._pipe = pipe
        self._node = pipe.model.attrs["node"]
        self.of_layers = of_layers
        self.shared = shared

    @classmethod
    def of_scores(cls, pipe: CRFPipe, docs: DocBatch, derivative: ScoreArrays) -> "Direction":
        """Compute the uses of each weight in a sum of scores of texts.

        derivative (ScoreArrays): The uses of each score in the sum.
        """
        model = pipe.model
        node = model.attrs["node"]
        found = _look_up(model, docs)
        weights, _ = _learned(model)
        uses_of_outputs, uses_of_shared = node.part(derivative, _outputs(model, found, weights))
        uses_of_layers = {}
        for layer, features, uses_of_output in zip(model.layers, found, uses_of_outputs):
            store = _features(layer)
            uses = {name: np.zeros(table.n_weights) for name, table in store.tables.items()}
            store.scatter(features, uses_of_output, uses)
            uses_of_layers.update(uses)
        return cls(pipe, uses_of_layers, uses_of_shared)

    def without_zeros(self) -> "Direction":
        """The direction without the weights whose learned value is 0."""
        of_layers, shared = _learned(self._pipe.model)
        return Direction(
            self._pipe,
            of_layers={name: np.where(w != 0.0, self.of_layers[name], 0.0) for name, w in of_layers.items()},
            shared={name: np.where(w != 0.0, self.shared[name], 0.0) for name, w in shared.items()},
        )

    def signs(self) -> float:
        """The sum over all weights of the learned weight's sign times its change."""
        of_layers, shared = _learned(self._pipe.model)
        total = 0.0
        for changes, weights in ((self.of_layers, of_layers), (self.shared, shared)):
            total += sum(float((changes[name] * np.sign(weights[name])).sum()) for name in weights)
        return total

    def scores(self, docs: DocBatch) -> PathScores:
        """Compute the changes of the scores of texts along the direction."""
        found = _look_up(self._pipe.model, docs)
        return self._node.join(_outputs(self._pipe.model, found, self.of_layers), self.shared)

    def slopes(self, examples: list[Example]) -> Iterator[tuple[Example, float]]:
        """Yield each text with the derivative of its loss along the direction."""
        training = self._pipe.learner.training
        for block in training.blocks(examples):
            data = training.data(block)
            if data.structure is None and data.soft is None:
                yield from zip(block, self._slopes_of_batch(data))
            else:
                # Structures and soft labels belong to a batch as a whole: each text becomes a batch
                for example in block:
                    yield example, self._slope(training.data([example]))

    def _slopes_of_batch(self, data: AnnotatedDocs) -> Iterator[float]:
        """Yield d/de loss(scores + e · changes) at e = 0, that is sum ∂loss/∂scores · changes, for each text."""
        learner = self._pipe.learner
        bounds = learner.decoding.bounds(data.docs).tolist()
        scores, changes = self._scores_and_changes(data)
        structure = learner.model.attrs["node"].in_training
        for begin, end in itertools.pairwise(bounds):
            tokens = slice(begin, end)
            if begin == end:
                yield 0.0
                continue
            scores_of_doc, clamp = arrays.cut_document(scores, data.allowed, tokens)
            changes_of_doc, _ = arrays.cut_document(changes, None, tokens)
            weights = None
            if data.weights is not None:
                first, behind = np.searchsorted(data.starts, [begin, end])
                weights = data.weights[first:behind]
            _, derivative, _ = learner.loss(structure, scores_of_doc, clamp, weights=weights)
            yield self._node.dot(derivative, changes_of_doc)

    def _slope(self, data: AnnotatedDocs) -> float:
        """The derivative of the loss of a whole batch along the direction."""
        scores, changes = self._scores_and_changes(data)
        soft = {} if data.soft is None else {"soft": data.soft}
        learner = self._pipe.learner
        structure = data.structure or learner.model.attrs["node"].in_training
        _, derivative, _ = evaluate(learner.loss, structure, scores, data.allowed, weights=data.weights, **soft)
        return self._node.dot(derivative, changes)

    def _scores_and_changes(self, data: AnnotatedDocs) -> tuple[PathScores, ScoreArrays]:
        """The scores of texts, and their changes along the direction."""
        model = self._pipe.learner.model
        node = model.attrs["node"]
        found = _look_up(model, DocBatch.of(data.docs))
        of_layers, shared = _learned(model)
        scores = node.join(_outputs(model, found, of_layers), node.potentials(model, shared))
        changes = node.join(_outputs(model, found, self.of_layers), self.shared)
        return scores, changes


def _features(layer: Model) -> SparseFeatures:
    return layer.attrs["node"].features(layer)


def _learned(model: Model) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """The learned weights of all layers, by table, and the learned weights that all tokens share, by parameter."""
    of_layers = {}
    for layer in model.layers:
        of_layers.update({name: np.asarray(layer.get_param(name)) for name in _features(layer).tables})
    shared = {name: np.asarray(model.get_param(name)) for name in model.attrs["node"].traits.params}
    return of_layers, shared


def _look_up(model: Model, docs: DocBatch) -> list[FoundFeatures]:
    """Look up the features of texts for each layer."""
    return [_features(layer).look_up(docs) for layer in model.layers]


def _outputs(model: Model, found: list[FoundFeatures], weights: dict[str, Floats]) -> tuple:
    """Compute the output of each layer.

    found (list[FoundFeatures]): The features of the texts for each layer.
    weights (dict[str, Floats]): The weights of the features, by table: the learned weights or others.
    """
    outputs = []
    for layer, features in zip(model.layers, found):
        store = _features(layer)
        outputs.append(store.score(features, store.slots(weights)))
    return tuple(outputs)
