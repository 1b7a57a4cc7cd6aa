"""Reads sentences of words with tags: a token on each line, words joined with their tags (``Ann|B-PER ran|O``), and lists of
words and tags in JSON. Detects tag schemes, and makes Docs from the sentences.

Also reads JSON of words with spans of words: GLiNER's ``{"tokenized_text": […], "ner": [[0, 1, "PER"]]}``, with inclusive ends,
and SpERT's ``{"tokens": […], "entities": [{"type": "PER", "start": 0, "end": 2}]}``."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise, product
from typing import Any, NamedTuple, Optional, Protocol, TypeVar

from spacy.language import Language
from spacy.tokens import Doc, Span

from ...blanks import is_blank, split_columns, split_words
from ...errors import Errors, shown
from ...pipeline.corpora import set_origin
from .annotation import GivenSpan, holds_annotation, is_label, is_unicode, make_doc, named, set_entities
from .annotation import Span as Characters
from .source import Fields, ReadSettings, Report, Source, unreadable

# The letters that a scheme puts before labels. The scheme of a file is the first one with all letters of the file
SCHEMES = {"BIO": "BI", "IOB1": "BI", "BILUO": "BILU", "BIOES": "BIES", "BMES": "BMES", "bare": ""}
_IN_BILUO = {"E": "L", "S": "U", "M": "I"}
# Languages that write no spaces between words, and whose tokenizers find words
_WITHOUT_SPACES = ("ja", "th", "zh")
_LATIN = re.compile("[A-Za-z0-9]")
_FORMS = ("(?P<letter>[{letters}]){separator}(?P<label>.+)", "(?P<label>.+){separator}(?P<letter>[{letters}])")
# How programs spell tags: B-PER, B_PER, PER-B, b:PER …
# All letters are tried in upper case first: labels in lower case, such as e-mail, may look like tags
_SPELLINGS = [
    re.compile(form.format(letters=letters, separator=re.escape(separator)))
    for letters, form, separator in product(("BILUESM", "biluesm"), _FORMS, "-_:./|+")
]
_STANDARD = _SPELLINGS[0]
# Tags without label, in files with one kind of entity
_UNLABELLED = {"B", "I", "L", "U", "E", "S", "M"}

T = TypeVar("T")


class Tagged(Protocol):
    """A token with its entity tag."""

    @property
    def place(self) -> str:
        """Where the token is, for messages."""
        ...

    @property
    def ent(self) -> Optional[str]:
        """The tag; None without one."""
        ...


class Row(NamedTuple):
    """A token. None stands for columns that the file lacks, the entity tag ``-`` for missing annotation of this token."""

    place: str
    word: str
    ent: Optional[str] = None
    tag: Optional[str] = None
    inner: tuple[str, ...] = ()  # entity tags in further columns, for spans that overlap


# Yields the rows of each sentence, and None at the end of each document
Sentences = Callable[[Source, ReadSettings, Report], Iterator[Optional[list[Row]]]]


class Tagging(NamedTuple):
    """How the tags of a file are read. spelling: Splits a tag into its letter and its label."""

    scheme: str
    spelling: re.Pattern[str] = _STANDARD

    def split(self, tag: str, place: str) -> tuple[str, str]:
        """Split a tag into its letter in BILUO and its label.

        RAISES (ValueError): CRF744 for a letter alone, CRF704 for another tag that the scheme does not have.
        """
        if tag in ("O", "-"):
            return tag, ""
        if self.scheme == "bare":
            return "I", tag
        match = self.spelling.fullmatch(tag)
        letter = match["letter"].upper() if match else ""
        if match is None or letter not in SCHEMES[self.scheme]:
            raise _not_a_tag(tag, place)
        if self.scheme in ("BIOES", "BMES"):
            letter = _IN_BILUO.get(letter, letter)
        return letter, match["label"]


def _not_a_tag(tag: str, place: str) -> ValueError:
    error = Errors.CRF744 if tag in _UNLABELLED else Errors.CRF704
    return ValueError(error.format(place=place, tag=tag))


def is_tag(text: str) -> bool:
    """Whether a text is an entity tag in the usual spelling: B-PER, O, or - for missing annotation."""
    return text in ("O", "-") or _STANDARD.fullmatch(text) is not None


def read_sentences(
    sentences: Sentences, source: Source, nlp: Language, settings: ReadSettings, report: Report
) -> Iterator[Doc]:
    """Make Docs of `n_sents` sentences each. The sentences are read twice: all of them show how the tags are spelled.

    RAISES (ValueError): With the place, if a tag does not belong to the scheme.
    """
    # A tag may show the scheme only at the end of the file, so the first reading reports nothing
    tagging = find_tagging(sentences(source, settings, Report()), settings.scheme, report)
    for group in in_groups(sentences(source, settings, report), settings.n_sents):
        rows = list(chain.from_iterable(group))
        report.has_spans |= rows[0].ent is not None
        ents = list(chain.from_iterable(in_bio(sentence, tagging, report) for sentence in group))
        _, *levels = _levels(rows)
        # Spans that overlap are in columns of their own, each with tags of the same scheme
        inner = [in_bio(level, tagging, report) for level in levels]
        sent_starts = {0, *accumulate(map(len, group))}
        words = [row.word for row in rows]
        doc = Doc(
            nlp.vocab,
            words=words,
            spaces=spaces_between(words, nlp.lang),
            tags=[row.tag or "" for row in rows] if rows[0].tag is not None else None,
            ents=ents if rows[0].ent is not None and not settings.spans_key else None,
            sent_starts=[n in sent_starts for n in range(len(rows))] if settings.n_sents != 1 else None,
        )
        if settings.spans_key and rows[0].ent is not None:
            # spaCy finds the spans of each column in its tags
            layers = [Doc(nlp.vocab, words=words, ents=tags) for tags in (ents, *inner)]
            spans = chain.from_iterable(layer.ents for layer in layers)
            # Two columns may have the same span; doc.spans would hold it twice
            unique = sorted({(span.start, span.end, span.label_) for span in spans})
            doc.spans[settings.spans_key] = [Span(doc, begin, end, label=label) for begin, end, label in unique]
        if settings.retokenize:
            doc = _retokenize(doc, nlp, rows[0].place, settings, report)
        set_origin(doc, rows[0].place)
        yield doc


def spaces_between(words: Sequence[str], lang: Optional[str]) -> Optional[list[bool]]:
    """Tell whether a space follows each word. In a language without spaces, only a word in Latin letters before another one has
    a space behind it. None for other languages, where spaCy joins words by spaces."""
    if lang not in _WITHOUT_SPACES:
        return None
    # Names and numbers in Latin letters would run together: "New York" in a Japanese text
    are_latin = [_LATIN.match(word[-1:]) and _LATIN.match(behind[:1]) for word, behind in pairwise(words)]
    return [*map(bool, are_latin), False]


def _retokenize(doc: Doc, nlp: Language, place: str, settings: ReadSettings, report: Report) -> Doc:
    """Make a Doc of the same text and spans, whose tokens are those of the tokenizer."""
    spans = doc.spans[settings.spans_key] if settings.spans_key else doc.ents
    missing = [Characters(token.idx, token.idx + len(token), "") for token in doc if not token.ent_iob]
    return make_doc(
        nlp,
        doc.text.rstrip(),
        [Characters(span.start_char, span.end_char, span.label_) for span in spans],
        missing=missing,
        place=place,
        settings=settings,
        report=report,
    )


def in_groups(sentences: Iterable[Optional[list[T]]], n: int) -> Iterator[list[list[T]]]:
    """Group sentences into Docs of `n` sentences; with 0, of all sentences of a document. No Doc crosses the end of a
    document."""
    group: list[list[T]] = []
    for sentence in sentences:
        if sentence:
            group.append(sentence)
        # With n = 0 no group is ever full: only the end of a document closes it
        if group and (sentence is None or len(group) == n):
            yield group
            group = []
    if group:
        yield group


# --------------------------------------------------------------------------------------------------------- schemes


def find_tagging(sentences: Iterable[Optional[Sequence[Tagged]]], scheme: Optional[str], report: Report) -> Tagging:
    """Find the scheme of a file's entity tags, and their spelling.

    sentences (Iterable): The tokens of each sentence; None at the end of a document.
    scheme (str): The scheme that the user names, or None.
    report (Report): Gets the scheme and the spelling.
    RAISES (ValueError): CRF704 with the first wrong tag, if others are entity tags; CRF744 for a letter without a label; CRF748
        for brackets; CRF740 if only some tags have a spelling such as B_PER; CRF867 if none of them is an entity tag.
    """
    first: dict[str, Tagged] = {}  # the first row with a tag
    follows: set[tuple[str, str]] = set()  # tags that follow one another
    for sentence in sentences:
        for level in _levels(sentence or ()):
            before = "O"
            for row in level:
                # Missing annotation says nothing of the scheme
                if row.ent is not None:
                    first.setdefault(row.ent, row)
                    follows.add((before, row.ent))
                    before = row.ent
    tagging = _tagging(first, follows, scheme)
    report.scheme = tagging.scheme
    if tagging.spelling is not _STANDARD:
        report.spelling = next(tag for tag in first if tagging.spelling.fullmatch(tag))
    return tagging


def _tagging(first: dict[str, Tagged], follows: set[tuple[str, str]], scheme: Optional[str]) -> Tagging:
    """Find scheme and spelling for `find_tagging`, which has looked through the sentences.

    first (dict[str, Tagged]): The first token with each tag.
    follows (set[tuple[str, str]]): Pairs of tags of neighbouring tokens.
    """
    tags = [tag for tag in first if tag not in ("O", "-")]
    # CoNLL-2012 opens spans by (PER* and closes them by *)
    in_brackets = [tag for tag in tags if tag.startswith("(")]
    if in_brackets and all(tag == "*" or tag[0] == "(" or tag[-1] == ")" for tag in tags):
        raise ValueError(Errors.CRF748.format(place=first[in_brackets[0]].place, tag=in_brackets[0]))
    if scheme == "bare":
        return Tagging(scheme)
    spelling = _spelling(tags, first, scheme)
    if scheme is not None:
        return Tagging(scheme, spelling or _STANDARD)
    others = [tag for tag in tags if spelling is None or not spelling.fullmatch(tag)]
    if others:
        unlabelled = [tag for tag in others if tag in _UNLABELLED]
        row = first[(unlabelled or others)[0]]
        if unlabelled or len(others) < len(tags):
            raise _not_a_tag(row.ent or "", row.place)
        # A column of parts of speech has tags on every token, and entities leave some out
        if "O" not in first:
            raise ValueError(Errors.CRF867.format(place=row.place, tag=row.ent))
        return Tagging("bare")
    spelling = spelling or _STANDARD
    return Tagging(_scheme(spelling, follows), spelling)


def _spelling(tags: list[str], first: dict[str, Tagged], scheme: Optional[str]) -> Optional[re.Pattern[str]]:
    """Find the spelling of tags, None if no tag looks like one of a scheme. Parameters: As for `_tagging`.

    RAISES (ValueError): CRF740 if they may also be labels without a scheme.
    """
    if any(map(_STANDARD.fullmatch, tags)):
        return _STANDARD
    spelling, alike = find_spelling(tags)
    # Labels such as B_2 in a file of bare labels: only a pair like B_2 and I_2 proves a spelling
    is_certain = len(alike) == len(tags) and (scheme is not None or has_pair(spelling, alike))
    if spelling is not None and not is_certain:
        shown_tags = ", ".join(map(repr, alike[:3]))
        raise ValueError(Errors.CRF740.format(place=first[alike[0]].place, tags=shown_tags))
    return spelling


def _scheme(spelling: re.Pattern[str], follows: set[tuple[str, str]]) -> str:
    """Find the scheme of tags by their letters. follows: As for `_tagging`."""
    letters: set[str] = set()
    openings: set[str] = set()  # letters of tags that open an entity: another label, or none, is before them
    for before, tag in follows:
        match = spelling.fullmatch(tag)
        if match:
            letter = match["letter"].upper()
            letters.add(letter)
            match_before = spelling.fullmatch(before)
            if match_before is None or match_before["label"] != match["label"]:
                openings.add(letter)
    # IOB1 opens an entity by I-, and by B- only right behind another of its label
    if "I" in openings and "B" not in openings and letters <= set("BI"):
        return "IOB1"
    schemes = [name for name, of_scheme in SCHEMES.items() if letters <= set(of_scheme)]
    # If no scheme has all letters, `Tagging.split` will name the first tag that BILUO does not have
    return schemes[0] if schemes else "BILUO"


def find_spelling(labels: Sequence[str]) -> tuple[Optional[re.Pattern[str]], list[str]]:
    """Find the spelling of labels that may be tags of a scheme. Either all labels have this spelling, or two of them differ in
    the letter alone, such as B_PER and I_PER.

    RETURNS (Tuple[Optional[Pattern], List[str]]): The spelling, or None; and the labels that have it.
    """
    for spelling in _SPELLINGS:
        alike = [label for label in labels if spelling.fullmatch(label)]
        # e-mail is a label
        is_all = len(alike) == len(labels) and any(label != label.lower() for label in alike)
        if alike and (is_all or has_pair(spelling, alike)):
            return spelling, alike
    return None, []


def has_pair(spelling: Optional[re.Pattern[str]], tags: Sequence[str]) -> bool:
    """Whether two tags have the same label and different letters."""
    names = [match["label"] for match in map(spelling.fullmatch, tags) if match] if spelling else []
    return len({*names}) < len(names)


def _levels(sentence: Sequence[Any]) -> Iterator[Sequence[Tagged]]:
    """Yield the rows of a sentence; then, for each further column of entity tags, the rows with these tags in place of theirs."""
    yield sentence
    for n in range(len(getattr(sentence[0], "inner", ())) if sentence else 0):
        yield [row._replace(ent=row.inner[n]) for row in sentence]


def in_bio(rows: Sequence[Tagged], tagging: Tagging, report: Report) -> list[Any]:
    """Convert the entity tags of a sentence to BIO, as spaCy's Docs take them; None for a missing tag. Where the tags are BIO or
    IOB1, a tag that can't go on begins an entity, as `conlleval` reads it.

    RAISES (ValueError): With the place, if a tag does not belong to the scheme, or can't follow the tag before it.
    """
    scheme = tagging.scheme
    bio_tags: list[Optional[str]] = []
    before = "O"
    last_letter = "O"
    last_label = ""
    for row in rows:
        tag = row.ent or "-"
        letter, label = tagging.split(tag, row.place)
        has_last_label = bool(label) and label == last_label
        is_open = last_letter in ("B", "I")  # L and U end an entity
        if scheme in ("bare", "BIO", "IOB1"):
            can_continue = has_last_label and is_open
            is_wrong = scheme == "BIO" and letter == "I" and not can_continue
            # IOB1 has B- only where another entity of the same label ends
            is_wrong |= scheme == "IOB1" and letter == "B" and not has_last_label
            if is_wrong:
                report.repaired.append(f"{row.place}, '{tag}' after '{before}'")
            begins = letter == "B" or not can_continue
        else:
            continues = letter in ("I", "L")
            if continues != is_open or (continues and not has_last_label):
                raise ValueError(Errors.CRF866.format(place=row.place, tag=tag, before=before, scheme=scheme))
            begins = not continues
        if letter == "-":
            bio_tags.append(None)
        elif not label:
            bio_tags.append("O")
        else:
            bio_tags.append(f"B-{label}" if begins else f"I-{label}")
        before = tag
        last_letter = letter
        last_label = label
    # An entity that is still open at the end of the sentence
    if scheme in ("BILUO", "BIOES", "BMES") and last_letter in ("B", "I"):
        raise ValueError(Errors.CRF866.format(place=rows[-1].place, tag="the end", before=before, scheme=scheme))
    return bio_tags


# --------------------------------------------------------------------------------------------------------- formats

_DOCUMENT = "-DOCSTART-"  # begins a document
_NEW_DOCUMENT = re.compile(r"# ?newdoc\b|#begin document\b")  # so do these
_MARK = re.compile(r"#end document\b")


def sentences_of_columns(source: Source, settings: ReadSettings, report: Report) -> Iterator[Optional[list[Row]]]:
    """Read columns. The word is in the first column and the entity tag in the last, unless the settings name others; for
    overlapping spans several columns. An empty line ends a sentence, and the lines ``-DOCSTART-`` and ``# newdoc`` begin a
    document.

    RAISES (ValueError): CRF868 for columns that are not numbers from 1 on; with the place, if a line can't be read.
    """
    [word, _], [tag, _], [label, inner] = (_columns_named(settings, name) for name in ("word", "tag", "label"))
    layout: Optional[_Layout] = None
    if settings.spans_key and label is None:
        layout = _find_layout(source, None)
        inner = layout.columns_like_last({word or 1, tag})
    least = max(2, word or 0, label or 0, tag or 0, *inner)  # number of columns
    width = None
    # Whether the first column has the numbers of tokens so far, which would be read as words; and the last number
    is_numbered = word is None
    number = 0
    rows: list[Row] = []
    for place, line in _unmarked_lines(source):
        cells = split_columns(line)
        is_marked = line.startswith("#")
        begins_document = line.startswith(_DOCUMENT) and cells[0].strip(" ") == _DOCUMENT
        if is_marked and _NEW_DOCUMENT.match(line):
            begins_document = True
        if not line or begins_document or is_blank(line):
            if rows:
                yield rows
            if begins_document:
                yield None
            rows = []
            continue
        if is_marked:
            layout = layout or _find_layout(source, label)
            if _is_comment(line, cells, layout, within=bool(rows)):
                has_width = len(cells) == layout.width and layout.has_tabs == ("\t" in line)
                if rows or has_width or (len(cells) > 1 and is_tag(cells[-1])):
                    report.comments.append(place)
                continue
        if "\r" in line and any("\r" in cell.strip("\r") for cell in line.split("\t")):
            raise unreadable(place, f"a carriage return stands within the line: {shown(line)}")
        if len(cells) < least or len(cells) != (width or len(cells)):
            first = f"at least {least} (the word first, the tag last)"
            raise ValueError(
                Errors.CRF703.format(
                    place=place,
                    got=len(cells),
                    expected=first if width is None else f"{width}, as in the lines before,",
                )
            )
        if width is None:
            width = len(cells)
            columns_read = {word or 1, label or width, tag, *inner}
            report.columns = [str(n) for n in range(1, width + 1) if n not in columns_read]
            report.tag_columns = [str(n) for n in sorted({label or width, *inner})]
        if is_numbered:
            is_numbered = cells[0] == str(number + 1) or (not rows and cells[0] in ("0", "1"))
            number = int(cells[0]) if is_numbered else 0
        form = cells[(word or 1) - 1]
        # The last column has the entity tags, unless it is said to have `token.tag`
        ent = cells[(label or width) - 1].strip() if label or tag != width else None
        inner_tags = tuple([cells[column - 1].strip() for column in inner]) if inner else ()
        rows.append(Row(place, form.strip(" ") or form, ent, cells[tag - 1].strip() if tag else None, inner_tags))
        if not form or ent == "" or "" in inner_tags:
            raise unreadable(place, f"the {'tag' if form else 'word'} is empty")
    if rows:
        yield rows
    if is_numbered and width is not None and width > 2:
        raise ValueError(Errors.CRF741.format(place=source.path))


def _columns_named(settings: ReadSettings, name: str) -> tuple[Optional[int], list[int]]:
    """Parse the setting that names the columns of words, of entity tags or of ``token.tag``.

    name (str): "word", "label" or "tag".
    RETURNS (tuple[Optional[int], list[int]]): The number of the column, from 1 on, None where the setting names none; and the
        further columns of entity tags, for spans that overlap.
    RAISES (ValueError): CRF868 for columns that are not numbers from 1 on, or for several that only `spans_key` can hold.
    """
    value = getattr(settings, f"{name}_column")
    if value is None:
        return None, []
    known = "numbers from 1"
    numbers = [value]
    if name == "label":
        known += ", with --spans-key several, such as 3,4"
        numbers = value.split(",") if settings.spans_key else numbers
    if not all(re.fullmatch("[1-9][0-9]{0,5}", number.strip()) for number in numbers):
        raise ValueError(Errors.CRF868.format(option=f"{name}-column", value=value, known=known))
    first, *others = map(int, numbers)
    return first, others


class _Layout(NamedTuple):
    """The columns of a file, as its lines without ``#`` at the beginning show them."""

    has_tabs: bool = False  # whether tabs separate the columns
    width: int = 0  # number of columns
    label: Optional[int] = None  # number of the column of entity tags; None for the last
    labels: frozenset[str] = frozenset()  # the values in this column
    values: Sequence[set[str]] = ()  # the values in each column

    def columns_like_last(self, others: Collection[Optional[int]]) -> list[int]:
        """Numbers of the columns with entity tags that belong to those of the last column, as levels of nested spans: they have a
        label in common, with the last column or with another level. Chunks and entities have none.

        others (Collection[Optional[int]]): Numbers of the columns of words and of ``token.tag``.
        """
        common = _labels_of_tags(self.values[-1]) if self.values else set()
        levels = []
        for n in reversed(range(1, len(self.values))):
            labels = set() if n in others else _labels_of_tags(self.values[n - 1])
            if not labels.isdisjoint(common):
                levels.append(n)
                common |= labels
        return levels


