"""Emissions of a neural encoder: dense layers from the vectors of tokens to the scores of states.

Encoder and dense layers may be on another device. Scores come to the host in one transfer a batch, and derivatives go back in
one.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import numpy as np
from spacy.tokens import Doc
from thinc.api import Linear, Maxout, Model, zero_init
from thinc.types import Floats2d

from .. import checks
from ..features.doc_batch import DocBatch
from ..types import Floats, Ints
from .emissions import Emissions
from .node import Batches, Node, Sizes, check_equal, check_weights, enlarged, remove_params

_PIECES = 3  # pieces of the maxout layer, as in spaCy's encoders


class EncoderNode(Node):
    """Node of the layers behind an encoder, of which the last one gives the scores.

    learns (bool): Whether the encoder is trained.
    """

    gives: type = Emissions
    kinds = 1  # number of scores of each state at each token

    def __init__(self, learns: bool = True):
        self.learns = learns
        self.traits = self.traits._replace(is_linear=not learns)

    def split(self, model: Model, scores: Floats, starts: Ints) -> NamedTuple:
        """The output of the layer.

        model (Model): The model of the layer.
        scores (float64[T, kinds · S]): Scores of its last layer.
        starts (int64[B + 1]): Where the sequences start.
        """
        return Emissions(scores, None, starts)

    def join(self, d_output: Emissions) -> Floats:
        """Derivatives with respect to the scores of the last layer: float64[T, kinds · S].

        d_output (Emissions): Derivatives with respect to the output.
        """
        return d_output.scores

    def set_corpus_attributes(self, model: Model, sizes: Sizes) -> None:
        """Set attributes that the corpus determines.

        model (Model): The model of the layer.
        sizes (Sizes): Sizes of the corpus and the model.
        """

    def resize(self, model: Model, n_states: int) -> None:
        """Give the last layer of `model` weights of zero for new states, up to `n_states`."""
        output = model.get_ref("output")
        names = ("W", "b") if output.has_param("W") else ()
        values = {}
        gradients = {}
        for name in names:
            values[name] = self._resized(output, output.get_param(name), n_states)
            if output.has_grad(name):
                gradients[name] = self._resized(output, output.get_grad(name), n_states)
            output.set_param(name, None)  # thinc changes no dimension of a layer that has parameters
        output.set_dim("nO", self.kinds * n_states, force=True)
        for name in names:
            output.set_param(name, values[name])
        for name, gradient in gradients.items():
            output.set_grad(name, gradient)

    def _resized(self, layer: Model, values: Any, n_states: int) -> Any:
        """A parameter of the last layer, or its gradient (`values`), for more states, on its device."""
        # Rows are kinds of scores, and within each kind states
        width = values.shape[1:]
        kinds = layer.ops.to_numpy(values).reshape(self.kinds, len(values) // self.kinds, *width)
        resized: Any = enlarged(kinds, (self.kinds, n_states, *width))
        return layer.ops.asarray(resized.reshape(self.kinds * n_states, *width))

    def forget(self, model: Model) -> None:
        """Return `model` and its last layer to their state before training."""
        super().forget(model)
        remove_params(model.get_ref("output"))

    def expect(self, model: Model, n_states: int, saved: dict[str, bytes]) -> None:
        """Give the last layer the size of the saved one.

        model (Model): The model of the layer.
        n_states (int): Number of states of the saved one.
        saved (dict[str, bytes]): Attributes of the saved one.
        """
        if model.get_ref("output").has_dim("nO"):
            self.resize(model, n_states)

    def check(self, model: Model, n_states: int) -> None:
        """Check the shapes of the last layer of `model` for `n_states` states. RAISES (ValueError): CRF509."""
        output = model.get_ref("output")
        size = self.kinds * n_states
        check_equal("nO", output.maybe_get_dim("nO"), size)
        width = output.get_dim("nI") if output.has_dim("nI") else -1  # which no array has
        check_weights(output, {"W": (size, width), "b": (size,)})


def Tok2VecEmissions(tok2vec: Model[list[Doc], list[Floats2d]]) -> Model[list[Doc], Emissions]:
    """A linear layer on the token vectors of a neural encoder, such as spaCy's tok2vec. With `spacy_crf.LinearChain.v1` the
    encoder stands directly under the component's model, where listeners and spaCy's commands look for it.

    tok2vec (Model[List[Doc], List[Floats2d]]): The encoder, whose width is its dimension ``nO``.
    """
    return encoder_emissions("Tok2VecEmissions", tok2vec)


def encoder_emissions(owner: str, tok2vec: Any, hidden_width: int = 0, node: Optional[EncoderNode] = None) -> Model:
    """A layer that computes scores from the vectors of an encoder.

    owner (str): The architecture, for messages.
    tok2vec (Model): The encoder.
    hidden_width (int): Width of a hidden layer between encoder and scores, 0 for none.
    node (EncoderNode): Turns the scores into the output; by default into emissions.
    """
    node = node or EncoderNode()
    checks.expect(
        isinstance(tok2vec, Model) and tok2vec.has_dim("nO") is not False,
        owner,
        "tok2vec",
        tok2vec,
        "an encoder with the dimension nO",
    )
    width = checks.count(owner, "hidden_width", hidden_width, least=0, most=1 << 16)
    hidden = [Maxout(width, nP=_PIECES, dropout=0.0)] if width else []
    output = Linear(init_W=zero_init)  # as spaCy's tagger
    return Model(
        "tok2vec_emissions",
        _forward,
        init=_init,
        layers=[tok2vec, *hidden, output],
        refs={"tok2vec": tok2vec, "output": output},
        attrs={"node": node, **dict.fromkeys(node.traits.learned)},
    )


def _forward(model: Model, docs: list[Doc], is_train: bool) -> tuple[NamedTuple, Callable]:
    """Scores of tokens from the vectors of the encoder, and the function that takes their derivatives."""
    node: EncoderNode = model.attrs["node"]
    # Vectors of all Docs, end to end, go through the dense layers
    encoder, *dense = model.layers
    vectors, backprop_vectors = encoder(docs, is_train and node.learns)
    lengths = [len(vector) for vector in vectors]
    backprops = []
    flat = model.ops.flatten(vectors)
    for layer in dense:
        flat, backprop_layer = layer(flat, is_train)
        backprops.append(backprop_layer)
    batch = DocBatch.of(docs)
    # The one transfer from the device
    scores = np.ascontiguousarray(model.ops.to_numpy(flat), dtype=np.float64)

    def backprop(d_output: Emissions) -> list[Doc]:
        ops: Any = model.ops
        d_flat = ops.asarray2f(node.join(d_output).astype(np.float32))
        for backprop_layer in reversed(backprops):
            d_flat = backprop_layer(d_flat)
        return backprop_vectors(ops.unflatten(d_flat, lengths)) if node.learns else []

    return node.split(model, scores, batch.sequence_starts()), backprop


def _init(model: Model, X: Optional[Batches] = None, Y: Optional[Sizes] = None) -> None:
    """Initialize new layers; present layers stay, and grow to more states."""
    output = model.get_ref("output")
    if X is None or Y is None:
        return
    node = model.attrs["node"]
    sizes = Sizes(*Y)
    node.set_corpus_attributes(model, sizes)
    node.resize(model, sizes.n_states)
    if output.has_param("W"):
        return
    encoder, *dense = model.layers
    batches = iter(X())
    sample = next(batches).docs[:10]
    deque(batches, maxlen=0)  # the reader counts the batches
    encoder.initialize(X=sample)
    # Transformers know their width from here on, but some listeners to them do not
    if encoder.has_dim("nO"):
        flat = model.ops.alloc2f(1, encoder.get_dim("nO"))
    else:
        flat = model.ops.flatten(encoder.predict(sample))
    for layer in dense:
        flat = layer.initialize(X=flat).predict(flat)
