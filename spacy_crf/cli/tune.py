"""Which l1 and l2, and which tag scheme, do best on texts that training did not see."""

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Optional

import numpy as np
import typer
from spacy.language import Language
from spacy.schemas import ConfigSchemaTraining
from spacy.training import Example
from spacy.util import Config, load_model_from_config, registry, resolve_dot_names
from wasabi import msg

from ..errors import Errors
from ..schemes import SCHEMES
from ..whole_files import write_whole
from .group import app
from .shared import CodeOption, check_writable, import_code, print_table, read_config, read_overrides, told_briefly

LBFGS_NAME = "spacy_crf.LBFGS.v1"
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}


class Trial(NamedTuple):
    """One setting and what it reached."""

    l1: float
    l2: float
    score: float  # mean over the folds
    deviation: float  # between the folds
    n_weights: int  # that are not zero, mean over the folds
    scheme: Optional[str] = None  # None for that of the config


class Tuned(NamedTuple):
    component: str
    trials: list[Trial]


@app.command("tune", context_settings=CONTEXT)
def tune_cli(
    ctx: typer.Context,
    config: Annotated[
        Path, typer.Argument(help="The config to tune; overrides such as --paths.train work.", exists=True)
    ],
    output: Annotated[Optional[Path], typer.Option("--output", "-o", help="Where to write the best config.")] = None,
    component: Annotated[Optional[str], typer.Option("--component", "-c", help="Needed if there are several.")] = None,
    l1: Annotated[str, typer.Option("--l1", help="Values to try, between commas.")] = "0,0.05",
    l2: Annotated[str, typer.Option("--l2", help="Values to try, between commas.")] = "0.01,0.03,0.1,0.3,1,3",
    schemes: Annotated[
        Optional[str], typer.Option("--schemes", help="Of crf_ner to try, between commas, such as BIO,BILUO.")
    ] = None,
    folds: Annotated[int, typer.Option("--folds", "-n", help="Cross-validation; 1 holds out the dev corpus.")] = 1,
    iterations: Annotated[int, typer.Option("--iterations", help="At most so many of each training.")] = 200,
    code: CodeOption = None,
) -> None:
    """Try values of l1 and l2 with L-BFGS, and tag schemes. Features are counted and looked up once for each fold and scheme, and
    each training goes on from the last one's weights."""
    from rich.progress import Progress

    with told_briefly(), Progress(transient=True) as progress:
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
    _show(tuned.trials, best, folds)
    if output is not None:
        _set_optimizer(settings, tuned.component, best)
        if best.scheme is not None:
            settings["components"][tuned.component]["scheme"] = best.scheme
        with told_briefly():
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
    """Train with every pair of values, from the strongest regularizer to the weakest, and score what was held out.

    Other components are not trained. Those that training would find ready annotate the texts; for the others the gold annotation
    stands in.

    config (Config): As for `spacy train`. Its corpora are used; of its optimizer, nothing.
    schemes (Sequence[str]): Tag schemes to try; that of the config if there are none.
    folds (int): Parts of the training corpus that are held out in turn; 1 to hold out the dev corpus.
    on_training (Callable[[], None]): Called after each training.
    RETURNS (Tuned): Trials in the order of the schemes and the values.
    """
    if folds < 1 or iterations < 1:
        raise ValueError(
            Errors.CRF720.format(name="folds" if folds < 1 else "iterations", value=min(folds, iterations))
        )
    nlp = load_model_from_config(config, auto_fill=True)
    name = _component(nlp, component)
    _check_schemes(nlp, name, schemes)
    interpolated = nlp.config.interpolate()
    training = registry.resolve(interpolated["training"], schema=ConfigSchemaTraining)
    train_corpus, dev_corpus = resolve_dot_names(interpolated, [training["train_corpus"], training["dev_corpus"]])
    examples = _read(nlp, train_corpus, training["train_corpus"])
    dev_examples = _read(nlp, dev_corpus, training["dev_corpus"]) if folds == 1 else []
    if folds > len(examples):
        raise ValueError(Errors.CRF720.format(name="folds", value=folds))
    # Only what a fold learns from is counted in it.
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


def _read(nlp: Language, corpus: Callable[[Language], Iterable[Example]], name: str) -> list[Example]:
    """RAISES (ValueError): CRF734 for what can't be read, CRF708 if there is nothing."""
    try:
        examples = list(corpus(nlp))
    except ValueError as error:  # spaCy's, which do not say of what
        raise ValueError(Errors.CRF734.format(corpus=name, reason=error)) from error
    if not examples:
        raise ValueError(Errors.CRF708.format(path=f"[{name}]"))
    return examples


