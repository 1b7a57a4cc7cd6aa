"""The commands `data`, which counts the contents of annotated texts and finds annotation that will mislead training, and
`convert`, which writes files of annotation tools and shared tasks as the ``.spacy`` files that ``spacy train`` reads."""
# pyright: reportInvalidTypeForm=false

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Optional, TypedDict

from spacy.cli._util import Arg, Opt
from spacy.language import Language
from spacy.matcher import PhraseMatcher
from spacy.tokens import Doc, Span
from wasabi import msg

from .. import checks
from ..errors import Errors, counted
from ..explain.explanation import shorter
from ..pipeline.corpora import doc_bin, in_words, named_origin, origin_of
from ..whole_files import write_whole
from .formats import FORMATS, SUFFIXES, ReadSettings, Report, Source, brat, read
from .formats.columns import SCHEMES, find_spelling
from .formats.offsets import HABITS
from .look import look
from .shared import (
    JsonOption,
    LangOption,
    blank_for_words,
    check_writable,
    choice,
    command,
    print_table,
    progress_bar,
)
from .texts import read_docs

Words = tuple[str, ...]
LabelTable = dict[str, "LabelCounts"]
Place = dict[str, Any]  # as JSON: an occurrence of words in a text, see `Wording`
_FEW = 50  # fewer spans or texts of a label are hardly enough to learn and to score it
_SHOWN = 3  # examples in a warning


class LabelCounts(TypedDict):
    """Counts of the spans of a label."""

    spans: int
    strings: int  # number of different strings among the spans
    lengths: dict[int, int]  # number of spans of each length in tokens


@dataclass
class CorpusFacts:
    """Counts of a set of texts. Lists hold shortened texts or spans, with their places in files."""

    documents: int = 0
    tokens: int = 0
    spans: int = 0
    without_spans: int = 0  # documents without spans
    unannotated_tokens: int = 0  # tokens whose annotation of entities is missing
    labels: LabelTable = field(default_factory=dict)
    groups: dict[str, LabelTable] = field(default_factory=dict)  # `labels` of doc.spans, by key of doc.spans
    numbers: dict[str, dict[str, float]] = field(default_factory=dict)  # statistics of numbers of texts, by extension
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
    """A string that is annotated in several ways, and its occurrences."""

    text: str
    labels: dict[str, int]  # number of occurrences by label
    unlabelled: int  # number of occurrences without a label
    # Of each occurrence: its "label" (None for none), its first character ("start"), the "place" of its text, and its "id"
    places: list[Place]

    @property
    def doubtful(self) -> int:
        """Number of occurrences whose annotation differs from the most frequent one."""
        return sum(self.labels.values()) + self.unlabelled - max(*self.labels.values(), self.unlabelled)

    @property
    def different(self) -> list[Place]:
        """The occurrences whose annotation differs from the most frequent one."""
        counts = {**self.labels, None: self.unlabelled}
        most_frequent = max(counts, key=lambda label: counts[label])
        return [place for place in self.places if place["label"] != most_frequent]


