"""What learns: labels, features, training and saving of a component, whatever its labels are written to.

What its annotation means says an object of ``annotation/``, what its structure adds a `Decoding`, how it learns `Training`.
"""

import copyreg
import io
import logging
import reprlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from types import GeneratorType
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Optional, Union

from spacy.language import Language
from spacy.pipeline import TrainablePipe
from spacy.tokens import Doc, Token
from spacy.training import Example, validate_examples
from spacy.util import registry
from spacy.vocab import Vocab
from thinc.api import Model, Optimizer

from .. import checks
from ..errors import Errors, announcements
from ..features.clusters import ClusterSource
from ..features.doc_batch import DocBatch
from ..features.gazetteers import GazetteerFile
from ..features.token_columns import MOST_WORDS
from ..features.word_vectors import VectorSource
from ..kernels import needed
from ..losses.clamped import LabelledLoss
from ..models.emissions import EmissionFeatures
from ..models.pool import PoolRole
from ..models.sparse import prune
from ..whole_files import unpacking, whole
from . import saving
from .annotation.annotation import Annotation
from .corpora import only_young_searched
from .decoding import Decoding
from .earlier_components import require_vectors
from .gradient_step import forget_gradients, parameters
from .initialization import Lists, expect_kernels, initialize
from .new_texts import NewFeatures
from .prediction import batches
from .training import Training, TrainingBatch

if TYPE_CHECKING:
    from .two_stage import FirstStage

logger = logging.getLogger("spacy.spacy_crf")
_WHOLE = "model"  # what a component is saved as


class _Decodings(NamedTuple):
    module: str  # imported when a component is made whose model gives such scores
    name: str
    example: str  # an architecture


# By what has labels; nodes of models may bring others
_DECODINGS = {
    "tokens": _Decodings("decoding", "Decoding", "spacy_crf.LinearChain.v2"),
    "segments": _Decodings("semi_markov", "SegmentDecoding", "spacy_crf.SemiMarkov.v2"),
    "texts": _Decodings("crf_textcat", "TextDecoding", "spacy_crf.HiddenChain.v1 or spacy_crf.MaxEntText.v1"),
}


