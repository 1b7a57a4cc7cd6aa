"""What is in annotated texts, and what in them will mislead training: counted, for `crf data`."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Optional

from spacy.language import Language
from spacy.tokens import Doc, Span

Words = tuple[str, ...]


@dataclass
class Label:
    """Spans of one label, how many different ones there are, and how many have so many tokens."""

    spans: int = 0
    strings: int = 0
    lengths: dict[int, int] = field(default_factory=dict)


@dataclass
class Corpus:
    """Counts of a set of texts. Lists of places hold texts, cut short."""

    documents: int = 0
    tokens: int = 0
    spans: int = 0
    without_spans: int = 0  # documents
    unannotated_tokens: int = 0  # of which nothing is said
    labels: dict[str, Label] = field(default_factory=dict)
    tags: dict[str, int] = field(default_factory=dict)
    untagged_tokens: int = 0
    cats: dict[str, int] = field(default_factory=dict)  # texts that have each label of `doc.cats`, which has 1.0 there
    without_cats: int = 0  # documents, where others have labels
    several_cats: list[str] = field(default_factory=list)  # documents with more than one label
    uncertain_cats: list[str] = field(default_factory=list)  # documents with values that are neither 0 nor 1
    misaligned: list[str] = field(default_factory=list)  # spans that the tokenizer does not cut out
    touching: int = 0  # spans that go on where one of their label ends
    crossing: list[str] = field(default_factory=list)  # spans that cross the end of a sentence
    odd: list[str] = field(default_factory=list)  # spans without a letter or digit
    repeated: int = 0  # documents whose text was there before
    repeated_otherwise: list[str] = field(default_factory=list)  # of these, the texts that are annotated differently
    inconsistent: list["String"] = field(default_factory=list)


@dataclass
class String:
    """Words that are annotated in several ways: how often as which label, and how often not."""

    text: str
    labels: dict[str, int]
    unlabelled: int

    @property
    def doubtful(self) -> int:
        """How many of its occurrences are not as most of them are."""
        return sum(self.labels.values()) + self.unlabelled - max(*self.labels.values(), self.unlabelled)


@dataclass
class Overlap:
    """What two sets of texts have in common, and what the second has alone."""

    documents: list[str] = field(default_factory=list)  # texts of the second that are in the first
    only_in_dev: list[str] = field(default_factory=list)  # labels of spans, tags and labels of texts
    only_in_train: list[str] = field(default_factory=list)
    unseen: dict[str, float] = field(
        default_factory=dict
    )  # by label, the share of dev's spans that are no span of train


def describe(docs: Iterable[Doc], nlp: Language) -> Corpus:
    """nlp (Language): Its tokenizer is what training will use."""
    docs = list(docs)
    found, strings, tags, cats = Corpus(), defaultdict(set), Counter(), Counter()
    for doc in docs:
        found.documents += 1
        found.tokens += len(doc)
        found.without_spans += not doc.ents
        found.unannotated_tokens += sum(token.ent_iob == 0 for token in doc)
        tags.update(token.tag_ for token in doc)
        cats.update({label: int(value == 1.0) for label, value in doc.cats.items()})
        _look_at_cats(doc, found)
        _count_spans(doc, found, strings)
        _look_at_spans(doc, nlp, found)
    for label, texts in strings.items():
        found.labels[label].strings = len(texts)
    found.labels = dict(sorted(found.labels.items()))
    found.untagged_tokens = tags.pop("", 0)
    found.tags = dict(tags.most_common())
    found.cats = dict(cats.most_common())
    found.without_cats = sum(not _cats(doc) for doc in docs) if cats else 0
    _compare_repeated(docs, found)
    found.inconsistent = inconsistent(docs)
    return found


def overlap(train: list[Doc], dev: list[Doc]) -> Overlap:
    texts = {_key(doc) for doc in train}
    known, seen, unseen = {_words(span) for doc in train for span in doc.ents}, Counter(), Counter()
    for doc in dev:
        for span in doc.ents:
            seen[span.label_] += 1
            unseen[span.label_] += _words(span) not in known
    of_train, of_dev = _all_labels(train), _all_labels(dev)
    return Overlap(
        documents=[_short(doc.text) for doc in dev if _key(doc) in texts],
        only_in_dev=sorted(of_dev - of_train),
        only_in_train=sorted(of_train - of_dev),
        unseen={label: unseen[label] / n for label, n in sorted(seen.items())},
    )


def inconsistent(docs: list[Doc]) -> list[String]:
    """Strings that are a span here and not there, or of several labels, the most doubtful first. Within a longer span, or where
    annotation is missing, they do not count."""
    labels: dict[Words, Counter] = defaultdict(Counter)
    for doc in docs:
        for span in doc.ents:
            labels[_words(span)][span.label_] += 1
    by_first: dict[str, set[int]] = defaultdict(set)
    for words in labels:
        by_first[words[0]].add(len(words))
    unlabelled: Counter[Words] = Counter()
    for doc in docs:
        unlabelled.update(words for words in _outside(doc, by_first) if words in labels)
    found = [String(" ".join(words), dict(of.most_common()), unlabelled[words]) for words, of in labels.items()]
    return sorted((one for one in found if one.doubtful), key=lambda one: (-one.doubtful, one.text))


def to_json(facts: Any) -> dict[str, Any]:
    return asdict(facts)


def _all_labels(docs: list[Doc]) -> set[str]:
    """Of spans, tokens and texts."""
    return {
        label
        for doc in docs
        for label in (*(span.label_ for span in doc.ents), *(token.tag_ for token in doc if token.tag_), *_cats(doc))
    }


def _cats(doc: Doc) -> list[str]:
    """The labels that a text has."""
    return [label for label, value in doc.cats.items() if value == 1.0]


def _look_at_cats(doc: Doc, found: Corpus) -> None:
    if len(_cats(doc)) > 1:
        found.several_cats.append(f"{_short(doc.text)} ({', '.join(_cats(doc))})")
    uncertain = [f"{label} {value:g}" for label, value in doc.cats.items() if value not in (0.0, 1.0)]
    if uncertain:
        found.uncertain_cats.append(f"{_short(doc.text)} ({', '.join(uncertain)})")


def _outside(doc: Doc, by_first: dict[str, set[int]]) -> Iterator[Words]:
    """Words outside of all spans, of as many tokens as spans that begin with the same word have."""
    words = [token.text for token in doc]
    is_outside = [token.ent_iob_ == "O" for token in doc]
    for start, word in enumerate(words):
        for length in by_first.get(word, ()) if is_outside[start] else ():
            end = start + length
            if end <= len(words) and all(is_outside[start:end]):
                yield tuple(words[start:end])


def _count_spans(doc: Doc, found: Corpus, strings: dict[str, set[Words]]) -> None:
    for span in doc.ents:
        label = found.labels.setdefault(span.label_, Label())
        label.spans += 1
        label.lengths[len(span)] = label.lengths.get(len(span), 0) + 1
        strings[span.label_].add(_words(span))
    found.spans += len(doc.ents)
    found.touching += sum(one.end == two.start and one.label == two.label for one, two in pairwise(doc.ents))


def _look_at_spans(doc: Doc, nlp: Language, found: Corpus) -> None:
    cut = nlp.make_doc(doc.text) if doc.ents and len(doc.text) <= nlp.max_length else doc
    for span in doc.ents:
        shown = f"{_short(span.text)} ({span.label_})"
        if cut.char_span(span.start_char, span.end_char) is None:
            found.misaligned.append(shown)
        if not any(letter.isalnum() for letter in span.text):
            found.odd.append(shown)
        if any(token.is_sent_start for token in span[1:]):
            found.crossing.append(shown)


def _compare_repeated(docs: list[Doc], found: Corpus) -> None:
    annotated: dict[str, Any] = {}
    for doc in docs:
        spans, tags = [(span.start, span.end, span.label_) for span in doc.ents], [token.tag_ for token in doc]
        annotation = spans, tags, dict(doc.cats)
        before = annotated.setdefault(_key(doc), annotation)
        if before is not annotation:
            found.repeated += 1
            if before != annotation:
                found.repeated_otherwise.append(_short(doc.text))


def _key(doc: Doc) -> str:
    """The same for texts that differ in white space only: columns do not tell where there is any."""
    return "".join(doc.text.split())


def _words(span: Span) -> Words:
    return tuple(token.text for token in span)


def _short(text: str, most: Optional[int] = 60) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"
