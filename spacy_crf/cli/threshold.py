"""Which `min_prob` does best where a pipeline decodes by spans: precision and recall of each."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer
from spacy.language import Language
from spacy.training import Example
from spacy.util import Config
from wasabi import msg

from .. import checks
from ..errors import Errors
from .group import app
from .raw_texts import read_raw
from .reading import read_examples
from .shared import (
    CodeOption,
    ModelArgument,
    check_writable,
    load_pipeline,
    our_pipes,
    print_table,
    save_pipeline,
    told_briefly,
)

if TYPE_CHECKING:
    from ..pipeline.thresholds import Point


@app.command("threshold")
def threshold_cli(
    model: ModelArgument,
    data: Annotated[Path, typer.Argument(help="Annotated texts: .spacy, or what `convert` reads.", exists=True)],
    component: Annotated[Optional[str], typer.Option("--component", "-c", help="By default all that can tell.")] = None,
    beta: Annotated[float, typer.Option("--beta", help="How many times as much recall is worth as precision.")] = 1.0,
    expected: Annotated[
        bool, typer.Option("--expected", help="By what the model itself expects: the texts need no annotation.")
    ] = False,
    per_label: Annotated[
        bool, typer.Option("--per-label", help="One for each label, where there are many entities of each.")
    ] = False,
    output: Annotated[Optional[Path], typer.Option("--output", "-o", help="Folder for the pipeline with it.")] = None,
    code: CodeOption = None,
) -> None:
    """Look for the min_prob that leaves the best entities. Prints precision and recall of the entities of at least some
    probability, as decode = "spans" finds them, and the setting."""
    from ..pipeline.thresholds import best, use

    with told_briefly():
        checks.expect(not (expected and per_label), "threshold", "--per-label", per_label, "left out with --expected")
        nlp = load_pipeline(model, code)
        if output is not None:
            check_writable(output / "meta.json")
        found = threshold(nlp, data, component=component, beta=beta, expected=expected, per_label=per_label)
        for name, points in found.items():
            chosen = points[-1] if per_label else best(points, beta, expected=expected)
            _show(name, points, chosen, beta, annotated=not expected)
            use(nlp, nlp.get_pipe(name), chosen.min_prob)
            settings = Config({name: {"decode": "spans", "min_prob": chosen.min_prob}})
            print(settings.to_str(interpolate=False).strip())
        if output is not None:
            save_pipeline(nlp, output)
            msg.good(f"Saved with it to {output}")


def threshold(
    nlp: Language,
    data: Path,
    *,
    component: Optional[str] = None,
    beta: float = 1.0,
    expected: bool = False,
    per_label: bool = False,
) -> dict[str, "list[Point]"]:
    """What the components of a pipeline find with each of some thresholds, by their names.

    data (Path): Annotated texts: a .spacy file, a folder of them, or what `spacy crf convert` reads. With `expected` they may be
        raw texts, one a line or in JSON.
    component (str): Only this one.
    per_label (bool): Whether a threshold for each label is looked for: the last point.
    RAISES (ValueError): If there is no component, or nothing annotated to compare with.
    """
    from ..pipeline.thresholds import annotated_before, best_of_labels, measure

    checks.positive("threshold", "beta", beta)
    pipes = our_pipes(nlp, component, Errors.CRF710)
    if expected:
        texts = [text.doc for text in read_raw([data], nlp)]
        examples = [Example(nlp.make_doc(doc.text), doc) for doc in texts]
    else:
        examples = read_examples(data, nlp)
    found = {}
    for pipe in pipes:
        annotated = annotated_before(nlp, pipe.name, examples)
        points = found[pipe.name] = measure(pipe, annotated, judge=not expected)
        if not expected and not points[0].all.gold:
            raise ValueError(Errors.CRF423.format(name=pipe.name, path=data))
        if per_label:
            points += measure(pipe, annotated, [best_of_labels(points, beta)])
    return found


def _show(name: str, points: "list[Point]", chosen: "Point", beta: float, *, annotated: bool) -> None:
    columns = [
        "min_prob",
        "found",
        *(["precision", "recall", f"F{beta:g}"] if annotated else []),
        f"expected F{beta:g}",
    ]
    rows = []
    for point in points:
        judged = (point.precision, point.recall, point.f(beta)) if annotated else ()
        shares = [f"{100 * share:.2f}" for share in (*judged, point.expected_f(beta))]
        least = "per label" if isinstance(point.min_prob, dict) else f"{point.min_prob:g}"
        rows.append([least, f"{point.found:,}", *shares])
    print_table(name, columns, rows, bold=rows[points.index(chosen)])
