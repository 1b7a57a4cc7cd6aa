"""Features of characters: properties of code points, n-grams of characters and of runs, words of a lexicon."""

import re
import unicodedata
import zlib
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..errors import Errors
from ..kernels import characters as kernels
from ..kernels import gazetteers
from ..kernels.hashing import hash_runs
from ..types import Bools, Ints
from .feature_index import HashTable

if TYPE_CHECKING:
    from spacy.tokenizer import Tokenizer

UNICODE = (
    "18.0"  # the version of the grapheme clusters; kinds and classes of characters are those of Python's own version
)
N_POINTS = 0x110000
_BLOCK = 256
_HANGUL = 0xAC00  # the first of 399 open syllables, each followed by the 27 closed ones that begin like it
_N_HANGUL = 399 * 28
# The code points with properties that grapheme clusters depend on (from GraphemeBreakProperty.txt, emoji-data.txt and
# DerivedCoreProperties.txt of Unicode): how many others come before, the property, and how many more code points have it, in
# hexadecimal digits. A test compares them with the package regex
_LETTERS = {
    "s": kernels.RETURN,
    "n": kernels.LINE_FEED,
    "q": kernels.CONTROL,
    "l": kernels.LEADING,
    "v": kernels.VOWEL,
    "t": kernels.TRAILING,
    "p": kernels.PREPENDED,
    "m": kernels.SPACING_MARK,
    "r": kernels.INDICATOR,
    "y": kernels.PICTOGRAPH,
    "k": kernels.CONSONANT,
    "j": kernels.LONE_LINKER,
    "w": kernels.NON_JOINER,
    "i": kernels.LINKER,
    "x": kernels.MARK,
    "z": kernels.JOINER,
}
_RANGES = """
    q9 n q1 s q11 5fq20 9y 3q y 251x6f 113x6 107x2c 1x 1x1 1x1 1x2 36p5 axa 1q 2ex14 10x 65x6 p 1x5 2x1 1x3 21p 1x
    1ex1a 5bxa 3ax8 9x 18x3 1x8 1x2 1x4 2bx2 34p1 5x8 2ax17 p x1f m 11k24 x m x 1m2 x7 m3 i m1 1x6 k7 2x1 14k7 1x m1
    11k13 1k6 1k 3k3 2x 1x m1 x3 2m1 2m1 i 9x 4k1 1k 2x1 ck1 cx 2x1 m 38x 1m2 x1 4x1 2x2 3x 1ex1 3x bx1 m 11k13 1k6
    1k1 1k4 2x 1m2 x4 1x1 m 1m1 i 14x1 15k x5 1x m1 11k13 1k6 1k1 1k4 2x 1x1 m x3 2m1 2m1 i 5x4 4k1 1k 2x1 dk 10x 3bx
    m x m1 3m2 1m2 x 9x 28x m2 x 10k13 1kf 2x 1x2 m3 1x2 1x2 i 7x1 1k2 7x1 1dx m1 38x 1m x1 m x m1 1x2 1x3 7x1 bx1 fm
    cx1 m1 11k25 x1 1x m1 x3 1m2 1m2 i p 8x ax1 1dx m1 46x 4x m1 x2 1x 1m6 x 12m1 3dx 1m x6 cx7 62x 1m x8 bx6 49x1 1bx
    1x 1x 4m1 31xd m x4 1x1 5xa 1x23 9x 39k2a 2x3 m x5 1i x m1 x1 k 10k5 m1 x1 k3 x2 k 3k1 7k2 x3 kc x 1m x1 6x k ex
    62l5f v47 t57 15dx2 3b2x3 1cx2 1dx1 1ex1 ck33 x1 m x6 m7 x m1 x8 i x 9x 2dx2 q x 75x1 22x 76x2 m3 x1 m2 4m1 x m5
    x2 dbx1 m1 x 4k34 m x m x6 1i 1x 2x7 m5 x9 2x 30x40 fx3 m 6k1 6k20 x9 m3 x1 i k7 1ex8 cx1 m k1d m x3 m1 x2 i x1 k1
    bk2 28x m x1 m2 x m x4 30m7 x7 m1 x1 98x2 1xc m x6 4x 6x j1 m x1 c6x3f 20bq w z q1 18q6 dy cy 16qf 60x20 31y 16y
    5ay5 fy1 16fy1 cy a6y 19ya 4y2 c7y e7y1 ay 9y 3ay3 1y4 9y 2y 2y1 2y 4y 2y 1y1 2y 3y 3y1 8y2 5y 1y 5yb by1 2y 1y1
    1y 12y 2y1 12y5 1y 1y1 3y1 5y 2y1 4y1 by1 5y1 2y 5y1 1y 1y1 14y1 5y5 1y3 2y 4y 2y 2y5 1y 2y 1y 1y 6y 3y 6y ay1 fy
    2y 4y 1y 4y2 1y by1 30y2 9y ey ey 174y1 1cfy2 13y1 33y 4y 199x2 8dx 60x1f 22ax5 y cy 5bx1 1fcy 1y 73d5x3 1x9 20x1
    50x1 110x 3x 4x 17m1 x1 m 4x 53m1 32mf x1 1ax11 dx 26x7 19xa m x cl1c 3x2 m 5k2 3k23 x m1 x3 m1 x1 m1 i 1fk4 x 1k8
    ak4 2ax5 m1 x1 m1 x1 cx 8x m 12kf 1k2 6k 1x 1k1 30x 1x2 2x1 5x1 1x 1eka m x1 m1 5m i c9k1a 8m1 x m1 x m1 1m x
    2bc2v16 4t30 2322x 2e1xf 10xf cfq 9ex1 50qb 201x e2x 95x4 685k x2 1x1 5x3 k3 1k2 1k1c 2x2 4i a5x1 23dx3 41x4 13dx1
    1ex4 20xf 46xa 31x3 7am x m 35xe 29x 2x1 ax2 m 2dm2 x3 m1 x1 2p 4x ap 32x2 k23 x4 m x5 i x fk m1 k 2bx cx1 m 30m2
    x8 m x 1p1 5x3 1m x 5cm2 x2 m1 x3 6x 2x 9dx m2 x7 15x1 m1 37x1 1x m x m3 2m1 2m1 x 9x am1 2x6 3x4 bk9 1k 2k 1k25
    2x m1 x5 1x 2x 1x2 m 1m1 x1 i p x ex1 52m2 x7 m1 x2 m x 17x 51x m1 x5 m x m1 x m x1 m x1 ebx m1 x3 2m3 x1 m x1
    1bx1 52m2 x7 m1 x m x1 6ax m x m1 x7 65x m x 2x3 m x4 100m2 x8 m x1 c5k6 2k 2k7 1k1 1k17 x m4 1m1 2x2 i p m p m x
    8dm2 x3 2x1 m3 x 3m 1bk x9 k27 x5 m j x3 8i 8k x5 m1 x2 k27 p5 xc m x i 70k 55x m x2 m x m c7m x6 1x5 m x 52x15 1m
    x6 m x1 m x1 7ax5 3x 1x1 1x6 p x 42m4 1x1 1m1 x m x 58x k 101x1 m1 9x1 p m kc 1k21 m1 x4 3m1 x1 i 17x 14d5qf x 6xe
    2cc8xb m2 x2 9c0x4 3bx6 22cv 3v3 1e4x 1m36 7x3 51x bx1 4cabx1 1q3 125cx2d 2x16 1e0x1 3cx4 3x5 q7 x7 2x6 1ex3 94x2
    bx2 8x1 2x 20x1 77ex36 4x31 8x ex 16x4 1xe 550x6 1x10 2x6 1x1 1x4 64x a0x6 177x 3dx3 1fcx3 fex1 f3x 2x 7x1 5x
    1dax6 6dx6 6b9y 27y3 64yb fy1 fy ey1 25y9 70y1 cy1 ey 2y9 14y36 r19 1ye ay 14y 2y8 1y3 9y16 6ybb 2y6f 2y1 1y2 2y52
    2y2 1y3 x4 yfd 1y3e by5 1y17 7y1 2y7 cy 2y3 2y 4y1 dy1 2y 8y1 9y 5y2 cy2 8y2 2y 1y 4y 6y 3y 6y55 30y45 5y7 2y10 3y
    1y5 2yc dcy14 1by3 38y7 ay5 28y7 1ey1 cy3 2yd 9y26 cy2e 1y9 1yb8 58y7 ey91 100y3fd c0002q1f x5f q7f xef qe0f"""


