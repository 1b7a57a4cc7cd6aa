"""Explanations: rows that add up to a decision, rendered as text, for a terminal, and as HTML without external resources."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from html import escape
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Optional

from .. import checks

if TYPE_CHECKING:
    from rich.console import Group

SpanOf = tuple[int, int, str]  # first token, the token behind the last one, label


class Row(NamedTuple):
    """The contribution of one weight, one word, one rule or one text to a decision.

    feature (str): The feature with its values, such as ``lower[-1]=in``; "transition", "first", "last", "length"; "tok2vec" for
        an encoder's output; a word, a rule or a text.
    template (str): Template of the feature.
    offset (Optional[int]): Offset that the template reads, relative to the token; None if it reads several offsets or none.
    token (Optional[int]): The token with the feature; None for a row without a single token.
    end (Optional[int]): The token behind the last one, since features of segments have several tokens.
    tags (Tuple[str, ...]): The tag that the weight belongs to, or the two tags of a transition.
    value (float): Value of the feature, 1 for a feature without a number.
    weight (float): The learned weight.
    use (float): Uses of the weight with the span minus uses without it: 1 or -1 between two labellings, else expected uses.
    contribution (float): Part of the target that the row contributes.
    effect (Optional[float]): Change of the log-odds if the text were not in the training data; None if it was not requested.
    """

    feature: str
    template: str
    offset: Optional[int]
    token: Optional[int]
    end: Optional[int]
    tags: tuple[str, ...]
    value: float
    weight: float
    use: float
    contribution: float
    effect: Optional[float] = None


@dataclass(frozen=True)
class RuleEffect:
    """The effect of a rule of the component.

    name (str), rule (str): Name and kind of the rule. weight (Optional[float]): None for a hard rule.
    effect (str): "changes the labelling", "forbids the span" or "asks for the span".
    price (Optional[float]): The log-odds that the best labelling loses by the rule; None if no labellings were compared.
    spans (List[Tuple[int, int, str]]): Predicted spans under the rule and the rules before it.
    """

    name: str
    rule: str
    weight: Optional[float]
    effect: str
    price: Optional[float] = None
    spans: list[SpanOf] = field(default_factory=list)


@dataclass(frozen=True)
class Flip:
    """A change of words that reverses the decision.

    words (List[Tuple[int, str, str]]): Token, word, and the word in its place.
    log_odds (float): Log-odds of the decision in the changed text. spans (List[Tuple[int, int, str]]): Predicted spans there.
    """

    words: list[tuple[int, str, str]]
    log_odds: float
    spans: list[SpanOf]

    @property
    def characters(self) -> int:
        """Number of characters that change."""
        n_changed = 0
        for _, word, other in self.words:
            n_same = sum(a.lower() == b.lower() for a, b in zip(word, other))
            n_changed += max(len(word), len(other)) - n_same
        return n_changed


@dataclass
class Explanation:
    """Explanation of a component's decision about a span.

    kind (str): Kind of the explanation, see `CRFPipe.explain`. component (str): Name of the component.
    words (List[str]): Words of the Doc.
    span (Optional[Tuple[int, int, str]]): The explained span; None for the whole labelling.
    against (str): The alternatives that the span is compared with, in words.
    target (float): The explained number: for "contrast" and "texts" a difference of scores, otherwise log-odds; of several labels
        of a text always log-odds.
    base (float): The part of the target that no row explains.
    rows (List[Row]): Rows with the largest contributions first; before them texts with an effect, largest effects first.
    totals (Dict[str, float]): The score or the log-odds, the probability, and its complement, which is exact even if it is tiny.
    labelling, rival (List[Tuple[int, int, str]]): The spans of the two labellings that a contrast compares.
    rules (List[RuleEffect]): Effects of rules.
    flips (List[Flip]): For "words", changes that reverse the decision, the smallest first.
    additive (bool): Whether the rows add up to the target.
    """

    kind: str
    component: str
    words: list[str]
    span: Optional[SpanOf]
    against: str
    target: float
    base: float
    rows: list[Row]
    totals: dict[str, float]
    labelling: list[SpanOf] = field(default_factory=list)
    rival: list[SpanOf] = field(default_factory=list)
    rules: list[RuleEffect] = field(default_factory=list)
    flips: list[Flip] = field(default_factory=list)
    additive: bool = True

    def __post_init__(self) -> None:
        self.rows.sort(key=_size)

    @property
    def check(self) -> Optional[float]:
        """The sum of the base and all rows, minus the target; None if rows are not additive."""
        return self.base + sum(row.contribution for row in self.rows) - self.target if self.additive else None

    def by(self, *names: str) -> dict[tuple, float]:
        """Sum the contributions of rows by some attributes.

        *names (str): Attributes of rows, such as "feature", "template" or "token".
        RETURNS (Dict[tuple, float]): Sums by the values of these attributes, the largest first.
        """
        sums: dict[tuple, float] = {}
        for row in self.rows:
            key = tuple(getattr(row, name) for name in names)
            sums[key] = sums.get(key, 0.0) + row.contribution
        return dict(sorted(sums.items(), key=lambda item: -abs(item[1])))

    # ------------------------------------------------------------------------------------------------------- as text

    @property
    def title(self) -> str:
        """The explained decision in one line."""
        if self.span is None:
            return f"{self.component}: the whole labelling, {self.against}"
        start, end, label = self.span
        return f"{self.component}: '{self._text(start, end)}' as {label}, {self.against}"

    def lines(self) -> list[str]:
        """All parts of the explanation except the rows, as lines of text."""
        lines = [", ".join(f"{name} {_number(value)}" for name, value in self.totals.items())]
        if self.kind == "texts":
            has_effects = any(row.effect is not None for row in self.rows)
            lines.append(_SHARES if has_effects else f"{_SHARES} (effect=True estimates that)")
        if self.labelling or self.rival:
            lines += [f"best: {self._in_words(self.labelling)}", f"instead: {self._in_words(self.rival)}"]
        for rule in self.rules:
            price = "" if rule.price is None else f", which costs {_number(rule.price)}"
            spans = f": {self._in_words(rule.spans)}" if rule.effect.startswith("changes") else ""
            lines.append(f"rule {rule.name} ({rule.rule}) {rule.effect}{price}{spans}")
        for flip in self.flips[:_MOST_FLIPS]:
            words = ", ".join(f"{other} instead of {word}" for _, word, other in flip.words)
            lines.append(f"another decision with {words}: log-odds {_number(flip.log_odds)}")
        if self.kind == "words":
            lines.append(_LOSSES)
        return lines

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads of the columns of `table`."""
        return ("", "word") if self.kind == "words" else ("", "feature", "at", "weights")

    def table(self, top: int = 20) -> list[tuple[str, ...]]:
        """Table of the features with the largest contributions: contribution, feature, words, and weights by tag; for "words",
        contribution and word. The last row sums up all others."""
        top = checks.count("An explanation", "top", top, least=0, most=checks.ANY)
        # The rows of a feature at a place differ in their tags: they become one line
        rows_of_lines: dict[tuple, list[Row]] = {}
        for row in self.rows:
            rows_of_lines.setdefault((row.feature, row.token, row.end), []).append(row)
        groups = sorted(rows_of_lines.values(), key=lambda rows: _size(rows[0]._replace(contribution=_sum(rows))))
        table: list[tuple[str, ...]] = []
        for rows in groups[:top]:
            words = self._words(rows[0].token, rows[0].end)
            table.append((f"{_sum(rows):+.4f}", rows[0].feature, words, ", ".join(map(_weights, rows[:_MOST_TAGS]))))
        others = list(chain.from_iterable(groups[top:]))
        if others:
            table.append((f"{_sum(others):+.4f}" if self.additive else "", f"{len(groups) - top} others", "", ""))
        return [line[: len(self.heads)] for line in table]

    def _words(self, token: Optional[int], end: Optional[int]) -> str:
        """The words at the place of a row."""
        if token is None:
            return ""
        return self.words[token] if end is None else " ".join(self.words[token:end])

    def _in_words(self, spans: list[SpanOf]) -> str:
        return "; ".join(f"{self._text(start, end)} ({label})" for start, end, label in spans) or "nothing"

    def _text(self, start: int, end: int) -> str:
        return shorter(" ".join(self.words[start:end]))

    def to_text(self, top: int = 20) -> str:
        """The explanation as plain text.

        top (int): Number of listed features.
        RETURNS (str)
        """
        lines = [self.title, *self.lines()]
        rows = self.table(top)
        if rows:
            lines.append(aligned(rows))
        return "\n".join(lines)

    def to_dict(self) -> dict[str, object]:
        """The explanation as plain values, for JSON."""
        return {**asdict(self), "rows": [row._asdict() for row in self.rows], "check": self.check}

    def to_json(self) -> str:
        """The explanation as JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def to_html(self, top: int = 20) -> str:
        """The explanation as an HTML fragment, with its style and without scripts.

        top (int): Number of listed features.
        RETURNS (str)
        """
        return f"<style>{_STYLE}</style>{_figure(self, top)}"

    def to_rich(self, top: int = 20) -> "Group":
        """The explanation for a terminal.

        top (int): Number of listed features.
        RETURNS (rich.console.Group)
        """
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None)
        for head in self.heads:
            table.add_column(head, overflow="fold")
        for contribution, *cells in self.table(top):
            style = "red" if contribution.startswith("-") else "green"
            table.add_row(Text(contribution, style), *map(Text, cells))
        return Group(Text(self.title, "bold"), *map(Text, self.lines()), table)

    __str__ = to_text
    _repr_html_ = to_html
    __rich__ = to_rich


def aligned(rows: list[tuple[str, ...]]) -> str:
    """Format rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def shorter(text: str, most: int = 60) -> str:
    """Shorten a text to `most` characters; the last one is an ellipsis then."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


_MOST_TAGS = 3
_MOST_FLIPS = 3
_LOSSES = "how much the log-odds fall without each word:"
_SHARES = "shares of the score, not what would change without a text"


def _sum(rows: list[Row]) -> float:
    return sum(row.contribution for row in rows)


def _size(row: Row) -> tuple[bool, float]:
    """Sort key: rows with an effect first, by its size; then others by the size of their contributions."""
    return row.effect is None, -abs(row.contribution if row.effect is None else row.effect)


def _weights(row: Row) -> str:
    """The cell of a row in the column "weights": tags and weight, or the effect of a text."""
    if row.effect is not None:
        return f"without it log-odds {row.effect:+.4f}"
    return f"{'→'.join(row.tags)} {row.weight:+.3f}" if row.tags else ""


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e-3 else f"{value:.4f}"


# -------------------------------------------------------------------------------------------------------------- HTML

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


def weights_table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """An HTML fragment of a table of weights, in the style of explanations."""
    return f'<style>{_STYLE}</style><section class="crf-why">{_table("Weights", heads, rows)}</section>'


def page(explanations: Iterable[Explanation], top: int = 20) -> str:
    """Make a complete HTML page of explanations, light or dark by the reader's preference."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Why</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_PAGE_STYLE}{_STYLE}</style></head><body><main><h1>Why</h1>\n"
        + "\n".join(_figure(explanation, top) for explanation in explanations)
        + "\n</main></body></html>\n"
    )


