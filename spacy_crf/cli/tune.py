"""Choose the settings of a training by held-out texts: regularization and tag scheme, number of texts, threshold of
probabilities."""

import io
import json
import time
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Optional

import numpy as np
import typer
from spacy.language import Language
from spacy.schemas import ConfigSchemaTraining
from spacy.tokens import Doc
from spacy.training import Example
from spacy.training.initialize import init_nlp
from spacy.training.loop import DIR_MODEL_BEST, train
from spacy.util import Config, dot_to_dict, dot_to_object, load_model_from_config, registry, resolve_dot_names
from wasabi import msg

from .. import checks
from ..errors import Errors, no_component
from ..pipeline.corpora import doc_bin
from ..schemes import SCHEMES
from ..whole_files import write_whole
from .formats import Settings
from .group import app
from .shared import (
    WITH_OVERRIDES,
    CodeOption,
    ComponentOption,
    ConfigArgument,
    DataArgument,
    ModelArgument,
    SvgOption,
    blank,
    brief_errors,
    check_writable,
    import_code,
    load_pipeline,
    our_pipes,
    print_table,
    quietly,
    read_config,
    read_overrides,
    save_pipeline,
)
from .texts import read_docs, read_examples, read_raw

if TYPE_CHECKING:
    from ..pipeline.thresholds import Point

LBFGS_NAME = "spacy_crf.LBFGS.v1"


class Trial(NamedTuple):
    """A setting and the score that it reached."""

    l1: float
    l2: float
    score: float  # mean over the folds
    deviation: float  # between the folds
    n_weights: int  # weights that are not zero, mean over the folds
    scheme: Optional[str] = None  # None for the scheme in the config


class Tuned(NamedTuple):
    """The component that was tuned, and the trials."""

    component: str
    trials: list[Trial]


@app.command("tune", context_settings=WITH_OVERRIDES)
def tune_cli(
    ctx: typer.Context,
    config: ConfigArgument,
    output: Annotated[
        Optional[Path], typer.Option("--output", "-o", help="Write the best config to this file.")
    ] = None,
    component: Annotated[Optional[str], typer.Option("--component", "-c", help="Needed if there are several.")] = None,
    l1: Annotated[str, typer.Option("--l1", help="Values to try, between commas.")] = "0,0.05",
    l2: Annotated[str, typer.Option("--l2", help="Values to try, between commas.")] = "0.01,0.03,0.1,0.3,1,3",
    schemes: Annotated[
        Optional[str], typer.Option("--schemes", help="Tag schemes of crf_ner to try, between commas.")
    ] = None,
    folds: Annotated[
        int, typer.Option("--folds", "-n", help="Folds of cross-validation; 1 holds out the dev corpus.")
    ] = 1,
    iterations: Annotated[int, typer.Option("--iterations", help="Most iterations of each training.")] = 200,
    code: CodeOption = None,
) -> None:
    """Try values of l1 and l2 with L-BFGS, and tag schemes. Features are counted once for each fold and scheme, and each training
    starts with the weights of the one before."""
    from rich.progress import Progress

    with brief_errors(), Progress(transient=True) as progress:
        import_code(code)
        if output is not None:
            check_writable(output)
        overrides = read_overrides(ctx.args)
        settings = read_config(config, overrides, interpolate=False)
        grid = _numbers("l1", l1), _numbers("l2", l2)
        tried = [] if schemes is None else list(dict.fromkeys(map(str.strip, schemes.split(","))))
        total = len(grid[0]) * len(grid[1]) * max(1, len(tried)) * folds
        task = progress.add_task("training", total=total)
        tuned = tune(
            read_config(config, overrides, interpolate=True),
            *grid,
            schemes=tried,
            component=component,
            folds=folds,
            iterations=iterations,
            on_training=lambda: progress.advance(task),
        )
    best = max(tuned.trials, key=lambda trial: trial.score)
    _show_trials(tuned.trials, best, folds)
    if output is not None:
        _set_optimizer(settings, tuned.component, best)
        if best.scheme is not None:
            settings["components"][tuned.component]["scheme"] = best.scheme
        with brief_errors():
            write_whole(output, settings.to_bytes())
        msg.good(f"Best config in {output}")


