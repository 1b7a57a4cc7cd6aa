"""A page about what a trained pipeline does well and badly."""

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from wasabi import msg

from ..errors import Errors
from ..whole_files import write_whole
from .group import app
from .reading import read_examples
from .shared import CodeOption, ModelArgument, check_writable, load_pipeline, our_pipes, told_briefly


@app.command("report")
def report_cli(
    model: ModelArgument,
    data: Annotated[Path, typer.Argument(help="Annotated texts: .spacy, or what `convert` reads.", exists=True)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    train: Annotated[
        Optional[Path], typer.Option("--train", help="What it was trained with, to tell known words from others.")
    ] = None,
    folds: Annotated[
        int, typer.Option("--folds", help="Look for wrong annotation in the training texts, by so many trainings.")
    ] = 0,
    curve: Annotated[
        Optional[Path], typer.Option("--curve", help="What `curve --json` wrote, to be drawn.", exists=True)
    ] = None,
    component: Annotated[Optional[str], typer.Option("--component", "-c", help="By default all of ours.")] = None,
    code: CodeOption = None,
) -> None:
    """Write a page about what a pipeline does well and badly. It is one file of HTML, which needs no network: scores with
    intervals, confusions, every mistake, calibration, known and unknown words, annotation that looks wrong, what rules do."""
    from rich.progress import Progress

    with told_briefly(), Progress(transient=True) as progress:
        check_writable(output, data, train, curve)
        if folds and train is None:
            raise ValueError(Errors.CRF891)
        points = [] if curve is None else read_curve(curve)
        nlp = load_pipeline(model, code)
        pipes = our_pipes(nlp, component, Errors.CRF710)
        page = _report(nlp, pipes, data, train, folds, points, progress)
        write_whole(output, page.encode("utf8"))
    msg.good(f"Report in {output}")


def _report(nlp, pipes, data: Path, train: Optional[Path], folds: int, curve: list, progress: Any) -> str:
    from ..report.cases import judge
    from ..report.page import Subject, render
    from ..report.suspects import cross_validated

    task = progress.add_task("reading and predicting", total=2 + folds * len(pipes))
    training = [] if train is None else read_examples(train, nlp)
    judged = judge(nlp, pipes, read_examples(data, nlp))
    progress.update(task, advance=1, description="training without each part" if folds else "writing")
    subjects = []
    for of_pipe in judged:
        suspects = None
        if folds:
            suspects = cross_validated(nlp, of_pipe.pipe, training, folds, on_fold=partial(progress.advance, task))
        subjects.append(Subject(of_pipe, training, suspects))
    return render(f"{nlp.meta['lang']}_{nlp.meta['name']} on {data.name}", subjects, curve=curve)


def read_curve(path: Path) -> list[tuple[float, float]]:
    """Numbers of texts and scores.

    RAISES (ValueError): CRF892 for a file of something else.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf8"))
        points = [(float(row["texts"]), float(row["score"])) for row in rows]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(Errors.CRF892.format(path=path, reason=error)) from None
    if len(points) < 2:
        raise ValueError(Errors.CRF892.format(path=path, reason="it has fewer than two rows"))
    return points
