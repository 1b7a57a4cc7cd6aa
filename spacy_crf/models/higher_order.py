"""Chains of higher order: emissions, transitions, and weights of n-grams of three and four tags. Weights of lower and higher
orders add up, so an n-gram without a weight still gets the scores of its shorter parts.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import Model, Optimizer

from .. import checks
from ..arrays import per_position, states_of
from ..errors import Errors, cant_train, shown
from ..inference.higher_order import HigherOrder as HigherOrderInference
from ..inference.pruned_lattice import MOST, HigherOrderScores, Orders, indexed, key_of, tags_of_keys
from ..kernels.label_parts import spread_parts, sum_parts
from ..losses.clamped import CLAMPED_LOSSES, ClampedLoss
from ..schemes import TransitionMask
from ..types import Bools, Floats, Ints
from .emissions import Emissions, check_emissions
from .node import AnnotatedDocs, Batches, check_array, check_equal, read_params, rearrange_param
from .structure import Block, Feature, SharedScores, StructureNode, build

if TYPE_CHECKING:
    from ..optimizers.objective import Component

_SLOWLY = 0.05  # weight of the latest batch in the running averages of thresholds
_MOST_GRAMS = 1 << 24  # largest number of n-grams with a weight
_MOST_TAGS = 1 << 15  # keys of four tags are numbers of 63 bits


# Tags with a common part share the weights of that part, so rare tags profit from frequent ones
LabelParts = Union[None, str, Callable[[str], list[str]]]
NAMED: dict[str, Callable[[str], list[str]]] = {
    "morph": lambda tag: tag.split("|"),  # the part of speech, and each Key=Value, of "Number=Sing|POS=NOUN"
    "scheme": lambda tag: tag.split("-", 1),  # boundary and label, of "B-PER"
}


class TagParts(NamedTuple):
    """Columns of scores: one for each of S tags, and one for each of their parts. The order is that of first occurrence, tag by
    tag, so the columns of new tags come last."""

    names: list[list[str]]  # [S] parts of each tag
    tag_columns: Ints  # [S]
    starts: Ints  # [S + 1] the parts of a tag are columns[starts[y]:starts[y + 1]]
    columns: Ints  # [N]
    n_columns: int

    @classmethod
    def of(cls, tags: Sequence[str], label_parts: Union[str, Callable[[str], list[str]]]) -> "TagParts":
        """Make the columns of some tags.

        tags (Sequence[str]): The tags.
        label_parts (Union[str, Callable]): A name of `NAMED`, or a function from a tag to its parts.
        RAISES (ValueError): CRF327 if a function returns anything but texts.
        """
        take_apart = NAMED[label_parts] if isinstance(label_parts, str) else label_parts
        names = []
        tag_columns = []
        columns = []
        starts = [0]
        known = {}
        for tag in tags:
            found = take_apart(tag)
            if not isinstance(found, (list, tuple)) or not all(isinstance(part, str) for part in found):
                raise ValueError(Errors.CRF327.format(tag=tag, found=shown(found)))
            names.append(list(dict.fromkeys(found)))
            tag_columns.append(len(tag_columns) + len(known))
            for part in names[-1]:
                known.setdefault(part, len(tag_columns) + len(known))
            columns += [known[part] for part in names[-1]]
            starts.append(len(columns))
        return cls(
            names=names,
            tag_columns=np.array(tag_columns, dtype=np.int64),
            starts=np.array(starts, dtype=np.int64),
            columns=np.array(columns, dtype=np.int64),
            n_columns=len(tag_columns) + len(known),
        )

    def allowed(self, tags: Bools) -> Bools:
        """Columns that the allowed tags (bool[T, S]) use: bool[T, C]."""
        # [S, C] whether a tag uses a column
        member = np.zeros((len(self.tag_columns), self.n_columns), dtype=np.float32)
        member[np.arange(len(member)), self.tag_columns] = 1.0
        member[np.repeat(np.arange(len(member)), np.diff(self.starts)), self.columns] = 1.0
        return tags.astype(np.float32) @ member > 0.0

    def sums(self, scores: Floats) -> Floats:
        """Scores of tags (float64[T, S]), as sums of the scores of columns (float64[T, C])."""
        out = np.empty((len(scores), len(self.tag_columns)))
        sum_parts(scores, self.tag_columns, self.starts, self.columns, out)
        return out

    def spread(self, derivative: Floats) -> Floats:
        """Turn a derivative with respect to tags (float64[T, S]) into one with respect to columns (float64[T, C])."""
        out = np.zeros((len(derivative), self.n_columns))
        spread_parts(derivative, self.tag_columns, self.starts, self.columns, out)
        return out


class HigherOrderNode(StructureNode):
    """Node of a chain of higher order. Attributes: "keys", the n-grams with a weight, and "thresholds", which prune lattices."""

    gives = HigherOrderScores
    traits = StructureNode.traits._replace(
        learned=(*StructureNode.traits.learned, "keys", "thresholds", "parts"),
        meaning=("order",),
        params=(*StructureNode.traits.params, "grams"),
        is_online=False,
        unexplained="only chains of order 1 are explained. `weights` lists what the model learned, `n_best` and "
        "`span_probabilities` tell how certain it is",
    )
    structure = HigherOrderInference()

    def check_fit(self, model: Model, pipe: "Component", optimizer: Optional[Optimizer]) -> None:
        """Check the loss of the component `pipe` of `model`, with any `optimizer`.

        RAISES (ValueError): CRF347 for a loss that is defined for chains of order 1 only.
        """
        if not isinstance(pipe.loss, ClampedLoss):
            what = f"the chain of higher order of '{pipe.name}'"
            reason = "it asks for the scores of single tokens"
            raise cant_train(pipe.loss, what, reason, CLAMPED_LOSSES)

    def __init__(self, label_parts: LabelParts = None):
        super().__init__()
        self._label_parts = label_parts
        self._parts: Optional[TagParts] = None  # parts of the tags, if tags share weights
        self._made: Optional[tuple] = None  # the cached orders, and the attributes they were made from

    # -------------------------------------------------------------------------------------------------- scores

    def orders(self, model: Model) -> Orders:
        """N-grams and pruning of the model; the same object until they change."""
        attrs = model.attrs
        # Training replaces these attributes as a whole
        made = self._made
        made_of = attrs["allowed"], attrs["keys"], attrs["thresholds"], attrs["keep"]
        if made is None or any(one is not other for one, other in zip(made[1], made_of)):
            learned = attrs["thresholds"]
            thresholds = None
            if learned is not None and learned["keep"] == attrs["keep"]:
                thresholds = np.array(learned["least"])
            orders = Orders(attrs["order"], attrs["keys"], model.get_dim("nO"), attrs["keep"], thresholds)
            self._made = made = indexed(orders), made_of
        return made[0]

    def potentials(self, model: Model, weights: SharedScores) -> SharedScores:
        """The shared scores of `model` by `weights`, with its n-grams."""
        return {**super().potentials(model, weights), "orders": self.orders(model)}

    def potentials_key(self, model: Model) -> Orders:
        """The n-grams of `model`, which a change replaces."""
        return self.orders(model)

    def possible(self, model: Model) -> SharedScores:
        """Masks of the parameters of `model`: every n-gram with a weight is possible."""
        return {**super().possible(model), "grams": np.True_}

    def weighed(self, model: Model) -> SharedScores:
        """Masks of the parameters of `model`: transitions have no weight in a chain of order 0."""
        steps = super().weighed(model)
        if model.attrs["order"] == 0:
            steps = {name: np.zeros_like(mask) for name, mask in steps.items()}
        return {**steps, "grams": np.ones(len(model.attrs["keys"]), dtype=bool)}

    def shapes(self, model: Model, n_states: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters of `model` for `n_states` states, and of the weights of n-grams."""
        keys = model.attrs["keys"]
        return {**super().shapes(model, n_states), "grams": (0 if keys is None else len(keys),)}

    def name_tags(self, tags: Sequence[str]) -> None:
        """Set the tags, and derive their shared parts."""
        if self._label_parts is not None:
            self._parts = TagParts.of(tags, self._label_parts)
            names = dict.fromkeys(chain.from_iterable(self._parts.names))
            self.part_names = [f"part {name}" for name in names]  # in the order of their columns

    def columns(self, n_states: int) -> int:
        """Number of columns of the layers: `n_states`, and the parts of the tags."""
        return n_states if self._parts is None else self._parts.n_columns

    def layer_batch(self, batch: AnnotatedDocs) -> AnnotatedDocs:
        """The `batch` with the columns of the tags that it allows."""
        return batch if self._parts is None else batch._replace(allowed=self._parts.allowed(states_of(batch.allowed)))

    def named_states(self, model: Model, parameter: Optional[str], places: tuple[Ints, ...]) -> tuple[Ints, ...]:
        """Numbers of the tags, or of their parts behind them, at `places` of a `parameter` of `model`, or of its layers."""
        if parameter is not None or self._parts is None:
            return places
        parts = self._parts
        size = len(self._parts.tag_columns)
        # Numbers of parts follow the numbers of tags and the number of the start of a sequence
        numbers = np.full(parts.n_columns, -1)
        numbers[parts.tag_columns] = np.arange(size)
        numbers[numbers < 0] = size + 1 + np.arange((numbers < 0).sum())
        return tuple(numbers[columns] for columns in places)

    def weight_blocks(self, model: Model, name: str) -> Optional[list[Block]]:
        """Weights of the parameter `name` of `model`: one block for each length of n-grams; None for other parameters."""
        if name != "grams":
            return None
        # One block for each length of n-grams. The state after the last tag stands for the start of a sequence
        weights = read_params(model, ["grams"])["grams"]
        tags = tags_of_keys(model.attrs["keys"], model.get_dim("nO"))
        blocks = []
        lengths = (tags >= 0).sum(axis=1)
        for length in np.unique(lengths).tolist():
            some = lengths == length
            states = tuple(tags[some, -length:].T)
            blocks.append(
                Block(
                    name="grams",
                    weights=weights[some],
                    states=states,
                    rows=np.zeros_like(states[0]),
                    feature=partial(Feature.shared, "n-gram"),
                )
            )
        return blocks

    def join(self, outputs: tuple[Emissions], shared: SharedScores) -> HigherOrderScores:
        """The potentials, from the `outputs` of the layers and the `shared` scores."""
        [(scores, transitions, starts)] = outputs
        if self._parts is not None:
            scores = self._parts.sums(scores)
        transitions = shared["transitions"] if transitions is None else transitions + shared["transitions"]
        ends = shared["first"], shared["last"]
        return HigherOrderScores(scores, transitions, *ends, shared["grams"], shared["orders"], starts)

    def part(self, d_scores: HigherOrderScores, outputs: tuple[Emissions]) -> tuple[tuple, SharedScores]:
        """From `d_scores` to the derivatives with respect to the `outputs` of the layers and to the shared scores."""
        of_tokens = d_scores.transitions if per_position(d_scores) else None
        emissions = d_scores.emissions if self._parts is None else self._parts.spread(d_scores.emissions)
        d_output = Emissions(emissions, of_tokens, np.asarray(d_scores.starts))
        return (d_output,), self.shared_part(d_scores)

    # ------------------------------------------------------------------------------------------------ training

    def prunes_labellings(self, model: Model) -> bool:
        """Whether `model` prunes lattices."""
        return model.attrs["keep"] is not None

    def learn(self, model: Model, d_scores: Iterable[HigherOrderScores]) -> None:
        """Update the thresholds of pruning: running averages, in the log domain, of the thresholds of the batches.

        model (Model): The model.
        d_scores (Iterable[HigherOrderScores]): The derivatives of each batch, with its thresholds.
        """
        keep = model.attrs["keep"]
        known = model.attrs["thresholds"]
        measured = [d_batch.orders.measured for d_batch in d_scores]
        measured = [least for least in measured if least is not None and np.isfinite(least).any()]
        if not measured:
            return
        least = known["least"] if known is not None and known["keep"] == keep else [math.nan] * len(measured[0])
        for latest in measured:
            least = [_moved(old, new) for old, new in zip(least, latest.tolist())]
        model.attrs["thresholds"] = {"keep": keep, "least": least}

    def resize(self, model: Model, n_states: int) -> None:
        """Add states. Keys of n-grams are computed again for a larger base; their order stays.

        model (Model): The model.
        n_states (int): The new number of states.
        """
        before = model.get_dim("nO") if model.has_dim("nO") else 0
        if model.attrs["order"] > 1 and n_states > _MOST_TAGS:
            raise ValueError(Errors.CRF322.format(order=model.attrs["order"], tags=n_states, most=_MOST_TAGS))
        if before and before != n_states:
            model.attrs["keys"] = _renumbered(model.attrs["keys"], before, n_states)
        elif not before:
            model.attrs["keys"] = np.zeros(0, dtype=np.int64)
        super().resize(model, n_states)
        model.attrs["parts"] = None if self._parts is None else self._parts.names

    def init_weights(self, model: Model, corpus: Batches, n_states: int, is_new: bool) -> None:
        """Find the n-grams of `model` that get a weight: those of the `corpus`, or all possible ones of `n_states`
        states; `is_new` if all weights are new.
        """
        super().init_weights(model, corpus, n_states, is_new)
        order = model.attrs["order"]
        before = model.attrs["keys"]
        if order < 2:
            return
        if model.attrs["transitions_from"] == "possible":
            keys = _possible_keys(order, model.attrs["allowed"], n_states)
        else:
            found = [_seen_keys(order, states_of(batch.allowed), batch.starts) for batch in corpus()]
            keys = np.unique(np.concatenate([before, *found]))
        # Weights of n-grams known before move to their place among all
        places = np.searchsorted(keys, before)

        def spread(values: NDArray) -> NDArray[np.float32]:
            moved = np.zeros(len(keys), dtype=np.float32)
            moved[places] = values
            return moved

        rearrange_param(model, "grams", spread)
        model.attrs["keys"] = keys

    def check(self, model: Model, n_states: int) -> None:
        """Check the loaded keys and thresholds of `model` for `n_states` states. RAISES (ValueError): CRF509."""
        keys = model.attrs["keys"]
        order = model.attrs["order"]
        thresholds = model.attrs["thresholds"]
        check_array("keys", keys, (len(keys) if isinstance(keys, np.ndarray) else 0,), np.int64)
        check_equal("the order of keys", bool((np.diff(keys) > 0).all()), True)
        # Keys of three to order + 1 digits behind the digit 1
        bounds = [(n_states + 1) ** (order + 2), (n_states + 1) ** 3]
        check_equal("keys", not len(keys) or bool(keys[-1] < bounds[0] and keys[0] >= bounds[1]), True)
        if thresholds is not None:
            least = thresholds["least"]
            keep = thresholds["keep"]
            are_numbers = [type(value) for value in [keep, *least]] == [float] * (1 + max(1, order))
            check_equal("thresholds", are_numbers and not any(value <= 0.0 or value > 1.0 for value in least), True)
        check_equal("parts of labels", model.attrs["parts"], None if self._parts is None else self._parts.names)
        super().check(model, n_states)


