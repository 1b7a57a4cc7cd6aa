"""Functions that make the features of imported models from the columns of words: users' own functions, and the lines of CRF++'s
templates and Wapiti's patterns, which are texts with places for words.

Loading a pipeline must not run code that its config names by a path. So the config of an imported model names a registered
function, and a file beside the model registers the function; users can read that file and pass it to commands with ``--code``.
"""

import importlib
import re
from collections.abc import Callable, Sequence
from itertools import chain, pairwise, repeat
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from spacy.util import registry

from ..errors import Errors, function_failed, known_names, shown
from ..whole_files import write_whole
from .foreign import ForeignModel, Weighted
from .tokenizer import WORDS_OF

# Attributes of tokens for columns; first those whose values are strings in templates too
TEXTS = ("orth", "lower", "norm", "shape", "prefix", "suffix", "tag", "pos", "lemma", "dep", "ent_type")
ATTRIBUTES = (*TEXTS, "morph", "ent_iob")


class Columns:
    """Reads the columns of words from the tokens of a Doc, as other programs read them from a file.

    names (Sequence[str]): Attributes of tokens, or extensions as ``ext:NAME``.
    RAISES (ValueError): CRF868 for an unknown attribute.
    """

    def __init__(self, names: Sequence[str]):
        for name in names:
            if name not in ATTRIBUTES and not name.startswith("ext:"):
                raise ValueError(
                    Errors.CRF868.format(
                        option="columns", value=name, known=known_names([*ATTRIBUTES, "ext:NAME"], name)
                    )
                )
        self._getters = [_getter(name) for name in names]

    def read(self, doc: Doc) -> list[list[list[str]]]:
        """Read the columns of each sequence of a Doc. Sequences begin at known sentence starts, as in the component."""
        columns = [list(map(get, doc)) for get in self._getters]
        starts = [token.i for token in doc if token.i == 0 or token.is_sent_start]
        bounds = [*starts, len(doc)] if len(doc) else []
        sequences = []
        for begin, end in pairwise(bounds):
            sequences.append([column[begin:end] for column in columns])
        return sequences


def _getter(name: str):
    """The function that reads a column from a token."""
    if name == "orth":
        return attrgetter("text")
    if name.startswith("ext:"):
        return lambda token: str(token._.get(name[4:]))
    if name == "morph":
        return lambda token: str(token.morph)
    return attrgetter(f"{name}_")


def set_columns(doc: Doc, names: Sequence[str], values: Sequence[Sequence[str]]) -> None:
    """Annotate a Doc with the columns of a file, except for columns that follow from the words."""
    for name, column in zip(names, values):
        for token, value in zip(doc, column):
            if name.startswith("ext:"):
                token._.set(name[4:], value)
            elif name == "morph":
                token.set_morph(value)  # pyright: ignore[reportAttributeAccessIssue]  not in its stub
            elif name in ("norm", "tag", "pos", "lemma", "dep", "ent_type"):
                setattr(token, f"{name}_", value)


FILE_NAME = "functions.py"
# Names of the sources of features of labels, of pairs of labels, and of words
SOURCE = "imported"
PAIRS = "imported_pairs"
WORDS = "imported_words"
_FILE = '''"""Registers what makes the features of the model in this folder: give it to commands with --code, or run it before
spacy.load."""

{imports}

from spacy_crf.migrate.functions import register_features

{calls}
'''


class WordFunction:
    """Turns a function of sentences, such as users of sklearn-crfsuite write, into a function of Docs.

    name (str): Name of the function, for messages.
    function (Callable): Takes a list of words, or of tuples if there are several columns; returns a dict of features for each.
    columns (Sequence[str]): The columns of a word: attributes of tokens, or extensions as ``ext:NAME``.
    word_of (Callable): Returns the word of a token from its text, for functions that take words alone; None to take the text.
    """

    def __init__(
        self,
        name: str,
        function: Callable[[list], list],
        columns: Sequence[str],
        word_of: Optional[Callable[[str], str]] = None,
    ):
        self._name = name
        self._function = function
        self._columns = Columns(columns)
        self._word_of = word_of if list(columns) == ["orth"] else None

    def __call__(self, doc: Doc) -> list[object]:
        """Make the features of each token. RAISES (ValueError): CRF987 if the function fails, CRF110 for a wrong length."""
        rows: list[object] = []
        for sequence in self._columns.read(doc):
            words: list[Any] = sequence[0] if len(sequence) == 1 else [*zip(*sequence)]
            if self._word_of is not None:
                words = [self._word_of(word) for word in words]
            try:
                of_words = list(self._function(list(words)))
            except Exception as error:  # whatever users' functions raise
                raise self._failed(words, error) from error
            if len(of_words) != len(words):
                raise ValueError(
                    Errors.CRF110.format(name=self._name, start=doc.text[:40], got=len(of_words), expected=len(words))
                )
            rows.extend(of_words)
        return rows

    def _failed(self, words: Sequence[object], error: Exception) -> ValueError:
        """Make the error CRF987, with the first word on which alone the function fails, or else with all words."""
        for word in words:
            try:
                self._function([word])
            except Exception:
                return function_failed(self._name, f"the word {shown(word)}", error)
        return function_failed(self._name, f"the words {shown(list(words))}", error)


