"""``python -m spacy crf …``: every command is one file, imported here, under its name."""

from . import annotate as annotate
from . import calibrate as calibrate
from . import clusters as clusters
from . import convert as convert
from . import curve as curve
from . import data as data
from . import distil as distil
from . import errors as errors
from . import explain as explain
from . import init_config as init_config
from . import inspect as inspect
from . import migrate as migrate
from . import report as report
from . import rules as rules
from . import show as show
from . import threshold as threshold
from . import train as train
from . import tune as tune
from . import update as update
from . import vectors as vectors
from .evaluate import draw_entities_of_any_component
from .main import app as app

draw_entities_of_any_component()
