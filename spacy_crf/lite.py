"""Labels words by a model that `spacy crf export` wrote, with NumPy alone: without spaCy, thinc and numba.

    model = lite.load("addresses.npz")          # from spacy_crf import lite; or, beside the export, import lite
    model.tag(["12", "Elm", "Street"])          # a tag for each word
    model.entities(["12", "Elm", "Street"])     # spans with their exact probabilities

The file imports nothing else, so it can be copied into other projects. The format of exports is described in docs/lite_format.md.
Letters in shapes: T tokens, B texts, S states, C columns of a table (tags, or pairs of tags), K longest segment.
"""

import gzip
import json
import re
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from io import BytesIO
from itertools import chain, count, groupby, islice, pairwise, product
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import numpy as np

FORMAT = "spacy_crf.lite"
VERSION = 3
# between the values of a feature; around a word in its n-grams
JOINT = "\x7f"
BEFORE = "\ue000"
BEHIND = "\ue001"
_ABSENT = "\x00\x00"  # value of an attribute that a token does not have
# Texts that are labelled together, bytes of the cached scores of words, and scores of steps in memory
_AT_ONCE = 512
_MOST_BYTES = 1 << 26
_MOST_STEPS = 1 << 22
_NO_EXPORT = (KeyError, IndexError, TypeError, ValueError, AttributeError)  # for content of another form
_FARTHEST = 1000  # tokens between a token and those that its features read
_LEAST = float(np.finfo(np.float64).min)
_KINDS_OF_WORDS = ("alpha", "ascii", "digit", "lower", "space", "title", "upper")
_KINDS = {"chain": ("words", "tag"), "segments": ("segments", "entities"), "text": ("texts", "classify")}
Text = Sequence[Any]  # words; or rows of columns, of which one is the word
Array = Any
_Spans = tuple[Array, Array, Array, Array]  # first tokens, ends, labels (int64[N]) and probabilities, by first token


class LiteError(ValueError):
    """A file that is no export, or rows that the model can't read; the message says what to do."""


class Entity(NamedTuple):
    """A labelled span: tokens ``start`` up to, not including, ``end``."""

    start: int
    end: int
    label: str
    prob: float


Labelled = tuple[list[str], list[Entity]]  # tags and entities


def load(path: Union[str, Path]) -> "Model":
    """Load an export, .npz or JSON (which may be gzipped). RAISES (LiteError): If the file is no whole export of this version."""
    try:
        return Model(_read(Path(path)))
    except LiteError as error:
        raise LiteError(f"{path}: {error}") from None
    except (EOFError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, *_NO_EXPORT) as error:
        raise LiteError(f"{path} is cut off or no export ({error!r}). Copy it again, or export it again.") from error


def _read(path: Path) -> dict[str, Any]:
    """The content of an export, whose arrays may be lists."""
    data = path.read_bytes()
    if data[:2] != b"PK":
        return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    with np.load(BytesIO(data), allow_pickle=False) as arrays:
        content = json.loads(arrays["content"].tobytes())
        for name in {*arrays.files} - {"content"}:
            *folders, last = name.split("/")
            place = content
            for folder in folders:
                place = place[int(folder) if isinstance(place, list) else folder]
            place[last] = arrays[name]
    return content


def _numbers(values: Any, dtype: Any = np.float64, shape: Optional[tuple] = None, *, least: float = -np.inf) -> Array:
    """Check the numbers of an export, an array or a list. In lists, null is -inf.

    least (float): The least value; only without one may numbers be -inf.
    RAISES (LiteError): For other values, or another shape.
    """
    array: Any = values
    if isinstance(values, list):
        array = np.asarray(values, dtype=object)
    if array.dtype == object:
        array = np.where(np.equal(array, np.array(None)), -np.inf, array)
    array = array.astype(dtype)
    if np.isnan(array).any() or (array == np.inf).any() or (array.size and array.min() < least):
        raise LiteError("a number is NaN, infinite or out of range. Export the model again.")
    if shape is not None and array.shape != shape:
        raise LiteError(f"an array has the shape {array.shape} instead of {shape}. Copy the file again.")
    return array


def _shape(word: str) -> str:
    """spaCy's shape: "Xxxx-dd", with at most four equal characters in a row."""
    if len(word) >= 100:  # as in spaCy
        return "LONG"
    kinds = (("X" if c.isupper() else "x") if c.isalpha() else "d" if c.isdigit() else c for c in word)
    return "".join("".join(run)[:4] for _, run in groupby(kinds))


def _ngrams(word: str, size: int) -> list[str]:
    """Runs of characters of the word with its marks, each once: at most 12, half from its beginning and half from its end."""
    marked = f"{BEFORE}{word.lower()}{BEHIND}"
    runs = [marked[n : n + size] for n in range(len(marked) - size + 1)]
    return [*dict.fromkeys(runs if len(runs) <= 12 else runs[:6] + runs[-6:])]


_EMAIL = re.compile(r"([a-zA-Z0-9_.+-]+@[a-zA-Z0-9-]+\.[a-zA-Z0-9-.]+)")
_DIGIT = re.compile(r"\d")

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
    "short_shape": lambda word: "".join(kind for kind, _ in groupby(_shape(word))),
    **{f"prefix{n}": lambda word, n=n: word[:n] if len(word) >= n else _ABSENT for n in range(1, 6)},
    **{f"suffix{n}": lambda word, n=n: word[-n:] if len(word) >= n else _ABSENT for n in range(1, 11)},
}
NGRAMS = {f"ngrams{n}": lambda word, n=n: _ngrams(word, n) for n in range(2, 6)}


def _like_num(word: str, words: set[str], endings: tuple[str, ...]) -> bool:
    """spaCy's `like_num`, with the numerals and the endings of ordinals of a language."""
    if word.startswith(("+", "-", "±", "~")):
        word = word[1:]
    word = word.replace(",", "").replace(".", "")
    above, _, below = word.partition("/")
    lower = word.lower()
    is_number = word.isdigit() or (above.isdigit() and below.isdigit()) or lower in words
    return is_number or (lower.endswith(endings) and lower[:-2].isdigit())


