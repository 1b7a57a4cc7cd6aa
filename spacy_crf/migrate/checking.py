"""Compares an imported model with the program that trained it."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Optional

from spacy.language import Language
from spacy.tokens import Doc

from ..blanks import split_words
from ..errors import Errors, optional_package
from ..features.items import named_numbers
from .foreign import ForeignModel, Weighted
from .functions import PAIRS, SOURCE, Columns

TIE = 1e-5  # labellings whose scores are nearer than this are equally good in float32

Rows = list[Any]  # for each token, the features that a source makes
# Labels a Doc by the other program, given the features of its tokens
Rival = Callable[[Doc, Rows], list[str]]


class Comparison(NamedTuple):
    """Counts of a comparison of two programs on the same texts."""

    sequences: int
    tokens: int
    different: int  # tokens with different labels
    ties: int  # tokens among these in sequences whose two labellings have equal scores
    largest_gap: float  # largest difference between the scores of the two labellings of a sequence

    @property
    def is_same(self) -> bool:
        """Whether both programs give the same labels, but for labellings that are equally good."""
        return self.different == self.ties


def scorer_of(model: ForeignModel) -> Callable[[Rows, Optional[Rows], Sequence[str]], float]:
    """Make a function that scores a labelling of a sequence as the other program does: a sum in float64, feature by feature. The
    function takes the features of each token, the features of pairs of labels at each token, or None, and the labels."""
    n_states = len(model.labels)
    state_of = {label: n for n, label in enumerate(model.labels)}
    state_weights = _weights_by_name(model.states)
    pair_weights = _weights_by_name(model.pairs)

    def score(rows: Rows, pairs: Optional[Rows], labels: Sequence[str]) -> float:
        states = [state_of[label] for label in labels]
        total = sum(model.transitions[i, j] for i, j in pairwise(states))
        for t, row in enumerate(rows):
            total += _sum(row, state_weights, states[t])
            if pairs is not None and t:
                total += _sum(pairs[t], pair_weights, states[t - 1] * n_states + states[t])
        return float(total)

    return score


def _weights_by_name(weighted: Weighted) -> dict[str, dict[int, float]]:
    """For each feature its weights by column."""
    weights: dict[str, dict[int, float]] = {}
    for row, column, weight in zip(weighted.rows.tolist(), weighted.columns.tolist(), weighted.weights.tolist()):
        by_column = weights.setdefault(weighted.names[row], {})
        by_column[column] = by_column.get(column, 0.0) + weight
    return weights


def _sum(row: object, weights: dict[str, dict[int, float]], column: int) -> float:
    """The sum of the weights in a column of the features of a token (`row`), times the values of the features."""
    names, values = named_numbers(row) or ((), ())
    return sum(value * weights.get(name, {}).get(column, 0.0) for name, value in zip(names, values))


def compare(
    nlp: Language,
    model: ForeignModel,
    docs: Iterable[Doc],
    rival: Rival,
    functions: Optional[dict[str, Callable[[Doc], Any]]] = None,
) -> Comparison:
    """Label texts by the pipeline and by the other program, and compare the labels.

    docs (Iterable[Doc]): Docs of a single sequence each, with the attributes that the features read.
    rival (Rival): Labels a Doc by the other program.
    functions (dict): Sources of all feature names, by SOURCE and PAIRS; by default the component's functions.
    """
    [(_, component)] = nlp.pipeline
    score = scorer_of(model)
    labels = component.annotation.tag_labels()
    sources = component.sparse_features.feature_set.functions if functions is None else functions
    n_sequences = n_tokens = n_different = n_ties = 0
    largest_gap = 0.0
    for doc in docs:
        # Both programs get the same features
        rows = list(sources[SOURCE](doc))
        pairs = list(sources[PAIRS](doc)) if PAIRS in sources else None
        theirs = rival(doc, rows)
        prediction = component.predict([doc.copy() if doc.has_annotation("SENT_START") else doc])
        ours = [labels[tag] for tag in prediction.tags]
        n_sequences += 1
        n_tokens += len(doc)
        different = sum(a != b for a, b in zip(ours, theirs, strict=True))
        if different:
            gap = abs(score(rows, pairs, ours) - score(rows, pairs, theirs))
            largest_gap = max(largest_gap, gap)
            n_different += different
            n_ties += different if gap < TIE else 0
    return Comparison(n_sequences, n_tokens, n_different, n_ties, largest_gap)


def _program(module: str, program: str, install: str) -> Any:
    """Import a program's Python module. RAISES (ImportError): CRF781 if its package is not installed."""
    return optional_package(module, what="--check", package=f"{program} itself", install=install)


def crfsuite_rival(path: Path) -> Rival:
    """Load a model in CRFsuite. RAISES (ImportError): CRF781 without python-crfsuite."""
    tagger = _program("pycrfsuite", "CRFsuite", "python-crfsuite").Tagger()
    tagger.open(str(path))
    return lambda doc, rows: tagger.tag(rows)


def crfpp_rival(path: Path, columns: Sequence[str]) -> Rival:
    """Load a model in CRF++. RAISES (ImportError): CRF781 without crfpy. (ValueError): CRF854 if CRF++ can't read the model."""
    try:
        tagger = _program("CRFPP", "CRF++", "crfpy").Tagger(f"-m {path}")
    except RuntimeError as error:  # for example if the file is the model as text
        raise ValueError(
            Errors.CRF854.format(source=path, reason=error, kind="a model by CRF++ itself", place="--check")
        ) from error

    def label(lines: list[str]) -> list[str]:
        tagger.clear()
        for line in lines:
            tagger.add(line)
        tagger.parse()
        return [tagger.y2(t) for t in range(tagger.size())]

    return _by_sequence(columns, label)


def wapiti_rival(path: Path, columns: Sequence[str]) -> Rival:
    """Load a model in Wapiti. RAISES (ImportError): CRF781 without libwapiti."""
    model = _program("wapiti", "Wapiti", "libwapiti").Model(model=str(path), encoding="utf8")
    return _by_sequence(columns, lambda lines: split_words(model.label_sequence("\n".join(lines)).decode("utf8")))


def _by_sequence(columns: Sequence[str], label: Callable[[list[str]], list[str]]) -> Rival:
    """Make a function that labels Docs from a function that labels a sequence, given a line of columns for each word."""
    read = Columns(columns).read

    def label_doc(doc: Doc, rows: Rows) -> list[str]:
        labels = []
        for sequence in read(doc):
            labels += label(["\t".join(word) for word in zip(*sequence)])
        return labels

    return label_doc


# For each program, a function that makes the labelling function for the comparison
RIVALS: dict[str, Callable[[Path, Sequence[str]], Rival]] = {
    "crfsuite": lambda path, columns: crfsuite_rival(path),
    "crfpp": crfpp_rival,
    "wapiti": wapiti_rival,
}
