"""Lasso regressions of Gaussian variables on each other, and the precision matrix that they give. P variables."""

import math

import numpy as np

from spacy_crf.kernels import helper, kernel


@helper
def _lasso(w, covariance, j, l1, tolerance, beta, fitted):
    """Linear regression of variable j on all others with l1 penalties, by coordinate descent:

        min_beta  beta' w beta / 2  -  beta' covariance[:, j]  +  l1 · |beta|_1        with beta[j] = 0

    w, covariance (float64[P, P]): Of the other variables with each other, and with j. Both are symmetric.
    beta (float64[P]): First coefficients, replaced by the solution. fitted (float64[P]): Is set to w · beta.
    RETURNS (float): The largest change of a coefficient by the last pass.
    """
    largest = np.inf
    all_of_them = True
    fitted[:] = 0.0
    for k in range(len(w)):
        if beta[k] != 0.0:
            fitted += w[k] * beta[k]
    for _ in range(1000):  # all variables, then those with coefficients until these stay, then all again
        largest = 0.0
        for k in range(len(w)):
            if k != j and (all_of_them or beta[k] != 0.0):
                # beta[k] = S(aim, l1) / w[k, k], where S(x, l1) = sign(x) max(|x| - l1, 0)
                aim = covariance[j, k] - fitted[k] + w[k, k] * beta[k]
                new = math.copysign(max(abs(aim) - l1, 0.0), aim) / w[k, k]
                if new != beta[k]:
                    fitted += w[k] * (new - beta[k])
                    largest = max(largest, abs(new - beta[k]))
                    beta[k] = new
        if largest < tolerance:
            if all_of_them:
                break
            all_of_them = True
        else:
            all_of_them = False
    return largest


@kernel
def neighbourhoods(covariance, l1, tolerance, betas):
    """Set betas (float64[P, P]) to the coefficients of the regression of each variable, in its row.

    RETURNS (float): The largest change of a coefficient by the last pass.
    """
    fitted = np.empty(len(covariance))
    change = 0.0
    for j in range(len(covariance)):
        change = max(change, _lasso(covariance, covariance, j, l1, tolerance, betas[j], fitted))
    return change


@kernel
def graphical_lasso(covariance, l1, tolerance, most, w, precision):
    """The precision matrix of a Gaussian with l1 penalties on all but the diagonal, by block coordinate descent (Friedman, Hastie
    & Tibshirani 2008; Hastie, Tibshirani & Friedman 2009, algorithm 17.2).

    covariance, w, precision (float64[P, P]): The empirical covariance; its estimate and the inverse of that, which are set.
    tolerance (float): Largest change of the estimate that ends the descent, relative to the mean of the covariances.
    most (int): Largest number of passes.
    RETURNS (float): The change by the last pass.
    """
    n = len(covariance)
    w[:] = covariance
    betas = np.zeros((n, n))
    fitted = np.empty(n)
    size = max((np.abs(covariance).sum() - np.abs(np.diag(covariance)).sum()) / max(n * (n - 1), 1), 1e-300)
    change = np.inf
    for _ in range(most):
        change = 0.0
        for j in range(n):
            # Row j of w becomes w · beta, as that of a matrix with the precision below
            _lasso(w, covariance, j, l1, 0.1 * tolerance, betas[j], fitted)
            for k in range(n):
                if k != j:
                    change = max(change, abs(w[k, j] - fitted[k]) / size)
                    w[k, j] = w[j, k] = fitted[k]
        if change < tolerance:
            break
    for j in range(n):
        dot = 0.0
        for k in range(n):
            if k != j:
                dot += w[k, j] * betas[j, k]
        # 1 / precision[j, j] = w[j, j] - w[j, ·] · beta, and precision[k, j] = -beta[k] precision[j, j]
        precision[j, j] = 1.0 / (w[j, j] - dot)
        for k in range(n):
            if k != j:
                precision[k, j] = -betas[j, k] * precision[j, j]
    return change
