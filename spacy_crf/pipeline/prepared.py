"""Training by the objective: the corpus that `initialize` has read or the examples of a batch, kept from step to step."""

from collections.abc import Iterable, Iterator
from typing import Any, Optional

import numpy as np
from spacy.training import Example

from ..errors import Errors, Warnings, announcements, counted
from ..features.doc_batch import DocBatch
from ..features.token_columns import ANNOTATION
from ..models.node import AnnotatedDocs, Evidence
from ..models.objective import CorpusObjective, TiedObjective
from ..models.pool import held_out_sequences
from ..models.sequences import SequencesObjective
from ..optimizers.objective import CRFOptimizer
from . import supervision
from .annotation.entities import Keys
from .pipe import LearningPipe

# Estimated microseconds for evaluating the objective with two threads, for each token and possible tag: constants, not timings
_PASS_PER_TOKEN = 0.2
_PASS_PER_TAG = 0.02
# Views of a corpus for optimizers: one evaluates the whole corpus, the other learns from one sequence after the other
VIEWS = {"objective": CorpusObjective, "sequences": SequencesObjective}


def view_for(optimizer: CRFOptimizer) -> str:
    """The view of a corpus for an `optimizer` that takes the objective: a key of `VIEWS`."""
    return "sequences" if optimizer.wants_sequences else "objective"


def step(training: Any, optimizer: CRFOptimizer, examples: list[Example]) -> float:
    """Take a step of an optimizer that uses the objective. RETURNS (float): The value of the objective.

    training (Training): The training of the component.
    optimizer (CRFOptimizer): Takes the step.
    examples (list[Example]): Texts of the step; empty for the texts of the last step.
    RAISES (ValueError): CRF411 if labels, features or rules of the component have changed since.
    """
    pipe = training.pipe
    kind = view_for(optimizer)
    if not examples:
        if training.corpus is None or training.corpus.kind != kind or not training.corpus.fits_pipe:
            raise ValueError(Errors.CRF411.format(name=pipe.name))
    elif training.corpus is None or training.corpus.kind != kind or not training.corpus.holds(examples):
        if training.corpus is None:  # a sign of life before the first step, which takes longest
            announcements.info("%s: reading features of %s", pipe.name, counted(len(examples), "text"))
        training.add_labels_and_features(examples)
        training.announce_continuation(len(examples))
        training.corpus = PreparedBatch(pipe, examples, kind)
    # How many passes over the corpus take as long as one evaluation of the model
    per_token = _PASS_PER_TOKEN + _PASS_PER_TAG * pipe.decoding.n_states
    training.corpus.objective.passes_per_evaluation = pipe.evaluation / (per_token * max(1, training.corpus.n_tokens))
    is_worth_evaluating = False
    try:
        while not is_worth_evaluating:
            training.corpus.before_step(optimizer)
            value = optimizer.step(training.corpus.objective, key=pipe.name)
            training.corpus.after_step(optimizer)
            is_worth_evaluating = optimizer.is_worth_evaluating(pipe.name)
    except KeyboardInterrupt:
        text = (
            "%s: interrupted. In memory is the model of the last complete step (of L-BFGS: iteration); `spacy train` "
            "saves it as model-last, and keeps in model-best that of its best evaluation so far, if there was one"
        )
        announcements.info(text, pipe.name)
        raise
    n_impossible = getattr(training.corpus.objective, "n_impossible", 0)
    if n_impossible:
        pipe.warn_once(Warnings.CRFW403, n=n_impossible)
    tick = training.tick
    training.tick = None
    if tick is not None:
        tick.goes_on[pipe.name] = optimizer.stop_reason(pipe.name) is None
    training.prunes = optimizer.leaves_zeros
    return value


def find_optimum(pipe: LearningPipe, examples: Iterable[Example]) -> None:
    """Train the sparse features of a pool, whose objective has an optimum, by the component's own optimizer. Afterwards this
    member is fixed, and the encoder learns.

    pipe (LearningPipe): The component, whose model is a pool.
    examples (Iterable[Example]): The training data, annotated by earlier components. Held-out texts do not count.
    """
    pool = pipe.model
    optimizer = pipe.optimizer
    if pipe.training.new_features is not None or not isinstance(optimizer, CRFOptimizer):
        return
    announcements.info("%s: looking for the best weights of the features, before the encoder learns", pipe.name)

    def training_batches() -> Iterator[AnnotatedDocs]:
        for block in pipe.training.blocks(examples):
            batch = pipe.training.data(block)
            held_out = held_out_sequences(DocBatch.of(batch.docs), batch.starts, pool.attrs["held_out"])
            weights = np.ones(len(held_out)) if batch.weights is None else batch.weights
            yield batch._replace(weights=np.where(held_out, 0.0, weights))

    objective = TiedObjective(pool.layers[0], pipe.loss, training_batches())
    optimizer.forget(pipe.name)
    while optimizer.stop_reason(pipe.name) is None:
        optimizer.step(objective, key=pipe.name)
    optimizer.forget(pipe.name)  # its state takes much memory
    pipe.clear_scores()
    pool.attrs["node"].n_frozen = 1