def _figure(explanation: Explanation, top: int) -> str:
    """HTML of an explanation: its title, the coloured words, its lines, and tables."""
    lines = "".join(f"<p>{escape(line)}</p>" for line in explanation.lines())
    table = _table("Largest contributions", explanation.heads, explanation.table(top))
    if explanation.additive:
        sums = list(explanation.by("template").items())[:_MOST_TEMPLATES]
        templates = [(f"{value:+.4f}", template) for (template,), value in sums]
        table += _table("By template", ("", "template"), templates)
    return (
        f'<section class="crf-why"><h2>{escape(explanation.title)}</h2>'
        f"<p>{_marked(explanation)}</p>{lines}{table}</section>"
    )


def _marked(explanation: Explanation) -> str:
    """HTML of the words, coloured by their contributions for and against the decision. The explained span is underlined."""
    sums = {token: value for (token,), value in explanation.by("token").items() if token is not None}
    most = max(map(abs, sums.values()), default=0.0) or 1.0
    start, end, _ = explanation.span or (0, 0, "")
    is_whole_text = end - start == len(explanation.words)  # as the span of a text's label
    words = []
    for n, word in enumerate(explanation.words):
        text = escape(word)
        value = sums.get(n, 0.0)
        if start <= n < end and not is_whole_text:
            text = f"<u>{text}</u>"
        if value:
            style = f'style="--much: {0.6 * abs(value) / most:.2f}"'
            text = f'<mark class="{"for" if value > 0 else "not"}" {style} title="{value:+.4f}">{text}</mark>'
        words.append(text)
    return " ".join(words)


def _table(caption: str, heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in heads)
    body = ""
    for row in rows:
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in row)
        body += f"<tr>{cells}</tr>"
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
