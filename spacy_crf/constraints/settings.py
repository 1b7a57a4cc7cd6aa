"""Rules as users write them in the config or in files, and the settings for enforcing them."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional, Union

from .. import checks
from ..errors import Errors, known_names, shown
from .rule import Rule, Table
from .rules import RULES

MOST_GRAPH_STATES = 4_096  # states of automata times tags: a matrix of that size takes 134 MB
_LARGEST_WEIGHT = 1e9  # log-odds: sums of such prices remain finite
_DEEPEST = 20  # levels of nested tables


def read_rule(table: Table, place: int = 0) -> Rule:
    """Read a rule from the table that a user wrote.

    table (Table): The table.
    place (int): Its place in the list of rules, from 0.
    RETURNS (Rule): The rule.
    RAISES (ValueError): The message says what is wrong and what is possible.
    """
    if not isinstance(table, dict) or not isinstance(table.get("rule"), str):
        raise ValueError(Errors.CRF601.format(place=place + 1, rule=table))
    reason = _not_plain(table)
    if reason:
        problem = f"it can't be saved: {reason}. The rule: {table!r}"
        raise ValueError(Errors.CRF605.format(name=place + 1, problem=problem))
    kind = RULES.get(table["rule"])
    if kind is None:
        problem = f"no rule is called {table['rule']!r}. Rules: {known_names(RULES, table['rule'])}"
        raise ValueError(Errors.CRF605.format(name=place + 1, problem=problem))
    name = table.get("name", f"{place + 1}: {table['rule']}")
    checks.text(f"Rule {place + 1}", "name", name)
    readers = {**kind.required, **{argument: reader for argument, (reader, _) in kind.optional.items()}}
    unknown = [argument for argument in table if argument not in readers and argument not in ("rule", "name", "weight")]
    missing = [argument for argument in kind.required if table.get(argument) is None]
    if unknown or missing:
        problem = f"unknown: {', '.join(map(str, unknown))}" if unknown else f"missing: {', '.join(missing)}"
        known = known_names([*readers, "name", "weight"], *unknown)
        raise ValueError(Errors.CRF605.format(name=f"'{name}'", problem=f"{problem}. Arguments of this rule: {known}"))
    weight = table.get("weight")
    if weight is not None:  # a rule without a weight is hard
        weight = checks.number(f"Rule '{name}'", "weight", weight, least=-_LARGEST_WEIGHT, most=_LARGEST_WEIGHT)
    arguments = {argument: default for argument, (_, default) in kind.optional.items()}
    for argument, reader in readers.items():
        if table.get(argument) is not None:
            try:
                arguments[argument] = reader(table[argument])
            except ValueError as wanted:
                raise ValueError(
                    Errors.CRF020.format(
                        owner=f"Rule '{name}'", name=argument, value=shown(table[argument]), must=wanted
                    )
                ) from None
    rule = kind(dict(table), place, name, weight, arguments)
    problem = rule.check()
    if problem:
        raise ValueError(Errors.CRF605.format(name=f"'{name}'", problem=problem))
    return rule


def _not_plain(value: object, depth: int = 0) -> Optional[str]:
    """Why a value cannot be saved as a part of a rule; None if it can."""
    if depth > _DEEPEST:
        return "it is nested too deeply"
    if value is None or isinstance(value, (bool, float)):
        return None
    if isinstance(value, int):
        return None if abs(value) < 2**63 else f"{value} is too large"
    if isinstance(value, str):
        is_text = value.isascii() or value == value.encode("utf8", "ignore").decode("utf8")
        return None if is_text else f"{value!r} is no text that can be written"
    if isinstance(value, dict):
        wrong = [key for key in value if not isinstance(key, str)]
        parts = [*value, *value.values()]
        if wrong:
            return f"the key {wrong[0]!r} is no text"
    elif isinstance(value, (list, tuple)):
        parts = value
    else:
        return f"{value!r} is no number, text, list or table"
    return next(filter(None, (_not_plain(part, depth + 1) for part in parts)), None)


def read_jsonl(path: Union[str, Path]) -> list[Table]:
    """Read rules from a file with one JSON table per line.

    path (Path): The file.
    RETURNS (List[Table]): The tables.
    RAISES (ValueError): The message names the line that is no table.
    """
    path = Path(path)
    tables = []
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(Errors.CRF701.format(place=f"The rules in {path}", reason=error)) from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"Line {number} of the rules in {path}"
        try:
            table = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(Errors.CRF701.format(place=place, reason=error)) from error
        if not isinstance(table, dict):
            raise ValueError(Errors.CRF701.format(place=place, reason="it is not a JSON table"))
        tables.append(table)
    return tables


@dataclass
class Constraints:
    """Rules and the settings for enforcing them, as the config gives them.

    missing (Optional[Path]): A file of rules that does not exist. A loaded component has its own copy of the rules, so a missing
        file is an error only for a new component.
    """

    rules: list[Rule]
    in_training: bool = False
    max_states: int = 200
    time_limit: float = 1.0
    missing: Optional[Path] = None

    def add(self, table: Table) -> Rule:
        """Add a rule behind the others. table (Table): The rule. RETURNS (Rule): The rule as it is read."""
        self.rules.append(read_rule(table, len(self.rules)))
        return self.rules[-1]

    @property
    def tables(self) -> list[Table]:
        """The rules as the user wrote them."""
        return [rule.table for rule in self.rules]

    def replaced(self, tables: list[Table]) -> "Constraints":
        """Make the same settings with other rules. tables (List[Table]): The rules. RETURNS (Constraints): New settings."""
        return replace(self, rules=[read_rule(table, place) for place, table in enumerate(tables)], missing=None)

    def only(self, wanted: Callable[[Rule], bool]) -> "Constraints":
        """Make the same settings with some of the rules, which keep their places.

        wanted (Callable): Whether a rule stays.
        RETURNS (Constraints): New settings.
        """
        return replace(self, rules=[rule for rule in self.rules if wanted(rule)])

    def require_file(self) -> None:
        """Check that no file of rules is missing. RAISES (ValueError): CRF701 if one is."""
        if self.missing is not None:
            raise ValueError(Errors.CRF701.format(place=f"The rules in {self.missing}", reason="there is no such file"))


def constraints(
    rules: Optional[list[Table]] = None,
    path: Optional[str] = None,
    in_training: bool = False,
    max_states: int = 200,
    time_limit: float = 1.0,
) -> Constraints:
    """Rules that labellings keep (``spacy_crf.constraints.v1``).

    rules (List[Dict]): The rules, the most important first: where no labelling keeps them all, the later ones are dropped.
    path (str): A JSONL file with more rules.
    in_training (bool): Whether the rules apply in training too.
    max_states (int): Most states of an automaton that joins several rules; states times tags are at most 4,096. Beyond, a search
        in a lattice takes over.
    time_limit (float): Seconds on a usual machine, at most 3,600, that the rules may add to the decoding of a document. The
        search counts its steps and reads no clock, so a busy machine gives the same labelling.
    """
    max_states = checks.count("constraints", "max_states", max_states, most=MOST_GRAPH_STATES)
    time_limit = checks.number("constraints", "time_limit", time_limit, least=checks.LEAST, most=3600.0)
    rules = checks.listed("constraints", "rules", rules, "tables")
    checks.expect(path is None or isinstance(path, (str, Path)), "constraints", "path", path, "the path of a file")
    # A saved model has its rules: it does not need their file
    missing = Path(path) if path and not Path(path).exists() else None
    tables = [*rules, *(read_jsonl(path) if path and missing is None else [])]
    read = [read_rule(table, place) for place, table in enumerate(tables)]
    return Constraints(read, in_training, max_states, time_limit, missing)
