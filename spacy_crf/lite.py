"""Labels words by a model that `spacy crf export` wrote, with NumPy alone: without spaCy, thinc and numba.

    model = lite.load("addresses.npz")          # from spacy_crf import lite; or, beside the export, import lite
    model.tag(["12", "Elm", "Street"])          # a tag for each word
    model.entities(["12", "Elm", "Street"])     # spans with their exact probabilities

The file imports nothing else, so it can be copied into other projects. The format of exports is described in docs/lite.md.
Letters in shapes: T tokens, B texts, S states, C columns of a table (tags, or pairs of tags), K longest segment.
"""

import gzip
import json
import re
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from io import BytesIO
from itertools import count, groupby, islice, pairwise, product
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import numpy as np

FORMAT, VERSION = "spacy_crf.lite", 1
JOINT, BEFORE, BEHIND = "\x7f", "\ue000", "\ue001"  # between the values of a feature; around a word in its n-grams
_ABSENT = "\x00\x00"  # value of an attribute that a token does not have
# Texts that are labelled together, bytes of the cached scores of words, and scores of steps in memory
_AT_ONCE, _MOST_BYTES, _MOST_STEPS = 512, 1 << 26, 1 << 22
_NO_EXPORT = (KeyError, IndexError, TypeError, ValueError, AttributeError)  # for content of another form
_LEAST = float(np.finfo(np.float64).min)
Text = Sequence[Any]  # words; or rows of columns, of which one is the word
Array = Any


class LiteError(ValueError):
    """A file that is no export, or rows that the model can't read; the message says what to do."""


class Entity(NamedTuple):
    """A labelled span: tokens ``start`` up to, not including, ``end``."""

    start: int
    end: int
    label: str
    prob: float


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
        for name in arrays.files:
            *folders, last = name.split("/")
            place = content
            for folder in folders:
                place = place[int(folder) if isinstance(place, list) else folder]
            if name != "content":
                place[last] = arrays[name]
    return content


def _numbers(given: Any, dtype: Any = np.float64, shape: Optional[tuple] = None, *, least: float = -np.inf) -> Array:
    """An array of an export. Numbers are finite; where there is no least value, null is -inf. RAISES (LiteError)"""
    array = np.asarray(given, dtype=object) if isinstance(given, list) else given
    array = (np.where(np.equal(array, None), -np.inf, array) if array.dtype == object else array).astype(dtype)
    if np.isnan(array).any() or (array == np.inf).any() or (array.size and array.min() < least):
        raise LiteError("a number is NaN, infinite or out of range. Export the model again.")
    if array.shape != (array.shape if shape is None else shape):
        raise LiteError(f"an array has the shape {array.shape} instead of {shape}. Copy the file again.")
    return array


def _shape(word: str) -> str:
    """spaCy's shape: "Xxxx-dd", with at most four equal characters in a row."""
    if len(word) >= 100:
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
    **{f"is_{name}": getattr(str, f"is{name}") for name in ("alpha", "ascii", "digit", "lower", "space", "title")},
    "is_upper": str.isupper,
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
    **{f"suffix{n}": lambda word, n=n: word[-n:] if len(word) >= n else _ABSENT for n in range(1, 6)},
}
NGRAMS = {f"ngrams{n}": lambda word, n=n: _ngrams(word, n) for n in range(2, 6)}


def _like_num(word: str, words: set[str], endings: tuple[str, ...]) -> bool:
    """spaCy's `like_num`, with the numerals and the endings of ordinals of a language."""
    word = (word[1:] if word.startswith(("+", "-", "±", "~")) else word).replace(",", "").replace(".", "")
    (above, _, below), lower = word.partition("/"), word.lower()
    is_number = word.isdigit() or (above.isdigit() and below.isdigit()) or lower in words
    return is_number or (lower.endswith(endings) and lower[:-2].isdigit())


