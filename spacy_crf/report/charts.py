"""Charts as SVG: a page with them needs no scripts and no network, and can be printed.

Colours are classes of the page's style sheet, which has a light and a dark mode. Each chart has a title, and the page shows its
numbers in a table beside it.
"""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Optional

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from ..explain.explanation import shorter
from .figures import Share

# page.css has the margins for names and numbers
BARS = 410
ROW = 24
# SIZE fits a phone, MARGIN holds the numbers, TOP leaves room for points at the upper edge
SIZE = 260
MARGIN = 60
TOP = 8
# Style of a chart in its own file, on white
_STYLE = """
svg { background: #fff } text { font: 12px sans-serif } .axis { fill: #555 } .grid { stroke: #ccc; fill: none }
.diagonal { stroke: #555; stroke-dasharray: 4 4; fill: none } .line { stroke: #06c; stroke-width: 2; fill: none }
.point { fill: #06c }
"""


class Chart(Markup):
    """SVG; a notebook draws it."""

    def _repr_svg_(self) -> str:
        return alone(self).decode("utf8")


def shares(title: str, rows: Sequence[tuple[str, Share]]) -> Chart:
    """Draw a bar for each share, with its interval. The axis goes from 0 to 100 %.

    rows (Sequence[tuple[str, Share]]): Names and shares.
    """
    # Positions are percentages of the width, so a narrow screen shortens the bars and keeps the size of the text
    parts = []
    height = ROW * len(rows) + 22
    for n in range(5):
        parts.append(f'<line class="grid" x1="{25 * n}%" y1="0" x2="{25 * n}%" y2="{height - 20}"/>')
    for n in (0, 50, 100):
        parts.append(f'<text class="axis" x="{n}%" y="{height - 6}" text-anchor="middle">{n} %</text>')
    for n, (name, share) in enumerate(rows):
        value, low, high = (f"{100 * number:.1f}" for number in share)
        top = n * ROW + 4
        middle = n * ROW + ROW / 2
        parts += [
            f'<text x="0" dx="-8" y="{middle + 4}" text-anchor="end">{escape(shorter(name, 24))}</text>',
            f'<rect class="bar" x="0" y="{top}" width="{value}%" height="{ROW - 8}"/>',
            f'<line class="interval" x1="{low}%" y1="{middle}" x2="{high}%" y2="{middle}"/>',
            f'<text x="100%" dx="12" y="{middle + 4}">{value}</text>',
        ]
    return svg(title, f'class="bars" width="{BARS}" height="{height}"', parts)


def reliability(title: str, points: Iterable[tuple[float, float, int]]) -> Chart:
    """Draw a reliability diagram.

    points (Iterable[tuple[float, float, int]]): For each bin of predictions, their mean probability, the share of them that is
        right, and their number.
    """
    points = list(points)
    most = max((n for _, _, n in points), default=1)
    circles = []
    for probability, right, n in points:
        # The area of a point, not its radius, is in proportion to its number
        radius = 2 + 8 * (n / most) ** 0.5
        circles.append((MARGIN + SIZE * probability, SIZE - SIZE * right, radius))
    diagonal = f'<path class="diagonal" d="M{MARGIN} {SIZE}L{MARGIN + SIZE} 0"/>'
    return dotted(title, "probability", "right", [*square(), diagonal, *_line(circles)], circles)


def learning_curve(points: Sequence[tuple[float, float]]) -> Chart:
    """Draw a learning curve. The x axis begins at 0, the y axis at the lowest score.

    points (Sequence[tuple[float, float]]): Numbers of training texts, and the scores reached with them.
    """
    numbers, scores = zip(*points)
    most = max(numbers)
    least = min(scores)
    span = max(scores) - least or 1.0
    grid = square([f"{least + span * n / 4:.3g}" for n in range(5)], [f"{most * n / 4:,.0f}" for n in range(5)])
    circles = [(MARGIN + SIZE * x / most, SIZE - SIZE * (y - least) / span, 4.0) for x, y in points]
    return dotted("Score by training texts", "texts", "score", [*grid, *_line(circles)], circles)


