"""Systems of the literature on conditional random fields that few people need. Configs load them by
name: `spacy_crf_lab.NAME.v1`."""

from pathlib import Path

__version__ = "0.23.0"

_PACKAGE = Path(__file__).parent
# Within an installed package; beside the package in a clone
CONFIGS = next(folder for folder in (_PACKAGE / "configs", _PACKAGE.parent / "configs") if folder.is_dir())
