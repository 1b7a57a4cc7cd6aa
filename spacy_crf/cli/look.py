"""Looks at annotated texts and chooses what to train on them: the components, their settings and the language, each with its
reason in words. For `fit` without a config, `init-config --for`, and `data`."""

import re
import runpy
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Optional

import spacy.lang
from spacy.glossary import GLOSSARY
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Corpus, Example
from wasabi import msg

from ..errors import Errors, counted
from ..whole_files import write_whole
from .configs import Part, in_language, join_parts, train_command
from .formats import FORMATS, SUFFIXES, ReadSettings, Report, brat
from .formats.texts import INCORRECT
from .shared import blank, blank_for_words, check_writable
from .texts import read_docs

SPANS_KEY = "sc"  # of doc.spans, for spans of files that may overlap
# The part of a corpus by a word in the name of its file
_PARTS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("dev", "devel", "valid", "validation", "val", "testa"), "dev"),
    **dict.fromkeys(("test", "testb", "heldout"), "test"),
}
_OPTIMIZER = "training.optimizer"  # sections of a config
_WEIGHTS = "training.score_weights"
_FEATURES = ".model.emissions.features"
# Share of the words that are outside of fields by mistake or as separators; 3 % of the words are outside of chunks of grammar
_MOST_OUTSIDE = 0.02
# Share of the spans that overlap others by mistake: `read` keeps the longest ones
_MOST_OVERLAPPING = 0.01
# Least share of the spans that overlap others where labels are layers, such as chunks and names; of nested entities 8 % do
_LEAST_IN_LAYERS = 0.25
_DOCUMENT = 80  # words of a text that probably has several sentences
# Share of the words that are stop words of their language, and how many times the share of the next language this is
_LEAST_STOP_WORDS = 0.2
_LEAST_RATIO = 1.3
_LEAST_LETTERS = 0.1  # share of the letters
# Scripts of one language, by the beginning of the names of their letters; Japanese before Chinese, whose letters it uses
_SCRIPTS = {
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "CJK": "zh",
    "HANGUL": "ko",
    "THAI": "th",
    "GREEK": "el",
    "HEBREW": "he",
}


class Files(NamedTuple):
    """Files of annotated texts: to train on, and to leave alone."""

    train: list[Path]
    test: list[Path]


class Search(NamedTuple):
    """The arguments of `cross_validation.fit` that name candidates and the score that chooses between them."""

    l1: tuple[float, ...] = (0.0, 0.05)
    l2: tuple[float, ...] = (0.1, 0.03)
    thresholds: bool = True
    optimize: str = "f"

    def in_words(self) -> str:
        """The candidates and the score, in words."""
        thresholds = "thresholds of probabilities" if self.thresholds else "no thresholds"
        score = {"f": "F1", "texts": "whole texts right"}[self.optimize]
        return f"l1 {_numbers(self.l1)}; l2 {_numbers(self.l2)}; {thresholds}; chosen by {score}"

    def options(self) -> str:
        """The options of `crf fit`, where they are not the default."""
        options = ""
        for name, value, default in zip(self._fields, self, Search()):
            if value != default:
                text = _numbers(value) if isinstance(value, tuple) else value
                options += "--no-thresholds " if value is False else f"--{name} {text} "
        return options


def _numbers(values: Iterable[float]) -> str:
    return ",".join(f"{value:g}" for value in values)


NO_SPANS = Search(thresholds=False)
# Where every word belongs to a field, a doubtful field is better than none
FIELDS = Search(l1=(0.05, 0.02), l2=(0.03, 0.01), thresholds=False, optimize="texts")


class Task(NamedTuple):
    """A component to train.

    part (Part): The component, and its settings.
    reason (str): The annotation that speaks for the component, in words.
    search (Search): The candidates of `fit`, and the score that chooses.
    """

    part: Part
    reason: str
    search: Search = Search()


@dataclass
class Counts:
    """Counts of a set of annotated texts."""

    texts: int = 0
    tokens: int = 0
    words: int = 0  # tokens with a letter or digit
    outside: int = 0  # words in no span
    repeated: int = 0  # texts with the words of an earlier text
    joined: bool = False  # whether the file has words without the spaces between them
    tagged: int = 0  # texts with a tag on a token
    labels: Counter[str] = field(default_factory=Counter)  # of spans
    spans_key: str = ""  # of doc.spans, where the spans are; "" for doc.ents
    overlapping: int = 0  # spans that overlap others
    alike: int = 0  # spans that overlap others of their label
    cats: Counter[str] = field(default_factory=Counter)  # labels of texts
    several_cats: int = 0  # texts with several labels or none