def hash_text(text: str) -> int:
    """spaCy's hash of a string: MurmurHash64A with seed 1."""
    data = text.encode("utf8")
    factor = 0xC6A4A7935BD1E995
    bits = (1 << 64) - 1
    hashed = 1 ^ (len(data) * factor & bits)
    for at in range(0, len(data) & ~7, 8):
        k = int.from_bytes(data[at : at + 8], "little") * factor & bits
        hashed = (hashed ^ ((k ^ k >> 47) * factor & bits)) * factor & bits
    if len(data) & 7:
        hashed = (hashed ^ int.from_bytes(data[len(data) & ~7 :], "little")) * factor & bits
    hashed = (hashed ^ hashed >> 47) * factor & bits
    return hashed ^ hashed >> 47


def _cluster(word: str, table: dict[str, Any], numbers: dict[int, int], width: Optional[int]) -> str:
    """The path of the cluster of a word, which is looked up by its hash as it is written, then in lower case."""
    word = _DIGIT.sub("0", word) if table["digits"] else word
    number = numbers.get(hash_text(word), numbers.get(hash_text(word.lower())))
    return _ABSENT if number is None else table["paths"][number][:width]


_SPELLINGS = {"IO": "IIII", "BIO": "BBII", "IOB1": "IIII", "BILUO": "UBIL"}  # of a single token; first, others, last


def _spelled(scheme: str, label: str, length: int) -> list[str]:
    """The tags of a span of `length` tokens; letters alone for the label ""."""
    single, first, inside, last = _SPELLINGS[scheme]
    letters = single if length == 1 else first + inside * (length - 2) + last
    return [f"{letter}-{label}" if label else letter for letter in letters]


class _Phrases:
    """A list of phrases: the position of tokens in the longest phrase that covers them, and the labels of spans."""

    def __init__(self, content: dict[str, Any]):
        self.spell = STRINGS[content["attribute"]]
        self.labels: dict[tuple[str, ...], list[str]] = {}
        for words, label in content["entries"]:
            self.labels.setdefault(tuple(map(self.spell, words)), []).append(label)
        self._beginnings = {words[: n + 1] for words in self.labels for n in range(len(words))}

    def positions(self, text: list[str]) -> list[str]:
        """ "B", "I", "L" or "U" and the label for each token. Of overlapping phrases the longest counts, of equals the first."""
        spelled = [*map(self.spell, text)]
        matches = []
        for begin in range(len(spelled)):
            end = begin + 1
            while end <= len(spelled) and tuple(spelled[begin:end]) in self._beginnings:
                if tuple(spelled[begin:end]) in self.labels:
                    matches.append((begin - end, begin, end))  # sorts the longest match first
                end += 1
        values = [_ABSENT] * len(text)
        for _, begin, end in sorted(matches):
            # A longer match that overlaps covers the first or the last token
            if values[begin] == values[end - 1] == _ABSENT:
                label = self.labels[tuple(spelled[begin:end])][0]
                values[begin:end] = _spelled("BILUO", label, end - begin)
        return values


class _Template(NamedTuple):
    """A template, and the rows of its features by their values."""

    name: str
    parts: tuple[tuple, ...]  # attribute and offset of each part; of spans: kind, attribute and offset
    rows: dict[str, int]
    once: bool  # whether a segment has each of its features once, however often it contains it


class _Table:
    """Weights of features: row f has ``weights[starts[f]:starts[f + 1]]`` in these ``columns``."""

    def __init__(self, content: dict[str, Any], width: int):
        self.width = width
        self.templates = []
        n_rows = 0
        for template in content["templates"]:
            parts = tuple(map(tuple, template["parts"]))
            rows = dict(zip(template["keys"], count(n_rows)))
            self.templates.append(_Template(template["name"], parts, rows, template.get("once", False)))
            n_rows += len(template["keys"])
        self.starts = np.append(0, np.cumsum(_numbers(content["counts"], np.int64, (n_rows,), least=0)))
        self.columns = _numbers(content["columns"], np.int64, (int(self.starts[-1]),), least=0)
        self.weights = _numbers(content["weights"], shape=self.columns.shape, least=_LEAST) * content.get("scale", 1.0)
        if self.columns.max(initial=0) >= width:
            raise LiteError(f"a weight has the column {self.columns.max()} of {width}. Copy the file again.")

    def total(self, features: Any, n: int) -> Array:
        """Sums of the weights of features at each of n tokens: float64[n, C]. features (int[N, 2]): Token and row of each."""
        tokens, rows = np.asarray(features, dtype=np.int64).reshape(-1, 2).T
        begins = self.starts[rows]
        counts = self.starts[rows + 1] - begins
        # The numbers of the weights of all features: begins[0], begins[0] + 1, …, begins[1], …
        shifts = begins - np.append(0, np.cumsum(counts)[:-1])
        numbers = np.repeat(shifts, counts) + np.arange(counts.sum())
        cells = np.repeat(tokens, counts) * self.width + self.columns[numbers]
        # Without features, `bincount` gives whole numbers
        return 0.0 + np.bincount(cells, self.weights[numbers], minlength=n * self.width).reshape(n, self.width)


class _Texts(NamedTuple):
    """A batch of texts: columns of values with some positions before and behind each text, and where the tokens are."""

    values: dict[str, list[str]]  # by attribute of tokens: [P]
    words: Array  # [P] numbers of the words
    positions: Array  # [T]
    bounds: Array  # [B + 1]