def register_features(name: str, function: Callable, *, columns: Sequence[str] = ()) -> None:
    """Register a function, so that pipelines imported with it can be loaded.

    name (str): Name of the function in the configs of these pipelines.
    columns (Sequence[str]): The function takes a list of words, or of tuples of these columns; without columns it takes a Doc,
        or one word. Functions of usaddress and probablepeople take the words that these programs find.
    """
    words = WORDS_OF.get(name.partition(".")[0])
    word_of = None if words is None else words.of_token
    source: Callable = function
    if columns:
        source = WordFunction(name, function, columns, word_of)
    elif word_of is not None:
        source = _of_words(function, word_of)
    registry.misc.register(name, func=lambda: source)


def _of_words(function: Callable[[Any], Any], word_of: Callable[[str], str]) -> Callable[[str], Any]:
    """Turn a function that takes a word or a Doc into one that takes the text of a token or a Doc."""

    def of_text(text: object) -> object:
        return function(word_of(text) if isinstance(text, str) else text)

    return of_text


def find_function(path: str) -> tuple[str, Callable]:
    """Import the function that a path names, such as ``usaddress:tokens2features``.

    RETURNS (str, Callable): The name to register, and the function.
    RAISES (ValueError): CRF859 if there is no such function.
    """
    module, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(Errors.CRF859.format(path=path, reason=error)) from error
    if not callable(function) or not name.isidentifier():
        raise ValueError(Errors.CRF859.format(path=path, reason="it is not callable"))
    return f"{module}.{name}", function


def write_registration(folder: Path, paths: dict[str, Sequence[str]]) -> Path:
    """Write a file that registers the functions that paths name, each with its columns. RETURNS (Path): The file."""
    imports = []
    calls = []
    for path, columns in paths.items():
        module, _, function = path.partition(":")
        imports.append(f"import {module}")
        calls.append(f'register_features("{module}.{function}", {module}.{function}, columns={list(columns)})')
    text = _FILE.format(imports="\n".join(dict.fromkeys(imports)), calls="\n".join(calls))
    target = folder / FILE_NAME
    write_whole(target, text.encode("utf8"))
    return target


# ------------------------------------------------------------------------------------------ templates and patterns


class PatternPlace(NamedTuple):
    """A place in a pattern, filled by the text of a column."""

    column: int
    offset: int  # from the anchor
    anchor: str = "token"  # or "start": the first token of the sentence, or "end": the place behind its last token
    change: Optional[Callable[[str], str]] = None  # turns the text of the column into the text for the place
    of_word: str = ""  # the line that makes this change of a word, and nothing else


class Pattern(NamedTuple):
    """A line that makes feature names."""

    form: str  # with %s for each place
    places: tuple[PatternPlace, ...]


class PatternSource:
    """Makes the same feature names as the other program: a source for ``fn:NAME[0]``.

    lines (Sequence[str]): Lines, escaped as in configs. Each line makes one name at each token.
    compile_line (Callable[[str], Pattern]): Compiles an unescaped line.
    columns (Sequence[str]): Attributes of tokens in the columns.
    outside (Callable[[int], str]): Returns the text of positions outside a sequence, at -1, -2 … before and +1, +2 … behind it.
    RAISES (ValueError): CRF864 if a line reads a column that does not exist.
    """

    def __init__(
        self,
        lines: Sequence[str],
        compile_line: Callable[[str], Pattern],
        columns: Sequence[str],
        outside: Callable[[int], str],
    ):
        self._patterns = patterns = [compile_line(from_config(line)) for line in lines]
        self._columns = Columns(columns)
        places = list(chain.from_iterable(pattern.places for pattern in patterns))
        needed = max([place.column + 1 for place in places], default=0)
        if needed > len(columns):
            raise ValueError(Errors.CRF864.format(needed=needed, given=", ".join(columns) or "none"))
        self._reach = max([abs(place.offset) for place in places], default=0)
        self._before = [outside(n) for n in range(-self._reach, 0)]
        self._behind = [outside(n) for n in range(1, self._reach + 1)]
        self._outside = outside

    def __call__(self, doc: Union[Doc, str]) -> Any:
        """The names at each token of a Doc; or of a word, which is the only column, the name that the first line makes."""
        if isinstance(doc, str):
            return self._rows([[doc]])[0][0]
        return list(chain.from_iterable(map(self._rows, self._columns.read(doc))))

    def _rows(self, columns: list[list[str]]) -> list[list[str]]:
        """The names at each token of one sequence: [tokens][patterns]. Filling a pattern at all tokens at once takes a third of
        the time of doing so token by token."""
        size = len(columns[0]) if columns else 0
        padded = [[*self._before, *column, *self._behind] for column in columns]
        names = []
        for form, places in self._patterns:
            filled = [self._fill(place, columns[place.column], padded[place.column]) for place in places]
            by_token = zip(*filled) if filled else repeat((), size)
            names.append([form % texts for texts in by_token])
        return list(map(list, zip(*names))) if names else [[] for _ in range(size)]

    def _fill(self, place: PatternPlace, column: list[str], padded: list[str]) -> Sequence[str]:
        """The text of a place at each token of a sequence. padded (list[str]): The column with the positions around it."""
        size = len(column)
        if place.anchor == "token":
            begin = self._reach + place.offset
            words = padded[begin : begin + size]
            return words if place.change is None else [*map(place.change, words)]
        at = place.offset + (size if place.anchor == "end" else 0)
        word = column[at] if 0 <= at < size else self._outside(at if at < 0 else at - size + 1)
        return [word if place.change is None else place.change(word)] * size


