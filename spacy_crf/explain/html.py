"""Explanations as a page, or a part of one, that needs nothing from elsewhere."""

from collections.abc import Iterable
from html import escape
from typing import Any

_STYLE = """
.crf-why { font: 14px/1.5 system-ui, sans-serif; max-width: 60rem }
.crf-why h2 { font-size: 1.1rem } .crf-why p { margin: .3rem 0 }
.crf-why mark { color: inherit; padding: .1em .2em; border-radius: .2em }
.crf-why mark.for { background: rgba(0, 140, 60, var(--much)) } .crf-why mark.not { background: rgba(210, 30, 30, var(--much)) }
.crf-why u { text-decoration-thickness: 2px; text-underline-offset: 4px }
.crf-why table { border-collapse: collapse } .crf-why caption { text-align: left; font-weight: 600; padding: .4rem 0 }
.crf-why th, .crf-why td { text-align: left; padding: .1rem .8rem .1rem 0; border-bottom: 1px solid rgba(128, 128, 128, .3) }
.crf-why td:first-child { text-align: right; font-variant-numeric: tabular-nums }
"""
_PAGE_STYLE = ":root { color-scheme: light dark } body { margin: 0 auto; max-width: 60rem; padding: 1rem 1.5rem 4rem; "
_PAGE_STYLE += "font: 16px/1.5 system-ui, sans-serif } h1 { font-size: 1.6rem }"
_MOST_TEMPLATES = 12


def fragment(explanation: Any, top: int = 20) -> str:
    """One explanation, with its style. Light or dark is what the page around it is."""
    return f"<style>{_STYLE}</style>{_figure(explanation, top)}"


def weights_table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return f'<style>{_STYLE}</style><section class="crf-why">{_table("Weights", heads, rows)}</section>'


def page(explanations: Iterable[Any], top: int = 20) -> str:
    """A whole page, light or dark as its reader likes."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Why</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_PAGE_STYLE}{_STYLE}</style></head><body><main><h1>Why</h1>\n"
        + "\n".join(_figure(explanation, top) for explanation in explanations)
        + "\n</main></body></html>\n"
    )


def _figure(explanation: Any, top: int) -> str:
    told = "".join(f"<p>{escape(line)}</p>" for line in explanation.told())
    rows = [row[:4] for row in explanation.table(top)]
    table = _table("What has most to say", ("", "feature", "at", "weights"), rows)
    if explanation.additive:
        sums = list(explanation.by("template").items())[:_MOST_TEMPLATES]
        templates = [(f"{value:+.4f}", template) for (template,), value in sums]
        table += _table("By template", ("", "template"), templates)
    return (
        f'<section class="crf-why"><h2>{escape(explanation.title)}</h2>'
        f"<p>{_marked(explanation)}</p>{told}{table}</section>"
    )


def _marked(explanation: Any) -> str:
    """The words: for and against the decision, the more the stronger; what is explained is underlined."""
    sums = {token: value for (token,), value in explanation.by("token").items() if token is not None}
    most = max(map(abs, sums.values()), default=0.0) or 1.0
    start, end, _ = explanation.span or (0, 0, "")
    words = []
    for n, word in enumerate(explanation.words):
        text, value = escape(word), sums.get(n, 0.0)
        if start <= n < end and end - start < len(explanation.words):
            text = f"<u>{text}</u>"
        if value:
            style = f'style="--much: {0.6 * abs(value) / most:.2f}"'
            text = f'<mark class="{"for" if value > 0 else "not"}" {style} title="{value:+.4f}">{text}</mark>'
        words.append(text)
    return " ".join(words)


def _table(caption: str, heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
