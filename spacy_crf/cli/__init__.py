"""``python -m spacy crf …``: every command is a function of one of these files, imported when it is asked for."""

from .evaluate import draw_entities_of_any_component
from .group import app as app

draw_entities_of_any_component()