def tune(
    config: Any,
    l1: Sequence[float],
    l2: Sequence[float],
    *,
    schemes: Sequence[str] = (),
    component: Optional[str] = None,
    folds: int = 1,
    iterations: int = 200,
    on_training: Callable[[], None] = lambda: None,
) -> Tuned:
    """Train with every pair of values, from the strongest regularizer to the weakest, and score held-out texts.

    Other components are not trained: frozen and untrainable ones annotate the texts, and the gold annotation replaces the others.

    config (Config): As for `spacy train`. Its corpora are used, and its optimizer is ignored.
    schemes (Sequence[str]): Tag schemes to try; by default the scheme in the config.
    folds (int): Number of parts of the training corpus, which are held out in turn; 1 to hold out the dev corpus.
    on_training (Callable[[], None]): Called after each training.
    RETURNS (Tuned): Trials in the order of schemes and values.
    """
    checks.count("crf tune", "--folds", folds)
    checks.count("crf tune", "--iterations", iterations)
    nlp = load_model_from_config(config, auto_fill=True)
    name = _component(nlp, component)
    _check_schemes(nlp, name, schemes)
    interpolated = nlp.config.interpolate()
    training = registry.resolve(interpolated["training"], schema=ConfigSchemaTraining)
    train_corpus, dev_corpus = resolve_dot_names(interpolated, [training["train_corpus"], training["dev_corpus"]])
    examples = _read_corpus(nlp, train_corpus, training["train_corpus"])
    dev_examples = _read_corpus(nlp, dev_corpus, training["dev_corpus"]) if folds == 1 else []
    checks.count("crf tune", "--folds", folds, most=len(examples))
    # Each fold counts the features of its own training texts alone
    (nlp.config["initialize"]["components"].get(name) or {}).pop("corpus", None)
    others = [other for other, pipe in nlp.pipeline if other != name and getattr(pipe, "is_trainable", False)]
    tried: Sequence[Optional[str]] = schemes or [None]
    runs: dict[tuple[Optional[str], float, float], list[tuple[float, int]]] = {}
    with nlp.select_pipes(disable=[*others, *training["frozen_components"]]):
        for scheme, fold in product(tried, range(folds)):
            learned = [example for n, example in enumerate(examples) if folds == 1 or n % folds != fold]
            held_out = dev_examples if folds == 1 else examples[fold::folds]
            pipe = _fresh(nlp, name, scheme)
            nlp.initialize(lambda learned=learned: learned)
            learned, held_out = _annotated(nlp, pipe, learned), _annotated(nlp, pipe, held_out)
            for setting, score, n_weights in _walk(
                pipe, learned, held_out, l1, l2, iterations, training["score_weights"]
            ):
                runs.setdefault((scheme, *setting), []).append((score, n_weights))
                on_training()
    trials = []
    for setting in product(tried, l1, l2):
        scores, sizes = np.array(runs[setting]).T
        trials.append(Trial(*setting[1:], float(scores.mean()), float(scores.std()), round(sizes.mean()), setting[0]))
    return Tuned(name, trials)


def _read_corpus(nlp: Language, corpus: Callable[[Language], Iterable[Example]], name: str) -> list[Example]:
    """Read a corpus. RAISES (ValueError): CRF701 if it can't be read, CRF708 if it is empty."""
    try:
        examples = list(corpus(nlp))
    except ValueError as error:  # spaCy's own errors, which do not name the corpus
        raise ValueError(Errors.CRF701.format(place=f"The corpus [{name}]", reason=error)) from error
    if not examples:
        raise ValueError(Errors.CRF708.format(path=f"[{name}]"))
    return examples