def _labels_of_tags(values: Collection[str]) -> set[str]:
    """The labels of the values of a column; none if some value is no entity tag."""
    tags = [value for value in values if value not in ("O", "-")]
    spelling, alike = find_spelling(tags)
    matches = map(spelling.fullmatch, tags) if spelling and alike == tags else ()
    return {match["label"] for match in matches if match}


def _find_layout(source: Source, label: Optional[int]) -> _Layout:
    """Find the layout of a file, with the entity tags in the column `label`."""
    has_tabs = False
    width = 0
    labels: set[str] = set()
    values_of_columns: list[set[str]] = []
    for _, line in _unmarked_lines(Source(source.path, source.encoding)):
        if not is_blank(line) and not line.startswith(("#", _DOCUMENT)):
            cells = split_columns(line)
            if not width:
                has_tabs = "\t" in line
                width = len(cells)
                values_of_columns = [set() for _ in cells]
            labels.add(cells[min(label or len(cells), len(cells)) - 1].strip())
            for values, cell in zip(values_of_columns, cells):
                values.add(cell.strip())
    return _Layout(has_tabs, width, label, frozenset(labels), values_of_columns)


def _unmarked_lines(source: Source) -> Iterator[tuple[str, str]]:
    """Yield the places and lines of a source. Left out are byte order marks, of which joined files have several, and blanks in
    front of ``#`` and ``-DOCSTART-``."""
    for place, line in source.lines():
        if line[:1] in (" ", "\ufeff"):
            bare = line.lstrip("\ufeff ")
            line = bare if bare.startswith(("#", _DOCUMENT)) else line.lstrip("\ufeff") or line
        yield place, line


