"""The work of `spacy_crf.sklearn.CRF`, on the feature table, objective and optimizers of the components."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Optional

import numpy as np
import srsly
from spacy.tokens import Doc
from spacy.vocab import Vocab
from thinc.api import Model

from . import checks
from .errors import Errors, quietly, shown
from .features.doc_batch import DocBatch
from .features.extractor import FeatureSet
from .features.items import ItemList, Items, NotAnItem
from .losses.clamped import LogLikelihood
from .models.emissions import SparseEmissions
from .models.linear_chain import LinearChain
from .models.node import AnnotatedDocs, Sizes
from .models.objective import TiedObjective
from .models.sparse import prune
from .optimizers.lbfgs import LBFGS
from .pipeline.saving import load_model, reason_of
from .schemes import TransitionMask
from .types import ChainScores
from .whole_files import FileFormat, seal, unpacked, unpacking, unseal

if TYPE_CHECKING:
    from .sklearn import CRF, Rows

_FORMAT = FileFormat("a CRF of spacy_crf.sklearn", b"spacy_crf.sklearn\n", 1)
_BLOCK = 512  # sequences that are read together
# name of the features in templates, and their key in doc.user_data
_SOURCE = "items"
_ITEMS = "crf_items"
_VOCAB = Vocab()


def fit(crf: "CRF", X: list["Rows"], y: list[Sequence[str]]) -> None:
    """Train a CRF on sequences `X` with their labels `y`, as `CRF.fit` documents."""
    # First of all, since wrong parameters are refused before any data is read
    optimizer = _optimizer(crf)
    key = type(crf).__name__
    classes = _classes(y)
    source = _ItemsOfDocs()
    docs = source.docs(X)
    state_of = {label: n for n, label in enumerate(classes)}
    states = [np.array([state_of[label] for label in labels], dtype=np.int64) for labels in y]

    def blocks() -> Iterator[AnnotatedDocs]:
        for begin in range(0, len(docs), _BLOCK):
            batch = DocBatch(docs[begin : begin + _BLOCK])
            gold = np.concatenate(states[begin : begin + _BLOCK])  # [T] states
            yield AnnotatedDocs(
                docs=batch,
                allowed=gold[:, np.newaxis] == np.arange(len(classes)),
                starts=batch.sequence_starts(),
                unset=np.zeros(len(gold), dtype=bool),
            )

    model = _new_model(crf, source, len(classes))
    model.initialize(X=blocks, Y=Sizes(_VOCAB, len(classes)))
    # CRFsuite has no weights for first and last labels
    model.attrs["observed"][-2:] = 0
    _drop_rare(model, blocks, checks.number(key, "min_freq", crf.min_freq))
    objective = TiedObjective(model, LogLikelihood(), blocks())
    with nullcontext() if checks.one_of(key, "verbose", crf.verbose, (True, False, 0, 1)) else quietly():
        while optimizer.stop_reason(key) is None:
            crf.objective_ = optimizer.step(objective, key=key)
    crf.classes_ = classes
    crf.n_iter_ = optimizer.iterations_made(key)
    crf._model = prune(model)[0]


def _optimizer(crf: "CRF") -> LBFGS:
    """Make the optimizer from the parameters of a CRF, which have CRFsuite's names."""
    owner = type(crf).__name__
    checks.one_of(owner, "algorithm", crf.algorithm, ("lbfgs",))
    most = crf.max_iterations
    return LBFGS(
        l1=checks.number(owner, "c1", crf.c1),
        l2=checks.number(owner, "c2", crf.c2),
        memory=checks.count(owner, "num_memories", crf.num_memories, most=1000),
        tolerance=checks.number(owner, "epsilon", crf.epsilon),
        period=checks.count(owner, "period", crf.period, most=1_000_000),
        delta=checks.number(owner, "delta", crf.delta),
        max_iterations=None if most is None else checks.count(owner, "max_iterations", most),
        max_line_search=checks.count(owner, "max_linesearch", crf.max_linesearch),
    )


