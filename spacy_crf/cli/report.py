"""How good a trained pipeline is: its mistakes, a page with scores and charts, and the calibration of its probabilities."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from spacy.language import Language
from wasabi import msg

from .. import checks
from ..errors import Errors
from ..whole_files import write_whole
from .group import app
from .shared import (
    CodeOption,
    ComponentOption,
    DataArgument,
    JsonOption,
    ModelArgument,
    SvgOption,
    brief_errors,
    check_writable,
    load_pipeline,
    our_pipes,
    print_table,
)
from .texts import read_examples

_AROUND = 30  # characters of the text on each side of a mistake
_SPACE = re.compile(r"\s")


@app.command("errors")
def errors_cli(
    model: ModelArgument,
    data: DataArgument,
    kind: Annotated[
        Optional[str], typer.Option("--kind", "-k", help="Only this kind: label, boundary, both, missed or spurious.")
    ] = None,
    label: Annotated[Optional[str], typer.Option("--label", "-l", help="Only this label, annotated or found.")] = None,
    most: Annotated[
        int, typer.Option("--most", "-n", help="Number of mistakes of each component, the most certain first.")
    ] = 20,
    as_json: JsonOption = False,
    component: ComponentOption = None,
    code: CodeOption = None,
) -> None:
    """Print scores and mistakes of a pipeline on annotated texts."""
    from ..report.cases import KINDS, judge

    with brief_errors():
        if kind is not None:
            checks.one_of("crf errors", "--kind", kind, [name for name in KINDS if name != "right"])
        nlp = load_pipeline(model, code)
        found = judge(nlp, our_pipes(nlp, component), read_examples(data, nlp))
        if as_json:
            print(json.dumps({judged.pipe.name: _as_data(judged, kind, label) for judged in found}, ensure_ascii=False))
            return
        for judged in found:
            _show_errors(judged, kind, label, most)


def _chosen_errors(judged, kind: Optional[str], label: Optional[str]) -> list:
    """The mistakes of a kind and a label (None for all), the most certain first."""
    from ..report.cases import certainty

    chosen = [
        case
        for case in judged.errors
        if kind in (None, case.kind)
        and (label is None or label in {mention.label for mention in (case.gold, case.found) if mention})
    ]
    return sorted(chosen, key=certainty, reverse=True)


def _show_errors(judged, kind: Optional[str], label: Optional[str], most: int) -> None:
    from ..report.cases import KINDS
    from ..report.figures import scores

    columns = ("label", "annotated", "found", "precision", "recall", "F1", "95 %")
    rows = [
        (
            row.label,
            f"{row.n_gold:,}",
            f"{row.n_found:,}",
            *(f"{100 * share.value:.1f}" for share in (row.precision, row.recall, row.f)),
            f"{100 * row.f.low:.1f}–{100 * row.f.high:.1f}",
        )
        for row in scores(judged)
    ]
    print_table(judged.pipe.name, columns, rows, n_texts=1)
    chosen, rows = _chosen_errors(judged, kind, label), []
    for case in chosen[:most]:
        text = judged.texts[case.doc]
        rows.append((KINDS[case.kind], _said(text, case.gold), _said(text, case.found), _around(text, *case.places)))
    title = f"{min(most, len(chosen))} of {len(chosen)} mistakes"
    print_table(title, ("kind", "annotated", "found", "around it"), rows, n_texts=4)


def _around(text: str, first: int, last: int) -> str:
    """A place in a text with the words on each side of it, or with letters in texts without spaces."""
    start, end = max(0, first - _AROUND), last + _AROUND
    before, after = _SPACE.sub(" ", text[start:first]), _SPACE.sub(" ", text[last:end])
    if start and not text[start - 1].isspace() and " " in before:
        before = before.partition(" ")[2]
    if text[end : end + 1].strip() and " " in after:
        after = after.rpartition(" ")[0]
    return " ".join((before + text[first:last] + after).split())


def _said(text: str, mention) -> str:
    if mention is None:
        return ""
    probability = "" if mention.probability is None else f" {mention.probability:.1%}"
    return f"{text[mention.start : mention.end]} ({mention.label}{probability})"


def _as_data(judged, kind: Optional[str], label: Optional[str]) -> dict[str, Any]:
    from ..report.figures import scores

    return {
        "scores": {
            row.label: {
                "annotated": row.n_gold,
                "found": row.n_found,
                "right": row.n_right,
                **{name: getattr(row, name)._asdict() for name in ("precision", "recall", "f")},
            }
            for row in scores(judged)
        },
        "errors": [
            {
                "text": case.doc,
                "kind": case.kind,
                "annotated": case.gold and case.gold._asdict(),
                "found": case.found and case.found._asdict(),
            }
            for case in _chosen_errors(judged, kind, label)
        ],
    }


@app.command("report")
def report_cli(
    model: ModelArgument,
    data: DataArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page.")] = Path("report.html"),
    train: Annotated[
        Optional[Path], typer.Option("--train", help="Its training texts, to tell known words from unknown ones.")
    ] = None,
    folds: Annotated[
        int, typer.Option("--folds", help="Number of trainings that look for wrong annotation in the training texts.")
    ] = 0,
    curve: Annotated[
        Optional[Path], typer.Option("--curve", help="Draw the learning curve that `curve --json` wrote.", exists=True)
    ] = None,
    component: ComponentOption = None,
    code: CodeOption = None,
) -> None:
    """Write a page about what a pipeline does well and badly. It has scores with intervals, confusions, all mistakes,
    calibration, known and unknown words, annotation that looks wrong, and effects of rules, in one file of HTML that needs no
    network."""
    from rich.progress import Progress

    with brief_errors(), Progress(transient=True) as progress:
        check_writable(output, data, train, curve)
        if folds and train is None:
            raise ValueError(Errors.CRF788.format(option="--folds", other="the training texts, --train PATH,"))
        points = [] if curve is None else read_curve(curve)
        nlp = load_pipeline(model, code)
        pipes = our_pipes(nlp, component)
        page = _page(nlp, pipes, data, train, folds, points, progress)
        write_whole(output, page.encode("utf8"))
    msg.good(f"Report in {output}")


def _page(nlp, pipes, data: Path, train: Optional[Path], folds: int, curve: list, progress: Any) -> str:
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
    """Read the numbers of texts and the scores of a learning curve.

    RAISES (ValueError): CRF701 if `curve --json` did not write the file.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf8"))
        points = [(float(row["texts"]), float(row["score"])) for row in rows]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"{error}. A learning curve is JSON as `spacy crf curve --json` prints it"
        raise ValueError(Errors.CRF701.format(place=path, reason=reason)) from None
    if len(points) < 2:
        raise ValueError(Errors.CRF701.format(place=path, reason="a learning curve has at least two rows"))
    return points


