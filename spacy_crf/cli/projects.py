"""Projects to begin with, and the model card of a pipeline for `spacy package`."""

import platform
import shutil
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import srsly
from spacy.cli._util import Arg, Opt
from spacy.training import Example
from wasabi import msg
from weasel.cli.assets import project_assets
from weasel.util import load_project_config

from .. import __version__, checks
from ..errors import Errors, counted
from ..whole_files import write_whole
from .shared import (
    PROBABILITIES,
    ComponentOption,
    DataArgument,
    ModelArgument,
    PipelineOption,
    command,
    load_pipeline,
    our_pipes,
    packaged,
    print_table,
    save_pipeline,
)
from .texts import read_examples

if TYPE_CHECKING:
    from ..report.cases import Judged

FOLDER = packaged("projects")
_SPLITS = ("train", "dev", "test")
# Bounds for the annotated texts that are copied into a project
_MOST_FILES = 10_000
MOST_BYTES = 4_000_000_000
_WARM_UP = 20  # texts to predict before the speed is measured, so that it does not include the compilation of kernels
_KEYS_OF_META = ("name", "version", "description", "author", "email", "url", "license", "sources")


@command("project", has_code=False)
def project_cli(
    name: Optional[str] = Arg(None, help="A project; without it the command lists them."),
    folder: Optional[Path] = Opt(None, "--output", "-o", help="Folder to make; by default named as the project."),
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
    files = [] if assets is None else _files_of_texts(assets)
    was_there = target.exists()
    try:
        shutil.copytree(FOLDER / name, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        (target / "assets").mkdir()
        for path in files:
            copy = target / "assets" / path.relative_to(assets or path)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        if not files:
            _fetch(name, target)
    except BaseException:
        # Also when the user stops the command: it shall work when the user repeats it
        shutil.rmtree(target, ignore_errors=True)
        if was_there:  # as an empty folder of the user
            target.mkdir(exist_ok=True)
        raise
    msg.good(f"Project in {target}. Next: python -m spacy project run all {target}")


def _files_of_texts(folder: Path) -> list[Path]:
    """The files of annotated texts in a folder: train, test and dev, with any suffix, each a file or a folder of files.

    RAISES (ValueError): CRF797 without train or test; CRF983 for anything but files and folders, or for too many or too large
        files.
    """
    splits = sorted(path for path in folder.iterdir() if path.stem in _SPLITS)
    if not {"train", "test"} <= {path.stem for path in splits}:
        raise ValueError(Errors.CRF797.format(path=folder))
    files: list[Path] = []
    size = 0
    for path in chain.from_iterable([path, *path.rglob("*")] for path in splits):
        if path.is_dir() and not path.is_symlink():
            continue
        if not path.is_file():
            raise ValueError(
                Errors.CRF983.format(path=path, reason="neither a file nor a folder, or a link to a folder")
            )
        files.append(path)
        size += path.stat().st_size
        if len(files) > _MOST_FILES or size > MOST_BYTES:
            raise ValueError(
                Errors.CRF983.format(path=path, reason=f"beyond {_MOST_FILES:,} files or {MOST_BYTES / 1e9:g} GB")
            )
    return files


def _fetch(name: str, target: Path) -> None:
    """Fetch the texts of the project `name` into its copy in the folder `target`.

    RAISES (ValueError): CRF982 for texts that can't be fetched.
    """
    assets = load_project_config(target).get("assets") or []
    if not assets:  # a step of the project makes its texts
        return
    failure: Optional[OSError] = None
    try:
        project_assets(target)  # which prints some errors, and raises others
    except OSError as error:
        failure = error
    files = [asset["dest"] for asset in assets]
    missing = [file for file in files if not (target / file).is_file() or not (target / file).stat().st_size]
    if missing or failure is not None:
        raise ValueError(
            Errors.CRF982.format(
                name=name, missing=", ".join(missing or files), reason="see above" if failure is None else failure
            )
        ) from failure


@command("card")
def card_cli(
    model: ModelArgument,
    data: DataArgument,
    output: PipelineOption,
    meta: Optional[Path] = Opt(None, help="JSON with name, version, description, license, sources …", exists=True),
    notes: Optional[Path] = Opt(None, help="Markdown about use and limits, to follow the figures.", exists=True),
    component: ComponentOption = None,
) -> None:
    """Write a pipeline with its model card. The card has scores of each label with intervals, speed and size.

    They are the "notes" and the "performance" in meta.json, of which `spacy package` makes the README of the package.
    """
    from ..report.cases import judge
    from ..report.segments import find_segments, judge_segments

    about = _read_meta(meta) if meta else {}
    if output.exists() and (not output.is_dir() or any(output.iterdir())) and not (output / "meta.json").is_file():
        raise ValueError(Errors.CRF796.format(path=output))
    nlp = load_pipeline(model)
    segments = find_segments(nlp, component)
    pipes = our_pipes(nlp, component, None if segments else PROBABILITIES)
    examples = read_examples(data, nlp)
    for _ in nlp.pipe(example.reference.text for example in examples[:_WARM_UP]):
        pass
    # Copies, since `judge` predicts the same examples
    scores = nlp.evaluate([Example(example.predicted.copy(), example.reference) for example in examples])
    speed = scores.pop("speed")
    nlp.meta.update(about)
    nlp.meta["performance"] = {
        # The scores of tokens say nothing of a tokenizer that does not learn
        name: value
        for name, value in scores.items()
        if value is not None and (segments or not name.startswith("token_"))
    }
    save_pipeline(nlp, output)  # before `judge` switches on probabilities
    size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    host = f"{platform.machine()}, Python {platform.python_version()}, spacy_crf {__version__}"
    judged_segments = judge_segments(segments, examples)
    card = [_scores(judged) for judged in [*judged_segments, *judge(nlp, pipes, examples)]]
    card.append(
        f"### Speed and size\n\n{speed:,.0f} words a second in one process ({host}); {size / 1e6:.1f} MB on disk.\n"
    )
    card.append(notes.read_text(encoding="utf8") if notes else "")
    saved: Any = srsly.read_json(output / "meta.json")
    write_whole(output / "meta.json", srsly.json_dumps({**saved, "notes": "\n".join(card)}, indent=2).encode())
    msg.good(
        f'{output}: the card is under "notes" of meta.json. Next: python -m spacy package {output} . --build wheel'
    )


def _read_meta(path: Path) -> dict[str, object]:
    """Read what a user says about a pipeline, for its meta.json.

    RAISES (ValueError): CRF798 if the file is not a JSON object with known keys.
    """
    try:
        about = srsly.read_json(path)
    except ValueError:
        about = None
    if not isinstance(about, dict) or not set(about) <= set(_KEYS_OF_META):
        raise ValueError(Errors.CRF798.format(path=path, known=", ".join(_KEYS_OF_META)))
    return about


def _scores(judged: "Judged") -> str:
    """The part of the card about a component: a sentence about the texts, and the scores as a table, in Markdown."""
    from ..pipeline.pipe import LearningPipe
    from ..report.figures import scores

    n_texts = len(judged.examples)
    n_wrong = len({case.doc for case in judged.errors})
    right = (n_texts - n_wrong) / max(n_texts, 1)
    is_component = isinstance(judged.pipe, LearningPipe)
    n_learned = judged.pipe.training.learned.count(judged.examples) if is_component else None
    if n_learned is None:
        learned = " (which of them it has learned from, is not known)"
    elif n_learned:
        learned = f", {n_learned:,} of which it has learned from (in new texts it makes more mistakes)"
    else:
        learned = " from which it did not learn"
    lines = [f"### What `{judged.pipe.name}` finds", ""]
    lines += [f"In {counted(n_texts, 'text')}{learned}, {right:.1%} without a mistake:", ""]
    lines += ["| Label | Annotated | Precision | Recall | F1 | 95 % |", "| --- | ---: | ---: | ---: | ---: | --- |"]
    for row in scores(judged):
        shares = " | ".join(f"{100 * share.value:.1f}" for share in (row.precision, row.recall, row.f))
        lines.append(f"| {row.label} | {row.n_gold:,} | {shares} | {100 * row.f.low:.1f}–{100 * row.f.high:.1f} |")
    return "\n".join(lines) + "\n"
