"""Configs and saved pipelines of versions 0.12 and 0.13, rewritten without the registered names that were removed since."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from spacy.util import Config, load_config
from wasabi import msg

from ..errors import Errors
from .shared import command, load_pipeline

Block = dict[str, Any]

_AFFIXES = [f"{side}{n}[0]" for side in ("prefix", "suffix") for n in range(1, 5)]
_PAIRS = ["lower[-1]|lower[0]", "lower[0]|lower[1]"]
_LETTERS = [f"is_title[{n}]|is_upper[{n}]|is_digit[{n}]|has_hyphen[{n}]" for n in range(-2, 3)]
_NER = ["bias", "lower[-2..2]", "shape[-2..2]", "orth[0]", *_AFFIXES, *_PAIRS, "shape[-1]|shape[0]|shape[1]", *_LETTERS]
_NER += ["lower[-1]|lower[1]"]
_TAGGER = ["bias", "lower[-2..2]", "orth[0]", "shape[-1..1]", "short_shape[0]", *_AFFIXES[:5], "suffix2[-1..1]"]
_TAGGER += ["suffix3[-1..1]", "suffix4[0]", "suffix5[0]", "has_hyphen[0]", "has_digit[0]", *_PAIRS]
_TAGGER += ["suffix3[-1]|suffix3[0]"]
# What segment_features.v2 added to version 1
_FLAGS = [
    f"seg.{end}:if:{flag}" for end in ("first", "last") for flag in ("is_title", "is_upper", "is_digit", "has_hyphen")
]


@command("upgrade")
def upgrade_cli(
    old: Annotated[Path, typer.Argument(help="A config, or the folder of a pipeline.", exists=True)],
    new: Annotated[Path, typer.Argument(help="File or folder to write, which must not exist.")],
) -> None:
    """Rewrite a config or a pipeline of version 0.12 or 0.13. Names that were removed since are replaced, and the templates of
    presets that were removed are written out, so that the pipeline predicts what it predicted before."""
    changes = upgrade(old, new)
    if old.is_dir():
        load_pipeline(str(new))
    for section, before, after in changes:
        msg.text(f"[{section}] {before} -> {after}")
    msg.good(f"Wrote {new}")


def upgrade(old: Path, new: Path) -> list[tuple[str, str, str]]:
    """Write a copy of a config, or of a pipeline, whose config names what this version has.

    RETURNS (list[tuple[str, str, str]]): The sections that changed, each with the name before and the name after.
    RAISES (ValueError): CRF750 if the new path exists; CRF037 for a model that only version 0.13 reads.
    """
    if new.exists():
        raise ValueError(Errors.CRF750.format(path=new, advice="name a file or folder that does not exist"))
    config = load_config(old / "config.cfg" if old.is_dir() else old, interpolate=False)
    changes: list[tuple[str, str, str]] = []
    upgraded = Config(_upgraded(config, "", changes))
    if old.is_dir():
        shutil.copytree(old, new)
    upgraded.to_disk(new / "config.cfg" if old.is_dir() else new, interpolate=False)
    return changes


def _upgraded(block: Block, section: str, changes: list[tuple[str, str, str]]) -> Block:
    inner = {
        key: _upgraded(value, f"{section}.{key}".lstrip("."), changes) if isinstance(value, dict) else value
        for key, value in block.items()
    }
    name = next((value for key, value in block.items() if key in ("@misc", "@architectures")), None)
    if name not in _REWRITTEN:
        return inner
    found = _REWRITTEN[name](inner)
    after = found.get("@misc", found.get("@architectures"))
    if found != inner:
        changes.append((section, name, after))
    return found


def _features(templates: Optional[list[str]], padding: bool) -> Callable[[Block], Block]:
    """From a block of a preset to one with its templates.

    templates (list[str]): Those of the preset; by default those of its version 2, which have a window.
    """

    def rewrite(block: Block) -> Block:
        from ..features.presets import changed, ner_templates, pairs, tagger_templates  # which loads numba

        make = tagger_templates if "tagger" in block["@misc"] else ner_templates
        whole = make(block.get("window", 2), pairs(1)) if templates is None else templates
        return {
            "@misc": "spacy_crf.features.v1",
            "templates": changed(block["@misc"], whole, block.get("extra"), block.get("without")),
            "transitions": block.get("transitions"),
            "padding": block.get("padding", padding),
            "functions": block.get("functions"),
        }

    return rewrite


def _segment_features(block: Block) -> Block:
    without = None if block.get("templates") is not None else _FLAGS
    return {"templates": None, "extra": None, **block, "@misc": "spacy_crf.segment_features.v2", "without": without}


def _sparse_segments(block: Block) -> Block:
    """Its default was version 1 of the preset."""
    return {**block, "features": _segment_features({})} if block.get("features", "") is None else block


def _chain(block: Block) -> Block:
    block = {key: value for key, value in block.items() if key != "tie_boundaries"}
    block |= {"@architectures": "spacy_crf.LinearChain.v2"}
    emissions = block.get("emissions")
    if isinstance(emissions, dict) and emissions.get("@architectures") == _ENCODER:
        # Version 1 had no learning rates of its own
        block |= {"emissions": None, "tok2vec": emissions["tok2vec"], "joint": {"chain_rate": 1.0}}
    return block


def _segments(block: Block) -> Block:
    """RAISES (ValueError): CRF037 for an encoder, which gave a label one score and gives it four."""
    emissions = block.get("emissions")
    if isinstance(emissions, dict) and emissions.get("@architectures") == _ENCODER:
        raise ValueError(Errors.CRF037)
    if block.get("segments", "") is None:  # which took those of the preset
        block["segments"] = _sparse_segments({"@architectures": "spacy_crf.SparseSegments.v1", "features": None})
    return {**block, "@architectures": "spacy_crf.SemiMarkov.v2"}


def _without_defaults(**settings: Any) -> Callable[[Block], Block]:
    """Write out settings that a block left to the defaults of version 0.13."""
    return lambda block: {**settings, **block}


_ENCODER = "spacy_crf.Tok2VecEmissions.v1"
_REWRITTEN: dict[Optional[str], Callable[[Block], Block]] = {
    "spacy_crf.ner_features.v1": _features(_NER, padding=False),
    "spacy_crf.ner_features.v2": _features(None, padding=False),
    "spacy_crf.tagger_features.v1": _features(_TAGGER, padding=True),
    "spacy_crf.tagger_features.v2": _features(None, padding=True),
    "spacy_crf.segment_features.v1": _segment_features,
    "spacy_crf.SparseSegments.v1": _sparse_segments,
    "spacy_crf.LinearChain.v1": _chain,
    "spacy_crf.SemiMarkov.v1": _segments,
    "spacy_crf.LinearChain.v2": _without_defaults(emissions=None, possible_transitions=False),
    "spacy_crf.SemiMarkov.v2": _without_defaults(emissions=None, segments=None, possible_transitions=False),
}
