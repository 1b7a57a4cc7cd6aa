"""Options of the tests."""

import os

from hypothesis import settings

# A busy machine is no mistake, and one suite has one outcome
settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")


def pytest_addoption(parser):
    parser.addoption("--no-jit", action="store_true", help="Run the kernels as plain Python, where wrong indices show.")


def pytest_configure(config):
    if config.getoption("--no-jit"):
        os.environ["NUMBA_DISABLE_JIT"] = "1"  # in time: no conftest imports numba
        # Hashes wrap around, as they should; numpy tells of it where its scalars do.
        config.addinivalue_line(
            "filterwarnings", "ignore:overflow encountered in scalar:RuntimeWarning:spacy_crf.kernels"
        )
