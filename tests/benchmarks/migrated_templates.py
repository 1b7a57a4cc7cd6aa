"""Models of CRF++ and Wapiti with templates of ours, beside the replay of their lines:
``python -m tests.benchmarks.migrated_templates``.

CPU seconds of one thread, from Docs with words and tags to labels.
"""

import gzip
import os
import tempfile
import time
from functools import partial
from pathlib import Path

os.environ.setdefault("SPACY_CRF_THREADS", "1")

import numpy as np
import typer
from numpy.typing import NDArray
from spacy.language import Language
from spacy.tokens import Doc

from spacy_crf.cli.migrate import find_native, make_pipeline, read_columns, read_model

from .data import data_folder
from .measure import show, side_by_side

MODELS = {"crfpp": "crfpp.model", "wapiti": "wapiti.model.gz"}
COLUMNS = ["orth", "tag"]


def _read(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def _compare(program: str, folder: Path, test: Path, rounds: int) -> tuple:
    model = read_model(_read(folder / MODELS[program]), MODELS[program], program)
    native = find_native(model, COLUMNS)
    pipelines = [make_pipeline(model, COLUMNS, None, native=choice) for choice in (native, None)]
    docs = [list(read_columns(test, nlp, COLUMNS)) for nlp in pipelines]
    labels = [_labels(nlp, some) for nlp, some in zip(pipelines, docs)]
    tasks = [partial(_labels, nlp, some) for nlp, some in zip(pipelines, docs)]
    ours, replay = (
        len(labels[0]) / seconds for seconds in side_by_side(*tasks, repeats=rounds, clock=time.process_time)
    )
    different = int((labels[0] != labels[1]).sum())
    return program, len(native.replayed), different, f"{ours:,.0f}", f"{replay:,.0f}", ours / replay


def _labels(nlp: Language, docs: list[Doc]) -> NDArray[np.integer]:
    [(_, tagger)] = nlp.pipeline
    return np.concatenate([tagger.predict(docs[at : at + 128]).tags for at in range(0, len(docs), 128)])


def main(rounds: int = typer.Option(9, help="Times that both label all texts.")) -> None:
    """Compare labels and time."""
    folder = data_folder() / "models"
    with tempfile.TemporaryDirectory() as temporary:
        test = Path(temporary) / "test"
        test.write_bytes(_read(folder / "test.txt.gz"))
        rows = [_compare(program, folder, test, rounds) for program in MODELS]
    show("imported", ("", "lines replayed", "other labels", "tokens/s", "with --replay", "times"), rows)


if __name__ == "__main__":
    typer.run(main)