class _Features:
    """Reads texts, and sums the weights of their features by table; sums of single words are kept by word and offset."""

    def __init__(self, content: dict[str, Any], n_states: int):
        self.columns: list[str] = content["columns"]
        self._word_column = self.columns.index("orth")
        self.phrases = {name: _Phrases(listed) for name, listed in content["gazetteers"].items()}
        self.getters = self._make_getters(content)
        self.tables: dict[str, _Table] = {}
        for name, table in content["tables"].items():
            width = n_states**2 if name == "transitions" else n_states
            self.tables[name] = _Table(table, width)
        # Attributes that are not known from the word alone
        of_texts = {f"in:{name}" for name in self.phrases}.union(self.columns) - {"orth"}
        # Templates that read one word have sums that are kept by word and offset; the others are read at each token
        self._of_words: dict[str, list[_Template]] = {name: [] for name in self.tables}
        self._others: dict[str, list[_Template]] = {name: [] for name in self.tables}
        alone = set()  # attributes of templates of words
        joined = {"orth"}  # attributes of other templates
        self.reach = 0  # distance of the farthest token that a template reads
        for name, table in self.tables.items():
            for template in table.templates:
                attributes = {a for *_, a, _ in template.parts} - {""}
                offsets = {o for *_, o in template.parts}
                if not all(type(o) is int and abs(o) <= _FARTHEST for o in offsets):
                    raise LiteError(f"the template '{template.name}' reads tokens at {offsets}. Copy the file again.")
                for attribute in attributes - self.getters.keys() - of_texts:
                    reads = f"the template '{template.name}' reads '{attribute}', which this lite.py does not know"
                    raise LiteError(f"{reads}. Take that of the spacy_crf that wrote it.")
                self.reach = max(self.reach, *map(abs, offsets))
                is_of_word = len(offsets) == 1 and not attributes & of_texts and name not in ("transitions", "spans")
                if is_of_word:
                    self._of_words[name].append(template)
                    alone |= attributes
                else:
                    self._others[name].append(template)
                if not is_of_word or template.once:
                    joined |= attributes
        self._alone = [*alone]
        self._joined = joined - of_texts
        self._places = [a for a in joined if a[:3] == "in:"]
        self._offsets = {}
        for name, templates in self._of_words.items():
            self._offsets[name] = sorted({template.parts[0][1] for template in templates})
        n_sums = sum(len(offsets) * self.tables[name].width for name, offsets in self._offsets.items())  # of a word
        self._most_words = max(1000, _MOST_BYTES // max(8, 8 * n_sums))
        self._outside = self._padding(content["padding"])
        self._start()

    def _make_getters(self, content: dict[str, Any]) -> dict[str, Callable[[str], Any]]:
        """Functions that read attributes from a word, by the name of the attribute."""
        number_words = set(content["number_words"])
        number_endings = tuple(content["number_endings"])
        flags = {**FLAGS, "like_num": partial(_like_num, words=number_words, endings=number_endings)}
        flags["is_stop"] = lambda word, stops=set(content["stop_words"]): word.lower() in stops
        getters = {**STRINGS, **NGRAMS}
        for name, flag in flags.items():
            getters[name] = lambda word, flag=flag: "1" if flag(word) else "0"
            getters[f"if:{name}"] = lambda word, flag=flag: "1" if flag(word) else _ABSENT
        for name, table in content["clusters"].items():
            words = table["words"]  # hexadecimal in JSON
            hashes = [int(word, 16) for word in words] if isinstance(words, list) else words.tolist()
            of_words = _numbers(table["numbers"], np.int64, (len(hashes),), least=0)
            if of_words.max(initial=-1) >= len(table["paths"]):
                raise LiteError(
                    f"a word has the cluster {of_words.max()} of {len(table['paths'])}. Copy the file again."
                )
            numbers = dict(zip(hashes, of_words.tolist()))
            for width in (None, 4, 6, 8, 10, 20):
                attribute = f"cluster{width or ''}{f':{name}' if name else ''}"
                getters[attribute] = partial(_cluster, table=table, numbers=numbers, width=width)
        return getters

    def _padding(self, padding: Any) -> list[str]:
        """Values of the positions before a text, the nearest first, then of those behind it."""
        texts = []
        for side, name in (("before", "BOS"), ("behind", "EOS")):
            given = padding[side][: self.reach] if isinstance(padding, dict) else []
            texts += [*given, *(f"<{name}{n}>" for n in range(len(given) + 1, self.reach + 1))]
        return texts if padding else [_ABSENT] * (2 * self.reach)

    def _start(self) -> None:
        """Forget all words. The first numbers are those of the positions outside a text."""
        self._known: dict[str, int] = {}
        self._values: dict[str, list[str]] = {name: [*self._outside] for name in self._joined}
        shapes = {name: (len(offsets), self.tables[name].width) for name, offsets in self._offsets.items()}
        self._sums = {name: np.zeros((len(self._outside), *shape)) for name, shape in shapes.items()}
        self._add_words([{name: [text] for name in self._alone} for text in self._outside], 0)

    def _learn(self, words: list[str]) -> None:
        """Read the attributes of new words."""
        first = len(self._values["orth"])
        getters = self.getters
        for name, values in self._values.items():
            values += map(getters[name], words)
        values_of_words = []
        for word in words:
            values_of_word = {}
            for name in self._alone:
                value = getters[name](word)
                values_of_word[name] = value if isinstance(value, list) else [value]  # a word has several n-grams
            values_of_words.append(values_of_word)
        self._add_words(values_of_words, first)
        self._known.update(zip(words, range(first, first + len(words))))

    def _add_words(self, words: list[dict[str, list[str]]], first: int) -> None:
        """Add the sums of words, whose numbers begin with `first`, by their values of attributes."""
        for name, offsets in self._offsets.items() if words else []:
            table = self.tables[name]
            sums = self._sums[name]
            features = []  # pairs of a cell, for a word and an offset, and a row of the table
            places = []
            for template in self._of_words[name]:
                attributes = [attribute for attribute, _ in template.parts]
                places.append((offsets.index(template.parts[0][1]), attributes, template.rows))
            for n, values in enumerate(words):
                for place, attributes, rows in places:
                    keys = map(JOINT.join, product(*map(values.__getitem__, attributes)))
                    features += [(n * len(offsets) + place, rows[key]) for key in keys if key in rows]
            if first + len(words) > len(sums):
                sums = self._sums[name] = np.concatenate([sums, np.zeros((first + 2 * len(words), *sums.shape[1:]))])
            new = table.total(features, len(words) * len(offsets))
            sums[first : first + len(words)] = new.reshape(len(words), *sums.shape[1:])

    def words_of(self, text: Text) -> list[str]:
        """The words of a text. RAISES (LiteError): For rows with too few columns."""
        if isinstance(text, str):
            raise LiteError("A text is a list of words, or of rows; this is one string. Split it into words first.")
        if self.columns == ["orth"] and all(isinstance(word, str) for word in text):
            return list(text)
        for n, row in enumerate(text, start=1):
            if isinstance(row, str) or len(row) < len(self.columns):
                got = "a word" if isinstance(row, str) else f"{len(row)} columns"
                raise LiteError(f"Row {n} is {got}, and the model reads the columns {', '.join(self.columns)}.")
        return [row[self._word_column] for row in text]

    def read(self, texts: list[Text]) -> _Texts:
        """Read the attributes of texts. RAISES (LiteError): For rows with too few columns."""
        words = [self.words_of(text) for text in texts]
        if len(self._known) > self._most_words:
            self._start()
        known = self._known
        new = dict.fromkeys(chain.from_iterable(words))
        self._learn([word for word in new if word not in known])
        reach = self.reach
        # The positions outside a text have the first numbers, the nearest first
        numbers_before = [*range(reach)][::-1]
        numbers_behind = [*range(reach, 2 * reach)]
        numbers = []
        for text in words:
            numbers += [*numbers_before, *map(known.__getitem__, text), *numbers_behind]
        lengths = np.array([*map(len, words)], dtype=np.int64)
        bounds = np.append(0, np.cumsum(lengths))
        positions = np.arange(bounds[-1]) + reach * (2 * np.repeat(np.arange(len(words)), lengths) + 1)
        values = {}
        for name, values_of_words in self._values.items():
            values[name] = [values_of_words[n] for n in numbers]
        before = self._outside[:reach][::-1]
        behind = self._outside[reach:]
        for place, name in enumerate(self.columns):
            if place != self._word_column:
                values[name] = []
                for text in texts:
                    values[name] += [*before, *(row[place] for row in text), *behind]
        for name in self._places:
            find_positions = self.phrases[name[3:]].positions
            values[name] = []
            for text in words:
                values[name] += [*before, *find_positions(text), *behind]
        return _Texts(values, np.array(numbers, dtype=np.int64), positions, bounds)

    def rows(self, template: _Template, texts: _Texts) -> Array:
        """The row of a template's feature at each token, -1 for unknown features: int64[T]."""
        reach = self.reach
        n_positions = len(texts.words)
        get = template.rows.get
        # The values of each part at all positions, moved by the part's offset
        lists = [texts.values[a][reach + o : n_positions - reach + o] for a, o in template.parts]
        keys = lists[0] if len(lists) == 1 else map(JOINT.join, zip(*lists))
        return np.array([get(key, -1) for key in keys], dtype=np.int64)[texts.positions - reach]

    def scores(self, name: str, texts: _Texts) -> Array:
        """Sums of the weights of one table: float64[T, C]."""
        others = self._others[name]
        n_tokens = len(texts.positions)
        rows = np.array([self.rows(template, texts) for template in others]).reshape(len(others), n_tokens)
        _, tokens = np.nonzero(rows >= 0)
        scores = self.tables[name].total(np.stack([tokens, rows[rows >= 0]], axis=1), n_tokens)
        for place, offset in enumerate(self._offsets[name]):
            scores += self._sums[name][texts.words[texts.positions + offset], place]
        return scores

    def add_spans(self, texts: _Texts, scores: Array) -> None:
        """Add the weights of the features of whole spans to the scores of segments (float64[T, K, C])."""
        n_tokens, longest = scores.shape[:2]
        if "spans" in self.tables:
            begin, length = np.nonzero(_inside(texts.bounds, longest))
            first = texts.positions[begin]
            table = self.tables["spans"]
            spans = [*zip(first.tolist(), (first + length + 1).tolist())]
            cells = (begin * longest + length).tolist()
            features = []  # pairs of a cell, for a span, and a row of the table
            for template in table.templates:
                rows = template.rows
                values_of_parts = [self._of_spans(part, spans, texts) for part in template.parts]
                for cell, *values in zip(cells, *values_of_parts):
                    keys = map(JOINT.join, product(*values))
                    features += [(cell, rows[key]) for key in keys if key in rows]
            scores += table.total(features, n_tokens * longest).reshape(scores.shape)
        for template in self._of_words.get("tokens", ()):
            if not template.once:
                continue
            latest: dict[int, int] = {}  # the last token with a feature so far
            for t, row in enumerate(self.rows(template, texts).tolist()):
                if row >= 0 and row in latest:
                    # Segments with both tokens have counted the feature twice
                    weights = self.tables["tokens"].total([(0, row)], 1)
                    for begin in range(max(0, t - longest + 1), latest[row] + 1):
                        scores[begin, t - begin :] -= weights
                latest[row] = t

    def _of_spans(self, part: tuple[str, str, int], spans: list[tuple[int, int]], texts: _Texts) -> list[Sequence[str]]:
        """The values of a part of a template at each span, from its first position up to, not including, its end."""
        kind, name, offset = part
        if kind == "length":
            return [(str(e - b),) for b, e in spans]
        if kind == "in":
            phrases = self.phrases[name[3:]]
            spelled = [*map(phrases.spell, texts.values["orth"])]
            return [[label or "yes" for label in phrases.labels.get(tuple(spelled[b:e]), ())] for b, e in spans]
        values = texts.values[name]
        if kind == "whole":
            return [(" ".join(values[b:e]),) for b, e in spans]
        return [(values[offset + (b if kind == "first" else e - 1)],) for b, e in spans]


def _inside(bounds: Array, longest: int) -> Array:
    """Whether the segments that begin at each token with 1, 2 … tokens end in the same text: bool[T, K]."""
    behind = np.repeat(bounds[1:], np.diff(bounds))
    return np.add.outer(np.arange(len(behind)), np.arange(longest)) < behind[:, np.newaxis]


def _log_sum(scores: Array, axis: int) -> Array:
    """log of the sum of exp(scores) along an axis; -inf where all are -inf."""
    top = scores.max(axis=axis, keepdims=True, initial=_LEAST)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(scores - top).sum(axis=axis)) + np.squeeze(top, axis)