@app.command("calibrate")
def calibrate_cli(
    model: ModelArgument,
    data: DataArgument,
    component: ComponentOption = None,
    svg: SvgOption = None,
    code: CodeOption = None,
) -> None:
    """Compare the probabilities of spans with how many are right."""
    with brief_errors():
        if svg is not None:
            check_writable(svg, data)
        nlp = load_pipeline(model, code)
        if svg is not None and component is None:
            _require_one(our_pipes(nlp, None))
        found = calibrate(nlp, data, component=component)
        if svg is not None:
            [(name, scores)] = found.items()
            write_whole(svg, _drawn(name, scores))
    for name, scores in found.items():
        _show_calibration(name, scores)
        if not nlp.get_pipe(name).decoding.structure.exact:
            msg.info(f"the probabilities of {name} are approximate: it has too many labellings for exact sums")
    if svg is not None:
        msg.good(f"Calibration in {svg}")


def calibrate(nlp: Language, data: Path, *, component: Optional[str] = None) -> dict[str, dict[str, Any]]:
    """Calibration scores of components, by name.

    nlp (Language): The pipeline. From now on, its components set the probabilities of entities.
    data (Path): Annotated texts: a .spacy file, a folder of them, or a file that `spacy crf convert` reads.
    component (str): Only this component.
    RAISES (ValueError): If no component gives probabilities.
    """
    from ..pipeline.prediction import tell_probabilities

    pipes = our_pipes(nlp, component)
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
    """RAISES (ValueError): CRF746 for several components: a chart shows one."""
    if len(pipes) > 1:
        raise ValueError(Errors.CRF746.format(components=", ".join(pipe.name for pipe in pipes)))


def _drawn(name: str, scores: dict[str, Any]) -> bytes:
    from ..report import charts

    points = [(row["probability"], row["right"], row["spans"]) for row in scores["calibration"] or () if row["spans"]]
    return charts.alone(charts.reliability(f"{name}: share that is right by probability", points))


def _show_calibration(name: str, scores: dict[str, Any]) -> None:
    if scores["brier"] is None:
        msg.warn(f"{name} finds nothing in the annotated texts")
        return
    rows = []
    for row in scores["calibration"]:
        cells = (f"{100 * row[key]:.1f} %" if row[key] is not None else "" for key in ("probability", "right"))
        rows.append((f"{row['from']:.1f} to {row['to']:.1f}", f"{row['spans']:,}", *cells))
    print_table(name, ("probability", "spans", "mean probability", "right"), rows)
    msg.info(f"expected calibration error {scores['calibration_error']:.4f}, Brier score {scores['brier']:.4f}")
