"""The command `data`: counts the contents of annotated texts, and finds annotation that will mislead training."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Optional

from spacy.cli._util import Arg, Opt
from spacy.language import Language
from spacy.matcher import PhraseMatcher
from spacy.tokens import Doc, Span
from wasabi import msg

from ..explain.explanation import shorter
from .formats import FORMATS, ReadSettings, Report
from .formats.columns import find_spelling
from .shared import JsonOption, LangOption, blank, command, print_table
from .texts import read_docs

Words = tuple[str, ...]
_FEW = 50  # fewer spans or texts of a label are hardly enough to learn and to score it
_SHOWN = 3  # examples in a warning


@dataclass
class CorpusFacts:
    """Counts of a set of texts. Lists hold shortened texts or spans."""

    documents: int = 0
    tokens: int = 0
    spans: int = 0
    without_spans: int = 0  # documents without spans
    unannotated_tokens: int = 0  # tokens whose annotation of entities is missing
    # By label: the number of "spans", of different "strings", and of spans of each length in tokens ("lengths")
    labels: dict[str, dict[str, Any]] = field(default_factory=dict)
    tags: dict[str, int] = field(default_factory=dict)
    untagged_tokens: int = 0
    cats: dict[str, int] = field(default_factory=dict)  # by label of `doc.cats`, the number of texts with 1.0
    without_cats: int = 0  # documents without labels, if others have some
    several_cats: list[str] = field(default_factory=list)  # documents with more than one label
    uncertain_cats: list[str] = field(default_factory=list)  # documents with values that are neither 0 nor 1
    misaligned: list[str] = field(default_factory=list)  # spans that do not align with the tokenizer's tokens
    touching: int = 0  # spans that begin where another of the same label ends
    crossing: list[str] = field(default_factory=list)  # spans that cross the end of a sentence
    odd: list[str] = field(default_factory=list)  # spans without a letter or digit
    repeated: int = 0  # documents that repeat the text of an earlier document
    repeated_otherwise: list[str] = field(default_factory=list)  # repeated texts whose annotation differs
    inconsistent: list["Wording"] = field(default_factory=list)


@dataclass
class Wording:
    """Words that are annotated in several ways, with the number of occurrences by label and without one."""

    text: str
    labels: dict[str, int]
    unlabelled: int

    @property
    def doubtful(self) -> int:
        """Number of occurrences whose annotation differs from the most frequent one."""
        return sum(self.labels.values()) + self.unlabelled - max(*self.labels.values(), self.unlabelled)


def describe(docs: Iterable[Doc], nlp: Language) -> CorpusFacts:
    """Count the contents of Docs. nlp (Language): The pipeline whose tokenizer the training will use."""
    docs = list(docs)
    found, tags, cats = CorpusFacts(), Counter(), Counter()
    lengths, strings = defaultdict(Counter), defaultdict(set)
    annotated: dict[str, Any] = {}
    for doc in docs:
        found.documents += 1
        found.tokens += len(doc)
        found.spans += len(doc.ents)
        found.without_spans += not doc.ents
        found.unannotated_tokens += sum(token.ent_iob == 0 for token in doc)
        found.touching += sum(one.end == two.start and one.label == two.label for one, two in pairwise(doc.ents))
        tags.update(token.tag_ for token in doc)
        cats.update({label: int(value == 1.0) for label, value in doc.cats.items()})
        if len(_cats(doc)) > 1:
            found.several_cats.append(f"{_short(doc.text)} ({', '.join(_cats(doc))})")
        uncertain = [f"{label} {value:g}" for label, value in doc.cats.items() if value not in (0.0, 1.0)]
        if uncertain:
            found.uncertain_cats.append(f"{_short(doc.text)} ({', '.join(uncertain)})")
        cut = nlp.make_doc(doc.text) if doc.ents and len(doc.text) <= nlp.max_length else doc
        for span in doc.ents:
            lengths[span.label_][len(span)] += 1
            strings[span.label_].add(_words(span))
            shown = f"{_short(span.text)} ({span.label_})"
            if cut.char_span(span.start_char, span.end_char) is None:
                found.misaligned.append(shown)
            if not any(letter.isalnum() for letter in span.text):
                found.odd.append(shown)
            if any(token.is_sent_start for token in span[1:]):
                found.crossing.append(shown)
        spans = [(span.start, span.end, span.label_) for span in doc.ents]
        annotation = spans, [token.tag_ for token in doc], dict(doc.cats)
        before = annotated.setdefault(_key(doc), annotation)
        found.repeated += before is not annotation
        if before != annotation:
            found.repeated_otherwise.append(_short(doc.text))
    for label, of in sorted(lengths.items()):
        found.labels[label] = {"spans": of.total(), "strings": len(strings[label]), "lengths": dict(of)}
    found.untagged_tokens = tags.pop("", 0)
    found.tags = dict(tags.most_common())
    found.cats = dict(cats.most_common())
    found.without_cats = sum(not _cats(doc) for doc in docs) if cats else 0
    found.inconsistent = inconsistent(docs)
    return found


def overlap(train: list[Doc], dev: list[Doc]) -> dict[str, Any]:
    """Compare the texts, labels and spans of dev with those of train.

    RETURNS (Dict[str, Any]): "documents": texts of dev that train has too. "only_in_dev", "only_in_train": labels of spans,
        tags, and labels of texts in one of the two. "unseen": by label, the share of dev's spans whose words train does not have.
    """
    texts = {_key(doc) for doc in train}
    known, seen, unseen = {_words(span) for doc in train for span in doc.ents}, Counter(), Counter()
    for doc in dev:
        for span in doc.ents:
            seen[span.label_] += 1
            unseen[span.label_] += _words(span) not in known
    of_train, of_dev = _all_labels(train), _all_labels(dev)
    return {
        "documents": [_short(doc.text) for doc in dev if _key(doc) in texts],
        "only_in_dev": sorted(of_dev - of_train),
        "only_in_train": sorted(of_train - of_dev),
        "unseen": {label: unseen[label] / n for label, n in sorted(seen.items())},
    }


def inconsistent(docs: list[Doc]) -> list[Wording]:
    """Find strings that are annotated in one place and not in another, or with several labels; the most doubtful first.
    Occurrences within a longer span, or with missing annotation, do not count."""
    labels: dict[Any, Counter] = defaultdict(Counter)
    for doc in docs:
        for span in doc.ents:
            labels[_words(span)][span.label_] += 1
    unlabelled: Counter[Words] = Counter()
    if labels:
        matcher = PhraseMatcher(docs[0].vocab)
        matcher.add("annotated", [Doc(docs[0].vocab, words=words) for words in labels])
        for doc in docs:
            matches = (doc[start:end] for _, start, end in matcher(doc))
            unlabelled.update(_words(span) for span in matches if all(token.ent_iob_ == "O" for token in span))
    found = [Wording(" ".join(words), dict(of.most_common()), unlabelled[words]) for words, of in labels.items()]
    return sorted((one for one in found if one.doubtful), key=lambda one: (-one.doubtful, one.text))


def _all_labels(docs: list[Doc]) -> set[str]:
    """All labels of spans, tokens and texts."""
    return {
        label
        for doc in docs
        for label in (*(span.label_ for span in doc.ents), *(token.tag_ for token in doc if token.tag_), *_cats(doc))
    }


def _cats(doc: Doc) -> list[str]:
    """The labels of a text whose value in `doc.cats` is 1.0."""
    return [label for label, value in doc.cats.items() if value == 1.0]


def _key(doc: Doc) -> str:
    """The text without white space, for comparing texts: files of columns do not keep white space."""
    return "".join(doc.text.split())


def _words(span: Span) -> Words:
    return tuple(token.text for token in span)


def _short(text: str) -> str:
    return shorter(" ".join(text.split()))


# ---------------------------------------------------------------------------------------------------------- command


@command("data")
def data_cli(
    path: Path = Arg(..., help="Annotated texts: .spacy, a folder, or a file that `convert` reads.", exists=True),
    dev: Optional[Path] = Opt(None, help="Dev texts to compare with the training texts.", exists=True),
    lang: LangOption = "en",
    top: int = Opt(20, min=0, help="Number of listed strings that are annotated in several ways."),
    as_json: JsonOption = False,
) -> None:
    """Describe annotated texts and suspicious annotation. The command prints labels and lengths of spans, misaligned
    spans, repeated texts, the overlap of train and dev, and words that are annotated in several ways."""
    nlp = blank(lang)
    settings, report, dev_report = ReadSettings(overlaps="longest", without_spans=True), Report(), Report()
    docs = read_docs(path, nlp, settings, report=report)
    dev_docs = read_docs(dev, nlp, settings, report=dev_report) if dev else []
    facts, dev_facts = describe(docs, nlp), describe(dev_docs, nlp) if dev else None
    common = overlap(docs, dev_docs) if dev else None
    if as_json:
        found = {"train": asdict(facts) | {"unread": asdict(report)}}
        if dev_facts and common:
            found |= {"dev": asdict(dev_facts) | {"unread": asdict(dev_report)}, "overlap": common}
        print(json.dumps(found, ensure_ascii=False, indent=2))
        return
    _show_corpus(str(path), facts, report, dev_facts)
    if dev_facts and common:
        _show_corpus(str(dev), dev_facts, dev_report)
        msg.divider("train and dev")
        for texts, what in (
            (common["documents"], "documents of dev are in train too: scores of them are memory"),
            (common["only_in_dev"], "labels are in dev only, and can't be found"),
            (common["only_in_train"], "labels are in train only, and are not scored"),
        ):
            if texts:
                msg.warn(f"{len(texts):,} {what}: {_some(texts)}")
        if not common["documents"]:
            msg.good("No text of dev is in train")
        rows = [(label, f"{share:.0%}") for label, share in common["unseen"].items()]
        if rows:
            print_table("entities of dev", ("label", "not in train"), rows, n_texts=1)
    if facts.inconsistent:
        rows = []
        for one in facts.inconsistent[:top]:
            labels = ", ".join(f"{label} {n:,}" for label, n in one.labels.items())
            rows.append((one.text, labels, f"{one.unlabelled:,}" if one.unlabelled else ""))
        title = f"{len(facts.inconsistent):,} strings are annotated in several ways"
        print_table(title, ("words", "as", "not annotated"), rows, n_texts=2)
    elif facts.spans:
        msg.good("No words are annotated in several ways")


def _show_corpus(title: str, facts: CorpusFacts, report: Report, dev: Optional[CorpusFacts] = None) -> None:
    msg.divider(title)
    counted = [f"{facts.documents:,} documents, {facts.tokens:,} tokens"]
    if facts.spans or not (facts.tags or facts.cats):
        counted.append(f"{facts.spans:,} entities; {facts.without_spans:,} documents without any")
    msg.info(f"{FORMATS[report.format].title}: {', '.join(counted)}")
    rows = []
    for label, of in facts.labels.items():
        mean = sum(length * n for length, n in of["lengths"].items()) / of["spans"]
        of_dev = [f"{dev.labels[label]['spans']:,}" if label in dev.labels else "0"] if dev else []
        rows.append((label, f"{of['spans']:,}", f"{of['strings']:,}", f"{mean:.1f}", str(max(of["lengths"])), *of_dev))
    of_dev = [dev] if dev else []
    if rows:
        columns = ("label", "spans", "different", "mean tokens", "most", *("spans of dev" for _ in of_dev))
        print_table("entities", columns, rows, n_texts=1)
    for title, name, what in (("tags", "tags", ("tag", "tokens")), ("labels of texts", "cats", ("label", "texts"))):
        counts = [getattr(each, name) for each in (facts, *of_dev)]
        if counts[0]:
            rows = [(key, *(f"{each.get(key, 0):,}" for each in counts)) for key in counts[0]]
            print_table(title, (*what, *(f"{what[1]} of dev" for _ in of_dev)), rows, n_texts=1)
    report.print_warnings()
    for warning in _warnings(facts):
        msg.warn(warning)


def _warnings(facts: CorpusFacts) -> list[str]:
    """Warnings about annotation that a training would not learn, or would learn wrongly."""
    few = [f"{label} ({of['spans']})" for label, of in facts.labels.items() if of["spans"] < _FEW]
    few_texts = [f"{label} ({n})" for label, n in facts.cats.items() if n < _FEW]
    tags = [tag for tag in facts.tags if tag.strip() and any(letter.isalpha() for letter in tag)]
    _, like_tags = find_spelling(list(facts.labels))
    by_name: dict[str, set[str]] = {}
    for name in (*facts.labels, *tags, *facts.cats):
        by_name.setdefault("".join(name.lower().split()), set()).add(name)
    shown = (
        (few, f"labels with fewer than {_FEW} spans"),
        (few_texts, f"labels with fewer than {_FEW} texts"),
        (
            [" = ".join(sorted(names)) for names in by_name.values() if len(names) > 1],
            "labels that differ in case or white space only",
        ),
        (like_tags if len(like_tags) > 1 else [], "labels look like tags of tokens, which would be parts of entities"),
        (facts.misaligned, "entities do not align with the tokenizer's tokens, and can't be learned"),
        (facts.crossing, "entities cross the end of a sentence"),
        (facts.odd, "entities have neither letters nor digits"),
        (facts.several_cats, "texts have several labels, which crf_textcat takes with multilabel = true"),
        (facts.uncertain_cats, "texts have labels with neither 0 nor 1, which crf_textcat refuses"),
        (facts.repeated_otherwise, "texts are repeated with other annotation"),
    )
    counted = (
        (facts.repeated, "documents repeat the text of another"),
        (facts.touching, "entities touch one of their own label before them: the scheme IO would join them"),
        (
            facts.unannotated_tokens if facts.spans else 0,
            "tokens have no annotation of entities: anything is allowed there",
        ),
        (facts.untagged_tokens if facts.tags else 0, "tokens have no tag: crf_tagger allows any there"),
        (facts.without_cats, "texts have no label: crf_textcat allows any there that is not ruled out by 0"),
    )
    found = [f"{len(texts):,} {what}: {_some(texts)}" for texts, what in shown if texts]
    return found + [f"{n:,} {what}" for n, what in counted if n]


def _some(texts: list[str]) -> str:
    return "; ".join(texts[:_SHOWN]) + (" …" if len(texts) > _SHOWN else "")
