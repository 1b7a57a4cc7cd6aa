"""The mistakes of a trained pipeline, in a terminal."""

import json
import re
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from ..errors import Errors
from .group import app
from .reading import read_examples
from .shared import CodeOption, ModelArgument, load_pipeline, our_pipes, print_table, told_briefly

_AROUND = 30  # characters beside a mistake
_SPACE = re.compile(r"\s")


@app.command("errors")
def errors_cli(
    model: ModelArgument,
    data: Annotated[Path, typer.Argument(help="Annotated texts: .spacy, or what `convert` reads.", exists=True)],
    kind: Annotated[
        Optional[str], typer.Option("--kind", "-k", help="label, boundary, both, missed or spurious.")
    ] = None,
    label: Annotated[Optional[str], typer.Option("--label", "-l", help="Annotated or found with this label.")] = None,
    most: Annotated[int, typer.Option("--most", "-n", help="Show so many of each component, the surest first.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Scores and all mistakes as JSON, for scripts.")] = False,
    component: Annotated[Optional[str], typer.Option("--component", "-c", help="By default all of ours.")] = None,
    code: CodeOption = None,
) -> None:
    """Print scores and mistakes of a pipeline on annotated texts."""
    from ..report.cases import KINDS, judge

    with told_briefly():
        if kind not in (None, *KINDS) or kind == "right":
            raise ValueError(
                Errors.CRF893.format(kind=kind, known=", ".join(name for name in KINDS if name != "right"))
            )
        nlp = load_pipeline(model, code)
        found = judge(nlp, our_pipes(nlp, component, Errors.CRF710), read_examples(data, nlp))
        if as_json:
            print(json.dumps({judged.pipe.name: _as_data(judged, kind, label) for judged in found}, ensure_ascii=False))
            return
        for judged in found:
            _show(judged, kind, label, most)


def _chosen(judged, kind: Optional[str], label: Optional[str]) -> list:
    """The mistakes that are asked for, the surest first."""
    from ..report.cases import certainty

    chosen = [
        case
        for case in judged.errors
        if kind in (None, case.kind)
        and (label is None or label in {mention.label for mention in (case.gold, case.found) if mention})
    ]
    return sorted(chosen, key=certainty, reverse=True)


def _show(judged, kind: Optional[str], label: Optional[str], most: int) -> None:
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
    chosen, rows = _chosen(judged, kind, label), []
    for case in chosen[:most]:
        text = judged.texts[case.doc]
        rows.append((KINDS[case.kind], _said(text, case.gold), _said(text, case.found), _around(text, *case.places)))
    title = f"{min(most, len(chosen))} of {len(chosen)} mistakes"
    print_table(title, ("kind", "annotated", "found", "around it"), rows, n_texts=4)


def _around(text: str, first: int, last: int) -> str:
    """A place in a text with the words beside it; letters where no words are told apart."""
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
            for case in _chosen(judged, kind, label)
        ],
    }
