"""Reads the features of words and texts by the templates of a model, and sums their weights."""

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import chain, count, groupby, product
from typing import Any, NamedTuple, Optional

import numpy as np

from .content import Array, LiteError, numbers

# Between the values of a feature; around a word in its n-grams
JOINT = "\x7f"
BEFORE = "\ue000"
BEHIND = "\ue001"
_UNMARKED = "\uffff"  # in place of these characters inside of a word
ABSENT = "\x00\x00"  # value of an attribute that a token does not have
Text = Sequence[Any]  # words; or rows of columns, of which one is the word
_MOST_BYTES = 1 << 24  # of the sums of words that are kept
_MOST_TAGS = 1000  # of which pairs have weights
_HEAVIEST = 1e100  # of weights, and of the scale that multiplies them
_FARTHEST = 1000  # tokens between a token and those that its features read

# --------------------------------------------------------------------------------------------------- attributes of words


def _shape(word: str) -> str:
    """spaCy's shape: "Xxxx-dd", with at most four equal characters in a row."""
    if len(word) >= 100:  # as in spaCy
        return "LONG"
    shape = ""
    for character in word:
        if character.isalpha():
            kind = "X" if character.isupper() else "x"
        else:
            kind = "d" if character.isdigit() else character
        if not shape.endswith(4 * kind):
            shape += kind
    return shape


def _short_shape(word: str) -> str:
    """The shape with one character for each run of equal ones: "Xx-d"."""
    return "".join(kind for kind, _ in groupby(_shape(word)))


def _ngrams(word: str, size: int) -> list[str]:
    """Runs of characters of the word with its marks, each once: at most 12, half from its beginning and half from its end."""
    # No character of the word is like a mark
    unmarked = word.lower().replace(BEFORE, _UNMARKED).replace(BEHIND, _UNMARKED)
    marked = f"{BEFORE}{unmarked}{BEHIND}"
    runs = [marked[n : n + size] for n in range(len(marked) - size + 1)]
    if len(runs) > 12:
        runs = runs[:6] + runs[-6:]
    return [*dict.fromkeys(runs)]


def _like_num(word: str, words: set[str], endings: tuple[str, ...]) -> bool:
    """spaCy's `like_num`, with the numerals and the endings of ordinals of a language."""
    if word.startswith(("+", "-", "±", "~")):
        word = word[1:]
    word = word.replace(",", "").replace(".", "")
    above, _, below = word.partition("/")
    lower = word.lower()
    is_fraction = above.isdigit() and below.isdigit()
    is_ordinal = lower.endswith(endings) and lower[:-2].isdigit()
    return word.isdigit() or is_fraction or lower in words or is_ordinal


_EMAIL = re.compile(r"([a-zA-Z0-9_.+-]+@[a-zA-Z0-9-]+\.[a-zA-Z0-9-.]+)")
_DIGIT = re.compile(r"\d")
_KINDS_OF_WORDS = ("alpha", "ascii", "digit", "lower", "space", "title", "upper")

FLAGS: dict[str, Callable[[str], bool]] = {
    **{f"is_{kind}": getattr(str, f"is{kind}") for kind in _KINDS_OF_WORDS},
    "is_punct": lambda word: all(unicodedata.category(c).startswith("P") for c in word),
    "is_currency": lambda word: all(unicodedata.category(c) == "Sc" for c in word),
    "is_bracket": {*"()[]{}<>"}.__contains__,
    "is_quote": {*"\"'`«»‘’‚‛“”„‟‹›❮❯", "''", "``"}.__contains__,
    "is_left_punct": {*"([{<\"'«‘‚‛“„‟‹❮", "``"}.__contains__,
    "is_right_punct": {*")]}>\"'»’”›❯", "''"}.__contains__,
    "like_email": lambda word: _EMAIL.match(word) is not None,
    "has_hyphen": lambda word: "-" in word,
    "has_digit": lambda word: any(map(str.isdigit, word)),
}
STRINGS: dict[str, Callable[[str], Any]] = {
    "bias": lambda word: "1",
    "orth": str,
    "lower": str.lower,
    "shape": _shape,
    "prefix": lambda word: word[:1],
    "suffix": lambda word: word[-3:],
    "length": lambda word: str(len(word)),
    "capitals": lambda word: str(sum(map(str.isupper, word))),
    "folded": lambda word: _DIGIT.sub("0", word.lower()),
    "short_shape": _short_shape,
    **{f"prefix{n}": lambda word, n=n: word[:n] if len(word) >= n else ABSENT for n in range(1, 6)},
    **{f"suffix{n}": lambda word, n=n: word[-n:] if len(word) >= n else ABSENT for n in range(1, 11)},
}
NGRAMS = {f"ngrams{n}": partial(_ngrams, size=n) for n in range(2, 6)}


