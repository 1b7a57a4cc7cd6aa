"""The list of kernels that a first training and a first prediction call: `python -m tests.kernels.signatures` writes it.

It takes minutes, since it compiles all of them into an empty folder to measure how long each takes."""

import json
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

FILE = Path(__file__).parents[2] / "spacy_crf" / "kernels" / "signatures.jsonl"
# One for each structure of the presets: `crf_tagger` calls what `crf_ner` calls
COMPONENTS = ("crf_ner", "semicrf_ner", "crf_spancat", "crf_textcat")


def described(type_):
    """A type of numba as the list has it, see `kernels.compiling`."""
    from numba import types

    if isinstance(type_, types.BaseTuple):
        named = getattr(type_, "instance_class", None)
        name = f"{named.__module__}.{named.__qualname__}".partition(".")[2] if named else ""
        return [name, *map(described, type_)]
    if isinstance(type_, types.Array):
        assert type_.layout == "C" and type_.aligned, type_
        return f"{'' if type_.mutable else 'readonly '}{type_.dtype}[{type_.ndim}]"
    return str(type_)


def write_list():
    """Compile, train and predict with each component, and write what was called."""
    from numba.core import event

    from spacy_crf.kernels.compiling import crew
    from tests.kernels.test_compile import ask, compile_ahead, structure_of, train_and_ask, used_by

    seconds = {}
    rows = {}

    class Clock(event.Listener):
        def __init__(self):
            self.begun = []

        def on_start(self, event):
            self.begun.append(time.process_time())

        def on_end(self, event):
            key = event.data["dispatcher"].py_func, str(event.data["args"])
            seconds[key] = time.process_time() - self.begun.pop()

    def add(phase, structure, used):
        for name, kernel, signature in used:
            empty = {"kernel": f"kernels.{name}", "seconds": 0.0, "training": [], "prediction": []}
            row = rows.setdefault((name, signature), {**empty, "arguments": [*map(described, signature)]})
            row["seconds"] = round(seconds[kernel.py_func, str(signature)], 1)
            row[phase].append(structure)

    crew.jobs = 1  # this process compiles all
    with event.install_listener("numba:compile", Clock()), TemporaryDirectory() as folder:
        for component in COMPONENTS:
            compile_ahead(component)
            trained = used_by(train_and_ask, component, Path(folder))
            structure = structure_of(component, Path(folder))
            add("training", structure, trained)
            add("prediction", structure, used_by(ask, Path(folder)))
    lines = [json.dumps(rows[key]) + "\n" for key in sorted(rows, key=str)]
    FILE.write_text("".join(lines), encoding="utf8")


if __name__ == "__main__":
    with TemporaryDirectory() as cache:
        os.environ["NUMBA_CACHE_DIR"] = cache  # before numba is imported
        write_list()