def _moved(old: float, new: float) -> float:
    if math.isnan(old) or math.isnan(new):
        return new if math.isnan(old) else old
    # log average = (1 - s) · log old + s · log new
    return math.exp((1.0 - _SLOWLY) * math.log(old) + _SLOWLY * math.log(new))


def _seen_keys(order: int, allowed: Bools, starts: Ints) -> Ints:
    """Keys of the n-grams of neighbouring tokens whose annotation allows a single state each: int64[G]."""
    size = allowed.shape[1]
    # Each sequence is preceded by the digit `size`, and that by -1 for nothing
    lengths = np.diff(starts)
    # [T] place of each token once `order` digits stand before each sequence
    place = np.arange(len(allowed)) + order * (1 + np.repeat(np.arange(len(lengths)), lengths))
    tags = np.full(len(allowed) + order * len(lengths), -1, dtype=np.int64)
    tags[place] = np.where(allowed.sum(axis=1) == 1, allowed.argmax(axis=1), -1)
    tags[place[starts[:-1][lengths > 0]] - 1] = size
    found = [np.zeros(0, dtype=np.int64)]
    for m in range(2, order + 1):
        # n-grams of m + 1 tags, of which the first is m tokens before the last
        columns = [tags[place - back] for back in range(m, -1, -1)]
        known = np.all([column >= 0 for column in columns], axis=0)
        found.append(np.unique(key_of(tuple(column[known] for column in columns), size)))
    return np.concatenate(found)


