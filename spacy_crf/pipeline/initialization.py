"""What a component finds out before it is trained: its labels, its features, and the corpus if it is streamed."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Optional, Protocol

import numpy as np
from spacy.language import Language
from spacy.tokens import Doc, Token
from spacy.training import Example, validate_get_examples
from spacy.util import check_lexeme_norms
from thinc.api import Optimizer

from .. import checks
from ..errors import Errors, Warnings, announcements, counted
from ..features.clusters import Clusters, ClusterSource, read_clusters
from ..features.doc_batch import DocBatch
from ..features.gazetteers import GazetteerFile, read_gazetteers
from ..features.word_vectors import VectorSource, WordVectors, read_vectors
from ..kernels import needed
from ..losses.clamped import LogLikelihood
from ..models.node import AnnotatedDocs, forget
from ..models.objective import CorpusObjective, TiedObjective
from ..models.pool import held_out_sequences
from . import saving
from .annotation.annotation import GoldReport, reported_once
from .earlier_components import EarlierAnnotation, annotators_that_learn, require_upstream
from .gradient_step import forget_gradients
from .labels import LabelPipe
from .new_texts import NewFeatures, labels_of
from .prepared_corpus import InitialCorpus, takes_objective, view_for

Read = Callable[[], Iterable[Example]]


class ShardedWork(Protocol):
    """A training whose corpus is cut into shards, see `lab.shards.shards`."""

    def restore(self, pipe: LabelPipe) -> bool:
        """Takes up what was found before. RETURNS (bool): Whether that is all."""
        ...

    def cut(self, examples: Iterable[Example]) -> Read:
        """RETURNS (Read): The examples, as they lie in the shards."""
        ...

    def count(self, pipe: LabelPipe, had_labels: bool) -> bool:
        """Has the workers count the features. RETURNS (bool): Whether they could."""
        ...

    def corpus(self, pipe: LabelPipe) -> Any:
        """RETURNS (PreparedCorpus): What every step is about."""
        ...


class Sharding(Protocol):
    """What `[initialize.components.NAME.shards]` names."""

    def begin(
        self, pipe: LabelPipe, nlp: Optional[Language], optimizer: Optional[Optimizer], *, goes_on: bool
    ) -> ShardedWork: ...


class Lists(NamedTuple):
    """What templates read beside the texts, as a config names it."""

    gazetteers: Optional[dict[str, GazetteerFile]] = None
    clusters: Optional[ClusterSource] = None
    vectors: Optional[VectorSource] = None


def initialize(
    pipe: LabelPipe,
    get_examples: Read,
    nlp: Optional[Language],
    labels: Optional[Iterable[str]],
    lists: Lists,
    start_from: Any,
    corpus: Optional[Callable[[Language], Iterable[Example]]],
    shards: Optional["Sharding"] = None,
) -> None:
    """See `CRFPipe.initialize`."""
    gazetteers = checks.table(pipe.owner, "gazetteers", lists.gazetteers, "files")
    possible = labels is None or (isinstance(labels, Iterable) and not isinstance(labels, (str, bytes)))
    checks.expect(possible, pipe.owner, "labels", labels, "a list of texts")
    checks.expect(corpus is None or callable(corpus), pipe.owner, "corpus", corpus, "a reader of examples")
    must = 'a block with @misc = "spacy_crf.shards.v1"'
    checks.expect(shards is None or hasattr(shards, "begin"), pipe.owner, "shards", shards, must)
    if nlp is not None and pipe.has_encoder:
        require_upstream(pipe.name, pipe.model, nlp)
    saved = _saved(pipe, start_from)
    optimizer = pipe.training.foresee(nlp)
    pipe.expect_kernels(needed.TRAINING if takes_objective(optimizer) else needed.PREDICTION)
    is_streamed = nlp is not None and (nlp.config.get("training") or {}).get("max_epochs") == -1
    wants_stream = is_streamed and takes_objective(optimizer) and optimizer.wants_whole_corpus
    if corpus is not None:
        get_examples = partial(corpus, nlp)
    elif is_streamed and shards is not None:
        raise ValueError(Errors.CRF478.format(name=pipe.name))
    elif is_streamed:
        pipe.warn(Warnings.CRFW401)
        if wants_stream:
            pipe.warn(Warnings.CRFW404, optimizer=type(optimizer).__name__)
    finds_optimum = pipe.training.finds_optimum
    prepares = wants_stream and corpus is not None and pipe.is_linear and not pipe.has_encoder
    work = None if shards is None else shards.begin(pipe, nlp, optimizer, goes_on=saved is not None)
    if nlp is not None and (prepares or finds_optimum or work is not None):
        _check_annotators(pipe, nlp, type(optimizer if prepares else pipe.optimizer).__name__)
    validate_get_examples(get_examples, f"{type(pipe).__name__}.initialize")
    check_lexeme_norms(pipe.vocab, pipe.name)
    get_examples = at_least_one(get_examples, pipe.name, nlp, has_own=corpus is not None)
    labels_cut: set[str] = set()  # of the texts, as far as they are cut now
    if work is not None:
        examples = _as_in_training(pipe, get_examples(), nlp)
        get_examples = work.cut(examples if labels is not None else _noted(pipe, examples, labels_cut))
        if work.restore(pipe):
            pipe.training.corpus = work.corpus(pipe)
            return
    if saved is not None:
        pipe.from_disk(saved)
    had_labels = bool(pipe.labels) or labels is not None
    for label in sorted(labels_cut or labels_of(pipe, get_examples())) if labels is None else labels:
        pipe.add_label(label)
    if not pipe.labels and not (pipe.annotation.may_have_no_labels and are_made_up(get_examples())):
        raise ValueError(Errors.CRF403.format(name=pipe.name))
    if saved is None:
        pipe.choose_settings(get_examples)
    pipe.check_settings()
    if saved is None:
        pipe.training.continuation = None
        forget(pipe.model)
    clusters = _clusters(pipe, lists.clusters, goes_on=saved is not None)
    vectors = _vectors(pipe, lists.vectors, goes_on=saved is not None)
    _set_lists(pipe, gazetteers, clusters, vectors, nlp)
    pipe.training.measure(get_examples)
    if pipe.first_stage is not None and saved is None:
        _learn_first_stage(pipe, get_examples, nlp)
    is_counted = work is not None and work.count(pipe, had_labels)
    if not is_counted and not count(pipe, get_examples, nlp if work is None else None, had_labels):
        # At most labels, as `nlp.initialize()` without examples has them
        pipe.warn(Warnings.CRFW412, n=len(pipe.labels))
        pipe.training.new_features = NewFeatures()
    _tell_counted(pipe)
    if saved is None and pipe.model.attrs.get("restarts", 1) > 1 and pipe.training.new_features is None:
        choose_beginning(pipe, get_examples() if nlp is None else _as_in_training(pipe, get_examples(), nlp), optimizer)
    if finds_optimum and pipe.training.new_features is None:
        find_optimum(pipe, _as_in_training(pipe, get_examples(), nlp))
    if work is not None:
        pipe.training.corpus = work.corpus(pipe)
    elif prepares:
        announcements.info("%s: reading the features of the corpus that every step is about", pipe.name)
        pipe.training.corpus = InitialCorpus(pipe, _as_in_training(pipe, get_examples(), nlp), view_for(optimizer))


def _learn_first_stage(pipe: LabelPipe, get_examples: Read, nlp: Optional[Language]) -> None:
    """RAISES (ValueError): CRF815 if components annotate that are trained in the same run; CRF811."""
    others = [] if nlp is None else annotators_that_learn(nlp, pipe.name)
    if others:
        raise ValueError(Errors.CRF815.format(name=pipe.name, others=", ".join(map(repr, others))))
    if not labels_of(pipe, get_examples()):
        reason = "the first stage learns from the examples of nlp.initialize, which have no annotation. Give the training data"
        raise ValueError(Errors.CRF811.format(name=pipe.name, reason=reason))
    pipe.first_stage.learn(pipe, lambda: get_examples() if nlp is None else _as_in_training(pipe, get_examples(), nlp))


def _saved(pipe: LabelPipe, start_from: Any) -> Optional[Path]:
    """The folder of the component to start from, None for none.

    RAISES (ValueError): CRF670 if there is none at this path.
    """
    if start_from is None:
        return None
    checks.expect(isinstance(start_from, (str, Path)), pipe.owner, "start_from", start_from, "a path")
    path = Path(start_from)
    for folder in (path / pipe.name, path):
        if (folder / saving.FILE_NAME).is_file():
            return folder
    why = "has no component of this name" if path.is_dir() else "is no folder"
    raise ValueError(Errors.CRF670.format(name=pipe.name, path=path, why=why))


def _check_annotators(pipe: LabelPipe, nlp: Language, optimizer: str) -> None:
    """RAISES (ValueError): CRF410 if components annotate that are trained in the same run."""
    others = annotators_that_learn(nlp, pipe.name)
    if others:
        others = ", ".join(map(repr, others))
        raise ValueError(Errors.CRF410.format(name=pipe.name, optimizer=optimizer, others=others))


def _clusters(pipe: LabelPipe, given: Optional[ClusterSource], *, goes_on: bool) -> Optional[Clusters]:
    """Those that the config names, or the model has.

    goes_on (bool): Whether weights stay that were learned with the model's.
    RAISES (ValueError): CRF944 if no template reads them, CRF950 if the weights were learned with others.
    """
    stores = [features for features in pipe.feature_stores if features.feature_set.reads_clusters]
    if not stores:
        if given is not None:
            unread = {"what": "clusters", "template": "cluster6[-1..1]", "setting": "clusters"}
            raise ValueError(Errors.CRF944.format(name=pipe.name, **unread))
        return None
    known = next((features.clusters for features in stores if features.clusters is not None), None)
    read = read_clusters(given, known, pipe.vocab, name=pipe.name)
    if goes_on and read != known:
        settings = f"[initialize.components.{pipe.name}] clusters"
        raise ValueError(Errors.CRF950.format(name=pipe.name, what="clusters", settings=settings))
    return read


def _vectors(pipe: LabelPipe, given: Optional[VectorSource], *, goes_on: bool) -> Optional[WordVectors]:
    """Those that the config names, the pipeline has, or the model.

    goes_on (bool): Whether weights stay that were learned with the model's.
    RAISES (ValueError): CRF944 if no template reads them, CRF950 if the weights were learned with others.
    """
    stores = [features for features in pipe.feature_stores if features.feature_set.vector_offsets]
    if not stores:
        if given is not None:
            unread = {"what": "vectors", "template": "vector[-1..1]", "setting": "vectors"}
            raise ValueError(Errors.CRF944.format(name=pipe.name, **unread))
        return None
    known = stores[0].vectors
    read = read_vectors(given, known, pipe.vocab, name=pipe.name)
    if known is not None and read is not known and goes_on:
        settings = f"[initialize] vectors and [initialize.components.{pipe.name}] vectors"
        raise ValueError(Errors.CRF950.format(name=pipe.name, what="vectors", settings=settings))
    return read


def _set_lists(
    pipe: LabelPipe,
    files: dict[str, GazetteerFile],
    clusters: Optional[Clusters],
    vectors: Optional[WordVectors],
    nlp: Optional[Language],
) -> None:
    stores = pipe.feature_stores
    wanted = {name for features in stores for name in features.feature_set.gazetteers}
    unused = [name for name in files if name not in wanted]
    if unused:
        unread = {"what": f"gazetteers {', '.join(unused)}", "template": f"in:{unused[0]}[0]", "setting": "gazetteers"}
        raise ValueError(Errors.CRF944.format(name=pipe.name, **unread))
    tokenizer = nlp.make_doc if nlp is not None else lambda text: Doc(pipe.vocab, words=text.split())
    known = {name: gazetteer for features in stores for name, gazetteer in features.gazetteers.items()}
    read = read_gazetteers(files, tokenizer, known, owner=pipe.owner)
    for features in stores:
        features.set_lists(read, clusters, vectors)


def count(pipe: LabelPipe, get_examples: Read, nlp: Optional[Language], had_labels: bool) -> bool:
    """Counts features.

    RETURNS (bool): Whether anything is annotated, if there are texts.
    RAISES (ValueError): CRF431 if nothing is annotated, and nobody named labels.
    """
    report, left_out, was_read, says_something = GoldReport(), set(pipe.cfg["left_out"]), False, False
    annotate, unread = earlier_annotation(pipe, nlp), MissingAttributes(pipe)

    def annotated() -> Iterator[AnnotatedDocs]:
        nonlocal says_something, was_read
        was_read = True
        # Without labels there is nothing to count, but neural layers want to see a text
        for examples in pipe.training.blocks(get_examples() if pipe.labels or pipe.has_encoder else ()):
            docs = [annotate(example) for example in examples]
            unread.look_at(docs)
            batch = pipe.training.to_count(docs, examples, report)
            if pipe.labels:
                says_something |= _says_something(batch.allowed, len(pipe.tags())) or len(batch.excluded.start) > 0
            left_out.update(labels_of(pipe, examples).difference(pipe.labels))
            yield batch
        if not says_something and pipe.labels and not had_labels:
            raise ValueError(Errors.CRF431.format(name=pipe.name))

    pipe.training.begin()
    pipe.model.initialize(X=reported_once(annotated, report, pipe.name), Y=(pipe.vocab, pipe.decoding.n_states))
    forget_gradients(pipe.model)
    pipe.cfg["left_out"] = sorted(left_out.difference(pipe.labels))
    unread.tell()
    return says_something or not was_read


def _tell_counted(pipe: LabelPipe) -> None:
    """How much there is to learn."""
    if pipe.sparse_features is not None:
        known = pipe.sparse_features.states
        counts = {"label": len(pipe.labels), "feature": len(known.index), "weight": known.n_weights}
        announcements.info("%s: %s, %s of tokens with %s", pipe.name, *(counted(n, what) for what, n in counts.items()))
    if pipe.model.attrs["role"].has_hidden(pipe.model) and "seed" in pipe.model.attrs:
        text = "%s: with hidden states the objective has more than one minimum: which is found is up to the seed, which is %d"
        announcements.info(text, pipe.name, pipe.model.attrs["seed"])
    _tell_known_words(pipe)


def _tell_known_words(pipe: LabelPipe) -> None:
    """How many words of the training data have clusters and vectors: those of another language, or of words spelled otherwise,
    have few."""
    stores = pipe.feature_stores
    read = [features.clustered for features in stores if features.feature_set.reads_clusters]
    in_clusters = [(int(known.are_in_one.sum()), len(known.words)) for known in read if known is not None]
    with_vectors = [features.have_vectors for features in stores if features.feature_set.vector_offsets]
    for known, what, is_what in (
        (in_clusters, "are in a cluster", "is in a cluster"),
        (with_vectors, "have a vector", "has a vector"),
    ):
        for found, n in known[:1]:
            if n and not found:
                pipe.warn(Warnings.CRFW940, n=n, what=is_what)
            else:
                announcements.info("%s: %d of %d words of the training data %s", pipe.name, found, n, what)


def earlier_annotation(pipe: LabelPipe, nlp: Optional[Language]) -> Callable[[Example], Doc]:
    """Gives the predicted Docs of examples what the component's features read of components before it."""
    read = pipe.token_attributes
    if not read:
        return lambda example: example.predicted
    return EarlierAnnotation(nlp, pipe.name, [name for name in read if name not in pipe.annotation.writes])


