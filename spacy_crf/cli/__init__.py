"""``python -m spacy crf …``: each command is a function in one of these files, which is imported when the command is used."""

from .evaluate import draw_entities_of_any_component
from .group import app as app

draw_entities_of_any_component()