def _possible_keys(order: int, allowed: TransitionMask, n_states: int) -> Ints:
    """Keys of all n-grams that the tag scheme allows: int64[G]. RAISES (ValueError): CRF321 if there are too many."""
    steps = np.vstack([allowed.transitions, allowed.first])  # tags that may follow each tag, and the start
    grams = np.argwhere(steps)
    found = [np.zeros(0, dtype=np.int64)]
    for m in range(2, order + 1):
        # Counted before they are listed, as their number grows by a factor of the tags that may follow
        n_more = int(allowed.transitions.sum(axis=1)[grams[:, -1]].sum())
        if n_more > _MOST_GRAMS:
            raise ValueError(Errors.CRF321.format(n=n_more, m=m + 1, most=_MOST_GRAMS))
        counts = allowed.transitions.sum(axis=1)[grams[:, -1]]
        following = np.concatenate([np.flatnonzero(allowed.transitions[tag]) for tag in grams[:, -1]])
        grams = np.column_stack([np.repeat(grams, counts, axis=0), following])
        found.append(key_of(tuple(grams.T), n_states))
    return np.unique(np.concatenate(found))


def _renumbered(keys: Ints, before: int, n_states: int) -> Ints:
    """Recompute keys for another number of tags."""
    # key = ((1 · base + tag) · base + tag) ..., with base = number of tags + 1
    found = np.ones(len(keys), dtype=np.int64)
    for tags in tags_of_keys(keys, before).T:
        moved = np.where(tags == before, n_states, tags)
        found = np.where(tags >= 0, found * (n_states + 1) + moved, found)
    return found


