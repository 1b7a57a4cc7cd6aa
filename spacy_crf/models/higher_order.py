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
    """Columns of scores: one for each of S tags, and one for each of the parts of tags. They are in the order of first
    occurrence, tag by tag, so the columns of new tags come last.
    """

    names: list[list[str]]  # [S] parts of each tag
    tag_columns: Ints  # [S] the column of each tag
    starts: Ints  # [S + 1] the parts of tag y have the columns columns[starts[y] : starts[y + 1]]
    columns: Ints  # [N]
    n_columns: int  # C

    @classmethod
    def of(cls, tags: Sequence[str], label_parts: Union[str, Callable[[str], list[str]]]) -> "TagParts":
        """Assign columns to tags and their parts.

        tags (Sequence[str]): The tags.
        label_parts (Union[str, Callable]): A name of `NAMED`, or a function from a tag to its parts.
        RAISES (ValueError): CRF327 if a function returns anything but texts.
        """
        split = NAMED[label_parts] if isinstance(label_parts, str) else label_parts
        names = []
        tag_columns = []
        columns = []
        starts = [0]
        part_columns = {}  # the column of each part
        for tag in tags:
            parts = split(tag)
            if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
                raise ValueError(Errors.CRF327.format(tag=tag, found=shown(parts)))
            different_parts = list(dict.fromkeys(parts))
            names.append(different_parts)
            tag_columns.append(len(tag_columns) + len(part_columns))
            for part in different_parts:
                part_columns.setdefault(part, len(tag_columns) + len(part_columns))
            columns += [part_columns[part] for part in different_parts]
            starts.append(len(columns))
        return cls(
            names=names,
            tag_columns=np.array(tag_columns, dtype=np.int64),
            starts=np.array(starts, dtype=np.int64),
            columns=np.array(columns, dtype=np.int64),
            n_columns=len(tag_columns) + len(part_columns),
        )

    def allowed(self, tags: Bools) -> Bools:
        """The columns that the allowed tags (bool[T, S]) use: bool[T, C]."""
        n_tags = len(self.tag_columns)
        uses = np.zeros((n_tags, self.n_columns), dtype=np.float32)  # [S, C] 1 where a tag uses a column
        uses[np.arange(n_tags), self.tag_columns] = 1.0
        uses[np.repeat(np.arange(n_tags), np.diff(self.starts)), self.columns] = 1.0
        return tags.astype(np.float32) @ uses > 0.0

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
        # The cached orders, behind the attributes that determine them
        self._latest_orders: Optional[tuple[tuple, Orders]] = None

    # -------------------------------------------------------------------------------------------------- scores

    def orders(self, model: Model) -> Orders:
        """N-grams and pruning of the model, cached until they change."""
        attrs = model.attrs
        # Training replaces these attributes and does not change them in place, so identity tells whether they changed
        key = attrs["allowed"], attrs["keys"], attrs["thresholds"], attrs["keep"]
        if self._latest_orders is not None:
            latest_key, latest_orders = self._latest_orders
            if all(old is new for old, new in zip(latest_key, key)):
                return latest_orders
        learned = attrs["thresholds"]
        thresholds = None
        # Thresholds that were learned for another `keep` prune too much or too little
        if learned is not None and learned["keep"] == attrs["keep"]:
            thresholds = np.array(learned["least"])
        orders = indexed(Orders(attrs["order"], attrs["keys"], model.get_dim("nO"), attrs["keep"], thresholds))
        self._latest_orders = key, orders
        return orders

    def potentials(self, model: Model, weights: SharedScores) -> SharedScores:
        """The shared scores that `weights` give, and the n-grams of `model`."""
        return {**super().potentials(model, weights), "orders": self.orders(model)}

    def potentials_key(self, model: Model) -> Orders:
        """The n-grams of `model`: another object after each change."""
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
        """The `batch` with a clamp of columns, those of the tags that it allows."""
        return batch if self._parts is None else batch._replace(allowed=self._parts.allowed(states_of(batch.allowed)))

    def named_states(self, model: Model, parameter: Optional[str], places: tuple[Ints, ...]) -> tuple[Ints, ...]:
        """As `Node.named_states`. The list of names has the tags, the start of a sequence, and then the parts of tags, which have
        columns of their own in layers.
        """
        if parameter is not None or self._parts is None:
            return places
        parts = self._parts
        n_tags = len(parts.tag_columns)
        numbers = np.full(parts.n_columns, -1)
        numbers[parts.tag_columns] = np.arange(n_tags)
        numbers[numbers < 0] = n_tags + 1 + np.arange((numbers < 0).sum())
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
            has_length = lengths == length
            states = tuple(tags[has_length, -length:].T)
            blocks.append(
                Block(
                    name="grams",
                    weights=weights[has_length],
                    states=states,
                    rows=np.zeros_like(states[0]),
                    feature=partial(Feature.shared, "n-gram"),
                )
            )
        return blocks

    def join(self, outputs: tuple[Emissions], shared: SharedScores) -> HigherOrderScores:
        """The potentials, from the `outputs` of the layers and the `shared` scores."""
        [(column_scores, token_transitions, starts)] = outputs
        emissions = column_scores if self._parts is None else self._parts.sums(column_scores)
        transitions = shared["transitions"] if token_transitions is None else token_transitions + shared["transitions"]
        return HigherOrderScores(
            emissions=emissions,
            transitions=transitions,
            first=shared["first"],
            last=shared["last"],
            grams=shared["grams"],
            orders=shared["orders"],
            starts=starts,
        )

    def part(self, d_scores: HigherOrderScores, outputs: tuple[Emissions]) -> tuple[tuple, SharedScores]:
        """Split `d_scores` into the derivatives with respect to the `outputs` of the layers, and those with respect to the
        shared scores."""
        token_transitions = d_scores.transitions if per_position(d_scores) else None
        emissions = d_scores.emissions if self._parts is None else self._parts.spread(d_scores.emissions)
        d_output = Emissions(emissions, token_transitions, np.asarray(d_scores.starts))
        return (d_output,), self.shared_part(d_scores)

    # ------------------------------------------------------------------------------------------------ training

    def prunes_labellings(self, model: Model) -> bool:
        """Whether `model` prunes lattices."""
        return model.attrs["keep"] is not None

    def update_averages(self, model: Model, d_scores: Iterable[HigherOrderScores]) -> None:
        """Update the thresholds of pruning: running averages, in the log domain, of the thresholds of the batches.

        model (Model): The model.
        d_scores (Iterable[HigherOrderScores]): The derivatives of each batch, with its thresholds.
        """
        keep = model.attrs["keep"]
        thresholds = model.attrs["thresholds"]
        measured = []
        for d_batch in d_scores:
            batch_thresholds = d_batch.orders.measured
            if batch_thresholds is not None and np.isfinite(batch_thresholds).any():
                measured.append(batch_thresholds.tolist())
        if not measured:
            return
        averages = [math.nan] * len(measured[0])
        if thresholds is not None and thresholds["keep"] == keep:
            averages = thresholds["least"]
        for batch_thresholds in measured:
            averages = [_moved(average, latest) for average, latest in zip(averages, batch_thresholds)]
        model.attrs["thresholds"] = {"keep": keep, "least": averages}

    def resize(self, model: Model, n_states: int) -> None:
        """Add states, and keep the names of their parts that `name_tags` found. Keys of n-grams are computed again for a larger
        base; their order stays.

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
        """Find the n-grams that get a weight, in addition to transitions: all that are possible, or those of a corpus.

        model (Model): The model.
        corpus (Batches): The training data.
        n_states (int): Number of states.
        is_new (bool): Whether all weights are new.
        """
        super().init_weights(model, corpus, n_states, is_new)
        order = model.attrs["order"]
        old_keys = model.attrs["keys"]
        if order < 2:
            return
        if model.attrs["transitions_from"] == "possible":
            keys = _possible_keys(order, model.attrs["allowed"], n_states)
        else:
            seen = [_seen_keys(order, states_of(batch.allowed), batch.starts) for batch in corpus()]
            keys = np.unique(np.concatenate([old_keys, *seen]))
        old_indices = np.searchsorted(keys, old_keys)

        def move(values: NDArray) -> NDArray[np.float32]:
            """Weights of n-grams that had one, in the new order; weights of new n-grams are 0."""
            moved = np.zeros(len(keys), dtype=np.float32)
            moved[old_indices] = values
            return moved

        rearrange_param(model, "grams", move)
        model.attrs["keys"] = keys

    def check(self, model: Model, n_states: int) -> None:
        """Check the loaded keys and thresholds of `model` for `n_states` states. RAISES (ValueError): CRF509."""
        keys = model.attrs["keys"]
        order = model.attrs["order"]
        thresholds = model.attrs["thresholds"]
        check_array("keys", keys, (len(keys) if isinstance(keys, np.ndarray) else 0,), np.int64)
        check_equal("the order of keys", bool((np.diff(keys) > 0).all()), True)
        # A key is the digit 1 and three to order + 1 digits
        least_key = (n_states + 1) ** 3
        end = (n_states + 1) ** (order + 2)
        check_equal("keys", not len(keys) or bool(keys[0] >= least_key and keys[-1] < end), True)
        if thresholds is not None:
            least = thresholds["least"]
            keep = thresholds["keep"]
            are_numbers = [type(value) for value in [keep, *least]] == [float] * (1 + max(1, order))
            check_equal("thresholds", are_numbers and not any(value <= 0.0 or value > 1.0 for value in least), True)
        check_equal("parts of labels", model.attrs["parts"], None if self._parts is None else self._parts.names)
        super().check(model, n_states)


def _moved(average: float, latest: float) -> float:
    """A running average of thresholds in the log domain, after the latest threshold; NaN stands for no value."""
    if math.isnan(average):
        return latest
    if math.isnan(latest):
        return average
    return math.exp((1.0 - _SLOWLY) * math.log(average) + _SLOWLY * math.log(latest))


def _seen_keys(order: int, allowed: Bools, starts: Ints) -> Ints:
    """Keys of the n-grams of neighbouring tokens whose annotation allows a single state each: int64[G]."""
    size = allowed.shape[1]
    # A key has a digit for each tag, and the digit `size` for the start of a sequence; -1 is no digit. Before the tags of each
    # sequence stand `order` entries: -1, ..., -1, `size`
    lengths = np.diff(starts)
    sequence_of = np.repeat(np.arange(len(lengths)), lengths)
    position = np.arange(len(allowed)) + order * (1 + sequence_of)  # [T] of each token in `tags`
    tags = np.full(len(allowed) + order * len(lengths), -1, dtype=np.int64)
    tags[position] = np.where(allowed.sum(axis=1) == 1, allowed.argmax(axis=1), -1)
    first_tokens = starts[:-1][lengths > 0]
    tags[position[first_tokens] - 1] = size
    keys = [np.zeros(0, dtype=np.int64)]
    for m in range(2, order + 1):
        # n-grams of m + 1 tags, of which the first is m tokens before the last
        columns = [tags[position - distance] for distance in range(m, -1, -1)]
        is_complete = np.all([column >= 0 for column in columns], axis=0)
        grams = [column[is_complete] for column in columns]
        keys.append(np.unique(key_of(grams, size)))
    return np.concatenate(keys)


def _possible_keys(order: int, allowed: TransitionMask, n_states: int) -> Ints:
    """Keys of all n-grams that the tag scheme allows: int64[G]. RAISES (ValueError): CRF321 if there are too many."""
    steps = np.vstack([allowed.transitions, allowed.first])  # tags that may follow each tag, and the start
    grams = np.argwhere(steps)  # [G, m] n-grams of m tags
    keys = [np.zeros(0, dtype=np.int64)]
    for m in range(2, order + 1):
        counts = allowed.transitions.sum(axis=1)[grams[:, -1]]  # tags that may follow each n-gram
        # Checked before memory is needed, since the number grows fast with m
        n_longer = int(counts.sum())
        if n_longer > _MOST_GRAMS:
            raise ValueError(Errors.CRF321.format(n=n_longer, m=m + 1, most=_MOST_GRAMS))
        following = np.concatenate([np.flatnonzero(allowed.transitions[tag]) for tag in grams[:, -1]])
        grams = np.column_stack([np.repeat(grams, counts, axis=0), following])
        keys.append(key_of(tuple(grams.T), n_states))
    return np.unique(np.concatenate(keys))


def _renumbered(keys: Ints, before: int, n_states: int) -> Ints:
    """The keys of the same n-grams, if the number of tags changes from `before` to `n_states`: int64[G]."""
    # key = ((1 · base + tag) · base + tag) ..., with base = number of tags + 1
    new_keys = np.ones(len(keys), dtype=np.int64)
    for tags in tags_of_keys(keys, before).T:  # -1 where an n-gram is shorter
        digits = np.where(tags == before, n_states, tags)  # the start of a sequence is the digit behind all tags
        new_keys = np.where(tags >= 0, new_keys * (n_states + 1) + digits, new_keys)
    return new_keys


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
    keep (Optional[float]): How many tags a token keeps on average, chosen by its emissions (all, if there are up to 32 tags);
        then how many pairs of tags, chosen by a chain of order 1, and so on. None switches pruning off; then time and memory
        grow with the number of tags to the power of order + 1.
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
