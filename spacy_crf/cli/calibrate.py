"""How far the probabilities of a trained pipeline can be trusted."""

from pathlib import Path
from typing import Annotated, Any, Optional

import spacy
import typer
from spacy.training import Corpus
from wasabi import msg

from ..errors import Errors
from .main import app, told_briefly


@app.command("calibrate")
def calibrate_cli(
    model: Annotated[str, typer.Argument(help="A pipeline: the name of a package, or a folder.")],
    data: Annotated[Path, typer.Argument(help="Annotated texts, a .spacy file.", exists=True)],
    component: Annotated[Optional[str], typer.Option("--component", "-c", help="By default all that can tell.")] = None,
) -> None:
    """Compare the probabilities of the spans a pipeline finds with how many of them are right."""
    with told_briefly():
        found = calibrate(model, data, component=component)
    for name, scores in found.items():
        _show(name, scores)


def calibrate(model: str, data: Path, *, component: Optional[str] = None) -> dict[str, dict[str, Any]]:
    """Calibration scores of the components of a pipeline, by their names.

    model (str): Package or folder.
    data (Path): A .spacy file.
    component (str): Only this one.
    RAISES (ValueError): If no component gives probabilities.
    """
    from ..pipeline.ruled_pipe import RuledPipe, register_extension

    nlp = spacy.load(model)
    register_extension()
    pipes = [pipe for name, pipe in nlp.pipeline if isinstance(pipe, RuledPipe) and component in (None, name)]
    if not pipes:
        raise ValueError(Errors.CRF710.format(model=model, components=", ".join(nlp.pipe_names) or "none"))
    for pipe in pipes:
        pipe.cfg["confidence"] = True
    scores = nlp.evaluate(list(Corpus(data)(nlp)))
    return {
        pipe.name: {
            name: scores[f"{pipe.scores_prefix}_{name}"] for name in ("calibration", "calibration_error", "brier")
        }
        for pipe in pipes
    }


def _show(name: str, scores: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=name, title_justify="left")
    for column in ("probability", "spans", "mean probability", "right"):
        table.add_column(column, justify="right")
    for row in scores["calibration"]:
        cells = (f"{100 * row[key]:.1f} %" if row[key] is not None else "" for key in ("probability", "right"))
        table.add_row(f"{row['from']:.1f} to {row['to']:.1f}", f"{row['spans']:,}", *cells)
    Console().print(table)
    if scores["brier"] is None:
        msg.warn("no spans found")
    else:
        msg.info(f"expected calibration error {scores['calibration_error']:.4f}, Brier score {scores['brier']:.4f}")
