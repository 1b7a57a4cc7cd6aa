"""A report as one HTML file that needs no network: it contains styles, charts, data, and a script that filters mistakes."""

import base64
import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import pairwise
from typing import Optional

import numpy as np
from markupsafe import Markup

from .. import __version__
from ..errors import counted
from ..explain.explanation import shorter
from ..pipeline.annotation.trimming import Mention
from ..pipeline.corpora import in_words, named_origin
from ..pipeline.scorers import calibration
from . import charts
from .cases import KINDS, MOST_TEXTS, Case, Judged, Reason, certainty, reasons, rule_effects
from .figures import (
    LEVEL,
    Group,
    Share,
    by_frequency,
    by_length,
    by_words,
    confusion,
    labels_of,
    scores,
    whole_texts,
)
from .segments import Segments
from .suspects import Suspect, judged_by, ranked

AROUND = 90  # characters of the text on each side of a mistake
MOST_OF_TEXT = 400  # characters of a text with a wrong label
MOST_ERRORS = 5000
MOST_SUSPECTS = 50
MOST_LABELS = 30  # largest number of labels in charts and in the table of confusions
_SUSPECT = "Annotation that looks wrong"


def render(title: str, subjects: Sequence[Judged], *, curve: Sequence[tuple[float, float]] = ()) -> str:
    """Make the HTML page of a report.

    subjects (Sequence[Judged]): The components, with their predictions.
    curve (Sequence[tuple[float, float]]): Learning curve: numbers of training texts, and the scores reached with them.
    """
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["percent"] = lambda share: f"{100 * (share.value if isinstance(share, Share) else share):.1f}"
    environment.filters["part"] = lambda number: f"{number:.2f}"
    style = Markup(source("page.css"))
    script = Markup(source("page.js"))
    return environment.from_string(source("page.html.jinja")).render(
        title=title,
        version=f"spacy-crf {__version__}",
        texts=counted(len(subjects[0].examples), "text"),
        level=round(100 * LEVEL),
        most_texts=MOST_TEXTS,
        sections=[_section(judged) for judged in subjects],
        curve=charts.learning_curve(curve) if curve else None,
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
    )


def _section(judged: Judged) -> dict[str, object]:
    """Compute the variables of the template's section about a component."""
    rows = scores(judged)
    labels = labels_of(judged.cases)[:MOST_LABELS]
    probabilities = []
    is_right = []
    for case in judged.cases:
        if case.found and case.found.probability is not None:
            probabilities.append(case.found.probability)
            is_right.append(case.kind == "right")
    calibrated = calibration(np.array(probabilities, dtype=np.float64), np.array(is_right, dtype=bool))
    bins = [row for row in calibrated["calibration"] if row["spans"]]
    points = [(row["probability"], row["right"], row["spans"]) for row in bins]
    errors = _errors(judged, reasons(judged))
    kinds = Counter(case.kind for case in judged.cases)
    return {
        "name": judged.pipe.name,
        "scores": rows,
        "whole_texts": whole_texts(judged),
        "chart_of_scores": charts.shares("F1 by label", [(row.label, row.f) for row in rows[: MOST_LABELS + 1]]),
        "kinds": [(name, kinds[kind]) for kind, name in KINDS.items() if kinds[kind] or not judged.labels_texts],
        "labels": labels,
        "has_boundaries": not (judged.labels_texts or judged.pipe.annotation.spans_are_tokens),
        "confusion": _confusion(judged, labels),
        "errors": _as_json(errors[:MOST_ERRORS]),
        "n_shown": MOST_ERRORS,
        "n_left_out": max(0, len(errors) - MOST_ERRORS),
        "bins": bins,
        "calibration_error": calibrated["calibration_error"],
        "brier": calibrated["brier"],
        "chart_of_calibration": charts.reliability("Share that is right by probability", points),
        "groups": _groups(judged),
        "suspects": _suspects(judged),
        "rules": rule_effects(judged),
    }


def _groups(judged: Judged) -> list[tuple[str, Markup, list[Group]]]:
    """Tables of groups of annotated mentions, each with a name and a chart. Without the training texts, only the groups by length
    are known."""
    tables = []
    if not judged.pipe.annotation.spans_are_tokens:
        tables.append(("length", by_length(judged)))
    if judged.training and not judged.labels_texts:
        tables.append(("frequency", by_frequency(judged)))
    if judged.training:
        tables.append(("words", by_words(judged)))
    charted = []
    for name, groups in tables:
        shares = [(group.name, group.found) for group in groups]
        charted.append((name, charts.shares(f"Found, by {name}", shares), groups))
    return charted