class PreparedCorpus:
    """The objective of a corpus, kept from step to step. If `initialize` has read it, every batch stands for all of it.

    examples (Iterable[Example]): Texts, read once, block by block, and not kept.
    kind (str): View of the corpus: "objective" or "sequences".
    """

    is_initial = True  # whether `initialize` has read the corpus

    def __init__(self, pipe: LearningPipe, examples: Iterable[Example], kind: str):
        self._pipe = pipe
        self.kind = kind
        self.evidence: Optional[Evidence] = None  # of the corpus, if the model continues from earlier training
        self.n_tokens = 0
        self._parts_before = self._parts_of_pipe()
        corpus = (self._count(pipe.training.data(block, kind)) for block in pipe.training.blocks(examples))
        view = VIEWS[kind]
        if view is CorpusObjective and pipe.training.continuation is None:
            view = TiedObjective  # when training continues, each weight starts from its own value
        self.objective: Any = view(pipe.model, pipe.loss, corpus)
        if pipe.training.continuation is not None:
            from ..optimizers.anchor import Anchored  # prediction does not need it

            anchor = pipe.training.continuation.anchor(pipe, self.evidence)
            if kind == "objective":
                self.objective = Anchored(self.objective, anchor)
            else:
                self.objective.anchor = anchor

    def _count(self, batch: AnnotatedDocs) -> AnnotatedDocs:
        """Add the tokens of a batch to `n_tokens` and, if training continues, its evidence to `evidence`. RETURNS: The batch."""
        self.n_tokens += sum(map(len, batch.docs))
        if self._pipe.training.continuation is not None:
            evidence = self._pipe.training.frame().evidence_of(batch.docs)
            self.evidence = evidence if self.evidence is None else self.evidence.plus(evidence)
        return batch

    def _parts_of_pipe(self) -> tuple:
        """The features and the rules of the component, on which the objective depends."""
        rules = [chain.rules() for chain in self._pipe.chains] if self._pipe.rules_train else ()
        return self._pipe.sparse_features, *rules

    @property
    def fits_pipe(self) -> bool:
        """Whether the component still has the features, tags and rules for which this objective was made."""
        return all(before is now for before, now in zip(self._parts_before, self._parts_of_pipe()))

    def holds(self, examples: list[Example]) -> bool:
        """Whether a step with these examples uses this corpus: each step does, since it is about all texts.

        RAISES (ValueError): CRF411 if labels, features or rules of the component have changed since.
        """
        if not self.fits_pipe:
            raise ValueError(Errors.CRF411.format(name=self._pipe.name))
        return True

    def before_step(self, optimizer: CRFOptimizer) -> None:
        """Prepare a step of an optimizer."""

    def after_step(self, optimizer: CRFOptimizer) -> None:
        """Finish a step of an optimizer."""


class PreparedBatch(PreparedCorpus):
    """The objective of one batch, valid for the same examples with the same annotation.

    `spacy train` shuffles the examples and copies the predicted Docs, but the reference Docs stay the same objects.
    """

    is_initial = False

    def __init__(self, pipe: LearningPipe, examples: list[Example], kind: str):
        super().__init__(pipe, examples, kind)
        self._index_of = {id(example.reference): n for n, example in enumerate(examples)}
        self._references = [example.reference for example in examples]  # alive, so that their ids stay unique
        self._check = self._fingerprint(examples)
        if kind == "sequences":
            doc_starts = pipe.decoding.bounds([example.predicted for example in examples])
            references = self._references

            def describe(token: int) -> str:
                doc = references[int(np.searchsorted(doc_starts, token, side="right")) - 1]
                return f"a sequence of the document '{doc.text[:40]}...'"

            self.objective.describe_token = describe

    def holds(self, examples: list[Example]) -> bool:
        """Whether the examples are the examples of this batch, in any order."""
        # spaCy shuffles the examples, so their order says nothing
        indices = {self._index_of.get(id(example.reference), -1) for example in examples}
        if len(examples) != len(self._references) or indices != set(range(len(self._references))):
            return False
        # Functions may give other features for the same text
        if self._pipe.asks_functions or not self.fits_pipe:
            return False
        in_order = sorted(examples, key=lambda eg: self._index_of[id(eg.reference)])
        return self._check == self._fingerprint(in_order)

    def _fingerprint(self, examples: list[Example]) -> int:
        return supervision.fingerprint(self._pipe.annotation, examples, Keys.of(self._pipe), ANNOTATION)