def describe(docs: Iterable[Doc], nlp: Language) -> CorpusFacts:
    """Count the contents of Docs. nlp (Language): The pipeline whose tokenizer the training will use."""
    docs = list(docs)
    facts = CorpusFacts()
    tags = Counter()
    cats = Counter()
    entities = _SpanCounter()
    groups: dict[str, _SpanCounter] = defaultdict(_SpanCounter)
    numbers: dict[str, list[float]] = defaultdict(list)
    texts: dict[str, tuple[object, Doc]] = {}  # by text: the annotation of its first Doc, and this Doc
    for doc in docs:
        facts.documents += 1
        facts.tokens += len(doc)
        facts.unannotated_tokens += sum(token.ent_iob == 0 for token in doc)
        tags.update(token.tag_ for token in doc)
        cats.update({label: int(value == 1.0) for label, value in doc.cats.items()})
        if len(_cats(doc)) > 1:
            facts.several_cats.append(f"{_short(doc.text)} ({', '.join(_cats(doc))}){_at(doc)}")
        uncertain = [f"{label} {value:g}" for label, value in doc.cats.items() if value not in (0.0, 1.0)]
        if uncertain:
            facts.uncertain_cats.append(f"{_short(doc.text)} ({', '.join(uncertain)}){_at(doc)}")
        for key, group in doc.spans.items():
            if group:
                groups[key].add(group)
        for name, value in _numbers(doc).items():
            numbers[name].append(value)
        entities.add(doc.ents)
        _check_entities(doc, nlp, facts)
        spans = [(span.start, span.end, span.label_) for span in doc.ents]
        annotation = spans, [token.tag_ for token in doc], dict(doc.cats)
        first_annotation, first_doc = texts.setdefault(_key(doc), (annotation, doc))
        facts.repeated += first_annotation is not annotation
        if first_annotation != annotation:
            facts.repeated_otherwise.append(f"{_short(doc.text)}{_at(first_doc)}{_at(doc)}")
    facts.labels = entities.table()
    facts.groups = {key: groups[key].table() for key in sorted(groups)}
    for name, values in sorted(numbers.items()):
        facts.numbers[name] = {
            "texts": len(values),
            "least": min(values),
            "mean": sum(values) / len(values),
            "most": max(values),
        }
    facts.untagged_tokens = tags.pop("", 0)
    facts.tags = dict(tags.most_common())
    facts.cats = dict(cats.most_common())
    facts.without_cats = sum(not _cats(doc) for doc in docs) if cats else 0
    facts.inconsistent = inconsistent(docs)
    return facts


def _check_entities(doc: Doc, nlp: Language, facts: CorpusFacts) -> None:
    """Add the entities of a Doc to `facts`: their number, and those that a training can't learn or that look wrong."""
    facts.spans += len(doc.ents)
    facts.without_spans += not doc.ents
    facts.touching += sum(
        span.end == behind.start and span.label == behind.label for span, behind in pairwise(doc.ents)
    )
    tokenized = doc
    # .spacy files keep their tokens, but the training aligns spans with the tokens of its tokenizer, unless the file has words
    # without the spaces between them
    if doc.ents and len(doc.text) <= nlp.max_length and not doc.has_unknown_spaces:
        tokenized = nlp.make_doc(doc.text)
    for span in doc.ents:
        shown = f"{_short(span.text)} ({span.label_}){_at(doc)}"
        if tokenized.char_span(span.start_char, span.end_char) is None:
            facts.misaligned.append(shown)
        if not any(letter.isalnum() for letter in span.text):
            facts.odd.append(shown)
        if any(token.is_sent_start for token in span[1:]):
            facts.crossing.append(shown)


class _SpanCounter:
    """Counts spans by label and length, and the different strings of each label."""

    def __init__(self) -> None:
        self._lengths: dict[str, Counter[int]] = defaultdict(Counter)
        self._strings: dict[str, set[Words]] = defaultdict(set)

    def add(self, spans: Iterable[Span]) -> None:
        for span in spans:
            self._lengths[span.label_][len(span)] += 1
            self._strings[span.label_].add(_words(span))

    def table(self) -> LabelTable:
        table: LabelTable = {}
        for label, lengths in sorted(self._lengths.items()):
            strings = self._strings[label]
            table[label] = {"spans": lengths.total(), "strings": len(strings), "lengths": dict(lengths)}
        return table


def overlap(train: list[Doc], dev: list[Doc]) -> dict[str, Any]:
    """Compare the texts, labels and spans of dev with those of train.

    RETURNS (Dict[str, Any]): "documents": texts of dev that train has too. "only_in_dev", "only_in_train": labels of spans,
        tags, and labels of texts in one of the two. "unseen": by label, the share of dev's spans whose words train does not have.
    """
    texts: dict[str, Doc] = {}
    for doc in train:
        texts.setdefault(_key(doc), doc)
    in_train = set(map(_words, chain.from_iterable(doc.ents for doc in train)))
    spans = Counter()  # of dev, by label
    unseen = Counter()
    for span in chain.from_iterable(doc.ents for doc in dev):
        spans[span.label_] += 1
        unseen[span.label_] += _words(span) not in in_train
    train_labels = _all_labels(train)
    dev_labels = _all_labels(dev)
    return {
        "documents": [f"{_short(doc.text)}{_at(texts[_key(doc)])}{_at(doc)}" for doc in dev if _key(doc) in texts],
        "only_in_dev": sorted(dev_labels - train_labels),
        "only_in_train": sorted(train_labels - dev_labels),
        "unseen": {label: unseen[label] / n for label, n in sorted(spans.items())},
    }