def hash_text(text: str) -> int:
    """spaCy's hash of a string: MurmurHash64A with seed 1."""
    data, factor, bits = text.encode("utf8"), 0xC6A4A7935BD1E995, (1 << 64) - 1
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
    found = numbers.get(hash_text(word), numbers.get(hash_text(word.lower())))
    return _ABSENT if found is None else table["paths"][found][:width]


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
        spelled, matches = [*map(self.spell, text)], []
        for begin in range(len(spelled)):
            end = begin + 1
            while end <= len(spelled) and tuple(spelled[begin:end]) in self._beginnings:
                if tuple(spelled[begin:end]) in self.labels:
                    matches.append((begin - end, begin, end))
                end += 1
        values = [_ABSENT] * len(text)
        for _, begin, end in sorted(matches):
            if values[begin] == values[end - 1] == _ABSENT:
                label = self.labels[tuple(spelled[begin:end])][0]
                letters = "U" if end - begin == 1 else f"B{'I' * (end - begin - 2)}L"
                values[begin:end] = [f"{letter}-{label}" if label else letter for letter in letters]
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
        self.width, self.templates, n_rows = width, [], 0
        for template in content["templates"]:
            parts, rows = tuple(map(tuple, template["parts"])), dict(zip(template["keys"], count(n_rows)))
            self.templates.append(_Template(template["name"], parts, rows, template.get("once", False)))
            n_rows += len(template["keys"])
        self.starts = np.append(0, np.cumsum(_numbers(content["counts"], np.int64, (n_rows,), least=0)))
        self.columns = _numbers(content["columns"], np.int64, (int(self.starts[-1]),), least=0)
        self.weights = _numbers(content["weights"], shape=self.columns.shape, least=_LEAST) * content.get("scale", 1.0)
        if self.columns.max(initial=0) >= width:
            raise LiteError(f"a weight has the column {self.columns.max()} of {width}. Copy the file again.")

    def total(self, tokens: Any, rows: Any, n: int) -> Array:
        """Sums of the weights of rows (int[N]) at each of n tokens (int[N]): float64[n, C]."""
        tokens, rows = np.asarray(tokens, dtype=np.int64), np.asarray(rows, dtype=np.int64)
        counts = self.starts[rows + 1] - self.starts[rows]
        at = np.repeat(self.starts[rows] - np.append(0, np.cumsum(counts)[:-1]), counts) + np.arange(counts.sum())
        places = np.repeat(tokens, counts) * self.width + self.columns[at]
        return 0.0 + np.bincount(places, self.weights[at], minlength=n * self.width).reshape(n, self.width)


class _Texts(NamedTuple):
    """A batch of texts: columns of values with some positions before and behind each text, and where the tokens are."""

    values: dict[str, list[str]]  # by attribute of tokens: [P]
    words: Array  # [P] numbers of the words
    positions: Array  # [T]
    bounds: Array  # [B + 1]