class LearningPipe(TrainablePipe):
    """Base of all components.

    model (Model): From Docs to the scores of a structure.
    annotation (Annotation): Where labels are read and written.
    loss (LabelledLoss): What training minimises.
    optimizer (Optimizer): Used instead of the one in [training.optimizer], if there is one; see `Training.optimizer_for`.
    max_words (int): Different words of which is kept what templates read, and in prediction their scores.
    settings: Others that are saved.
    """

    labelled = "tokens"  # what has labels, see `Decoding`
    # Settings that say what weights mean: those of a saved component are to be those of the config
    meaning: tuple[str, ...] = ()
    first_stage: "Optional[FirstStage]" = None  # what labels a Doc first, for templates that read stage:NAME
    rules_train = False  # whether rules hold in training

    def __init__(
        self,
        vocab: Vocab,
        model: Model,
        name: str,
        *,
        annotation: Annotation,
        loss: LabelledLoss,
        optimizer: Optional[Optimizer] = None,
        scorer: Optional[Callable] = None,
        max_words: int = MOST_WORDS,
        **settings: Any,
    ):
        self.vocab = vocab
        self.model = model
        self.name = name
        owner = self.owner
        node = model.attrs.get("role") if isinstance(model, Model) else None
        must = f"an architecture of {self.labelled}, such as {_DECODINGS[self.labelled].example}"
        fits = getattr(node, "labelled", None) == self.labelled
        checks.expect(fits, owner, "model", getattr(model, "name", model), must)
        must = "a loss of spacy_crf, such as spacy_crf.LogLikelihood.v1"
        checks.expect(isinstance(loss, LabelledLoss), owner, "loss", loss, must)
        possible = optimizer is None or isinstance(optimizer, Optimizer)
        checks.expect(possible, owner, "optimizer", optimizer, "an optimizer")
        checks.expect(scorer is None or callable(scorer), owner, "scorer", scorer, "a scorer")
        # Whether optimizers can be given the objective: all scores are sums of weights
        self.is_linear = all(node.attrs["role"].is_linear for node in model.walk() if "role" in node.attrs)
        self.has_encoder = model.has_ref("tok2vec")
        self.is_pool = isinstance(model.attrs["role"], PoolRole)
        self.annotation = annotation
        self.loss = loss
        self._connect_stages()
        max_words = checks.count(owner, "max_words", max_words, most=1 << 30)
        for features in self.feature_stores:
            features.max_words = max_words
        self.optimizer = optimizer
        self.scorer = scorer
        self.cfg: dict[str, Any] = {"labels": [], "left_out": [], "max_words": max_words, **settings}
        self.told: set[str] = set()  # what is said once
        self.training = Training(self)
        self._labels_changed()
        self.decoding.check_fit(self)

    def __repr__(self) -> str:
        labels = reprlib.repr(list(self.labels))
        learned = "" if self.is_initialized else ", not initialized"
        return f"<{type(self).__name__} '{self.name}': {self.model.name}, labels {labels}{learned}>"

    @property
    def owner(self) -> str:
        """As messages about settings and arguments name it."""
        return f"Component '{self.name}'"

    def warn(self, message: str, **values: Any) -> None:
        logger.warning(message.format(name=self.name, **values))

    def tell_once(self, message: str, **values: Any) -> None:
        if message not in self.told:
            self.told.add(message)
            self.warn(message, **values)

    # ---------------------------------------------------------------------------------------------------- labels

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, in the order in which they were added."""
        return tuple(self.cfg["labels"])

    @property
    def label_data(self) -> list[str]:
        """What `spacy init labels` writes, and what `initialize` takes as `labels`."""
        return list(self.labels)

    def tags(self) -> list[str]:
        """Names of the tags, in the order of the scores."""
        return self.annotation.tags()

    def add_label(self, label: str) -> int:
        """Add a label. A trained model keeps what it has learned; the weights of the new label are zero.

        label (str): Any string but the empty one.
        RETURNS (int): 0 if the label was there, otherwise 1.
        """
        self.annotation.check_label(label)
        if label in self.cfg["labels"]:
            return 0
        self.cfg["labels"].append(label)
        try:
            self._labels_changed()
            if self.is_initialized:
                self.model.attrs["role"].resize(self.model, self.decoding.n_states)
        except ValueError:  # the model has no place for it
            self.cfg["labels"].remove(label)
            self._labels_changed()
            raise
        if self.is_initialized:
            self.training.new_features = self.training.new_features or NewFeatures()
        return 1

    def _labels_changed(self) -> None:
        self.annotation = self.annotation.bind(self.name, self.vocab, self.labels)
        decoding = self.model.attrs["role"].decoding
        if decoding is None:
            module, name, _ = _DECODINGS[self.labelled]
            decoding = getattr(import_module(f".{module}", __package__), name)
        self.decoding: Decoding = decoding(self.model, self.annotation)
        self.model.attrs["allowed"], self.model.attrs["tag_of"] = self.decoding.mask(), self.decoding.tag_of
        if hasattr(self.loss, "bind"):
            self.loss = self.loss.bind(self.decoding.state_labels)

    def choose_settings(self, get_examples: Callable[[], Iterable[Example]]) -> None:
        """Settings that are left to the training data, whose labels are known."""

    def check_settings(self) -> None:
        """RAISES (ValueError): If settings don't fit the labels, which are known now."""
        if hasattr(self.loss, "check_labels"):
            self.loss.check_labels()
        self.model.attrs["role"].check_labels(self.model, self.annotation.tag_labels(), self.name)

    def rules(self) -> Any:
        """The rules that labellings keep, compiled against the labels; None without rules."""
        return None

    @property
    def is_initialized(self) -> bool:
        """Whether it has weights, of which it can predict, or go on learning."""
        return bool(self.model.has_dim("nO"))

    def require_ready(self, docs: list[Doc]) -> None:
        """RAISES (ValueError): CRF402 for a component without weights; CRF962 for Docs without the vectors that it needs."""
        if not self.model.has_dim("nO"):
            self._require_labels()
            raise ValueError(Errors.CRF402.format(name=self.name))
        if self.has_encoder and docs:
            require_vectors(self.name, self.model, docs)

    # -------------------------------------------------------------------------------------------------- features

    @property
    def sparse_features(self) -> Optional[EmissionFeatures]:
        """The features of tokens, None where there are none."""
        return self.model.get_ref("emissions").attrs.get("features") if self.model.has_ref("emissions") else None

    @property
    def feature_stores(self) -> list[Any]:
        """Everything of the model that has templates."""
        return [value for node in self.model.walk() for value in node.attrs.values() if hasattr(value, "feature_set")]

    @property
    def token_attributes(self) -> list[str]:
        """Token attributes that the templates read."""
        return list(dict.fromkeys(name for f in self.feature_stores for name in f.feature_set.token_attributes))

    @property
    def asks_functions(self) -> bool:
        """Whether functions or extensions give features, which may say something else at the next step."""
        return any(features.asks_functions for features in self.feature_stores)

    def _connect_stages(self) -> None:
        """Lets the templates read what a first stage says.

        RAISES (ValueError): CRF810 if they do, and there is none; CRF811 if there is one, and none of them does.
        """
        stores, first = self.feature_stores, self.first_stage
        if first is not None:
            for features in stores:
                more = first.settings.templates() if features is self.sparse_features else []
                features.set_stage(features.feature_set.with_stage(more), first)
        reads = any(features.feature_set.reads_stage for features in stores)
        if reads and first is None:
            raise ValueError(Errors.CRF810.format(where=f"The features of component '{self.name}' read stage:NAME"))
        if first is not None and not reads:
            reason = (
                "no template reads its first stage. Name some in second_stage.features, such as stage:token_majority[0]"
            )
            raise ValueError(Errors.CRF811.format(name=self.name, reason=reason))

    def forget_scores(self) -> None:
        """The weights were changed in place."""
        for features in self.feature_stores:
            features.forget_scores()

    def assigns(self) -> list[str]:
        """What the component writes, in the words of `nlp.analyze_pipes`."""
        return self.annotation.assigns

    def requires(self) -> list[str]:
        """What its templates read of the output of components before it, in the same words."""
        read = ["is_sent_start" if name == "sent_start" else name for name in self.token_attributes]
        extensions = dict.fromkeys(name for f in self.feature_stores for name in f.feature_set.extensions)
        return [
            *(f"token.{name}" for name in read if name not in ("norm", "lang", "spacy")),
            *(f"token._.{name}" for name in extensions if not Token.get_extension(name)[2]),  # those without a getter
        ]

    # ------------------------------------------------------------------------------------------------ prediction

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Process a stream of Docs in batches.

        stream (Iterable[Doc]): The Docs.
        batch_size (int): Most Docs in a batch; more than 256 together are no faster, and of long ones fewer.
        YIELDS (Doc): The Docs in their order.
        """
        handle_error = self.get_error_handler()
        for docs in batches(self.name, stream, batch_size):
            try:
                self.set_annotations(docs, self.predict(DocBatch(docs)))
                yield from docs
            except Exception as error:
                handle_error(self.name, self, docs, error)
            del docs  # before others are made

    # -------------------------------------------------------------------------------------------------- training

    def initialize(
        self,
        get_examples: Callable[[], Iterable[Example]],
        *,
        nlp: Optional[Language] = None,
        labels: Optional[list[str]] = None,
        gazetteers: Optional[dict[str, GazetteerFile]] = None,
        clusters: Optional[ClusterSource] = None,
        vectors: Optional[VectorSource] = None,
        start_from: Optional[Union[str, Path]] = None,
        corpus: Optional[Callable[[Language], Iterable[Example]]] = None,
        shards: Any = None,  # Optional[Sharding], which spaCy could not check
    ) -> None:
        """Find the labels, count the features, and set the weights to zero. A trained component begins anew: its labels,
        gazetteers, clusters and vectors stay, its features and weights do not. To go on from what it has learned, load and
        `update` it, or name it as ``start_from``.

        get_examples (Callable[[], Iterable[Example]]): The training data, read several times.
        nlp (Language): The pipeline, for its tokenizer.
        labels (List[str]): The labels; found in the data if None.
        gazetteers (dict[str, Path]): Files of the gazetteers that templates name, each a path or a table with `path` and `attr`,
            the attribute by which words are compared: LOWER, ORTH or SHAPE. Those of a loaded model stay where none is given.
        clusters (Path): File of the clusters of words that templates read, or "spacy-lookups-data", or "vectors" for some made
            of those of the pipeline; or a table with this as `path`, `most_words` and, for vectors, `n`. Those of a loaded model
            stay where none are given.
        vectors (Path): Pipeline whose vectors of words templates read, in place of those of this one ([initialize] vectors); or
            a table with this as `path`, `dims`, how many numbers each is reduced to, and `length`, that they have in the mean.
            Those of a loaded model stay where there are none.
        start_from (Path): A saved pipeline with a component of this name, or a saved component: its labels, features and
            weights are kept, and new ones are added.
        corpus (Callable[[Language], Iterable[Example]]): Read instead of get_examples, as which spaCy gives the first hundred
            where the corpus is streamed (max_epochs = -1). It is read block by block, never held in memory. In that case an
            optimizer that looks at the whole corpus in each step (such as L-BFGS) is told of this one: what training needs to
            know of it is kept, and each update is a step about all of it, whatever its batch.
        shards (Sharding): How it is cut into shards, whose part of each step workers do (docs/training_on_shards.md).
        RAISES (ValueError): If no labels or no features are found, or a gazetteer can't be read. After an error the component
            is as it was before.
        """
        with saving.unchanged_by_errors(self), only_young_searched():
            initialize(
                self, get_examples, nlp, labels, Lists(gazetteers, clusters, vectors), start_from, corpus, shards
            )

    def update(
        self,
        examples: Iterable[Example],
        *,
        drop: float = 0.0,
        sgd: Optional[Optimizer] = None,
        losses: Optional[dict[str, float]] = None,
    ) -> dict[str, float]:
        """Learn from a batch of examples. With an optimizer that asks for the objective, the work is done in
        `finish_update`, and the loss – the objective after the step – is added to ``losses`` there. Where the corpus was read by
        `initialize`, the step is about that, and the batch only says that it is time.

        examples (Iterable[Example]): The batch.
        drop (float): The dropout rate, for emissions that have dropout.
        sgd (Optimizer): Takes the step at once, if given.
        losses (dict[str, float]): Record of the losses, by component.
        RETURNS (dict[str, float]): The record.
        """
        losses = {} if losses is None else losses
        losses.setdefault(self.name, 0.0)
        examples = list(examples)
        validate_examples(examples, f"{type(self).__name__}.update")
        self.require_ready([])
        self.training.update(TrainingBatch(examples, losses, drop, has_gradient=True), None if sgd is False else sgd)
        return losses

    def get_loss(self, examples: Iterable[Example], scores: Any) -> tuple[float, Any]:
        """Loss of a batch and its derivative.

        examples (Iterable[Example]): The batch.
        scores (ChainScores): What the model says of its predicted Docs.
        RETURNS (tuple[float, ChainScores])
        """
        examples = list(examples)
        validate_examples(examples, f"{type(self).__name__}.get_loss")
        return self.training.loss_of(examples, scores)

    def finish_update(self, sgd: Optimizer) -> None:
        """Take a step.

        sgd (Optimizer): Ignored where the component has an optimizer of its own, unless that one steps aside.
        """
        self.training.finish(sgd)

    @property
    def _rehearsal_model(self) -> None:
        return None

    @_rehearsal_model.setter
    def _rehearsal_model(self, model: Any) -> None:
        """`nlp.resume_training` sets it, where a component has it: it is how a component learns of that."""
        self.training.go_on()

    # -------------------------------------------------------------------------------------- what it has learned

    def weights(self, label: Optional[str] = None, top: Optional[int] = None) -> list[Any]:
        """What the model has learned of a label: the weights of its features, transitions and lengths that are not 0.

        label (str): A label, or one of its tags; all of them if None.
        top (int): How many at most.
        RETURNS (List[WeightRow]): The largest first: `feature`, `template`, `offset`, `tags`, `weight` and `count`. It is
            printed, and shown in a notebook, as a table of the first 20.
        RAISES (ValueError): For an unknown label.
        """
        return registry.get("misc", "spacy_crf.weights.v1")(self, label, top)

    def dump(self) -> str:
        """RETURNS (str): All weights that are not 0, one a line, the largest first: tags, feature and weight between tabs."""
        return registry.get("misc", "spacy_crf.dump.v1")(self)

    # -------------------------------------------------------------------------------------------------- scoring

    def score(self, examples: Iterable[Example], **kwargs: Any) -> dict[str, Any]:
        """What the scorer says."""
        examples = list(examples)
        validate_examples(examples, f"{type(self).__name__}.score")
        self.training.hear_of_scoring(examples)
        return super().score(examples, **kwargs)

    # --------------------------------------------------------------------------------------------------- saving

    def __reduce__(self):
        """For copies and other processes: what is kept from one call to the next is made anew there."""
        state = {name: getattr(self, name) for name in ("vocab", "name", "model", "cfg", "scorer")}
        state = {**state, **self.__dict__}
        schedules = getattr(self.optimizer, "schedules", {}).values()
        if any(isinstance(schedule, GeneratorType) for schedule in schedules):
            state["optimizer"] = partial(_refuse_step, self.name)
        return copyreg.__newobj__, (type(self),), state

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self._connect_stages()

    def to_bytes(self, *, exclude: Iterable[str] = ()) -> bytes:
        """RETURNS (bytes): Labels, settings and model, which are one whole; nothing where "model" is excluded.

        RAISES (ValueError): CRF413 if weights are not finite numbers.
        """
        file = io.BytesIO()
        if _WHOLE not in exclude:
            self._save(file)
        return file.getvalue()

    def _save(self, file: BinaryIO) -> None:
        self._validate_serialization_attrs()
        for node, name in parameters(self.model):
            if not node.ops.xp.isfinite(node.get_param(name)).all():
                raise ValueError(Errors.CRF413.format(name=self.name, param=name, node=node.name))
        model = self.model
        if self.training.prunes:
            model, n_weights, n_features = prune(model)
            text = "%s: %d weights that are zero and %d features without any other are left out of the saved model"
            announcements.info(text, self.name, n_weights, n_features)
        first = None if self.first_stage is None else self.first_stage.component.to_bytes()
        saving.pack_into(file, type(self).__name__, self._settings(), model, first)

    def _settings(self) -> dict[str, Any]:
        """What is saved beside the model."""
        return self.cfg

    def from_bytes(self, bytes_data: bytes, *, exclude: Iterable[str] = ()) -> "LearningPipe":
        """Load what `to_bytes` gave, unless "model" is excluded. After an error the component is as it was before.

        RAISES (ValueError): With what is wrong about the data.
        """
        if _WHOLE not in exclude:
            self._load(bytes_data, "the bytes given to from_bytes")
        return self

    def to_disk(self, path: Union[str, Path], *, exclude: Iterable[str] = ()) -> None:
        """Save to a folder, unless "model" is excluded. A model that is there already stays until the new one is complete."""
        if _WHOLE in exclude:
            return
        with whole(Path(path) / saving.FILE_NAME) as file:
            self._save(file)

    def from_disk(self, path: Union[str, Path], *, exclude: Iterable[str] = ()) -> "LearningPipe":
        """Load what `to_disk` wrote, unless "model" is excluded. After an error the component is as it was before.

        RAISES (ValueError): With the file and what is wrong about it.
        """
        if _WHOLE in exclude:
            return self
        file, data = saving.read(Path(path))
        self._load(data, str(file))
        return self

    def _load(self, data: bytes, source: str) -> None:
        with unpacking(data):
            self._take_saved(saving.unpack(data, source, type(self).__name__), source)
        self.training.begin()
        self.training.go_on()

    def _take_saved(self, saved: saving.Saved, source: str) -> None:
        try:
            with saving.unchanged_by_errors(self):
                self._take_settings(saved.settings)
                self._labels_changed()
                saving.load_model(self.model, saved.model, self.decoding.n_states)
                forget_gradients(self.model)  # they were of other weights
                self._load_first_stage(saved.first_stage)
                expect_kernels(self, needed.PREDICTION)
        except Exception as error:  # it may be anything, for anything may be in a file
            reason = saving.reason_of(error)
            raise ValueError(Errors.CRF505.format(source=source, name=self.name, reason=reason)) from error

    def _load_first_stage(self, saved: Optional[bytes]) -> None:
        """RAISES (ValueError): CRF510 if there is one on one side only."""
        stages = [None if stage is None else "a block" for stage in (saved, self.first_stage)]
        if stages[0] != stages[1]:
            raise ValueError(Errors.CRF510.format(setting="second_stage", saved=stages[0], ours=stages[1]))
        if saved is not None:
            self.first_stage.load(saved)

    def _take_settings(self, saved: dict[str, Any]) -> None:
        """Takes over what a saved component has learned; its other settings are those of the config.

        RAISES (ValueError): CRF510 for settings that would give the weights another meaning.
        """
        for name in self.meaning:
            if saved[name] != self.cfg[name]:
                raise ValueError(Errors.CRF510.format(setting=name, saved=saved[name], ours=self.cfg[name]))
        known = {name: list(dict.fromkeys(saved.get(name, ()))) for name in ("labels", "left_out")}
        for label in (*known["labels"], *known["left_out"]):
            self.annotation.check_label(label)
        self.cfg = {**self.cfg, **known}


def _refuse_step(name: str, *args: Any, **kwargs: Any) -> None:
    """Stands for an optimizer that could not come along."""
    raise ValueError(Errors.CRF507.format(name=name))