def _noted(pipe: LabelPipe, examples: Iterable[Example], labels: set[str]) -> Iterator[Example]:
    """The same examples, whose labels are entered: to read millions of texts once more takes minutes."""
    for example in examples:
        labels.update(labels_of(pipe, [example]))
        yield example


def _as_in_training(pipe: LabelPipe, examples: Iterable[Example], nlp: Language) -> Iterator[Example]:
    """Examples whose predicted Docs are annotated as `nlp.update` does it."""
    annotate = EarlierAnnotation(nlp, pipe.name, [])
    for example in examples:
        doc = annotate(example)
        yield example if doc is example.predicted else Example(doc, example.reference)


def _says_something(allowed: Any, n_tags: int) -> bool:
    """Whether a clamp rules anything out, if there is anything to rule out."""
    return n_tags < 2 or not getattr(allowed, "states", allowed).all()


def find_optimum(pipe: LabelPipe, examples: Iterable[Example]) -> None:
    """Trains the member of a pool that has one by the component's own optimizer, and lets it rest from then on.

    examples (Iterable[Example]): Annotated by earlier components, read once.
    """
    pool, optimizer = pipe.model, pipe.optimizer
    announcements.info("%s: looking for the best weights of the features, before the encoder learns", pipe.name)
    objective = TiedObjective(pool.layers[0], pipe.loss, _taught(pipe, examples))
    optimizer.forget(pipe.name)
    while optimizer.stop_reason(pipe.name) is None:
        optimizer.step(objective, key=pipe.name)
    optimizer.forget(pipe.name)  # it takes much memory
    pipe.forget_scores()
    pool.attrs["role"].at_rest = 1


