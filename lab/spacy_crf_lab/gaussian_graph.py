"""Which numbers depend on each other given all others: graphs of Gaussian variables, whose edges are the entries of the precision
matrix that are not 0. P variables.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spacy_crf.errors import announcements
from spacy_crf.types import Bools, Floats

from .errors import Errors, Warnings
from .kernels import gaussian_graph as kernels

TOLERANCE = 1e-6
MOST = 200


def covariance_selection(covariance: Floats, edges: Bools) -> Floats:
    """The most likely precision matrix whose entries are 0 where two variables have no edge (Dempster 1972; Hastie, Tibshirani &
    Friedman 2009, algorithm 17.1). Its inverse equals the covariance on the diagonal and at the edges.

    covariance (float64[P, P]): The empirical covariance. edges (bool[P, P]): Symmetric; the diagonal is not read.
    RETURNS (float64[P, P]): Symmetric.
    RAISES (ValueError): CRF642 for a covariance that is not positive. Warns if the fit does not converge (CRFW481).
    """
    covariance = _positive(covariance, "covariance_selection")
    n = len(covariance)
    change = np.inf
    scale = np.sqrt(np.diag(covariance))
    given = covariance / np.outer(scale, scale)
    estimate = given.copy()
    betas = np.zeros((n, n))
    for _ in range(10 * MOST):
        before = estimate.copy()
        # Regress each variable on its neighbours, and move the covariances of its row to those of the regression
        for j in range(n):
            near = np.flatnonzero(edges[j] & (np.arange(n) != j))
            betas[j, near] = np.linalg.solve(estimate[np.ix_(near, near)], given[near, j])
            others = np.arange(n) != j
            estimate[others, j] = estimate[j, others] = (estimate @ betas[j])[others]
        change = np.abs(estimate - before).max(initial=0.0)
        if change < 1e-4 * TOLERANCE:
            break
    warn_unconverged("Gaussian graph", "covariance_selection", change, 1e-4 * TOLERANCE)
    # precision[j, j] = 1 / (covariance[j, j] - beta_j · covariance[:, j])
    precision = np.diag(1.0 / (np.diag(estimate) - (betas * estimate).sum(axis=1)))
    precision -= betas.T * np.diag(precision)  # the column of each variable: -beta · precision[j, j]
    return 0.5 * (precision + precision.T) / np.outer(scale, scale)


def graphical_lasso(covariance: Floats, l1: float, owner: str = "Gaussian graph") -> Floats:
    """The most likely precision matrix under a penalty of l1 times the absolute values of all entries but the diagonal (Friedman,
    Hastie & Tibshirani 2008; Banerjee, El Ghaoui & d'Aspremont 2008, who take it for a screening of binary variables).

    covariance (float64[P, P]): The empirical covariance, or correlation. owner (str): For the warning.
    RETURNS (float64[P, P]). Warns if it does not converge (CRFW481).
    """
    precision = np.zeros(covariance.shape)
    estimate = np.zeros(covariance.shape)
    left = kernels.graphical_lasso(covariance, l1, TOLERANCE, MOST, estimate, precision)
    warn_unconverged(owner, "graphical_lasso", left, TOLERANCE)
    return precision


def neighbourhoods(covariance: Floats, l1: float) -> Floats:
    """Linear regressions of each variable on all others with l1 penalties: neighbourhood selection (Meinshausen & Bühlmann 2006).
    Two variables have an edge if both regressions, or one of them, give the other a coefficient.

    covariance (float64[P, P]): The empirical covariance, or correlation.
    RETURNS (float64[P, P]): The coefficients for a variable in its row, 0 on the diagonal. Warns if a regression does not
        converge (CRFW481).
    """
    betas = np.zeros(covariance.shape)
    left = kernels.neighbourhoods(covariance, l1, TOLERANCE, betas)
    warn_unconverged("Gaussian graph", "neighbourhoods", left, TOLERANCE)
    return betas


def partial_correlations(precision: Floats) -> Floats:
    """Correlations of two variables given the others: -precision[i, j] / sqrt(precision[i, i] · precision[j, j])."""
    scale = 1.0 / np.sqrt(np.diag(precision))
    found = -precision * np.outer(scale, scale)
    np.fill_diagonal(found, 1.0)
    return found


class Numbers(NamedTuple):
    """Numbers of the same tokens, as a graph is learned from them."""

    values: Floats  # [N, P] of tokens for which all of them are known
    labels: tuple[str, ...]  # names of the numbers
    owner: str = "Gaussian graph"  # for messages

    @classmethod
    def of(cls, columns: Iterable[Floats], labels: Iterable[str]) -> "Numbers":
        """columns: The values of each number (float64[M], NaN where it is not known).

        RAISES (ValueError): CRF641 if fewer than two tokens have all numbers, or a number is the same for all of them.
        """
        values = np.column_stack([*columns])
        labels = tuple(labels)
        values = values[~np.isnan(values).any(axis=1)]
        same = [label for label, column in zip(labels, values.T) if len(values) and np.ptp(column) == 0.0]
        if len(values) < 2 or same:
            raise ValueError(Errors.CRF641.format(n=len(values), names=", ".join(same or labels)))
        return cls(values, labels)

    def require(self) -> "Numbers":
        """These numbers: `Numbers.of` has checked them."""
        return self

    @property
    def correlation(self) -> Floats:
        """Correlations of the numbers: float64[P, P]."""
        return np.atleast_2d(np.corrcoef(self.values, rowvar=False))

    def nodewise(self, l1: float) -> Floats:
        """Coefficients of `neighbourhoods` of the correlations."""
        return neighbourhoods(self.correlation, l1)

    def mutual_information(self) -> Floats:
        """Mutual information of pairs of Gaussian variables with these correlations, in nats: float64[P, P]."""
        # I(X, Y) = -log(1 - rho²) / 2
        shared = np.minimum(self.correlation**2, 1.0 - 1e-12)
        np.fill_diagonal(shared, 0.0)
        return -0.5 * np.log1p(-shared)


def _positive(covariance: ArrayLike, owner: str) -> NDArray[np.float64]:
    matrix = np.asarray(covariance, dtype=np.float64)
    least = np.linalg.eigvalsh(matrix).min(initial=np.inf)
    if not least > 0.0:
        raise ValueError(Errors.CRF642.format(owner=owner, least=least))
    return matrix


def warn_unconverged(owner: str, method: str, left: float, tolerance: float) -> None:
    """Warn that an estimator ended before its changes were below a tolerance."""
    if not left < tolerance:
        announcements.warning(Warnings.CRFW481.format(owner=owner, method=method, gap=left))
