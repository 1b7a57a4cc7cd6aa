"""What an explanation says: rows that add up, and what they add up to."""

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from .. import checks

if TYPE_CHECKING:
    from rich.console import Group

SpanOf = tuple[int, int, str]  # first token, the one behind the last, label


class Row(NamedTuple):
    """What one weight, or one word, does to a decision.

    feature (str): With its values filled in: ``lower[-1]=in``; "transition", "first", "last", "length"; "tok2vec" for what an
        encoder says; a word, a rule or a text.
    template (str): Of the feature.
    offset (Optional[int]): Where the template reads, from the token on; None if it reads in several places or in none.
    token (Optional[int]): Where the feature was found; None for what is not about a single token.
    end (Optional[int]): Behind the last token that has it: features of segments have several.
    tags (Tuple[str, ...]): What the weight is for: a tag, or the two of a transition.
    value (float): Of the feature, 1 for those that are there or not.
    weight (float): What the model has learned.
    use (float): How much more often it is used with the span than without: 1 and -1 between two labellings, else expected.
    contribution (float): What it adds to the target.
    effect (Optional[float]): Of a text, by how much the log-odds would change had training been without it, where that was asked.
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
    """What a rule of the component changes.

    name (str), rule (str): Its name and its kind. weight (Optional[float]): None for a rule that always holds.
    effect (str): "changes the labelling", "forbids the span" or "asks for the span".
    price (Optional[float]): What the model's best labelling loses by it, in log-odds; None where nothing was compared.
    spans (List[Tuple[int, int, str]]): What is found with it and the rules before it.
    """

    name: str
    rule: str
    weight: Optional[float]
    effect: str
    price: Optional[float] = None
    spans: list[SpanOf] = field(default_factory=list)


@dataclass(frozen=True)
class Flip:
    """A change that makes the decision another one.

    words (List[Tuple[int, str, str]]): Token, word, and the word in its place.
    log_odds (float): Of what is explained, in the changed text. spans (List[Tuple[int, int, str]]): What is found there.
    """

    words: list[tuple[int, str, str]]
    log_odds: float
    spans: list[SpanOf]

    @property
    def characters(self) -> int:
        """How many characters of the words are others."""
        return sum(
            max(len(word), len(other)) - sum(a.lower() == b.lower() for a, b in zip(word, other))
            for _, word, other in self.words
        )


@dataclass
class Explanation:
    """Why a component decides as it does about a span.

    kind (str): How it was found, see `CRFPipe.explain`. component (str): Its name.
    words (List[str]): Of the Doc.
    span (Optional[Tuple[int, int, str]]): What is explained; None for the whole labelling.
    against (str): What it is compared with, in words.
    target (float): What is split up: of "contrast" and "texts" a difference of scores, otherwise log-odds.
    base (float): The part of it that no weight has.
    rows (List[Row]): The largest contributions first; before them the texts of which an effect is known, the largest first.
    totals (Dict[str, float]): The score or the log-odds, the probability, and its complement, which near 1 says more.
    labelling, rival (List[Tuple[int, int, str]]): The spans of the two labellings that a contrast compares.
    rules (List[RuleEffect]): What rules have to do with it.
    flips (List[Flip]): Of "words", what would make the decision another one, the smallest changes first.
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
        """The sum of the base and of all rows, less the target; None where they are not to be summed up."""
        return self.base + sum(row.contribution for row in self.rows) - self.target if self.additive else None

    def by(self, *names: str) -> dict[tuple, float]:
        """Contributions added up, the largest first.

        *names (str): Attributes of rows, such as "feature", "template" or "token".
        RETURNS (Dict[tuple, float]): By the values of these attributes.
        """
        sums: dict[tuple, float] = {}
        for row in self.rows:
            key = tuple(getattr(row, name) for name in names)
            sums[key] = sums.get(key, 0.0) + row.contribution
        return dict(sorted(sums.items(), key=lambda item: -abs(item[1])))

    # ------------------------------------------------------------------------------------------------------- as text

    @property
    def title(self) -> str:
        """What is explained, in a line."""
        if self.span is None:
            return f"{self.component}: the whole labelling, {self.against}"
        start, end, label = self.span
        return f"{self.component}: '{self._text(start, end)}' as {label}, {self.against}"

    def told(self) -> list[str]:
        """What is known beside the rows, in lines."""
        lines = [", ".join(f"{name} {_number(value)}" for name, value in self.totals.items())]
        if self.kind == "texts":
            known = any(row.effect is not None for row in self.rows)
            lines.append(_SHARES + ("" if known else "; effect=True tells that"))
        if self.labelling or self.rival:
            lines += [f"best: {self._spelt(self.labelling)}", f"instead: {self._spelt(self.rival)}"]
        for rule in self.rules:
            price = "" if rule.price is None else f", which costs {_number(rule.price)}"
            found = f": {self._spelt(rule.spans)}" if rule.effect.startswith("changes") else ""
            lines.append(f"rule {rule.name} ({rule.rule}) {rule.effect}{price}{found}")
        for flip in self.flips[:_MOST_FLIPS]:
            words = ", ".join(f"{other} instead of {word}" for _, word, other in flip.words)
            lines.append(f"another decision with {words}: log-odds {_number(flip.log_odds)}")
        return lines

    def table(self, top: int = 20) -> list[tuple[str, str, str, str]]:
        """Contribution, feature, word and weights by tag, of the features with the largest contributions; the last row is about
        all others."""
        top = checks.count("An explanation", "top", top, least=0, most=checks.ANY)
        found: dict[tuple, list[Row]] = {}
        for row in self.rows:
            found.setdefault((row.feature, row.token, row.end), []).append(row)
        by_size = sorted(found.items(), key=lambda item: _size(item[1][0]._replace(contribution=_sum(item[1]))))
        table = [
            (f"{_sum(rows):+.4f}", feature, self._words(token, end), ", ".join(map(_weights, rows[:_MOST_TAGS])))
            for (feature, token, end), rows in by_size[:top]
        ]
        rest = [row for _, rows in by_size[top:] for row in rows]
        if rest:
            table.append((f"{_sum(rest):+.4f}" if self.additive else "", f"{len(by_size) - top} others", "", ""))
        return table

    def _words(self, token: Optional[int], end: Optional[int]) -> str:
        return "" if token is None else " ".join(self.words[token : (token + 1 if end is None else end)])

    def _spelt(self, spans: list[SpanOf]) -> str:
        return "; ".join(f"{self._text(b, e)} ({label})" for b, e, label in spans) or "nothing"

    def _text(self, start: int, end: int) -> str:
        return shorter(" ".join(self.words[start:end]))

    def to_text(self, top: int = 20) -> str:
        """As plain text.

        top (int): How many features are listed.
        RETURNS (str)
        """
        rows = self.table(top)
        return "\n".join([self.title, *self.told(), *([aligned(rows)] if rows else [])])

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {**asdict(self), "rows": [row._asdict() for row in self.rows], "check": self.check}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def to_html(self, top: int = 20) -> str:
        """As a part of a page: with its style, without scripts, and with nothing from elsewhere.

        top (int): How many features are listed.
        RETURNS (str)
        """
        from .html import fragment

        return fragment(self, top)

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return self.to_html()

    def __rich__(self) -> "Group":
        return self.to_rich()

    def to_rich(self, top: int = 20) -> "Group":
        """For a terminal.

        top (int): How many features are listed.
        RETURNS (rich.console.Group)
        """
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None)
        for head in ("", "feature", "at", "weights"):
            table.add_column(head, overflow="fold")
        for contribution, *cells in self.table(top):
            style = "red" if contribution.startswith("-") else "green"
            table.add_row(Text(contribution, style), *map(Text, cells))
        return Group(Text(self.title, "bold"), *map(Text, self.told()), table)


def aligned(rows: list[tuple[str, ...]]) -> str:
    """Rows as lines in which columns stand below each other."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def shorter(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


_MOST_TAGS, _MOST_FLIPS = 3, 3
_SHARES = "shares of the score, which is not what would change without a text"


def _sum(rows: list[Row]) -> float:
    return sum(row.contribution for row in rows)


def _size(row: Row) -> tuple[bool, float]:
    """By which the largest is first."""
    return row.effect is None, -abs(row.contribution if row.effect is None else row.effect)


def _weights(row: Row) -> str:
    if row.effect is not None:
        return f"without it log-odds {row.effect:+.4f}"
    return f"{'→'.join(row.tags)} {row.weight:+.3f}" if row.tags else ""


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e-3 else f"{value:.4f}"