def inconsistent(docs: list[Doc]) -> list[Wording]:
    """Find strings that are annotated in one place and not in another, or with several labels; the most doubtful first.
    Occurrences within a longer span, or with missing annotation, do not count."""
    labels: dict[Words, Counter[str]] = defaultdict(Counter)
    places: dict[Words, list[Place]] = defaultdict(list)
    for doc in docs:
        for span in doc.ents:
            labels[_words(span)][span.label_] += 1
            places[_words(span)].append(_place(span, span.label_))
    unlabelled: Counter[Words] = Counter()
    if labels:
        # All strings are searched for at once
        matcher = PhraseMatcher(docs[0].vocab)
        matcher.add("annotated", [Doc(docs[0].vocab, words=list(words)) for words in labels])
        for doc in docs:
            for _, start, end in matcher(doc):
                span = doc[start:end]
                if all(token.ent_iob_ == "O" for token in span):
                    unlabelled[_words(span)] += 1
                    places[_words(span)].append(_place(span, None))
    wordings = []
    for words, counts in labels.items():
        wording = Wording(" ".join(words), dict(counts.most_common()), unlabelled[words], places[words])
        if wording.doubtful:
            wordings.append(wording)
    return sorted(wordings, key=lambda wording: (-wording.doubtful, wording.text))


def _all_labels(docs: list[Doc]) -> set[str]:
    """All labels of spans, tokens and texts."""
    labels: set[str] = set()
    for doc in docs:
        labels.update(span.label_ for span in doc.ents)
        labels.update(token.tag_ for token in doc if token.tag_)
        labels.update(_cats(doc))
    return labels


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


def _at(doc: Doc) -> str:
    """The file and position of a text, to be printed behind its words; empty if they are not known."""
    origin = named_origin(doc)
    return f" – {origin}" if origin else ""


def _place(span: Span, label: Optional[str]) -> Place:
    """Describe an occurrence for `Wording.places`."""
    return {"label": label, "start": span.start_char, **origin_of(span.doc)}


def _numbers(doc: Doc) -> dict[str, float]:
    """The extensions of a Doc that are numbers, by name, without those of spacy_crf."""
    numbers = {}
    for key, value in doc.user_data.items():
        # spaCy keeps extensions under ("._.", name, start, end); those of the Doc itself have no start
        if isinstance(key, tuple) and len(key) == 4:
            kind, name, start, _ = key
            if kind == "._." and start is None and not name.startswith("crf_") and checks.is_number(value):
                numbers[name] = float(value)
    return numbers


# ---------------------------------------------------------------------------------------------------------- command