def confusion(labels: Sequence[str], counts: NDArray[np.int64]) -> Chart:
    """Draw what each label was taken for. A cell is darker the larger its share of the row.

    labels (Sequence[str]), counts (int64[L + 1, L + 1]): See `figures.confusion`.
    """
    width = 76
    left = 96
    parts = [f'<text class="axis" x="{left - 8}" y="16" text-anchor="end">annotated</text>']
    for column, name in enumerate([*labels, "missed"]):
        middle_x = left + (column + 0.5) * width
        parts.append(
            f'<text class="axis" x="{middle_x}" y="16" text-anchor="middle">{escape(shorter(name, 10))}</text>'
        )
    for n, (name, row) in enumerate(zip([*labels, "spurious"], counts.tolist())):
        y = (n + 1) * ROW
        parts.append(f'<text x="{left - 8}" y="{y + 16}" text-anchor="end">{escape(shorter(name, 12))}</text>')
        for column, number in enumerate(row):
            if number:
                x = left + column * width
                share = number / sum(row)
                ink = "#fff" if share > 0.5 else "#000"
                cell = f'x="{x}" y="{y}" width="{width}" height="{ROW}" fill="#06c" fill-opacity="{share:.2f}"'
                middle = f'x="{x + width / 2}" y="{y + 16}" text-anchor="middle"'
                parts.append(f'<rect {cell}/><text {middle} fill="{ink}">{number}</text>')
    size = f'width="{left + width * (len(labels) + 1)}" height="{ROW * (len(labels) + 2) + 4}"'
    return svg("What was taken for what", size, parts)


def alone(chart: Markup) -> bytes:
    """Make an SVG file of a chart."""
    text = str(chart).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return text.replace("</title>", f"</title><style>{_STYLE}</style>", 1).encode("utf8")


def square(rows: Optional[list[str]] = None, columns: Optional[list[str]] = None) -> list[str]:
    """Draw the grid of a chart of SIZE by SIZE.

    rows, columns (list[str]): Five numbers beside the lines, from below and from the left; by default percentages.
    """
    percent = [f"{25 * n} %" for n in range(5)]
    parts = []
    for n, (row, column) in enumerate(zip(rows or percent, columns or percent)):
        x = MARGIN + SIZE * n / 4
        y = SIZE - SIZE * n / 4
        parts += [
            f'<path class="grid" d="M{x} 0V{SIZE}M{MARGIN} {y}H{MARGIN + SIZE}"/>',
            f'<text class="axis" x="{x}" y="{SIZE + 16}" text-anchor="middle">{column}</text>',
            f'<text class="axis" x="{MARGIN - 4}" y="{max(y + 4, 10)}" text-anchor="end">{row}</text>',
        ]
    return parts


def _line(circles: list[tuple[float, float, float]]) -> list[str]:
    """Draw the line that joins the centres of circles; nothing without circles."""
    points = "L".join(f"{x:.1f} {y:.1f}" for x, y, _ in circles)
    return [f'<path class="line" d="M{points}"/>'] if circles else []


def dotted(title: str, x_name: str, y_name: str, parts: list[str], circles: list[tuple[float, float, float]]) -> Chart:
    """Draw a chart with points.

    x_name, y_name (str): Names of the axes.
    parts (list[str]): SVG elements behind the points, such as the grid of `square`.
    circles (list[tuple[float, float, float]]): The points: x and y of the centre, and the radius.
    """
    points = [f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"/>' for x, y, radius in circles]
    width = SIZE + MARGIN + 20
    height = SIZE + 44 + TOP
    below = f'x="{MARGIN + SIZE / 2}" y="{SIZE + 34}"'
    beside = f'x="12" y="{SIZE / 2}" transform="rotate(-90 12 {SIZE / 2})"'
    names = [
        f'<text class="axis" {below} text-anchor="middle">{escape(x_name)}</text>',
        f'<text class="axis" {beside} text-anchor="middle">{escape(y_name)}</text>',
    ]
    size = f'viewBox="0 {-TOP} {width} {height}" width="{width}" height="{height}"'
    return svg(title, size, [*parts, *points, *names])


def svg(title: str, size: str, parts: Iterable[str]) -> Chart:
    """Make a chart of SVG elements.

    size (str): The attributes of the size, such as `width` and `height`.
    """
    inside = "".join(parts)
    title = escape(title)
    return Chart(f'<svg role="img" aria-label="{title}" {size}><title>{title}</title>{inside}</svg>')
