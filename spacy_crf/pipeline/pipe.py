"""The base of all components: labels, the features that the model reads, batches of Docs, and the methods that spaCy calls.

A component's annotation (``annotation/``) reads and writes labels, its `Decoding` handles the structure. Modules that only learn
or save are imported when a component does that: `initialization`, `training`, `saving`.
"""

import copyreg
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import GeneratorType
from typing import Any, NamedTuple, Optional, TypeVar, Union

from spacy.language import Language
from spacy.pipeline import TrainablePipe
from spacy.tokens import Doc, Token
from spacy.training import Example, validate_examples
from spacy.vocab import Vocab
from thinc.api import Model, Optimizer

from .. import checks
from ..checks import is_written
from ..errors import Errors, shown
from ..features.clusters import ClusterSource
from ..features.doc_batch import DocBatch
from ..features.gazetteers import GazetteerFile
from ..features.token_columns import MOST_WORDS
from ..features.word_vectors import VectorSource
from ..inference.threads import default_threads
from ..kernels.compiling import crew
from ..losses.clamped import LabelledLoss
from ..models.emissions import EmissionFeatures
from ..optimizers.objective import CRFOptimizer
from ..types import ScoreArrays, Settings
from .annotation.entities import Annotation
from .decoding import Decoding, Parts, Rules, Warner

# Size of a batch. Tokenizing and predicting alternate, and each evicts the other's data from the caches, so large batches are
# better. But the scores of their tokens should stay in the cache, and each Doc consists of a dozen containers: containers that
# survive two garbage collections count as old, and when old objects grow by a quarter, Python searches all that spaCy has loaded.
# With 512 Docs, and the earlier ones still alive, that took a fifth of the time of short texts.
_MOST_TOKENS = 1 << 14
_MOST_DOCS = 256

# Estimated microseconds for evaluating the model, for each Doc and each token. These are constants, not timings, so that the same
# data gives the same model.
_PER_DOC = 100.0
_PER_TOKEN = 3.0

_WHOLE = "model"  # what `exclude` calls the component's file

PipeT = TypeVar("PipeT", bound="LearningPipe")


class _DecodingClass(NamedTuple):
    """Where the class of a decoding is, which is imported when a component needs it."""

    module: str
    name: str
    architecture: str  # an architecture that has this decoding, for messages


# By the name of the model's output type, or else by what the model labels. The node of a model may name another class
_DECODINGS: dict[Optional[str], _DecodingClass] = {
    "HigherOrderScores": _DecodingClass("higher_order", "HigherOrderDecoding", "spacy_crf.HigherOrder.v1"),
    "tokens": _DecodingClass("decoding", "Decoding", "spacy_crf.LinearChain.v1"),
    "segments": _DecodingClass("semi_markov", "SegmentDecoding", "spacy_crf.SemiMarkov.v1"),
    "texts": _DecodingClass("crf_textcat", "TextDecoding", "spacy_crf.MaxEntText.v1"),
}