def _taught(pipe: LabelPipe, examples: Iterable[Example]) -> Iterator[AnnotatedDocs]:
    """Texts of which those that are held out count nothing."""
    for block in pipe.training.blocks(examples):
        batch = pipe.training.data(block)
        held_out = held_out_sequences(DocBatch.of(batch.docs), batch.starts, pipe.model.attrs["held_out"])
        weights = np.ones(len(held_out)) if batch.weights is None else batch.weights
        yield batch._replace(weights=np.where(held_out, 0.0, weights))


_ITERATIONS = 20  # after which beginnings are compared
_L2 = 0.1  # where the optimizer has none


def choose_beginning(pipe: LabelPipe, examples: Iterable[Example], optimizer: Any) -> None:
    """Takes some iterations of L-BFGS from each beginning, and lets training go on from where the objective is least.

    examples (Iterable[Example]): Annotated by earlier components, read once.
    optimizer (Optimizer): That of the training, whose l2 counts.
    """
    from ..optimizers.lbfgs import LBFGS  # prediction does without

    model = pipe.model
    loss = pipe.loss if pipe.loss.smooth else LogLikelihood().bind(pipe.decoding.state_labels)
    objective = CorpusObjective(model, loss, map(pipe.training.data, pipe.training.blocks(examples)))
    first, l2 = model.attrs["seed"], getattr(optimizer, "l2", _L2)
    found = []
    for seed in range(first, first + model.attrs["restarts"]):
        objective.assign(np.zeros_like(objective.weights()))
        model.attrs["role"].spread_out(model, seed)
        begins = LBFGS(l2=l2, iterations_per_step=_ITERATIONS)
        value = begins.step(objective, key=f"{pipe.name}, seed {seed}")
        found.append((value, seed, objective.weights()))
    best, seed, weights = min(found, key=lambda item: item[:2])
    objective.assign(weights)
    pipe.forget_scores()
    text = "%s: begins with seed %d, whose objective after %d iterations is %.2f; with the others it is %.2f to %.2f"
    others = [value for value, other, _ in found if other != seed]
    announcements.info(text, pipe.name, seed, _ITERATIONS, best, min(others), max(others))


