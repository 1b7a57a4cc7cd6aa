"""Two stages (Krishnan & Manning 2006): a first component labels each Doc, and the templates of a second one read the first
labels of the rest of the Doc.

The first stage is trained when the second is initialized, and does not change afterwards. The second stage has to learn how
reliable the first is on unseen texts: so the first labels of each training text come from a first stage that was trained on the
other folds. The first stage for prediction is trained on all texts.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from spacy.training import Example
from spacy.vocab import Vocab

from .. import checks
from ..errors import Errors
from ..features.doc_batch import MAJORITIES, DocBatch, Labelling
from ..models.node import forget, gives
from ..models.structure import without_stage
from ..schemes import Segments
from ..types import Settings
from .decoding import without_edges
from .pipe import LearningPipe
from .saving import unchanged_by_errors

if TYPE_CHECKING:
    from ..optimizers.objective import CRFOptimizer

Read = Callable[[], Iterable[Example]]
DocSpans = NDArray[np.int64]  # [3, N] starts, ends and labels of the spans of a Doc


class SecondStage(NamedTuple):
    """Settings of ``[components.NAME.second_stage]``.

    folds (int): Number of parts of the training data. The first stage is trained once without each part, and once on all.
    per (str): Unit within which labels should be consistent: "doc".
    features (List[str]): Attributes of the first labels that the second stage reads: some of `MAJORITIES`.
    l1, l2 (float): As in `spacy_crf.LBFGS.v1`, which trains the first stage.
    iterations (int): Most iterations of each training.
    """

    folds: int = 5
    per: str = "doc"
    features: tuple[str, ...] = MAJORITIES
    l1: float = 0.0
    l2: float = 0.1
    iterations: int = 100

    @classmethod
    def read(cls, owner: str, given: object, features: tuple[str, ...]) -> "SecondStage":
        """Settings from a config.

        owner (str): The component, for messages.
        given (object): The block of the config.
        features (Tuple[str, ...]): The possible features, which are all read by default.
        RAISES (ValueError): CRF020.
        """
        given = checks.table(owner, "second_stage", given, "settings")
        for key in given:
            checks.one_of(owner, "second_stage: setting", key, cls._fields)
        stage = cls(**{"features": features, **given})
        read = checks.listed(owner, "second_stage.features", stage.features, "names")
        for name in read:
            checks.one_of(owner, "second_stage.features", name, features)
        return cls(
            checks.count(owner, "second_stage.folds", stage.folds, least=2, most=1000),
            checks.one_of(owner, "second_stage.per", stage.per, ("doc",)),
            tuple(read),
            checks.number(owner, "second_stage.l1", stage.l1),
            checks.number(owner, "second_stage.l2", stage.l2),
            checks.count(owner, "second_stage.iterations", stage.iterations),
        )

    def optimizer(self) -> "CRFOptimizer":
        """A new optimizer for each training."""
        from ..optimizers.lbfgs import LBFGS  # prediction does not need it

        return LBFGS(
            l1=self.l1, l2=self.l2, delta=5e-4, max_iterations=self.iterations, iterations_per_step=self.iterations
        )


def first_stage(
    make: Callable[..., LearningPipe], vocab: Vocab, settings: Settings, second_stage: object
) -> "FirstStage":
    """The first stage of a component.

    make (Callable[..., LearningPipe]): Makes a component from a vocabulary and settings.
    vocab (Vocab): The vocabulary.
    settings (dict): Settings of the component, except that the first stage predicts without rules and probabilities.
    second_stage: The block of the config.
    RAISES (ValueError): CRF020 for a model of another kind, CRF811 for a model with an encoder, CRF210 for a loss that L-BFGS
        cannot train.
    """
    name = settings["name"]
    model = settings["model"]
    checks.expect(
        gives(model) is not None,
        f"Component '{name}'",
        "model",
        getattr(model, "name", model),
        "an architecture of spacy_crf, such as spacy_crf.LinearChain.v1",
    )
    if any(node.has_ref("tok2vec") for node in (model, *model.layers)):
        raise ValueError(
            Errors.CRF811.format(
                name=name,
                reason="its first stage is trained several times, which an encoder can't be. Leave out model.tok2vec",
            )
        )
    changed = {"name": f"{name}.first_stage", "model": without_stage(model), "optimizer": None, "scorer": None}
    component = make(vocab, **{**settings, **changed})
    # Labels of tokens have no entities around them
    features = MAJORITIES[:1] if component.annotation.spans_are_tokens else MAJORITIES
    stage = SecondStage.read(f"Component '{name}'", second_stage, features)
    component.check_optimizer(stage.optimizer())
    return FirstStage(component, stage)


class FirstStage:
    """Labels Docs for the templates of a second stage, by a component that no other object uses."""

    def __init__(self, component: LearningPipe, settings: SecondStage):
        self.component = component
        self.settings = settings
        self._held_out: dict[bytes, DocSpans] = {}  # labels of training texts by a model that was not trained on them

    def __call__(self, docs: list[Doc]) -> Labelling:
        """Label a batch, without rules and by the words alone: annotation that Docs have already is ignored."""
        component = self.component
        hashes = np.array([component.vocab.strings[label] for label in component.labels], dtype=np.uint64)
        if not component.is_initialized:  # without labels
            return Labelling(_joined([]), hashes)
        docs = DocBatch.of(docs)
        parts, scores = without_edges(component.parts(), docs, component.model.predict(docs))
        tags = parts.decoding.best_tags(scores, None)
        return Labelling(component.decoding.segments(tags, scores.starts), hashes)

    def to_learn(self, docs: list[Doc]) -> DocBatch:
        """Docs for training the second stage, with first labels by a model that was not trained on them: the model of their fold,
        or, for texts that `learn` did not read, the first stage itself. RETURNS (DocBatch): The same `docs`, labelled."""
        batch = self.component.batch_class(docs)
        if not self._held_out:
            return batch
        held_out = [self._held_out.get(key) for key in _keys(batch)]  # the spans of each Doc, or None
        new_docs = self.component.batch_class(doc for doc, spans in zip(batch, held_out) if spans is None)
        labelling = self(new_docs)
        new_spans = iter(_by_doc(labelling.spans, new_docs.bounds))
        joined = []
        for spans, begin in zip(held_out, batch.bounds.tolist()):
            joined.append((next(new_spans) if spans is None else spans) + _shift(begin))
        batch.labelling = labelling._replace(spans=_joined(joined))
        return batch

    def learn(self, pipe: LearningPipe, read: Read) -> None:
        """Train the first stage, with labels and lists of the second one. Texts with the same words are in the same fold.

        pipe (LearningPipe): The second stage.
        read (Callable[[], Iterable[Example]]): Gives the training data.
        RAISES (ValueError): CRF811 if there are fewer than two different texts.
        """
        component = self.component
        # Different texts are numbered, and dealt out to the folds by their numbers
        numbers: dict[bytes, int] = {}
        for example in read():
            [key] = _keys([example.predicted])
            numbers.setdefault(key, len(numbers))
        n_folds = min(self.settings.folds, len(numbers))
        if n_folds < 2:
            there_are = "there is one" if n_folds else "there are none"
            reason = f"the first stage learns from some texts and labels others, and {there_are} different"
            raise ValueError(Errors.CRF811.format(name=pipe.name, reason=f"{reason}. Give at least two Docs"))
        held_out: dict[bytes, DocSpans] = {}
        for label in pipe.labels:
            component.add_label(label)
        component.choose_settings(read)
        component.check_settings()
        # The second stage has loaded the lists, and the first one reads them too
        for features, features_of_pipe in zip(component.feature_stores, pipe.feature_stores):
            features.set_lists(features_of_pipe.gazetteers, features_of_pipe.clusters, features_of_pipe.vectors)

        def is_in(fold: int, example: Example) -> bool:
            [key] = _keys([example.predicted])
            return key in numbers and numbers[key] % n_folds == fold

        def read_without(fold: int) -> Iterable[Example]:
            return (example for example in read() if not is_in(fold, example))

        for fold in range(n_folds):
            self._train(partial(read_without, fold), f"without part {fold + 1} of {n_folds}")
            for block in component.training.blocks(filter(partial(is_in, fold), read())):
                docs = DocBatch(example.predicted for example in block)
                held_out.update(zip(_keys(docs), _by_doc(self(docs).spans, docs.bounds)))
        self._train(read, "all")
        self._held_out = held_out

    def _train(self, read: Read, part: str) -> None:
        """Train from scratch on examples, the `part` of the training data that messages name."""
        component = self.component
        forget(component.model)
        component.training.begin()
        component.training.count(read)
        optimizer = self.settings.optimizer()
        # One step runs all iterations, since nothing is evaluated between them
        objective = component.training.objective(optimizer, read())
        optimizer.step(objective, key=f"{component.name}, {part}")
        component.training.prunes = self.settings.l1 > 0.0  # L1 leaves weights at 0, which saving drops
        component.clear_scores()  # the optimizer changed weights in place, so that cached scores are of other weights

    def load(self, data: bytes) -> None:
        """Load saved `data`. RAISES (ValueError): If the data is damaged or does not fit."""
        self.component.from_bytes(data)
        self._held_out = {}

    @contextmanager
    def unchanged_by_errors(self) -> Iterator[None]:
        """Restore the first stage after an error."""
        held_out = self._held_out
        try:
            with unchanged_by_errors(self.component):
                yield
        except BaseException:
            self._held_out = held_out
            raise


def _keys(docs: list[Doc]) -> list[bytes]:
    """Make a key for each Doc, equal for texts with the same words."""
    batch = DocBatch.of(docs)
    words = batch.words
    bounds = batch.bounds.tolist()
    return [hashlib.blake2b(words[a:b].tobytes(), digest_size=16).digest() for a, b in pairwise(bounds)]


def _by_doc(spans: Segments, bounds: NDArray[np.int64]) -> list[DocSpans]:
    """Split the spans of a batch into those of each Doc, in the tokens of the Doc.

    spans (Segments): Sorted by first token.
    bounds (int64[D + 1]): The first token of each Doc in the batch, and the number of tokens.
    """
    first = np.searchsorted(spans.start, bounds).tolist()  # the number of the first span of each Doc
    columns = np.array(spans)  # [3, N] start, end and label
    return [columns[:, a:b] - _shift(begin) for a, b, begin in zip(first, first[1:], bounds.tolist())]


def _shift(begin: int) -> DocSpans:
    """The offsets that turn spans of a Doc (int64[3, N]), which begins at this token of a batch, into spans of the batch."""
    return np.array([[begin], [begin], [0]])


def _joined(spans: list[DocSpans]) -> Segments:
    """The spans of several Docs, in the tokens of their batch, as one."""
    return Segments(*np.concatenate([np.zeros((3, 0), dtype=np.int64), *spans], axis=1))
