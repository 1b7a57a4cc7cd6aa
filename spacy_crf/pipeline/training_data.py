"""Training data: texts with their annotation, and a corpus whose features are looked up once."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from spacy.training import Example

from ..errors import Errors, Warnings
from ..features.doc_batch import DocBatch
from ..features.token_columns import ANNOTATION
from ..inference.bridges import BridgedStructure
from ..inference.threads import default_threads
from ..models.corpus import block_tokens
from ..models.node import AnnotatedDocs, Evidence
from ..models.objective import CorpusObjective, TiedObjective
from ..models.sequences import SequencesObjective
from ..optimizers.objective import CRFOptimizer
from ..progress import Bar
from ..schemes import NO_SEGMENTS, NO_STEPS
from ..types import SOFT_LABELS, Bools, ChainScores
from . import supervision
from .annotation.annotation import GoldReport, Supervision
from .corpora import pass_links
from .decoding import Decoding
from .earlier_components import require_rest
from .pipe import LearningPipe
from .supervision import Keys

# Tokens in a block if the model does not determine how many fit into memory
_BLOCK_TOKENS = 1 << 16
# Views of a corpus for optimizers: one evaluates the whole corpus, the other learns from one sequence after the other
VIEWS = {"objective": CorpusObjective, "sequences": SequencesObjective}


def view_for(optimizer: CRFOptimizer) -> str:
    """The view of a corpus for an optimizer that takes the objective."""
    return "sequences" if optimizer.wants_sequences else "objective"


class TrainingData:
    """Reads training texts in blocks, with their annotation."""

    def __init__(self, pipe: LearningPipe):
        self._pipe = pipe

    def blocks(self, examples: Iterable[Example]) -> Iterator[list[Example]]:
        """Batches of about as many tokens as fit into memory together; a terminal shows how many texts were read."""
        features = self._pipe.sparse_features
        limit = block_tokens(features) if features is not None else _BLOCK_TOKENS
        block, size, n_texts = [], 0, 0
        with Bar(f"{self._pipe.name}: reading features", "text") as bar:
            for group in self._groups(examples):
                block += group
                size += sum(len(example.predicted) for example in group)
                n_texts += len(group)
                if size >= limit:
                    yield block
                    bar.show(n_texts)
                    block, size = [], 0
            if block:
                yield block
                bar.show(n_texts)

    def _groups(self, examples: Iterable[Example]) -> Iterable[list[Example]]:
        """The examples whose Docs have to be in one batch, since the model reads them together."""
        group_of = self._pipe.model.attrs["role"].group_of
        if group_of is None:
            return ([example] for example in examples)
        groups: dict[Any, list[Example]] = {}
        for n, example in enumerate(pass_links(examples)):
            group = group_of(example.predicted)
            groups.setdefault((n, None) if group is None else group, []).append(example)
        return groups.values()

    def docs_of(self, examples: list[Example]) -> list[Doc]:
        """The predicted Docs of examples, as the model reads them in training."""
        return self._to_learn([example.predicted for example in pass_links(examples)])

    def _to_learn(self, docs: list[Doc]) -> list[Doc]:
        """Docs with a first-stage labelling by a model that was not trained on them."""
        stage = self._pipe.first_stage
        return docs if stage is None else stage.to_learn(docs)

    def count(self, read: Callable[[], Iterable[Example]]) -> None:
        """Add the features of texts, annotated as in training, to the model, and weights for them."""

        def corpus() -> Iterator[AnnotatedDocs]:
            for block in self.blocks(read()):
                yield self.to_count([example.predicted for example in block], block, GoldReport())

        self.measure(read)
        self._pipe.model.initialize(X=corpus, Y=(self._pipe.vocab, self._pipe.decoding.n_states))

    def measure(self, read: Callable[[], Iterable[Example]]) -> None:
        """Tell the model the facts about the annotation that it needs before counting features: the lengths of segments."""
        if self._pipe.decoding.labelled == "segments":
            from .segment_supervision import measure

            measure(self._pipe.model, self._pipe.annotation, read(), Keys.of(self._pipe))

    def to_count(self, docs: list[Doc], examples: list[Example], report: GoldReport) -> AnnotatedDocs:
        """Texts annotated by earlier components, in the form in which the model counts their features."""
        docs = self._to_learn(docs)
        starts = self._pipe.decoding.starts(docs)
        known = self.supervise(examples, starts, report)
        told = {"alternatives": known.alternatives, "excluded": known.wrong, "soft": known.soft}
        return AnnotatedDocs(docs, known.clamp, starts, known.unset, **told)

    def data(self, examples: list[Example], kind: str = "objective") -> AnnotatedDocs:
        """Texts in the form in which optimizers learn from them; kind: see `PreparedCorpus`."""
        docs = self.docs_of(examples)
        if self._pipe.has_encoder and self._pipe.is_linear:
            require_rest(self._pipe.name, self._pipe.model, docs)
        starts = self._pipe.decoding.starts(docs)
        known = self._usable(self.supervise(examples, starts, GoldReport()), starts, kind)
        weights = supervision.sequence_weights(examples, starts, self._pipe.decoding.bounds(docs))
        structure, model = self._structure(docs, known, starts) if kind == "objective" else None, self._pipe.model
        batch = AnnotatedDocs(
            docs, known.clamp, starts, known.unset, weights, structure, known.alternatives, known.wrong, known.soft
        )
        return model.attrs["role"].taught(model, batch, self._pipe.name)

    def supervise(self, examples: list[Example], starts: NDArray[np.int64], report: GoldReport) -> Supervision:
        """Supervision by the gold annotation, the alternatives, the incorrect spans and the soft labels."""
        parts, keys = self._pipe.parts(), Keys.of(self._pipe)
        gold = parts.annotation.gold(examples, starts, report)
        if keys.incorrect:
            supervision.refuse_contradictions(examples, keys.incorrect, parts.annotation)
        known = parts.decoding.supervise(gold, examples, starts, keys, report)
        if keys.soft is not None:
            from . import soft_labels  # other losses do not need it

            known = soft_labels.supervise(parts, keys.soft, known, examples, starts, report)
        elif any(SOFT_LABELS in example.reference.spans for example in examples):
            parts.warn_once(Warnings.CRFW825, key=SOFT_LABELS, loss=type(parts.loss).__name__)
        return known

    def _usable(self, known: Supervision, starts: NDArray[np.int64], kind: str) -> Supervision:
        """Drop supervision that the loss or the optimizer cannot use, and warn once about it."""
        pipe = self._pipe
        loss = pipe.loss.of_annotation if known.soft is None else pipe.loss
        who, usable = f"The loss {type(pipe.loss).__name__}", pipe.decoding.labelled in loss.excludes
        if kind != "objective":
            who, usable = "Optimizers that learn from one sequence after the other", pipe.decoding.walks_around_wrong
        # To exclude single spans takes states that know spans
        if usable and "span_probabilities" in pipe.decoding.structure.answers:
            return known
        if len(known.wrong.start):
            key = Keys.of(pipe).incorrect
            pipe.warn_once(Warnings.CRFW402, n=len(known.wrong.start), key=key, who=who)
        if len(known.steps):
            pipe.warn_once(Warnings.CRFW421, n=len(known.steps), who=who)
            supervision.leave_out(pipe.decoding, known.steps, known.clamp, starts)
        return known._replace(wrong=NO_SEGMENTS, steps=NO_STEPS)

    def _structure(self, docs: list[Doc], known: Supervision, starts: NDArray[np.int64]) -> Any:
        """Structure with the rules, if they apply in training, without wrong spans, and without white space at the edges of
        spans; None to use the model's own structure."""
        node, decoding = self._pipe.model.attrs["role"], self._pipe.decoding
        blank = self._blank(docs, known)
        if blank is None:
            return self._ruled(decoding, docs, known, starts)
        bridges = decoding.bridges
        wide = known._replace(clamp=bridges.clamp(known.clamp))
        structure = self._ruled(decoding.over_bridges(), docs, wide, starts)
        usual = node.in_training().with_threads(default_threads())
        return BridgedStructure(structure or usual, bridges, blank)

    def _blank(self, docs: list[Doc], known: Supervision) -> Optional[Bools]:
        """The tokens that are white space, at which no span begins or ends (bool[T]); None if there are none, if the loss or the
        model is no sum over labellings that could leave these out, and for segments: those with white space at an edge are wrong
        answers to learn from. Without them F1 on raw texts was 0.6 to 0.9 lower (18 of 20 trainings); chains lost nothing."""
        pipe = self._pipe
        node = pipe.model.attrs["role"]
        is_sum = pipe.decoding.labelled == "tokens" and "tokens" in pipe.loss.excludes and known.soft is None
        of_paths = node.gives is ChainScores and type(node.in_training()) is type(node.structure)
        if pipe.annotation.space_edges or not (is_sum and of_paths):
            return None
        blank = DocBatch.of(docs).is_space
        return blank if blank.any() else None

    def _ruled(self, decoding: Decoding, docs: list[Doc], known: Supervision, starts: NDArray[np.int64]) -> Any:
        """Structure with the rules and without wrong spans over the states of a decoding; None if there are neither."""
        pipe = self._pipe
        rules = pipe.rules() if pipe.rules_train else None
        if rules is None and not len(known.wrong.start) and not len(known.steps):
            return None
        rules = rules if rules is None or decoding is pipe.decoding else rules.over(decoding)
        from ..constraints.rule import PatternMatches
        from ..constraints.settings import Constraints
        from ..constraints.training import Excluded, RuledChain, RuledSegments

        bounds = DocBatch.of(docs).bounds
        if rules is None:
            rule_set = decoding.compile_rules(Constraints([]))
        else:
            rule_set = rules.all.upto(int(np.diff(bounds).max(initial=0)))
        facts = PatternMatches() if rules is None else rules.matcher(docs)
        costs = pipe.loss.least_costs(len(pipe.decoding.label_of_states))
        if decoding is not pipe.decoding:
            costs = costs[pipe.decoding.bridges.tag_of]
        excluded = Excluded(known.wrong, known.steps, costs)
        ruled = RuledSegments if rule_set.of_segments else RuledChain
        around = {"excluded": excluded, "threads": default_threads()}
        structure = ruled(rule_set, facts, known.clamp, starts, bounds, pipe.decoding.longest, **around)
        self._warn_of_broken(structure.broken, docs)
        if rule_set.global_:
            pipe.warn_once(Warnings.CRFW610, rules=", ".join(rule.name for rule in rule_set.global_))
        return pipe.model.attrs["role"].in_training(structure)

    def _warn_of_broken(self, broken: list, docs: list[Doc]) -> None:
        """Warn once about rules that documents break, if there are any."""
        if broken and "broken" not in self._pipe.told:
            self._pipe.told.add("broken")
            report = GoldReport()
            for rule, d, beside in broken:
                problem = f"break the rule '{rule.name}'"
                if beside:
                    others = ", ".join(f"'{other.name}'" for other in beside)
                    problem = f"can't keep the rule '{rule.name}' together with {others}"
                report.add(f"gold annotations {problem}, and are trained without it", f"'{docs[d].text[:40]}'")
            report.log(self._pipe.name)


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
        self._knows = self._of_pipe()
        corpus = (self._counted(pipe.training.data(block, kind)) for block in pipe.training.blocks(examples))
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

    def _counted(self, batch: AnnotatedDocs) -> AnnotatedDocs:
        self.n_tokens += sum(map(len, batch.docs))
        if self._pipe.training.continuation is not None:
            found = self._pipe.training.frame().evidence_of(batch.docs)
            self.evidence = found if self.evidence is None else self.evidence.plus(found)
        return batch

    def _of_pipe(self) -> tuple:
        """Features and rules of the component on which the objective depends."""
        rules = [chain.rules() for chain in self._pipe.chains] if self._pipe.rules_train else ()
        return self._pipe.sparse_features, *rules

    @property
    def fits_pipe(self) -> bool:
        """Whether the component still has the features, tags and rules for which this objective was made."""
        return all(before is now for before, now in zip(self._knows, self._of_pipe()))

    def holds(self, examples: list[Example]) -> bool:
        """Whether a step with these examples uses this corpus.

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
        self._place = {id(example.reference): n for n, example in enumerate(examples)}
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
        places = {self._place.get(id(example.reference), -1) for example in examples}
        if len(examples) != len(self._references) or places != set(range(len(self._references))):
            return False
        if self._pipe.asks_functions or not self.fits_pipe:
            return False
        return self._check == self._fingerprint(sorted(examples, key=lambda eg: self._place[id(eg.reference)]))

    def _fingerprint(self, examples: list[Example]) -> int:
        return supervision.fingerprint(self._pipe.annotation, examples, Keys.of(self._pipe), ANNOTATION)
