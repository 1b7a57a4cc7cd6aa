"""Projects to begin with, and the model card of a pipeline for `spacy package`."""

import platform
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import srsly
from spacy.cli._util import Arg, Opt
from spacy.training import Example
from wasabi import msg
from weasel.cli.assets import project_assets
from weasel.util import load_project_config

from .. import __version__, checks
from ..errors import Errors
from ..whole_files import write_whole
from .shared import (
    ComponentOption,
    DataArgument,
    ModelArgument,
    command,
    load_pipeline,
    our_pipes,
    print_table,
    save_pipeline,
)
from .texts import read_examples

if TYPE_CHECKING:
    from ..report.cases import Judged

_PACKAGE = Path(__file__).parents[1]
FOLDER = next(folder for folder in (_PACKAGE / "projects", _PACKAGE.parent / "projects") if folder.is_dir())
_SPLITS = ("train", "dev", "test")
_WARM_UP = 20  # texts, so that the speed is not that of compiling kernels
_OF_META = ("name", "version", "description", "author", "email", "url", "license", "sources")


@command("project", has_code=False)
def project_cli(
    name: Optional[str] = Arg(None, help="A project; without it the command lists them."),
    folder: Optional[Path] = Arg(None, help="Folder to make; by default named as the project."),
    assets: Optional[Path] = Opt(
        None, help="Folder with annotated texts, train, test and dev, in place of downloads.", exists=True
    ),
) -> None:
    """Copy a spaCy project that trains and packages a pipeline. The command also fetches the annotated texts; `spacy project run
    all` does the rest.
    """
    names = sorted(path.parent.name for path in FOLDER.glob("*/project.yml"))
    if name is None:
        rows = [(name, load_project_config(FOLDER / name)["title"]) for name in names]
        return print_table("Projects", ("name", "trains on"), rows, n_texts=2)
    checks.one_of("crf project", "NAME", name, tuple(names))
    target = folder or Path(name)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(Errors.CRF796.format(path=target))
    given = [] if assets is None else sorted(path for path in assets.iterdir() if path.stem in _SPLITS)
    if assets is not None and not given:
        raise ValueError(Errors.CRF797.format(path=assets))
    shutil.copytree(FOLDER / name, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    (target / "assets").mkdir()
    for path in given:
        copy = shutil.copytree if path.is_dir() else shutil.copy
        copy(path, target / "assets" / path.name)
    if not given and load_project_config(target).get("assets"):
        project_assets(target)
    msg.good(f"Project in {target}. Next: python -m spacy project run all {target}")


@command("card")
def card_cli(
    model: ModelArgument,
    data: DataArgument,
    output: Path = Opt(..., "--output", "-o", help="Folder to write the pipeline to."),
    meta: Optional[Path] = Opt(None, help="JSON with name, version, description, license, sources …", exists=True),
    notes: Optional[Path] = Opt(None, help="Markdown about use and limits, to follow the figures.", exists=True),
    component: ComponentOption = None,
) -> None:
    """Write a pipeline with its model card. The card has scores of each label with intervals, speed and size.

    They are the "notes" and the "performance" in meta.json, of which `spacy package` makes the README of the package.
    """
    from ..report.cases import judge

    about = _read_meta(meta) if meta else {}
    if output.exists() and (not output.is_dir() or any(output.iterdir())) and not (output / "meta.json").is_file():
        raise ValueError(Errors.CRF796.format(path=output))
    nlp = load_pipeline(model)
    pipes, examples = our_pipes(nlp, component), read_examples(data, nlp)
    for _ in nlp.pipe(example.reference.text for example in examples[:_WARM_UP]):
        pass
    scores = nlp.evaluate([Example(example.predicted.copy(), example.reference) for example in examples])
    speed = scores.pop("speed")
    nlp.meta.update(about)
    nlp.meta["performance"] = {
        name: value for name, value in scores.items() if value is not None and not name.startswith("token_")
    }
    save_pipeline(nlp, output)  # before `judge` switches on probabilities
    size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    host = f"{platform.machine()}, Python {platform.python_version()}, spacy_crf {__version__}"
    card = [_scores(judged) for judged in judge(nlp, pipes, examples)]
    card.append(
        f"### Speed and size\n\n{speed:,.0f} words a second in one process ({host}); {size / 1e6:.1f} MB on disk.\n"
    )
    card.append(notes.read_text(encoding="utf8") if notes else "")
    saved: Any = srsly.read_json(output / "meta.json")
    write_whole(output / "meta.json", srsly.json_dumps({**saved, "notes": "\n".join(card)}, indent=2).encode())
    msg.good(
        f'{output}: the card is under "notes" of meta.json. Next: python -m spacy package {output} . --build wheel'
    )


def _read_meta(path: Path) -> dict[str, Any]:
    """RAISES (ValueError): CRF798 if the file is not a JSON object with known keys."""
    try:
        about = srsly.read_json(path)
    except ValueError:
        about = None
    if not isinstance(about, dict) or not set(about) <= set(_OF_META):
        raise ValueError(Errors.CRF798.format(path=path, known=", ".join(_OF_META)))
    return about


def _scores(judged: "Judged") -> str:
    """The scores of a component, as a table of Markdown."""
    from ..report.figures import scores

    wrong, n = len({case.doc for case in judged.errors}), len(judged.examples)
    lines = [f"### What `{judged.pipe.name}` finds", ""]
    lines += [
        f"In {n:,} texts from which it did not learn, of which {(n - wrong) / max(n, 1):.1%} have no mistake:",
        "",
    ]
    lines += ["| Label | Annotated | Precision | Recall | F1 | 95 % |", "| --- | ---: | ---: | ---: | ---: | --- |"]
    for row in scores(judged):
        shares = " | ".join(f"{100 * share.value:.1f}" for share in (row.precision, row.recall, row.f))
        lines.append(f"| {row.label} | {row.n_gold:,} | {shares} | {100 * row.f.low:.1f}–{100 * row.f.high:.1f} |")
    return "\n".join(lines) + "\n"
