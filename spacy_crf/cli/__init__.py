"""``python -m spacy crf …``: every command is one file, imported here, under its name."""

from . import convert, show
from .main import app

__all__ = ["app", "convert", "show"]