def at_least_one(
    get_examples: Callable[[], Iterable[Example]], name: str, nlp: Optional[Language], *, has_own: bool
) -> Callable[[], Iterator[Example]]:
    """The same examples, whose end is an error if there was none.

    name (str): The component that reads them.
    nlp (Language): Its pipeline, whose config tells where they come from.
    has_own (bool): Whether they are those of [initialize.components.NAME.corpus].
    """

    def read() -> Iterator[Example]:
        example = None
        for example in get_examples():
            yield example
        if example is None:
            raise ValueError(Errors.CRF712.format(name=name, reason=_why_empty(name, nlp, has_own)))

    return read


def are_made_up(examples: Iterable[Example]) -> bool:
    """Whether they are what `nlp.initialize` makes up where it is given none: a single text without annotation."""
    return [[token.text for token in example.reference] for example in examples] == [["x", "y", "z"]]


def _why_empty(name: str, nlp: Optional[Language], has_own: bool) -> str:
    section, path = _source(name, nlp, has_own)
    if path is None:
        return "get_examples gave none"
    if not path.exists():
        why = "does not exist"
    elif path.is_dir():
        why = "is a folder without .spacy files, or with empty ones"
    elif path.suffix != ".spacy":
        why = f"is no .spacy file. `python -m spacy crf convert {path} {path.with_suffix('.spacy')}` makes one of it"
    else:
        why = "holds no texts, or none that limit and max_length let through"
    return f"[{section}] path = {path} {why}"


