"""The kernels' cache: where it goes, and what is said while it is cold."""

import gc
import io
import logging
import operator
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import numba
import numpy as np
import pytest

from spacy_crf import kernels, progress
from spacy_crf.errors import quietly
from spacy_crf.kernels import announcing
from spacy_crf.kernels.announcing import Announcer
from spacy_crf.kernels.numba_setup import PausedCollector
from spacy_crf.kernels.tiles import add_up
from spacy_crf.progress import Bar
from tests import repeated_work

compiled = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")


def module_with_kernel(folder):
    source = folder / "one_kernel.py"
    source.write_text("from numba import njit\n@njit(cache=True)\ndef double(x):\n    return 2 * x\n")
    namespace = {"__name__": "one_kernel", "__file__": str(source)}
    exec(compile(source.read_text(), str(source), "exec"), namespace)
    return namespace["double"]


@pytest.fixture
def compile_(caplog):
    """Tells a new announcer that a kernel is compiled with its helpers. RETURNS: What it said."""
    announcer = Announcer()
    announcer.seconds["long"] = 20
    caplog.set_level(logging.INFO, "spacy.spacy_crf")

    def tell(*names, module=kernels.__name__):
        caplog.clear()
        events = []
        for name in names:
            function = SimpleNamespace(__module__=module, __name__=name, __qualname__=name)
            kernel = SimpleNamespace(py_func=function, stats=SimpleNamespace(cache_path="the folder"))
            events.append(SimpleNamespace(data={"dispatcher": kernel}))
            announcer.on_start(events[-1])
        for event in reversed(events):
            announcer.on_end(event)
        return [record.getMessage() for record in caplog.records]

    tell.announcer = announcer
    return tell


def test_compiling_is_announced_once_and_long_kernels_each(compile_, monkeypatch):
    """Also where training is quiet: a first fit without a terminal said nothing for minutes."""
    monkeypatch.setattr(announcing.crew, "n_left", lambda: 10**9)
    assert compile_("long", module="another.package") == []
    assert compile_("long", module=None) == []  # of a string that was executed
    with quietly():
        [once] = compile_("short", "long")
    assert (
        re.search(r"compiling [\d,]{11,} numba kernels", once) and "the folder" in once and "seconds longer" not in once
    )
    assert compile_("short") == []
    for _ in range(2):  # for other features
        [long] = compile_("long", "short")
        assert "'long'" in long and "20 seconds" in long


