"""What a trained pipeline has learned: its labels, templates and weights."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Optional

import typer
from wasabi import msg

from ..errors import Errors, counted
from .group import app
from .shared import CodeOption, ModelArgument, load_pipeline, our_pipes, print_table, told_briefly

_WIDEST = 24  # tags of a matrix that is printed


@app.command("inspect")
def inspect_cli(
    model: ModelArgument,
    label: Annotated[
        Optional[str], typer.Option("--label", "-l", help="A label, or a tag; by default all labels.")
    ] = None,
    top: Annotated[int, typer.Option("--top", "-n", min=1, help="How many weights for and against each label.")] = 20,
    component: Annotated[Optional[str], typer.Option("--component", "-c", help="By default all of ours.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    code: CodeOption = None,
) -> None:
    """Print what the components of a pipeline have learned."""
    from ..explain.overview import overview

    with told_briefly():
        pipes = our_pipes(load_pipeline(model, code), component, Errors.CRF848, of_tokens=False)
        found = [overview(pipe, label, top) for pipe in pipes]
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return
    for of_component in found:
        _show(of_component, label)


def _show(found: dict[str, Any], label: Optional[str]) -> None:
    msg.divider(f"{found['component']} ({found['class']}, {found['model']})")
    print(f"{counted(len(found['labels']), 'label')}: {', '.join(found['labels'])}")
    print(f"{found['weights']:,} weights that have names")
    for name, said in (
        ("gazetteer", found["gazetteers"]),
        ("clusters", found["clusters"]),
        ("longest", found.get("longest", {})),
    ):
        for key, value in said.items():
            print(f"{name} {key}: {value:,}")
    if "encoder" in found:
        print(f"and an encoder ({found['encoder']}), whose weights have no names")
    for rule in found["rules"]:
        rest = ", ".join(f"{key}: {value}" for key, value in rule.items() if key != "name")
        print(f"rule {rule['name']} ({rest})")
    rows = [
        (r["template"], r["of"], *(f"{r[key]:,}" for key in ("features", "weights")), f"{r['mass']:.2f}")
        for r in found["templates"]
    ]
    print_table("templates", ("template", "weighs", "features", "weights", "sum of |weights|"), rows, n_texts=2)
    for name, sides in found["top"].items():
        for side, rows in sides.items():
            cells = [(row["feature"], row["tags"][0], f"{row['weight']:+.4f}", str(row["count"] or "")) for row in rows]
            if cells:
                print_table(f"{side} {name}", ("feature", "tag", "weight", "met"), cells, n_texts=2)
    if found["transitions"]:
        _show_transitions(found, label)


def _show_transitions(found: dict[str, Any], label: Optional[str]) -> None:
    """The matrix, of the tags of a label and those outside if there is one; of many tags the largest weights."""
    tags = found["tags"]
    chosen = [n for n, tag in enumerate(tags) if label is None or tag == "O" or tag in (label, f"{tag[:2]}{label}")]
    steps, ends = found["transitions"]["transitions"], [found["transitions"][name] for name in ("first", "last")]
    if len(chosen) <= _WIDEST:
        for columns in _fitting(chosen, tags):
            rows = [("begin", *(_cell(ends[0][j]) for j in columns), "")]
            rows += [(tags[i], *(_cell(steps[i][j]) for j in columns), _cell(ends[1][i])) for i in chosen]
            heads = ("", *(tags[j] for j in columns), "end")
            print_table("transitions (from the row to the column)", heads, rows, n_texts=1)
        return
    weights = [(steps[i][j], tags[i], tags[j]) for i in chosen for j in chosen if steps[i][j]]
    largest = sorted(weights, key=lambda item: -abs(item[0]))[:_WIDEST]
    rows = [(before, after, f"{weight:+.4f}") for weight, before, after in largest]
    print_table("the largest transitions (all with --json)", ("from", "to", "weight"), rows, n_texts=2)


def _fitting(columns: list[int], tags: list[str]) -> Iterator[list[int]]:
    """As many columns at a time as fit into the terminal."""
    from rich.console import Console

    widest = 3 + max([5, *(len(tags[n]) for n in columns)])
    n = max(1, Console().width // widest - 2)
    for first in range(0, len(columns), n):
        yield columns[first : first + n]


def _cell(weight: Optional[float]) -> str:
    """Nothing for what has no weight, and a dot for what is never taken."""
    return "·" if weight is None else f"{weight:+.2f}" if weight else ""