class _Steps:
    """Scores of the steps from one state to the next, in logarithms: a matrix, and one for each token if features weigh pairs."""

    def __init__(self, matrix: Array, tag_of: Array, of_tokens: Optional[Array] = None):
        self.matrix = matrix
        self._tag_of = tag_of
        self._of_tokens = of_tokens
        self._shift = max(0.0, float(matrix.max(initial=0.0)))
        self._exp = np.exp(matrix - self._shift)

    def at(self, tokens: Array) -> Array:
        """Steps into tokens: float64[N, S, S], or [1, S, S] if they are equal everywhere."""
        if self._of_tokens is None:
            return self.matrix[np.newaxis]
        return self.matrix + self._of_tokens[tokens][:, self._tag_of[:, np.newaxis], self._tag_of]

    def sums(self, scores: Array, tokens: Array, *, back: bool = False) -> Array:
        """log sum_i exp(scores[n, i] + steps[n, i, j]) for steps into tokens (int[N]), with `back` over j: float64[N, S]."""
        if self._of_tokens is not None:
            axes = (0, 2, 1) if back else (0, 1, 2)
            n_parts = 1 + scores.size * scores.shape[1] // _MOST_STEPS
            parts = []
            # Part by part, so that the steps of all tokens are not in memory together
            for some_scores, some_tokens in zip(np.array_split(scores, n_parts), np.array_split(tokens, n_parts)):
                steps = self.at(some_tokens).transpose(axes)
                parts.append(_log_sum(some_scores[:, :, np.newaxis] + steps, 1))
            return np.concatenate(parts)
        top = scores.max(axis=1, keepdims=True, initial=_LEAST)
        sums = np.exp(scores - top) @ (self._exp.T if back else self._exp)
        steps_to = self.matrix if back else self.matrix.T  # [j] the steps that are summed in column j
        reached = (scores > -np.inf).astype(np.float64) @ (steps_to > -np.inf).T.astype(np.float64)
        rows, columns = np.nonzero((sums == 0.0) & (reached > 0.0))  # too small for this domain
        with np.errstate(divide="ignore"):
            sums = np.log(sums) + top + self._shift
        sums[rows, columns] = _log_sum(scores[rows] + steps_to[columns], 1)
        return sums


