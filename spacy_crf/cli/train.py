"""``spacy train`` on shards: the config it needs, made of one that knows none."""

import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Optional

import typer
from spacy.util import Config

from ..errors import Errors
from .group import app
from .shared import CodeOption, import_code, read_config, read_overrides, told_briefly

_FACTORIES = ("crf_ner", "crf_tagger", "semicrf_ner", "crf_textcat")
_CLOCK = {"@batchers": "spacy_crf.clock.v1"}
_LOCAL = "local"  # the address of a cluster that is started on this machine


@app.command("train", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def train_cli(
    ctx: typer.Context,
    config: Annotated[Path, typer.Argument(help="As for `spacy train`; overrides work.", exists=True)],
    shards: Annotated[int, typer.Option("--shards", "-n", help="Parts of the corpus; part of what is computed.")],
    output: Annotated[Optional[Path], typer.Option("--output", "-o", help="Folder to write the pipelines to.")] = None,
    workers: Annotated[Optional[int], typer.Option("--workers", help="How many; by default as fit.")] = None,
    ray: Annotated[
        Optional[str], typer.Option("--ray", help="Address of a Ray cluster; 'local' starts one here.")
    ] = None,
    cores: Annotated[int, typer.Option("--cores", help="Of each worker of a Ray cluster.")] = 1,
    path: Annotated[Optional[Path], typer.Option("--path", help="Folder of the shards; OUTPUT/shards if none.")] = None,
    component: Annotated[Optional[str], typer.Option("--component", "-c", help="By default all of ours.")] = None,
    code: CodeOption = None,
) -> None:
    """Train by several processes, as `spacy train` does by one. Each works on a part of the corpus; they may be those of a
    Ray cluster. The same command goes on where it was stopped."""
    from spacy.cli.train import train

    with told_briefly(), TemporaryDirectory() as folder:
        import_code(code)
        folder_of_shards = path or (Path("shards") if output is None else output / "shards")
        settings: dict[str, Any] = {"n": shards, "workers": workers, "path": str(folder_of_shards)}
        if ray is not None:
            settings.update(executor="ray", address=None if ray == _LOCAL else ray)
        if cores > 1:
            settings.update(cores=cores)
        changed = on_shards(read_config(config, read_overrides(ctx.args), interpolate=False), settings, component)
        changed.to_disk(Path(folder) / "config.cfg")
        train(Path(folder) / "config.cfg", output)


def on_shards(config: Config, settings: dict[str, Any], component: Optional[str] = None) -> Config:
    """A config by which components of ours are trained on shards.

    config (Config): As for `spacy train`, with its variables.
    settings (dict[str, Any]): Of `spacy_crf.shards.v1`; each component has a folder of its own in `path`.
    component (str): Only this one.
    RAISES (ValueError): CRF735 if there is none.
    """
    config = config.copy()
    names = [
        name
        for name, block in config["components"].items()
        if block.get("factory") in _FACTORIES and component in (None, name)
    ]
    if not names:
        named, others = f" named '{component}'" if component else "", ", ".join(config["components"]) or "none"
        raise ValueError(Errors.CRF735.format(named=named, components=others))
    initialize = config.setdefault("initialize", {}).setdefault("components", {})
    for name in names:
        block = initialize.setdefault(name, {})
        block.setdefault("corpus", _train_corpus(config))
        path = str(Path(settings["path"]) / name)
        block["shards"] = {"@misc": "spacy_crf.shards.v1", **block.get("shards", {}), **settings, "path": path}
    if {*names} == {*config["nlp"]["pipeline"]}:  # others want batches of texts
        config["training"].update(max_epochs=-1, batcher=dict(_CLOCK))
    return config


def _train_corpus(config: Config) -> dict[str, Any]:
    """What reads the training data, and does not keep it."""
    block: Any = config
    for key in config["training"].get("train_corpus", "corpora.train").split("."):
        block = block[key]
    block = copy.deepcopy(dict(block))
    if block.get("@readers") == "spacy_crf.Corpus.v1":
        block["@readers"] = "spacy.Corpus.v1"
    return block