@dataclass
class Findings:
    """The contents of annotated texts, and the components that suit them."""

    files: Files
    reading: "Reading"
    counts: Counts
    lang: Optional[str]  # None where the words do not show it
    lang_reason: str
    tasks: list[Task]  # none where there is nothing to learn

    def lines(self) -> list[str]:
        """The findings in words: the texts, the tasks, the language, the words, and what `fit` tries."""
        counts = self.counts
        kind = "documents" if counts.tokens > _DOCUMENT * counts.texts else "sentences"
        trained = ", ".join(path.name for path in self.files.train)
        repeated = f"; {counts.repeated:,} repeat another" if counts.repeated else ""
        left = "".join(f"; {path.name} is left for a test" for path in self.files.test)
        lines = [
            f"Texts: {counted(counts.texts, 'text')} of {trained} ({self.reading.title()}), {kind}{repeated}{left}"
        ]
        lines += [f"Task: {task.part.component}, since {task.reason}" for task in self.tasks]
        lines.append(f"Language: {self.lang or 'unknown'}, since {self.lang_reason}")
        spaces = ", without the spaces between them" if counts.joined else ""
        misaligned = len(self.reading.report.misaligned) + len(self.reading.report.unaligned)
        lost = f"; {counted(misaligned, 'span')} across their edges can't be learned" if misaligned else ""
        lines.append(f"Words: {counts.tokens:,}{spaces}{lost}")
        if self.tasks:
            lines.append(f"`fit` tries: {self.tasks[0].search.in_words()}")
        return lines

    def config(self, name: str) -> str:
        """Make the text of a config.

        name (str): Name of the file, for the command in its first lines.
        RAISES (ValueError): CRF773 if there is nothing to learn, CRF774 if the words do not show their language, CRF986 if the
            tokenizer of the language can't be made.
        """
        path = self.files.train[0]
        if not self.tasks:
            raise ValueError(Errors.CRF773.format(path=path))
        if self.lang is None:
            raise ValueError(Errors.CRF774.format(path=path, reason=self.lang_reason))
        blank(self.lang)
        reasons = "".join(f"# {task.part.component}: {task.reason}\n" for task in self.tasks)
        files = " ".join(map(str, self.files.train))
        command = f"python -m spacy crf fit {files} --config {name} {self.tasks[0].search.options()}--output fitted"
        text = join_parts([task.part for task in self.tasks], f"{reasons}#\n#   {command}\n#   {train_command(name)}\n")
        return in_language(text, self.lang)

    def write_config(self, path: Path) -> None:
        """Write the config, and print the findings.

        RAISES (ValueError): As `config`; CRF750 if the file exists and is another.
        """
        text = self.config(str(path))
        check_writable(path)
        if path.exists() and _settings(path.read_text(encoding="utf8")) != _settings(text):
            advice = f"--config {path} trains with it; remove it to have the settings chosen"
            raise ValueError(Errors.CRF750.format(path=path, advice=advice))
        write_whole(path, text.encode("utf8"))
        for line in [*self.lines(), f"Config: {path}"]:
            msg.info(line)

    def examples(self, nlp: Language) -> list[Example]:
        """Read the texts to train on, with the tokenizer of a pipeline."""
        return list(Corpus("").make_examples(nlp, self.reading.docs(self.files.train, nlp)))


@dataclass
class Reading:
    """How annotated texts are read, and what is found in doing so.

    is_tags (bool): Whether what is read as entities are tags of tokens.
    """

    settings: ReadSettings
    is_tags: bool = False
    report: Report = field(default_factory=Report)

    def docs(self, paths: Iterable[Path], nlp: Language) -> list[Doc]:
        """Read the Docs of files. RAISES (ValueError): If a file can't be read, or has no texts."""
        self.report = Report()
        docs = list(chain.from_iterable(read_docs(path, nlp, self.settings, report=self.report) for path in paths))
        if self.is_tags:
            for doc in docs:
                for token in doc:
                    token.tag_ = token.ent_type_
                doc.ents = ()
        return docs

    def title(self) -> str:
        """The format of the files."""
        return FORMATS[self.report.format].title


def _settings(config: str) -> list[str]:
    """The lines of a config without its comments."""
    return [line for line in config.splitlines() if not line.startswith("#")]