class _States:
    """The states of labellings, of which several may belong to one tag where rules have a memory.

    label_of (int[tags]): The label of each tag, -1 for none.
    continues (bool[tags, tags]): Whether a tag continues the span of the tag before it; by default none does.
    choice (_States): States of O and the labels, for sets of spans that are chosen by their probabilities; or None.
    blank (_States): States for texts with white space, where no span may begin or end; None if spans may do so there.
    """

    def __init__(self, content: dict[str, Any], label_of: Array, continues: Array = False):
        self.tag_of = _numbers(content["tag_of"], np.int64, least=0)  # [S]
        if not 0 <= self.tag_of.max(initial=-1) < len(label_of):
            raise LiteError(f"states name tags that are not among the {len(label_of)} tags. Copy the file again.")
        source = _numbers(content["source"], np.int64, least=0)
        target = _numbers(content["target"], np.int64, least=0)
        self.matrix = np.full((len(self.tag_of), len(self.tag_of)), -np.inf)
        self.matrix[source, target] = _numbers(content["scores"], shape=source.shape)
        self.first = _numbers(content["first"], shape=self.tag_of.shape)
        self.last = _numbers(content["last"], shape=self.tag_of.shape)
        self.label_of = label_of[self.tag_of]
        n_labels = int(label_of.max(initial=-1)) + 1
        self.has_label = self.label_of[:, np.newaxis] == np.arange(n_labels)  # [S, labels]
        self.continues = np.broadcast_to(continues, (len(label_of),) * 2)[self.tag_of[:, np.newaxis], self.tag_of]
        self.choice = _States(content["choice"], np.arange(-1, n_labels)) if "choice" in content else None
        # Of a `choice`: whether its rules may ask for spans that are less probable than `min_prob`; None without rules
        self.asks: Optional[bool] = content.get("asks")
        # Whether segments that begin or end with white space, and others, may be in a state: bool[2, S]
        self.may = _numbers(content["may"], np.bool_, (2, len(self.tag_of))) if "may" in content else None
        self.blank = _States(content["blank"], label_of, continues) if "blank" in content else None
        if self.blank is not None:
            self.blank.choice = self.choice


def _best(scores: Array, n: int) -> tuple[Array, Array]:
    """The n largest scores along the last axis and their places, in falling order; equal scores keep their order."""
    places = np.argsort(-scores, axis=-1, kind="stable")[..., :n] if n > 1 else scores.argmax(axis=-1)[..., np.newaxis]
    return np.take_along_axis(scores, places, -1), places


