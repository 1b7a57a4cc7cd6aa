"""Options of the tests, those of the lab among them."""

import gc
import multiprocessing
import os
import secrets
import shutil

# Before NumPy is imported: the threads of OpenBLAS wait in busy loops, half of the CPU time of tests that optimize small problems
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

from tests.repeated_work import do_repeated_work_once

# A busy machine is no mistake, and one suite has one outcome
settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")


def pytest_addoption(parser):
    parser.addoption("--no-jit", action="store_true", help="Run the kernels as plain Python, where wrong indices show.")
    parser.addoption("--hunt", type=int, metavar="N", help="Draw N times as many problems as usual, others each time.")
    parser.addoption("--hunt-seed", type=int, metavar="SEED", help="Of a hunt that is to be repeated.")


def pytest_xdist_auto_num_workers(config):
    """One process for each core, up to four; a few files are done before another process has started. (`-n 0` for none.)"""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    few = config.args_source is config.ArgsSource.ARGS and len(config.args) < 5
    return 0 if few or cores == 1 else min(cores, 4)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    if config.getoption("--hunt"):
        _hunt(config.option, getattr(config, "workerinput", {}).get("hunt_seed"))
    if config.getoption("--no-jit"):
        os.environ["NUMBA_DISABLE_JIT"] = "1"  # in time: no conftest imports numba
        config.option.markexpr = " and ".join(filter(None, [config.option.markexpr, "not jit"]))
        # Hashes wrap around, and what is infinite is looked for, as it should be; numpy tells of it, compiled code doesn't.
        for where in ("scalar", "exp"):
            config.addinivalue_line(
                "filterwarnings", f"ignore:overflow encountered in {where}:RuntimeWarning:spacy_crf[.a-z]*.kernels"
            )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """xdist's processes hunt for the same."""
    node.workerinput["hunt_seed"] = node.config.option.hunt_seed


def _hunt(option, told):
    """Before tests are imported, of which those that say how many examples they want say it by `tests.util.draws`."""
    if option.hunt_seed is None:
        option.hunt_seed = secrets.randbelow(10**6) if told is None else told
    option.hypothesis_seed = option.hypothesis_seed or option.hunt_seed
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    many = {"max_examples": 100 * option.hunt, "derandomize": False, "suppress_health_check": slow}
    settings.register_profile("hunt", settings.get_profile("suite"), print_blob=True, **many)
    settings.load_profile("hunt")


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc):
    """Tests that draw by a table of seeds get more of them in a hunt."""
    option, marks = metafunc.config.option, metafunc.definition.own_markers
    for n, mark in enumerate(marks if option.hunt else []):
        if mark.name == "parametrize" and mark.args[0] == "seed":
            known = list(mark.args[1])
            drawn = [1000 * option.hunt_seed + k for k in range(len(known) * option.hunt)]
            marks[n] = pytest.mark.parametrize("seed", drawn).mark


def pytest_terminal_summary(terminalreporter, config):
    if config.getoption("--hunt"):
        terminalreporter.write_line(f"To repeat it: --hunt {config.option.hunt} --hunt-seed {config.option.hunt_seed}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection():
    """Nothing that imports and the list of tests make is garbage: a third of the time."""
    gc.disable()


def pytest_collection_finish():
    """What is there by now stays: the garbage collector has no need to go through it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)  # by default what a test makes is gone through at every 700 new objects: 4 % of all time
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def special_words():
    """The list of words that English splits, such as "don't". Pipelines of the tests do without; see `do_repeated_work_once`."""
    with pytest.MonkeyPatch.context() as patch:
        yield do_repeated_work_once(patch.setattr)


@pytest.fixture(scope="session", autouse=True)
def wide_terminal():
    """What commands print does not depend on the terminal, nor on how long the names of temporary files are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")  # for rich and typer
        patch.setattr("wasabi.printer.wrap", lambda text, **settings: text)  # at 80 columns, whatever the terminal
        yield


@pytest.fixture
def workers_start_early(monkeypatch):
    """The processes of `executors.Processes` are forks of one that has imported what they need, which takes each of them two
    seconds. It has no threads, and knows nothing of this process, as if they were started anew."""
    from spacy_crf.workers import executors

    if "forkserver" in multiprocessing.get_all_start_methods():
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(
            ["spacy_crf.cli.tune", "spacy_crf.shards.work", "tests.shards.test_annotate_parts"]
        )
        monkeypatch.setattr(executors, "get_context", lambda method: context)


@pytest.fixture(scope="session")
def browser():
    """Chromium, for pages as their readers have them."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the extra `browser` is not installed")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("there is no Chromium")
    options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=chromium, args=options)
        yield opened
        opened.close()