@command("data")
def data_cli(
    path: Path = Arg(..., help="Annotated texts: .spacy, a folder, or a file that `convert` reads.", exists=True),
    dev: Optional[Path] = Opt(None, help="Dev texts to compare with the training texts.", exists=True),
    lang: Optional[str] = Opt(None, help="Language of the tokenizer; by default shown by the words, else en."),
    top: int = Opt(20, min=0, help="Number of listed strings that are annotated in several ways."),
    as_json: JsonOption = False,
) -> None:
    """Describe annotated texts and suspicious annotation. The command prints what `fit` would train and why, labels and lengths
    of spans, misaligned spans, repeated texts, the overlap of train and dev, and words that are annotated in several ways."""
    findings = look([path], lang)
    nlp = blank_for_words(lang or findings.lang or "en")
    settings = ReadSettings(overlaps="longest", without_spans=True)
    report = Report()
    dev_report = Report()
    docs = read_docs(path, nlp, settings, report=report)
    dev_docs = read_docs(dev, nlp, settings, report=dev_report) if dev else []
    facts = describe(docs, nlp)
    dev_facts = describe(dev_docs, nlp) if dev else None
    common = overlap(docs, dev_docs) if dev else None
    if as_json:
        answer: dict[str, Any] = {"findings": findings.lines()}
        answer["train"] = asdict(facts) | {"unread": asdict(report)}
        if dev_facts and common:
            answer["dev"] = asdict(dev_facts) | {"unread": asdict(dev_report)}
            answer["overlap"] = common
        print(json.dumps(answer, ensure_ascii=False, indent=2))
        return
    for line in findings.lines():
        msg.info(line)
    _show_corpus(str(path), facts, report, dev_facts)
    if dev_facts and common:
        _show_corpus(str(dev), dev_facts, dev_report)
        msg.divider("train and dev")
        for examples, noun, problem in (
            (common["documents"], "document", "of dev also in train, where scores tell what was memorized"),
            (common["only_in_dev"], "label", "in dev only, which can't be found"),
            (common["only_in_train"], "label", "in train only, not scored"),
        ):
            if examples:
                msg.warn(f"{counted(len(examples), noun)} {problem}: {_some(examples)}")
        if not common["documents"]:
            msg.good("No text of dev is in train")
        rows = [(label, f"{share:.0%}") for label, share in common["unseen"].items()]
        if rows:
            print_table("entities of dev", ("label", "not in train"), rows, n_texts=1)
    if facts.inconsistent:
        rows = []
        for wording in facts.inconsistent[:top]:
            labels = ", ".join(f"{label} {n:,}" for label, n in wording.labels.items())
            places = [in_words(place) for place in wording.different if in_words(place)]
            unlabelled = f"{wording.unlabelled:,}" if wording.unlabelled else ""
            rows.append((wording.text, labels, _some(places), unlabelled))
        title = f"Annotated in several ways: {counted(len(facts.inconsistent), 'string')}"
        print_table(title, ("words", "as", "where it is unusual", "not annotated"), rows, n_texts=3)
    elif facts.spans:
        msg.good("No words are annotated in several ways")


def _show_corpus(title: str, facts: CorpusFacts, report: Report, dev: Optional[CorpusFacts] = None) -> None:
    """Print the facts about a set of texts, the warnings of `report`, which read it, and those of `_warnings`.

    dev (CorpusFacts): The facts about dev, whose counts are printed in columns beside those of train.
    """
    msg.divider(title)
    counts = [f"{counted(facts.documents, 'document')}, {counted(facts.tokens, 'token')}"]
    if facts.spans or not (facts.tags or facts.cats or facts.groups or facts.numbers):
        counts.append(f"{counted(facts.spans, 'entity')}; {counted(facts.without_spans, 'document')} without any")
    is_folder = report.format == "spacy" and Path(title).is_dir()
    msg.info(f"{'.spacy files' if is_folder else FORMATS[report.format].title}: {', '.join(counts)}")
    _show_spans("entities", facts.labels, dev and dev.labels)
    for key, labels in facts.groups.items():
        _show_spans(f"spans in doc.spans['{key}']", labels, dev and dev.groups.get(key, {}))
    _show_counts("tags", ("tag", "tokens"), facts.tags, dev and dev.tags)
    _show_counts("labels of texts", ("label", "texts"), facts.cats, dev and dev.cats)
    if facts.numbers:
        rows = []
        for name, statistics in facts.numbers.items():
            values = [f"{statistics[column]:.6g}" for column in ("least", "mean", "most")]
            rows.append((name, f"{statistics['texts']:,}", *values))
        print_table("numbers", ("number", "texts", "least", "mean", "most"), rows, n_texts=1)
    report.print_warnings()
    for warning in _warnings(facts):
        msg.warn(warning)


def _show_counts(title: str, columns: tuple[str, str], counts: dict[str, int], dev: Optional[dict[str, int]]) -> None:
    """Print the counts of tags, or of labels of texts, and beside them those of dev if there is one."""
    if not counts:
        return
    titles = [*columns]
    if dev is not None:
        titles.append(f"{columns[1]} of dev")
    rows = []
    for name, n in counts.items():
        cells = [name, f"{n:,}"]
        if dev is not None:
            cells.append(f"{dev.get(name, 0):,}")
        rows.append(cells)
    print_table(title, titles, rows, n_texts=1)


