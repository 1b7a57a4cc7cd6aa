"""Of the site that Sphinx makes of these pages: ``python -m spacy project run site``."""

import shutil
from importlib.metadata import version as version_of
from pathlib import Path

# The pages of the other package in this repository are a section of the site; links lead from either folder to the other
_HERE = Path(__file__).parent
shutil.copytree(_HERE.parent / "lab" / "docs", _HERE / "lab", dirs_exist_ok=True)

project = "spacy_crf"
author = "The spacy_crf developers"
copyright = author
release = version = version_of("spacy-crf")

extensions = ["myst_parser"]
myst_heading_anchors = 3  # as links of the form page.md#heading want them
highlight_language = "text"  # of blocks that name no language

html_theme = "furo"
html_title = f"{project} {version}"
html_copy_source = False
html_static_path = html_css_files = ["site.css"]