class _Features:
    """Reads texts, and sums the weights of their features by table. The sums of templates that read a single word are kept for
    each word and offset."""

    def __init__(self, content: dict[str, Any], n_states: int):
        self.columns: list[str] = content["columns"]
        self._word_column = self.columns.index("orth")
        self.phrases = {name: _Phrases(listed) for name, listed in content["gazetteers"].items()}
        self.getters = self._make_getters(content)
        tables = content["tables"].items()
        self.tables = {name: _Table(table, n_states ** (1 + (name == "transitions"))) for name, table in tables}
        of_texts = {f"in:{name}" for name in self.phrases}.union(self.columns) - {"orth"}
        self._of_words, self._others = ({name: [] for name in self.tables} for _ in range(2))
        alone, joined, self.reach = set(), {"orth"}, 0
        for name, table in self.tables.items():
            for template in table.templates:
                attributes, offsets = {a for *_, a, _ in template.parts} - {""}, {o for *_, o in template.parts}
                for attribute in attributes - self.getters.keys() - of_texts:
                    reads = f"the template '{template.name}' reads '{attribute}', which this lite.py does not know"
                    raise LiteError(f"{reads}. Take that of the spacy_crf that wrote it.")
                self.reach = max(self.reach, *map(abs, offsets))
                is_alone = len(offsets) == 1 and not attributes & of_texts and name not in ("transitions", "spans")
                (self._of_words if is_alone else self._others)[name].append(template)
                alone |= attributes if is_alone else set()
                joined |= attributes if not is_alone or template.once else set()
        self._alone, self._joined, self._places = [*alone], joined - of_texts, [a for a in joined if a[:3] == "in:"]
        self._offsets = {name: sorted({t.parts[0][1] for t in found}) for name, found in self._of_words.items()}
        width = sum(len(offsets) * self.tables[name].width for name, offsets in self._offsets.items())
        self._most_words = max(1000, _MOST_BYTES // max(8, 8 * width))
        self._outside = self._padding(content["padding"])
        self._start()

    def _make_getters(self, content: dict[str, Any]) -> dict[str, Callable[[str], Any]]:
        words, endings = set(content["number_words"]), tuple(content["number_endings"])
        flags = {**FLAGS, "like_num": partial(_like_num, words=words, endings=endings)}
        flags["is_stop"] = lambda word, stops=set(content["stop_words"]): word.lower() in stops
        getters = {**STRINGS, **NGRAMS}
        for name, flag in flags.items():
            getters[name] = lambda word, flag=flag: "1" if flag(word) else "0"
            getters[f"if:{name}"] = lambda word, flag=flag: "1" if flag(word) else _ABSENT
        for name, table in content["clusters"].items():
            words = table["words"]  # hexadecimal in JSON
            hashes = [int(word, 16) for word in words] if isinstance(words, list) else words.tolist()
            numbers = dict(zip(hashes, _numbers(table["numbers"], np.int64, least=0).tolist()))
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
        first, getters = len(self._values["orth"]), self.getters
        for name, values in self._values.items():
            values += map(getters[name], words)
        read = ({name: getters[name](word) for name in self._alone} for word in words)
        listed = [{a: v if isinstance(v, list) else [v] for a, v in values.items()} for values in read]
        self._add_words(listed, first)
        self._known.update(zip(words, range(first, first + len(words))))

    def _add_words(self, words: list[dict[str, list[str]]], first: int) -> None:
        """Add the sums of words, whose numbers begin with `first`, by their values of attributes."""
        for name, offsets in self._offsets.items() if words else []:
            table, sums, at, rows = self.tables[name], self._sums[name], [], []
            places = [(offsets.index(t.parts[0][1]), [a for a, _ in t.parts], t.rows) for t in self._of_words[name]]
            for n, values in enumerate(words):
                for place, attributes, known in places:
                    for key in map(JOINT.join, product(*map(values.__getitem__, attributes))):
                        if key in known:
                            at.append(n * len(offsets) + place)
                            rows.append(known[key])
            if first + len(words) > len(sums):
                sums = self._sums[name] = np.concatenate([sums, np.zeros((first + 2 * len(words), *sums.shape[1:]))])
            new = table.total(at, rows, len(words) * len(offsets))
            sums[first : first + len(words)] = new.reshape(len(words), *sums.shape[1:])

    def words_of(self, text: Text) -> list[str]:
        """The words of a text. RAISES (LiteError): For rows with too few columns."""
        if isinstance(text, str):
            raise LiteError("A text is a list of words, or of rows; this is one string. Split it into words first.")
        if self.columns == ["orth"] and all(isinstance(word, str) for word in text):
            return list(text)
        for n in [n for n, row in enumerate(text) if isinstance(row, str) or len(row) < len(self.columns)]:
            got = "a word" if isinstance(text[n], str) else f"{len(text[n])} columns"
            raise LiteError(f"Row {n + 1} is {got}, and the model reads the columns {', '.join(self.columns)}.")
        return [row[self._word_column] for row in text]

    def read(self, texts: list[Text]) -> _Texts:
        words = [self.words_of(text) for text in texts]
        if len(self._known) > self._most_words:
            self._start()
        new = list(dict.fromkeys(word for text in words for word in text if word not in self._known))
        self._learn(new)
        reach, known = self.reach, self._known
        before, behind = [*range(reach)][::-1], [*range(reach, 2 * reach)]
        numbers = [n for text in words for n in (*before, *map(known.__getitem__, text), *behind)]
        lengths = np.array([*map(len, words)], dtype=np.int64)
        bounds = np.append(0, np.cumsum(lengths))
        positions = np.arange(bounds[-1]) + reach * (2 * np.repeat(np.arange(len(words)), lengths) + 1)
        values = {name: [of_word[n] for n in numbers] for name, of_word in self._values.items()}
        before, behind = self._outside[:reach][::-1], self._outside[reach:]
        for place, name in enumerate(self.columns):
            if place != self._word_column:
                values[name] = [v for text in texts for v in (*before, *(row[place] for row in text), *behind)]
        for name in self._places:
            find = self.phrases[name[3:]].positions
            values[name] = [v for text in words for v in (*before, *find(text), *behind)]
        return _Texts(values, np.array(numbers, dtype=np.int64), positions, bounds)

    def rows(self, template: _Template, texts: _Texts) -> Array:
        """The row of a template's feature at each token, -1 for unknown features: int64[T]."""
        reach, n_positions, get = self.reach, len(texts.words), template.rows.get
        lists = [texts.values[a][reach + o : n_positions - reach + o] for a, o in template.parts]
        keys = lists[0] if len(lists) == 1 else map(JOINT.join, zip(*lists))
        return np.array([get(key, -1) for key in keys], dtype=np.int64)[texts.positions - reach]

    def scores(self, name: str, texts: _Texts) -> Array:
        """Sums of the weights of one table: float64[T, C]."""
        others, n_tokens = self._others[name], len(texts.positions)
        rows = np.array([self.rows(template, texts) for template in others]).reshape(len(others), n_tokens)
        scores = self.tables[name].total(np.nonzero(rows >= 0)[1], rows[rows >= 0], n_tokens)
        for place, offset in enumerate(self._offsets[name]):
            scores += self._sums[name][texts.words[texts.positions + offset], place]
        return scores

    def add_spans(self, texts: _Texts, scores: Array) -> None:
        """Add the weights of the features of whole spans to the scores of segments (float64[T, K, C]) of a single text."""
        n_tokens, longest = scores.shape[:2]
        spans = [(b, e) for b in range(n_tokens) for e in range(b + 1, min(n_tokens, b + longest) + 1)]
        at, rows = [], []
        for template in self._others.get("spans", ()):
            for (b, e), *values in zip(spans, *(self._of_spans(part, spans, texts) for part in template.parts)):
                for key in map(JOINT.join, product(*values)):
                    if key in template.rows:
                        at.append(b * longest + e - b - 1)
                        rows.append(template.rows[key])
        if rows:
            scores += self.tables["spans"].total(at, rows, n_tokens * longest).reshape(scores.shape)
        for template in self._of_words.get("tokens", ()):
            latest: dict[int, int] = {}
            for t, row in enumerate(self.rows(template, texts).tolist() if template.once else []):
                if row >= 0 and row in latest:  # counted again at this token
                    weights = self.tables["tokens"].total([0], [row], 1)
                    for b in range(max(0, t - longest + 1), latest[row] + 1):
                        scores[b, t - b :] -= weights
                latest[row] = t

    def _of_spans(self, part: tuple[str, str, int], spans: list[tuple[int, int]], texts: _Texts) -> list[Sequence[str]]:
        """The values of a part of a template at each span."""
        (kind, name, offset), reach = part, self.reach
        if kind == "length":
            return [(str(e - b),) for b, e in spans]
        if kind == "in":
            phrases, words = self.phrases[name[3:]], texts.values["orth"][reach : len(texts.words) - reach]
            spelled = [*map(phrases.spell, words)]
            return [[label or "yes" for label in phrases.labels.get(tuple(spelled[b:e]), ())] for b, e in spans]
        values = texts.values[name]
        if kind == "whole":
            return [(" ".join(values[reach + b : reach + e]),) for b, e in spans]
        return [(values[reach + offset + (b if kind == "first" else e - 1)],) for b, e in spans]


def _log_sum(scores: Array, axis: int) -> Array:
    """log of the sum of exp(scores) along an axis; -inf where all are -inf."""
    top = scores.max(axis=axis, keepdims=True, initial=_LEAST)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(scores - top).sum(axis=axis)) + np.squeeze(top, axis)