@cache
def break_properties() -> NDArray[np.uint8]:
    """The property of each code point by which grapheme clusters are found: uint8[N_POINTS]."""
    properties = np.zeros(N_POINTS, dtype=np.uint8)
    point = 0
    for before, letter, more in re.findall(r"([0-9a-f]*)([g-z])([0-9a-f]*)", _RANGES):
        point += int(before or "0", 16)
        behind = point + int(more or "0", 16) + 1
        properties[point:behind] = _LETTERS[letter]
        point = behind
    properties[_HANGUL : _HANGUL + _N_HANGUL] = kernels.CLOSED_SYLLABLE
    properties[_HANGUL : _HANGUL + _N_HANGUL : 28] = kernels.OPEN_SYLLABLE
    return properties


class CodePoints:
    """The kind and the class of each code point, filled in block by block as texts have them."""

    def __init__(self) -> None:
        self._is_known = np.zeros(N_POINTS // _BLOCK, dtype=bool)
        self.kinds = np.zeros(N_POINTS, dtype=np.uint8)
        self.classes = np.zeros(N_POINTS, dtype=np.uint16)

    def learn(self, points: NDArray[np.uint32]) -> None:
        """Fill in the blocks of some code points (uint32[T])."""
        blocks = points // _BLOCK
        for block in np.unique(blocks[~self._is_known[blocks]]).tolist():
            for point in range(block * _BLOCK, (block + 1) * _BLOCK):
                self.kinds[point], self.classes[point] = _describe(chr(point))
            self._is_known[block] = True


def _describe(character: str) -> tuple[int, int]:
    """The kind of a character, and its class: a hash of its category, width and, of letters and marks, script."""
    category = unicodedata.category(character)
    width = unicodedata.east_asian_width(character)
    script = ""
    kind = kernels.OTHER
    if character.isspace():
        kind = kernels.SPACE
    elif category[0] in "LMN":
        kind = kernels.WORD
        # Python knows no scripts, but names begin with them: "LAO VOWEL SIGN A"; vowels of Thai: "THAI CHARACTER SARA A"
        name = unicodedata.name(character, "").split()
        script = f"{name[:1]} {'VOWEL' in name or 'SARA' in name}"
    what = f"{category} {width in 'FH'} {script}"
    return kind, zlib.crc32(what.encode()) & 0xFFFF


CODE_POINTS = CodePoints()


def code_points(text: str) -> NDArray[np.uint32]:
    """The code points of a text: uint32[T]. RAISES (ValueError): CRF990 for half of a surrogate pair."""
    try:
        return np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    except UnicodeEncodeError as error:
        raise ValueError(Errors.CRF990.format(place=error.start, text=ascii(text[: error.start + 1][-40:]))) from error


class Texts(NamedTuple):
    """Texts as code points, laid end to end, with the units that they may be cut into."""

    points: NDArray[np.uint32]  # [T]
    text_starts: Ints  # [B + 1]
    begins: Bools  # [T] where grapheme clusters begin
    units: Ints  # [U] where units begin
    ends: Ints  # [U] where units end
    starts: Ints  # [B + 1] the first unit of each text
    gaps: NDArray[np.uint8]  # [U] what stands before each unit: `kernels.NOTHING`, BLANK or BEGINNING
    rule_tokens: Ints  # [K, 2] where the tokens that the rules of a language find begin and end

    @classmethod
    def of(cls, texts: Sequence[str], *, joins_words: bool, language_rules: "Optional[Tokenizer]" = None) -> "Texts":
        """Find the units of texts.

        texts (Sequence[str]): The texts.
        joins_words (bool): Whether neighbouring letters, marks and digits are one unit; else each grapheme cluster is one.
        language_rules (Optional[Tokenizer]): spaCy's tokenizer of a language, whose tokens become features; None for none.
        RAISES (ValueError): CRF990 for half of a surrogate pair.
        """
        points_of_texts = [code_points(text) for text in texts]
        text_starts = np.zeros(len(points_of_texts) + 1, dtype=np.int64)
        np.cumsum([len(points) for points in points_of_texts], out=text_starts[1:])
        points = np.concatenate([np.zeros(0, dtype=np.uint32), *points_of_texts])
        CODE_POINTS.learn(points)
        begins = kernels.cluster_starts(points, text_starts, break_properties())
        units, ends, starts, gaps = kernels.find_units(points, text_starts, begins, CODE_POINTS.kinds, joins_words)
        rule_tokens = np.zeros((0, 2), dtype=np.int64)
        if language_rules is not None:
            bounds = [start + _token_bounds(language_rules, text) for text, start in zip(texts, text_starts)]
            rule_tokens = np.concatenate([rule_tokens, *bounds])
            is_space = CODE_POINTS.kinds[points[rule_tokens[:, 0]]] == kernels.SPACE
            rule_tokens = rule_tokens[~is_space]
        return cls(points, text_starts, begins, units, ends, starts, gaps, rule_tokens)


def _token_bounds(tokenizer: "Tokenizer", text: str) -> Ints:
    """Where the tokens of a text begin and end: int64[K, 2]."""
    bounds = tokenizer(text).to_array(["IDX", "LENGTH"]).astype(np.int64)
    bounds[:, 1] += bounds[:, 0]
    return bounds


# The items of which n-grams are features, with the largest n, and how many items on either side of a boundary count
NGRAMS = dict.fromkeys(("characters", "classes", "runs", "shapes"), (kernels.LONGEST_NGRAM, kernels.WINDOW))
KINDS = (*NGRAMS, "rule tokens")  # there are rule tokens only with `language_rules`
_RULE_START = np.uint64(1 << 16)  # more than any class
# Codes of characters and classes are smaller
_SEEDS = np.arange(1, 1 + len(KINDS), dtype=np.uint64) << np.uint64(40)


class Items(NamedTuple):
    """Codes of all items of which n-grams are made: those of each text by their kinds, in the order of `KINDS`."""

    codes: NDArray[np.uint64]  # [N]
    places: Ints  # [N] the code point where each begins
    starts: Ints  # [Q + 1] where sequences begin: one for each kind of items and text
    seeds: NDArray[np.uint64]  # [Q] see `kernels.hash_ngrams`

    @classmethod
    def of(cls, texts: Texts) -> "Items":
        """The items of some texts."""
        points = texts.points
        rule_starts, rule_ends = texts.rule_tokens.T
        # The class of each character, and whether a token of the rules begins there
        classes = CODE_POINTS.classes[points].astype(np.uint64)
        classes[rule_starts] += _RULE_START
        rule_hashes = np.empty(len(rule_starts), dtype=np.uint64)
        hash_runs(points.astype(np.uint64), rule_starts, rule_ends, rule_hashes)
        run_places, run_starts, runs, shapes = kernels.find_runs(
            points, texts.text_starts, CODE_POINTS.kinds, CODE_POINTS.classes
        )
        every_place = np.arange(len(points))
        codes = [points, classes, runs, shapes, rule_hashes]
        places = [every_place, every_place, run_places, run_places, rule_starts]
        # The first item of each text, by kind
        first_rule_tokens = np.searchsorted(rule_starts, texts.text_starts)
        text_starts = [texts.text_starts, texts.text_starts, run_starts, run_starts, first_rule_tokens]
        n_before = 0
        starts = []
        for starts_of_kind in text_starts:
            starts.append(n_before + starts_of_kind[:-1])
            n_before += starts_of_kind[-1]
        return cls(
            np.concatenate(codes, dtype=np.uint64),
            np.concatenate(places),
            np.concatenate([*starts, [n_before]]),
            np.repeat(_SEEDS, len(texts.text_starts) - 1),
        )


class Lexicon:
    """The words of a lexicon as a trie: a table of the hashes of their beginnings.

    keys (uint64[K]): The hash of each beginning of a word.
    lengths (int32[K]): The number of code points of a beginning that is itself a word; 0 for others.
    """

    LONGEST = 6  # words of this length or longer share their features

    def __init__(self, keys: NDArray[np.uint64], lengths: NDArray[np.int32]):
        self.keys = keys
        self.lengths = lengths
        self._table = HashTable(keys)

    @classmethod
    def of(cls, words: Iterable[str]) -> "Lexicon":
        """Make the trie of some words. RAISES (ValueError): CRF990 for a word with half of a surrogate pair."""
        points_of_words = [code_points(word) for word in words if word]
        sizes = np.array([len(points) for points in points_of_words], dtype=np.int64)
        ends = np.cumsum(sizes)
        points = np.concatenate([np.zeros(0, dtype=np.uint32), *points_of_words]).astype(np.uint64)
        hashes = gazetteers.hash_beginnings(points, np.append(0, ends))
        length_at = np.zeros(len(points), dtype=np.int32)
        length_at[ends - 1] = sizes
        keys, key_at = np.unique(hashes, return_inverse=True)
        lengths = np.zeros(len(keys), dtype=np.int32)
        np.maximum.at(lengths, key_at, length_at)
        return cls(keys, lengths)

    def marks(self, texts: Texts) -> NDArray[np.uint32]:
        """Where words of the lexicon begin, end and go on in texts: uint32[T], 3 * LONGEST bits, see `kernels.mark_words`."""
        marks = np.zeros(len(texts.points), dtype=np.uint32)
        kernels.mark_words(texts.points, texts.text_starts, self.lengths, self._table.arrays, self.LONGEST, marks)
        return marks

    def annotation(self, text: str) -> NDArray[np.int8]:
        """Where words of the lexicon begin and go on in a text; the longest of them count first.

        text (str): The text.
        RETURNS (int8[T]): 1 where a word begins, or one of the lexicon has ended; -1 where one goes on; 0 elsewhere.
        """
        labels = np.where(self.lengths > 0, 0, -1).astype(np.int32)
        parts_of_words = np.arange(4, dtype=np.uint64)[np.newaxis]
        points = code_points(text).astype(np.uint64)
        bounds = np.array([0, len(points)])
        parts = gazetteers.positions_in_phrases(points, bounds, self._table.arrays, labels, parts_of_words)
        known = np.zeros(len(text), dtype=np.int8)
        ends = np.flatnonzero((parts == gazetteers.LAST) | (parts == gazetteers.UNIT))
        known[ends[ends + 1 < len(text)] + 1] = 1
        known[(parts == gazetteers.INSIDE) | (parts == gazetteers.LAST)] = -1
        known[(parts == gazetteers.BEGIN) | (parts == gazetteers.UNIT)] = 1
        return known
