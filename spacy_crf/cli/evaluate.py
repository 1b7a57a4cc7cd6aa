"""Commands that evaluate a trained pipeline: its mistakes, a page with scores and charts, the calibration of its probabilities,
and the threshold of probabilities with the best F score."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from spacy.cli._util import Opt
from spacy.language import Language
from spacy.training import Example
from spacy.util import Config
from wasabi import msg

from .. import checks
from ..errors import Errors, counted
from ..explain.explanation import shorter
from ..pipeline.corpora import named_origin, origin_of
from ..whole_files import write_whole
from .formats.source import Fields
from .shared import (
    ComponentOption,
    DataArgument,
    JsonOption,
    ModelArgument,
    check_writable,
    command,
    load_pipeline,
    name_of,
    our_pipes,
    print_table,
    progress_bar,
    save_pipeline,
    warn_of_learned_texts,
)
from .texts import SUSPECTS, read_examples, read_judged, read_raw

if TYPE_CHECKING:
    from ..pipeline.annotation.trimming import Mention
    from ..pipeline.pipe import LearningPipe
    from ..pipeline.prediction import CRFPipe
    from ..pipeline.thresholds import Point
    from ..report.cases import Case, Judged
    from ..report.segments import Segments

_LABELLING = "of spacy_crf that labels tokens, spans or texts"
_AROUND = 30  # characters of the text on each side of a mistake
_SPACE = re.compile(r"\s")


@command("evaluate")
def evaluate_cli(
    model: ModelArgument,
    data: DataArgument,
    output: Optional[Path] = Opt(
        None, "--output", "-o", help="Write a page of HTML, or with --calibration a chart (SVG), to this file."
    ),
    train: Optional[Path] = Opt(None, help="For a page: the training texts, which show the known words."),
    folds: int = Opt(0, help="For a page: number of folds for finding wrong annotation in the training texts."),
    curve: Optional[Path] = Opt(None, help="For a page: draw the curve in this file of `curve --json`.", exists=True),
    kind: Optional[str] = Opt(None, help="Only mistakes of a kind: label, boundary, both, missed or spurious."),
    label: Optional[str] = Opt(None, help="Only mistakes with this label, annotated or found."),
    top: int = Opt(20, help="Number of listed mistakes of each component, the most certain first."),
    calibration: bool = Opt(False, "--calibration", help="Compare probabilities with shares of right spans."),
    as_json: JsonOption = False,
    component: ComponentOption = None,
) -> None:
    """Print scores and mistakes of a pipeline.

    With --output, write a page in place of this: scores with intervals, confusions, all mistakes, calibration, known and unknown
    words, annotation that looks wrong, and effects of rules, in one HTML file that needs no network.
    """
    from ..report.cases import KINDS, certainty
    from ..report.segments import find_segments

    if kind is not None:
        checks.one_of("crf evaluate", "--kind", kind, [name for name in KINDS if name != "right"])
    for option, value in {"--train": train, "--folds": folds, "--curve": curve}.items():
        if value and (output is None or calibration):
            raise ValueError(Errors.CRF788.format(option=option, other="--output, without --calibration,"))
    if folds and train is None:
        raise ValueError(Errors.CRF788.format(option="--folds", other="the training texts, --train PATH,"))
    check_writable(output, data, train, curve)
    points = [] if curve is None else _read_curve(curve)
    nlp = load_pipeline(model)
    if calibration:
        _compare_probabilities(nlp, data, our_pipes(nlp, component), output)
        return
    segments = find_segments(nlp, component)
    wanted = None if segments and not folds else _LABELLING
    pipes = our_pipes(nlp, component, wanted, lambda pipe: pipe.labelled, of_tokens=False)
    if output is not None:
        title = f"{name_of(nlp, model)} on {data.name}"
        page = _page(title, nlp, data, pipes, segments, train, folds, points)
        write_whole(output, page.encode("utf8"))
        msg.good(f"Report in {output}")
        return
    as_data = {}  # by the name of the component
    judged_pipes, _ = _judge(nlp, data, pipes, segments)
    for judged in judged_pipes:
        errors = [case for case in judged.errors if kind in (None, case.kind) and label in (None, *_labels(case))]
        errors.sort(key=certainty, reverse=True)
        if as_json:
            as_data[judged.pipe.name] = _as_data(judged, errors)
        else:
            _print_scores(judged)
            _print_errors(judged, errors, top)
    if as_json:
        print(json.dumps(as_data, ensure_ascii=False))


def _judge(
    nlp: Language, data: Path, pipes: "list[LearningPipe]", segments: "list[Segments]"
) -> "tuple[list[Judged], bool]":
    """Compare the words and sentences of a tokenizer (`segments`) and the predictions of components with annotated texts.

    RETURNS (tuple): The comparison for the words, the sentences and each component, and whether `fit` held the texts out.
    """
    from ..report.cases import judge
    from ..report.segments import judge_segments

    examples, held_out = read_judged(data, nlp)
    if not held_out:
        warn_of_learned_texts(pipes, examples, data)
    judged = judge(nlp, pipes, examples, held_out=held_out) if pipes else []
    return [*judge_segments(segments, examples), *judged], held_out


def _labels(case: "Case") -> list[str]:
    """The labels of the annotated and of the found mention."""
    return [mention.label for mention in (case.gold, case.found) if mention]


def _print_scores(judged: "Judged") -> None:
    """Print a table of the scores of each label, and the share of texts that are right as a whole."""
    from ..report.figures import scores, whole_texts

    columns = ("label", "annotated", "found", "precision", "recall", "F1", "95 %")
    rows = []
    for row in scores(judged):
        shares = (f"{100 * share.value:.1f}" for share in (row.precision, row.recall, row.f))
        between = f"{100 * row.f.low:.1f}–{100 * row.f.high:.1f}"
        rows.append((row.label, f"{row.n_gold:,}", f"{row.n_found:,}", *shares, between))
    print_table(judged.pipe.name, columns, rows, n_texts=1)
    whole = whole_texts(judged)
    if whole is not None:
        msg.info(f"whole texts right {whole.percent()}")


def _print_errors(judged: "Judged", errors: "list[Case]", top: int) -> None:
    """Print a table of the first mistakes; `top` is their number."""
    from ..report.cases import KINDS

    if not errors:
        # Options may have left out all mistakes
        msg.good("No mistakes of this kind" if judged.errors else "No mistakes")
        return
    rows = []
    for case in errors[:top]:
        text = judged.texts[case.doc]
        if judged.labels_texts:
            mentions = _described(None, case.gold), _described(None, case.found)
            around = " ".join(shorter(text, 4 * _AROUND).split())
        else:
            mentions = _described(text, case.gold), _described(text, case.found)
            around = _around(text, *case.extent)
        origin = named_origin(judged.examples[case.doc].reference)
        rows.append((KINDS[case.kind], *mentions, around, origin))
    title = f"{min(top, len(errors))} of {counted(len(errors), 'mistake')}"
    print_table(title, ("kind", "annotated", "found", "around it", "text"), rows, n_texts=5)


def _around(text: str, begin: int, end: int) -> str:
    """The characters from `begin` to `end` with some words on each side, or with some letters in texts without spaces."""
    first = max(0, begin - _AROUND)
    last = end + _AROUND
    before = _SPACE.sub(" ", text[first:begin])
    after = _SPACE.sub(" ", text[end:last])
    # Leave out words that are cut
    if first and not text[first - 1].isspace() and " " in before:
        before = before.partition(" ")[2]
    if text[last : last + 1].strip() and " " in after:
        after = after.rpartition(" ")[0]
    return " ".join((before + text[begin:end] + after).split())


def _described(text: Optional[str], mention: "Optional[Mention]") -> str:
    """The words of a mention with its label and probability. Without a text, the words are left out."""
    if mention is None:
        return ""
    probability = "" if mention.probability is None else f" {mention.probability:.1%}"
    if text is None:
        return f"{mention.label}{probability}"
    return f"{text[mention.start : mention.end]} ({mention.label}{probability})"


def _as_data(judged: "Judged", errors: "list[Case]") -> Fields:
    """The scores of each label, the share of texts that are right as a whole, and the mistakes, for JSON."""
    from ..report.figures import scores, whole_texts

    scores_of_labels = {}
    for row in scores(judged):
        shares = {name: getattr(row, name)._asdict() for name in ("precision", "recall", "f")}
        scores_of_labels[row.label] = {"annotated": row.n_gold, "found": row.n_found, "right": row.n_right, **shares}
    rows = []
    for case in errors:
        mentions = {"annotated": case.gold and case.gold._asdict(), "found": case.found and case.found._asdict()}
        origin = origin_of(judged.examples[case.doc].reference)
        rows.append({"text": case.doc, **origin, "kind": case.kind, **mentions})
    whole = whole_texts(judged)
    return {"scores": scores_of_labels, "whole_texts": whole and whole._asdict(), "errors": rows}


def _page(
    title: str,
    nlp: Language,
    data: Path,
    pipes: "list[LearningPipe]",
    segments: "list[Segments]",
    train: Optional[Path],
    folds: int,
    points: list[tuple[float, float]],
) -> str:
    """Make the page of HTML that `evaluate --output` writes.

    train (Path): The training texts, or None. folds (int): The number of folds in which wrong annotation is searched in them.
    points (List[Tuple[float, float]]): The numbers of texts and the scores of a learning curve.
    """
    from ..report.page import render
    from ..report.suspects import cross_validated, of_jsonl

    with progress_bar("reading and predicting") as progress:
        progress(total=2 + folds * len(pipes))
        training = [] if train is None else read_examples(train, nlp)
        judged, held_out = _judge(nlp, data, pipes, segments)
        # Leave out components that label texts if no text has such a label: it is annotated for the others. If only these are
        # left, show them without cases
        with_labels = [of_pipe for of_pipe in judged if of_pipe.cases or not of_pipe.labels_texts]
        progress(advance=1, description="training without each part" if folds else "writing")
        subjects = []
        suspects = None
        if held_out:
            with _written_by("spacy crf fit", data / SUSPECTS) as text:
                suspects = of_jsonl(text)
        for of_pipe in with_labels or judged:
            if folds and of_pipe.pipe in pipes:
                suspects = cross_validated(nlp, of_pipe.pipe, training, folds, on_fold=partial(progress, advance=1))
            subjects.append(of_pipe._replace(training=training, suspects=suspects))
        return render(title, subjects, curve=points)


def _read_curve(path: Path) -> list[tuple[float, float]]:
    """Read the points of a learning curve, each the number of texts and the score, that `curve --json` has written."""
    with _written_by("spacy crf curve --json", path) as text:
        points = [(float(row["texts"]), float(row["score"])) for row in json.loads(text)]
        if len(points) < 2:
            raise ValueError("a learning curve has at least two rows")
    return points


@contextmanager
def _written_by(command: str, path: Path) -> Iterator[str]:
    """Read the file (`path`) that a command wrote, and give its text.

    RAISES (ValueError): CRF701 for errors within the context, where the text is read as what the command writes.
    """
    try:
        yield path.read_text(encoding="utf8")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(Errors.CRF701.format(place=path, reason=f"{error}. `{command}` writes such files")) from None


def _compare_probabilities(nlp: Language, data: Path, pipes: "list[CRFPipe]", chart: Optional[Path]) -> None:
    """Print a table for each component that compares the probabilities of spans with the shares of right spans.

    chart (Path): The file to which to draw the comparison for a single component, or None.
    """
    from ..pipeline.probabilities import turn_on_confidence
    from ..report import charts

    if chart is not None and len(pipes) > 1:
        raise ValueError(Errors.CRF746.format(components=", ".join(pipe.name for pipe in pipes)))
    turn_on_confidence(pipes)
    examples, held_out = read_judged(data, nlp)
    if not held_out:
        warn_of_learned_texts(pipes, examples, data)
    # Held-out texts carry the predictions of other models, which this pipeline must not replace
    scores_of_pipeline = {} if held_out else nlp.evaluate(examples)
    for pipe in pipes:
        scores = pipe.score(examples) if held_out else scores_of_pipeline
        name = pipe.name
        prefix = pipe.annotation.scores_prefix
        calibration = scores[f"{prefix}_calibration"]
        brier = scores[f"{prefix}_brier"]
        if chart is not None:
            points = [(row["probability"], row["right"], row["spans"]) for row in calibration or () if row["spans"]]
            write_whole(chart, charts.alone(charts.reliability(f"{name}: share that is right by probability", points)))
        if brier is None:
            msg.warn(f"{name} finds nothing in the annotated texts")
        else:
            rows = []
            for row in calibration:
                cells = (f"{100 * row[key]:.1f} %" if row[key] is not None else "" for key in ("probability", "right"))
                rows.append((f"{row['from']:.1f} to {row['to']:.1f}", f"{row['spans']:,}", *cells))
            print_table(name, ("probability", "spans", "mean probability", "right"), rows)
            error = f"expected calibration error {scores[f'{prefix}_calibration_error']:.4f}"
            # The models of the folds, which predicted held-out texts, are not saved
            before = "" if held_out else _error_before(nlp, pipe, examples)
            msg.info(f"{error}{before}, Brier score {brier:.4f}")
        if "exact" not in pipe.decoding.structure.answers:
            msg.info(f"the probabilities of {name} are approximate: it has too many labellings for exact sums")
    if chart is not None:
        msg.good(f"Calibration in {chart}")


def _error_before(nlp: Language, pipe: "CRFPipe", examples: list[Example]) -> str:
    """The calibration error before `crf fit` divided the scores of a component by a temperature, in words; empty if it did not.

    examples (list[Example]): The annotated texts.
    """
    from ..race import divide_scores

    fitted = nlp.meta.get("performance", {}).get(f"{pipe.name}_cross_validation", {})
    temperature = fitted.get("temperature", 1.0)
    if temperature == 1.0:
        return ""
    divide_scores(pipe, 1 / temperature)
    error = nlp.evaluate(examples)[f"{pipe.annotation.scores_prefix}_calibration_error"]
    divide_scores(pipe, temperature)
    return f" ({error:.4f} before scores were divided by {temperature:.2f})"


@command("threshold")
def threshold_cli(
    model: ModelArgument,
    data: DataArgument,
    component: ComponentOption = None,
    beta: float = Opt(1.0, help="Weight of recall against precision: F1, F2 …"),
    expected: bool = Opt(False, "--expected", help="Use expected scores, which need no annotation."),
    per_label: bool = Opt(False, "--per-label", help="Find a threshold for each label; needs many entities of each."),
    recall: Optional[float] = Opt(None, help="Promise this recall on new texts, of all spans with at least min_prob."),
    precision: Optional[float] = Opt(None, help="Promise this precision on new texts, of the same spans."),
    alpha: Optional[float] = Opt(None, help="Probability that DATA allows a promise that is broken. 0.05 by default."),
    spans_key: Optional[str] = Opt(
        None, help="Key of doc.spans for the spans that keep a promise. crf_candidates by default."
    ),
    output: Optional[Path] = Opt(None, "--output", "-o", help="Save the changed pipeline to this folder."),
) -> None:
    """Find the min_prob of the best F score or a promised recall. The command prints precision and recall for each
    threshold, with entities that decode = "spans" finds, and the best setting. For `crf_spancat`, and `crf_textcat` with
    several labels, it is the `threshold`. With --recall or --precision, the command adds a component crf_candidates with the
    threshold; for `crf_textcat` it sets the threshold."""
    from ..pipeline.thresholds import best, use

    checks.expect(not (expected and per_label), "threshold", "--per-label", per_label, "left out with --expected")
    nlp = load_pipeline(model)
    if output is not None:
        check_writable(output / "meta.json")
    goals = {of: goal for of, goal in (("recall", recall), ("precision", precision)) if goal is not None}
    if goals:
        checks.expect(len(goals) == 1, "threshold", "--precision", precision, "left out with --recall")
        checks.expect(not expected, "threshold", "--expected", expected, "left out where DATA proves a promise")
        [(of, goal)] = goals.items()
        alpha = 0.05 if alpha is None else alpha
        spans_key = "crf_candidates" if spans_key is None else spans_key
        _promise(nlp, data, _with_thresholds(nlp, component), of, goal, alpha, spans_key, per_label=per_label)
    else:
        for option, value in (("--alpha", alpha), ("--spans-key", spans_key)):
            checks.expect(value is None, "threshold", option, value, "left out without --recall or --precision")
        points_of_pipes = threshold(nlp, data, component=component, beta=beta, expected=expected, per_label=per_label)
        for name, points in points_of_pipes.items():
            # `threshold` has put the point with a threshold for each label last
            chosen = points[-1] if per_label else best(points, beta, expected=expected)
            pipe: Any = nlp.get_pipe(name)
            _print_points(pipe, points, chosen, beta, expected=expected)
            use(nlp, pipe, chosen.min_prob)
            _print_config({name: pipe.threshold_settings(checks.in_config(chosen.min_prob))})
    if output is not None:
        save_pipeline(nlp, output)
        msg.good(f"Saved with it to {output}")


def _print_points(pipe: "LearningPipe", points: "list[Point]", chosen: "Point", beta: float, *, expected: bool) -> None:
    """Print a table with a row for each threshold of a component (`pipe`), that of the chosen one in bold.

    expected (bool): Whether the texts have no annotation, so that only the expected F score is known.
    """
    judged = () if expected else ("precision", "recall", f"F{beta:g}")
    rows = []
    for point in points:
        shares = [] if expected else [point.precision, point.recall, point.f(beta)]
        shares.append(point.expected_f(beta))
        min_prob = "per label" if isinstance(point.min_prob, dict) else f"{point.min_prob:g}"
        rows.append([min_prob, f"{point.found:,}", *(f"{100 * share:.2f}" for share in shares)])
    columns = [pipe.threshold_setting, "found", *judged, f"expected F{beta:g}"]
    print_table(pipe.name, columns, rows, bold=rows[points.index(chosen)])


def _with_thresholds(nlp: Language, component: Optional[str]) -> "list[LearningPipe]":
    """The components whose decisions may have a threshold: those that label tokens, or texts with several labels.

    component (str): The name of the only component, or None for all.
    """
    wanted = "that gives probabilities of spans or tokens, or crf_textcat with multilabel = true"

    def is_wanted(pipe: "LearningPipe") -> bool:
        return pipe.by_probability if pipe.labelled == "texts" else pipe.labelled is not None

    return our_pipes(nlp, component, wanted, is_wanted, of_tokens=False)


def _promise(
    nlp: Language,
    data: Path,
    pipes: "list[LearningPipe]",
    of: str,
    goal: float,
    alpha: float,
    key: str,
    *,
    per_label: bool,
) -> None:
    """Find the thresholds of a component that keep a promise, print them, and add a component `crf_candidates` with them. For
    a component that labels texts, set them.

    pipes (List[LearningPipe]): The components with thresholds, of which there must be one.
    of (str): What is promised: "recall" or "precision".
    goal (float): The recall or precision on new texts.
    alpha (float): The probability that the texts in `data` allow a promise that is broken.
    key (str): The key of ``doc.spans`` for the spans of `crf_candidates`.
    per_label (bool): Whether to promise it for each label, with a threshold of its own.
    """
    from ..pipeline.annotation.trimming import warn_of_trimmed
    from ..pipeline.candidates import check_spans_key
    from ..pipeline.promises import judge as judge_promises
    from ..pipeline.promises import min_prob_of, promises
    from ..pipeline.thresholds import annotated_before, use

    names = ", ".join(pipe.name for pipe in pipes)
    checks.expect(len(pipes) == 1, "threshold", "--component", None, f"one of {names}, where a promise is made")
    [pipe] = pipes
    name = "crf_candidates"
    checks.text("threshold", "--spans-key", key)
    check_spans_key(name, key, pipe)
    examples = read_examples(data, nlp)
    warn_of_learned_texts(pipes, examples, data)
    warn_of_trimmed(pipe, (example.reference for example in examples))
    judged = judge_promises(pipe, annotated_before(nlp, pipe.name, examples))
    kept = promises(pipe, judged, goal, alpha, of=of, per_label=per_label)
    columns = ("label", "min_prob", "annotated", "recall", "precision", "spans a text")
    rows = []
    for promise in kept:
        shares = (f"{100 * share:.2f}" for share in (promise.recall, promise.precision))
        label = promise.label or "all"
        rows.append((label, f"{promise.min_prob:g}", f"{promise.n_gold:,}", *shares, f"{promise.found:.2f}"))
    print_table(f"{pipe.name}, all spans with at least min_prob", columns, rows, n_texts=1)
    of_each_label = " of each label" if per_label else ""
    msg.info(f"With probability {1 - alpha:g}, the {of}{of_each_label} on new texts like these is at least {goal:g}")
    min_prob = min_prob_of(kept, of)
    if pipe.labelled == "texts":
        use(nlp, pipe, min_prob)
        _print_config({pipe.name: pipe.threshold_settings(checks.in_config(min_prob))})
        return
    settings = {"component": pipe.name, "spans_key": key, "min_prob": checks.in_config(min_prob)}
    if name in nlp.component_names:
        nlp.remove_pipe(name)
    nlp.add_pipe(name, before=pipe.name, config=settings)
    _print_config({name: {"factory": name, **settings}})


def _print_config(settings: Mapping[str, object]) -> None:
    """Print the settings of components (by their names) as sections of a config: [components.NAME]."""
    text = Config({"components": settings}).to_str(interpolate=False)
    print(text.removeprefix("[components]").strip())


def threshold(
    nlp: Language,
    data: Path,
    *,
    component: Optional[str] = None,
    beta: float = 1.0,
    expected: bool = False,
    per_label: bool = False,
) -> dict[str, "list[Point]"]:
    """Score the entities that components find with different thresholds of probabilities.

    data (Path): Annotated texts; with `expected` also raw texts.
    component (str): The name of the only component, or None for all.
    beta (float): How many times as much as precision recall counts in the F score.
    expected (bool): Whether to score by the model's probabilities alone, without annotation.
    per_label (bool): Whether to add, as the last point, one with the best threshold of each label.
    RETURNS (dict[str, list[Point]]): The scores with each threshold, by the name of the component.
    RAISES (ValueError): If there is no such component, or the texts have no entities.
    """
    from ..pipeline.annotation.trimming import warn_of_trimmed
    from ..pipeline.thresholds import annotated_before, best_of_labels, measure

    checks.positive("threshold", "beta", beta)
    pipes = _with_thresholds(nlp, component)
    if expected:
        examples = [Example(nlp.make_doc(doc.text), doc) for _, doc in read_raw([data], nlp)]
    else:
        examples = read_examples(data, nlp)
        warn_of_learned_texts(pipes, examples, data)
    points_of_pipes = {}
    for pipe in pipes:
        if not expected:
            warn_of_trimmed(pipe, (example.reference for example in examples))
        annotated = annotated_before(nlp, pipe.name, examples)
        points = measure(pipe, annotated, judge=not expected)
        if not expected and not points[0].all["gold"]:
            raise ValueError(Errors.CRF423.format(name=pipe.name, path=data))
        if per_label:
            points += measure(pipe, annotated, [best_of_labels(points, beta)])
        points_of_pipes[pipe.name] = points
    return points_of_pipes