class _Steps:
    """Scores of the steps from one state to the next, in logarithms: a matrix, and one for each token if features weigh pairs."""

    def __init__(self, matrix: Array, tag_of: Array, of_tokens: Optional[Array] = None):
        self.matrix, self._tag_of, self._of_tokens = matrix, tag_of, of_tokens
        self._shift = max(0.0, float(matrix.max(initial=0.0)))
        self._exp = np.exp(matrix - self._shift)

    def at(self, tokens: Array) -> Array:
        """Steps into tokens: float64[N, S, S], or [1, S, S] if they are equal everywhere."""
        if self._of_tokens is None:
            return self.matrix[np.newaxis]
        return self.matrix + self._of_tokens[tokens][:, self._tag_of[:, np.newaxis], self._tag_of]

    def sums(self, scores: Array, tokens: Array, *, back: bool = False) -> Array:
        """log sum_i exp(scores[n, i] + steps[n, i, j]) for steps into tokens (int[N]): float64[N, S]; with `back`, sums over
        the state j that a step leads to."""
        if self._of_tokens is not None:
            return _log_sum(scores[:, :, np.newaxis] + self.at(tokens).transpose((0, 2, 1) if back else (0, 1, 2)), 1)
        top = scores.max(axis=1, keepdims=True, initial=_LEAST)
        sums = np.exp(scores - top) @ (self._exp.T if back else self._exp)
        steps = self.matrix if back else self.matrix.T
        reached = (scores > -np.inf).astype(np.float64) @ (steps > -np.inf).T.astype(np.float64)
        rows, columns = np.nonzero((sums == 0.0) & (reached > 0.0))  # too small for this domain
        with np.errstate(divide="ignore"):
            sums = np.log(sums) + top + self._shift
        sums[rows, columns] = _log_sum(scores[rows] + steps[columns], 1)
        return sums


class _States:
    """The states of chains, of which several may belong to one tag where rules have a memory."""

    def __init__(self, content: dict[str, Any], n_tags: int):
        self.tag_of = _numbers(content["tag_of"], np.int64, least=0)  # [S]
        if not 0 <= self.tag_of.max(initial=-1) < n_tags:
            raise LiteError(f"states name tags that are not among the {n_tags} tags. Copy the file again.")
        source, target = (_numbers(content[name], np.int64, least=0) for name in ("source", "target"))
        self.matrix = np.full((len(self.tag_of), len(self.tag_of)), -np.inf)
        self.matrix[source, target] = _numbers(content["scores"], shape=source.shape)
        self.first, self.last = (_numbers(content[name], shape=self.tag_of.shape) for name in ("first", "last"))


