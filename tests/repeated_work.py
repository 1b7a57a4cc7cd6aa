"""Work that spaCy and its libraries repeat with the same outcome, a fourth of the time of the tests: here it is done once."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import dumps, loads  # a test replaces `pickle.loads`, to see that saved models do not call it
from typing import Any

try:
    import fcntl
except ImportError:  # on Windows processes compile what they need
    fcntl = None


def do_repeated_work_once(replace: Callable[[Any, str, Any], None]) -> dict:
    """replace (Callable): `setattr`, or that of pytest's monkeypatch.
    RETURNS: The words that English splits by a list, which pipelines are then made without."""
    import catalogue
    from confection import Config
    from spacy.lang.en import English
    from srsly import msgpack
    from typer import testing

    from spacy_crf.kernels.compiling import crew

    # catalogue goes through the entry points of all packages whenever a function is looked up or a Doc becomes bytes
    @functools.cache
    def of_group(group):
        return list(catalogue.AVAILABLE_ENTRY_POINTS.select(group=group))

    replace(catalogue.Registry, "_get_entry_points", lambda registry: of_group(registry.entry_point_namespace))
    for coders in (msgpack.msgpack_encoders, msgpack.msgpack_decoders):  # and through all functions for each array
        replace(coders, "get_all", functools.cache(coders.get_all))

    # confection writes and parses a config to interpolate it: the same few texts, thousands of times
    parse, parsed = Config.from_str, {}

    def parse_once(config, text, *, interpolate=True, **others):
        if any(others.values()):
            return parse(config, text, interpolate=interpolate, **others)
        if (text, interpolate) not in parsed:
            parsed[text, interpolate] = dumps(dict(parse(Config(), text, interpolate=interpolate)))
        config.clear()
        config.update(loads(parsed[text, interpolate]))
        config.is_interpolated = interpolate
        return config

    replace(Config, "from_str", parse_once)

    # typer makes all commands of an app, with all their options, whenever a test calls one of them
    replace(testing, "_get_command", functools.cache(testing._get_command))

    _compile_each_kernel_in_one_process(replace)
    replace(crew, "jobs", 1)  # pytest has a process for each core

    # A blank pipeline takes 64 ms with 1,300 special words, 8 without
    words = English.Defaults.tokenizer_exceptions
    replace(English.Defaults, "tokenizer_exceptions", {})
    return words


def _compile_each_kernel_in_one_process(replace: Callable[[Any, str, Any], None]) -> None:
    """Who needs a kernel that another process is compiling waits, and loads it from the cache."""
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.dispatcher import Dispatcher

    compile, locked = Dispatcher.compile, set()

    def compile_or_wait(kernel: Any, signature: Any) -> Any:
        folder = kernel.stats.cache_path
        if fcntl is None or folder is None:
            return compile(kernel, signature)
        name = f"{kernel.py_func.__module__}.{kernel.py_func.__qualname__}.lock"
        # This process's lock first, as numba takes it while it compiles a helper: nobody waits in a circle
        with global_compiler_lock, _only_process(Path(folder, name), locked):
            return compile(kernel, signature)

    replace(Dispatcher, "compile", compile_or_wait)


@contextmanager
def _only_process(file: Path, locked: set[Path]) -> Iterator[None]:
    """locked (set[Path]): Files that this process has locked: a kernel may be compiled while another type of it is."""
    if file in locked:
        yield
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        locked.add(file)
        try:
            yield
        finally:
            locked.discard(file)
            fcntl.flock(opened, fcntl.LOCK_UN)  # closing alone keeps the lock of a process that was forked meanwhile