def look(paths: Iterable[Path], lang: Optional[str] = None) -> Findings:
    """Look at the annotated texts of files, and choose what to train on them.

    paths (Iterable[Path]): Files, or folders of files.
    lang (str): The language; None to find it by the words.
    RAISES (ValueError): If a file can't be read, or has no texts.
    """
    files = find_files(paths)
    reading = Reading(ReadSettings(spans_key=SPANS_KEY, overlaps="longest", without_spans=True))
    nlp = blank_for_words(lang or "xx")
    try:
        docs = reading.docs(files.train, nlp)
    except ValueError as error:
        # A tag on each token, without prefixes: tags of tokens, or fields that leave no token out
        if "CRF867" not in str(error):
            raise
        reading.settings = replace(reading.settings, scheme="bare", spans_key=None)
        docs = reading.docs(files.train, nlp)
        labels = {span.label_ for doc in docs for span in doc.ents}
        reading.is_tags = 2 * sum(label in GLOSSARY for label in labels) > len(labels)
        if reading.is_tags:
            docs = reading.docs(files.train, nlp)
    lang_reason = "--lang says so"
    if lang is None:
        lang, lang_reason = language_of(docs)
        # Each language has a tokenizer of its own
        if lang is not None and not docs[0].has_unknown_spaces:
            docs = reading.docs(files.train, blank_for_words(lang))
    counts = count(docs)
    tasks = choose(counts, is_spacy=reading.report.format == "spacy")
    reading.settings = replace(reading.settings, spans_key=None)
    if any(task.part.file == "crf_spancat" for task in tasks):
        reading.settings = replace(reading.settings, spans_key=counts.spans_key)
    return Findings(files, reading, counts, lang, lang_reason, tasks)


def find_files(paths: Iterable[Path]) -> Files:
    """Find the files to train on. In a folder whose files are named train, dev and test, these are train and dev, which `fit`
    needs no more than other texts; test is left alone. Another folder has .spacy files, files of brat, or files to convert.

    paths (Iterable[Path]): Files, or folders of files.
    RAISES (ValueError): CRF708 if there are none.
    """
    train: list[Path] = []
    test: list[Path] = []
    for path in paths:
        if not path.is_dir() or brat.is_collection(path):
            train.append(path)
            continue
        readable = sorted(file for file in path.rglob("*") if file.suffix in (*SUFFIXES, ".spacy"))
        parts = {file: _part_of(file) for file in readable}
        # train.conll and test.conll are the parts, even if train_small.conll is beside them
        exact = [file for file in readable if file.stem.lower() in _PARTS]
        if any(_PARTS[file.stem.lower()] == "train" for file in exact):
            readable = exact
        named = "train" in parts.values()
        train += [file for file in readable if parts[file] in ("train", "dev") or (not named and parts[file] is None)]
        test += [file for file in readable if parts[file] == "test"]
    if not train:
        raise ValueError(Errors.CRF708.format(path="An empty list of files"))
    return Files(train, test)


def _part_of(file: Path) -> Optional[str]:
    """The part of a corpus that a file has by its name: "train", "dev" or "test"; None for another name."""
    words = re.split(r"[^a-z]+", file.name.lower())
    return next((_PARTS[word] for word in words if word in _PARTS), None)


def language_of(docs: Iterable[Doc]) -> tuple[Optional[str], str]:
    """Find the language of texts by their scripts and by stop words.

    RETURNS (tuple[Optional[str], str]): The code of the language, None if nothing shows it, and the reason in words.
    """
    letters = Counter(chain.from_iterable(doc.text for doc in docs))
    scripts: Counter[str] = Counter()
    for letter, n in letters.items():
        if letter.isalpha():
            script, *_ = re.split("[ -]", unicodedata.name(letter, "?"))
            scripts[script] += n
    for script, lang in _SCRIPTS.items():
        if scripts[script] > _LEAST_LETTERS * scripts.total():
            return lang, f"{scripts[script] / scripts.total():.0%} of the letters are {script}"
    words = Counter(token.lower_ for doc in docs for token in doc if token.is_alpha)
    shares = []
    # Importing all languages takes three seconds; the files of their stop words import nothing
    for path in Path(spacy.lang.__file__).parent.glob("*/stop_words.py"):
        stop_words = runpy.run_path(str(path))["STOP_WORDS"]
        n = sum(words[word] for word in stop_words)
        shares.append((n / max(1, words.total()), path.parent.name))
    (share, lang), (next_share, next_lang) = sorted(shares, reverse=True)[:2]
    reason = f"{share:.0%} of the words are stop words of '{lang}', and {next_share:.0%} of '{next_lang}'"
    if share < _LEAST_STOP_WORDS or share < _LEAST_RATIO * next_share:
        return None, f"only {reason}"
    return lang, reason


