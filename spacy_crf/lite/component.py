"""One component of an export: rows of words in, tags, spans and labels of texts out."""

from collections.abc import Iterable, Iterator, Sequence
from heapq import nlargest
from itertools import chain, groupby, islice, product
from threading import Lock
from typing import Any, NamedTuple, Optional

import numpy as np

from .content import Array, LiteError, numbers
from .features import Features, Text, spell_tags
from .labellings import MOST_SCORE, MOST_STEPS, Chain, Segments, Spans, States, log_sum

_AT_ONCE = 128  # texts that are labelled together
# What a component of each kind labels, and the method that labels it
_KINDS = {
    "chain": ("words", "tag"),
    "segments": ("segments", "entities"),
    "text": ("texts", "classify"),
    "set": ("several chains", "entities, or parse"),
}
# Prices of spans are probabilities that are never worth listing at least, and that are always taken at most
_LEAST_PRICE = 1e-3
_HIGHEST_PRICE = 1.0 - 1e-6


class Entity(NamedTuple):
    """A labelled span: tokens ``start`` up to, not including, ``end``."""

    start: int
    end: int
    label: str
    prob: float


class Labelled(NamedTuple):
    """The labels that one chain gives to a text."""

    tags: list[str]
    entities: list[Entity]


class _Scores(NamedTuple):
    """The scores of a batch of texts."""

    segments: Array  # [T, K, C] of the segments that begin at each token, by length and tag
    pairs: Optional[Array]  # [T, C, C] of pairs of tags at each token, if features weigh them
    bounds: Array  # [B + 1] where texts begin and end
    blank: Array  # [T] which tokens are white space

    def of_text(self, n: int) -> "_Scores":
        """The scores of text n alone."""
        begin, end = self.bounds[n : n + 2].tolist()
        pairs = None if self.pairs is None else self.pairs[begin:end]
        return _Scores(self.segments[begin:end], pairs, np.array([0, end - begin]), self.blank[begin:end])

    def of_tags(self, tags: Array) -> "_Scores":
        """The scores of some tags (int64[C'])."""
        pairs = None if self.pairs is None else self.pairs[:, tags[:, np.newaxis], tags]
        return self._replace(segments=self.segments[:, :, tags], pairs=pairs)


