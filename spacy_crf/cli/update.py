"""A trained pipeline that goes on with new texts, and what that did to its scores."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from spacy.language import Language
from wasabi import msg

from ..errors import Errors
from .group import app
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

Scores = dict[str, Optional[float]]


@app.command("update")
def update_cli(
    model: ModelArgument,
    data: Annotated[Path, typer.Argument(help="New annotated texts: .spacy, or what `convert` reads.", exists=True)],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write the pipeline to.")],
    dev: Annotated[Optional[Path], typer.Option("--dev", help="Annotated texts to score it by.", exists=True)] = None,
    component: Annotated[Optional[str], typer.Option("--component", "-c", help="By default all of ours.")] = None,
    l2: Annotated[float, typer.Option("--l2", help="Weight of the squared distance from what it has learned.")] = 0.1,
    code: CodeOption = None,
) -> None:
    """Teach a trained pipeline new texts, without the old ones. Labels and features are added, and what it has learned stays as
    far as the new texts allow. Prints its scores before and after."""
    with told_briefly():
        nlp = load_pipeline(model, code)
        check_writable(output / "meta.json")
        changes = update(nlp, data, dev=dev, component=component, l2=l2)
        save_pipeline(nlp, output)
    for title, (before, after) in changes.items():
        rows = [(name, _percent(before.get(name)), _percent(after.get(name))) for name in {**after, **before}]
        print_table(title, ("", "before", "after"), rows, n_texts=1)
    msg.good(f"Updated pipeline in {output}")


def update(
    nlp: Language, data: Path, *, dev: Optional[Path] = None, component: Optional[str] = None, l2: float = 0.1
) -> dict[str, tuple[Scores, Scores]]:
    """Goes on with new texts, by L-BFGS until it has converged, or by the component's own optimizer.

    nlp (Language): The pipeline, whose other components are left as they are.
    data, dev (Path): Annotated texts to learn, and to score it by: .spacy, a folder of them, or what `spacy crf convert` reads.
    component (str): Only this one.
    RAISES (ValueError): CRF414 if there is none to update.
    RETURNS (dict[str, tuple[Scores, Scores]]): Scores before and after, of the dev texts and of the new ones.
    """
    from ..optimizers.lbfgs import LBFGS

    names = [pipe.name for pipe in our_pipes(nlp, component, Errors.CRF414, of_tokens=False)]
    sets = {"dev": dev, "new texts": data} if dev is not None else {"new texts": data}
    before = {title: _scores(nlp, names, path) for title, path in sets.items()}
    sgd = nlp.resume_training(sgd=LBFGS(l2=l2, iterations_per_step=100))
    others = [name for name in nlp.pipe_names if name not in names]
    annotates = (nlp.config.get("training") or {}).get("annotating_components") or []
    examples = read_examples(data, nlp)
    for _ in range(10):
        nlp.update(examples, sgd=sgd, exclude=others, annotates=annotates)
    return {title: (before[title], _scores(nlp, names, path)) for title, path in sets.items()}


def _scores(nlp: Language, names: Iterable[str], data: Path) -> Scores:
    """What the components are judged by, and F of each label."""
    found, scores = nlp.evaluate(read_examples(data, nlp, tell=False)), {}
    for name in names:
        for score, weight in nlp.get_pipe_meta(name).default_score_weights.items():
            if weight:
                scores[score] = found.get(score)
    for label, of_label in sorted((found.get("ents_per_type") or {}).items()):
        scores[label] = of_label["f"]
    return scores


def _percent(value: Any) -> str:
    return "" if value is None else f"{100 * value:.2f}"