class _Chain:
    """Labellings of a batch of texts, from the scores of tags at tokens (float64[T, tags])."""

    def __init__(self, states: _States, of_tags: Array, bounds: Array, of_pairs: Optional[Array]):
        self.states, self.emissions, self._of_pairs = states, of_tags[:, states.tag_of], of_pairs
        # The longest texts first: the tokens at each place in the texts, of those that are so long
        lengths = np.diff(bounds)
        order = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
        first, lengths = bounds[:-1][order], lengths[order]
        self._places = [first[: np.count_nonzero(lengths > t)] + t for t in range(int(lengths.max(initial=0)))]
        self._first, self._last = first, first + lengths - 1

    def steps(self, allowed: Any = True) -> _Steps:
        return _Steps(np.where(allowed, self.states.matrix, -np.inf), self.states.tag_of, self._of_pairs)

    def best(self) -> Array:
        """States of the most probable labellings: int64[T], -1 where a text has none. Ties go to the lower state."""
        states, steps, back = self.states, self.steps(), []
        path = np.full(len(self.emissions), -1, dtype=np.int64)
        if not self._places:
            return path
        scores = states.first + self.emissions[self._first]
        for tokens in self._places[1:]:
            n = len(tokens)
            ways = scores[:n, np.newaxis, :] + steps.at(tokens).transpose(0, 2, 1)  # [N, S to, S from]
            back.append(ways.argmax(axis=2))
            scores[:n] = np.take_along_axis(ways, back[-1][:, :, np.newaxis], 2)[:, :, 0] + self.emissions[tokens]
        scores = scores + states.last
        state, possible = scores.argmax(axis=1), scores.max(axis=1) > -np.inf
        for t in reversed(range(len(self._places))):
            n = len(self._places[t])
            path[self._places[t]] = np.where(possible[:n], state[:n], -1)
            if t:
                state[:n] = back[t - 1][np.arange(n), state[:n]]
        return path

    def sums(self) -> tuple[Array, Array, Array]:
        """Log sums of the beginnings of texts that end in a state, and of what may follow it (float64[T, S]); and of all
        labellings of the text of each token (float64[T])."""
        states, steps, emissions = self.states, self.steps(), self.emissions
        prefixes, suffixes = np.empty_like(emissions), np.empty_like(emissions)
        for t, tokens in enumerate(self._places):
            before = steps.sums(prefixes[tokens - 1], tokens) if t else states.first
            prefixes[tokens] = before + emissions[tokens]
        suffixes[self._last] = states.last
        for tokens in self._places[:0:-1]:
            suffixes[tokens - 1] = steps.sums(emissions[tokens] + suffixes[tokens], tokens, back=True)
        return prefixes, suffixes, _log_sum(prefixes + suffixes, 1)

    def marginals(self, n_tags: int) -> Array:
        """Probability of each tag at each token: float64[T, tags]."""
        prefixes, suffixes, log_z = self.sums()
        found = np.zeros((n_tags, len(log_z)))
        np.add.at(found, self.states.tag_of, np.exp(prefixes + suffixes - log_z[:, np.newaxis]).T)
        return np.minimum(found.T, 1.0)

    def probabilities(self, begin: Array, end: Array, label: Array, label_of: Array, continues: Array) -> Array:
        """Probability that a span (begin, end: int[N]) has its label and is no longer and no shorter: float64[N]. By tag: its
        label (int[tags]), and whether it continues the span of the tag before (bool[tags, tags])."""
        (prefixes, suffixes, log_z), states, emissions = self.sums(), self.states, self.emissions
        goes_on = continues[states.tag_of[:, np.newaxis], states.tag_of]
        inside, around = self.steps(goes_on), self.steps(~goes_on)
        opening, closing = np.isin(begin, self._first)[:, np.newaxis], np.isin(end - 1, self._last)[:, np.newaxis]
        scores = np.where(opening, states.first, around.sums(prefixes[begin - 1], begin)) + emissions[begin]
        scores = np.where(label_of[states.tag_of] == label[:, np.newaxis], scores, -np.inf)
        for k in range(1, int((end - begin).max(initial=0))):
            [longer] = np.nonzero(end - begin > k)
            tokens = begin[longer] + k
            scores[longer] = inside.sums(scores[longer], tokens) + emissions[tokens]
        after = np.where(closing[:, 0], begin, end)  # any token where none follows
        leaving = around.sums(emissions[after] + suffixes[after], after, back=True)
        scores = scores + np.where(closing, states.last, leaving)
        return np.minimum(np.exp(_log_sum(scores, 1) - log_z[begin]), 1.0)


