"""Loads exports, and parses texts by their components: text in, characters out."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

from .component import Component, Entity, Labelled
from .content import DAMAGED, FORMAT, VERSION, LiteError, n_steps, read_file
from .features import FLAGS, Text, are_words, check_rows
from .tokenizer import Words, make_tokenizer

_MOST_STEPS = 1 << 25  # in graphs of states, which are matrices
# Tokens that a parser labels when it is loaded, so that damages are found
_TRIED = ["Ann", " ", "2nd", "x-y@z.", ",", "Ann"]


class Token(NamedTuple):
    """A token: characters ``start`` up to, not including, ``end``; and the attributes that components gave it, such as "tag"."""

    start: int
    end: int
    text: str
    attributes: dict[str, str]


class Sentence(NamedTuple):
    """A sentence: characters ``start`` up to, not including, ``end``."""

    start: int
    end: int


class Span(NamedTuple):
    """A labelled span: characters ``start`` up to, not including, ``end``; its probability, and the component that found it."""

    start: int
    end: int
    text: str
    label: str
    prob: float
    component: str


class Parsed:
    """A text with what the components found in it.

    text (str): The text.
    entities (list[Span]): Spans that do not overlap, in order.
    spans (dict[str, list[Span]]): Spans that may overlap, by key.
    cats (dict[str, float]): The probability of each label of the text, the most probable first.
    """

    def __init__(self, text: str, starts: list[int], ends: list[int], columns: dict[str, list[str]]):
        self.text = text
        self.entities: list[Span] = []
        self.spans: dict[str, list[Span]] = {}
        self.cats: dict[str, float] = {}
        self._starts = starts  # characters of each token
        self._ends = ends
        self._columns = columns  # values of each token, by attribute; "orth" is the word
        self._attributes: list[str] = []  # that components have written
        self._sentence_starts: Optional[list[int]] = None  # tokens; None if nothing finds sentences

    @property
    def tokens(self) -> list[Token]:
        """The tokens, white space among them as in spaCy."""
        tokens = []
        for n, (start, end) in enumerate(zip(self._starts, self._ends)):
            attributes = {name: self._columns[name][n] for name in self._attributes}
            tokens.append(Token(start, end, self._columns["orth"][n], attributes))
        return tokens

    @property
    def sentences(self) -> list[Sentence]:
        """The sentences; none if no component finds them."""
        if self._sentence_starts is None:
            return []
        return [Sentence(self._starts[begin], self._ends[end - 1]) for begin, end in self._sequences()]

    @property
    def fields(self) -> dict[str, list[str]]:
        """The texts of all entities, by label."""
        texts: dict[str, list[str]] = {}
        for span in self.entities:
            texts.setdefault(span.label, []).append(span.text)
        return texts

    def to_json(self) -> dict[str, Any]:
        """All of it as dicts, lists, texts and numbers."""
        tokens = []
        for token in self.tokens:
            tokens.append({"start": token.start, "end": token.end, "text": token.text, **token.attributes})
        return {
            "text": self.text,
            "tokens": tokens,
            "sentences": [sentence._asdict() for sentence in self.sentences],
            "entities": [span._asdict() for span in self.entities],
            "spans": {key: [span._asdict() for span in spans] for key, spans in self.spans.items()},
            "fields": self.fields,
            "cats": self.cats,
        }

    def _sequences(self) -> Iterator[tuple[int, int]]:
        """The first token and the end of each sentence; of the whole text if nothing finds sentences."""
        starts = [0] if self._sentence_starts is None else self._sentence_starts
        yield from zip(starts, [*starts[1:], len(self._starts)])

    def _rows(self, columns: list[str], begin: int, end: int) -> Text:
        """Words, or rows of several columns, of the tokens from `begin` up to `end`."""
        if columns == ["orth"]:
            return self._columns["orth"][begin:end]
        return [*zip(*(self._columns[name][begin:end] for name in columns))]

    def _set_attribute(self, name: str, values: list[str]) -> None:
        """Give an attribute to each token."""
        self._columns[name] = values
        self._attributes.append(name)

    def _set_sentences(self, is_start: list[bool]) -> None:
        """Cut the text into sentences. is_start (list[bool]): Whether one begins at each token; the first one always does."""
        is_start[:1] = [True][: len(is_start)]
        self._sentence_starts = [n for n, starts in enumerate(is_start) if starts]
        self._columns["sent_start"] = ["1" if starts else "-1" for starts in is_start]

    def _make_spans(self, entities: Iterable[Entity], shift: int, component: str) -> list[Span]:
        """The spans of entities, which are counted in tokens from token `shift` on."""
        spans = []
        for begin, end, label, prob in entities:
            start = self._starts[shift + begin]
            stop = self._ends[shift + end - 1]
            spans.append(Span(start, stop, self.text[start:stop], label, prob, component))
        return spans


class Sentencizer:
    """spaCy's sentencizer: a sentence ends with punctuation, behind all further punctuation.

    content (dict): The characters that end sentences, `punct_chars`.
    """

    kind = "sentencizer"
    writes = "sents"

    def __init__(self, content: dict[str, Any]):
        self.name: str = content["name"]
        self._ends = set(content["punct_chars"])

    def find_starts(self, words: list[str]) -> list[bool]:
        """Whether a sentence begins at each word, but for the first one."""
        is_start = []
        has_ended = False  # whether only punctuation has followed the end of a sentence
        for word in words:
            is_end = word in self._ends
            begins = has_ended and not is_end and not FLAGS["is_punct"](word)
            is_start.append(begins)
            has_ended = is_end or (has_ended and not begins)
        return is_start


class Parser:
    """Parses texts. Several threads can share a parser. `load` makes it.

    parse(text), parse.batch(texts): What components find in texts.
    parse.words(words): What they find in words, or in rows of columns.
    columns (list[str]): The columns that rows must have; "orth" is the word.
    components (dict): The components by name, in the pipeline's order.
    """

    def __init__(self, content: dict[str, Any]):
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise LiteError("this is no export of spacy_crf. `spacy crf export MODEL FILE` writes one.")
        if content["version"] != VERSION:
            known = f"version {content['version']} of the format, and this reader reads version {VERSION}"
            raise LiteError(f"it has {known}. Take the reader of the spacy_crf that wrote it.")
        if n_steps(content["components"]) > _MOST_STEPS:
            raise LiteError(f"its graphs of states have more than {_MOST_STEPS:,} steps. Copy the file again.")
        self.lang: str = content["lang"]
        self.columns: list[str] = content["columns"]
        self._tokenizer = None if content["tokenizer"] is None else make_tokenizer(content["tokenizer"])
        self.components: dict[str, Union[Component, Sentencizer]] = {}
        for part in content["components"]:
            if part["name"] in self.components:
                raise LiteError(f"it has two components '{part['name']}'. Export the model again.")
            make = Sentencizer if part["kind"] == "sentencizer" else Component
            self.components[part["name"]] = make(part)

    def __call__(self, text: str) -> Parsed:
        """Parse a text."""
        return self.batch([text])[0]

    def words(self, words: Text) -> Parsed:
        """Parse words, or rows of `columns`. Their text is the words with blanks between them."""
        if isinstance(words, str):
            raise LiteError(f"words takes a list of words; this is one string, {words!r:.40}. Take parse(text).")
        return self.batch([words])[0]

    def batch(self, texts: Iterable[Union[str, Text]]) -> list[Parsed]:
        """Parse many texts, which takes a fraction of the time of one by one.

        texts (Iterable): Texts; or lists of words or rows.
        RETURNS (list[Parsed]): What was found in each.
        """
        if isinstance(texts, str) or not isinstance(texts, Iterable):
            raise LiteError(f"batch takes a list of texts; this is {texts!r:.40}. Take parse(text) for one text.")
        parsed = self._read(texts)
        for component in self.components.values():
            if isinstance(component, Sentencizer):
                for text in parsed:
                    text._set_sentences(component.find_starts(text._columns["orth"]))
            elif component.kind == "text":
                self._classify(component, parsed)
            else:
                self._label(component, parsed)
        return parsed

    def _read(self, texts: Iterable[Union[str, Text]]) -> list[Parsed]:
        """The tokens of texts, or of words or rows. RAISES (LiteError): For what the parser can't read."""
        parsed = []
        for text in texts:
            if not isinstance(text, str):
                parsed.append(self._of_rows(text))
            elif self._tokenizer is not None:
                parsed.append(_of_tokens(text, self._tokenizer.cut(text)))
            else:
                columns = ", ".join(self.columns)
                raise LiteError(f"The export holds no tokenizer. Take parse.words(rows), with the columns {columns}.")
        return parsed

    def _of_rows(self, rows: Text) -> Parsed:
        """The tokens of words or rows. RAISES (LiteError): For rows with too few columns."""
        if self.columns == ["orth"] and are_words(rows):
            columns = {"orth": [*rows]}
        else:
            check_rows(rows, self.columns)
            columns = {name: [row[n] for row in rows] for n, name in enumerate(self.columns)}
        columns.setdefault("spacy", ["1"] * len(columns["orth"]))
        starts = []
        ends = []
        start = 0
        for word in columns["orth"]:
            starts.append(start)
            ends.append(start + len(word))
            start += len(word) + 1
        return Parsed(" ".join(columns["orth"]), starts, ends, columns)

    @staticmethod
    def _classify(component: Component, parsed: Sequence[Parsed]) -> None:
        """Add the labels of texts."""
        texts = []
        for text in parsed:
            texts.append([text._rows(component.columns, begin, end) for begin, end in text._sequences()])
        for text, cats in zip(parsed, component.classify_sequences(texts)):
            text.cats.update(cats)

    @staticmethod
    def _label(component: Component, parsed: Sequence[Parsed]) -> None:
        """Label the sentences of texts, or find sentences."""
        bounds_of_texts = []  # first token and end of each sequence of each text
        sequences = []
        for text in parsed:
            is_whole = component.writes == "sents"
            bounds = [(0, len(text._starts))] if is_whole else [*text._sequences()]
            bounds_of_texts.append(bounds)
            sequences += [text._rows(component.columns, begin, end) for begin, end in bounds]
        labelled = component.label(sequences)
        for text, bounds in zip(parsed, bounds_of_texts):
            _write(component, text, [(begin, next(labelled)) for begin, _ in bounds])