class LearningPipe(Warner, TrainablePipe):
    """Base of all components, with a model, an annotation, a loss, and labels.

    model (Model): Computes the scores of a structure from Docs.
    annotation (Annotation): Reads and writes labels.
    loss (LabelledLoss): Loss that training minimises.
    optimizer (Optimizer): Used instead of [training.optimizer] if given; see `Training.optimizer_for`.
    max_words (int): Different words whose attributes, and in prediction whose scores, are cached.
    fixed_settings (tuple[str, ...]): Names of the settings that determine the meaning of weights: a saved component and the
        config must agree on them.
    settings: Further settings that are saved.
    """

    batch_class = DocBatch  # as which the component reads Docs
    labelled: Optional[str] = None  # what has labels: "tokens", "segments" or "texts"; None without labels
    first_stage: Any = None  # the `FirstStage`, which labels Docs for templates that read stage:NAME
    kernels_of: Optional[str] = None  # see `announce_kernels`; by default those of the model's structure
    # As the component's file has them; `training` has them as `LearnedTexts`, once it is made
    learned_texts: object = None
    is_loaded = False  # whether the weights come from a file
    evaluation = 0.0  # estimated microseconds of the last evaluation
    rules_train = False  # whether rules apply in training

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
        fixed_settings: tuple[str, ...] = (),
        **settings: object,
    ):
        self.vocab = vocab
        self.fixed_settings = fixed_settings
        self.model = model
        self.name = name
        owner = self.owner
        node = model.attrs.get("node") if isinstance(model, Model) else None
        if node is None or node.traits.labelled != self.labelled:
            checks.expect(
                False,
                owner,
                "model",
                getattr(model, "name", model),
                f"an architecture of {self.labelled}, such as {_DECODINGS[self.labelled].architecture}",
            )
        checks.expect(
            isinstance(loss, LabelledLoss),
            owner,
            "loss",
            loss,
            "a loss of spacy_crf, such as spacy_crf.LogLikelihood.v1",
        )
        checks.expect(
            optimizer is None or isinstance(optimizer, Optimizer), owner, "optimizer", optimizer, "an optimizer"
        )
        checks.expect(scorer is None or callable(scorer), owner, "scorer", scorer, "a scorer")
        # Whether optimizers can use the objective: all scores are sums of weights
        self.is_linear = all(part.attrs["node"].traits.is_linear for part in model.walk() if "node" in part.attrs)
        self.has_encoder = model.has_ref("tok2vec")
        self.is_pool = model.name == "pool"
        self.annotation = annotation
        self.loss = loss
        self._connect_stages()
        max_words = checks.count(owner, "max_words", max_words, most=1 << 30)
        for features in self.feature_stores:
            features.max_words = max_words
        self.optimizer = optimizer
        self.scorer = scorer
        self.cfg: Settings = {"labels": [], "left_out": [], "max_words": max_words, **settings}
        self.warned = set()
        self._labels_changed()
        self.check_optimizer(optimizer if isinstance(optimizer, CRFOptimizer) else None)
        if isinstance(optimizer, CRFOptimizer):
            if self.is_pool and (optimizer.wants_sequences or not optimizer.wants_whole_corpus):
                raise ValueError(Errors.CRF965.format(name=name, optimizer=type(optimizer).__name__))
            # `spacy train` evaluates with the averages of [training.optimizer] only
            optimizer.assigns_averages = optimizer.averages is not None

    def __repr__(self) -> str:
        labels = reprlib.repr(list(self.labels))
        learned = "" if self.is_initialized else ", not initialized"
        return f"<{type(self).__name__} '{self.name}': {self.model.name}, labels {labels}{learned}>"

    @property
    def owner(self) -> str:
        """Name of the component in messages about settings and arguments."""
        return f"Component '{self.name}'"

    # ---------------------------------------------------------------------------------------------------- labels

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels, in the order in which they were added."""
        return tuple(self.cfg["labels"])

    @property
    def label_data(self) -> list[str]:
        """The labels, as `spacy init labels` writes them and `initialize` reads them."""
        return list(self.labels)

    def tags(self) -> list[str]:
        """Names of the tags, in the order of the scores."""
        return self.annotation.tags()

    def add_label(self, label: str) -> int:
        """Add a label. A trained model keeps what it has learned; the weights of the new label are zero.

        label (str): A string, not the empty one.
        RETURNS (int): 0 if the component had the label already, otherwise 1.
        """
        self.annotation.check_label(label)
        if label in self.cfg["labels"]:
            return 0
        training = self.training if self.is_initialized else None  # knows what the model has learned so far
        self.cfg["labels"].append(label)
        try:
            self._labels_changed()
            if training is not None:
                self.model.attrs["node"].resize(self.model, self.decoding.n_states)
        except ValueError:  # the model cannot take another label
            self.cfg["labels"].remove(label)
            self._labels_changed()
            raise
        if training is not None and training.new_features is None:
            training.new_features = set()
        return 1

    def _labels_changed(self) -> None:
        """Make again what depends on the labels: the annotation, the decoding, the allowed transitions, and costs of the loss."""
        self.annotation = self.annotation.bind(self.name, self.vocab, self.labels)
        node = self.model.attrs["node"]
        decoding_class = node.decoding
        if decoding_class is None:
            location = _DECODINGS.get(node.gives.__name__) or _DECODINGS[self.labelled]
            module = import_module(f".{location.module}", __package__)
            decoding_class = getattr(module, location.name)
        self.decoding: Decoding = decoding_class(self.model, self.annotation)
        self.model.attrs["allowed"] = self.decoding.mask()
        self.model.attrs["tag_of"] = self.decoding.tag_of
        if hasattr(self.loss, "bind"):  # losses may have costs by label
            self.loss = self.loss.bind(self.decoding.state_labels)

    def choose_settings(self, get_examples: Callable[[], Iterable[Example]]) -> None:
        """Choose the settings that the config leaves to the training data, when its labels are known. `get_examples` reads it."""

    def check_settings(self) -> None:
        """Check the settings when the labels are known. RAISES (ValueError): If they do not fit the labels."""
        if hasattr(self.loss, "check_labels"):
            self.loss.check_labels()
        self.check_optimizer(None)

    def parts(self) -> Parts:
        """The model, annotation, decoding, loss and settings of the component, as functions of training take them."""
        return Parts(self.name, self.model, self.annotation, self.decoding, self.loss, None, self.cfg, self.warned)

    def rules(self) -> Optional[Rules]:
        """The rules that labellings keep, compiled for the labels; None without rules."""
        return None

    @property
    def chains(self: PipeT) -> Sequence[PipeT]:
        """The components that each have a single structure: the component itself, or the chains of a set."""
        return [self]

    @property
    def learner(self) -> "LearningPipe":
        """The component that learns the weights: itself, or for a chain of a set the set."""
        return self

    @property
    def is_initialized(self) -> bool:
        """Whether the component has weights, so that it can predict or continue learning."""
        return bool(self.model.has_dim("nO"))

    def require_ready(self, docs: Iterable[Doc]) -> DocBatch:
        """Check that the component can predict.

        docs (Iterable[Doc]): The Docs to predict, if there are any yet.
        RETURNS (DocBatch): The Docs as a batch.
        RAISES (ValueError): CRF479 for anything but Docs; CRF402 without weights; CRF962 for Docs without the vectors that the
            model needs; other codes for Docs without the annotation that the model needs.
        """
        batch = docs if isinstance(docs, DocBatch) else self.batch_class(only_docs(self.name, docs))
        if not self.is_initialized:
            self._require_labels()  # the error of spaCy for a component without labels comes first
            raise ValueError(Errors.CRF402.format(name=self.name))
        if self.has_encoder and batch:
            from .earlier_components import require_vectors  # models of features alone do not need it

            require_vectors(self.name, self.model, batch)
        self.decoding.check_docs(batch)
        return batch

    # -------------------------------------------------------------------------------------------------- features

    @property
    def sparse_features(self) -> Optional[EmissionFeatures]:
        """The features of tokens; None for models without any."""
        return self.model.get_ref("emissions").attrs.get("features") if self.model.has_ref("emissions") else None

    @property
    def feature_stores(self) -> list[Any]:
        """RETURNS (List[ListedFeatures]): All parts of the model that have templates."""
        return [value for part in self.model.walk() for value in part.attrs.values() if hasattr(value, "feature_set")]

    @property
    def token_attributes(self) -> list[str]:
        """Token attributes that the templates read, and others that the model needs."""
        read_by_templates = chain.from_iterable(
            features.feature_set.token_attributes for features in self.feature_stores
        )
        return list(dict.fromkeys([*read_by_templates, *self.model.attrs["node"].traits.token_attributes]))

    @property
    def asks_functions(self) -> bool:
        """Whether functions or extensions provide features, which may change from step to step."""
        return any(features.asks_functions for features in self.feature_stores)

    def _connect_stages(self) -> None:
        """Connect templates that read stage:NAME with the first stage.

        RAISES (ValueError): CRF810 if templates read stage:NAME without a first stage; CRF811 if a first stage is not read.
        """
        stores = self.feature_stores
        first_stage = self.first_stage
        self._connect_outer()
        if first_stage is not None:
            for features in stores:
                # Features of tokens also get the templates that the block [second_stage] names
                names = first_stage.settings.features if features is self.sparse_features else ()
                templates = [f"stage:{name}[0]" for name in names]
                features.set_stage(features.feature_set.with_stage(templates), first_stage)
        are_read = any(features.feature_set.reads_stage for features in stores)
        if are_read and first_stage is None:
            raise ValueError(Errors.CRF810.format(where=f"The features of component '{self.name}' read stage:NAME"))
        if first_stage is not None and not are_read:
            reason = "no template reads its first stage. Name some in second_stage.features, such as "
            reason += "stage:token_majority[0]"
            raise ValueError(Errors.CRF811.format(name=self.name, reason=reason))

    @property
    def reads_outer(self) -> bool:
        """Whether templates read the outermost spans."""
        return any(features.feature_set.reads_outer for features in self.feature_stores)

    def _connect_outer(self) -> None:
        """Connect templates that read the outermost spans. RAISES (ValueError): CRF812 for a component without levels."""
        if self.reads_outer:
            raise ValueError(Errors.CRF812.format(name=self.name))

    def clear_scores(self) -> None:
        """Clear the caches of scores, after weights were changed in place."""
        for features in self.feature_stores:
            features.clear_scores()

    def announce_kernels(self, phase: str) -> None:
        """Announce which kernels the component will call, if its features are those of tokens.

        phase (str): TRAINING or PREDICTION, of `kernels.compiling`.
        """
        if self.sparse_features is not None and not self.has_encoder:
            crew.announce(phase, self.kernels_of or self.model.name, default_threads())

    def assigns(self) -> list[str]:
        """Attributes that the component writes, as `nlp.analyze_pipes` names them."""
        return [*self.annotation.assigns]

    def requires(self) -> list[str]:
        """Attributes of earlier components that the templates read, as `nlp.analyze_pipes` names them."""
        names = ["is_sent_start" if name == "sent_start" else name for name in self.token_attributes]
        # The tokenizer sets the others
        attributes = [f"token.{name}" for name in names if name not in ("norm", "lang", "spacy")]
        for name in dict.fromkeys(chain.from_iterable(f.feature_set.extensions for f in self.feature_stores)):
            _, _, getter, _ = Token.get_extension(name)
            if getter is None:  # no component sets an extension with a getter
                attributes.append(f"token._.{name}")
        return attributes

    # ------------------------------------------------------------------------------------------------ prediction

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Process a stream of Docs in batches.

        stream (Iterable[Doc]): The Docs.
        batch_size (int): Most Docs in a batch; more than 256 are no faster, or fewer if they are long.
        """
        handle_error = self.get_error_handler()
        for docs in batches(self.name, stream, batch_size, self.model.attrs["node"].traits.group_of):
            try:
                self.set_annotations(docs, self.predict(self.batch_class(docs)))
                yield from docs
            except Exception as error:
                handle_error(self.name, self, docs, error)
            del docs  # before the next Docs are made

    # ------------------------------------------------------------------------------------------------- training

    @cached_property
    def training(self) -> Any:
        """How the component learns, see `training.Training`. It is made when it is first asked for."""
        return self.make_training()

    def make_training(self) -> Any:
        """RETURNS (Training): The initial state of the component's training."""
        from .training import Training

        return Training(self)

    def check_optimizer(self, optimizer: Optional[Optimizer]) -> None:
        """Check whether the component's settings fit its model, and whether an optimizer (None before it is known) can train it.

        RAISES (ValueError): If not: see `Node.check_fit`, and for ours `CRFOptimizer.check_fit`.
        """
        for part in self.model.walk():
            if "node" in part.attrs:
                part.attrs["node"].check_fit(part, self, optimizer)
        if isinstance(optimizer, CRFOptimizer):
            optimizer.check_fit(self)

    def initialize(
        self,
        get_examples: Callable[[], Iterable[Example]],
        *,
        nlp: Optional[Language] = None,
        labels: Optional[list[str]] = None,
        gazetteers: Optional[dict[str, GazetteerFile]] = None,
        clusters: Optional[ClusterSource] = None,
        vectors: Optional[VectorSource] = None,
        words: Optional[dict] = None,
        start_from: Optional[Union[str, Path]] = None,
        corpus: Optional[Callable[[Language], Iterable[Example]]] = None,
        shards: Any = None,  # Optional[Sharding], which spaCy could not check
    ) -> None:
        """Find the labels, count the features, and set the weights to zero. A trained component starts from scratch: it keeps its
        labels, gazetteers, clusters and vectors, but not its features and weights. To continue its training, load and `update`
        it, or name it as ``start_from``.

        get_examples (Callable[[], Iterable[Example]]): The training data, read several times.
        nlp (Language): The pipeline, for its tokenizer.
        labels (List[str]): The labels; found in the data if None.
        gazetteers (dict[str, Path]): Files of the gazetteers that templates name, each a path or a table with `path` and `attr`,
            the attribute by which words are compared: LOWER, ORTH or SHAPE. A loaded model keeps its gazetteers where none is
            given.
        clusters (Path): File of the clusters of words that templates read, or "spacy-lookups-data", or "vectors" to make clusters
            of the pipeline's vectors; or a table with this as `path`, `most_words` and, for vectors, `n`. A loaded model keeps
            its clusters if none are given.
        vectors (Path): Pipeline whose word vectors templates read, in place of this pipeline's vectors ([initialize] vectors); or
            a table with this as `path`, `dims`, the numbers to which each vector is reduced, and `length`, the mean length. A
            loaded model keeps its vectors if there are no new ones.
        words (dict): The last three in one table: `tables` (clusters by the name that templates use, as in
            ``cluster6:own[0]``, or a single table without a name), `vectors` and `gazetteers`.
        start_from (Path): A saved pipeline with a component of this name, or a saved component: its labels, features and
            weights are kept, and new ones are added.
        corpus (Callable[[Language], Iterable[Example]]): Read instead of get_examples, which for a streamed corpus (max_epochs =
            -1) yields its first hundred examples only. It is read block by block, and never held in memory. With an optimizer
            that uses the whole corpus in each step (such as L-BFGS), the component stores the data that training needs, and each
            update is a step on the whole corpus, whatever its batch.
        shards (Sharding): Settings for cutting the corpus into shards, for which workers compute parts of each step
            (docs/training.md).
        RAISES (ValueError): If no labels or no features are found, or a gazetteer can't be read. After an error the component is
            unchanged.
        """
        from .initialization import initialize

        initialize(
            self,
            get_examples,
            nlp=nlp,
            labels=labels,
            start_from=start_from,
            corpus=corpus,
            shards=shards,
            gazetteers=gazetteers,
            clusters=clusters,
            vectors=vectors,
            words=words,
        )

    def update(
        self,
        examples: Iterable[Example],
        *,
        drop: float = 0.0,
        sgd: Optional[Optimizer] = None,
        losses: Optional[dict[str, float]] = None,
    ) -> dict[str, float]:
        """Learn from a batch of examples. With an optimizer that uses the objective, `finish_update` does the work, and adds the
        loss – the objective after the step – to ``losses``. If `initialize` has read the corpus, the step uses that corpus, and
        the batch only triggers it.

        examples (Iterable[Example]): The batch.
        drop (float): Dropout rate, for emissions with dropout.
        sgd (Optimizer): Takes the step at once, if given.
        losses (dict[str, float]): Record of the losses, by component, which is returned.
        """
        losses = {} if losses is None else losses
        # spaCy logs the losses of all components, also of those that only count
        losses.setdefault(self.name, 0.0)
        examples = list(examples)
        validate_examples(examples, f"{type(self).__name__}.update")
        self.require_ready([])
        if self.model.attrs["node"].traits.counts is not None:
            self.training.skip_step(examples, sgd or None)
            return losses
        self.training.update(examples, losses, drop, None if sgd is False else sgd)
        return losses

    def get_loss(self, examples: Iterable[Example], scores: ScoreArrays) -> tuple[float, ScoreArrays]:
        """The loss of a batch.

        examples (Iterable[Example]): The batch.
        scores (ScoreArrays): What the model gives for its predicted Docs.
        RETURNS (Tuple[float, ScoreArrays]): The loss, and its derivative with respect to the scores.
        """
        examples = list(examples)
        validate_examples(examples, f"{type(self).__name__}.get_loss")
        return self.training.loss_of(examples, scores)

    def finish_update(self, sgd: Optimizer) -> None:
        """Take a step.

        sgd (Optimizer): Ignored if the component has its own optimizer, see `Training.optimizer_for`.
        """
        self.training.finish(sgd)

    @property
    def _rehearsal_model(self) -> None:
        return None

    @_rehearsal_model.setter
    def _rehearsal_model(self, model: object) -> None:
        # spaCy tells components in no other way that `nlp.resume_training` was called: it sets this attribute where it exists
        self.training.continue_training()

    def weights(self, label: Optional[str] = None, top: Optional[int] = None) -> list:
        """The learned weights of a label that are not 0: of features, transitions and lengths.

        label (str): A label, or one of its tags; None for all labels.
        top (int): Most weights.
        RETURNS (List[WeightRow]): The largest first: `feature`, `template`, `offset`, `tags`, `weight` and `count`. The list
            prints, and displays in notebooks, as a table of the first 20.
        RAISES (ValueError): For an unknown label.
        """
        from ..explain.weights import weights

        return weights(self, label, top)

    def dump(self) -> str:
        """RETURNS (str): All weights that are not 0, one per line, the largest first: tags, feature and weight between tabs."""
        from ..explain.weights import dump

        return dump(self)

    def score(self, examples: Iterable[Example], **kwargs: object) -> dict[str, Any]:
        """Scores of the component's scorer for examples with predicted Docs; `kwargs` are its settings."""
        examples = list(examples)
        validate_examples(examples, f"{type(self).__name__}.score")
        # Training compares the time of an evaluation with that of a pass over the corpus
        self.evaluation = sum(_PER_DOC + _PER_TOKEN * len(example.predicted) for example in examples)
        return super().score(examples, **kwargs)

    # --------------------------------------------------------------------------------------------------- saving

    def __reduce__(self):
        """State for copies and other processes, where caches are made anew."""
        state = {name: getattr(self, name) for name in ("vocab", "name", "model", "cfg", "scorer")}
        state = {**state, **self.__dict__, "_compiled": None}
        # Generators cannot be copied, and thinc keeps old schedules as generators
        schedules = getattr(self.optimizer, "schedules", {}).values()
        if any(isinstance(schedule, GeneratorType) for schedule in schedules):
            state["optimizer"] = partial(_refuse_step, self.name)
        make = copyreg.__newobj__  # pyright: ignore[reportAttributeAccessIssue]  not in its stub
        return make, (type(self),), state

    def __setstate__(self, state: Settings) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self._connect_stages()

    def to_bytes(self, *, exclude: Iterable[str] = ()) -> bytes:
        """RETURNS (bytes): Labels, settings and model together; empty if "model" is excluded.

        RAISES (ValueError): CRF413 if a weight is not finite.
        """
        from .saving import to_bytes

        return b"" if _WHOLE in exclude else to_bytes(self)

    def _settings(self) -> Settings:
        """Settings that are saved with the model."""
        return dict(self.cfg)

    def from_bytes(self, bytes_data: bytes, *, exclude: Iterable[str] = ()) -> "LearningPipe":
        """Load the result of `to_bytes`, unless "model" is excluded. After an error the component is unchanged.

        RAISES (ValueError): If the data is damaged or does not fit.
        """
        if _WHOLE not in exclude:
            from .saving import load

            load(self, bytes_data, "the bytes given to from_bytes")
        return self

    def to_disk(self, path: Union[str, Path], *, exclude: Iterable[str] = ()) -> None:
        """Save to a folder, unless "model" is excluded. An earlier model stays until the new one is complete."""
        if _WHOLE not in exclude:
            from .saving import to_disk

            to_disk(self, Path(path))

    def from_disk(self, path: Union[str, Path], *, exclude: Iterable[str] = ()) -> "LearningPipe":
        """Load a folder that `to_disk` wrote, unless "model" is excluded. After an error the component is unchanged.

        Warns (CRFW925) if the config.cfg beside the folder has other settings of decoding than the component was saved with.

        RAISES (ValueError): If the file is missing, damaged or does not fit; CRF927 if a process was killed while it replaced the
            files of the pipeline.
        """
        if _WHOLE not in exclude:
            from .saving import from_disk

            from_disk(self, Path(path))
        return self

    def _take_settings(self, saved: Settings) -> None:
        """Take over the learned state of a saved component; the other settings come from the config.

        RAISES (ValueError): CRF510 for settings that would change the meaning of the weights.
        """
        for name in self.fixed_settings:
            if not is_written(saved[name], self.cfg[name]):
                raise ValueError(Errors.CRF510.format(setting=name, saved=saved[name], ours=self.cfg[name]))
        learned: Settings = {name: list(dict.fromkeys(saved.get(name, ()))) for name in ("labels", "left_out")}
        # A damaged file may have anything as labels
        for label in (*learned["labels"], *learned["left_out"]):
            self.annotation.check_label(label)
        # Where the config agrees with the saved value, take the saved one: it has the original type, and `$` written once
        agreed = {
            name: saved[name] for name, value in self.cfg.items() if name in saved and is_written(saved[name], value)
        }
        self.cfg = {**self.cfg, **agreed, **learned}