def _source(name: str, nlp: Optional[Language], has_own: bool) -> tuple[str, Optional[Path]]:
    """The section of the config that names the corpus, and its path, if it has one."""
    if nlp is None:
        return "", None
    config = nlp.config.interpolate()
    section = config["training"].get("train_corpus") or ""
    if has_own:
        section = f"initialize.components.{name}.corpus"
    block = config
    for key in section.split("."):
        block = block.get(key) if isinstance(block, dict) else None
    path = block.get("path") if isinstance(block, dict) else None
    return section, Path(path) if path else None


# Every Doc has these
_ALWAYS = ("norm", "lang", "spacy")


class MissingAttributes:
    """What a component's templates read of the output of others, and no Doc had so far.

    pipe (LabelPipe): The component.
    """

    def __init__(self, pipe: LabelPipe):
        self._pipe = pipe
        self._attributes = {name for name in pipe.token_attributes if name not in _ALWAYS}
        names = {name for features in pipe.feature_stores for name in features.feature_set.extensions}
        # A getter, or a default, gives every Doc a value
        self._extensions = {name for name in names if not any(x is not None for x in Token.get_extension(name)[:3])}
        self._n_docs = 0

    def look_at(self, docs: list[Doc]) -> None:
        """Ends as soon as everything was found."""
        self._n_docs += len(docs)
        for doc in docs:
            if not self._attributes and not self._extensions:
                return
            self._attributes -= {name for name in self._attributes if doc.has_annotation(name.upper())}
            if self._extensions:
                self._extensions -= {key[1] for key in doc.user_data if key[0] == "._."}

    def tell(self) -> None:
        """Warns of what is left."""
        names = sorted(self._attributes) + sorted(f"ext:{name}" for name in self._extensions)
        if self._n_docs and names:
            self._pipe.warn(Warnings.CRFW885, attributes=", ".join(names), n=self._n_docs)
