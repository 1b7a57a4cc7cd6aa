"""Keys numba's cache by the sources of the kernels: an edited helper elsewhere would leave callers with the old code."""

import hashlib
import os
import tempfile
from pathlib import Path

import spacy_crf

_sources = sorted((Path(spacy_crf.__file__).parent / "kernels").glob("*.py"))
_digest = hashlib.sha256(b"".join(path.read_bytes() for path in _sources)).hexdigest()[:16]
os.environ.setdefault("NUMBA_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"spacy_crf_numba_{_digest}"))


def pytest_addoption(parser):
    parser.addoption("--no-jit", action="store_true", help="Run the kernels as plain Python, where wrong indices show.")


def pytest_configure(config):
    if config.getoption("--no-jit"):
        os.environ["NUMBA_DISABLE_JIT"] = "1"  # in time: no conftest imports numba
        # Hashes wrap around, as they should; numpy tells of it where its scalars do.
        config.addinivalue_line(
            "filterwarnings", "ignore:overflow encountered in scalar:RuntimeWarning:spacy_crf.kernels"
        )