def hash_text(text: str) -> int:
    """spaCy's hash of a string: MurmurHash64A with seed 1."""
    data = text.encode("utf8")
    factor = 0xC6A4A7935BD1E995
    bits = (1 << 64) - 1
    n_whole = len(data) & ~7  # bytes in whole words of eight
    hashed = 1 ^ (len(data) * factor & bits)
    for start in range(0, n_whole, 8):
        k = int.from_bytes(data[start : start + 8], "little") * factor & bits
        k = (k ^ k >> 47) * factor & bits
        hashed = (hashed ^ k) * factor & bits
    if n_whole < len(data):
        hashed = (hashed ^ int.from_bytes(data[n_whole:], "little")) * factor & bits
    hashed = (hashed ^ hashed >> 47) * factor & bits
    return hashed ^ hashed >> 47


class _Clusters:
    """A table of the clusters of words, which are paths in a binary tree, such as "0110"."""

    def __init__(self, content: dict[str, Any]):
        self._folds_digits: bool = content["digits"]
        self._paths: list[str] = content["paths"]
        hashes = content["words"]
        # Hexadecimal in JSON, numbers in .npz
        hashes = [int(word, 16) for word in hashes] if isinstance(hashes, list) else hashes.tolist()
        path_numbers = numbers(content["numbers"], np.int64, (len(hashes),), least=0, most=len(self._paths) - 1)
        self._path_numbers = dict(zip(hashes, path_numbers.tolist()))

    def path(self, word: str, width: Optional[int]) -> str:
        """The first `width` characters of the path of a word, which is looked up as it is written, then in lower case."""
        if self._folds_digits:
            word = _DIGIT.sub("0", word)
        number = self._path_numbers.get(hash_text(word))
        if number is None:
            number = self._path_numbers.get(hash_text(word.lower()))
        return ABSENT if number is None else self._paths[number][:width]


def make_getters(content: dict[str, Any]) -> dict[str, Callable[[str], Any]]:
    """The functions that read attributes from a word, by the name of the attribute.

    content (dict): The lists of a component that attributes need: clusters, stop words and numerals.
    RETURNS (dict): Functions that return one text; those of n-grams return several.
    """
    number_words = set(content["number_words"])
    number_endings = tuple(content["number_endings"])
    stop_words = set(content["stop_words"])
    flags = {**FLAGS, "like_num": partial(_like_num, words=number_words, endings=number_endings)}
    flags["is_stop"] = lambda word: word.lower() in stop_words
    getters = {**STRINGS, **NGRAMS}
    for name, flag in flags.items():
        getters[name] = lambda word, flag=flag: "1" if flag(word) else "0"
        getters[f"if:{name}"] = lambda word, flag=flag: "1" if flag(word) else ABSENT
    for name, table in content["clusters"].items():
        clusters = _Clusters(table)
        of_table = f":{name}" if name else ""
        for width in (None, 4, 6, 8, 10, 20):
            getters[f"cluster{width or ''}{of_table}"] = partial(clusters.path, width=width)
    return getters


# ------------------------------------------------------------------------------------------------------- lists of phrases