class _Segments:
    """Labellings of one text by segments, from the scores of segments by first token, length and tag (float64[T, K, tags])."""

    def __init__(self, states: _States, scores: Array, of_pairs: Optional[Array] = None):
        self.states, self._scores = states, scores
        self.steps = _Steps(states.matrix, states.tag_of, of_pairs)
        self.n_tokens, self.longest = scores.shape[:2]

    def of_states(self, begin: Any, end: Any) -> Array:
        """Scores of segments by state: float64[…, S]."""
        return self._scores[begin, end - begin - 1][..., self.states.tag_of]

    def n_best(self, n: int) -> list[tuple[float, list[tuple[int, int, int]]]]:
        """Scores and segments (begin, end, state) of the n best labellings, the best first."""
        ends, backs = [], []  # by end: scores of the best prefixes [n', S], and from where they come
        enters: list[tuple] = [(self.states.first[np.newaxis], (None, 1))]
        for end in range(1, self.n_tokens + 1):
            lengths = range(1, min(self.longest, end) + 1)  # of segments that end here
            ways = [enters[end - k][0] + self.of_states(end - k, end) for k in lengths]
            ranked = [(k, rank) for k, way in zip(lengths, ways) for rank in range(len(way))]
            every = np.concatenate(ways)
            order = np.argsort(-every, axis=0, kind="stable")[:n]
            ends.append(np.take_along_axis(every, order, 0))
            backs.append((order, ranked))
            if end < self.n_tokens:
                steps = self.steps.at(np.array([end]))[0]
                ways = (ends[-1].T[:, :, np.newaxis] + steps[:, np.newaxis]).reshape(-1, len(steps))
                order = np.argsort(-ways, axis=0, kind="stable")[:n]
                enters.append((np.take_along_axis(ways, order, 0), (order, len(ends[-1]))))
        if not self.n_tokens:
            return [(0.0, [])]
        final, found = (ends[-1] + self.states.last).T.ravel(), []
        for place in np.argsort(-final, kind="stable")[:n].tolist():
            if final[place] == -np.inf:
                break
            score, segments, end = float(final[place]), [], self.n_tokens
            state, rank = divmod(place, len(ends[-1]))
            while end:
                order, ranked = backs[end - 1]
                length, rank = ranked[order[rank, state]]
                segments.append((end - length, end, state))
                end -= length
                order, n_ranks = enters[end][1]
                state, rank = divmod(int(order[rank, state]) if end else 0, n_ranks)
            found.append((score, segments[::-1]))
        return found

    def sums(self) -> tuple[Array, Array, float]:
        """Log sums of what stands before and behind a segment, by its first token and its end (float64[T + 1, S]); and of all."""
        n = self.n_tokens
        enters, leaves = np.full((2, n + 1, len(self.states.first)), -np.inf)
        enters[0], leaves[n] = self.states.first, self.states.last
        for end in range(1, n + 1):
            begin = np.arange(max(0, end - self.longest), end)
            ends = _log_sum(enters[begin] + self.of_states(begin, end), 0)
            if end < n:
                enters[end] = self.steps.sums(ends[np.newaxis], np.array([end]))[0]
        for begin in range(n - 1, 0, -1):
            end = np.arange(begin + 1, min(n, begin + self.longest) + 1)
            begins = _log_sum(self.of_states(begin, end) + leaves[end], 0)
            leaves[begin] = self.steps.sums(begins[np.newaxis], np.array([begin]), back=True)[0]
        return enters, leaves, float(_log_sum(ends + self.states.last, 0)) if n else 0.0


Labelled = tuple[list[str], list[Entity]]  # tags and entities
_KINDS = {"chain": ("words", "tag"), "segments": ("segments", "entities"), "text": ("texts", "classify")}


