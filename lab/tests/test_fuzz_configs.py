"""Configs with random mistakes, in which optimizers, losses and configs of the lab may be."""

from pathlib import Path

import pytest
from spacy.util import load_config

from tests.pipeline import test_fuzz_configs as of_plugin

LOSSES = [f"spacy_crf_lab.{name}.v1" for name in ("PseudoLikelihood", "BesagPseudoLikelihood", "Piecewise")]
OPTIMIZERS = {
    "spacy_crf_lab.ConjugateGradient.v1": {
        "l2": 1.0,
        "preconditioner": "diagonal",
        "mixed": True,
        "max_line_search": 20,
    },
    "spacy_crf_lab.Newton.v1": {"l2": 1.0, "tolerance": 1e-5, "period": 10, "delta": 1e-5, "max_line_search": 20},
    "spacy_crf_lab.GIS.v1": {"l2": 1.0, "tolerance": 1e-5, "period": 10, "delta": 1e-5},
    "spacy_crf_lab.IIS.v1": {"l2": 1.0, "masses": 2, "period": 10, "delta": 1e-5},
    "spacy_crf_lab.ExponentiatedGradient.v1": {"l2": 1.0, "rate": 1.0, "gap_tolerance": 1e-3, "seed": 0},
    "spacy_crf_lab.FrankWolfe.v1": {"l2": 1.0, "gap_tolerance": 1e-3, "seed": 0},
    "spacy_crf_lab.CuttingPlane.v1": {"l2": 1.0, "gap_tolerance": 1e-3, "planes": 9},
}
MARGIN = {f"spacy_crf_lab.{name}.v1" for name in ("ExponentiatedGradient", "FrankWolfe", "CuttingPlane")}
CONFIGS = [
    path
    for path in sorted((Path(__file__).parents[1] / "configs").glob("*.cfg"))
    if len(load_config(path)["components"]) == 1
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("seed", range(4))
def test_configs_with_mistakes_work_or_say_what_is_wrong(seed, monkeypatch):
    for name, table in {"LOSSES": LOSSES, "OPTIMIZERS": OPTIMIZERS, "MARGIN": MARGIN, "CONFIGS": CONFIGS}.items():
        monkeypatch.setattr(of_plugin, name, table)
    of_plugin.test_configs_with_mistakes_work_or_say_what_is_wrong(seed)