def _show_spans(title: str, labels: LabelTable, dev: Optional[LabelTable]) -> None:
    """Print the counts of spans by label, and beside them the number of spans of dev if there is one."""
    if not labels:
        return
    columns = ["label", "spans", "different", "mean tokens", "most"]
    if dev is not None:
        columns.append("spans of dev")
    rows = []
    for label, counts in labels.items():
        lengths = counts["lengths"]
        mean = sum(length * n for length, n in lengths.items()) / counts["spans"]
        cells = [label, f"{counts['spans']:,}", f"{counts['strings']:,}", f"{mean:.1f}", str(max(lengths))]
        if dev is not None:
            cells.append(f"{dev[label]['spans']:,}" if label in dev else "0")
        rows.append(cells)
    print_table(title, columns, rows, n_texts=1)


def _warnings(facts: CorpusFacts) -> list[str]:
    """Warnings about annotation that a training would not learn, or would learn wrongly."""
    tables = [facts.labels, *facts.groups.values()]
    counts_of_labels = list(chain.from_iterable(table.items() for table in tables))
    few = [f"{label} ({counts['spans']})" for label, counts in counts_of_labels if counts["spans"] < _FEW]
    few_texts = [f"{label} ({n})" for label, n in facts.cats.items() if n < _FEW]
    tags = [tag for tag in facts.tags if any(map(str.isalpha, tag))]  # not those of punctuation
    _, like_tags = find_spelling(list(facts.labels))
    spellings: dict[str, set[str]] = defaultdict(set)  # by the label in lower case and without white space
    for label in (*(label for label, _ in counts_of_labels), *tags, *facts.cats):
        spellings["".join(label.lower().split())].add(label)
    alike = [" = ".join(sorted(labels)) for labels in spellings.values() if len(labels) > 1]
    with_examples = (
        (few, "label", f"with fewer than {_FEW} spans"),
        (few_texts, "label", f"with fewer than {_FEW} texts"),
        (alike, "group", "of labels that differ in case or white space only"),
        (like_tags if len(like_tags) > 1 else [], "label", "like tags of tokens, which would be parts of entities"),
        (facts.misaligned, "entity", "across the edges of the tokenizer's tokens, which can't be learned"),
        (facts.crossing, "entity", "across the end of a sentence"),
        (facts.odd, "entity", "without any letter or digit"),
        (facts.several_cats, "text", "with several labels, which crf_textcat takes with multilabel = true"),
        (facts.uncertain_cats, "text", "with labels of neither 0 nor 1, which crf_textcat refuses"),
        (facts.repeated_otherwise, "text", "repeated with other annotation"),
    )
    without_entities = facts.unannotated_tokens if facts.spans else 0
    without_tags = facts.untagged_tokens if facts.tags else 0
    only_numbers = (
        (facts.repeated, "document", "with the text of another"),
        (facts.touching, "entity", "right behind one of the same label: the scheme IO would join them"),
        (without_entities, "token", "without annotation of entities: anything is allowed there"),
        (without_tags, "token", "without a tag: crf_tagger allows any there"),
        (facts.without_cats, "text", "without a label: crf_textcat allows any there that is not ruled out by 0"),
    )
    warnings = []
    for examples, noun, problem in with_examples:
        if examples:
            warnings.append(f"{counted(len(examples), noun)} {problem}: {_some(examples)}")
    for n, noun, problem in only_numbers:
        if n:
            warnings.append(f"{counted(n, noun)} {problem}")
    return warnings


def _some(texts: list[str]) -> str:
    """The first texts, and dots if there are more."""
    return "; ".join(texts[:_SHOWN]) + (" …" if len(texts) > _SHOWN else "")


_MOST_NAMED = 5  # names of files in a warning
FormatName = choice("FormatName", FORMATS)
SchemeName = choice("SchemeName", SCHEMES)
Overlaps = choice("Overlaps", ("longest", "error"))