def _new_model(crf: "CRF", source: "_ItemsOfDocs", n_states: int) -> Model:
    """Make a model without weights. source: The features that the model reads, those of Docs that `source.docs` has made."""
    owner = type(crf).__name__
    features = FeatureSet([f"fn:{_SOURCE}[0]"], functions={_SOURCE: source})
    emissions = SparseEmissions(
        features, possible_states=checks.flag(owner, "all_possible_states", crf.all_possible_states)
    )
    model = LinearChain(
        emissions, possible_transitions=checks.flag(owner, "all_possible_transitions", crf.all_possible_transitions)
    )
    every = np.ones((n_states, n_states), dtype=bool)
    model.attrs["allowed"] = TransitionMask(every, every[0], every[0])
    return model


def labels_of(crf: "CRF", X: list["Rows"]) -> Iterator[list[str]]:
    """The most probable labels of each sequence."""
    for bounds, scores in _scores(crf, X):
        states = crf._fitted.attrs["node"].structure.viterbi(scores).states
        labels = [crf.classes_[state] for state in states.tolist()]
        yield from (labels[begin:end] for begin, end in pairwise(bounds))


def marginals_of(crf: "CRF", X: list["Rows"]) -> Iterator[list[dict[str, float]]]:
    """The probabilities of the labels of each sequence."""
    for bounds, scores in _scores(crf, X):
        probabilities = crf._fitted.attrs["node"].structure.marginals(scores)
        rows = [dict(zip(crf.classes_, row)) for row in probabilities.tolist()]
        yield from (rows[begin:end] for begin, end in pairwise(bounds))


def _scores(crf: "CRF", X: list["Rows"]) -> Iterator[tuple[list[int], ChainScores]]:
    """Yield, for each block of sequences, the bounds of the sequences in the block, some of which may be empty, and the scores of
    all tokens."""
    model = crf._fitted  # raises an error before training, even if there are no sequences
    for begin in range(0, len(X), _BLOCK):
        docs = DocBatch(_ItemsOfDocs().docs(X[begin : begin + _BLOCK], begin))
        yield docs.bounds.tolist(), model.predict(docs)


def pack(crf: "CRF") -> bytes:
    """The parameters and weights of a CRF, as `unpack` reads them."""
    learned = {"classes": crf.classes_, "objective": crf.objective_, "n_iter": crf.n_iter_}
    content = {"params": crf.get_params(), **learned, "model": crf._fitted.to_bytes()}
    return seal(_FORMAT, srsly.msgpack_dumps(content))


def unpack(crf: "CRF", data: bytes, source: str) -> None:
    """Set the parameters and weights that `pack` wrote. RAISES (ValueError): CRF501, CRF502 or CRF508 for other data."""
    with unpacking(data):
        content = unseal(_FORMAT, data, source)
        try:
            saved = unpacked(content)
            crf.set_params(**saved["params"])
            classes = [checks.text("classes", str(n), label) for n, label in enumerate(saved["classes"])]
            model = _new_model(crf, _ItemsOfDocs(), len(classes))
            load_model(model, unpacked(saved["model"]), len(classes))
            learned = {"classes_": classes, "objective_": saved["objective"], "n_iter_": saved["n_iter"]}
        except Exception as error:  # the file may contain anything
            raise ValueError(Errors.CRF508.format(source=source, reason=reason_of(error))) from error
    crf.__dict__.update(learned, _model=model)