def _check_schemes(nlp: Language, name: str, schemes: Sequence[str]) -> None:
    """RAISES (ValueError): CRF931 if the component has none, or there is no such scheme."""
    settings = nlp.config["components"][name]
    for scheme in schemes:
        if "scheme" not in settings or scheme not in SCHEMES:
            raise ValueError(Errors.CRF931.format(name=name, scheme=scheme, known=", ".join(SCHEMES)))


def _fresh(nlp: Language, name: str, scheme: Optional[str]):
    """The component as the config makes it, without anything learned, or with another scheme."""
    settings = nlp.config.interpolate()["components"][name]
    factory = settings.pop("factory")
    if scheme is not None:
        settings["scheme"] = scheme
    of_initialize = nlp.config["initialize"]["components"]
    kept = of_initialize.get(name)
    nlp.replace_pipe(name, factory, config=settings)
    if kept is not None:  # with the pipe went its labels and gazetteers
        of_initialize[name] = kept
    return nlp.get_pipe(name)


def _annotated(nlp: Language, pipe, examples: list[Example]) -> list[Example]:
    """The examples with what the features read of earlier components."""
    from ..pipeline.initialization import earlier_annotation

    annotate = earlier_annotation(pipe, nlp)
    return [Example(annotate(example), example.reference) for example in examples]


def _walk(pipe, learned: list[Example], held_out: list[Example], l1, l2, iterations: int, weights):
    """Along the path of regularizers; features are looked up once."""
    from ..models.latent_chain import has_hidden
    from ..optimizers.lbfgs import LBFGS

    objective = pipe.training.objective(LBFGS(), learned)
    begins = objective.weights()
    for setting in product(sorted(l1, reverse=True), sorted(l2, reverse=True)):
        if has_hidden(
            pipe.model
        ):  # strong regularizers make the states of a tag alike, and those that are alike stay alike
            objective.assign(begins)
        optimizer = LBFGS(l1=setting[0], l2=setting[1], iterations_per_step=iterations, max_iterations=iterations)
        optimizer.step(objective, key=pipe.name)
        docs = pipe.pipe(example.predicted.copy() for example in held_out)
        found = pipe.score([Example(doc, example.reference) for doc, example in zip(docs, held_out)])
        yield setting, _score(pipe.name, found, weights), int(np.count_nonzero(objective.weights()))


def _score(name: str, found: dict[str, Any], weights: dict[str, Optional[float]]) -> float:
    """RAISES (ValueError): CRF722 if nothing weighs the component's scores."""
    used = {score: weight for score, weight in weights.items() if weight and score in found}
    if not used:
        raise ValueError(Errors.CRF722.format(name=name, scores=", ".join(sorted(found))))
    return sum(weight * (found[score] or 0.0) for score, weight in used.items())


def _component(nlp: Language, name: Optional[str]) -> str:
    """The component to tune. RAISES (ValueError): CRF721 if there is none or no telling which."""
    from ..pipeline.crf_pipe import CRFPipe

    pipes = [pipe for pipe_name, pipe in nlp.pipeline if isinstance(pipe, CRFPipe) and name in (None, pipe_name)]
    if len(pipes) != 1 or not pipes[0].is_linear:
        raise ValueError(Errors.CRF721.format(components=", ".join(nlp.pipe_names) or "none"))
    return pipes[0].name


def _set_optimizer(settings: Config, name: str, best: Trial) -> None:
    """Writes what was found into the block of the optimizer that trains the component."""
    component, training = settings["components"][name], settings["training"]
    if _names(component.get("optimizer"), "spacy_crf.Minibatch.v1"):
        component["optimizer"] = None  # it would step aside
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
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(0 <= value < np.inf for value in values):
        raise ValueError(Errors.CRF720.format(name=name, value=text))
    return list(dict.fromkeys(values))


def _show(trials: list[Trial], best: Trial, folds: int) -> None:
    columns, rows = ("scheme", "l1", "l2", "score", *(["±"] if folds > 1 else []), "non-zero weights"), {}
    for trial in trials:
        deviation = [f"{trial.deviation:.4f}"] if folds > 1 else []
        settings = trial.scheme or "", f"{trial.l1:g}", f"{trial.l2:g}"
        rows[trial] = *settings, f"{trial.score:.4f}", *deviation, f"{trial.n_weights:,}"
    title = f"{folds} folds" if folds > 1 else "held out: the dev corpus"
    print_table(title, columns, rows.values(), n_texts=1, bold=rows[best])
