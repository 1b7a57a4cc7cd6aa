"""`crf numbers`: what components find that give numbers, and how close it is to annotation."""
# pyright: reportInvalidTypeForm=false

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from spacy.cli._util import Opt
from spacy.language import Language
from wasabi import msg

from spacy_crf.cli.explain import ShownTexts, print_found
from spacy_crf.cli.shared import (
    ComponentOption,
    ModelArgument,
    check_writable,
    command,
    load_pipeline,
    name_of,
    our_pipes,
)
from spacy_crf.cli.texts import read_examples
from spacy_crf.errors import counted
from spacy_crf.whole_files import write_whole

if TYPE_CHECKING:
    from ..number_scorer import CRFScorer

_SCORES = {
    "number_r2": "R²",
    "number_correlation": "correlation",
    "number_rmse": "RMSE",
    "number_mae": "mean absolute error",
    "number_coverage": "in their 90 % intervals",
}


@command("numbers")
def numbers_cli(
    model: ModelArgument,
    texts: ShownTexts = None,
    data: Optional[Path] = Opt(None, help="Annotated texts for a page: predicted by annotated numbers.", exists=True),
    output: Path = Opt(Path("numbers.html"), "--output", "-o", help="With --data: the page of HTML to write."),
    component: ComponentOption = None,
) -> None:
    """Print the numbers of texts, or of their sentences or tokens. With --data, write a page that compares them with annotated
    numbers, and has scores."""
    from spacy_crf.report.charts import Chart

    from ..charts import scatter, table_page

    check_writable(output, data)
    nlp = load_pipeline(model)
    scorers = _scorers(nlp, component)
    if data is None:
        print_found(nlp, texts, lambda doc: list(chain.from_iterable(pipe.table(doc) for pipe in scorers)))
        return
    examples = read_examples(data, nlp)
    for example, doc in zip(examples, nlp.pipe(example.predicted for example in examples)):
        example.predicted = doc
    drawn = []
    rows = []
    for pipe in scorers:
        scores = pipe.score(examples)
        points = [*zip(*(numbers.tolist() for numbers in pipe.annotation.compared(examples)))]
        drawn += [scatter(pipe.name, points)] if points else []
        shown = ("" if scores[name] is None else f"{scores[name]:.4g}" for name in _SCORES)
        rows.append((pipe.name, f"{len(points):,}", *shown))
    title = f"{name_of(nlp, model)} on {data.name}"
    caption = counted(len(examples), "text")
    columns = ("component", "numbers", *_SCORES.values())
    write_whole(output, table_page(title, caption, Chart("".join(drawn)), columns, rows).encode("utf8"))
    msg.good(f"Report in {output}")


def _scorers(nlp: Language, component: Optional[str]) -> "list[CRFScorer]":
    from ..number_scorer import CRFScorer

    return our_pipes(nlp, component, "that gives numbers", lambda pipe: isinstance(pipe, CRFScorer), of_tokens=False)