def _is_comment(line: str, cells: list[str], layout: _Layout, *, within: bool) -> bool:
    """Whether a line that begins with ``#`` is a comment, rather than the token ``#``, or a word that begins so.

    within (bool): Whether the line stands between the tokens of a sentence.
    """
    if len(cells) == (layout.width or len(cells)) > 1:
        label = cells[min(layout.label or len(cells), len(cells)) - 1].strip()
        is_known = label in layout.labels or label == "#"  # Penn's tag of the token
        # Without tags such as B-PER, any last word could be a tag
        is_likely = within and not any(map(_STANDARD.fullmatch, layout.labels))
        has_separator = ("\t" in line) == layout.has_tabs
        if is_tag(label) or (has_separator and (is_known or is_likely)):
            return False
    elif 1 < len(cells) < layout.width and is_tag(cells[-1].strip()):
        return False  # a token that lacks a column
    return cells[0] == "#" or _MARK.match(line) is not None or (layout.has_tabs and "\t" not in line)


def sniff_words(source: Source) -> bool:
    """Whether words are joined with their tags, as in Ann|B-PER."""
    lines = [line for line in source.head_lines() if not line.startswith(_DOCUMENT)]
    parts = list(chain.from_iterable(map(split_words, lines)))
    tagged = [part for part in parts if "|" in part and not part.endswith("|")]
    return bool(parts) and all("|" in part for part in split_words(lines[0])) and len(tagged) > 0.9 * len(parts)