class Labeller:
    """Labels texts by the scores of a chain of tags or segments.

    content (dict): The labels, tags, states and thresholds.
    is_segments (bool): Whether states are those of segments.

    writes (str): What the labels are written to, see `Component`.
    labels (list[str]): The labels.
    tags (list[str]): The tags of words, which are the `labels` where words have labels.
    has_spans (bool): Whether tags encode spans.
    n_tags (int): The number of tags that have scores; of segments that of O and the labels.
    """

    def __init__(self, content: dict[str, Any], is_segments: bool):
        self.writes: str = content["writes"]
        self.labels: list[str] = content["labels"]
        if not all(isinstance(label, str) for label in self.labels):
            raise LiteError("a label is no text. Copy the file again.")
        self._scheme = content["scheme"]
        self.has_spans = self._scheme is not None
        self._outside = "O" if self.has_spans else ""  # the tag of words without a label
        n_labels = len(self.labels)
        self.tags = [*self.labels]
        label_of = np.arange(n_labels)  # [tags]
        if self.has_spans:
            letters = content["letters"]
            self.tags = ["O", *(f"{letter}-{label}" for label, letter in product(self.labels, letters))]
            label_of = (np.arange(len(self.tags)) - 1) // len(letters)
        continues = _continuations(self.tags, label_of) if self.has_spans else False
        if is_segments:  # a state is O or a label, and no segment continues another one
            label_of = np.arange(-1, n_labels)
            continues = False
        self.n_tags = len(label_of)
        self._is_segments = is_segments
        self.states = States(content["states"], label_of, continues)
        self._without_rules: Optional[States] = None
        if "without_rules" in content:
            self._without_rules = States(content["without_rules"], label_of, continues)
        lengths = content["lengths"] if is_segments else np.zeros((1, self.n_tags))
        self.lengths = numbers(lengths, shape=(len(lengths), self.n_tags), most=MOST_SCORE)  # [K, C]
        least = np.zeros(n_labels) if content["min_prob"] is None else content["min_prob"]
        self.least = numbers(least, shape=(n_labels,), least=0.0)

    def labellings(self, scores: _Scores, states: Optional[States] = None) -> Any:
        """The labellings of texts: `Segments` or a `Chain`.

        states (States): Their states; by default those under the rules.
        """
        states = states or self.states
        # In texts with white space, spans may not begin or end at it
        if states.blank is not None and scores.blank.any():
            states = states.blank
        segments = scores.segments + self.lengths[: scores.segments.shape[1]]
        structure = Segments if self._is_segments else Chain
        return structure(states, segments, scores.bounds, scores.pairs, scores.blank)

    def possible(self, scores: _Scores) -> Any:
        """The labellings of a single text that keep all rules; all its labellings if none does."""
        for states in (self.states, self._without_rules):
            if states is not None:
                labellings = self.labellings(scores, states)
                if labellings.sums.log_z[0] > -np.inf:
                    return labellings
        raise LiteError("A text has no labelling with a finite score. Export the model again.")

    def label(self, scores: _Scores, weighs_spans: bool) -> list[Labelled]:
        """Label texts.

        weighs_spans (bool): Whether entities are wanted, whose probabilities take time.
        """
        return self._label_by(self.labellings(scores), scores, weighs_spans or bool(self.least.any()))

    def _label_by(self, labellings: Any, scores: _Scores, weighs_spans: bool) -> list[Labelled]:
        """Label texts by their labellings. Texts of which no labelling keeps the rules are labelled without rules."""
        choice = labellings.states.choice
        if choice is None:
            paths = labellings.n_best(1)
            totals = paths.scores[:, 0]
        else:
            paths = None
            totals = labellings.sums.log_z
        if not (totals > -np.inf).all():
            one_by_one = []
            for n in range(len(totals)):
                of_text = scores.of_text(n)
                one_by_one += self._label_by(self.possible(of_text), of_text, weighs_spans)
            return one_by_one
        if choice is None:
            return self._best_path(labellings, paths, weighs_spans)
        return self._best_spans(labellings, choice, scores)

    def _best_path(self, labellings: Any, paths: Any, weighs_spans: bool) -> list[Labelled]:
        """Label texts by the most probable labelling, without the spans that are less probable than `min_prob`."""
        segments = (paths.begin, paths.end, paths.state)
        tags = [self.tags[tag] for tag in labellings.tags(*segments).tolist()]
        starts = labellings.bounds.tolist()
        entities = [[] for _ in starts[1:]]
        if weighs_spans:
            spans = labellings.weighed(*labellings.spans(*segments))
            is_kept = self._is_likely(spans, labellings.states.choice)
            entities = self._entities(labellings, spans, is_kept)
            for begin, end in zip(spans.begin[~is_kept].tolist(), spans.end[~is_kept].tolist()):
                tags[begin:end] = [self._outside] * (end - begin)
        return [Labelled(tags[starts[n] : starts[n + 1]], of_text) for n, of_text in enumerate(entities)]

    def _best_spans(self, labellings: Any, choice: States, scores: _Scores) -> list[Labelled]:
        """Label texts by the spans, no two of which overlap, whose probabilities exceed their prices by most in total."""
        spans = self._chosen(labellings, choice)
        entities = self._entities(labellings, spans, self._is_likely(spans, choice))
        lengths = np.diff(labellings.bounds).tolist()
        labelled = [Labelled(self._spell(found, length), found) for found, length in zip(entities, lengths)]
        # Spans of probability 0 are not listed: no set of listed spans keeps the rules
        is_unlisted = spans.probability == 0.0
        for n in set(labellings.text_of[spans.begin[is_unlisted]].tolist()):
            of_text = self.labellings(scores.of_text(n))
            [labelled[n]] = self._best_path(of_text, of_text.n_best(1), True)
        return labelled

    def _is_likely(self, spans: Spans, choice: Optional[States]) -> Array:
        """Which spans are at least as probable as `min_prob`: bool[N]; all if rules that ask for spans would be broken."""
        asks_for_spans = choice is not None and choice.asks is not None
        return asks_for_spans | (spans.probability >= self.least[spans.label])

    def _chosen(self, labellings: Any, choice: States) -> Spans:
        """The spans, no two of which overlap, whose probabilities exceed their prices by most in total. Those that are not
        listed, which rules have asked for, have the probability 0."""
        prices = np.clip(self.least, _LEAST_PRICE, _HIGHEST_PRICE)
        listed = labellings.likely(_LEAST_PRICE if choice.asks else prices.min(initial=1.0))
        length = listed.end - listed.begin
        n_tokens = len(labellings.scores)
        probabilities = np.zeros((n_tokens, length.max(initial=1), 1 + len(self.labels)))  # [T, K, O and labels]
        probabilities[listed.begin, length - 1, 1 + listed.label] = listed.probability
        # A span that is just probable enough is taken; one that is not listed, only if no other set keeps the rules
        worth = np.where(probabilities > 0.0, probabilities - np.append(0.0, prices) + 1e-9, -1e6)
        worth[:, :, 0] = -np.inf
        worth[:, 0, 0] = 0.0
        chosen = Segments(choice, worth, labellings.bounds, pairs=None, blank=np.zeros(n_tokens, dtype=bool))
        paths = chosen.n_best(1)
        begin, end, label = chosen.spans(paths.begin, paths.end, paths.state)
        return Spans(begin, end, label, probabilities[begin, end - begin - 1, 1 + label])

    def _entities(self, labellings: Any, spans: Spans, is_kept: Array) -> list[list[Entity]]:
        """The kept ones (bool[N]) of some spans, for each text."""
        entities = [[] for _ in labellings.bounds[1:]]
        text = labellings.text_of[spans.begin]
        first = labellings.bounds[text]  # [N] first token of the text
        columns = (text, spans.begin - first, spans.end - first, spans.label, spans.probability)
        for n, begin, end, label, probability in zip(*(column[is_kept].tolist() for column in columns)):
            entities[n].append(Entity(begin, end, self.labels[label], probability))
        return entities

    def _spell(self, entities: list[Entity], length: int) -> list[str]:
        """The tags of a text of so many tokens with these entities."""
        tags = [self._outside] * length
        for begin, end, label, _ in entities:
            scheme = self._scheme
            # In IOB1 a span that touches one of its own label begins with B-
            if scheme == "IOB1" and tags[max(0, begin - 1)][2:] == label:
                scheme = "BIO"
            tags[begin:end] = spell_tags(scheme, label, end - begin) if scheme else [label] * (end - begin)
        return tags


