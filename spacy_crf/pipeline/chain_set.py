"""Components that are a set of chains over the same tokens. Each chain is a component that shares features and weights with the
others."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from heapq import nlargest
from itertools import chain as links
from itertools import product
from typing import Any, Optional, Union

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
from ..types import Floats, Ints, PathScores, SetClamp, Settings
from .annotation.entities import KEYS, GoldReport
from .annotation.spans import Spans
from .annotation.tags import TagSet, TokenTags
from .distribution import Distribution
from .prediction import CRFPipe
from .probabilities import labelling
from .training import Training

# Rules that judge the tokens of each label by themselves
_OF_EACH_LABEL = ("only_on", "never_on", "only_after", "never_after", "starts_with", "ends_with")


class Chain(CRFPipe):
    """One chain of a set as a component of its own.

    of (ChainSetPipe): The component of the set.
    annotation (Union[Spans, TokenTags]): Of the chain.
    labels (Sequence[str]): Of the chain.
    slots (int64[L]): The places of these labels in the annotation of the set.
    """

    annotation: Union[Spans, TokenTags]

    def __init__(
        self,
        of: "ChainSetPipe",
        annotation: Union[Spans, TokenTags],
        labels: Sequence[str],
        slots: Ints,
        **settings: Any,
    ):
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
        """The component of the set, which learns the weights of all chains."""
        return self.of


class SetTraining(Training):
    """Training of a set: the annotation of each chain, side by side."""

    pipe: "ChainSetPipe"

    def to_count(self, docs: list[Doc], examples: list[Example], report: GoldReport) -> AnnotatedDocs:
        """The annotation of all chains in the form in which the model counts features, see `Training.to_count`."""
        parts = [chain.training.to_count(docs, examples, report) for chain in self.pipe.chains]
        joined = self._joined(parts)
        for part in parts:  # a token that only other chains annotate has nothing to count for this one
            states_of(part.allowed)[part.unset & ~joined.unset] = False
        return joined

    def data(self, examples: list[Example], kind: str = "objective") -> AnnotatedDocs:
        """The annotation of all chains in the form in which optimizers learn from examples, see `Training.data`."""
        return self._joined([chain.training.data(examples, kind) for chain in self.pipe.chains])

    def _joined(self, parts: list[AnnotatedDocs]) -> AnnotatedDocs:
        """The annotation of the set, from the annotation of each chain."""
        chains = self.pipe.chains
        if len(chains) == 1:
            return parts[0]
        usual = self.pipe.model.attrs["node"].in_training.with_threads(default_threads())
        states = tuple(chain.states for chain in chains)
        alternatives = []
        for chain, part in zip(chains, parts):
            slots = chain.slots[part.alternatives.label]  # labels of the set
            alternatives.append(part.alternatives._replace(label=slots))
        return parts[0]._replace(
            allowed=SetClamp(tuple(part.allowed for part in parts), states),
            unset=np.logical_and.reduce([part.unset for part in parts]),
            structure=ChainSet([part.structure or usual for part in parts], states),
            alternatives=Segments.join(alternatives),
        )


class ChainSetPipe(CRFPipe):
    """Base of the components that are a set of chains. Its annotation has the labels of each chain as `chains`."""

    annotation: Union[Spans, TagSet]
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
        """RETURNS (Training): The initial state of the training of all chains."""
        return SetTraining(self)

    def _labels_changed(self) -> None:
        self._chains: Optional[Sequence[Chain]] = None
        super()._labels_changed()

    def check_settings(self) -> None:
        """Check the settings of each chain against its labels. RAISES (ValueError): See `CRFPipe.check_settings`."""
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
        """The chain of a `label`, on its outermost level. RAISES (ValueError): CRF846 for an unknown label."""
        checks.labels(self.owner, [label], self.labels)
        return next(chain for chain in self.chains if label in chain.labels)

    # ----------------------------------------------------------------------------------------------------- rules

    def rules_for(self, labels: Sequence[str]) -> Optional[Constraints]:
        """The rules of the chain of some `labels`: those that name its labels, and those that name none.

        RAISES (ValueError): CRF846 for unknown labels, CRF616 for a rule about several chains.
        """
        # A single chain has all labels, and so all rules
        if self.constraints is None or len(self.annotation.chains) == 1:
            return self.constraints
        self.constraints.require_file()
        parts = [self._part_of_chain(rule, set(labels)) for rule in self.constraints.rules]
        return replace(self.constraints, rules=[part for part in parts if part is not None])

    def _part_of_chain(self, rule: Rule, labels: set[str]) -> Optional[Rule]:
        """The part of a rule that is about the chain with these labels; None if the rule is about labels of other chains.

        RAISES (ValueError): CRF846 for unknown labels, CRF616 for a rule that ties several chains together.
        """
        rule_labels = {name for name in rule.names() if name != "O"}
        checks.labels(f"Rule '{rule.name}'", rule_labels, self.labels)
        # Only rules that judge the spans of each label by themselves can be split up among chains
        is_divisible = rule.by_label or rule.kind in _OF_EACH_LABEL
        is_about_all = rule.reads_tags or rule.arguments.get("label") == "*"
        is_about_several = bool(rule_labels & labels) and not rule_labels <= labels
        if not is_divisible and (is_about_all or is_about_several):
            which = ", ".join(sorted(rule_labels)) or "all"
            raise ValueError(Errors.CRF616.format(name=self.name, rule=rule.name, labels=which))
        if rule_labels and not rule_labels & labels:
            return None
        if rule_labels <= labels:
            return rule
        chain_labels = [label for label in rule.label if label in labels]
        return replace(rule, arguments={**rule.arguments, "label": chain_labels})

    def rules(self) -> None:
        """Each chain has rules of its own, see `chains`."""

    def add_rule(self, rule: Settings) -> None:
        """Add a rule to the chains whose labels it names, see `CRFPipe.add_rule`."""
        super().add_rule(rule)
        self._chains = None
        try:
            for chain in self.chains:
                chain.rules()
        except ValueError:
            assert self.constraints is not None  # it has the rule
            self.constraints.rules.pop()
            self._chains = None
            raise

    # --------------------------------------------------------------------------------------------- probabilities

    def distribution(self, doc: Doc, *, keep_annotation: bool = False) -> Distribution:
        """The distribution over the labellings of a Doc by a single chain, see `CRFPipe.distribution`.

        doc (Doc), keep_annotation (bool): The arguments of that method.
        RAISES (ValueError): CRF408 for several chains, each of which has its own.
        """
        if len(self.chains) > 1:
            raise ValueError(Errors.CRF408.format(name=self.name, n=len(self.chains), label=self.labels[0]))
        return self.chains[0].distribution(doc, keep_annotation=keep_annotation)

    def expected_spans(self, docs: DocBatch, scores: PathScores) -> float:
        """How many spans `docs` with these scores are expected to have, by the sum over chains."""
        return sum(chain.expected_spans(docs, of_states(scores, chain.states)) for chain in self.chains)

    @contextmanager
    def _asked(self, doc: Doc) -> Iterator[Sequence[Chain]]:
        """Yield the chains. Meanwhile their nodes hold the scores of a Doc, so that the model scores the Doc only once."""
        nodes = [chain.model.attrs["node"] for chain in self.chains]
        scores = self.model.predict(self.require_ready([doc]))
        try:
            for node in nodes:
                node.scored = doc, scores
            yield self.chains
        finally:
            for node in nodes:
                node.scored = None

    def marginals(self, doc: Doc, *, keep_annotation: bool = False) -> tuple[Floats, list[str]]:
        """Probability of each tag of each chain at each token of a Doc, see `CRFPipe.marginals`; `keep_annotation`: see there.

        RETURNS (float64[T, tags], List[str]): Probabilities, which are 1 in sum for each chain; and the names of the tags.
        """
        with self._asked(doc) as chains:
            found = [chain.marginals(doc, keep_annotation=keep_annotation) for chain in chains]
        probabilities, tags = zip(*found)
        return np.hstack(probabilities), [*links.from_iterable(tags)]

    def span_probabilities(
        self, doc: Doc, min_prob: float = 0.01, *, keep_annotation: bool = False
    ) -> list[tuple[Span, float]]:
        """All spans of all chains with a probability of at least `min_prob`, see `CRFPipe.span_probabilities`.

        doc (Doc), keep_annotation (bool): The arguments of that method.
        RETURNS (List[Tuple[Span, float]]): Spans with labels, and their probabilities; the most probable first.
        """
        with self._asked(doc) as chains:
            found = [chain.span_probabilities(doc, min_prob, keep_annotation=keep_annotation) for chain in chains]
        return sorted(links.from_iterable(found), key=lambda item: -item[1])

    def n_best(self, doc: Doc, n: int, *, keep_annotation: bool = False) -> list[tuple[float, list[Span]]]:
        """The `n` most probable labellings of a Doc, each of all chains, see `CRFPipe.n_best`.

        doc (Doc), keep_annotation (bool): The arguments of that method.
        RETURNS (List[Tuple[float, List[Span]]]): Probability and spans of each, best first.
        """
        best: list[tuple[float, list[Span]]] = [(1.0, [])]
        with self._asked(doc) as chains:
            for chain in chains:
                # The chains are independent given the words, so the probabilities of their labellings are multiplied
                pairs = product(best, chain.n_best(doc, n, keep_annotation=keep_annotation))
                joint = ((p * chain_p, [*spans, *chain_spans]) for (p, spans), (chain_p, chain_spans) in pairs)
                best = nlargest(n, joint, key=lambda item: item[0])
        return [(p, _in_order(spans)) for p, spans in best]

    def log_probability(self, doc: Doc, spans: Iterable[Span], *, keep_annotation: bool = False) -> float:
        """Log probability of one complete labelling of all chains, see `CRFPipe.log_probability`. Spans of different chains may
        overlap. Those of one group are on the levels where training would have them.

        doc (Doc), spans (Iterable[Span]), keep_annotation (bool): The arguments of that method.
        RETURNS (float): -inf for an impossible labelling.
        """
        spans = list(spans)
        labelling(self.name, doc, spans, overlap=True)
        parts = [chain.annotation.spans_of_chain(spans) for chain in self.chains]
        if sum(map(len, parts)) < len({(span.start, span.end, span.label) for span in spans}):
            return -np.inf  # no chain has some span
        total = 0.0
        with self._asked(doc) as chains:
            for chain, part in zip(chains, parts):
                total += chain.log_probability(doc, part, keep_annotation=keep_annotation)
        return total

    def sample(self, doc: Doc, n: int, seed: int, *, keep_annotation: bool = False) -> list[list[Span]]:
        """`n` labellings of a Doc, each of all chains, drawn from their distribution, see `CRFPipe.sample`.

        doc (Doc), seed (int), keep_annotation (bool): The arguments of that method.
        """
        with self._asked(doc) as chains:
            # Chains with the same seed would draw alike
            drawn = [
                chain.sample(doc, n, seed + number, keep_annotation=keep_annotation)
                for number, chain in enumerate(chains)
            ]
        return [_in_order(links.from_iterable(parts)) for parts in zip(*drawn)]

    def proven(self, doc: Doc, *, keep_annotation: bool = False) -> bool:
        """Whether the most probable labelling of a Doc is found by each chain, see `CRFPipe.proven`; `keep_annotation`: see
        there."""
        with self._asked(doc) as chains:
            return all(chain.proven(doc, keep_annotation=keep_annotation) for chain in chains)

    def explain(
        self,
        doc: Doc,
        span: Optional[Span] = None,
        against: Optional[Union[str, Span, Iterable[Span]]] = None,
        kind: str = "words",
        **options: Any,
    ) -> Any:
        """Explain a decision of the chain that has the label of the span, see `CRFPipe.explain`. Without a label, the span's most
        probable label is explained; with several chains, a span is needed.

        doc (Doc), span (Optional[Span]), against (Union[str, Span, Iterable[Span]]), kind (str), **options: The
            arguments of that method.
        RETURNS (Explanation)
        """
        if len(self.chains) == 1:
            return self.chains[0].explain(doc, span, against, kind, **options)
        checks.expect(isinstance(span, Span), self.owner, "span", span, "a span: each chain is explained by itself")
        assert span is not None  # as checked
        if not span.label:
            # The most probable span comes first, so the first span of these tokens has their most probable label
            for candidate, _ in self.span_probabilities(doc, 0.0):
                if (candidate.start, candidate.end) == (span.start, span.end):
                    span = candidate
                    break
        return self.chain_for(doc, span).explain(doc, span, against, kind, **options)

    def chain_for(self, doc: Doc, span: Span) -> Chain:
        """The chain that decides about a labelled span of a Doc."""
        return self.chain(span.label_)

    # --------------------------------------------------------------------------------------------------- saving

    def __reduce__(self):
        make, arguments, state = super().__reduce__()
        return make, arguments, {**state, "_chains": None}


def _in_order(spans: Iterable[Span]) -> list[Span]:
    return sorted(spans, key=lambda span: (span.start, span.end))