def _confusion(judged: Judged, labels: Sequence[str]) -> list[tuple[str, list[tuple[int, str]]]]:
    """Rows of the table of confusions: a name, and counts with the names of their shades. The shade of a mistake, "0" to "3", is
    its share of the row's mistakes."""
    rows = []
    for n, (name, counts) in enumerate(zip([*labels, "spurious"], confusion(judged.cases, labels).tolist())):
        # In the last row, mentions of labels that the table leaves out are mistakes
        n_right = counts[n] if n < len(labels) else 0
        n_wrong = max(1, sum(counts) - n_right)
        shades = [str(math.ceil(3 * count / n_wrong)) for count in counts]
        shades[n] = "right"
        rows.append((name, list(zip(counts, shades))))
    return rows


# ------------------------------------------------------------------------------------------------------- mistakes


def _errors(judged: Judged, why: Mapping[int, list[Reason]]) -> list[dict[str, object]]:
    """The mistakes as data for the browser, the most certain first.

    why (Mapping[int, list[Reason]]): Reasons by the number of the mistake.
    """
    numbered = sorted(enumerate(judged.errors), key=lambda item: -certainty(item[1]))
    errors = []
    for number, case in numbered:
        error: dict[str, object] = {
            "at": number,
            "kind": KINDS[case.kind],
            "gold": case.gold and (case.gold.label, case.gold.probability),
            "found": case.found and (case.found.label, case.found.probability),
            "parts": parts(judged.texts[case.doc], None if judged.labels_texts else case),
            "origin": named_origin(judged.examples[case.doc].reference),
        }
        if number in why:
            error["why"] = why[number]
        errors.append(error)
    return errors


def parts(text: str, case: Optional[Case]) -> list[tuple[str, str]]:
    """Split the text around a mistake into pieces, each with a class: annotated ("gold"), "found", "both", or neither ("").
    Without a case, there is one piece: the beginning of the text."""
    if case is None:
        return [(shorter(text, MOST_OF_TEXT), "")]
    first, last = case.extent
    begin = max(0, first - AROUND)
    end = min(len(text), last + AROUND)
    marks = [(name, mention) for name, mention in (("gold", case.gold), ("found", case.found)) if mention]
    # Each end of a mention begins a new piece
    cuts = sorted({begin, end, *(mention.start for _, mention in marks), *(mention.end for _, mention in marks)})
    pieces = []
    for left, right in pairwise(cuts):
        names = [name for name, mention in marks if mention.start <= left and right <= mention.end]
        pieces.append((text[left:right], "both" if len(names) == 2 else "".join(names)))
    if begin > 0:
        pieces.insert(0, ("… ", ""))
    if end < len(text):
        pieces.append((" …", ""))
    return pieces


def _suspects(judged: Judged) -> list[tuple[str, str, list[dict[str, str]]]]:
    """Tables of suspects, each with a title and an explanation: of these texts, and of the training texts."""

    def rows(suspects: Sequence[Suspect]) -> list[dict[str, str]]:
        return [_row(suspect, labels_texts=judged.labels_texts) for suspect in suspects[:MOST_SUSPECTS]]

    if isinstance(judged.pipe, Segments):
        return []
    said = "Texts for which another labelling is more probable than the annotation, by the ratio of both probabilities."
    tables = [(_SUSPECT, said, rows(ranked(judged_by(judged.pipe, judged.examples))))]
    if judged.suspects is not None:
        said = "The same for training texts: a model that was trained without the text judges it (cross-validation)."
        tables.append((f"{_SUSPECT}, in the training texts", said, rows(judged.suspects)))
    return tables


def _row(suspect: Suspect, *, labels_texts: bool) -> dict[str, str]:
    """A row of a table of suspects: labels of texts, or the mentions in which the annotation and the best labelling differ."""

    def listed(mentions: list[Mention]) -> str:
        if labels_texts:
            return ", ".join(m.label for m in mentions) or "nothing"
        return "; ".join(f"{suspect.text[m.start : m.end]} ({m.label})" for m in mentions) or "nothing"

    gold = suspect.gold
    best = suspect.best
    if not labels_texts:
        gold_places = {mention.place for mention in gold}
        best_places = {mention.place for mention in best}
        gold = [mention for mention in gold if mention.place not in best_places]
        best = [mention for mention in best if mention.place not in gold_places]
    ratio = f"a factor of {math.exp(suspect.log_ratio):,.3g}" if suspect.log_ratio < 50 else "more than e^50"
    return {
        "text": suspect.text,
        "origin": in_words(suspect.origin),
        "ratio": ratio,
        "gold": listed(gold),
        "best": listed(best),
    }


# ------------------------------------------------------------------------------------------------------- the file


def source(name: str) -> str:
    """Read a file of this folder: the style, the script or the template of the page."""
    return resources.files("spacy_crf.report").joinpath(name).read_text(encoding="utf8")


def _as_json(data: object) -> Markup:
    """Encode data as JSON without characters that could end an HTML element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def _hash(source: str) -> str:
    """Compute the hash of a script or style for a content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode("utf8")).digest()).decode("ascii")
