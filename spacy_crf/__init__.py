import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .explain.displacy_marks import render
    from .optimizers.lbfgs import LBFGS
    from .pipeline.crf_senter import CRFSenter
    from .pipeline.crf_tagger import CRFTagger
    from .pipeline.crf_textcat import CRFTextClassifier
    from .pipeline.prediction import CRFEntityRecognizer
    from .pipeline.semi_markov import SemiCRFEntityRecognizer
    from .pipeline.tokenizer import CharacterTokenizer
    from .report.frame import to_frame

__all__ = [
    "LBFGS",
    "CRFEntityRecognizer",
    "CRFSenter",
    "CRFTagger",
    "CRFTextClassifier",
    "CharacterTokenizer",
    "SemiCRFEntityRecognizer",
    "__version__",
    "render",
    "to_frame",
]
__version__ = "0.23.0"

# Imported at first use, since every ``spacy.blank()`` imports this package
_MODULES = {
    "LBFGS": "optimizers.lbfgs",
    "CRFEntityRecognizer": "pipeline.prediction",
    "CRFSenter": "pipeline.crf_senter",
    "CRFTagger": "pipeline.crf_tagger",
    "CRFTextClassifier": "pipeline.crf_textcat",
    "CharacterTokenizer": "pipeline.tokenizer",
    "SemiCRFEntityRecognizer": "pipeline.semi_markov",
    "render": "explain.displacy_marks",
    "to_frame": "report.frame",
}

if "spacy" in sys.modules:  # otherwise spaCy sets the extensions at its first `blank` or `load`
    from . import pipeline  # noqa: F401


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
