"""Reads CoNLL-U: words with tags, morphology, lemmas and heads in ten columns."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple, Optional

from spacy.language import Language
from spacy.tokens import Doc

from ...blanks import is_blank, split_words
from ...errors import Errors, counted, known_names
from ...pipeline.corpora import set_origin
from ...types import Settings
from .columns import Tagging, find_spelling, find_tagging, has_pair, in_bio, in_groups, is_tag
from .source import ReadSettings, Report, Source, unreadable

_WIDTH = 10  # columns
# The number of a word (1), of the words of a contraction (1-2), or of an empty node (1.1)
_ID = re.compile(r"[0-9]{1,9}([-.][0-9]{1,9})?")
_BARE = ""  # the key of what has no key: the last column is B-PER, not NER=B-PER
# Keys in the last column (NER=B-PER), in lower case
_ENTITY_KEYS = ("ner", "ne", "name", "tag", _BARE)
_SURE_KEYS = ("ner", "ne")  # whose values are entity tags in any case
_TEXT = re.compile(r"#\s*text\s*=(.*)")  # the line with the text of a sentence
_SPANS = "entity"  # Entity=(1-person-1-cf1 of GUM and CorefUD


class Word(NamedTuple):
    """A line of a file: a word of a sentence."""

    place: str  # the file and the number of the line, for messages
    cells: list[str]  # of the ten columns
    space: bool  # whether a space follows the word
    misc: dict[str, str]  # the last column, by keys
    ent: Optional[str] = None  # the entity tag
    text: str = ""  # the text of the sentence, if this is its first word, and no contraction is in it


def sniff(source: Source) -> bool:
    """Whether the first line has the ten columns of CoNLL-U."""
    rows = [line.split("\t") for line in source.head_lines() if not line.startswith("#")]
    return bool(rows) and len(rows[0]) == _WIDTH and _ID.fullmatch(rows[0][0]) is not None


def read(source: Source, nlp: Language, settings: ReadSettings, report: Report) -> Iterator[Doc]:
    """Read sentences. Keeps the words of contractions (1-2), and skips empty nodes (1.1). The line ``# newdoc`` begins a
    document.

    RAISES (ValueError): With the place, if a line can't be read, or the last column has annotation that would be lost.
    """
    key = _entity_key(source, settings)
    tagging = None
    if key is not None:
        report.has_spans = True
        tagging = find_tagging(_tagged(source, key), settings.scheme, report)
    for group in in_groups(_tagged(source, key), settings.n_sents):
        docs = [_make_doc(sentence, nlp, tagging, report, settings.n_sents != 1) for sentence in group]
        doc = docs[0] if len(docs) == 1 else Doc.from_docs(docs, ensure_whitespace=False)
        set_origin(doc, group[0][0].place)
        yield doc


def _entity_key(source: Source, settings: ReadSettings) -> Optional[str]:
    """Find the key of the entity tags in the last column: the key that the settings name, else the only key whose values are
    tags for the most part.

    RETURNS (Optional[str]): The key; None if the file has no entity tags.
    RAISES (ValueError): CRF868 for a key that no word has; CRF714 if several of the usual keys hold tags, CRF742 if any other key
        does.
    """
    ignored = {key.lower() for key in settings.ignore}
    places: dict[str, str] = {}  # where each key occurs first
    values: defaultdict[str, Counter[str]] = defaultdict(Counter)  # of each key
    # The whole file is read, since any sentence may be the first with a key
    for sentence in _sentences(source):
        for word in sentence or ():
            for key, value in word.misc.items():
                if key.lower() not in ignored:
                    places.setdefault(key, word.place)
                    values[key][value] += 1
    if settings.label_column is not None:
        if settings.label_column not in places:
            raise ValueError(
                Errors.CRF868.format(
                    option="label-column",
                    value=settings.label_column,
                    known=known_names(filter(None, places), settings.label_column),
                )
            )
        return settings.label_column
    tag_keys = [key for key in places if _holds_tags(key.lower(), values[key])]
    usual_keys = [key for key in tag_keys if key.lower() in _ENTITY_KEYS]
    for key in tag_keys:
        if key not in usual_keys:
            raise ValueError(Errors.CRF742.format(place=places[key], key=key))
    if len(usual_keys) > 1:
        usual_keys.sort(key=lambda key: key == _BARE)  # the message suggests the first key as an option
        names = " and ".join(repr(key) if key else "tags without a key" for key in usual_keys)
        raise ValueError(Errors.CRF714.format(place=places[usual_keys[0]], keys=names, last=usual_keys[0]))
    return usual_keys[0] if usual_keys else None


def _holds_tags(key: str, values: Counter[str]) -> bool:
    """Whether a key of the last column, in lower case, holds annotation of entities. `values` counts how often each of its values
    occurs."""
    if key == _SPANS or key in _SURE_KEYS:
        return True
    is_usual = key in _ENTITY_KEYS
    labels = [value for value in values if value not in ("O", "-")]
    n_tags = sum(n for value, n in values.items() if is_tag(value))
    # Tags may be spelled otherwise than B-PER, but then all in the same way
    spelling, alike = find_spelling(labels)
    is_spelled = len(alike) == len(labels) and (is_usual or has_pair(spelling, alike))
    # Half of the values of a usual key must be tags, or more than half of those of another key
    has_tags = 2 * n_tags >= values.total() + (0 if is_usual else 1)
    return has_tags or (spelling is not None and is_spelled)


def _tagged(source: Source, key: Optional[str]) -> Iterator[Optional[list[Word]]]:
    """The sentences of a source, with the entity tags that the last column has under a key. None ends a document."""
    for sentence in _sentences(source):
        if sentence is None or key is None:
            yield sentence
        else:
            yield [word._replace(ent=word.misc.get(key, "O")) for word in sentence]


def _sentences(source: Source) -> Iterator[Optional[list[Word]]]:
    """Yield the words of each sentence, and None at the end of each document."""
    words: list[Word] = []
    # Of the last contraction in the sentence: the number of its last word, and whether a space follows
    contraction_end = 0
    contraction_space = False
    text = ""  # of the sentence
    for place, line in source.lines():
        if is_blank(line) or line.startswith("#"):
            if words:
                yield _with_text(words, text, has_contraction=contraction_end > 0)
                text = ""
            match = _TEXT.match(line)
            if match is not None:
                text = match[1]
            if line.replace(" ", "").startswith("#newdoc"):
                yield None
            words = []
            contraction_end = 0
            continue
        cells = line.split("\t")
        if len(cells) != _WIDTH:
            raise ValueError(Errors.CRF703.format(place=place, got=len(cells), expected=f"{_WIDTH}, as CoNLL-U has,"))
        if _ID.fullmatch(cells[0]) is None:
            raise unreadable(place, f"'{cells[0]}' is not the number of a word")
        space = "SpaceAfter=No" not in cells[9].split("|")
        # A contraction, as 1-2 du for 1 de and 2 le: its words are kept, and it tells whether a space follows
        if "-" in cells[0]:
            contraction_end = int(cells[0].partition("-")[2])
            contraction_space = space
            continue
        # An empty node, which is no word of the text
        if "." in cells[0]:
            continue
        number = int(cells[0])
        if number != len(words) + 1:
            at = f"it is word {len(words) + 1} of its sentence but has the number {number}"
            raise unreadable(place, f"{at}: a line is missing")
        if number <= contraction_end:
            space = number == contraction_end and contraction_space
        if not cells[1].strip(" "):
            raise unreadable(place, "the word is empty")
        words.append(Word(place, cells, space, _misc_of(cells[9])))
    if words:
        yield _with_text(words, text, has_contraction=contraction_end > 0)


def _with_text(words: list[Word], text: str, *, has_contraction: bool) -> list[Word]:
    """The words of a sentence, the first one with its text, unless the text has a contraction in place of its words."""
    return words if has_contraction else [words[0]._replace(text=text), *words[1:]]


def _misc_of(cell: str) -> dict[str, str]:
    """The values in a cell of the last column (KEY=VALUE|KEY=VALUE), by key. Of values without a key the first tag is kept, or
    the last value if none is a tag."""
    misc: dict[str, str] = {}
    for part in cell.split("|"):
        key, equals, value = part.strip().partition("=")
        if equals:
            misc.setdefault(key, value)
        elif key != "_" and not is_tag(misc.get(_BARE, "")):
            misc[_BARE] = key  # which is the value: there is no =
    return misc


def _make_doc(
    words: list[Word], nlp: Language, tagging: Optional[Tagging], report: Report, knows_sentences: bool
) -> Doc:
    """Make the Doc of a sentence, with its lemmas, tags, morphology, heads, labels of dependencies and entities.

    tagging (Tagging): How the entity tags are spelled; None without entity tags.
    knows_sentences (bool): Whether to say that no other word begins a sentence, which heads say in any case.
    RAISES (ValueError): With the place, if a head is not a word of the sentence, or spaCy refuses the annotation.
    """

    def column(n: int) -> list[str]:
        return ["" if word.cells[n] == "_" else word.cells[n] for word in words]

    # Arguments of spaCy's Doc
    annotation: Settings = {"lemmas": column(2), "pos": column(3), "tags": column(4), "morphs": column(5)}
    if not any(annotation["tags"]):
        annotation["tags"] = annotation["pos"]
    heads = column(6)
    deps = column(7)
    # spaCy takes heads and labels together only
    if any(heads) and any(deps):
        annotation["heads"] = []
        for n, word in enumerate(words):
            head = word.cells[6]
            is_root = head in ("0", "_")
            # Python takes long to read numbers of many digits
            if not is_root and (not head.isdecimal() or len(head) > 9 or not 0 < int(head) <= len(words)):
                n_words = counted(len(words), "word")
                raise unreadable(word.place, f"its head '{head}' is not a word of its sentence, which has {n_words}")
            annotation["heads"].append(n if is_root else int(head) - 1)  # to spaCy, a root is its own head
        annotation["deps"] = ["ROOT" if dep.lower() == "root" else dep for dep in deps]
    elif knows_sentences:
        annotation["sent_starts"] = [n == 0 for n in range(len(words))]
    # Without empty columns; the only head may be 0
    annotation = {name: values for name, values in annotation.items() if any(values) or name == "heads"}
    if tagging is not None:
        annotation["ents"] = in_bio(words, tagging, report)
    forms = [word.cells[1] for word in words]
    try:
        doc = Doc(nlp.vocab, words=forms, spaces=[word.space for word in words], **annotation)
    except (ValueError, KeyError) as error:
        raise unreadable(words[0].place, f"spaCy says: {error}") from None
    text = split_words(words[0].text)
    if text and text != split_words(doc.text):
        report.other_texts.append(words[0].place)
    return doc