def sentences_of_words(source: Source, settings: ReadSettings, report: Report) -> Iterator[Optional[list[Row]]]:
    """Read ``word|tag``, or ``word|part of speech|tag``: a sentence on each line. The last part is the entity tag."""
    width = None
    for place, line in source.lines():
        if line.startswith(_DOCUMENT):
            yield None
            continue
        rows = []
        for part in split_words(line):
            width = width or (3 if part.count("|") == 2 and is_tag(part.rpartition("|")[2]) else 2)
            cells = part.rsplit("|", width - 1)
            if len(cells) != width or not cells[0] or not cells[-1]:
                form = "word|tag" if width == 2 else "word|part of speech|tag"
                raise unreadable(place, f"'{part}' is not {form}, as the words before")
            rows.append(Row(place, cells[0], cells[-1], cells[1] if width == 3 else None))
        if rows:
            yield rows


_WORDS = ("tokens", "words")
_ENTS = ("ner_tags", "ner", "tags", "labels")
_TAGS = ("pos_tags", "pos", "upos", "xpos")


def sniff_lists(source: Source) -> bool:
    """Whether items have lists of words and entity tags; or of tags of speech without a text, which may have spans."""
    items = source.head_objects()
    return any(_key(item, _WORDS) and _key(item, _ENTS if "text" in item else (*_ENTS, *_TAGS)) for item in items)


