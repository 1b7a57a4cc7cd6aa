"""`tests.benchmarks.textcat_search` with models of hidden states: ``python -m lab.tests.benchmarks.textcat_search``."""

import typer

from tests.benchmarks import textcat_search

CHAIN = {"@architectures": "spacy_crf_lab.HiddenChain.v1", "seed": 0}

if __name__ == "__main__":
    textcat_search.MODELS |= {
        "8 shared": {**CHAIN, "hidden": 8, "shared": True},
        "2 own": {**CHAIN, "hidden": 2, "shared": False},
        "3 own": {**CHAIN, "hidden": 3, "shared": False},
    }
    typer.run(textcat_search.main)
