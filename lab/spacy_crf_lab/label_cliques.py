"""Which labels of texts depend on each other: graphs that are learned from annotated texts, trees, and given hierarchies.

N texts, L labels, R distinct sets of labels.
"""

from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass
from typing import Any, NamedTuple, Optional

import numpy as np

from spacy_crf import checks
from spacy_crf.errors import announcements
from spacy_crf.optimizers.objective import check_settings, setting
from spacy_crf.types import Bools, Floats

from .errors import Errors, Warnings
from .gaussian_graph import MOST, TOLERANCE, graphical_lasso, partial_correlations, warn_unconverged
from .kernels import label_graph as kernels

METHODS = ("nodewise", "graphical_lasso", "chow_liu")
RULES = ("and", "or")

Pairs = Iterable[tuple[tuple[int, int], bool]]  # two labels, and whether the first implies the second


class Annotated(NamedTuple):
    """The distinct sets of labels of texts all of whose labels are annotated."""

    present: Bools  # [R, L]
    counts: Floats  # [R] sums of the weights of the texts
    labels: tuple[str, ...]
    name: str  # of the component, for messages

    @classmethod
    def of(cls, batches: Iterable[tuple[Bools, Optional[Floats]]], labels: tuple[str, ...], name: str) -> "Annotated":
        """batches: Clamps (bool[B, 2 L], which texts may have a label, and may lack it) and weights of the texts.

        Warns of labels that no text has, or none lacks (CRFW480).
        """
        n = len(labels)
        clamps = [np.zeros((0, 2 * len(labels)), dtype=bool)]
        weights = [np.zeros(0)]
        for clamp, of_texts in batches:
            clamps.append(clamp)
            weights.append(np.ones(len(clamp)) if of_texts is None else of_texts)
        may_have, may_lack = np.split(np.concatenate(clamps), [n], axis=1)
        for which, counted in (("has", may_have & ~may_lack), ("lacks", may_lack & ~may_have)):
            never = [labels[n] for n in np.flatnonzero(~counted.any(axis=0))]
            if never and len(may_have):
                announcements.warning(Warnings.CRFW480.format(name=name, which=which, labels=", ".join(never)))
        # A label that a text may have and may lack is not annotated
        known = (may_have != may_lack).all(axis=1)
        present, where = np.unique(may_have[known], axis=0, return_inverse=True)
        counts = np.bincount(where.ravel(), np.concatenate(weights)[known], minlength=len(present))
        return cls(present, counts.astype(np.float64), labels, name)

    def require(self) -> "Annotated":
        """RAISES (ValueError): CRF483 without any text all of whose labels are annotated."""
        if not self.counts.sum() > 0:
            raise ValueError(Errors.CRF483.format(name=self.name, labels=len(self.labels)))
        return self

    @property
    def owner(self) -> str:
        """Name of the component, for messages."""
        return f"Component '{self.name}'"

    @property
    def together(self) -> Floats:
        """Number of texts with two labels; on the diagonal, with one: float64[L, L]."""
        return self.present.T @ (self.present * self.counts[:, np.newaxis])

    @property
    def covariance(self) -> Floats:
        """Covariances of the labels: float64[L, L]."""
        shares = self.together / self.counts.sum()
        return shares - np.outer(np.diag(shares), np.diag(shares))

    @property
    def correlation(self) -> Floats:
        """The phi coefficients of all pairs of labels: float64[L, L], 0 for labels that all texts have, or none."""
        deviations = np.sqrt(np.diag(self.covariance))
        scale = np.divide(1.0, deviations, out=np.zeros(len(deviations)), where=deviations > 1e-12)
        found = self.covariance * np.outer(scale, scale)
        np.fill_diagonal(found, 1.0)
        return found

    def nodewise(self, l1: float) -> Floats:
        """Logistic regressions of each label on all others (Ravikumar, Wainwright & Lafferty 2010): float64[L, L], the weights
        for a label in its row. The penalty of a weight is `l1` times the standard deviations of both labels, so that labels that
        correlate by less than about `l1` get none, however rare they are.

        Warns if a regression does not converge (CRFW481).
        """
        n = len(self.labels)
        deviations = np.sqrt(np.diag(self.covariance))
        label_of, rows = np.nonzero(self.present.T)
        starts = np.searchsorted(label_of, np.arange(n + 1)).astype(np.int64)
        weights = np.zeros((n, n + 1))
        left = 0.0
        for j in np.flatnonzero(deviations > 1e-12):
            # A label that all texts have, or none, has no weight
            penalties = np.where(deviations > 1e-12, l1 * deviations[j] * deviations, np.inf)
            penalties[j] = np.inf
            share = self.together[j, j] / self.counts.sum()
            weights[j, n] = np.log(share / (1.0 - share))
            target = self.present[:, j].astype(np.float64)
            given = (starts, rows.astype(np.int64), self.counts, target, penalties)
            left = max(left, kernels.nodewise(*given, TOLERANCE, MOST, weights[j]))
        warn_unconverged(self.owner, "nodewise", left, TOLERANCE)
        return weights[:, :n]

    def mutual_information(self) -> Floats:
        """Mutual information of pairs of labels, in nats: float64[L, L]."""
        both = self.together / self.counts.sum()
        of_one = np.diag(both)[:, np.newaxis]
        of_other = np.diag(both)
        # I(X, Y) = H(X) + H(Y) - H(X, Y)
        joint = _entropy(both, of_one - both, of_other - both, 1.0 - of_one - of_other + both)
        found = _entropy(of_one, 1.0 - of_one) + _entropy(of_other, 1.0 - of_other) - joint
        return np.where(found > 1e-12, found, 0.0)


