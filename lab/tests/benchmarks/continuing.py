"""`tests.benchmarks.continuing` by optimizers of the dual: ``python -m lab.tests.benchmarks.continuing``."""

import typer

from tests.benchmarks import continuing

if __name__ == "__main__":
    for name in ("FrankWolfe", "ExponentiatedGradient"):
        continuing.WAYS[name] = continuing.Way(f"spacy_crf_lab.{name}.v1", "MaxMargin", {}, 50)
    typer.run(continuing.main)