def _key(item: Fields, known: tuple[str, ...]) -> Optional[str]:
    """Find the first of some keys whose value is a list of strings or numbers."""

    def is_list(value: object) -> bool:
        return isinstance(value, list) and all(type(part) in (str, int) for part in value)

    return next((key for key in known if is_list(item.get(key))), None)


def sentences_of_lists(source: Source, settings: ReadSettings, report: Report) -> Iterator[list[Row]]:
    """Read a sentence from each item, such as ``{"tokens": […], "ner_tags": […], "pos_tags": […]}``, where one list of tags is
    enough. Numbers as tags need the setting ``tag_names``."""
    for place, value in source.items():
        fields = value.items() if isinstance(value, dict) else ()
        item = {key: part for key, part in fields if key not in settings.ignore}
        words, ents, tags = (_key(item, known) for known in (_WORDS, _ENTS, _TAGS))
        if tags and not all(isinstance(tag, str) for tag in item[tags]):
            # They are numbers without names, which `_check` reports
            tags = None
        if words is None or not (ents or tags) or not all(isinstance(word, str) for word in item[words]):
            missing = 'list of words under "tokens", or none of tags under "ner_tags" or "pos_tags"'
            raise unreadable(place, f"it has no {missing}: {shown(value)}")
        _check(item, [key for key in (words, ents, tags) if key], place)
        none = [None] * len(item[words])
        given, of_tags = (item[key] if key else none for key in (ents, tags))
        names = [named(tag, settings.tag_names, place) if isinstance(tag, int) else tag for tag in given]
        rows: list[Any] = [Row(place, *row) for row in zip(item[words], names, of_tags)]
        if any(not row.word or row.ent == "" for row in rows):
            raise unreadable(place, f"a word or a tag is empty: {shown(value)}")
        if not all(is_unicode(part or "") for part in chain.from_iterable(rows)):
            raise unreadable(place, f"a word or a tag is not valid Unicode: {shown(value)}")
        yield rows


