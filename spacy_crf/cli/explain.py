"""Why a trained pipeline finds what it finds in a text."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from spacy.language import Language
from spacy.tokens import Doc, Span
from wasabi import msg

from ..errors import Errors
from ..whole_files import write_whole
from .group import app
from .reading import read_examples
from .shared import (
    CodeOption,
    ModelArgument,
    check_writable,
    doc_before,
    load_pipeline,
    our_pipes,
    told_briefly,
)

if TYPE_CHECKING:
    from ..explain.explanation import Explanation
    from ..pipeline.crf_pipe import CRFPipe

_SPAN = re.compile(r"(\d{1,9}):(\d{1,9})(?::(.+))?")


@app.command("explain")
def explain_cli(
    model: ModelArgument,
    text: Annotated[str, typer.Argument(help="A text.")],
    span: Annotated[
        Optional[str], typer.Option("--span", help="Tokens 3:5, or 3:5:LABEL; by default each span that is found.")
    ] = None,
    label: Annotated[
        Optional[str], typer.Option("--label", help="Of crf_textcat: a label; by default the most probable one.")
    ] = None,
    against: Annotated[
        Optional[str], typer.Option("--against", help="Another label, or O; by default everything else.")
    ] = None,
    kind: Annotated[
        str, typer.Option("--kind", "-k", help="contrast, log_odds, leave_out, words, texts.")
    ] = "contrast",
    train: Annotated[
        Optional[Path], typer.Option("--train", help="For texts: what it was trained with.", exists=True)
    ] = None,
    effect: Annotated[
        bool, typer.Option("--effect", help="For texts: what would change without each of those that are listed.")
    ] = False,
    top: Annotated[int, typer.Option("--top", "-n", min=1, help="How many features of each are listed.")] = 20,
    html: Annotated[Optional[Path], typer.Option("--html", help="Write a page instead.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    component: Annotated[Optional[str], typer.Option("--component", "-c", help="By default all of ours.")] = None,
    code: CodeOption = None,
) -> None:
    """Print which weights make the decisions about a text."""
    with told_briefly():
        if html is not None:
            check_writable(html, train)
        nlp, found = load_pipeline(model, code), []
        options = {} if train is None else _training(nlp, train)
        options |= {"effect": top} if effect else {}
        from ..pipeline.crf_textcat import CRFTextClassifier

        def is_asked(pipe: Any) -> bool:
            return (span if isinstance(pipe, CRFTextClassifier) else label) is None

        for pipe in our_pipes(nlp, component, Errors.CRF848, is_asked, of_tokens=False):
            doc = doc_before(nlp, pipe, text)
            if isinstance(pipe, CRFTextClassifier):
                asked = [label]
            else:
                asked = _found(pipe, doc) if span is None else [_parse(span, doc)]
            found += [pipe.explain(doc, one, against, kind, **options) for one in asked]
        if html is not None:
            from ..explain.html import page

            write_whole(html, page(found, top).encode("utf8"))
            msg.good(f"{len(found)} explanations in {html}")
            return
    if as_json:
        print(json.dumps([explanation.to_dict() for explanation in found], ensure_ascii=False))
        return
    _show(found, top)


def _show(found: "list[Explanation]", top: int) -> None:
    from rich.console import Console

    console = Console()
    for explanation in found:
        console.print(explanation.to_rich(top))
        console.print()


def _training(nlp: Language, train: Path) -> dict[str, Any]:
    """The texts of training, and the regularization that the config says they were learned with."""
    optimizer = nlp.config["training"]["optimizer"] or {}
    strengths = {name: optimizer[name] for name in ("l1", "l2") if name in optimizer}
    return {"corpus": list(read_examples(train, nlp)), **strengths}


def _found(pipe: "CRFPipe", doc: Doc) -> list[Optional[Span]]:
    """What a component finds; the labelling as a whole, if that is nothing."""
    best = pipe.n_best(doc, 1)
    return list(best[0][1]) if best and best[0][1] else [None]


def _parse(given: str, doc: Doc) -> Span:
    """RAISES (ValueError): CRF847 for what names no tokens."""
    match = _SPAN.fullmatch(given)
    if match is None or not int(match[1]) < int(match[2]) <= len(doc):
        words = " ".join(f"{token.i}:{token.text}" for token in doc[:30])
        raise ValueError(Errors.CRF847.format(given=given, n=len(doc), words=words))
    return Span(doc, int(match[1]), int(match[2]), label=match[3] or "")
