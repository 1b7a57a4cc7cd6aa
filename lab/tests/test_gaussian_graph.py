"""Graphs of numbers: covariance selection by its conditions, the lassos against scikit-learn, and `crf graph --numbers`."""

import numpy as np
import pytest
import spacy
import srsly
from sklearn.covariance import graphical_lasso as sklearn_lasso
from sklearn.linear_model import Lasso
from spacy.tokens import DocBin, Token
from typer.testing import CliRunner

from spacy_crf.cli import app
from spacy_crf_lab.gaussian_graph import (
    Numbers,
    covariance_selection,
    graphical_lasso,
    neighbourhoods,
    partial_correlations,
)
from spacy_crf_lab.label_cliques import LearnedGraph


def chain_of_numbers(n_rows, n=6, seed=0, share=0.8):
    """Numbers each of which depends on the one before alone."""
    random, rows = np.random.default_rng(seed), np.zeros((n_rows, n))
    for j in range(n):
        rows[:, j] = share * rows[:, j - 1] * (j > 0) + random.normal(size=n_rows)
    return rows


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["chain", "none", "all", "circle", "drawn"])
def test_covariance_selection_fulfils_its_conditions(kind, seed):
    """W = S on the diagonal and at the edges, and precision 0 elsewhere: the conditions of the maximum likelihood."""
    random, n = np.random.default_rng(seed), 6
    scales = np.exp(3.0 * random.normal(size=n))
    covariance = np.cov(chain_of_numbers(50, n, seed) * scales, rowvar=False)
    step = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    drawn = np.triu(random.random((n, n)) < 0.4, 1)
    edges = {
        "chain": step == 1,
        "none": step < 0,
        "all": step > 0,
        "circle": (step == 1) | (step == n - 1),
        "drawn": drawn | drawn.T,
    }[kind]
    precision = covariance_selection(covariance, edges)
    kept = edges | np.eye(n, dtype=bool)
    assert (precision[~kept] == 0.0).all() and np.array_equal(precision, precision.T)
    units = np.outer(scales, scales)
    np.testing.assert_allclose((np.linalg.inv(precision) / units)[kept], (covariance / units)[kept], atol=1e-8)


def test_covariance_selection_refuses_dependent_variables():
    with pytest.raises(ValueError, match=r"CRF642.*covariance_selection.*eigenvalue"):
        covariance_selection(np.ones((2, 2)), np.ones((2, 2), dtype=bool))


def test_the_lassos_are_those_of_scikit_learn():
    rows = chain_of_numbers(300)
    covariance = np.cov(rows, rowvar=False, bias=True)
    for l1 in (0.05, 0.2, 0.6):
        theirs = sklearn_lasso(covariance, alpha=l1, tol=1e-8, enet_tol=1e-8, max_iter=1000)[1]
        np.testing.assert_allclose(graphical_lasso(covariance, l1), theirs, atol=1e-4)
        found = neighbourhoods(covariance, l1)
        for j in range(6):
            others = np.delete(np.arange(6), j)
            lasso = Lasso(alpha=l1, tol=1e-10, max_iter=10_000).fit(rows[:, others], rows[:, j])
            np.testing.assert_allclose(found[j, others], lasso.coef_, atol=1e-6)
            assert found[j, j] == 0.0


@pytest.mark.parametrize("method", ["nodewise", "graphical_lasso", "chow_liu"])
def test_the_graph_of_numbers_is_found(method):
    known = Numbers.of(chain_of_numbers(3000, share=0.4).T, "abcdef")
    pairs = {pair for pair, _ in LearnedGraph(method=method, l1=0.1).pairs(known)}
    assert pairs == {(j, j + 1) for j in range(5)}


def test_partial_correlations_are_correlations_of_what_the_others_leave():
    rows = chain_of_numbers(200, 4)
    rest = np.column_stack([rows[:, 2:], np.ones(200)])
    left = rows[:, :2] - rest @ np.linalg.lstsq(rest, rows[:, :2], rcond=None)[0]
    found = partial_correlations(np.linalg.inv(np.cov(rows, rowvar=False)))
    assert found[0, 1] == pytest.approx(np.corrcoef(left, rowvar=False)[0, 1])


@pytest.fixture
def extensions():
    names = ("long", "rank", "same", "wrong")
    yield names
    for name in names:
        if Token.has_extension(name):
            Token.remove_extension(name)


def test_crf_graph_prints_the_pairs_of_numbers(tmp_path, extensions):
    rows, nlp = chain_of_numbers(40, 2), spacy.blank("en")
    Token.set_extension("long", default=None)
    Token.set_extension("rank", default=None)
    docs = []
    for pair in rows:
        doc = nlp.make_doc("one two")
        doc[0]._.long, doc[0]._.rank, doc[1]._.rank = float(pair[0]), float(pair[1]), 3.0
        docs.append(doc)
    DocBin(docs=docs, store_user_data=True).to_disk(tmp_path / "texts.spacy")
    for name in ("long", "rank"):
        Token.remove_extension(name)  # the command finds them in the file alone
    command = ["graph", str(tmp_path / "texts.spacy"), "--numbers", "ext:long,ext:rank"]
    result = CliRunner().invoke(app, [*command, "--method", "graphical_lasso", "--json"])
    assert result.exit_code == 0, result.output
    [edge] = srsly.json_loads(result.output)
    assert (edge["first"], edge["second"], edge["tokens"]) == ("ext:long", "ext:rank", 40)
    assert edge["correlation"] == pytest.approx(np.corrcoef(rows, rowvar=False)[0, 1])
    result = CliRunner().invoke(app, [*command, "--output", str(tmp_path / "page.html")])
    assert "2 numbers, 40 tokens, 1 pair" in result.output
    assert "Numbers of texts.spacy" in (tmp_path / "page.html").read_text()


def test_numbers_that_make_no_graph_are_refused(tmp_path, extensions):
    (tmp_path / "code.py").write_text(
        "from spacy.tokens import Token\n"
        "Token.set_extension('long', getter=len, force=True)\n"
        "Token.set_extension('same', getter=lambda token: 1.0, force=True)\n"
        "Token.set_extension('wrong', getter=lambda token: float('nan'), force=True)\n"
    )
    (tmp_path / "texts.txt").write_text("A longer text\n")
    command = ["graph", str(tmp_path / "texts.txt"), "--code", str(tmp_path / "code.py"), "--numbers"]
    for numbers, message in {
        "ext:long": "CRF643",
        "ext:long,ext:long": "CRF643",
        "long,ext:same": "CRF643",
        "ext:long,ext:same": "CRF641",
        "ext:long,ext:rank": "CRF641",
        "ext:long,ext:wrong": "CRF640",
    }.items():
        result = CliRunner().invoke(app, [*command, numbers])
        assert result.exit_code == 1 and message in result.output, numbers