def count(docs: list[Doc]) -> Counts:
    """Count the contents of Docs."""
    counts = Counts(texts=len(docs), joined=docs[0].has_unknown_spaces)
    keys = Counter(key for doc in docs for key, group in doc.spans.items() if group and key != INCORRECT)
    if keys and not any(doc.ents for doc in docs):
        counts.spans_key = max(keys, key=lambda key: keys[key])
    seen: set[tuple[str, ...]] = set()
    for doc in docs:
        words = tuple(token.text for token in doc)
        counts.repeated += words in seen
        seen.add(words)
        counts.tokens += len(doc)
        spans = list(doc.spans[counts.spans_key]) if counts.spans_key in doc.spans else list(doc.ents)
        inside = {n for span in spans for n in range(span.start, span.end)}
        are_words = [any(map(str.isalnum, word)) for word in words]
        counts.words += sum(are_words)
        counts.outside += sum(is_word and n not in inside for n, is_word in enumerate(are_words))
        counts.labels.update(span.label_ for span in spans)
        counts.overlapping += _overlapping(spans)
        for label in {span.label_ for span in spans}:
            counts.alike += _overlapping([span for span in spans if span.label_ == label])
        counts.tagged += doc.has_annotation("TAG")
        cats = [label for label, value in doc.cats.items() if value == 1.0]
        counts.cats.update(cats)
        counts.several_cats += bool(doc.cats) and len(cats) != 1
    return counts


def _overlapping(spans: list[Span]) -> int:
    """The number of spans of a text that begin before an earlier span ends."""
    n = 0
    last_end = 0
    for span in sorted(spans, key=lambda span: span.start):
        n += span.start < last_end
        last_end = max(last_end, span.end)
    return n


def _at_key(key: str) -> list[tuple[str, str, str]]:
    """Settings of a config for crf_spancat, whose spans are in another group of ``doc.spans`` than in the file."""
    if key == SPANS_KEY:
        return []
    settings = [("", "spans_key", f'"{key}"')]
    for score, weight in (("f", "1.0"), ("p", "0.0"), ("r", "0.0")):
        settings += [(_WEIGHTS, f"spans_{SPANS_KEY}_{score}", ""), (_WEIGHTS, f"spans_{key}_{score}", weight)]
    return settings


def choose(counts: Counts, *, is_spacy: bool) -> list[Task]:
    """Choose what to train on texts.

    is_spacy (bool): Whether the texts are in .spacy files, whose spans are where they are.
    RETURNS (list[Task]): A task for the spans, or else the tags, and one for the labels of texts.
    """
    tasks = []
    n = counts.labels.total()
    labels = counted(len(counts.labels), "label")
    if counts.overlapping > _MOST_OVERLAPPING * n or (is_spacy and counts.spans_key):
        # The levels of the config hold all spans, however they overlap. A chain for each layer is more accurate
        settings = []
        reason = f"{counts.overlapping:,} of {counted(n, 'span')} with {labels} overlap others"
        if counts.overlapping >= _LEAST_IN_LAYERS * n and not counts.alike:
            settings = [("", "nested", "false"), (_FEATURES, "extra", "null")]
            reason += ", none of them others of their label: a chain for each layer"
        tasks.append(Task(Part("crf_spancat", (*settings, *_at_key(counts.spans_key))), reason))
    elif n and len(counts.labels) > 1 and counts.outside <= _MOST_OUTSIDE * counts.words:
        settings = ((_FEATURES, "padding", "true"), (_OPTIMIZER, "l1", "0.05"), (_OPTIMIZER, "l2", "0.03"))
        reason = f"{labels} of fields leave out {counts.outside:,} of {counted(counts.words, 'word')}"
        tasks.append(Task(Part("crf_ner", settings), reason, FIELDS))
    elif n:
        settings = ((_OPTIMIZER, "l1", "0.05"),)
        share = counts.outside / max(1, counts.words)
        reason = f"{counted(n, 'span')} with {labels} leave out {share:.0%} of the words"
        tasks.append(Task(Part("crf_ner", settings), reason))
    elif counts.tagged:
        tasks.append(Task(Part("crf_tagger"), "tokens have tags", NO_SPANS))
    if counts.cats:
        one = f"{counts.several_cats:,} have several or none" if counts.several_cats else "each has one"
        reason = f"texts have {counted(len(counts.cats), 'label')}, and {one}"
        file = "crf_textcat_multilabel" if counts.several_cats else "crf_textcat"
        tasks.append(Task(Part(file), reason, NO_SPANS))
    return tasks
