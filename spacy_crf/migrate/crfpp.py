"""Reads models of CRF++, and makes features from columns by its templates. A model is text (``crf_learn -t``), or binary; then
the features are paths through a double array (Aoe 1989)."""

import re
import struct
from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from ..errors import Errors
from .foreign import ForeignModel, Octets, as_text
from .functions import Pattern, PatternPlace, PatternSource, assemble, compile_form, template_lines

_KIND = "a model of CRF++"
_MACRO = re.compile(r"%x\[(-?\d{1,9}),(\d{1,9})\]")
_FARTHEST = 8
_VERSION = 100
# Version, type, cost factor, number of weights, columns, bytes of the double array
_HEADER = struct.Struct("<IidIII")
_UNIT = np.dtype([("base", "<i4"), ("check", "<u4")])
_HEAD = re.compile(rb"(version|cost-factor|maxid|xsize): *(\S+) *")


def compile_template(line: str) -> Pattern:
    """Compile a line of a file of templates. RAISES (ValueError): CRF856 if the line is not a template."""

    def place(match: "re.Match[str]") -> PatternPlace:
        row = int(match[1])
        column = int(match[2])
        if abs(row) > _FARTHEST:
            raise ValueError(Errors.CRF856.format(template=line, reason=f"rows are at most {_FARTHEST} away"))
        return PatternPlace(column, row)

    pattern = compile_form(line, _MACRO, place, "%x[row,column]")
    if line[:1] not in ("U", "B"):
        raise ValueError(Errors.CRF856.format(template=line, reason="templates begin with U or B"))
    return pattern


def crfpp_features(templates: Sequence[str], columns: Sequence[str]) -> PatternSource:
    """A source of feature names made by CRF++'s templates (``spacy_crf.crfpp_features.v1``).

    templates (List[str]): Templates such as "U05:%x[-1,0]/%x[0,0]". Write a dollar as %24.
    columns (List[str]): Attributes of tokens in the columns, such as ["orth", "tag"], or "ext:NAME" for an extension.
    """
    return PatternSource(templates, compile_template, columns, outside)


def outside(n: int) -> str:
    """The text of the position `n` words before (negative) or behind a sequence."""
    return f"_B{n:+d}"


def read_templates(text: str) -> list[str]:
    """Read the templates of a file. RAISES (ValueError): CRF856 for a line that is not a template."""
    lines = [line for line in template_lines(text) if not line.startswith("#")]
    for line in lines:
        compile_template(line)
    return lines


def read_crfpp(data: bytes, source: str) -> ForeignModel:
    """Read a model, text or binary, from the bytes of its file.

    source (str): Name of the file, for messages.
    RAISES (ValueError): CRF854 with the place, if the file is damaged or not a model of CRF++; CRF856 for a wrong template.
    """
    return _read_text(data, source) if data.startswith(b"version:") else _read_binary(data, source)


def _read_text(data: bytes, source: str) -> ForeignModel:
    """Read a model that is text: five parts between empty lines, the header, labels, templates, features and weights."""
    octets = Octets(data, source, _KIND)
    octets.check_last_line()
    lines = [(number, line.rstrip(b"\r")) for number, line in enumerate(data.split(b"\n"), start=1)]
    parts = [list(part) for is_full, part in groupby(lines, key=lambda line: bool(line[1])) if is_full]
    if len(parts) != 5:
        octets.refuse("the parts", f"there are {len(parts)} between empty lines, and 5 are needed: the file is cut off")
    header_lines, label_lines, pattern_lines, feature_lines, weight_lines = parts
    head = {}
    for number, line in header_lines:
        match = _HEAD.fullmatch(line)
        if match is None:
            octets.refuse(f"line {number}", f"{line[:40]!r} is no line of the header")
        head[match[1].decode()] = match[2]
    missing = {"version", "cost-factor", "maxid", "xsize"} - head.keys()
    if missing:
        octets.refuse("the header", f"{', '.join(sorted(missing))} is missing")
    cost = _number(octets, "the header", head["cost-factor"])
    n_weights = _number(octets, "the header", head["maxid"])
    names = []
    ids = []
    for number, line in feature_lines:
        first, _, name = line.partition(b" ")
        if not first.isdigit() or len(first) > 18:  # 19 digits may not fit into int64
            octets.refuse(f"line {number}", f"{line[:40]!r} has no number and feature")
        ids.append(int(first))
        names.append(as_text(name))
    if len(weight_lines) != n_weights:
        first, _ = weight_lines[0]
        reason = f"{len(weight_lines)} weights follow, and the header announces {n_weights:.0f}"
        octets.refuse(f"line {first}", reason)
    weights = np.array([_number(octets, f"line {number}", line) for number, line in weight_lines])
    labels = [as_text(line) for _, line in label_lines]
    templates = [as_text(line) for _, line in pattern_lines]
    return _model(octets, labels, templates, names, np.array(ids, dtype=np.int64), cost * weights)


