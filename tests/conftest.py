"""Options of the tests."""

import functools
import os

import pytest
from hypothesis import settings

# A busy machine is no mistake, and one suite has one outcome
settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")


def pytest_addoption(parser):
    parser.addoption("--no-jit", action="store_true", help="Run the kernels as plain Python, where wrong indices show.")


def pytest_xdist_auto_num_workers(config):
    """One process for each core, up to four, each of which compiles some kernels that the others compile too; a few files are
    done before another process has started. (`-n 0` for none.)"""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    few = config.args_source is config.ArgsSource.ARGS and len(config.args) < 5
    return 0 if few or cores == 1 else min(cores, 4)


def pytest_configure(config):
    if config.getoption("--no-jit"):
        os.environ["NUMBA_DISABLE_JIT"] = "1"  # in time: no conftest imports numba
        # Hashes wrap around, as they should; numpy tells of it where its scalars do.
        config.addinivalue_line(
            "filterwarnings", "ignore:overflow encountered in scalar:RuntimeWarning:spacy_crf.kernels"
        )


@pytest.fixture(scope="session", autouse=True)
def installed_packages_are_asked_once():
    """catalogue goes through the entry points of all packages whenever a function is looked up or a Doc becomes bytes."""
    from catalogue import AVAILABLE_ENTRY_POINTS, Registry

    @functools.cache
    def of_group(group):
        return list(AVAILABLE_ENTRY_POINTS.select(group=group))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Registry, "_get_entry_points", lambda registry: of_group(registry.entry_point_namespace))
        yield


@pytest.fixture(scope="session", autouse=True)
def few_special_words():
    """Without the 1,300 words that spaCy's English splits by a list: with them a blank pipeline takes 64 ms, without 8."""
    from spacy.lang.en import English

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(English.Defaults, "tokenizer_exceptions", {})
        yield
