"""Components that are a set of chains over the same tokens. Each chain is a component that shares features and weights with the
others."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from heapq import nlargest
from itertools import chain as links
from itertools import product
from typing import Any, Optional

import numpy as np
from spacy.tokens import Doc, Span
from spacy.training import Example

from .. import checks
from ..arrays import states_of
from ..constraints.rule import Rule
from ..constraints.settings import Constraints
from ..errors import Errors, cant_train
from ..features.doc_batch import DocBatch
from ..inference.chain_set import ChainSet, of_states
from ..inference.threads import default_threads
from ..models.chain_set import chain_of, check_inner
from ..models.node import AnnotatedDocs
from ..schemes import Segments
from ..types import Floats, Ints, SetClamp, Settings
from .annotation.entities import KEYS, Annotation, GoldReport
from .distribution import Distribution
from .pipe import only_docs
from .prediction import CRFPipe
from .probabilities import labelling
from .training import Training


class Chain(CRFPipe):
    """One chain of a set as a component of its own.

    of (ChainSetPipe): The component of the set. annotation (Annotation): Of the chain. labels (Sequence[str]): Of the chain.
    slots (int64[L]): The places of these labels in the annotation of the set.
    """

    annotation: Any  # those of spans have `own`

    def __init__(self, of: "ChainSetPipe", annotation: Annotation, labels: Sequence[str], slots: Ints, **settings: Any):
        self.of = of
        self.slots = slots
        self.labelled = of.labelled
        self.states = np.flatnonzero(np.isin(of.decoding.label_of_states, [-1, *slots]))
        settings |= {name: of.cfg[name] for name in ("max_words", *KEYS)}
        super().__init__(
            of.vocab,
            chain_of(of.model, self.states),
            of.name,
            loss=of.loss.among(self.states),
            constraints=of.rules_for(labels),
            annotation=annotation,
            **settings,
        )
        self.warned = of.warned
        self.cfg["labels"] = list(labels)
        self._labels_changed()

    @property
    def learner(self) -> "ChainSetPipe":
        return self.of


class SetTraining(Training):
    """Training of a set: the annotation of each chain, side by side."""

    def to_count(self, docs: list[Doc], examples: list[Example], report: GoldReport) -> AnnotatedDocs:
        parts = [chain.training.to_count(docs, examples, report) for chain in self.pipe.chains]
        joined = self._joined(parts)
        for part in parts:  # a token that only other chains annotate has nothing to count for this one
            states_of(part.allowed)[part.unset & ~joined.unset] = False
        return joined

    def data(self, examples: list[Example], kind: str = "objective") -> AnnotatedDocs:
        return self._joined([chain.training.data(examples, kind) for chain in self.pipe.chains])

    def _joined(self, parts: list[AnnotatedDocs]) -> AnnotatedDocs:
        chains = self.pipe.chains
        if len(chains) == 1:
            return parts[0]
        usual = self.pipe.model.attrs["node"].in_training.with_threads(default_threads())
        states = tuple(chain.states for chain in chains)
        columns = zip(*(self._of_set(chain, part.alternatives) for chain, part in zip(chains, parts)))
        return parts[0]._replace(
            allowed=SetClamp(tuple(part.allowed for part in parts), states),
            unset=np.logical_and.reduce([part.unset for part in parts]),
            structure=ChainSet([part.structure or usual for part in parts], states),
            alternatives=Segments(*map(np.concatenate, columns)),
        )

    @staticmethod
    def _of_set(chain: Chain, segments: Segments) -> Segments:
        return segments._replace(label=chain.slots[segments.label])


class ChainSetPipe(CRFPipe):
    """Base of the components that are a set of chains. Its annotation has the labels of each chain as `chains`."""

    annotation: Any
    kernels_of = "chain_set"

    def __init__(self, vocab, model, name, **settings):
        self.name = name
        if getattr(model, "attrs", {}).get("node") is not None:
            check_inner(self.owner, "model", model)
        stage = settings.get("second_stage")
        checks.expect(stage is None, self.owner, "second_stage", stage, "null: a first stage labels a single chain")
        super().__init__(vocab, model, name, **settings)
        if self.loss.spans_key is not None:
            what = f"the chains of '{name}'"
            raise cant_train(self.loss, what, "its soft labels are those of one chain", "LogLikelihood")

    def make_training(self) -> Training:
        return SetTraining(self)

    def _labels_changed(self) -> None:
        self._chains: Optional[Sequence[Chain]] = None
        super()._labels_changed()

    def check_settings(self) -> None:
        super().check_settings()
        for chain in self.chains:
            chain.rules()

    @property
    def chains(self) -> "Sequence[Chain]":
        """The chains, each a component that predicts and answers questions about its own labels."""
        if self._chains is None:
            self._chains = self.make_chains()
        return self._chains

    def make_chains(self) -> Sequence[Chain]:
        """One `Chain` for each of the chains of the annotation."""
        raise NotImplementedError

    def chain(self, label: str) -> Chain:
        """The chain of a label, on its outermost level. RAISES (ValueError): CRF846 for an unknown label."""
        checks.labels(self.owner, [label], self.labels)
        return next(chain for chain in self.chains if label in chain.labels)

    # ----------------------------------------------------------------------------------------------------- rules

    def rules_for(self, labels: Sequence[str]) -> Optional[Constraints]:
        """The rules of the chain of some labels: those that name its labels, and those that name none.

        RAISES (ValueError): CRF846 for unknown labels, CRF616 for a rule about several chains.
        """
        if self.constraints is None or len(self.annotation.chains) == 1:
            return self.constraints
        self.constraints.require_file()
        found = [self._of_chain(rule, set(labels)) for rule in self.constraints.rules]
        return replace(self.constraints, rules=[rule for rule in found if rule is not None])

    def _of_chain(self, rule: Rule, labels: set[str]) -> Optional[Rule]:
        named = {name for name in rule.names() if name != "O"}
        checks.labels(f"Rule '{rule.name}'", named, self.labels)
        alone = rule.by_label or rule.kind in ("only_on", "never_on", "starts_with", "ends_with")
        about_all = rule.reads_tags or rule.arguments.get("label") == "*"
        if not alone and (about_all or (named & labels and not named <= labels)):
            which = ", ".join(sorted(named)) or "all"
            raise ValueError(Errors.CRF616.format(name=self.name, rule=rule.name, labels=which))
        if named and not named & labels:
            return None
        own = [label for label in rule.label if label in labels] if named - labels else None
        return rule if own is None else replace(rule, arguments={**rule.arguments, "label": own})

    def rules(self) -> None:
        """Each chain has rules of its own, see `chains`."""

    def add_rule(self, rule: Settings) -> None:
        super().add_rule(rule)
        self._chains = None
        constraints: Any = self.constraints  # it has the rule
        try:
            for chain in self.chains:
                chain.rules()
        except ValueError:
            constraints.rules.pop()
            self._chains = None
            raise

    # --------------------------------------------------------------------------------------------- probabilities

    def distribution(self, doc: Doc, *, keep_annotation: bool = False) -> Distribution:
        """See `CRFPipe.distribution`. RAISES (ValueError): CRF408 for several chains, each of which has its own."""
        if len(self.chains) > 1:
            raise ValueError(Errors.CRF408.format(name=self.name, n=len(self.chains), label=self.labels[0]))
        return self.chains[0].distribution(doc, keep_annotation=keep_annotation)

    def expected_spans(self, docs: DocBatch, scores: Any) -> float:
        return sum(chain.expected_spans(docs, of_states(scores, chain.states)) for chain in self.chains)

    @contextmanager
    def _asked(self, doc: Doc) -> Iterator[Sequence[Chain]]:
        """The chains, for which the model scores a Doc only once."""
        nodes = [chain.model.attrs["node"] for chain in self.chains]
        batch = DocBatch(only_docs(self.name, [doc]))
        self.require_ready(batch)
        given = doc, self.model.predict(batch)
        try:
            for node in nodes:
                node.given = given
            yield self.chains
        finally:
            for node in nodes:
                node.given = None

    def marginals(self, doc: Doc, *, keep_annotation: bool = False) -> tuple[Floats, list[str]]:
        """Probability of each tag of each chain at each token, see `CRFPipe.marginals`. The tags of each chain have sum 1."""
        with self._asked(doc) as chains:
            parts, tags = zip(*(chain.marginals(doc, keep_annotation=keep_annotation) for chain in chains))
        return np.hstack(parts), [tag for of_chain in tags for tag in of_chain]

    def span_probabilities(
        self, doc: Doc, min_prob: float = 0.01, *, keep_annotation: bool = False
    ) -> list[tuple[Span, float]]:
        with self._asked(doc) as chains:
            found = [chain.span_probabilities(doc, min_prob, keep_annotation=keep_annotation) for chain in chains]
        return sorted(links.from_iterable(found), key=lambda item: -item[1])

    def n_best(self, doc: Doc, n: int, *, keep_annotation: bool = False) -> list[tuple[float, list[Span]]]:
        """The most probable labellings, each of all chains, see `CRFPipe.n_best`."""
        best: list[tuple[float, list[Span]]] = [(1.0, [])]
        with self._asked(doc) as chains:
            for chain in chains:
                pairs = product(best, chain.n_best(doc, n, keep_annotation=keep_annotation))
                longer = ((p * own, [*spans, *more]) for (p, spans), (own, more) in pairs)
                best = nlargest(n, longer, key=lambda item: item[0])
        return [(p, _in_order(spans)) for p, spans in best]

    def log_probability(self, doc: Doc, spans: Iterable[Span], *, keep_annotation: bool = False) -> float:
        """Log probability of one complete labelling of all chains, see `CRFPipe.log_probability`. Spans of different chains may
        overlap. Those of one group are on the levels where training would have them.
        """
        spans = list(spans)
        labelling(self.name, doc, spans, overlap=True)
        parts = [chain.annotation.own(spans) for chain in self.chains]
        if sum(map(len, parts)) < len({(span.start, span.end, span.label) for span in spans}):
            return -np.inf
        with self._asked(doc) as chains:
            return sum(
                chain.log_probability(doc, part, keep_annotation=keep_annotation) for chain, part in zip(chains, parts)
            )

    def sample(self, doc: Doc, n: int, seed: int, *, keep_annotation: bool = False) -> list[list[Span]]:
        with self._asked(doc) as chains:
            drawn = [
                chain.sample(doc, n, seed + number, keep_annotation=keep_annotation)
                for number, chain in enumerate(chains)
            ]
        return [_in_order(links.from_iterable(parts)) for parts in zip(*drawn)]

    def proven(self, doc: Doc, *, keep_annotation: bool = False) -> bool:
        with self._asked(doc) as chains:
            return all(chain.proven(doc, keep_annotation=keep_annotation) for chain in chains)

    def explain(
        self, doc: Doc, span: Optional[Span] = None, against: Any = None, kind: str = "words", **options: Any
    ) -> Any:
        """Explain a decision of the chain that has the label of the span, see `CRFPipe.explain`. Without a label, the span's most
        probable label is explained; with several chains, a span is needed."""
        if len(self.chains) == 1:
            return self.chains[0].explain(doc, span, against, kind, **options)
        asked: Any = span
        checks.expect(isinstance(asked, Span), self.owner, "span", asked, "a span: each chain is explained by itself")
        if not asked.label:
            likely = self.span_probabilities(doc, 0.0)
            asked = next((one for one, _ in likely if (one.start, one.end) == (asked.start, asked.end)), asked)
        return self.chain_for(doc, asked).explain(doc, asked, against, kind, **options)

    def chain_for(self, doc: Doc, span: Span) -> Chain:
        """The chain that decides about a labelled span."""
        return self.chain(span.label_)

    # --------------------------------------------------------------------------------------------------- saving

    def __reduce__(self):
        make, arguments, state = super().__reduce__()
        return make, arguments, {**state, "_chains": None}


def _in_order(spans: Iterable[Span]) -> list[Span]:
    return sorted(spans, key=lambda span: (span.start, span.end))
