"""Which `min_prob` does best where a pipeline decodes by spans: precision and recall of each."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer
from spacy.language import Language
from spacy.training import Example
from wasabi import msg

from .. import checks
from ..errors import Errors
from .main import CodeOption, ModelArgument, app, load_pipeline, our_pipes, print_table, told_briefly
from .raw_texts import read_raw
from .reading import read_examples

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
    output: Annotated[Optional[Path], typer.Option("--output", "-o", help="Folder for the pipeline with it.")] = None,
    code: CodeOption = None,
) -> None:
    """Precision and recall of entities of at least some probability (decode = "spans"), and the best min_prob."""
    from ..pipeline.thresholds import best, use

    with told_briefly():
        nlp = load_pipeline(model, code)
        found = threshold(nlp, data, component=component, beta=beta, expected=expected)
        for name, points in found.items():
            chosen = best(points, beta, expected=expected)
            _show(name, points, chosen, beta, annotated=not expected)
            use(nlp, nlp.get_pipe(name), chosen.min_prob)
            msg.info(f'{name}: decode = "spans", min_prob = {chosen.min_prob:g}')
        if output is not None:
            nlp.to_disk(output)
            msg.good(f"Saved with it to {output}")


def threshold(
    nlp: Language, data: Path, *, component: Optional[str] = None, beta: float = 1.0, expected: bool = False
) -> dict[str, "list[Point]"]:
    """What the components of a pipeline find with each of some thresholds, by their names.

    data (Path): Annotated texts: a .spacy file, a folder of them, or what `spacy crf convert` reads. With `expected` they may be
        raw texts, one a line or in JSON.
    component (str): Only this one.
    RAISES (ValueError): If there is no component, or nothing annotated to compare with.
    """
    from ..pipeline.thresholds import annotated_before, measure

    checks.positive("threshold", "beta", beta)
    pipes = our_pipes(nlp, component, Errors.CRF710)
    if expected:
        texts = [text.doc for text in read_raw([data], nlp)]
        examples = [Example(nlp.make_doc(doc.text), doc) for doc in texts]
    else:
        examples = read_examples(data, nlp)
    found = {pipe.name: measure(pipe, annotated_before(nlp, pipe.name, examples), judge=not expected) for pipe in pipes}
    for name, points in found.items():
        if not expected and not points[0].gold:
            raise ValueError(Errors.CRF423.format(name=name, path=data))
    return found


def _show(name: str, points: "list[Point]", chosen: "Point", beta: float, *, annotated: bool) -> None:
    columns = [
        "min_prob",
        "found",
        *(["precision", "recall", f"F{beta:g}"] if annotated else []),
        f"expected F{beta:g}",
    ]
    rows = {}
    for point in points:
        judged = (point.precision, point.recall, point.f(beta)) if annotated else ()
        shares = [f"{100 * share:.2f}" for share in (*judged, point.expected_f(beta))]
        rows[point] = [f"{point.min_prob:g}", f"{point.found:,}", *shares]
    print_table(name, columns, rows.values(), bold=rows[chosen])