def _check(item: Fields, used: list[str], place: str) -> None:
    """Check an item. RAISES (ValueError): CRF701 if its lists differ in length, CRF707 if a list of tags would be lost."""
    words, *lists = used
    for key in lists:
        if len(item[key]) != len(item[words]):
            counts = f'{len(item[words])} words under "{words}", but {len(item[key])} tags under "{key}"'
            raise unreadable(place, counts)
    for key, value in item.items():
        is_of_tokens = isinstance(value, list) and bool(value) and key.endswith(("tags", "labels", "ner"))
        if key not in used and (is_of_tokens or holds_annotation(value)):
            raise ValueError(Errors.CRF707.format(place=place, key=key, value=shown(value), known=", ".join(lists)))


class _Keys(NamedTuple):
    words: str
    spans: str
    behind: int  # how far the word behind a span is from its "end"


_KEYS = (_Keys("tokenized_text", "ner", 1), _Keys("tokens", "entities", 0))


def sniff_word_spans(source: Source) -> bool:
    """Whether items have words and spans of words."""
    return any(map(_keys_of, source.head_objects()))


def _keys_of(item: object) -> Optional[_Keys]:
    if not isinstance(item, dict) or "text" in item or any(key.endswith("tags") for key in item):
        return None
    return next(
        (keys for keys in _KEYS if _is_words(item.get(keys.words)) and isinstance(item.get(keys.spans), list)), None
    )