def _continuations(tags: list[str], label_of: Array) -> Array:
    """Whether each tag continues the span of the tag before it: bool[tags, tags].

    label_of (int64[tags]): The label of each tag, -1 for O.
    """
    letter = np.array([tag[0] for tag in tags])
    is_open = ~np.isin(letter, ["O", "L", "U"])  # the span may go on behind the tag
    is_inside = ~np.isin(letter, ["O", "B", "U"])
    is_same_label = label_of[:, np.newaxis] == label_of
    return is_same_label & is_open[:, np.newaxis] & is_inside


class Component:
    """An exported component.

    content (dict): The part of an export that is about the component.

    kind (str): "chain", "segments", "text", or "set" for several chains.
    writes (str): What the component writes: "ents", "spans:KEY", "cats", "sents", or an attribute of words.
    columns (list[str]): The columns of rows that the component reads; "orth" is the word.
    labels (list[str]): All labels.
    tags (list[str]): The tags of words; of a set those of its first chain.
    """

    def __init__(self, content: dict[str, Any]):
        self.name: str = content["name"]
        self.kind: str = content["kind"]
        if self.kind not in _KINDS:
            raise LiteError(f"this reader does not know components of the kind '{self.kind}'. Take a newer one.")
        self.writes: str = content["writes"]
        self.columns: list[str] = content["columns"]
        is_set = self.kind == "set"
        is_segments = "segments" in (self.kind, content.get("structure"))
        self.labellers: list[Labeller] = []
        self._tags_of_labellers: list[Array] = []  # [tags] places of their tags in the columns of tables
        for part in content["chains"] if is_set else [content]:
            labeller = Labeller(part, is_segments)
            self.labellers.append(labeller)
            places = part["tags"] if is_set else np.arange(labeller.n_tags)
            self._tags_of_labellers.append(numbers(places, np.int64, (labeller.n_tags,), least=0))
        self.labels: list[str] = content["labels"]
        self.tags = self.labellers[0].tags
        self.has_spans = self.labellers[0].has_spans
        self._max_positive: Optional[int] = content.get("max_positive")
        if type(self._max_positive) not in (int, type(None)):
            raise LiteError(f"max_positive is {self._max_positive!r}, no number. Copy the file again.")
        # np.unique would import numpy.ma, a tenth of the time to load an export
        places = sorted({*np.concatenate(self._tags_of_labellers).tolist()})
        self._n_tags = len(places)
        if places != [*range(len(places))]:
            raise LiteError(f"its chains leave out some of the tags up to {places[-1]}. Copy the file again.")
        self._readers = [Features({**content, **reader}, self._n_tags) for reader in content["readers"]]
        if not self._readers:
            raise LiteError("it has no features. Copy the file again.")
        self._longest = max(len(labeller.lengths) for labeller in self.labellers)  # K tokens, 1 in a chain
        self._lock = Lock()  # readers keep what they know of words

    # ----------------------------------------------------------------------------------------------------- one text

    def tag(self, text: Text) -> list[str]:
        """The most probable tags of a text, without those of spans that are less probable than `min_prob`.

        text (list): Words; or rows, such as ["word", "NN"], whose first columns are those that the model reads.
        RETURNS (list[str]): The tag of each word; "O" where it has none, or "" if tags are no spans.
        """
        return self.tag_all([text])[0]

    tag_rows = tag

    def entities(self, text: Text) -> list[Entity]:
        """The spans of the most probable labelling, with the exact probability of each."""
        return self.entities_all([text])[0]

    def classify(self, text: Text) -> dict[str, float]:
        """The probability of each label of a text, the most probable first."""
        return self.classify_all([text])[0]

    def marginals(self, text: Text) -> Array:
        """The probability of each of `tags` at each word: float64[T, tags]."""
        self._expect("marginals", "chain")
        labellings = self.labellers[0].possible(self._score([text]))
        return labellings.marginals(labellings.states.tag_of[:, np.newaxis] == np.arange(len(self.tags)))

    def n_best(self, text: Text, n: int) -> list[tuple[float, list[str]]]:
        """The n most probable labellings: their probabilities and tags, the best first."""
        self._expect("n_best", "chain", "segments")
        if n < 1:
            raise LiteError(f"n_best gives {n} labellings. Take 1 or more.")
        labellings = self.labellers[0].possible(self._score([text]))
        [log_z] = labellings.sums.log_z
        paths = labellings.n_best(n)
        [scores] = paths.scores
        probabilities = np.minimum(np.exp(scores[scores > -np.inf] - log_z), 1.0).tolist()
        best = []
        for rank, probability in enumerate(probabilities):
            is_of_rank = paths.rank == rank
            tags = labellings.tags(paths.begin[is_of_rank], paths.end[is_of_rank], paths.state[is_of_rank])
            best.append((probability, [self.tags[tag] for tag in tags.tolist()]))
        return best

    # --------------------------------------------------------------------------------------------------- many texts

    def tag_all(self, texts: Iterable[Text]) -> list[list[str]]:
        """`tag` for many texts, which takes a fraction of the time of one by one."""
        self._expect("tag", "chain", "segments")
        return [of_chain.tags for [of_chain] in self.label(texts, weighs_spans=False)]

    def entities_all(self, texts: Iterable[Text]) -> list[list[Entity]]:
        """`entities` for many texts."""
        self._expect("entities", "chain", "segments", "set")
        if not self.has_spans:
            raise LiteError("This model labels words and has no entities. Take tag, or marginals for probabilities.")
        return [self.joined(labelled) for labelled in self.label(texts)]

    def classify_all(self, texts: Iterable[Text]) -> list[dict[str, float]]:
        """`classify` for many texts."""
        return self.classify_sequences([text] for text in texts)

    def classify_sequences(self, texts: Iterable[Sequence[Text]]) -> list[dict[str, float]]:
        """`classify` for many texts, each of which is cut into sequences: its sentences."""
        self._expect("classify", "text")
        reader = self._readers[0]
        first = self.labellers[0].states.first
        classified = []
        for batch in self._batches(texts):
            with self._lock:
                read = reader.read([*chain.from_iterable(batch)])
                scores = reader.scores("states", read)
            text_of_sequence = np.repeat(np.arange(len(batch)), [*map(len, batch)])
            text_of = np.repeat(text_of_sequence, np.diff(read.bounds))  # [T]
            totals = np.tile(first, (len(batch), 1))  # [B, labels]
            np.add.at(totals, text_of, scores)
            probabilities = np.exp(totals - log_sum(totals, 1)[:, np.newaxis])
            for row in probabilities.tolist():
                by_label = zip(self.labels, row)
                classified.append(dict(sorted(by_label, key=lambda item: -item[1])))
        return classified

    def label(self, texts: Iterable[Text], weighs_spans: bool = True) -> Iterator[list[Labelled]]:
        """Label texts by all chains.

        weighs_spans (bool): Whether entities are wanted, whose probabilities take time.
        YIELDS (list[Labelled]): For each text what each chain finds.
        """
        for batch in self._batches(texts):
            scores = self._score(batch)
            of_chains = []
            for labeller, tags in zip(self.labellers, self._tags_of_labellers):
                of_chain = scores if len(self.labellers) == 1 else scores.of_tags(tags)
                of_chains.append(labeller.label(of_chain, weighs_spans))
            yield from map(list, zip(*of_chains))

    def joined(self, labelled: Sequence[Labelled]) -> list[Entity]:
        """The spans that the chains of a set find in a text, in order. Of the spans of the same tokens the most probable stay."""
        if len(labelled) == 1 and self._max_positive is None:
            return labelled[0].entities
        spans = chain.from_iterable(of_chain.entities for of_chain in labelled)
        in_order = sorted(spans, key=lambda span: (span.start, span.end, self.labels.index(span.label)))
        if self._max_positive is None:
            return in_order
        kept = []
        for _, of_tokens in groupby(in_order, key=lambda span: (span.start, span.end)):
            likely = nlargest(self._max_positive, of_tokens, key=lambda span: span.prob)
            kept += sorted(likely, key=lambda span: self.labels.index(span.label))
        return kept

    # ------------------------------------------------------------------------------------------------------- scores

    def _expect(self, method: str, *kinds: str) -> None:
        """RAISES (LiteError): If the model is of none of the kinds that a method fits."""
        if self.kind not in kinds:
            labelled, instead = _KINDS[self.kind]
            raise LiteError(f"{method} does not fit a model of {labelled}. Take {instead}.")

    def _batches(self, texts: Iterable[Any]) -> Iterator[list[Any]]:
        """Cut texts into batches that fit into memory."""
        # Memory grows with the texts times K for segments, and times K · S² for the steps between them
        n_steps = self._longest * max(len(labeller.states.first) for labeller in self.labellers) ** 2
        n_texts = max(1, min(_AT_ONCE // self._longest, MOST_STEPS // n_steps))
        remaining = iter(texts)
        while batch := [*islice(remaining, n_texts)]:
            yield batch

    def _score(self, texts: Sequence[Text]) -> _Scores:
        """Sum the weights of the features of texts."""
        with self._lock:
            reads = [(reader, reader.read(texts)) for reader in self._readers]
            first_read = reads[0][1]
            bounds = first_read.bounds
            n_tokens = int(bounds[-1])
            longest = max(1, min(self._longest, int(np.diff(bounds).max(initial=0))))
            scores = np.zeros((n_tokens, longest, self._n_tags))
            none = np.zeros((n_tokens, self._n_tags))
            totals = dict.fromkeys(("states", "begins", "ends", "tokens"), none)
            pairs = None
            for reader, read in reads:
                for name in reader.tables:
                    if name in totals:
                        totals[name] = reader.scores(name, read)
                if "transitions" in reader.tables:
                    pairs = reader.scores("transitions", read).reshape(n_tokens, self._n_tags, self._n_tags)
                reader.add_spans(read, scores)
        # The scores of segments of k + 1 tokens, by their first token; `inside` is the sum over their tokens
        inside = none
        of_tokens = totals["states"] + totals["tokens"]
        for k in range(longest):
            n = max(0, n_tokens - k)
            inside = inside[:n] + of_tokens[k:]
            scores[:n, k] += inside + totals["begins"][:n] + totals["ends"][k:]
        blank = np.array([word.isspace() for word in chain.from_iterable(first_read.texts)], dtype=bool)
        return _Scores(scores, pairs, bounds, blank)