def _number(octets: Octets, place: str, text: bytes) -> float:
    """Read a finite number from text. RAISES (ValueError): CRF854 with its place for anything else."""
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        octets.refuse(place, f"{text[:40]!r} is no finite number")
    return value


def _read_binary(data: bytes, source: str) -> ForeignModel:
    """Read a binary model: header, labels, templates, features as a double array, and weights."""
    octets = Octets(data, source, _KIND)
    version, _, cost, n_weights, _, size = octets.fields(_HEADER.format, 0, "the header")
    if version != _VERSION:
        octets.refuse("the header, byte 0", f"version {version} is not known, only {_VERSION}")
    if not np.isfinite(cost):
        octets.refuse("the header, byte 8", f"the cost factor is {cost}")
    # Two lists of texts, each behind its length in bytes; then the double array, and the weights
    position = _HEADER.size
    lists = []
    for what in ("the labels", "the templates"):
        (length,) = octets.fields("<I", position, what)
        lists.append([as_text(text) for text in octets.part(position + 4, length, what).split(b"\0") if text])
        position += 4 + length
    labels, templates = lists
    units = octets.numbers(position, _UNIT, size // _UNIT.itemsize, "the features")
    weights = octets.numbers(position + size, "<f4", n_weights, "the weights").astype(np.float64)
    if not np.isfinite(weights).all():
        octets.refuse("the weights", "one is no finite number")
    names, ids = _paths(octets, units)
    return _model(octets, labels, templates, names, ids, cost * weights)


def _paths(octets: Octets, units: NDArray) -> tuple[list[str], NDArray[np.int64]]:
    """List the names of all features and the number of the first weight of each: the keys of a double array and their values.

    A unit with base b continues with byte c at the unit ``b + c + 1`` if the check of that unit is b. At the unit b itself a key
    ends; its value is -1 minus that unit's base.
    """
    base = units["base"].astype(np.int64)
    check = units["check"].astype(np.int64)
    if not len(units):
        octets.refuse("the features", "there are none")
    # The units that may continue others, sorted by their check: those that continue a unit with base b have the check b
    step = np.arange(len(units)) - check  # 0 where a key ends, else 1 + the byte
    children = np.argsort(check, kind="stable")
    children = children[(step[children] >= 0) & (step[children] <= 256)]
    bases = check[children]
    names = []
    ids = []
    n_bytes_left = 64 * len(octets)  # so that the names of a broken array can't fill the memory
    seen = np.zeros(len(units), dtype=bool)
    # Walk through the tree, depth first; `path` has the bytes from the root to a unit
    path = bytearray()
    waiting = [(0, 0)]  # unit and depth
    while waiting:
        parent, depth = waiting.pop()
        if depth:
            del path[depth - 1 :]
            path.append(parent - int(check[parent]) - 1)
        base_of_parent = int(base[parent])
        first = np.searchsorted(bases, base_of_parent)
        behind = np.searchsorted(bases, base_of_parent, side="right")
        for unit in children[first:behind].tolist():
            if unit == 0 or seen[unit]:  # a broken array may have circles
                continue
            seen[unit] = True
            ends_key = unit == base_of_parent
            if not ends_key:
                waiting.append((unit, depth + 1))
            elif base[unit] < 0:
                names.append(as_text(bytes(path)))
                ids.append(-1 - int(base[unit]))
                n_bytes_left -= len(path)
                if n_bytes_left < 0:
                    octets.refuse("the features", "their names are endless")
    return names, np.array(ids, dtype=np.int64)


def _model(
    octets: Octets,
    labels: list[str],
    templates: list[str],
    names: list[str],
    ids: NDArray[np.int64],
    weights: NDArray[np.float64],
) -> ForeignModel:
    """Check and assemble the parts of a file.

    ids (int64[F]): The number of the first weight of each feature.
    weights (float64[W]): All weights.
    """
    octets.check_labels(labels)
    is_pair = np.array([name.startswith("B") for name in names], dtype=bool)
    ends = ids + np.where(is_pair, len(labels) ** 2, len(labels))
    if len(ids) and (ids.min() < 0 or ends.max() > len(weights)):
        octets.refuse("the features", f"one has weights up to number {ends.max()}, and there are {len(weights)}")
    # A template of pairs without a place makes the same feature everywhere: its weights are transitions
    constants = set()
    for template in templates:
        pattern = compile_template(template)
        if not pattern.places and template.startswith("B"):
            constants.add(template)
    blocks = (np.where(is_pair, -1, ids), np.where(is_pair, ids, -1))
    [numbers] = np.nonzero(weights)
    return assemble("crfpp", labels, names, blocks, numbers, weights[numbers], templates, constants)