def _entropy(*shares: Floats) -> Floats:
    terms: Any = sum(share * np.log(np.maximum(share, 1e-300)) for share in shares)
    return -terms


def tree(strengths: Floats) -> list[tuple[int, int]]:
    """The maximum spanning tree (or forest) of the pairs with a strength above 0 (Kruskal 1956)."""
    group = list(range(len(strengths)))
    found = []
    for j, k in ranked(strengths):
        if group[j] != group[k]:
            found.append((j, k))
            # Two trees become one
            group = [group[j] if one == group[k] else one for one in group]
    return found


def ranked(strengths: Floats) -> Iterator[tuple[int, int]]:
    """The pairs with a strength other than 0 in the upper triangle, the strongest first."""
    first, second = np.nonzero(np.triu(strengths, 1))
    order = np.argsort(-np.abs(strengths[first, second]), kind="stable")
    return zip(first[order].tolist(), second[order].tolist())


# ------------------------------------------------------------------------------------------------------ templates


def _parents(owner: str, name: str, value: object) -> dict[str, str]:
    """RAISES (ValueError): As `checks.by_label`."""
    parents = checks.by_label(owner, name, value, "labels", text=True)
    is_possible = all(isinstance(parent, str) and parent for parent in parents.values())
    checks.expect(is_possible, owner, name, value, "a table from names to labels")
    return parents


@dataclass(kw_only=True)
class LabelClique:
    """Base of what names pairs of labels that get a weight."""

    def __post_init__(self) -> None:
        check_settings(self)

    def check(self, labels: tuple[str, ...], name: str) -> None:
        """RAISES (ValueError): If the settings do not fit the labels of the component of this name."""

    def pairs(self, known: Annotated) -> Pairs:
        """The pairs of labels that get a weight, and whether the first one implies the second."""
        raise NotImplementedError


@dataclass(kw_only=True)
class LearnedGraph(LabelClique):
    """Pairs of labels that depend on each other given all other labels (``spacy_crf_lab.LearnedGraph.v1``).

    method (str): "nodewise": logistic regressions of each label on the others; "graphical_lasso": the precision matrix of their
        correlations; "chow_liu": the tree of `spacy_crf_lab.LabelTree.v1`, without l1 and rule.
    l1 (float): Penalty of weights. Pairs whose correlation is not above it, or is explained by other labels, get no weight.
    max_degree (int): Most pairs of a label; the weaker ones are left out.
    rule (str): For "nodewise": "and" for pairs where each label has a weight for the other, "or" where one of them has.
    """

    method: str = setting("nodewise", checks.one_of, allowed=METHODS)
    l1: float = setting(0.05, checks.number, least=checks.LEAST, most=1.0)
    max_degree: int = setting(10, checks.count)
    rule: str = setting("and", checks.one_of, allowed=RULES)

    def strengths(self, known: Annotated) -> Floats:
        """The strength of each pair, 0 for those without a weight: float64[L, L], symmetric."""
        known.require()
        if self.method == "graphical_lasso":
            found = partial_correlations(graphical_lasso(known.correlation, self.l1, known.owner))
            return found - np.diag(np.diag(found))
        if self.method == "chow_liu":
            found = known.mutual_information()
            chosen = np.zeros(found.shape, dtype=bool)
            for j, k in tree(found):
                chosen[j, k] = chosen[k, j] = True
            return np.where(chosen, found, 0.0)
        weights = known.nodewise(self.l1)
        some = (weights != 0.0) & (weights.T != 0.0) if self.rule == "and" else (weights + weights.T) != 0.0
        return np.where(some, 0.5 * (weights + weights.T), 0.0)

    def pairs(self, known: Annotated) -> Pairs:
        """The strongest pairs, as long as both labels have fewer than `max_degree`."""
        degrees = np.zeros(len(known.labels), dtype=np.int64)
        for j, k in ranked(self.strengths(known)):
            if max(degrees[j], degrees[k]) < self.max_degree:
                degrees[[j, k]] += 1
                yield (j, k), False


@dataclass(kw_only=True)
class LabelTree(LabelClique):
    """The tree of pairs of labels that comes closest to their joint distribution (Chow & Liu 1968): the maximum spanning tree of
    their mutual information (``spacy_crf_lab.LabelTree.v1``). Sums over a tree take little time."""

    def pairs(self, known: Annotated) -> Pairs:
        """The pairs of the maximum spanning tree of mutual information."""
        return ((pair, False) for pair in tree(known.require().mutual_information()))


@dataclass(kw_only=True)
class Hierarchy(LabelClique):
    """Each label with its parent (``spacy_crf_lab.Hierarchy.v1``).

    parents (Dict[str, str]): The parent of each label that has one.
    implied (bool): Whether no text has a label without its parent.
    """

    parents: Any = setting(MISSING, _parents)
    implied: bool = setting(False, checks.flag)

    def check(self, labels: tuple[str, ...], name: str) -> None:
        """RAISES (ValueError): CRF846 for unknown labels."""
        checks.labels(f"Component '{name}': Hierarchy", [*self.parents, *self.parents.values()], labels)

    def __post_init__(self) -> None:
        """RAISES (ValueError): CRF484 for a label that is its own ancestor."""
        super().__post_init__()
        for label in self.parents:
            line = [label]
            while line[-1] in self.parents and line.count(line[-1]) == 1:
                line.append(self.parents[line[-1]])
            if line.count(line[-1]) > 1:
                raise ValueError(Errors.CRF484.format(line=" > ".join(line[line.index(line[-1]) :])))

    def pairs(self, known: Annotated) -> Pairs:
        """Each label with its parent."""
        place = {label: n for n, label in enumerate(known.labels)}
        return (((place[child], place[parent]), self.implied) for child, parent in self.parents.items())
