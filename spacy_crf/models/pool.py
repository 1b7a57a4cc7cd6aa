"""Logarithmic opinion pools (Smith, Cohn & Osborne 2005): a weighted sum of the scores of several models, each of which is
trained as though alone.

If a sum of models is trained as a whole, each model learns what the others do not explain yet. In a pool each member explains all
it can, and held-out texts, on which no member is trained, determine the shares.

    score(y) = sum_m shares[m] · score_m(y)
"""

import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from spacy.tokens import Doc
from thinc.api import Model, NumpyOps

from ..features.doc_batch import DocBatch
from ..inference.chain_set import evaluate
from ..losses.clamped import LogLikelihood
from ..types import AnyClamp, Bools, Floats, Ints, PathScores
from .node import (
    Batches,
    Node,
    Sizes,
    Traits,
    add_gradient,
    check_weights,
    no_backprop,
    read_params,
    write_param,
)
from .structure import StructureModel, StructureNode

_SHARED = ("allowed", "longest")  # attributes that the component sets for the pool and all members


class Pooled(NamedTuple):
    """Output of a pool in training."""

    members: tuple  # scores of the members in training
    pool: PathScores  # their weighted sum
    held_out: Bools  # [B] sequences that determine the shares, and on which no member is trained

    @property
    def starts(self) -> Ints:
        """Where the sequences start: int64[B + 1]."""
        return self.pool.starts


class PoolNode(Node):
    """Node of a pool. `member_node` is a node like those of the members."""

    def __init__(self, member_node: StructureNode):
        self.holds_out = True  # whether some texts train no member
        self.n_frozen = 0  # number of members, from the first, that are not trained now
        self.member_node = member_node
        self.gives = member_node.gives
        self.structure = member_node.structure
        self.in_training = member_node.in_training
        self.traits = Traits(
            labelled=member_node.traits.labelled,
            learned=tuple([name for name in member_node.traits.learned if name in _SHARED]),
            meaning=member_node.traits.meaning,
            is_linear=False,
        )

    def begin(self, model: Model, initialization: Any, is_new: bool) -> None:
        """Find the optimum of `model` at once, if the optimizer of the component can. `is_new` is not used."""
        if initialization.pipe.training.finds_optimum:
            initialization.find_optimum()

    def n_states(self, model: Model) -> Optional[int]:
        """Number of states of the first member of `model`."""
        return model.layers[0].attrs["node"].n_states(model.layers[0])

    def resize(self, model: Model, n_states: int) -> None:
        """Add states to each member of `model`, up to `n_states`."""
        share_attributes(model)
        for member in model.layers:
            member.attrs["node"].resize(member, n_states)
        for name in self.traits.learned:
            model.attrs[name] = model.layers[0].attrs[name]

    def expect(self, model: Model, n_states: int, saved: dict[str, bytes]) -> None:
        """Prepare for loading: give the members the attributes of `model`. `n_states` and `saved` are not used."""
        share_attributes(model)

    def check(self, model: Model, n_states: int) -> None:
        """Check the shares of `model`; `n_states` is not used. RAISES (ValueError): CRF509."""
        check_weights(model, {"shares": (len(model.layers),)})


def make_pool(make_node: Callable[[], StructureNode], members: Sequence[Model], **attrs: Any) -> StructureModel:
    """Make a pool of models.

    make_node (Callable): Makes the node of each member.
    members (Sequence[Model]): The models.
    attrs: Attributes of the pool.
    """
    node = make_node()
    refs: dict[str, Optional[Model]] = {}
    for member in members:
        refs.update({part: member.get_ref(part) for part in member.ref_names})
    attrs["node"] = PoolNode(node)
    # Settings of the members are settings of the pool too, which saving compares
    for name in (*_SHARED, *node.traits.meaning):
        if name in members[0].attrs:
            attrs[name] = members[0].attrs[name]
    return StructureModel(
        "pool", _forward, init=_init, layers=members, refs=refs, params={"shares": None}, attrs=attrs, ops=NumpyOps()
    )


def share_attributes(model: Model) -> None:
    """Pass the attributes that the component sets from the pool to its members.

    model (Model): The pool.
    """
    for member in model.layers:
        member.attrs.update({name: model.attrs[name] for name in _SHARED if name in model.attrs})


