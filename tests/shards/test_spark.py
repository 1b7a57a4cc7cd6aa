"""The recipe for Spark in docs/run.md, as it stands there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import spacy

PAGE = Path(__file__).parents[2] / "docs" / "run.md"
ROWS = [(n, f"Call {n} came from New York .") for n in range(20)]
SPANS = [[(len(f"Call {n} came from "), len(f"Call {n} came from New York"), "GPE")] for n, _ in ROWS]
SESSION = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.createDataFrame({rows!r}, "id long, text string").write.parquet("texts")
"""


@pytest.fixture
def recipe(tmp_path):
    """The code, of a pipeline that is there."""
    nlp = spacy.blank("en")
    nlp.add_pipe("entity_ruler").add_patterns([{"label": "GPE", "pattern": "New York"}])
    nlp.to_disk(tmp_path / "places")
    [code] = re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf8"), re.DOTALL)
    return code.replace("/dbfs/models/places", str(tmp_path / "places"))


def test_the_recipe_without_spark(recipe):
    """Of a frame it takes what a dict has too."""
    names: dict = {}
    exec(recipe.partition("schema = ")[0], names)
    frames = [{"id": [number], "text": [text]} for number, text in ROWS]
    assert [frame["spans"] for frame in names["annotate"](iter(frames))] == [[spans] for spans in SPANS]


@pytest.mark.slow
def test_the_recipe_on_spark(recipe, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    for package in ("pandas", "pyspark"):
        pytest.importorskip(package, reason=f"needs {package}")
    if shutil.which("java") is None:
        pytest.skip("needs Java")
    script = tmp_path / "job.py"
    script.write_text(SESSION.format(rows=ROWS) + recipe, encoding="utf8")
    around = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    run = subprocess.run([sys.executable, script.name], cwd=tmp_path, env=around, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-4000:]
    rows = sorted(parquet.read_table(tmp_path / "found").to_pylist(), key=lambda row: row["id"])
    assert [(row["id"], row["text"]) for row in rows] == ROWS
    assert [[tuple(span.values()) for span in row["spans"]] for row in rows] == SPANS