def _check_schemes(nlp: Language, name: str, schemes: Sequence[str]) -> None:
    """RAISES (ValueError): CRF931 if the component has no tag scheme, or a scheme is unknown."""
    settings = nlp.config["components"][name]
    for scheme in schemes:
        if "scheme" not in settings or scheme not in SCHEMES:
            raise ValueError(Errors.CRF931.format(name=name, scheme=scheme, known=", ".join(SCHEMES)))


def _fresh(nlp: Language, name: str, scheme: Optional[str]):
    """Replace a component by an untrained one from its config, with another scheme unless that is None."""
    settings = nlp.config.interpolate()["components"][name]
    factory = settings.pop("factory")
    if scheme is not None:
        settings["scheme"] = scheme
    of_initialize = nlp.config["initialize"]["components"]
    kept = of_initialize.get(name)
    nlp.replace_pipe(name, factory, config=settings)
    if kept is not None:  # spaCy has removed labels and gazetteers with the pipe
        of_initialize[name] = kept
    return nlp.get_pipe(name)


def _annotated(nlp: Language, pipe, examples: list[Example]) -> list[Example]:
    """The examples with the annotation of earlier components that features read."""
    from ..pipeline.initialization import earlier_annotation

    annotate = earlier_annotation(pipe, nlp)
    return [Example(annotate(example), example.reference) for example in examples]


def _walk(pipe, learned: list[Example], held_out: list[Example], l1, l2, iterations: int, weights):
    """Train and score along the path of regularizers. Yields setting, score and number of weights that are not zero."""
    from ..optimizers.lbfgs import LBFGS

    objective = pipe.training.objective(LBFGS(), learned)
    begins = objective.weights()
    for setting in product(sorted(l1, reverse=True), sorted(l2, reverse=True)):
        # Strong regularizers make the states of a tag equal, and equal states stay equal
        if pipe.model.attrs["role"].has_hidden(pipe.model):
            objective.assign(begins)
        optimizer = LBFGS(l1=setting[0], l2=setting[1], iterations_per_step=iterations, max_iterations=iterations)
        optimizer.step(objective, key=pipe.name)
        docs = pipe.pipe(example.predicted.copy() for example in held_out)
        found = pipe.score([Example(doc, example.reference) for doc, example in zip(docs, held_out)])
        yield setting, _score(pipe.name, found, weights), int(np.count_nonzero(objective.weights()))


def _score(name: str, found: dict[str, Any], weights: dict[str, Optional[float]]) -> float:
    """The weighted sum of a component's scores. RAISES (ValueError): CRF722 if none of them has a weight."""
    used = {score: weight for score, weight in weights.items() if weight and score in found}
    if not used:
        raise ValueError(Errors.CRF722.format(name=name, scores=", ".join(sorted(found))))
    return sum(weight * (found[score] or 0.0) for score, weight in used.items())


def _component(nlp: Language, name: Optional[str]) -> str:
    """The component to tune. RAISES (ValueError): CRF710 if there is none, or several and no name."""
    from ..pipeline.crf_pipe import CRFPipe

    pipes = [pipe for pipe_name, pipe in nlp.pipeline if isinstance(pipe, CRFPipe) and name in (None, pipe_name)]
    if len(pipes) != 1 or not pipes[0].is_linear:
        raise no_component("to tune: name one that scores sparse features with --component", nlp.pipe_names, name)
    return pipes[0].name