_SPELLINGS = {"IO": "IIII", "BIO": "BBII", "IOB1": "IIII", "BILUO": "UBIL"}  # of a single token; first, others, last


def spell_tags(scheme: str, label: str, length: int) -> list[str]:
    """The tags of a span of `length` tokens; letters alone for the label ""."""
    single, first, inside, last = _SPELLINGS[scheme]
    letters = single if length == 1 else first + inside * (length - 2) + last
    return [f"{letter}-{label}" if label else letter for letter in letters]


class _Phrases:
    """A list of phrases, a gazetteer: which tokens its phrases cover, and which labels spans have in it.

    content (dict): The `entries`, pairs of words and label, and the `attribute` by which words are compared.
    """

    def __init__(self, content: dict[str, Any]):
        self._spell = STRINGS[content["attribute"]]
        self._labels: dict[tuple[str, ...], list[str]] = {}  # by phrase
        self._beginnings: set[tuple[str, ...]] = set()
        for words, label in content["entries"]:
            phrase = tuple(map(self._spell, words))
            self._labels.setdefault(phrase, []).append(label)
            self._beginnings.update(phrase[:length] for length in range(1, len(phrase) + 1))

    def labels_of(self, words: Sequence[str]) -> Sequence[str]:
        """The labels of these words as a phrase, "yes" for entries without one; none if they are no phrase."""
        labels = self._labels.get(tuple(map(self._spell, words)), ())
        return [label or "yes" for label in labels]

    def positions(self, words: list[str]) -> list[str]:
        """ "B", "I", "L" or "U" and the label for each word. Of overlapping phrases the longest counts, of equals the first."""
        spelled = tuple(map(self._spell, words))
        matches = []
        for begin in range(len(spelled)):
            end = begin + 1
            while end <= len(spelled) and spelled[begin:end] in self._beginnings:
                if spelled[begin:end] in self._labels:
                    matches.append((begin - end, begin, end))  # sorts the longest match first
                end += 1
        values = [ABSENT] * len(words)
        for _, begin, end in sorted(matches):
            # A longer match that overlaps covers the first or the last token
            if values[begin] == values[end - 1] == ABSENT:
                label = self._labels[spelled[begin:end]][0]
                values[begin:end] = spell_tags("BILUO", label, end - begin)
        return values


# ---------------------------------------------------------------------------------------------------------------- weights


class _Template(NamedTuple):
    """A template, and the rows of its features by their values."""

    name: str
    parts: tuple[tuple, ...]  # attribute and offset of each part; of spans: kind, attribute and offset
    rows: dict[str, int]
    once: bool  # whether a segment has each of its features once, however often it contains it

    @property
    def attributes(self) -> list[str]:
        """The attribute of each part; "" for a length."""
        return [attribute for *_, attribute, _ in self.parts]

    @property
    def offsets(self) -> set[int]:
        """The distances from the token to those that the parts read."""
        return {offset for *_, offset in self.parts}


