"""The run of spaCy's tests with our component: the factory is replaced, and outcomes are told apart."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from .spacy_suite import EMISSIONS, REASONS, SUITE, run


@pytest.fixture(scope="module")
def process():
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        yield process


@pytest.mark.parametrize("emissions", EMISSIONS)
def test_the_component_is_in_place_of_ner(process, emissions):
    passing = "pipeline/test_pipe_methods.py::test_pipe_label_data_exports_labels[ner]"
    untouched = "pipeline/test_pipe_methods.py::test_pipe_label_data_exports_labels[tagger]"
    failing = "parser/test_ner.py::test_accept_blocked_token"
    outcomes = process.submit(run, emissions, [passing, untouched, failing]).result()
    assert outcomes.passed == {passing, untouched}
    assert outcomes.made == {passing, failing}
    assert outcomes.failed.keys() == {failing} and "moves" in outcomes.failed[failing]
    assert outcomes.reason(failing) and outcomes.reason(passing) is None


def test_reasons_are_about_tests_that_exist():
    for name in REASONS:
        path, _, test = name.partition("::")
        assert f"def {test.partition('[')[0]}(" in (SUITE / path).read_text(encoding="utf8")
