"""The rules of a trained pipeline: how each is enforced, and what each changes in a text."""

from typing import Annotated, Optional

import typer
from spacy.language import Language
from wasabi import msg

from ..errors import Errors
from .group import app
from .shared import CodeOption, ModelArgument, doc_before, load_pipeline, our_pipes, print_table, told_briefly

_UNDER_A_BEAM = (
    'decode = "beam": automata run over the labelling that a beam of {n} states finds under the masks. Where that breaks a '
    "rule, the search for the best one that keeps it is exact."
)


@app.command("rules")
def rules_cli(
    model: ModelArgument,
    text: Annotated[Optional[str], typer.Argument(help="Show which rule changes what in this text.")] = None,
    component: Annotated[Optional[str], typer.Option("--component", "-c", help="By default all with rules.")] = None,
    code: CodeOption = None,
) -> None:
    """Print the rules of a pipeline's components."""
    with told_briefly():
        nlp = load_pipeline(model, code)
        for pipe in our_pipes(nlp, component, Errors.CRF711, lambda pipe: pipe.rules() is not None):
            _show_rules(pipe)
            if text is not None:
                _show_effects(nlp, pipe, text)


def _show_rules(pipe) -> None:
    columns, rows = ("rule", "name", "weight", "arguments", "enforced by", "in probabilities"), []
    for rule, how, known in pipe.rules().all.enforcement():
        arguments = {key: value for key, value in rule.table.items() if key not in ("rule", "name", "weight")}
        written = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        rows.append((rule.kind, rule.name, "hard" if rule.hard else f"{rule.weight:g}", written, how, known))
    print_table(pipe.name, columns, rows, n_texts=len(columns))
    if pipe.cfg["decode"] == "beam" and pipe.rules().all.automata:
        msg.text(_UNDER_A_BEAM.format(n=pipe.cfg["beam"]))


def _show_effects(nlp: Language, pipe, text: str) -> None:
    """What the spans are without rules, and what they become as the rules are added one by one."""
    from ..pipeline.rule_effects import effects

    doc = doc_before(nlp, pipe, text)
    before, changes = effects(pipe, doc)
    msg.text(f"without rules: {_written(before)}")
    for rule, spans, price in changes:
        msg.text(f"{rule.name}: {_written(spans)}, at a price of {price:.2f}")
    if not changes:
        msg.text("no rule changes anything")


def _written(spans) -> str:
    return "; ".join(f"{span.text} ({span.label_})" for span in spans) or "nothing"