class _Table:
    """Weights of features: row f has ``weights[starts[f]:starts[f + 1]]`` in these ``columns``.

    Templates that read a single word have sums of weights that are kept, by the number of the word and by offset.

    content (dict): The table.
    width (int): The number of columns, C.
    text_attributes (set[str]): Attributes that are not known from the word alone.
    keeps_sums (bool): Whether sums are kept.
    """

    def __init__(self, content: dict[str, Any], width: int, text_attributes: set[str], keeps_sums: bool):
        self.width = width
        self.templates: list[_Template] = []
        n_rows = 0
        for template in content["templates"]:
            parts = tuple(map(tuple, template["parts"]))
            rows = dict(zip(template["keys"], count(n_rows)))
            self.templates.append(_Template(template["name"], parts, rows, template.get("once", False)))
            n_rows += len(template["keys"])
        counts = numbers(content["counts"], np.int64, (n_rows,), least=0, most=len(content["columns"]))
        self.starts = np.append(0, np.cumsum(counts))
        self.columns = numbers(content["columns"], np.int64, (int(self.starts[-1]),), least=0, most=width - 1)
        weights = numbers(content["weights"], shape=self.columns.shape, least=-_HEAVIEST, most=_HEAVIEST)
        self.weights = weights * numbers([content.get("scale", 1.0)], least=0, most=_HEAVIEST)
        self.word_templates: list[_Template] = []
        self.text_templates: list[_Template] = []
        for template in self.templates:
            reads_a_word = len(template.offsets) == 1 and text_attributes.isdisjoint(template.attributes)
            if keeps_sums and reads_a_word:
                self.word_templates.append(template)
            else:
                self.text_templates.append(template)
        self.offsets = sorted(set().union(*(template.offsets for template in self.word_templates)))
        self.forget_words()

    def forget_words(self) -> None:
        """Forget the sums of all words."""
        self.word_sums = np.zeros((0, len(self.offsets), self.width))  # [words, offsets, C], some without a word yet

    def total(self, cells: Any, rows: Any, n_cells: int) -> Array:
        """The sum of the weights of features in each of some cells.

        cells (int[N]), rows (int[N]): The cell and the row of each feature.
        RETURNS (float64[n_cells, C])
        """
        row = np.asarray(rows, dtype=np.int64)
        begins = self.starts[row]
        counts = self.starts[row + 1] - begins
        # The numbers of the weights of all features: begins[0], begins[0] + 1, …, begins[1], …
        shifts = begins - np.append(0, np.cumsum(counts)[:-1])
        weight_numbers = np.repeat(shifts, counts) + np.arange(counts.sum())
        first_cells = np.asarray(cells, dtype=np.int64) * self.width
        places = np.repeat(first_cells, counts) + self.columns[weight_numbers]
        sums = np.bincount(places, self.weights[weight_numbers], minlength=n_cells * self.width)
        # Without features, `bincount` gives whole numbers
        return sums.astype(np.float64).reshape(n_cells, self.width)

    def add_words(self, words: list[dict[str, list[str]]], first: int) -> None:
        """Add the sums of words.

        words (list[dict]): For each word its values of attributes, by the names of attributes.
        first (int): The number of the first word.
        """
        cells = []  # of pairs of a word and an offset
        rows = []
        for template in self.word_templates:
            place = self.offsets.index(template.parts[0][1])
            attributes = template.attributes
            for n, values in enumerate(words):
                keys = values[attributes[0]] if len(attributes) == 1 else _joined(map(values.__getitem__, attributes))
                for key in keys:
                    row = template.rows.get(key)
                    if row is not None:
                        cells.append(n * len(self.offsets) + place)
                        rows.append(row)
        end = first + len(words)
        if end > len(self.word_sums):
            more = np.zeros((end + len(words) - len(self.word_sums), *self.word_sums.shape[1:]))
            self.word_sums = np.concatenate([self.word_sums, more])
        new = self.total(cells, rows, len(words) * len(self.offsets))
        self.word_sums[first:end] = new.reshape(len(words), *self.word_sums.shape[1:])


def _joined(values_of_parts: Iterable[Sequence[str]]) -> Iterable[str]:
    """The keys of features: each combination of a value of each part."""
    return map(JOINT.join, product(*values_of_parts))


# --------------------------------------------------------------------------------------------------------------- features


def are_words(text: Text) -> bool:
    """Whether a text is a list of words."""
    return isinstance(text, Collection) and all(isinstance(word, str) for word in text)


def check_rows(text: Text, columns: list[str]) -> None:
    """RAISES (LiteError): If a text has something else than rows, or a row has too few columns, or others than texts."""
    if not isinstance(text, Collection):
        raise LiteError(f"A text is a list of words, or of rows; this is {text!r:.40}.")
    has_words = len(columns) == 1 and isinstance(next(iter(text), None), str)
    for n, row in enumerate(text, start=1):
        is_row = isinstance(row, Collection) and all(isinstance(value, str) for value in [*row][: len(columns)])
        got = None
        if isinstance(row, str):
            got = None if has_words else "a word"
        elif has_words or not is_row:
            got = f"{row!r:.40}"
        elif len(row) < len(columns):
            got = f"{len(row)} columns"
        if got is not None:
            raise LiteError(f"Row {n} is {got}, and the model reads the columns {', '.join(columns)}.")