def _is_words(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(word, str) for word in value)


def read_word_spans(source: Source, nlp: Language, settings: ReadSettings, report: Report) -> Iterator[Doc]:
    """Read a Doc from each item. With `retokenize` in the settings, the tokenizer cuts the words again, joined by spaces.

    RAISES (ValueError): CRF701 with the place, if an item has no words with spans; CRF707 if it has other annotation.
    """
    for place, value in source.items():
        item = (
            {key: part for key, part in value.items() if key not in settings.ignore}
            if isinstance(value, dict)
            else value
        )
        keys = _keys_of(item)
        if keys is None:
            known = " or ".join(f'"{each.words}" with "{each.spans}"' for each in _KEYS)
            raise unreadable(place, f"it has no words with spans ({known}): {shown(value)}")
        words = item[keys.words]
        if not all(is_unicode(word) and not is_blank(word) for word in words):
            raise unreadable(place, f"a word is empty or not valid Unicode: {shown(value)}")
        for key, part in item.items():
            if key not in (keys.words, keys.spans) and part and (key == "relations" or holds_annotation(part)):
                raise ValueError(Errors.CRF707.format(place=place, key=key, value=shown(part), known=keys.spans))
        report.has_spans = True
        doc = Doc(nlp.vocab, words=words, spaces=spaces_between(words, nlp.lang))
        spans, is_complete = _as_characters(item[keys.spans], keys, doc, place, report)
        common = {"is_complete": is_complete, "place": place, "settings": settings, "report": report}
        if settings.retokenize:
            doc = make_doc(nlp, doc.text.rstrip(), spans, **common)
        else:
            doc = set_entities(doc, doc.text, spans, **common)
        set_origin(doc, place, item.get("id"))
        yield doc


def _as_characters(
    values: list[object], keys: _Keys, doc: Doc, place: str, report: Report
) -> tuple[list[Characters], bool]:
    """The spans as characters, and whether none of them is broken."""
    found: list[Characters] = []
    is_complete = True
    for value in values:
        start, end, label, _ = GivenSpan.of(value)
        are_words = type(start) is int and type(end) is int and 0 <= start < end + keys.behind <= len(doc)
        # Offsets count words; the rest of the code reads characters
        if are_words and isinstance(label, str) and is_label(label):
            of_words = doc[start : end + keys.behind]
            found.append(Characters(of_words.start_char, of_words.end_char, label))
            continue
        reason = f"a span needs its first and last word, within {len(doc)} words, and a label, not {shown(value)}"
        report.broken.append(str(unreadable(place, reason)))
        is_complete = False
    return found, is_complete