class _Segments:
    """Labellings of texts by segments: O, one token long, and spans, by the scores of length and tag (float64[T, K, C])."""

    def __init__(self, states: _States, scores: Array, bounds: Array, of_pairs: Optional[Array], blank: Array):
        self.states = states
        self.bounds = bounds
        self._of_pairs = of_pairs
        self.scores = scores[:, :, states.tag_of]  # [T, K, S]
        self.scores[~_inside(bounds, scores.shape[1])] = -np.inf
        if states.may is not None:
            last = np.minimum(np.add.outer(np.arange(len(blank)), np.arange(scores.shape[1])), len(blank) - 1)
            has_edge = np.logical_or(blank[:, np.newaxis], blank[last])  # [T, K]
            self.scores[~states.may[np.where(has_edge, 0, 1)]] = -np.inf
        lengths = np.diff(bounds)
        self.text_of = np.repeat(np.arange(len(lengths)), lengths)  # [T]
        # The longest texts first: the tokens at each place in the texts, of those that are so long
        self._order = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
        self._first = bounds[:-1][self._order]
        lengths = lengths[self._order]
        self._last = self._first + lengths - 1
        self._places = [self._first[: np.count_nonzero(lengths > t)] + t for t in range(int(lengths.max(initial=0)))]

    def steps(self, allowed: Any = True) -> _Steps:
        """The steps between states. allowed (bool[S, S]): Steps that are not forbidden; by default all."""
        return _Steps(np.where(allowed, self.states.matrix, -np.inf), self.states.tag_of, self._of_pairs)

    def n_best(self, n: int) -> tuple[Array, Array, Array, Array, Array]:
        """Scores of the n best labellings of each text (float64[B, n], -inf where there are fewer); and of their segments, in
        order: the labelling (n times the text, plus its rank), first token, end and state. Ties go to the lower state."""
        steps = self.steps()
        n_tokens, longest, size = self.scores.shape
        # [T, S, n] the best scores of what comes before a segment that begins at a token, and of all up to one that ends with it
        enters, ends = np.full((2, n_tokens, size, n), -np.inf)
        # [T, S, n] where these come from: previous state · n + its rank, and (length - 1) · n + rank
        steps_to, lengths = np.empty((2, n_tokens, size, n), dtype=np.int64)
        enters[self._first, :, 0] = self.states.first
        for t, tokens in enumerate(self._places):
            if t:
                stepped = ends[tokens - 1][:, np.newaxis] + steps.at(tokens).transpose(0, 2, 1)[..., np.newaxis]
                enters[tokens], steps_to[tokens] = _best(stepped.reshape(len(tokens), size, -1), n)
            begins = [tokens - k for k in range(min(longest, t + 1))]
            ways = [enters[begin] + self.scores[begin, k][..., np.newaxis] for k, begin in enumerate(begins)]
            ends[tokens], lengths[tokens] = _best(np.concatenate(ways, axis=2), n)
        scores = np.full((len(self.bounds) - 1, n), -np.inf)
        scores[:, 0] = 0.0  # of empty texts
        final = (ends[self._last] + self.states.last[:, np.newaxis]).reshape(-1, size * n)
        scores[self._order], places = _best(final, n)
        text, rank = np.nonzero(scores[self._order] > -np.inf)
        number = n * self._order[text] + rank
        end = self._last[text]
        place = places[text, rank]
        # Follow all labellings back from their last segments, one segment of each at a time
        segments = [(number[:0],) * 4]
        while len(number):
            state, rank = np.divmod(place, n)
            length, rank = np.divmod(lengths[end, state, rank], n)
            begin = end - length
            segments.append((number, begin, end + 1, state))
            has_more = begin > self.bounds[number // n]
            number = number[has_more]
            end = begin[has_more] - 1
            place = steps_to[begin, state, rank][has_more]
        numbers, first_tokens, segment_ends, states = map(np.concatenate, zip(*segments[::-1]))
        order = np.argsort(numbers, kind="stable")
        return scores, numbers[order], first_tokens[order], segment_ends[order], states[order]

    @cached_property
    def sums(self) -> tuple[Array, Array, Array, Array, Array]:
        """Log sums by state (float64[T, S]): of what comes before a segment that begins at a token; of all up to one that ends
        with it; of all from one on that begins there; of what comes behind one that ends there. Of each text: float64[B]."""
        steps = self.steps()
        n_tokens, longest, size = self.scores.shape
        before, ends, begins, behind = np.zeros((4, n_tokens, size))
        for t, tokens in enumerate(self._places):
            before[tokens] = steps.sums(ends[tokens - 1], tokens) if t else self.states.first
            ways = [before[tokens - k] + self.scores[tokens - k, k] for k in range(min(longest, t + 1))]
            ends[tokens] = np.logaddexp.reduce(ways)
        behind[self._last] = self.states.last
        for t, tokens in reversed([*enumerate(self._places)]):
            lasts = [np.minimum(tokens + k, n_tokens - 1) for k in range(min(longest, len(self._places) - t))]
            ways = [self.scores[tokens, k] + behind[last] for k, last in enumerate(lasts)]
            begins[tokens] = np.logaddexp.reduce(ways)
            if t:
                behind[tokens - 1] = steps.sums(begins[tokens], tokens, back=True)
        log_z = np.zeros(len(self.bounds) - 1)
        log_z[self._order] = _log_sum(begins[self._first] + self.states.first, 1)
        return before, ends, begins, behind, log_z

    def tags(self, begin: Array, end: Array, state: Array) -> Array:
        """The tags of the tokens of segments, in BIO."""
        inside = 2 * self.states.tag_of[state]  # tags are O, B-0, I-0, B-1, I-1 …
        lengths = end - begin
        tags = np.repeat(inside, lengths)
        first_tokens = np.cumsum(lengths) - lengths
        tags[first_tokens] -= inside > 0
        return tags

    def spans(self, begin: Array, end: Array, state: Array) -> tuple[Array, Array, Array]:
        """First tokens, ends and labels of the spans that segments make."""
        label = self.states.label_of[state]
        return begin[label >= 0], end[label >= 0], label[label >= 0]

    def likely(self, least: float) -> _Spans:
        """All spans whose probability is at least `least`."""
        begin, length, label = np.nonzero(self._probabilities >= least)
        return self.weighed(begin, begin + length + 1, label)

    def weighed(self, begin: Array, end: Array, label: Array) -> _Spans:
        """These spans (int64[N]) with their probabilities."""
        return begin, end, label, self._probabilities[begin, end - begin - 1, label]

    @cached_property
    def _probabilities(self) -> Array:
        """The probability of each span by first token, length and label: float64[T, K, labels]."""
        # p[t, k, label] = sum over the label's states s of exp(before[t, s] + scores[t, k, s] + behind[t + k, s] - log_z)
        before, _, _, behind, log_z = self.sums
        n_tokens, longest, _ = self.scores.shape
        last = np.minimum(np.add.outer(np.arange(n_tokens), np.arange(longest)), n_tokens - 1)
        before = (before - log_z[self.text_of, np.newaxis])[:, np.newaxis]
        return np.minimum(np.exp(before + self.scores + behind[last]) @ self.states.has_label, 1.0)


class _Chain(_Segments):
    """Labellings by segments of one token, whose spans are runs of tags."""

    def tags(self, begin: Array, end: Array, state: Array) -> Array:
        return self.states.tag_of[state]

    def spans(self, begin: Array, end: Array, state: Array) -> tuple[Array, Array, Array]:
        label = self.states.label_of[state]
        # Whether a token continues the span of the token before it: bool[T + 1]
        is_continued = np.zeros(1 + len(state), dtype=bool)
        is_continued[1:-1] = self.states.continues[state[:-1], state[1:]] & (self.text_of[:-1] == self.text_of[1:])
        is_first = (label >= 0) & ~is_continued[:-1]
        is_last = (label >= 0) & ~is_continued[1:]
        return begin[is_first], end[is_last], label[is_first]

    def marginals(self, of_states: Array) -> Array:
        """The probability of each set of states (bool[S, C]) at each token: float64[T, C]."""
        _, ends, _, behind, log_z = self.sums
        return np.minimum(np.exp(ends + behind - log_z[self.text_of, np.newaxis]) @ of_states, 1.0)

    def likely(self, least: float) -> _Spans:
        begin, label = np.nonzero(self.marginals(self.states.has_label) >= least)
        return self.weighed(begin, self.bounds[1:][self.text_of[begin]], label, least)

    def weighed(self, begin: Array, end: Array, label: Array, least: Optional[float] = None) -> _Spans:
        """The probabilities of exactly these spans; with `least`, of all so probable ones that begin and may end like these."""
        _, ends, begins, behind, log_z = self.sums
        log_z = log_z[self.text_of]
        emissions = self.scores[:, 0]
        inside = self.steps(self.states.continues)
        around = self.steps(~self.states.continues)
        tokens = np.arange(1, len(ends))
        # Log sums of what comes before a span that begins at a token, and behind one that ends there: float64[T, S]
        opening = np.empty_like(ends)
        closing = np.empty_like(ends)
        opening[1:] = around.sums(ends[:-1], tokens)
        closing[:-1] = around.sums(begins[1:], tokens, back=True)
        opening[self._first] = self.states.first
        closing[self._last] = self.states.last
        # Extend all spans by a token at a time: scores of what comes before, and of the span up to its `last` token so far
        scores = np.where(self.states.has_label.T[label], opening[begin] + emissions[begin], -np.inf)
        number = np.arange(len(begin))
        last = begin
        spans = [(begin[:0], begin[:0], log_z[:0])]
        while len(number):
            probability = np.exp(_log_sum(scores + closing[last], 1) - log_z[last])
            is_longer = end[number] > last + 1
            is_wanted = end[number] == last + 1
            if least is not None:
                # A longer span is at most as probable as all continuations of this one
                is_longer &= np.exp(_log_sum(scores + behind[last], 1) - log_z[last]) - probability >= least
                is_wanted = probability >= least
            spans.append((number[is_wanted], last[is_wanted] + 1, probability[is_wanted]))
            number = number[is_longer]
            last = last[is_longer] + 1
            scores = inside.sums(scores[is_longer], last) + emissions[last]
        numbers, span_ends, probabilities = map(np.concatenate, zip(*spans))
        order = np.argsort(numbers, kind="stable")
        return begin[numbers[order]], span_ends[order], label[numbers[order]], np.minimum(probabilities[order], 1.0)


class Model:
    """An exported model. `load` makes it.

    tags (list[str]): The tags of words, which are the `labels` where words have labels.
    columns (list[str]): The columns of rows that the model reads; "orth" is the word.
    """

    def __init__(self, content: dict[str, Any]):
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise LiteError("this is no export of spacy_crf. `spacy crf export MODEL FILE --to npz` writes one.")
        if content["version"] not in range(1, VERSION + 1):
            known = f"version {content['version']} of the format, and this lite.py reads versions 1 to {VERSION}"
            raise LiteError(f"it has {known}. Take the lite.py of the spacy_crf that wrote it.")
        self.kind: str = content["kind"]  # "chain", "segments" or "text"
        if self.kind not in _KINDS:
            raise LiteError(f"this lite.py does not know models of the kind '{self.kind}'. Take a newer one.")
        self.labels: list[str] = content["labels"]
        self.columns: list[str] = content["columns"]
        self._scheme = content["scheme"]
        letters = content["letters"]
        n_labels = len(self.labels)
        self.has_spans = self._scheme is not None
        self.tags = [*self.labels]
        if self.has_spans:
            self.tags = ["O", *(f"{letter}-{label}" for label, letter in product(self.labels, letters))]
        # The label of each tag, and whether it continues the span of the tag before it
        label_of = (np.arange(len(self.tags)) - 1) // len(letters) if self.has_spans else np.arange(n_labels)
        letter = np.array([tag[0] if self.has_spans else "U" for tag in self.tags])
        opens = np.isin(letter, ["O", "B", "U"])
        closes = np.isin(letter, ["O", "L", "U"])
        continues = (label_of[:, np.newaxis] == label_of) & ~closes[:, np.newaxis] & ~opens
        if self.kind == "segments":  # a state is O or a label, and no segment continues another one
            label_of = np.arange(-1, n_labels)
            continues = False
        self._states = _States(content["states"], label_of, continues)
        self._without_rules = None
        if "without_rules" in content:
            self._without_rules = _States(content["without_rules"], label_of, continues)
        n_states = len(label_of)
        self._readers = [_Features({**content, **reader}, n_states) for reader in content["readers"]]
        if not self._readers:
            raise LiteError("it has no features. Copy the file again.")
        lengths = content["lengths"] if self.kind == "segments" else np.zeros((1, n_states))
        self._lengths = _numbers(lengths, shape=(len(lengths), n_states))
        least = np.zeros(n_labels) if content["min_prob"] is None else content["min_prob"]
        self._least = _numbers(least, shape=(n_labels,), least=0.0)

    def tag(self, text: Text) -> list[str]:
        """The most probable tags of a text, which is a list of words; or of rows, such as ["word", "NN"], whose first columns are
        those that the model reads. Words of spans that are less probable than `min_prob` have the tag O, single words ""."""
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
        [log_z] = labellings.sums[-1]
        [scores], number, begin, end, state = labellings.n_best(n)
        probabilities = np.minimum(np.exp(scores[scores > -np.inf] - log_z), 1.0).tolist()
        best = []
        for rank, probability in enumerate(probabilities):
            is_of_rank = number == rank
            path = labellings.tags(begin[is_of_rank], end[is_of_rank], state[is_of_rank])
            best.append((probability, [self.tags[tag] for tag in path.tolist()]))
        return best

    def tag_all(self, texts: Iterable[Text]) -> list[list[str]]:
        """`tag` for many texts, which takes a fraction of the time of one by one."""
        self._expect("tag", "chain", "segments")
        batches = (self._labelled(batch, self._least.any()) for batch in self._batches(texts))
        return [tags for tags, _ in chain.from_iterable(batches)]

    def entities_all(self, texts: Iterable[Text]) -> list[list[Entity]]:
        """`entities` for many texts."""
        self._expect("entities", "chain", "segments")
        if not self.has_spans:
            raise LiteError("This model labels words and has no entities. Take tag, or marginals for probabilities.")
        batches = (self._labelled(batch, True) for batch in self._batches(texts))
        return [entities for _, entities in chain.from_iterable(batches)]

    def classify_all(self, texts: Iterable[Text]) -> list[dict[str, float]]:
        """`classify` for many texts."""
        self._expect("classify", "text")
        classified = []
        for batch in self._batches(texts):
            read = self._readers[0].read(batch)
            text_of = np.repeat(np.arange(len(batch)), np.diff(read.bounds))
            totals = np.tile(self._states.first, (len(batch), 1))
            np.add.at(totals, text_of, self._readers[0].scores("states", read))
            probabilities = np.exp(totals - _log_sum(totals, 1)[:, np.newaxis])
            for row in probabilities.tolist():
                classified.append(dict(sorted(zip(self.labels, row), key=lambda item: -item[1])))
        return classified

    def _batches(self, texts: Iterable[Text]) -> Iterator[list[Text]]:
        """Cut texts into batches that fit into memory."""
        # Memory grows with the texts times K for segments, and times K · S² for the steps between them
        longest = len(self._lengths)  # K tokens, 1 in a chain
        n_steps = longest * len(self._states.first) ** 2
        n_texts = max(1, min(_AT_ONCE // longest, _MOST_STEPS // n_steps))
        remaining = iter(texts)
        while batch := [*islice(remaining, n_texts)]:
            yield batch

    def _expect(self, method: str, *kinds: str) -> None:
        """RAISES (LiteError): If the model is of none of the kinds that a method fits."""
        if self.kind not in kinds:
            raise LiteError(f"{method} does not fit a model of {_KINDS[self.kind][0]}. Take {_KINDS[self.kind][1]}.")

    def _labellings(self, texts: list[Text], states: Optional[_States] = None) -> Any:
        """The labellings of texts: `_Segments` or a `_Chain`."""
        reads = [(reader, reader.read(texts)) for reader in self._readers]
        bounds = reads[0][1].bounds
        size = self._lengths.shape[1]
        of_pairs = None
        n_tokens = int(bounds[-1])
        longest = max(1, min(len(self._lengths), int(np.diff(bounds).max(initial=0))))
        scores = np.zeros((n_tokens, longest, size))
        none = np.zeros((n_tokens, size))
        totals = dict.fromkeys(("states", "begins", "ends", "tokens"), none)
        for reader, read in reads:
            totals.update((name, reader.scores(name, read)) for name in reader.tables if name in totals)
            if "transitions" in reader.tables:
                of_pairs = reader.scores("transitions", read).reshape(-1, size, size)
            reader.add_spans(read, scores)
        # The scores of segments of k + 1 tokens, by their first token; `inside` is the sum over their tokens
        inside = none
        begins = totals["begins"]
        for k in range(longest):
            n = max(0, n_tokens - k)
            inside = inside[:n] + (totals["states"] + totals["tokens"])[k:]
            scores[:n, k] += inside + begins[:n] + totals["ends"][k:] + self._lengths[k]
        states = states or self._states
        # In texts with white space, spans may not begin or end at it
        words_of = self._readers[0].words_of
        blank = np.array([word.isspace() for text in texts for word in words_of(text)], dtype=bool)
        states = states.blank if states.blank is not None and blank.any() else states
        return (_Segments if self.kind == "segments" else _Chain)(states, scores, bounds, of_pairs, blank)

    def _possible(self, text: Text) -> Any:
        """The labellings of a text that keep all rules; all its labellings if none does."""
        for states in filter(None, (self._states, self._without_rules)):
            labellings = self._labellings([text], states)
            if labellings.sums[-1][0] > -np.inf:
                return labellings
        raise LiteError("A text has no labelling with a finite score. Export the model again.")

    def _labelled(
        self, texts: list[Text], weigh: bool, labellings: Any = None, by_spans: bool = True
    ) -> list[Labelled]:
        """Tags and entities of texts; no entities without `weigh`.

        by_spans (bool): Whether to choose the spans by their probabilities, if the model does. If not, all spans of the most
            probable labelling stay: less would break a rule.
        """
        labellings = labellings or self._labellings(texts)
        bounds = labellings.bounds
        choice = labellings.states.choice
        outside = "O" if self.has_spans else ""
        is_cut = choice is None or choice.asks is None
        choice = choice if by_spans else None
        segments = []
        if choice is None:
            scores, _, *segments = labellings.n_best(1)
        else:
            scores = labellings.sums[-1]
        if not (scores > -np.inf).all():  # no labelling of some text keeps the rules
            one_by_one = []
            for score, text in zip(scores, texts):
                instead = None if score > -np.inf else self._possible(text)
                one_by_one += self._labelled([text], weigh, instead)
            return one_by_one
        missed = np.zeros(len(texts), dtype=bool)
        if choice is not None:
            tags = [outside] * len(labellings.scores)
            spans = self._chosen(labellings, choice)
            begin, _, _, probability = spans
            missed[labellings.text_of[begin[probability == 0.0]]] = True
        else:
            tags = [self.tags[tag] for tag in labellings.tags(*segments).tolist()]
            spans = labellings.weighed(*labellings.spans(*segments)) if weigh else []
        entities = [[] for _ in texts]
        starts = bounds.tolist()
        text_of = labellings.text_of.tolist()
        for begin, end, label, probability in zip(*(column.tolist() for column in spans)):
            first = starts[text_of[begin]]
            name = self.labels[label]
            length = end - begin
            if is_cut and probability < self._least[label]:
                tags[begin:end] = [outside] * length
                continue
            entities[text_of[begin]].append(Entity(begin - first, end - first, name, probability))
            if choice is not None:
                scheme = "BIO" if self._scheme == "IOB1" and tags[max(first, begin - 1)][2:] == name else self._scheme
                tags[begin:end] = _spelled(scheme, name, length) if self.has_spans else [name] * length
        labelled = [(tags[begin:end], of_text) for (begin, end), of_text in zip(pairwise(starts), entities)]
        for n in np.flatnonzero(missed).tolist():  # no set of listed spans keeps the rules
            labelled[n] = self._labelled([texts[n]], weigh, by_spans=False)[0]
        return labelled

    def _chosen(self, labellings: Any, choice: _States) -> _Spans:
        """The spans, no two of which overlap, whose probabilities exceed their prices by most in total. Those that are not
        listed, which rules have asked for, have the probability 0."""
        # Spans of probability 0 are never worth their price, and certain spans always are
        prices = np.clip(self._least, 1e-3, 1.0 - 1e-6)
        begin, end, label, probability = labellings.likely(1e-3 if choice.asks else prices.min(initial=1.0))
        probabilities = np.zeros((len(labellings.scores), (end - begin).max(initial=1), 1 + len(self.labels)))
        probabilities[begin, end - begin - 1, 1 + label] = probability
        # A span that is just probable enough is taken; one that is not listed, only if no other set keeps the rules
        worth = np.where(probabilities > 0.0, probabilities - np.append(0.0, prices) + 1e-9, -1e6)
        worth[:, :, 0] = -np.inf
        worth[:, 0, 0] = 0.0
        chosen = _Segments(choice, worth, labellings.bounds, of_pairs=None, blank=np.zeros(len(worth), bool))
        begin, end, label = chosen.spans(*chosen.n_best(1)[2:])
        return begin, end, label, probabilities[begin, end - begin - 1, 1 + label]
