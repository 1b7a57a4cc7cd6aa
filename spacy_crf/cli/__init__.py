"""``python -m spacy crf …``: every command is one file, imported here, under its name."""

from . import annotate, calibrate, clusters, convert, data, explain, inspect, rules, show, tune, update
from .main import app

__all__ = [
    "annotate",
    "app",
    "calibrate",
    "clusters",
    "convert",
    "data",
    "explain",
    "inspect",
    "rules",
    "show",
    "tune",
    "update",
]