@command("convert")
def convert_cli(
    source: Path = Arg(..., metavar="INPUT", help="A file, or a folder of files.", exists=True),
    output: Path = Opt(..., "--output", "-o", help="The .spacy file, or a folder for them."),
    lang: LangOption = "en",
    format_: Optional[FormatName] = Opt(None, "--format", help="By default detected from the contents."),
    encoding: str = Opt("utf-8", help="Encoding of the files."),
    word_column: Optional[str] = Opt(None, help="Number or name of the word or text column; by default 1."),
    label_column: Optional[str] = Opt(None, help="Number or name of the tag or label column; by default the last."),
    tag_column: Optional[str] = Opt(None, help="Number or name of the column for token.tag."),
    scheme: Optional[SchemeName] = Opt(None, help="By default detected from the tags."),
    n_sents: int = Opt(1, min=0, help="Number of sentences of a Doc; 0 for whole documents."),
    tag_names: str = Opt("", help="For tags that are numbers: their names from 0 on, O,B-PER,I-PER …"),
    ignore: Optional[list[str]] = Opt(None, help="Skip the annotation under this key of JSON; may be repeated."),
    overlaps: Overlaps = Opt(Overlaps.longest, help="Keep the longest of overlapping spans, or refuse them."),
    without_spans: bool = Opt(False, "--without-spans", help="Accept files without annotation."),
    predictions: bool = Opt(False, "--predictions", help="Label Studio: read predictions of texts without annotation."),
    retokenize: bool = Opt(False, "--retokenize", help="Columns: join words by spaces, for the tokenizer to cut them."),
    spans_key: Optional[str] = Opt(
        None, help="Key of doc.spans for all spans, which may overlap, in place of doc.ents."
    ),
    offsets: str = Opt("", help="How the file counts characters: utf16, crlf (CR LF is one), or utf16,crlf."),
    skip_broken: bool = Opt(False, "--skip-broken", help="Leave out broken spans: missing annotation, and counted."),
) -> None:
    """Convert annotated text to .spacy files. The command reads files of Prodigy, doccano, Label Studio, brat and spaCy 2, JSON
    of words and tags, CoNLL-U, XML, columns and tables, with spans, tags, or labels of whole texts. It detects the format from
    the contents.

    The command prints the format of each file and the annotation that it could not use. Where a span does not align with tokens,
    their annotation is missing; of overlapping spans it keeps the longest. Unknown annotation is an error unless --ignore names
    its key; a file without any annotation is an error too. With --spans-key sc, `crf_spancat` finds overlapping spans, of columns
    those in all that have a label in common, or in --label-column 3,4.
    """
    habits = [name.strip() for name in offsets.split(",") if name.strip()]
    for habit in habits:
        checks.one_of("crf convert", "--offsets", habit, [*HABITS])
    settings = ReadSettings(
        format=format_ and format_.value,
        encoding=encoding,
        word_column=word_column,
        label_column=label_column,
        tag_column=tag_column,
        scheme=scheme and scheme.value,
        n_sents=n_sents,
        tag_names=[name.strip() for name in tag_names.split(",") if name.strip()],
        ignore=ignore or (),
        overlaps=overlaps.value,
        without_spans=without_spans,
        predictions=predictions,
        retokenize=retokenize,
        spans_key=spans_key,
        offsets=habits,
        skip_broken=skip_broken,
    )
    nlp = blank_for_words(lang)
    targets = _files(source, output)
    unread = _unread(source, [path for path, _ in targets])
    if unread:
        msg.warn(
            f"{counted(len(unread), 'file')} of {source} not read because of the name: {', '.join(unread[:_MOST_NAMED])}"
        )
    for path, target in targets:
        check_writable(target, path)
        file = Source(path, settings.encoding)
        report = Report()
        with progress_bar(f"reading {path.name}") as progress:
            docs = doc_bin(_with_progress(read(file, nlp, settings, report), file, progress))
        write_whole(target, docs.to_bytes())
        tags = f", {report.scheme} tags" if report.scheme and report.has_spans else ""
        msg.info(f"{path}: {FORMATS[report.format].title}{tags}")
        msg.good(f"{target}: {', '.join(_contents(report, spans_key))}")
        # The file may be annotated in a way that was not recognized
        annotations = (
            report.has_spans,
            report.groups,
            report.tagged,
            report.labelled,
            report.segmented,
            report.extended,
        )
        if not any(annotations):
            msg.warn(
                f"{path} has no annotation: all of its tokens count as outside of entities. If texts have labels under "
                "another key, name it with --label-column"
            )
        report.print_warnings()