def _set_optimizer(settings: Config, name: str, best: Trial) -> None:
    """Write the best values into the block of the optimizer that trains the component."""
    component, training = settings["components"][name], settings["training"]
    if _names(component.get("optimizer"), "spacy_crf.Minibatch.v1"):
        component["optimizer"] = None  # which leaves the training to others
    if component.get("optimizer") or (
        len(settings["nlp"]["pipeline"]) > 1 and not _names(training.get("optimizer"), LBFGS_NAME)
    ):
        owner = component  # the other components keep theirs
    else:
        owner = training
    if not _names(owner.get("optimizer"), LBFGS_NAME):
        owner["optimizer"] = {"@optimizers": LBFGS_NAME}
        if owner is training:
            training["batcher"] = {"@batchers": "spacy_crf.full_batch.v1"}
    owner["optimizer"].update(l1=best.l1, l2=best.l2)


def _names(block: Any, optimizer: str) -> bool:
    return isinstance(block, dict) and block.get("@optimizers") == optimizer


def _numbers(name: str, text: str) -> list[float]:
    """Numbers between commas. RAISES (ValueError): CRF020 unless all are finite and at least 0."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    are_possible = values and all(0 <= value < np.inf for value in values)
    checks.expect(are_possible, "crf tune", f"--{name}", text, "numbers of at least 0, between commas")
    return list(dict.fromkeys(values))


def _show_trials(trials: list[Trial], best: Trial, folds: int) -> None:
    columns, rows = ("scheme", "l1", "l2", "score", *(["±"] if folds > 1 else []), "non-zero weights"), {}
    for trial in trials:
        deviation = [f"{trial.deviation:.4f}"] if folds > 1 else []
        settings = trial.scheme or "", f"{trial.l1:g}", f"{trial.l2:g}"
        rows[trial] = *settings, f"{trial.score:.4f}", *deviation, f"{trial.n_weights:,}"
    title = f"{folds} folds" if folds > 1 else "held out: the dev corpus"
    print_table(title, columns, rows.values(), n_texts=1, bold=rows[best])


class CurvePoint(NamedTuple):
    """The score of a training with a share of the texts."""

    share: float  # in percent
    texts: int
    tokens: int
    score: float
    scores: dict[str, float]  # the scores of which `score` is the weighted sum
    seconds: float


@app.command("curve", context_settings=WITH_OVERRIDES)
def curve_cli(
    ctx: typer.Context,
    config: ConfigArgument,
    shares: Annotated[
        str, typer.Option("--shares", help="Shares of the training texts, in percent, between commas.")
    ] = "10,25,50,100",
    svg: SvgOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, which `report --curve` draws.")] = False,
    code: CodeOption = None,
) -> None:
    """Train with parts of the training texts, and score them. Each part is within the next, trained as by `spacy train`, and
    scored on dev."""
    from rich.console import Console
    from rich.progress import Progress

    with brief_errors(), Progress(console=Console(stderr=True), transient=True) as progress:
        import_code(code)
        if svg is not None:
            check_writable(svg)
        wanted = _percents(shares)
        task = progress.add_task("training", total=sum(wanted))
        settings = read_config(config, read_overrides(ctx.args), interpolate=False)
        points = curve(settings, wanted, on_training=lambda share: progress.advance(task, share))
        if svg is not None:
            write_whole(svg, _draw_curve(points))
    if as_json:
        print(json.dumps([point._asdict() for point in points], indent=2))
        return
    _show_curve(points)
    if svg is not None:
        msg.good(f"Learning curve in {svg}")


def curve(
    config: Config, shares: list[float], *, on_training: Callable[[float], None] = lambda share: None
) -> list[CurvePoint]:
    """Train with each share of the training texts. A share's score is the best evaluation on the dev corpus.

    config (Config): As for `spacy train`, not interpolated.
    shares (List[float]): In percent.
    on_training (Callable[[float], None]): Called with the share after each training.
    RAISES (ValueError): CRF876 if the training corpus has no path; the errors of `spacy train`.
    """
    name = _path_of_texts(config)
    files = Path(dot_to_object(config.interpolate(), name) or "")
    docs = _read_texts(files, blank(config.interpolate()["nlp"]["lang"]))
    order = sorted(range(len(docs)), key=lambda n: blake2b(docs[n].text.encode("utf8", "surrogatepass")).digest())
    points = []
    for share in shares:
        taken = sorted(order[: max(1, round(len(docs) * share / 100))])
        points.append(_train_share(config, name, [docs[n] for n in taken], share))
        on_training(share)
    return points


def _train_share(config: Config, name: str, docs: list[Doc], share: float) -> CurvePoint:
    with TemporaryDirectory() as folder, quietly():
        texts, output = Path(folder) / "train.spacy", Path(folder) / "output"
        output.mkdir()
        doc_bin(docs).to_disk(texts)
        started = time.perf_counter()
        part = config.copy().merge(dot_to_dict({name: str(texts)}))
        nlp = init_nlp(part)
        train(nlp, output, stdout=io.StringIO(), stderr=io.StringIO())
        seconds = time.perf_counter() - started
        performance = json.loads((output / DIR_MODEL_BEST / "meta.json").read_text(encoding="utf8"))["performance"]
        weights = {key: weight for key, weight in nlp.config["training"]["score_weights"].items() if weight}
    scores = {key: float(performance.get(key) or 0.0) for key in weights}
    score = sum(weights[key] * value for key, value in scores.items())
    return CurvePoint(share, len(docs), sum(map(len, docs)), score, scores, round(seconds, 2))


# ---------------------------------------------------------------------------------------------------------- config


def _path_of_texts(config: Config) -> str:
    """The setting that holds the path of the training texts: a variable if the reader uses one, since other settings may use it
    too.

    RAISES (ValueError): CRF876 if there is no such setting.
    """
    corpus = config.interpolate().get("training", {}).get("train_corpus", "corpora.train")
    try:
        value = dot_to_object(config, f"{corpus}.path")
    except KeyError:
        value = None
    if not isinstance(value, str):
        raise ValueError(Errors.CRF876.format(corpus=corpus))
    is_variable = value.startswith("${") and value.endswith("}") and ":" not in value
    return value[2:-1] if is_variable else f"{corpus}.path"


def _read_texts(path: Path, nlp: Language) -> list[Doc]:
    """Read the texts of a .spacy file or of a folder of them. RAISES (ValueError): CRF708 if there are no texts."""
    files = sorted(path.rglob("*.spacy")) if path.is_dir() else [path]
    docs = [doc for file in files for doc in read_docs(file, nlp, Settings(format="spacy", without_spans=True))]
    if not docs:
        raise ValueError(Errors.CRF708.format(path=path))
    return docs


def _percents(text: str) -> list[float]:
    """Percentages between commas. RAISES (ValueError): CRF020 unless all are above 0 and at most 100."""
    try:
        found = sorted({float(part) for part in text.split(",")})
    except ValueError:
        found = []
    are_possible = found and found[0] > 0 and found[-1] <= 100
    must = "percentages of the training texts above 0 and up to 100, between commas"
    checks.expect(are_possible, "crf curve", "--shares", text, must)
    return found


def _show_curve(points: list[CurvePoint]) -> None:
    names = [name for name in points[0].scores if len(points[0].scores) > 1]
    rows = []
    for n, point in enumerate(points):
        gain = f"{100 * (point.score - points[n - 1].score):+.2f}" if n else ""
        scores = [f"{100 * point.scores[name]:.2f}" for name in names]
        size = (f"{point.share:g} %", f"{point.texts:,}", f"{point.tokens:,}")
        rows.append((*size, f"{100 * point.score:.2f}", gain, *scores, f"{point.seconds:.1f}"))
    print_table("learning curve", ("share", "texts", "tokens", "score", "gain", *names, "seconds"), rows)


def _draw_curve(points: list[CurvePoint]) -> bytes:
    from ..report import charts

    places = [(point.texts, point.score) for point in points]
    return charts.alone(charts.curve("Score by training texts", places, x_name="texts", y_name="score"))


@app.command("threshold")
def threshold_cli(
    model: ModelArgument,
    data: DataArgument,
    component: ComponentOption = None,
    beta: Annotated[float, typer.Option("--beta", help="Weight of recall against precision: F1, F2 …")] = 1.0,
    expected: Annotated[
        bool, typer.Option("--expected", help="Use expected scores: the texts need no annotation.")
    ] = False,
    per_label: Annotated[
        bool, typer.Option("--per-label", help="Look for one for each label: needs many entities of each.")
    ] = False,
    output: Annotated[
        Optional[Path], typer.Option("--output", "-o", help="Save the changed pipeline to this folder.")
    ] = None,
    code: CodeOption = None,
) -> None:
    """Find the min_prob that leaves the best entities. Prints precision and recall of entities with at least some probability,
    as decode = "spans" finds them, and the setting."""
    from ..pipeline.thresholds import best, use

    with brief_errors():
        checks.expect(not (expected and per_label), "threshold", "--per-label", per_label, "left out with --expected")
        nlp = load_pipeline(model, code)
        if output is not None:
            check_writable(output / "meta.json")
        found = threshold(nlp, data, component=component, beta=beta, expected=expected, per_label=per_label)
        for name, points in found.items():
            chosen = points[-1] if per_label else best(points, beta, expected=expected)
            _show_thresholds(name, points, chosen, beta, annotated=not expected)
            use(nlp, nlp.get_pipe(name), chosen.min_prob)
            settings = Config({name: {"decode": "spans", "min_prob": chosen.min_prob}})
            print(settings.to_str(interpolate=False).strip())
        if output is not None:
            save_pipeline(nlp, output)
            msg.good(f"Saved with it to {output}")


def threshold(
    nlp: Language,
    data: Path,
    *,
    component: Optional[str] = None,
    beta: float = 1.0,
    expected: bool = False,
    per_label: bool = False,
) -> dict[str, "list[Point]"]:
    """Score the entities that components find with each of some thresholds.

    data (Path): Annotated texts: a .spacy file, a folder of them, or a file that `spacy crf convert` reads. With `expected` raw
        texts too: lines, or JSON.
    component (str): Only this component.
    per_label (bool): Whether to add a point with the best threshold for each label.
    RETURNS (dict[str, list[Point]]): Points by the name of the component.
    RAISES (ValueError): If there is no such component, or the texts have no entities.
    """
    from ..pipeline.thresholds import annotated_before, best_of_labels, measure

    checks.positive("threshold", "beta", beta)
    pipes = our_pipes(nlp, component)
    if expected:
        texts = [text.doc for text in read_raw([data], nlp)]
        examples = [Example(nlp.make_doc(doc.text), doc) for doc in texts]
    else:
        examples = read_examples(data, nlp)
    found = {}
    for pipe in pipes:
        annotated = annotated_before(nlp, pipe.name, examples)
        points = found[pipe.name] = measure(pipe, annotated, judge=not expected)
        if not expected and not points[0].all.gold:
            raise ValueError(Errors.CRF423.format(name=pipe.name, path=data))
        if per_label:
            points += measure(pipe, annotated, [best_of_labels(points, beta)])
    return found


def _show_thresholds(name: str, points: "list[Point]", chosen: "Point", beta: float, *, annotated: bool) -> None:
    columns = [
        "min_prob",
        "found",
        *(["precision", "recall", f"F{beta:g}"] if annotated else []),
        f"expected F{beta:g}",
    ]
    rows = []
    for point in points:
        judged = (point.precision, point.recall, point.f(beta)) if annotated else ()
        shares = [f"{100 * share:.2f}" for share in (*judged, point.expected_f(beta))]
        least = "per label" if isinstance(point.min_prob, dict) else f"{point.min_prob:g}"
        rows.append([least, f"{point.found:,}", *shares])
    print_table(name, columns, rows, bold=rows[points.index(chosen)])
