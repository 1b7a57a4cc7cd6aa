"""``python -m spacy crf …``: every command is one file, imported here, under its name."""

from . import calibrate, clusters, convert, data, rules, show, tune, update
from .main import app

__all__ = ["app", "calibrate", "clusters", "convert", "data", "rules", "show", "tune", "update"]