def _of_tokens(text: str, tokens: Words) -> Parsed:
    """A text with its tokens."""
    ends = [start + len(word) for start, word in zip(tokens.starts, tokens.words)]
    next_starts = [*tokens.starts[1:], len(text)]
    has_space = ["1" if following > end else "0" for following, end in zip(next_starts, ends)]
    parsed = Parsed(text, tokens.starts, ends, {"orth": tokens.words, "spacy": has_space})
    if tokens.sentences is not None:
        parsed._set_sentences(tokens.sentences)
    return parsed


def _write(component: Component, text: Parsed, found: list[tuple[int, list[Labelled]]]) -> None:
    """Write to a text what a component found.

    found (list): The first token of each sequence, and what each chain of the component found there.
    """
    n_tokens = len(text._starts)
    kind, _, key = component.writes.partition(":")
    if kind in ("ents", "spans"):
        spans = []
        types = [""] * n_tokens
        iob = ["2"] * n_tokens  # spaCy's codes: 1 inside, 2 outside, 3 begin
        for shift, labelled in found:
            entities = component.joined(labelled)
            spans += text._make_spans(entities, shift, component.name)
            for begin, end, label, _ in entities:
                types[shift + begin : shift + end] = [label] * (end - begin)
                iob[shift + begin : shift + end] = ["3", *["1"] * (end - begin - 1)]
        if kind == "spans":
            text.spans[key] = spans
        else:
            text.entities = spans
            text._columns["ent_type"] = types
            text._columns["ent_iob"] = iob
    elif kind == "sents":
        is_start = [False] * n_tokens
        for entity in component.joined(found[0][1]):
            is_start[entity.start] = True
        text._set_sentences(is_start)
    else:
        for n, labeller in enumerate(component.labellers):
            tags = []
            for _, labelled in found:
                tags += labelled[n].tags
            text._set_attribute(labeller.writes, tags)


def load(path: Union[str, Path]) -> Parser:
    """Load an export, .npz or JSON (which may be gzipped). RAISES (LiteError): If the file is no whole export of this version."""
    try:
        parser = Parser(read_file(Path(path)))
        tried = parser.words([[word] * len(parser.columns) for word in _TRIED])
        json.dumps(tried.to_json())
        return parser
    except LiteError as error:
        raise LiteError(f"{path}: {error}") from None
    except DAMAGED as error:
        raise LiteError(f"{path} is cut off or no export ({error!r}). Copy it again, or export it again.") from error