def test_a_terminal_shows_how_many_kernels_are_left(compile_, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(announcing.crew, "n_left", lambda: max(0, 3 - compile_.announcer.compiled))
    compile_("viterbi", "helper")
    shown = terminal.getvalue()
    assert "0 of 3 kernels" in shown and "viterbi" in shown and "helper" not in shown
    assert shown.rindex("\x1b[?25h") > shown.index("\x1b[?25l")  # the cursor is back
    for name in ("other", "another", "one more than there are"):
        compile_(name)
    assert terminal.getvalue().count("\x1b[?25h") == 4  # what the program writes meanwhile is not written over
    assert compile_.announcer.compiled == 4 and "3 of 4 kernels" in terminal.getvalue()


def test_where_nobody_knows_how_many_are_left_a_terminal_counts_up(compile_, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    for name in ("viterbi", "forward"):
        compile_(name)
    assert "1 kernel " in terminal.getvalue() and " of " not in terminal.getvalue()


def test_without_a_terminal_lines_count_kernels(compile_, monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    for name in ("viterbi", "forward"):
        compile_(name)
    assert capsys.readouterr().err.splitlines() == ["compiling: 0 kernels viterbi", "compiling: 1 kernel forward"]


def test_bars_within_bars_and_lines_do_not_write_over_each_other(monkeypatch):
    """Each bar had a display of its own, and lines of the log were written into them."""
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    logger = logging.getLogger("spacy")
    handler = logging.StreamHandler(terminal)
    logger.addHandler(handler)
    try:
        with (
            Bar("training", "fold", at_once=True) as outer,
            Bar("crf_ner: LBFGS", "iteration", 9, at_once=True) as inner,
        ):
            outer.show(2)
            inner.show(1)
            shown = terminal.getvalue().rpartition("crf_ner: LBFGS")[0].rpartition("\r")[2]
            assert "training" in shown and "2 folds" in shown  # one display with two rows
            logger.warning("a line")
            assert terminal.getvalue().rpartition("a line")[0].endswith("\x1b[2K")  # where the bars were
            inner.show(3)
            assert "2 folds" in terminal.getvalue().rpartition("a line")[2]
    finally:
        logger.removeHandler(handler)
    left = terminal.getvalue().rpartition("\x1b[2K")[2]
    assert not inner.is_shown and "folds" not in left and "iterations" not in left


@pytest.mark.parametrize("is_on", [True, False])
def test_garbage_is_collected_after_a_kernel_with_its_helpers_not_meanwhile(is_on):
    waiting, seen = PausedCollector(), []
    was_on = gc.isenabled()
    try:
        (gc.enable if is_on else gc.disable)()
        for step in (waiting.on_start, waiting.on_start, waiting.on_end, waiting.on_end):
            step(SimpleNamespace())
            seen.append(gc.isenabled())
    finally:
        (gc.enable if was_on else gc.disable)()
    assert seen == [False, False, False, is_on]


@compiled
def test_no_garbage_is_collected_while_numba_compiles():
    seen = []

    @numba.extending.overload(_look)
    def compile_look():
        seen.append(gc.isenabled())
        return lambda: 1

    assert gc.isenabled()
    assert numba.njit(lambda: _look())() == 1
    assert seen and not any(seen)
    assert gc.isenabled()


def _look():
    """Is overloaded."""


@compiled
def test_types_of_operators_are_remembered_by_the_types_of_their_operands():
    tried = []

    class Tried(numba.core.typing.templates.AbstractTemplate):
        key = operator.add

        def generic(self, args, kws):
            tried.append(args)

    context = numba.core.registry.cpu_target.typing_context
    context.refresh()  # numba knows no operators before it compiles
    add = numba.types.Function((Tried, *context.resolve_value_type(operator.add).templates))
    pairs = [(numba.int64, numba.int64), (numba.int64, numba.float64)]
    results = [str(add.get_call_type(context, pair, {}).return_type) for pair in pairs]
    assert results == ["int64", "float64"]
    assert set(tried) == set(pairs)
    tried.clear()
    again = [str(add.get_call_type(context, pair, {}).return_type) for pair in pairs]
    assert again == results and not tried


@compiled
def test_kernels_that_work_in_place_keep_no_references_and_make_no_arrays():
    add = kernels.kernel(in_place=True)(_add)
    numbers = np.zeros(3)
    before = sys.getrefcount(numbers)
    assert add(numbers, numbers[1:]) == 2
    assert sys.getrefcount(numbers) == before
    with pytest.raises(numba.core.errors.TypingError, match="array passed into the function"):
        kernels.kernel(in_place=True)(_make)(3)


def _add(numbers, others):
    return len(numbers[len(numbers) - len(others) :])


def _make(n):
    return np.zeros(n)


@pytest.fixture
def asked_anew():
    kernels._home.cache_clear()
    yield
    kernels._home.cache_clear()


def test_a_temporary_folder_stands_in_where_nothing_can_be_written(tmp_path, monkeypatch, asked_anew):
    def refuse(**options):
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(numba, "njit", refuse)
    folder = kernels.cache_folder(kernels.__file__)
    assert folder.parent.parent == tmp_path and os.access(folder.parent, os.W_OK)


@compiled
def test_kernels_are_kept_in_the_users_choice_of_folder(tmp_path, monkeypatch, asked_anew):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    assert tmp_path in kernels.cache_folder(kernels.__file__).parents


def test_kernels_are_compiled_again_when_a_named_tuple_changes(monkeypatch):
    """Also one that their file does not import: numba would not find it under its name, or take one field for another."""
    folder, read = Path(kernels.__file__).parent, kernels._source
    path = folder / "hashing.py"
    assert b"class ChainArrays(NamedTuple):" in kernels._named_tuples(frozenset([folder]))

    def swapped(path):
        return (
            read(path).replace("    first: Floats", "    zeroth: Floats")
            if path.name == "linear_chain.py"
            else read(path)
        )

    before = kernels._digest.__wrapped__(path)
    monkeypatch.setattr(kernels, "_source", swapped)
    monkeypatch.setattr(kernels, "_named_tuples", kernels._named_tuples.__wrapped__)
    assert kernels._digest.__wrapped__(path) != before


@compiled
def test_functions_of_others_stay_where_they_are(tmp_path):
    folder = str(kernels.cache_folder(__file__))
    assert kernels.kernel(lambda x: x).stats.cache_path == folder
    assert folder not in module_with_kernel(tmp_path).stats.cache_path


@pytest.fixture
def make_double(tmp_path, monkeypatch):
    """RETURNS: A function that declares the same kernel anew, as another process does. Its code is kept in tmp_path / code."""
    monkeypatch.setattr(kernels, "cache_folder", lambda path: tmp_path / "code")

    def double(x):
        return x[0] + x[0]

    return lambda: kernels.kernel(double)


def n_read(kernel):
    return sum(kernel.stats.cache_hits.values())


@compiled
def test_code_is_read_from_one_file_for_each_signature(tmp_path, make_double):
    first, second = make_double(), make_double()
    assert first((1, 2)) == 2 and first((1.0, 2)) == 2.0 and n_read(first) == 0
    assert second((1, 2)) == 2 and second((1.0, 2)) == 2.0 and n_read(second) == 2
    assert len(list((tmp_path / "code").glob("*.code"))) == 2


@compiled
@pytest.mark.parametrize("left", [0, 100])
def test_damaged_code_is_compiled_and_written_again(tmp_path, make_double, left):
    make_double()((1, 2))
    [path] = (tmp_path / "code").glob("*.code")
    whole = path.read_bytes()
    path.write_bytes(whole[:left])
    assert make_double()((1, 2)) == 2
    assert len(path.read_bytes()) >= len(whole) - 100


@compiled
@pytest.mark.parametrize("step", ["mkdir", "write_bytes", "replace"])
def test_where_code_cannot_be_written_each_process_compiles(tmp_path, monkeypatch, make_double, step):
    def refuse(path, *arguments, **options):
        raise OSError("no space left on device")

    (tmp_path / "code").mkdir()
    monkeypatch.setattr(repeated_work, "fcntl", None)  # without files of locks
    monkeypatch.setattr(Path, step, refuse)
    for _ in range(2):
        kernel = make_double()
        assert kernel((1, 2)) == 2 and n_read(kernel) == 0
    assert not list((tmp_path / "code").iterdir())


@compiled
def test_named_tuples_of_the_same_name_are_told_apart(tmp_path, monkeypatch, make_double):
    """Their signatures read the same, so their code has the same file."""
    for name in ("one", "another"):
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        module.Pair = NamedTuple("Pair", [("first", int)])
        module.Pair.__module__ = name
        kernel = make_double()
        assert kernel(module.Pair(3)) == 6 and n_read(kernel) == 0
    assert len(list((tmp_path / "code").glob("*.code"))) == 1


@compiled
def test_addresses_of_a_process_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "cache_folder", lambda path: tmp_path / "code")
    table = np.arange(10.0**6)
    assert kernels.kernel(lambda place: table[place])(3) == 3.0
    assert not list(tmp_path.rglob("*.code"))


READ = """
import sys
import numpy as np
from spacy_crf.kernels import gazetteers, hashing
words = np.arange(3, dtype=np.uint64)
starts = np.array([0, 3])
hashing.hash_rows(words[np.newaxis])
slots = np.zeros(2, dtype=np.uint64), np.zeros(2, dtype=np.int32)
gazetteers.find_phrases(words, starts, slots, np.zeros(1, dtype=np.int32))
print(sum(hashing.hash_runs.stats.cache_hits.values()), "numba.np.linalg" in sys.modules)
"""


@compiled
def test_the_compiler_is_not_loaded_to_read_kernels(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(kernels.__file__).parents[2])}
    for printed in ("0 True", "1 False"):
        command = [sys.executable, "-c", READ]
        found = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
        assert found.stdout.strip() == printed


HASH = """
import logging
import numpy as np
logging.basicConfig(level=logging.INFO)
from spacy_crf.kernels import hashing
print(hashing.hash_rows(np.arange(3, dtype=np.uint64)[np.newaxis])[0])
print(sum(hashing.hash_runs.stats.cache_misses.values()), sum(hashing.mix.stats.cache_misses.values()))
"""


@compiled
def test_an_edited_helper_is_compiled_into_its_callers(tmp_path):
    """numba kept the old code in them: it looks at a kernel's own file alone."""

    def run():
        environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
        found = subprocess.run(
            [sys.executable, "-c", HASH], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
        )
        hashed, misses, _ = found.stdout.split("\n")
        # announced where there is something to wait for
        assert found.stderr.count("compiling numba kernels") == (misses != "0 0")
        return hashed, misses

    package = Path(kernels.__file__).parent.parent
    copy = shutil.copytree(package, tmp_path / "spacy_crf", ignore=shutil.ignore_patterns("__pycache__"))
    first, misses = run()
    assert misses == "1 1"
    errors, linear_chain = copy / "errors.py", copy / "kernels" / "linear_chain.py"
    for path in (errors, linear_chain):  # no part of it
        path.write_text(path.read_text() + "\n")
    assert run() == (first, "0 0")
    numerics = copy / "kernels" / "numerics.py"
    numerics.write_text(numerics.read_text().replace("z = (hashed ^ value)", "z = (hashed ^ (value + value))"))
    second, misses = run()
    assert second != first and misses == "1 1"
    assert list((copy / "kernels").rglob("hashing.hash_runs*.code"))


SORTING = """
import os
import re
import sys
import numpy as np
from numba.core.bytecode import FunctionIdentity
from spacy_crf.kernels import kernel

@kernel
def sort(x):
    return np.sort(x)

@kernel
def order(x):
    return np.argsort(x)

if __name__ == "__main__":
    import sorting
    x = np.random.default_rng(0).permutation(40)
    if sys.argv[1] == "compile":
        # Counted from 1, the inner functions of both would have the same number
        for kernel, first in ((sorting.sort, 0), (sorting.order, 3)):
            if os.fork() == 0:
                for _ in range(first):
                    next(FunctionIdentity._unique_ids)
                kernel(x)
                os._exit(0)
            os.wait()
    print(*(np.array_equal(f(x.copy()), g(x)) for f, g in ((sorting.sort, np.sort), (sorting.order, np.argsort))))
    print(*(sum(each.stats.cache_hits.values()) for each in (sorting.sort, sorting.order)))
"""


@compiled
@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked")
def test_kernels_that_several_processes_compiled_keep_apart(tmp_path):
    """numba gave functions of different processes the same names: one kernel called those of another."""
    (tmp_path / "sorting.py").write_text(SORTING)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(kernels.__file__).parents[2])}
    command = [sys.executable, "sorting.py", "compile"]
    found = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
    assert found.stdout.split("\n")[:2] == ["True True", "1 1"]