def HigherOrder(
    emissions: Model[list[Doc], Emissions],
    order: int = 2,
    keep: Optional[float] = 4.0,
    label_parts: Union[str, Callable[[str], list[str]], None] = None,
    transitions_from: str = "seen",
) -> Model[list[Doc], HigherOrderScores]:
    """A chain in which the score of a tag depends on up to three tags before it. Pruning keeps, level by level, the likely tags,
    pairs of tags and so on of each token (Müller, Schmid & Schütze 2013).

    emissions (Model): Scores of tags at tokens, from SparseEmissions, HashedEmissions or Tok2VecEmissions.
    order (int): Number of previous tags that a score depends on, from 0 to 3.
    keep (Optional[float]): Mean number of tags that a token keeps by its emissions (all if there are up to 32 tags), of pairs of
        tags that it keeps by a chain of order 1, and so on. None switches pruning off; then time and memory grow with the number
        of tags to the power of order + 1.
    label_parts (Union[str, Callable, None]): Tags with a common part share weights in addition to their own: "morph" for the
        part of speech and each Key=Value, "scheme" for boundary and label, or a function from a tag to the list of its parts.
        None for no shared weights.
    transitions_from (str): N-grams of tags that get a weight: "seen" for n-grams in the training data, "possible" for all n-grams
        that the tag scheme allows.
    """
    owner = "HigherOrder"
    check_emissions(owner, emissions)
    checks.count(owner, "order", order, least=0, most=MOST)
    if keep is not None:
        keep = checks.number(owner, "keep", keep, least=1.0)
    checks.expect(
        label_parts in (None, *NAMED) or callable(label_parts),
        owner,
        "label_parts",
        label_parts,
        "null, 'morph', 'scheme', or a function from a tag to its parts",
    )
    if label_parts is not None and "features" in emissions.attrs:
        templates = [*map(str, emissions.attrs["features"].feature_set.transitions)]
        checks.expect(not templates, owner, "transitions of the features", templates, "empty beside label_parts")
    checks.one_of(owner, "transitions_from", transitions_from, ("seen", "possible"))
    return build(
        "higher_order",
        HigherOrderNode(label_parts),
        {"emissions": emissions},
        order=order,
        keep=keep,
        transitions_from=transitions_from,
        possible_transitions=transitions_from == "possible",
        keys=None,  # int64[G] the n-grams that have a weight, see `lattice.Orders`
        parts=None,  # list[list[str]] parts of each tag, if tags share weights
        thresholds=None,  # `keep`, and the least probability of kept nodes for each level that training found
    )