class _ItemsOfDocs:
    """Represents sequences as Docs, which models read: reads the features of tokens once, and attaches them to Docs with as many
    tokens."""

    def __init__(self) -> None:
        self._list = ItemList("X")

    def docs(self, X: list["Rows"], first: int = 0) -> list[Doc]:
        """Make a Doc for each sequence.

        first (int): Number of the first sequence, for messages.
        RAISES (ValueError): CRF131 or CRF111.
        """
        for number, rows in enumerate(X, start=first):
            for token, row in enumerate(rows):
                try:
                    self._list.add(row)
                except NotAnItem as error:
                    raise ValueError(
                        Errors.CRF111.format(where=f"X[{number}][{token}]", value=shown(error.args[0]))
                    ) from None
        items = self._list.items
        docs = []
        for begin, end in pairwise(accumulate(map(len, X), initial=0)):
            of_doc = slice(items.starts[begin], items.starts[end])
            starts = items.starts[begin : end + 1] - items.starts[begin]
            items_of_doc = Items(items.hashes[of_doc], items.values[of_doc], starts)
            # Words do not matter: all features are in the items
            docs.append(Doc(_VOCAB, words=["x"] * (end - begin), user_data={_ITEMS: items_of_doc}))
        return docs

    def __call__(self, doc: Doc, /) -> Iterable[object]:
        raise NotImplementedError  # Docs are read by batch alone

    def read_items(self, docs: list[Doc], names: Optional[dict[int, str]]) -> Items:
        """Concatenate the items that `docs` attached to Docs.

        names (dict[int, str]): Gets the names of all features by their hashes, unless it is None.
        """
        if names is not None:
            names.update(self._list.names)
        # `np.concatenate` needs an array even where there are no Docs
        hashes = [np.zeros(0, dtype=np.uint64)]
        values = [np.zeros(0, dtype=np.float32)]
        counts = [np.zeros(0, dtype=np.int64)]
        for doc in docs:
            items: Items = doc.user_data[_ITEMS]
            hashes.append(items.hashes)
            values.append(items.values)
            counts.append(np.diff(items.starts))
        starts = np.append(0, np.cumsum(np.concatenate(counts)))
        return Items(np.concatenate(hashes), np.concatenate(values), starts)


def _classes(y: list[Sequence[str]]) -> list[str]:
    """Collect the labels in the order of their occurrence. RAISES (ValueError): CRF853 if there are none, or one is no text."""
    for number, labels in enumerate(y):
        for label in labels:
            if not isinstance(label, str) or not label:
                raise ValueError(Errors.CRF853.format(problem=f"sequence {number} has the label {shown(label)}"))
    classes = [*dict.fromkeys(chain.from_iterable(y))]
    if not classes:
        raise ValueError(Errors.CRF853.format(problem="there is no token in them"))
    return classes


def _drop_rare(model: Model, blocks: Callable[[], Iterator[AnnotatedDocs]], min_freq: float) -> None:
    """Remove the weights of pairs of an attribute and a label whose values sum to less than `min_freq`, and of pairs of labels
    that follow one another less often."""
    if not min_freq:
        return
    [emissions] = model.layers
    features = emissions.attrs["features"]
    sums = np.zeros(features.states.n_weights)  # of the values of each attribute with each label
    observed = model.attrs["observed"]
    pair_counts = np.zeros(observed[:-2].shape)  # [S, S]; the last two rows of `observed` are first and last labels
    for block in blocks():
        gold = block.allowed.astype(np.float64)  # [T, S] one-hot
        features.states.scatter(features.look_up(block.docs).features["states"], gold, sums)
        begins = block.starts[:-1]
        follows = np.ones(len(gold), dtype=bool)  # whether a token has one in front of it in its sequence
        follows[begins[begins < len(gold)]] = False  # an empty sequence at the end begins behind the last token
        [seconds] = np.nonzero(follows)
        # pair_counts[i, j] += number of tokens with label j behind label i
        pair_counts += gold[seconds - 1].T @ gold[seconds]
    observed[:-2] &= (pair_counts >= min_freq).astype(np.uint8)
    table = features.states.pruned(sums >= min_freq)
    emissions.attrs["features"] = features.with_tables({**features.tables, "states": table})
    emissions.set_param("states", emissions.ops.alloc1f(table.n_weights))
