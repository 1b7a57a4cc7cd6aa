"""How far the probabilities of a trained pipeline can be trusted."""

from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from spacy.language import Language
from wasabi import msg

from ..errors import Errors
from ..whole_files import write_whole
from .group import app
from .reading import read_examples
from .shared import (
    CodeOption,
    ModelArgument,
    check_writable,
    load_pipeline,
    our_pipes,
    print_table,
    told_briefly,
)


@app.command("calibrate")
def calibrate_cli(
    model: ModelArgument,
    data: Annotated[Path, typer.Argument(help="Annotated texts: .spacy, or what `convert` reads.", exists=True)],
    component: Annotated[Optional[str], typer.Option("--component", "-c", help="By default all that can tell.")] = None,
    svg: Annotated[Optional[Path], typer.Option("--svg", help="Draw it to this file, of a single component.")] = None,
    code: CodeOption = None,
) -> None:
    """Compare the probabilities of spans with how many are right."""
    with told_briefly():
        if svg is not None:
            check_writable(svg, data)
        nlp = load_pipeline(model, code)
        if svg is not None and component is None:
            _require_one(our_pipes(nlp, None, Errors.CRF710))
        found = calibrate(nlp, data, component=component)
        if svg is not None:
            [(name, scores)] = found.items()
            write_whole(svg, _drawn(name, scores))
    for name, scores in found.items():
        _show(name, scores)
        if not nlp.get_pipe(name).decoding.structure.exact:
            msg.info(
                f"the probabilities of {name} are approximate: its labellings are too many to be summed up exactly"
            )
    if svg is not None:
        msg.good(f"Calibration in {svg}")


def calibrate(nlp: Language, data: Path, *, component: Optional[str] = None) -> dict[str, dict[str, Any]]:
    """Calibration scores of the components of a pipeline, by their names.

    nlp (Language): The pipeline, whose components tell their confidence from now on.
    data (Path): Annotated texts: a .spacy file, a folder of them, or what `spacy crf convert` reads.
    component (str): Only this one.
    RAISES (ValueError): If no component gives probabilities.
    """
    from ..pipeline.prediction import tell_probabilities

    pipes = our_pipes(nlp, component, Errors.CRF710)
    tell_probabilities(pipes)
    scores = nlp.evaluate(read_examples(data, nlp))
    return {
        pipe.name: {
            name: scores[f"{pipe.annotation.scores_prefix}_{name}"]
            for name in ("calibration", "calibration_error", "brier")
        }
        for pipe in pipes
    }


def _require_one(pipes: list[Any]) -> None:
    """RAISES (ValueError): CRF746 for several, of which one picture can't show more than one."""
    if len(pipes) > 1:
        raise ValueError(Errors.CRF746.format(components=", ".join(pipe.name for pipe in pipes)))


def _drawn(name: str, scores: dict[str, Any]) -> bytes:
    from ..report import charts

    points = [(row["probability"], row["right"], row["spans"]) for row in scores["calibration"] or () if row["spans"]]
    return charts.alone(charts.reliability(f"{name}: share that is right by probability", points))


def _show(name: str, scores: dict[str, Any]) -> None:
    if scores["brier"] is None:
        msg.warn(f"{name} finds nothing where the texts are annotated")
        return
    rows = []
    for row in scores["calibration"]:
        cells = (f"{100 * row[key]:.1f} %" if row[key] is not None else "" for key in ("probability", "right"))
        rows.append((f"{row['from']:.1f} to {row['to']:.1f}", f"{row['spans']:,}", *cells))
    print_table(name, ("probability", "spans", "mean probability", "right"), rows)
    msg.info(f"expected calibration error {scores['calibration_error']:.4f}, Brier score {scores['brier']:.4f}")