class Model:
    """An exported model. `load` makes it.

    tags (list[str]): The tags of words, which are the `labels` where words have labels.
    columns (list[str]): The columns of rows that the model reads; "orth" is the word.
    """

    def __init__(self, content: dict[str, Any]):
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise LiteError(
                "this is no export of spacy_crf, which `python -m spacy crf export MODEL FILE --to npz` writes."
            )
        if content["version"] != VERSION:
            known = f"version {content['version']} of the format, and this lite.py reads version {VERSION}"
            raise LiteError(f"it has {known}. Take the lite.py of the spacy_crf that wrote it.")
        self.kind: str = content["kind"]  # "chain", "segments" or "text"
        if self.kind not in _KINDS:
            raise LiteError(f"this lite.py does not know models of the kind '{self.kind}'. Take a newer one.")
        self.labels: list[str] = content["labels"]
        self.columns: list[str] = content["columns"]
        self.has_spans, letters = content["scheme"] is not None, content["letters"]
        spelled = ["O", *(f"{letter}-{label}" for label in self.labels for letter in letters)]
        self.tags = spelled if self.has_spans else [*self.labels]
        n_states = 1 + len(self.labels) if self.kind == "segments" else len(self.tags)
        self._states = _States(content["states"], n_states)
        self._without_rules = _States(content["without_rules"], n_states) if "without_rules" in content else None
        self._readers = [_Features({**content, **reader}, n_states) for reader in content["readers"]]
        lengths = content["lengths"] if self.kind == "segments" else np.zeros((1, n_states))
        self._lengths = _numbers(lengths, shape=(len(lengths), n_states))
        least = content["min_prob"]
        self._least = None if least is None else _numbers(least, shape=(len(self.labels),), least=0.0)
        # The label of each tag, and whether a tag continues the span of the tag before it
        n, width = len(self.tags), max(1, len(letters))
        self._label_of = (np.arange(n) + width - 1) // width - 1 if self.has_spans else np.arange(n)
        letter = np.array([tag[0] if self.has_spans else "U" for tag in self.tags])
        goes_on = (self._label_of >= 0) & ~np.isin(letter, ["L", "U"])
        same = self._label_of[:, np.newaxis] == self._label_of
        self._continues = same & goes_on[:, np.newaxis] & ~np.isin(letter, ["B", "U"])

    def tag(self, text: Text) -> list[str]:
        """The most probable tags of a text, which is a list of words; or of rows, such as ["word", "NN"], whose first columns are
        those that the model reads. Words of spans that are less probable than `min_prob` have the tag O, single words "".
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
        return self._chain(self._readers[0].read([text])).marginals(len(self.tags))

    def n_best(self, text: Text, n: int) -> list[tuple[float, list[str]]]:
        """The n most probable labellings: their probabilities and tags, the best first."""
        self._expect("n_best", "chain", "segments")
        chain = self._segments(text)
        log_z = chain.sums()[2]
        return [(min(1.0, float(np.exp(score - log_z))), self._spell(found, chain)) for score, found in chain.n_best(n)]

    def tag_all(self, texts: Iterable[Text]) -> list[list[str]]:
        """`tag` for many texts, which takes a fraction of the time of one by one."""
        self._expect("tag", "chain", "segments")
        return [tags for batch in self._batches(texts) for tags, _ in self._labelled(batch, self._least is not None)]

    def entities_all(self, texts: Iterable[Text]) -> list[list[Entity]]:
        """`entities` for many texts."""
        self._expect("entities", "chain", "segments")
        if not self.has_spans:
            raise LiteError("This model labels words and has no entities. Take tag, or marginals for probabilities.")
        return [entities for batch in self._batches(texts) for _, entities in self._labelled(batch, True)]

    def classify_all(self, texts: Iterable[Text]) -> list[dict[str, float]]:
        """`classify` for many texts."""
        self._expect("classify", "text")
        found = []
        for batch in self._batches(texts):
            read = self._readers[0].read(batch)
            of_tokens, totals = self._readers[0].scores("states", read), np.tile(self._states.first, (len(batch), 1))
            np.add.at(totals, np.repeat(np.arange(len(batch)), np.diff(read.bounds)), of_tokens)
            rows = np.exp(totals - _log_sum(totals, 1)[:, np.newaxis]).tolist()
            found += [dict(sorted(zip(self.labels, row), key=lambda item: -item[1])) for row in rows]
        return found

    def _batches(self, texts: Iterable[Text]) -> Iterator[list[Text]]:
        texts, most = iter(texts), max(1, min(_AT_ONCE, _MOST_STEPS // len(self._states.first) ** 2))
        while batch := [*islice(texts, most)]:
            yield batch

    def _expect(self, method: str, *kinds: str) -> None:
        if self.kind not in kinds:
            raise LiteError(f"{method} does not fit a model of {_KINDS[self.kind][0]}. Take {_KINDS[self.kind][1]}.")

    def _instead(self, states: Optional[_States]) -> _States:
        """The states without rules, for a text of which no labelling keeps the rules."""
        if states is not None or self._without_rules is None:
            raise LiteError("A text has no labelling with a finite score. Export the model again.")
        return self._without_rules

    def _chain(self, batch: _Texts, states: Optional[_States] = None) -> _Chain:
        [reader], of_pairs, size = self._readers, None, len(self.tags)
        if "transitions" in reader.tables:
            of_pairs = reader.scores("transitions", batch).reshape(-1, size, size)
        return _Chain(states or self._states, reader.scores("states", batch), batch.bounds, of_pairs)

    def _labelled(self, texts: list[Text], weigh: bool, states: Optional[_States] = None) -> list[Labelled]:
        """Tags and entities of texts; no entities without `weigh`."""
        if self.kind == "segments":
            return [self._segmented(text, weigh) for text in texts]
        batch = self._readers[0].read(texts)
        chain, bounds = self._chain(batch, states), batch.bounds
        path = chain.best()
        if (path < 0).any():  # no labelling of some text keeps the rules
            fails = [(path[b:e] < 0).any() for b, e in pairwise(bounds)]
            instead = [self._instead(states) if failing else states for failing in fails]
            return [self._labelled([text], weigh, other)[0] for text, other in zip(texts, instead)]
        tag = chain.states.tag_of[path]
        tags, found = [self.tags[n] for n in tag.tolist()], [[] for _ in texts]
        if weigh:
            begin, end, label = self._spans(tag, bounds)
            probabilities = chain.probabilities(begin, end, label, self._label_of, self._continues)
            text_of = np.searchsorted(bounds, begin, side="right") - 1
            columns = (array.tolist() for array in (text_of, bounds[text_of], begin, end, label, probabilities))
            for b, first, i, j, of_span, probability in zip(*columns):
                if self._least is None or probability >= self._least[of_span]:
                    found[b].append(Entity(i - first, j - first, self.labels[of_span], probability))
                else:
                    tags[i:j] = ["O" if self.has_spans else ""] * (j - i)
        return [(tags[b:e], entities) for (b, e), entities in zip(pairwise(bounds.tolist()), found)]

    def _spans(self, path: Array, bounds: Array) -> tuple[Array, Array, Array]:
        """First tokens, ends and labels of the spans of tags (int[T])."""
        label, goes_on = self._label_of[path], np.zeros(len(path), dtype=bool)
        goes_on[1:] = self._continues[path[:-1], path[1:]]
        goes_on[bounds[:-1][np.diff(bounds) > 0]] = False
        begins, ends = (label >= 0) & ~goes_on, label >= 0
        ends[:-1] &= ~goes_on[1:]
        begin = np.flatnonzero(begins)
        return begin, np.flatnonzero(ends) + 1, label[begin]

    def _spell(self, segments: list[tuple[int, int, int]], chain: _Segments) -> list[str]:
        """Tags of segments (begin, end, state)."""
        tags: list[str] = []
        for begin, end, state in segments:
            tag = int(chain.states.tag_of[state])
            begins, goes_on = self.tags[2 * tag - 1 : 2 * tag], self.tags[2 * tag : 2 * tag + 1]
            is_span = self.kind == "segments" and tag > 0
            tags += begins + goes_on * (end - begin - 1) if is_span else [self.tags[tag]]
        return tags

    def _segmented(self, text: Text, weigh: bool, states: Optional[_States] = None) -> Labelled:
        """Tags and entities of one text by a chain of segments."""
        chain = self._segments(text, states)
        best = chain.n_best(1)
        if not best:
            return self._segmented(text, weigh, self._instead(states))
        [(_, segments)] = best
        tags, found = self._spell(segments, chain), []
        sums: Any = chain.sums() if weigh else (None, None, 0.0)
        enters, leaves, log_z = sums
        for begin, end, state in segments if weigh else []:
            label, same = int(chain.states.tag_of[state]) - 1, chain.states.tag_of == chain.states.tag_of[state]
            scores = enters[begin] + chain.of_states(begin, end) + leaves[end]
            probability = min(1.0, float(np.exp(_log_sum(scores[same], 0) - log_z)))
            if label >= 0 and self._least is not None and probability < self._least[label]:
                tags[begin:end] = ["O"] * (end - begin)
            elif label >= 0:
                found.append(Entity(begin, end, self.labels[label], probability))
        return tags, found

    def _segments(self, text: Text, states: Optional[_States] = None) -> _Segments:
        """The scores of all segments of one text, by first token, length and label."""
        size, n_tokens = self._lengths.shape[1], len(text)
        longest = max(1, min(len(self._lengths), n_tokens))
        totals = {name: np.zeros((n_tokens, size)) for name in ("states", "begins", "ends", "tokens")}
        scores, of_pairs = np.full((n_tokens, longest, size), -np.inf), None
        reads = [(reader, reader.read([text])) for reader in self._readers]
        for reader, read in reads:
            totals.update((name, reader.scores(name, read)) for name in reader.tables if name in totals)
            if "transitions" in reader.tables:
                of_pairs = reader.scores("transitions", read).reshape(-1, size, size)
        sums = np.vstack([np.zeros(size), np.cumsum(totals["states"] + totals["tokens"], axis=0)])
        for k in range(1, longest + 1):
            n = max(0, n_tokens - k + 1)
            of_ends = totals["begins"][:n] + totals["ends"][k - 1 :]
            scores[:n, k - 1] = sums[k:] - sums[:n] + of_ends + self._lengths[k - 1]
        for reader, read in reads:
            reader.add_spans(read, scores)
        return _Segments(states or self._states, scores, of_pairs)