class ReadTexts(NamedTuple):
    """A batch of texts: columns of values with some positions before and behind each text, and where the tokens are."""

    texts: list[list[str]]  # the words of each
    values: dict[str, list[str]]  # by attribute of tokens: [P]
    numbers: Array  # [P] numbers of the words
    positions: Array  # [T]
    bounds: Array  # [B + 1]


class Features:
    """Reads texts, and sums the weights of their features by table.

    content (dict): The lists of the component, and the `tables` and `padding` of one of its readers.
    n_states (int): The number of tags, of segments that of O and the labels.
    """

    def __init__(self, content: dict[str, Any], n_states: int):
        self.columns: list[str] = content["columns"]
        self._word_column = self.columns.index("orth")
        self._phrases = {f"in:{name}": _Phrases(listed) for name, listed in content["gazetteers"].items()}
        self.getters = make_getters(content)
        text_attributes = {*self._phrases, *self.columns} - {"orth"}
        self.tables: dict[str, _Table] = {}
        for name, table in content["tables"].items():
            if name == "transitions" and n_states > _MOST_TAGS:
                raise LiteError(f"it weighs pairs of {n_states} tags, more than {_MOST_TAGS}. Copy the file again.")
            width = n_states**2 if name == "transitions" else n_states
            keeps_sums = name not in ("transitions", "spans")
            self.tables[name] = _Table(table, width, text_attributes, keeps_sums)
        self._reach = self._check_templates(text_attributes)
        word_attributes = set()  # of templates whose sums are kept
        read_attributes = {"orth"}  # of templates that are read at each token
        for table in self.tables.values():
            for template in table.word_templates:
                word_attributes.update(template.attributes)
            for template in table.templates:
                if template.once or template in table.text_templates:
                    read_attributes.update(template.attributes)
        self._word_attributes = [*word_attributes]
        self._read_attributes = [*read_attributes - text_attributes - {""}]
        self._read_phrases = [name for name in self._phrases if name in read_attributes]
        n_sums = sum(len(table.offsets) * table.width for table in self.tables.values())  # of a word
        if 8 * n_sums * 2 * self._reach > _MOST_BYTES:
            raise LiteError(
                f"its templates read {self._reach} tokens around each for {n_sums} sums. Copy the file again."
            )
        self._most_words = max(1000, _MOST_BYTES // max(8, 8 * n_sums))
        self._outside = self._padding(content["padding"])
        self._forget_words()

    def _check_templates(self, text_attributes: set[str]) -> int:
        """RETURNS (int): The distance of the farthest token that templates read. RAISES (LiteError): For unknown attributes."""
        known = {*self.getters, *text_attributes, ""}
        farthest = 0
        for template in chain.from_iterable(table.templates for table in self.tables.values()):
            if not all(type(offset) is int and abs(offset) <= _FARTHEST for offset in template.offsets):
                reads = f"the template '{template.name}' reads tokens at {template.offsets}"
                raise LiteError(f"{reads}. Copy the file again.")
            for attribute in template.attributes:
                if attribute not in known:
                    reads = f"the template '{template.name}' reads '{attribute}', which this reader does not know"
                    raise LiteError(f"{reads}. Take that of the spacy_crf that wrote it.")
            farthest = max(farthest, *map(abs, template.offsets))
        return farthest

    def _padding(self, padding: Any) -> list[str]:
        """Values of the positions before a text, the nearest first, then of those behind it.

        padding (bool or dict): Whether these positions have values; or their nearest values, "before" and "behind".
        """
        if not padding:
            return [ABSENT] * (2 * self._reach)
        values = []
        for side, name in (("before", "BOS"), ("behind", "EOS")):
            nearest = padding[side][: self._reach] if isinstance(padding, dict) else []
            values += nearest
            values += [f"<{name}{n}>" for n in range(len(nearest) + 1, self._reach + 1)]
        return values

    # -------------------------------------------------------------------------------------------------------- words

    def _forget_words(self) -> None:
        """Forget all words. The first numbers of words are those of the positions outside a text."""
        self._number_of_word: dict[str, int] = {}
        self._values_of_words: dict[str, list[str]] = {name: [*self._outside] for name in self._read_attributes}
        outside = [{name: [value] for name in self._word_attributes} for value in self._outside]
        for table in self.tables.values():
            table.forget_words()
            table.add_words(outside, 0)

    def _add_words(self, words: list[str]) -> None:
        """Read the attributes of new words, and keep the sums of their weights."""
        first = len(self._values_of_words["orth"])
        for name, values in self._values_of_words.items():
            values += map(self.getters[name], words)
        values_of_words = []
        for word in words:
            values_of_word = {}
            for name in self._word_attributes:
                value = self.getters[name](word)
                values_of_word[name] = value if isinstance(value, list) else [value]  # a word has several n-grams
            values_of_words.append(values_of_word)
        for table in self.tables.values():
            if table.word_templates:
                table.add_words(values_of_words, first)
        self._number_of_word.update(zip(words, range(first, first + len(words))))

    # -------------------------------------------------------------------------------------------------------- texts

    def words_of(self, text: Text) -> list[str]:
        """The words of a text. RAISES (LiteError): For rows with too few columns."""
        if isinstance(text, str):
            raise LiteError("A text is a list of words, or of rows; this is one string. Split it into words first.")
        if self.columns == ["orth"] and are_words(text):
            return list(text)
        check_rows(text, self.columns)
        return [row[self._word_column] for row in text]

    def read(self, texts: Sequence[Text]) -> ReadTexts:
        """Read the attributes of texts. RAISES (LiteError): For rows with too few columns."""
        words = [self.words_of(text) for text in texts]
        if len(self._number_of_word) > self._most_words:
            self._forget_words()
        number_of_word = self._number_of_word
        each_word = dict.fromkeys(chain.from_iterable(words))
        self._add_words([word for word in each_word if word not in number_of_word])
        reach = self._reach
        # The positions outside a text have the first numbers, the nearest first
        numbers_before = [*range(reach)][::-1]
        numbers_behind = [*range(reach, 2 * reach)]
        word_numbers = []
        for text in words:
            word_numbers += numbers_before
            word_numbers += map(number_of_word.__getitem__, text)
            word_numbers += numbers_behind
        lengths = np.array([*map(len, words)], dtype=np.int64)
        bounds = np.append(0, np.cumsum(lengths))
        text_of = np.repeat(np.arange(len(words)), lengths)  # [T]
        positions = np.arange(bounds[-1]) + reach * (2 * text_of + 1)
        values = {}
        for name, values_of_words in self._values_of_words.items():
            values[name] = [values_of_words[n] for n in word_numbers]
        for place, name in enumerate(self.columns):
            if place != self._word_column:
                values[name] = self._padded([row[place] for row in text] for text in texts)
        for name in self._read_phrases:
            values[name] = self._padded(map(self._phrases[name].positions, words))
        return ReadTexts(words, values, np.array(word_numbers, dtype=np.int64), positions, bounds)

    def _padded(self, values_of_texts: Iterable[list[str]]) -> list[str]:
        """The values of texts, each with the values of the positions before and behind it."""
        before = self._outside[: self._reach][::-1]
        behind = self._outside[self._reach :]
        padded = []
        for values in values_of_texts:
            padded += [*before, *values, *behind]
        return padded

    def _rows(self, template: _Template, texts: ReadTexts) -> Array:
        """The row of a template's feature at each token, -1 for unknown features: int64[T]."""
        reach = self._reach
        n_positions = len(texts.numbers)
        # The values of each part at all positions, moved by the part's offset
        moved = []
        for attribute, offset in template.parts:
            moved.append(texts.values[attribute][reach + offset : n_positions - reach + offset])
        keys = moved[0] if len(moved) == 1 else map(JOINT.join, zip(*moved))
        get = template.rows.get
        rows = np.array([get(key, -1) for key in keys], dtype=np.int64)
        return rows[texts.positions - reach]

    def scores(self, name: str, texts: ReadTexts) -> Array:
        """Sums of the weights of one table at each token: float64[T, C]."""
        table = self.tables[name]
        n_tokens = len(texts.positions)
        row_lists = [self._rows(template, texts) for template in table.text_templates]
        rows = np.array(row_lists, dtype=np.int64).reshape(len(row_lists), n_tokens)
        is_known = rows >= 0
        _, tokens = np.nonzero(is_known)
        scores = table.total(tokens, rows[is_known], n_tokens)
        for place, offset in enumerate(table.offsets):
            scores += table.word_sums[texts.numbers[texts.positions + offset], place]
        return scores

    def add_spans(self, texts: ReadTexts, scores: Array) -> None:
        """Add the weights of the features of whole spans to the scores of segments (float64[T, K, C])."""
        n_tokens, longest = scores.shape[:2]
        if "spans" in self.tables:
            begin, length = np.nonzero(fits_in_text(texts.bounds, longest))
            first = texts.positions[begin]
            spans = [*zip(first.tolist(), (first + length + 1).tolist())]
            span_cells = (begin * longest + length).tolist()
            table = self.tables["spans"]
            cells = []
            rows = []
            for template in table.templates:
                values_of_parts = [self._values_of_spans(part, spans, texts) for part in template.parts]
                for cell, *values in zip(span_cells, *values_of_parts):
                    for key in _joined(values):
                        row = template.rows.get(key)
                        if row is not None:
                            cells.append(cell)
                            rows.append(row)
            scores += table.total(cells, rows, n_tokens * longest).reshape(scores.shape)
        if "tokens" in self.tables:
            for template in self.tables["tokens"].word_templates:
                if template.once:
                    self._count_once(template, texts, scores)

    def _count_once(self, template: _Template, texts: ReadTexts, scores: Array) -> None:
        """Subtract what segments (float64[T, K, C]) that contain a feature of a template several times have got too much."""
        longest = scores.shape[1]
        latest: dict[int, int] = {}  # by row, the last token with the feature so far
        for token, row in enumerate(self._rows(template, texts).tolist()):
            if row >= 0 and row in latest:
                # Segments with both tokens have counted the feature twice
                weights = self.tables["tokens"].total([0], [row], 1)
                for begin in range(max(0, token - longest + 1), latest[row] + 1):
                    scores[begin, token - begin :] -= weights
            latest[row] = token

    def _values_of_spans(
        self, part: tuple[str, str, int], spans: list[tuple[int, int]], texts: ReadTexts
    ) -> list[Sequence[str]]:
        """The values of a part of a template at each span.

        part (tuple): Kind, attribute and offset.
        spans (list[tuple[int, int]]): First position and end of each span.
        """
        kind, name, offset = part
        if kind == "length":
            return [(str(end - begin),) for begin, end in spans]
        if kind == "in":
            words = texts.values["orth"]
            return [self._phrases[name].labels_of(words[begin:end]) for begin, end in spans]
        values = texts.values[name]
        if kind == "whole":
            return [(" ".join(values[begin:end]),) for begin, end in spans]
        if kind == "first":
            return [(values[begin + offset],) for begin, _ in spans]
        return [(values[end - 1 + offset],) for _, end in spans]


def fits_in_text(bounds: Array, longest: int) -> Array:
    """Whether the segments that begin at each token with 1, 2 … tokens end in the same text: bool[T, K].

    bounds (int64[B + 1]): Where texts begin and end.
    """
    text_end = np.repeat(bounds[1:], np.diff(bounds))  # [T]
    last = np.add.outer(np.arange(len(text_end)), np.arange(longest))
    return last < text_end[:, np.newaxis]