def _forward(model: Model, docs: list[Doc], is_train: bool) -> tuple[Union[PathScores, Pooled], Callable]:
    """Scores of the pool, in training together with those of the members, and the function that takes their derivatives."""
    node: PoolNode = model.attrs["node"]
    share_attributes(model)
    # Frozen members score as in prediction
    n_frozen = node.n_frozen
    results = [member(docs, is_train and number >= n_frozen) for number, member in enumerate(model.layers)]
    outputs, backprops = zip(*results)
    shares = read_params(model, ["shares"])["shares"].astype(np.float64)
    # score(y) = sum_m shares[m] · score_m(y)
    total = node.member_node.weighted_sum(outputs, shares)
    if not is_train:
        return total, no_backprop

    def backprop(d_scores: Pooled) -> list[Doc]:
        if d_scores.held_out.any():  # a gradient of zeros would let weight decay shrink the shares
            d_shares = [node.member_node.dot(d_scores.pool, output) for output in outputs]
            add_gradient(model, "shares", np.array(d_shares))
        for backprop_member, d_member in zip(backprops[n_frozen:], d_scores.members):
            backprop_member(d_member)
        return []

    share = model.attrs["held_out"] if node.holds_out else 0.0
    return Pooled(outputs[n_frozen:], total, held_out_sequences(docs, total.starts, share)), backprop


def _init(model: Model, X: Optional[Batches] = None, Y: Optional[Sizes] = None) -> None:
    share_attributes(model)
    for member in model.layers:
        member.initialize(X=X, Y=Y)
    if not model.has_param("shares"):
        n = len(model.layers)
        write_param(model, "shares", np.full(n, 1.0 / n))


def pooled_loss(
    loss: Callable,
    structure: Any,
    scores: Pooled,
    clamp: AnyClamp,
    *,
    weights: Optional[Floats] = None,
    **soft: object,
) -> tuple[Floats, Pooled, Bools]:
    """Evaluate the loss of a pool: the sum of the losses of the members, and for held-out texts, from which the shares are
    learned, the negative log probability by the pool. (Other losses may be smallest where all scores are 0, so they could not
    determine shares.)

    loss (Callable): The loss of the members.
    structure (TrainingStructure): The structure of all members.
    scores (Pooled): The output of the pool.
    clamp (AnyClamp): What the annotation allows.
    weights (float64[B]): Factor of each sequence, 1 by default.
    soft: Soft labels, if the loss takes any.
    RETURNS (float64[B], Pooled, bool[B]): Losses, derivatives of their sum, and which sequences are impossible.
    """
    pool_loss = loss if soft else LogLikelihood()
    weights = np.ones(len(scores.held_out)) if weights is None else weights
    held_out = scores.held_out
    # Each text counts for the loss of the pool or for the losses of the members; its factor for the other is 0
    pool_weights = np.where(held_out, weights, 0.0)
    member_weights = np.where(held_out, 0.0, weights)
    losses, d_pool, impossible = evaluate(pool_loss, structure, scores.pool, clamp, weights=pool_weights, **soft)
    d_members = []
    for member in scores.members:
        member_losses, d_member, _ = evaluate(loss, structure, member, clamp, weights=member_weights, **soft)
        losses = losses + member_losses
        d_members.append(d_member)
    return losses, Pooled(tuple(d_members), d_pool, held_out), impossible


def train_all_members(model: Model, *, holds_out: bool) -> None:
    """Undo the settings of a stage of training in which a pool trains only some of its members.

    model (Model): The model, which may be no pool.
    holds_out (bool): Whether some texts train no member, but the shares of the members.
    """
    node = model.attrs["node"]  # nodes of other models may hold out texts too
    if hasattr(node, "holds_out"):
        node.holds_out = holds_out
    if isinstance(node, PoolNode):
        node.n_frozen = 0


def held_out_sequences(docs: list[Doc], starts: Ints, share: float) -> Bools:
    """Which sequences belong to held-out texts: bool[B]. They are the same in each epoch, and for all copies of a text.

    docs (list[Doc]): The texts.
    starts (int64[B + 1]): Where the sequences start.
    share (float): The share of the texts that are held out.
    """
    # A checksum of the text, not a random number, so that no copy of a held-out text trains a member
    chosen = np.array([zlib.crc32(doc.text.encode("utf8")) < share * (1 << 32) for doc in docs], dtype=bool)
    return chosen[np.searchsorted(DocBatch.of(docs).bounds, starts[:-1], side="right") - 1]