def _contents(report: Report, spans_key: Optional[str]) -> list[str]:
    """The contents of a converted file, in words. spans_key (str): The value of --spans-key."""
    contents = [counted(report.documents, "document"), counted(report.spans, "span" if spans_key else "entity")]
    contents += [f"{counted(n, 'span')} in doc.spans['{key}']" for key, n in sorted(report.groups.items())]
    if report.incorrect:
        contents.append(f"{counted(report.incorrect, 'span')} annotated as wrong")
    if report.tagged:
        contents.append(f"{counted(report.tagged, 'document')} with tags")
    if report.labelled:
        exclusive = "one label each"
        if not report.exclusive:
            exclusive = "some with several labels, for multilabel = true of crf_textcat"
        labels = f"doc.cats; {counted(len(report.labels), 'label')}, {exclusive}"
        contents.append(f"{counted(report.labelled, 'document')} with labels ({labels})")
    if report.segmented:
        contents.append(f"{counted(report.segmented, 'document')} with places of words")
    if report.extended:
        contents.append(f"{counted(report.extended, 'document')} with extensions")
    return contents


def _files(source: Path, target: Path) -> list[tuple[Path, Path]]:
    """Find the files to convert, and choose the .spacy file for each.

    source (Path): A file, or a folder of files.
    target (Path): The .spacy file, or the folder for them.
    RETURNS (list[tuple[Path, Path]]): Pairs of a file to read and a file to write, in the order of the latter. All files of brat
        in a folder are read together: their pair has the folder in place of the file.
    RAISES (ValueError): CRF716 for a folder and one target; CRF700 for a folder without files to convert; CRF713 for two files
        with the same target.
    """
    if not source.is_dir():
        return [(source, target / f"{source.stem}.spacy" if target.is_dir() else target)]
    if target.is_file():
        raise ValueError(Errors.CRF716.format(source=source, target=target))
    files = sorted(path for path in source.iterdir() if path.suffix in SUFFIXES)
    pairs = [(path, target / f"{path.stem}.spacy") for path in files]
    if brat.is_collection(source):
        pairs.append((source, target / f"{source.resolve().name}.spacy"))
    pairs.sort(key=lambda pair: pair[1])
    if not pairs:
        raise ValueError(Errors.CRF700.format(path=source, known=", ".join((*SUFFIXES, brat.SUFFIX))))
    # a.json and a.jsonl would both become a.spacy; equal targets are neighbours, since pairs are sorted
    for (path, of_path), (other, of_other) in pairwise(pairs):
        if of_path == of_other:
            raise ValueError(Errors.CRF713.format(one=path, other=other, target=of_path))
    return pairs


def _unread(folder: Path, files: list[Path]) -> list[str]:
    """Names of the files of a folder that are not converted, without hidden files.

    folder (Path): The source to convert; if it is a file, there are no such files.
    files (list[Path]): The files that are converted.
    """
    if not folder.is_dir():
        return []
    converted = {*files}
    if brat.is_collection(folder):
        annotated = list(folder.glob(f"*{brat.SUFFIX}"))
        converted.update(annotated, (file.with_suffix(".txt") for file in annotated))
    others = [path for path in folder.iterdir() if path.is_file() and path not in converted]
    return sorted(path.name for path in others if not path.name.startswith("."))


def _with_progress(docs: Iterable[Doc], source: Source, progress: Callable[..., None]) -> Iterator[Doc]:
    """Yield the Docs, and show after each how much of the source has been read."""
    for doc in docs:
        progress(completed=source.position, total=source.size)
        yield doc