def test_what_a_kernel_is_made_of_is_found_however_it_is_imported(tmp_path):
    sources = {
        "one.py": "from . import (\n    two,\n    name,\n)\nfrom .folder.three import name\n",
        "two.py": "def later():\n    from .folder import name as other, four\n",
        "folder/__init__.py": "from ..five import name\n",
        "folder/three.py": "import one\n",
        "folder/four.py": "",
        "five.py": "from numpy import six\n",
        "six.py": "",
    }
    for name, source in sources.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    found = {"one.py"}
    while (
        more := {
            imported.relative_to(tmp_path).as_posix()
            for name in found
            for imported in kernels._imported(tmp_path / name)
        }
        - found
    ):
        found |= more
    assert found == {*sources} - {"six.py"}


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
    expected.unlink()
    expected.symlink_to(tmp_path / "missing")  # this and a file were raw FileExistsErrors
    assert kernels._private_temporary_folder() != expected
    expected.unlink()
    expected.write_text("theirs")
    assert kernels._private_temporary_folder().is_dir()


_PRODUCTS = """
@numba.njit
def add_products(left, right, sums):
    add_up(16, 5, left, (0, 5), 1, right, 8, 24, sums, (16, 0))

random = np.random.default_rng(0)
left = random.normal(size=(2, 5))
right = random.normal(size=(5, 24))
sums = random.normal(size=(2, 16))
expected = sums[::-1] + left @ right[:, 8:]
add_products(left, right, sums)
np.testing.assert_allclose(sums[::-1], expected, rtol=0, atol=1e-12)
"""
_WITHOUT_VECTORS = f"""
import numba
import numpy as np
from llvmlite import ir
from spacy_crf.kernels.tiles import add_up

def gone(self):
    raise AttributeError("typed pointers are gone")

ir.VectorType.as_pointer = gone
{_PRODUCTS}
"""


@compiled
def test_loops_take_the_place_of_vector_code_that_does_not_compile(tmp_path, caplog):
    """As after a change of LLVM's own language. Both give the same sums."""
    exec(_PRODUCTS, {"np": np, "numba": numba, "add_up": add_up})
    assert "CRFW043" not in caplog.text
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(kernels.__file__).parents[2])}
    command = [sys.executable, "-c", _WITHOUT_VECTORS]
    done = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
    assert done.stderr.count("CRFW043") == 1 and "typed pointers are gone" in done.stderr