def compile_form(
    line: str, command: "re.Pattern[str]", place: Callable[["re.Match[str]"], PatternPlace], known: str
) -> Pattern:
    """Compile a line with commands such as ``%x[-1,0]``.

    command (re.Pattern): Matches a command.
    place (Callable): Makes the place of a matched command.
    known (str): The commands, for messages.
    RAISES (ValueError): CRF856 for any other "%".
    """
    literals = []  # the texts before, between and behind the commands
    places = []
    at = 0
    for match in command.finditer(line):
        literals.append(line[at : match.start()])
        places.append(place(match))
        at = match.end()
    literals.append(line[at:])
    for literal in literals:
        if "%" in literal:
            raise ValueError(Errors.CRF856.format(template=line, reason=f"'%' begins only {known}, not {literal!r}"))
    return Pattern("%s".join(literals), tuple(places))


def for_config(text: str) -> str:
    """Escape a pattern for a config, which doubles a dollar each time it is written: the dollar is spelled %24."""
    return text.replace("%2", "%252").replace("$", "%24")


def from_config(text: str) -> str:
    """Undo `for_config`."""
    return text.replace("%24", "$").replace("%252", "%2")


def assemble(
    program: str,
    labels: list[str],
    names: list[str],
    blocks: tuple[NDArray[np.int64], NDArray[np.int64]],
    ids: NDArray[np.int64],
    weights: NDArray[np.float64],
    patterns: list[str],
    constants: set[str],
) -> ForeignModel:
    """Make a model from weights that are numbered from 0 on.

    names (list[str]): Names of the F features.
    blocks (tuple[int64[F], int64[F]]): For each feature, the number of its first weight for a label, and of its first weight for
        a pair of labels; -1 if it has none.
    ids (int64[W]), weights (float64[W]): Numbers and values of the weights other than 0.
    patterns (list[str]): Lines in the program's own syntax.
    constants (set[str]): Features of pairs at every token except the first; their weights are transitions.
    """
    size = len(labels)
    first_of_labels, first_of_pairs = blocks
    states = Weighted(names, *_in_blocks(first_of_labels, size, ids, weights))
    rows, columns, values = _in_blocks(first_of_pairs, size * size, ids, weights)
    is_transition = np.array([name in constants for name in names], dtype=bool)[rows]
    transitions: Any = np.bincount(columns[is_transition], weights=values[is_transition], minlength=size * size)
    transitions = transitions.reshape(size, size)
    pairs = Weighted(names, rows[~is_transition], columns[~is_transition], values[~is_transition])
    return ForeignModel(program, labels, states, transitions, pairs, patterns)


def _in_blocks(
    starts: NDArray[np.int64], size: int, ids: NDArray[np.int64], weights: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Find the weights in blocks of equal size.

    starts (int64[F]): The number of the first weight in the block of each feature; -1 for a feature without a block.
    ids (int64[W]), weights (float64[W]): Numbers and values of the weights.
    RETURNS (int64[V], int64[V], float64[V]): The feature, the place in its block, and the value of each weight in a block.
    """
    # A weight can only be in the last block that begins at or before it
    features = np.argsort(starts, kind="stable")
    features = features[starts[features] >= 0]
    n_before = np.searchsorted(starts[features], ids, side="right")
    ids = ids[n_before > 0]
    weights = weights[n_before > 0]
    rows = features[n_before[n_before > 0] - 1]
    columns = ids - starts[rows]
    is_inside = columns < size
    return rows[is_inside], columns[is_inside], weights[is_inside]


def template_lines(text: str) -> list[str]:
    """The lines of a file of templates, except empty lines."""
    return [line for line in re.split(r"\r?\n", text) if line.strip()]
