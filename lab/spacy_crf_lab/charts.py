"""Charts and pages of commands of the lab, in the style of a report."""

from collections.abc import Sequence
from html import escape
from itertools import chain

import numpy as np
from markupsafe import Markup

from spacy_crf.explain.explanation import shorter
from spacy_crf.report.charts import MARGIN, SIZE, Chart, dotted, square, svg
from spacy_crf.report.page import source


def scatter(title: str, points: Sequence[tuple[float, float]]) -> Chart:
    """Draw predicted numbers by annotated ones, both on the same scale. points (Sequence): Annotated and predicted numbers."""
    numbers = list(chain.from_iterable(points))
    least = min(numbers)
    span = max(numbers) - least or 1.0
    marks = [f"{least + span * n / 4:.3g}" for n in range(5)]
    diagonal = f'<path class="diagonal" d="M{MARGIN} {SIZE}L{MARGIN + SIZE} 0"/>'
    places = [(MARGIN + SIZE * (x - least) / span, SIZE - SIZE * (y - least) / span, 2.0) for x, y in points]
    return dotted(title, "annotated", "predicted", [*square(marks, marks), diagonal], places)


def label_graph(edges: Sequence[tuple[str, str, float]]) -> Chart:
    """Draw pairs of labels as lines between places on a circle: wider for more weight, broken for a weight below 0."""
    linked: dict[str, list[str]] = {}
    for first, second, _ in edges:
        linked.setdefault(first, []).append(second)
        linked.setdefault(second, []).append(first)
    order: dict[str, None] = {}  # labels that are linked stand side by side
    waiting = list(linked)[::-1]
    while waiting:
        label = waiting.pop()
        if label not in order:
            order[label] = None
            waiting += [other for other in reversed(linked[label]) if other not in order]
    # Labels stand at least 15 units apart
    radius = max(120.0, 15.0 * len(order) / (2 * np.pi))
    angles = dict(zip(order, np.arange(len(order)) * 2 * np.pi / max(1, len(order))))
    middle = radius + 130
    most = max((abs(weight) for *_, weight in edges), default=1.0) or 1.0
    place = {label: (middle + radius * np.cos(a), middle + radius * np.sin(a)) for label, a in angles.items()}
    parts = []
    for first, second, weight in edges:
        x, y = place[first]
        to_x, to_y = place[second]
        title = f"<title>{escape(first)} – {escape(second)}: {weight:.2f}</title>"
        style = (
            f'class="{"line" if weight >= 0 else "diagonal"}" style="stroke-width:{0.5 + 4 * abs(weight) / most:.1f}"'
        )
        parts.append(
            f'<path {style} d="M{x:.1f} {y:.1f}Q{middle:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}">{title}</path>'
        )
    for label, angle in angles.items():
        x, y = place[label]
        turned = np.cos(angle) < 0
        # Labels on the left half would stand on their heads
        degrees = np.degrees(angle) + (180 if turned else 0)
        anchor, shift = ("end", -8) if turned else ("start", 8)
        turn = f'transform="rotate({degrees:.1f} {x:.1f} {y:.1f})" text-anchor="{anchor}"'
        parts.append(f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
        parts.append(f'<text x="{x + shift:.1f}" y="{y + 4:.1f}" {turn}>{escape(shorter(label, 18))}</text>')
    size = f'viewBox="0 0 {2 * middle:.0f} {2 * middle:.0f}" width="{2 * middle:.0f}" height="{2 * middle:.0f}"'
    return svg("Labels that depend on each other", size, parts)


def table_page(title: str, caption: str, chart: Markup, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Make an HTML page of a chart and a table, in the style of a report."""
    style = Markup(source("page.css"))
    table = Markup("")
    for tag, row in [("th", columns), *(("td", row) for row in rows)]:
        cells = Markup("").join(Markup(f"<{tag}>{{}}</{tag}>").format(cell) for cell in row)
        table += Markup("<tr>{}</tr>\n").format(cells)
    head = Markup(
        '<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>{}</title><style>{}</style></head>\n'
    )
    body = Markup(
        '<body><header><h1>{0}</h1></header>\n<main>{1}\n<div class="wide" tabindex="0" role="region" aria-label="{0}">'
        "<table><caption>{2}</caption>\n{3}</table></div></main></body></html>\n"
    )
    return head.format(title, style) + body.format(title, chart, caption, table)