def batches(
    name: str, docs: Iterable[Doc], batch_size: int, group_of: Optional[Callable[[Doc], object]] = None
) -> Iterator[list[Doc]]:
    """Cut a stream into batches of `batch_size` Docs, or fewer if these have many tokens.

    name (str): The component, for messages.
    docs (Iterable[Doc]): The Docs.
    group_of (Callable): The group of a Doc, None for none. The model reads the Docs of a group together, so those that follow one
        another stay in one batch, however many they are.
    RAISES (ValueError): CRF479 for anything but Docs.
    """
    batch = []
    n_tokens = 0
    most_docs = min(batch_size, _MOST_DOCS)
    checked = only_docs(name, docs)
    groups = ([doc] for doc in checked) if group_of is None else _groups(checked, group_of)
    for group in groups:
        batch += group
        n_tokens += sum(map(len, group))
        if len(batch) >= most_docs or n_tokens >= _MOST_TOKENS:
            yield batch
            batch = []
            n_tokens = 0
    if batch:
        yield batch


def _groups(docs: Iterable[Doc], group_of: Callable[[Doc], object]) -> Iterator[list[Doc]]:
    """Lists of successive Docs that have one group; a Doc without a group (None) has a list of its own."""
    members: list[Doc] = []
    group_before = None
    for doc in docs:
        group = group_of(doc)
        if members and (group is None or group != group_before):
            yield members
            members = []
        members.append(doc)
        group_before = group
    if members:
        yield members


def only_docs(name: str, docs: Iterable[Doc]) -> Iterator[Doc]:
    """Yield the Docs for the component `name` after a check. RAISES (ValueError): CRF479 for anything but Docs."""
    if not isinstance(docs, Iterable):
        raise ValueError(Errors.CRF479.format(name=name, value=shown(docs)))
    for doc in docs:
        check_doc(name, doc)
        yield doc


def check_doc(name: str, doc: object) -> None:
    """Check an input of the component `name`. RAISES (ValueError): CRF479 if `doc` is anything but a Doc."""
    if not isinstance(doc, Doc):
        raise ValueError(Errors.CRF479.format(name=name, value=shown(doc)))


def _refuse_step(name: str, *args: object, **kwargs: object) -> None:
    """Called in place of the optimizer of the component `name`, which could not be copied. RAISES (ValueError): CRF507."""
    raise ValueError(Errors.CRF507.format(name=name))
