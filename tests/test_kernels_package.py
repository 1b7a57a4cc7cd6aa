"""The kernels' cache: where it goes, and what is said while it is cold."""

import logging
import os
import tempfile

import numba
import pytest

from spacy_crf import kernels
from spacy_crf.kernels import linear_chain

compiled = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")


@pytest.fixture
def fresh(monkeypatch):
    """As at the start of a process."""
    monkeypatch.setattr(kernels, "_announced", False)
    monkeypatch.setattr(kernels, "_asked", set())


def module_with_kernel(folder):
    source = folder / "one_kernel.py"
    source.write_text("from numba import njit\n@njit(cache=True)\ndef double(x):\n    return 2 * x\n")
    namespace = {"__name__": "one_kernel", "__file__": str(source)}
    exec(compile(source.read_text(), str(source), "exec"), namespace)
    return namespace["double"]


@compiled
def test_a_cold_cache_is_announced_once(fresh, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    double = module_with_kernel(tmp_path)
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        kernels.announce_compilation(double)
        kernels.announce_compilation(double)
        kernels.announce_compilation(linear_chain.viterbi, double)
    (record,) = caplog.records
    assert "compiling numba kernels, once" in record.message and double.stats.cache_path in record.message


@compiled
def test_a_warm_cache_is_not_announced(fresh, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    double = module_with_kernel(tmp_path)
    assert double(2) == 4
    with caplog.at_level(logging.WARNING, logger="spacy.spacy_crf"):
        kernels.announce_compilation(double)
    assert not caplog.records


def test_plain_python_is_not_announced(fresh, caplog):
    kernels.announce_compilation(lambda: None)
    assert not caplog.records


def test_a_temporary_folder_stands_in_where_nothing_can_be_written(tmp_path, monkeypatch):
    def refuse(**options):
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setattr(numba, "njit", refuse)
    kernels._ensure_cache_folder()
    folder = numba.config.CACHE_DIR
    assert os.path.dirname(folder) == str(tmp_path) and os.access(folder, os.W_OK)


def test_the_users_choice_of_folder_stays(monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", "/somewhere")
    monkeypatch.setattr(numba, "njit", None)
    kernels._ensure_cache_folder()
    assert numba.config.CACHE_DIR == "/somewhere"


def test_a_writable_installation_is_left_alone(monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    kernels._ensure_cache_folder()
    assert numba.config.CACHE_DIR == ""


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners on this system")
def test_a_folder_prepared_by_others_is_not_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    expected = kernels._private_temporary_folder()
    assert kernels._private_temporary_folder() == expected
    expected.chmod(0o777)
    assert kernels._private_temporary_folder() != expected
    expected.rmdir()
    (tmp_path / "theirs").mkdir()
    expected.symlink_to(tmp_path / "theirs")
    assert kernels._private_temporary_folder() != expected
