"""One component of an export: rows of words in, tags, spans and labels of texts out."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, product
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from .content import DAMAGED, FORMAT, VERSION, Array, LiteError, numbers, read_file
from .features import Features, Text, spell_tags
from .labellings import MOST_STEPS, Chain, Segments, Spans, States, log_sum

_AT_ONCE = 512  # texts that are labelled together
# What a component of each kind labels, and the method that labels it
_KINDS = {"chain": ("words", "tag"), "segments": ("segments", "entities"), "text": ("texts", "classify")}
# Probabilities of spans that are never worth their price, and that always are
_LEAST_PRICE = 1e-3
_HIGHEST_PRICE = 1.0 - 1e-6


class Entity(NamedTuple):
    """A labelled span: tokens ``start`` up to, not including, ``end``."""

    start: int
    end: int
    label: str
    prob: float


class _Labelled(NamedTuple):
    """A text with labels."""

    tags: list[str]
    entities: list[Entity]


def load(path: Union[str, Path]) -> "Component":
    """Load an export, .npz or JSON (which may be gzipped). RAISES (LiteError): If the file is no whole export of this version."""
    try:
        content = read_file(Path(path))
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise LiteError("this is no export of spacy_crf. `spacy crf export MODEL FILE --to npz` writes one.")
        if content["version"] not in range(1, VERSION + 1):
            known = f"version {content['version']} of the format, and this reader reads versions 1 to {VERSION}"
            raise LiteError(f"it has {known}. Take the reader of the spacy_crf that wrote it.")
        return Component(content)
    except LiteError as error:
        raise LiteError(f"{path}: {error}") from None
    except DAMAGED as error:
        raise LiteError(f"{path} is cut off or no export ({error!r}). Copy it again, or export it again.") from error


class Component:
    """An exported component.

    content (dict): The part of an export that is about the component.

    kind (str): "chain", "segments" or "text".
    labels (list[str]): The labels.
    tags (list[str]): The tags of words, which are the `labels` where words have labels.
    columns (list[str]): The columns of rows that the component reads; "orth" is the word.
    """

    def __init__(self, content: dict[str, Any]):
        self.kind: str = content["kind"]
        if self.kind not in _KINDS:
            raise LiteError(f"this reader does not know models of the kind '{self.kind}'. Take a newer one.")
        self.labels: list[str] = content["labels"]
        self.columns: list[str] = content["columns"]
        self._scheme = content["scheme"]
        self.has_spans = self._scheme is not None
        n_labels = len(self.labels)
        if self.has_spans:
            letters = content["letters"]
            self.tags = ["O", *(f"{letter}-{label}" for label, letter in product(self.labels, letters))]
            label_of = (np.arange(len(self.tags)) - 1) // len(letters)  # [tags]
        else:
            self.tags = [*self.labels]
            label_of = np.arange(n_labels)
        if self.kind == "segments":  # a state is O or a label, and no segment continues another one
            label_of = np.arange(-1, n_labels)
            continues = False
        else:
            continues = _continuations(self.tags, label_of) if self.has_spans else False
        self._states = States(content["states"], label_of, continues)
        self._without_rules: Optional[States] = None
        if "without_rules" in content:
            self._without_rules = States(content["without_rules"], label_of, continues)
        n_tags = len(label_of)
        self._readers = [Features({**content, **reader}, n_tags) for reader in content["readers"]]
        if not self._readers:
            raise LiteError("it has no features. Copy the file again.")
        lengths = content["lengths"] if self.kind == "segments" else np.zeros((1, n_tags))
        self._lengths = numbers(lengths, shape=(len(lengths), n_tags))  # [K, tags]
        least = np.zeros(n_labels) if content["min_prob"] is None else content["min_prob"]
        self._least = numbers(least, shape=(n_labels,), least=0.0)
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
        labellings = self._possible(text)
        return labellings.marginals(labellings.states.tag_of[:, np.newaxis] == np.arange(len(self.tags)))

    def n_best(self, text: Text, n: int) -> list[tuple[float, list[str]]]:
        """The n most probable labellings: their probabilities and tags, the best first."""
        self._expect("n_best", "chain", "segments")
        labellings = self._possible(text)
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
        batches = (self._label(batch, bool(self._least.any())) for batch in self._batches(texts))
        return [labelled.tags for labelled in chain.from_iterable(batches)]

    def entities_all(self, texts: Iterable[Text]) -> list[list[Entity]]:
        """`entities` for many texts."""
        self._expect("entities", "chain", "segments")
        if not self.has_spans:
            raise LiteError("This model labels words and has no entities. Take tag, or marginals for probabilities.")
        batches = (self._label(batch, True) for batch in self._batches(texts))
        return [labelled.entities for labelled in chain.from_iterable(batches)]

    def classify_all(self, texts: Iterable[Text]) -> list[dict[str, float]]:
        """`classify` for many texts."""
        self._expect("classify", "text")
        reader = self._readers[0]
        classified = []
        for batch in self._batches(texts):
            with self._lock:
                read = reader.read(batch)
                scores = reader.scores("states", read)
            text_of = np.repeat(np.arange(len(batch)), np.diff(read.bounds))
            totals = np.tile(self._states.first, (len(batch), 1))  # [B, labels]
            np.add.at(totals, text_of, scores)
            probabilities = np.exp(totals - log_sum(totals, 1)[:, np.newaxis])
            for row in probabilities.tolist():
                by_label = zip(self.labels, row)
                classified.append(dict(sorted(by_label, key=lambda item: -item[1])))
        return classified

    # --------------------------------------------------------------------------------------------------- labellings

    def _expect(self, method: str, *kinds: str) -> None:
        """RAISES (LiteError): If the model is of none of the kinds that a method fits."""
        if self.kind not in kinds:
            labelled, instead = _KINDS[self.kind]
            raise LiteError(f"{method} does not fit a model of {labelled}. Take {instead}.")

    def _batches(self, texts: Iterable[Text]) -> Iterator[list[Text]]:
        """Cut texts into batches that fit into memory."""
        # Memory grows with the texts times K for segments, and times K · S² for the steps between them
        longest = len(self._lengths)  # K tokens, 1 in a chain
        n_steps = longest * len(self._states.first) ** 2
        n_texts = max(1, min(_AT_ONCE // longest, MOST_STEPS // n_steps))
        remaining = iter(texts)
        while batch := [*islice(remaining, n_texts)]:
            yield batch

    def _labellings(self, texts: Sequence[Text], states: Optional[States] = None) -> Any:
        """The labellings of texts: `Segments` or a `Chain`.

        states (States): Their states; by default those under the rules.
        """
        with self._lock:
            reads = [(reader, reader.read(texts)) for reader in self._readers]
            bounds = reads[0][1].bounds
            n_tokens = int(bounds[-1])
            n_tags = self._lengths.shape[1]
            longest = max(1, min(len(self._lengths), int(np.diff(bounds).max(initial=0))))
            scores = np.zeros((n_tokens, longest, n_tags))
            none = np.zeros((n_tokens, n_tags))
            totals = dict.fromkeys(("states", "begins", "ends", "tokens"), none)
            pairs = None
            for reader, read in reads:
                for name in reader.tables:
                    if name in totals:
                        totals[name] = reader.scores(name, read)
                if "transitions" in reader.tables:
                    pairs = reader.scores("transitions", read).reshape(n_tokens, n_tags, n_tags)
                reader.add_spans(read, scores)
        # The scores of segments of k + 1 tokens, by their first token; `inside` is the sum over their tokens
        inside = none
        of_tokens = totals["states"] + totals["tokens"]
        for k in range(longest):
            n = max(0, n_tokens - k)
            inside = inside[:n] + of_tokens[k:]
            scores[:n, k] += inside + totals["begins"][:n] + totals["ends"][k:] + self._lengths[k]
        states = states or self._states
        # In texts with white space, spans may not begin or end at it
        words = chain.from_iterable(reads[0][1].texts)
        blank = np.array([word.isspace() for word in words], dtype=bool)
        if states.blank is not None and blank.any():
            states = states.blank
        structure = Segments if self.kind == "segments" else Chain
        return structure(states, scores, bounds, pairs, blank)

    def _possible(self, text: Text) -> Any:
        """The labellings of a text that keep all rules; all its labellings if none does."""
        for states in (self._states, self._without_rules):
            if states is not None:
                labellings = self._labellings([text], states)
                if labellings.sums.log_z[0] > -np.inf:
                    return labellings
        raise LiteError("A text has no labelling with a finite score. Export the model again.")

    # ------------------------------------------------------------------------------------------------------- labels

    def _label(self, texts: Sequence[Text], weighs_spans: bool) -> list[_Labelled]:
        """Label texts.

        weighs_spans (bool): Whether to compute entities, whose probabilities may be less than `min_prob`; if not, there are none.
        """
        return self._label_by(self._labellings(texts), texts, weighs_spans)

    def _label_by(self, labellings: Any, texts: Sequence[Text], weighs_spans: bool) -> list[_Labelled]:
        """Label texts by their labellings, or all labellings of those of which no labelling keeps the rules."""
        choice = labellings.states.choice
        if choice is None:
            paths = labellings.n_best(1)
            scores = paths.scores[:, 0]
        else:
            paths = None
            scores = labellings.sums.log_z
        if not (scores > -np.inf).all():
            one_by_one = []
            for score, text in zip(scores, texts):
                of_text = self._labellings([text]) if score > -np.inf else self._possible(text)
                one_by_one += self._label_by(of_text, [text], weighs_spans)
            return one_by_one
        if choice is None:
            return self._best_path(labellings, paths, weighs_spans)
        return self._best_spans(labellings, choice, texts)

    def _best_path(self, labellings: Any, paths: Any, weighs_spans: bool) -> list[_Labelled]:
        """Label texts by the most probable labelling, without the spans that are less probable than `min_prob`."""
        segments = (paths.begin, paths.end, paths.state)
        tags = [self.tags[tag] for tag in labellings.tags(*segments).tolist()]
        n_texts = len(labellings.bounds) - 1
        entities = [[] for _ in range(n_texts)]
        if weighs_spans:
            spans = labellings.weighed(*labellings.spans(*segments))
            # Rules that ask for spans would be broken without them
            choice = labellings.states.choice
            is_cut = choice is None or choice.asks is None
            is_kept = spans.probability >= self._least[spans.label] if is_cut else np.ones(len(spans.label), bool)
            entities = self._entities(labellings, spans, is_kept)
            outside = "O" if self.has_spans else ""
            for begin, end in zip(spans.begin[~is_kept].tolist(), spans.end[~is_kept].tolist()):
                tags[begin:end] = [outside] * (end - begin)
        starts = labellings.bounds.tolist()
        return [_Labelled(tags[starts[n] : starts[n + 1]], entities[n]) for n in range(n_texts)]

    def _best_spans(self, labellings: Any, choice: States, texts: Sequence[Text]) -> list[_Labelled]:
        """Label texts by the spans, no two of which overlap, whose probabilities exceed their prices by most in total."""
        spans = self._chosen(labellings, choice)
        is_kept = np.ones(len(spans.label), dtype=bool)
        if choice.asks is None:
            is_kept = spans.probability >= self._least[spans.label]
        entities = self._entities(labellings, spans, is_kept)
        lengths = np.diff(labellings.bounds).tolist()
        labelled = [_Labelled(self._spell(found, length), found) for found, length in zip(entities, lengths)]
        # Spans of probability 0 are not listed: no set of listed spans keeps the rules
        is_unlisted = spans.probability == 0.0
        for n in set(labellings.text_of[spans.begin[is_unlisted]].tolist()):
            of_text = self._labellings([texts[n]])
            labelled[n] = self._best_path(of_text, of_text.n_best(1), True)[0]
        return labelled

    def _chosen(self, labellings: Any, choice: States) -> Spans:
        """The spans, no two of which overlap, whose probabilities exceed their prices by most in total. Those that are not
        listed, which rules have asked for, have the probability 0."""
        prices = np.clip(self._least, _LEAST_PRICE, _HIGHEST_PRICE)
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
        entities = [[] for _ in range(len(labellings.bounds) - 1)]
        text = labellings.text_of[spans.begin]
        first = labellings.bounds[text]  # [N] first token of the text
        columns = (text, spans.begin - first, spans.end - first, spans.label, spans.probability)
        for n, begin, end, label, probability in zip(*(column[is_kept].tolist() for column in columns)):
            entities[n].append(Entity(begin, end, self.labels[label], probability))
        return entities

    def _spell(self, entities: list[Entity], length: int) -> list[str]:
        """The tags of a text of so many tokens with these entities."""
        tags = ["O" if self.has_spans else ""] * length
        for begin, end, label, _ in entities:
            if self.has_spans:
                scheme = self._scheme
                # In IOB1 a span that touches one of its own label begins with B-
                if scheme == "IOB1" and tags[max(0, begin - 1)][2:] == label:
                    scheme = "BIO"
                tags[begin:end] = spell_tags(scheme, label, end - begin)
            else:
                tags[begin:end] = [label] * (end - begin)
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
