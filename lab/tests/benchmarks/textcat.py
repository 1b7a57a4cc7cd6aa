"""`tests.benchmarks.textcat` with models of hidden states: ``python -m lab.tests.benchmarks.textcat``."""

import typer

from tests.benchmarks import textcat

CHAIN = {"@architectures": "spacy_crf_lab.HiddenChain.v1"}

if __name__ == "__main__":
    textcat.OURS |= {"HiddenChain": CHAIN, "HiddenChain with shared states": {**CHAIN, "hidden": 8, "shared": True}}
    typer.run(textcat.main)
