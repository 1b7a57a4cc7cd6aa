"""`crf tune`: try settings of optimizers, and tag schemes, and compare scores on held-out texts."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from functools import cache, partial
from itertools import chain, groupby, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
import srsly
from spacy.cli._util import Opt
from spacy.language import Language
from spacy.schemas import ConfigSchemaTraining
from spacy.training import Example
from spacy.util import Config, load_model_from_config, registry, resolve_dot_names
from thinc.api import registry as thinc_registry
from wasabi import msg

from .. import checks
from ..errors import Errors
from ..schemes import SCHEMES
from ..types import Ints
from ..whole_files import write_whole
from .shared import (
    WITH_OVERRIDES,
    CodeOption,
    ConfigOption,
    FilesArgument,
    check_writable,
    command,
    import_code,
    print_table,
    progress_bar,
    read_config,
    split_overrides,
    without_component,
)
from .texts import with_corpora

if TYPE_CHECKING:
    from ..optimizers.objective import CRFOptimizer

OWNER = "crf tune"
DEFAULT = "spacy_crf.LBFGS.v1"
PATIENCE = 3  # number of evaluations without a better score after which a training ends


Setting = tuple[str, Any]  # name and value
Values = dict[str, Sequence[Any]]  # values to try, by the name of the setting


class Candidate(NamedTuple):
    """The scheme, the optimizer and the settings of one training."""

    scheme: Optional[str]  # None for the scheme in the config
    optimizer: str  # registered name
    settings: tuple[Setting, ...]  # names and values; the others are those in the config, or the optimizer's own


class Trial(NamedTuple):
    """A candidate with its scores on held-out texts."""

    candidate: Candidate
    score: float  # mean over the folds
    deviation: float  # standard deviation over the folds
    n_weights: int  # weights that are not zero, mean over the folds
    seconds: float  # of all folds


class Task(NamedTuple):
    """Trainings on the texts of one fold, one after the other."""

    fold: int
    candidates: tuple[Candidate, ...]  # with the same scheme and optimizer


class Outcome(NamedTuple):
    """The best evaluation during one training."""

    score: float  # on the held-out texts
    n_weights: int  # weights that are not zero
    seconds: float  # of the whole training


@command("tune", has_code=False, context_settings=WITH_OVERRIDES)
def tune_cli(
    files: FilesArgument = None,
    config: ConfigOption = None,
    output: Optional[Path] = Opt(None, "--output", "-o", help="Write the best config to this file."),
    dev: Optional[Path] = Opt(None, help="Texts for scoring; by default those of the config.", exists=True),
    component: Optional[str] = Opt(None, help="Needed if there are several components."),
    optimizer: Optional[list[str]] = Opt(None, help="Optimizer to try, such as SGD; by default the config's."),
    values: Optional[list[str]] = Opt(None, "--try", help="Values of a setting: l2=0.1,1. By default the usual ones."),
    schemes: Optional[str] = Opt(None, help="Tag schemes of crf_ner to try, separated by commas."),
    folds: int = Opt(1, help="Folds of cross-validation; 1 holds out the dev corpus."),
    iterations: int = Opt(200, help="Maximum number of iterations or epochs of each training."),
    workers: int = Opt(1, min=1, max=1024, help="Number of processes that train at the same time."),
    code: CodeOption = None,
) -> None:
    """Try settings of optimizers, and tag schemes. The command trains with all combinations of the values, each until its
    score on held-out texts stops rising. It counts features once for each fold and scheme."""
    with progress_bar("training") as progress:
        check_writable(output)
        import_code(code)
        paths, overrides = split_overrides(files or ())
        settings = read_config(config, overrides, interpolate=False)
        with with_corpora(settings, paths, dev) as with_texts:
            tuned, trials = tune(
                with_texts.interpolate(),
                dict(map(_parse_values, values or ())),
                optimizers=optimizer or (),
                schemes=[] if schemes is None else [scheme.strip() for scheme in schemes.split(",")],
                component=component,
                folds=folds,
                iterations=iterations,
                workers=workers,
                code=code,
                on_progress=lambda done, total: progress(completed=done, total=total),
            )
    best = max(trials, key=lambda trial: trial.score)
    _show(trials, best, folds)
    if output is not None:
        use(settings, tuned, best.candidate)
        write_whole(output, settings.to_bytes())
        msg.good(f"Best config in {output}")


def tune(
    config: Config,
    values: Optional[Values] = None,
    *,
    optimizers: Sequence[str] = (),
    schemes: Sequence[str] = (),
    component: Optional[str] = None,
    folds: int = 1,
    iterations: int = 200,
    workers: int = 1,
    code: Optional[Path] = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[str, list[Trial]]:
    """Train with all combinations of values, and score held-out texts.

    Other components are not trained: frozen and untrainable components annotate the texts, and gold annotation replaces the rest.

    config (Config): A config for `spacy train`, interpolated. Its corpora are used.
    values (dict[str, Sequence]): Values of settings, each for the optimizers that have the setting. An optimizer without values
        tries those in its attribute `tried`.
    optimizers (Sequence[str]): Registered names, or the middle of them ("SGD"); by default that of the config, or L-BFGS.
    folds (int): Number of parts of the training corpus, each of which is held out once; 1 holds out the dev corpus.
    iterations (int): Maximum number of iterations or epochs of each training.
    workers (int): Number of processes.
    code (Path): A Python file that each process imports.
    on_progress (Callable): Called with the number of finished trainings, and with that of all.
    RETURNS (tuple[str, list[Trial]]): Name of the component, and trials in the order of schemes, optimizers and values.
    RAISES (ValueError): CRF020 for impossible values, folds or iterations; CRF210 for an optimizer that does not fit the loss;
        CRF710 if there is no component to tune, or several and no name; CRF931 if the component has no tag scheme, or a scheme is
        unknown.
    """
    make = partial(Tuner, config.to_str(), component, folds, checks.count(OWNER, "--iterations", iterations))
    tuner = make()
    candidates = tuner.candidates(values or {}, optimizers, schemes)
    # Candidates that differ in l2 alone go to one worker, which trains each from the result of the previous one
    tasks = []
    for _, with_scheme in groupby(candidates, key=lambda candidate: candidate.scheme):
        chains = _chains(list(with_scheme))
        tasks += [Task(fold, tuple(chain)) for fold, chain in product(range(folds), chains)]
    outcomes_of: dict[Candidate, list[Outcome]] = {candidate: [] for candidate in candidates}
    done = 0
    total = len(candidates) * folds
    on_progress(done, total)
    if workers == 1:
        results: Iterable[tuple[Task, list[Outcome]]] = ((task, tuner(task)) for task in tasks)
    else:
        from ..workers.executors import Processes

        results = Processes(min(workers, len(tasks))).run(partial(_make_in_worker, make, code), tasks)
    for task, outcomes in results:
        for candidate, outcome in zip(task.candidates, outcomes):
            outcomes_of[candidate].append(outcome)
        done += len(outcomes)
        on_progress(done, total)
    trials = []
    for candidate, outcomes in outcomes_of.items():
        # Sorted, so that rounding errors do not depend on which worker was first
        scores, n_weights, seconds = np.array(sorted(outcomes)).T  # each [folds]
        trials.append(Trial(candidate, scores.mean(), scores.std(), round(n_weights.mean()), seconds.sum()))
    return tuner.name, trials


def _chains(candidates: list[Candidate]) -> list[list[Candidate]]:
    """Group candidates of one scheme that differ in l2 alone. In a group the greatest l2 comes first: each training can begin
    where the previous training ended."""
    chains: dict[tuple[object, ...], list[Candidate]] = {}
    for candidate in sorted(candidates, key=lambda candidate: -dict(candidate.settings).get("l2", 0.0)):
        other_settings = [(name, value) for name, value in candidate.settings if name != "l2"]
        chains.setdefault((candidate.optimizer, *other_settings), []).append(candidate)
    return list(chains.values())


def _make_in_worker(make: Callable[[], "Tuner"], code: Optional[Path]) -> "Tuner":
    """Make the tuner of a worker, whose process has not imported `code`."""
    import_code(code)
    return make()


class Tuner:
    """Trains one component of a config with candidates, and scores held-out texts.

    config (str): Text of the config, interpolated.
    component, folds, iterations: See `tune`.
    """

    def __init__(self, config: str, component: Optional[str], folds: int, iterations: int):
        from ..pipeline.pipe import LearningPipe
        from ..pipeline.tokenizer import CharacterTokenizer

        nlp = load_model_from_config(Config().from_str(config), auto_fill=True)
        pipes = [pipe for name, pipe in nlp.pipeline if isinstance(pipe, LearningPipe) and component in (None, name)]
        if len(pipes) != 1 or not pipes[0].is_linear:
            wanted = "to tune: name one that scores sparse features with --component"
            raise without_component(nlp, wanted, component)
        self.name: str = pipes[0].name
        self._nlp = nlp
        self._folds = folds
        self._iterations = iterations
        interpolated = nlp.config.interpolate()
        self._training = registry.resolve(interpolated["training"], schema=ConfigSchemaTraining)
        names = [self._training["train_corpus"], self._training["dev_corpus"]]
        train_corpus, dev_corpus = resolve_dot_names(interpolated, names)
        if isinstance(nlp.tokenizer, CharacterTokenizer):
            # Components read the tokens that it finds. It also learns from texts that folds hold out
            with nlp.tokenizer.learning(), nlp.select_pipes(enable=[]):
                nlp.initialize(lambda: _read_corpus(nlp, train_corpus, names[0]))
            nlp.config["initialize"]["tokenizer"] = {}  # so that it stays as it is
        self._examples = _read_corpus(nlp, train_corpus, names[0])
        self._dev_examples = _read_corpus(nlp, dev_corpus, names[1]) if folds == 1 else []
        checks.count(OWNER, "--folds", folds, most=len(self._examples))
        # Each fold counts the features of its own training texts alone
        (nlp.config["initialize"]["components"].get(self.name) or {}).pop("corpus", None)
        # The optimizer of the component goes before that of [training]
        blocks = interpolated["components"][self.name].get("optimizer"), interpolated["training"]["optimizer"]
        tunable = [block for block in blocks if block and block["@optimizers"] in _optimizers()]
        self._block: dict[str, Any] = dict(tunable[0]) if tunable else {"@optimizers": DEFAULT}
        self._fold: Optional[_Fold] = None  # of the last task; the next task may be on the same texts
        self._fold_of: Optional[Ints] = None  # [N] the fold that holds out each text, once they are drawn

    def candidates(self, values: Values, optimizers: Sequence[str], schemes: Sequence[str]) -> list[Candidate]:
        """All combinations of schemes, optimizers and values. Arguments and errors are those of `tune`."""
        for scheme in schemes:
            if "scheme" not in self._nlp.config["components"][self.name] or scheme not in SCHEMES:
                raise ValueError(Errors.CRF931.format(name=self.name, scheme=scheme, known=", ".join(SCHEMES)))
        names = list(dict.fromkeys(map(_registered, optimizers))) or [self._block["@optimizers"]]
        settings_of = {name: _settings_of(_optimizers()[name]) for name in names}
        for setting in values:
            must = "a setting of " + ", or ".join(f"{name} ({', '.join(own)})" for name, own in settings_of.items())
            has_setting = any(setting in settings for settings in settings_of.values())
            checks.expect(has_setting, OWNER, "--try", setting, must)
        candidates = []
        for scheme, name in product(list(dict.fromkeys(schemes)) or [None], names):
            fitting = {setting: tried for setting, tried in values.items() if setting in settings_of[name]}
            grid = fitting or _optimizers()[name].tried()
            for combination in product(*grid.values()):
                candidates.append(Candidate(scheme, name, tuple(zip(grid, combination))))
        for candidate in candidates:  # before anything is trained
            self._nlp.get_pipe(self.name).check_optimizer(self._optimizer(candidate))
        return candidates

    def __call__(self, task: Task) -> list[Outcome]:
        """Train with the candidates of a task, one after the other."""
        nlp = self._nlp
        # Other components that could be trained have no weights: gold annotation replaces what they would predict
        others = [name for name, pipe in nlp.pipeline if name != self.name and getattr(pipe, "is_trainable", False)]
        with nlp.select_pipes(disable=[*others, *self._training["frozen_components"]]):
            first = task.candidates[0]
            if self._fold is None or (self._fold.scheme, self._fold.number) != (first.scheme, task.fold):
                learned, held_out = self._split(task.fold)
                # Initializing prepares the texts for this optimizer
                nlp.config["training"]["optimizer"] = {"@optimizers": first.optimizer}
                weights = self._training["score_weights"]
                self._fold = _Fold(nlp, self.name, first.scheme, task.fold, learned, held_out, weights)
            return list(self._fold.train(map(self._optimizer, task.candidates), self._iterations))

    def _split(self, fold: int) -> tuple[list[Example], list[Example]]:
        """The texts to learn from, and the held-out texts, from the folds that `crf fit` draws. A single fold has the training
        corpus and holds out the dev corpus."""
        from ..folds import draw_folds

        if self._folds == 1:
            return self._examples, self._dev_examples
        if self._fold_of is None:
            self._fold_of = draw_folds([example.reference for example in self._examples], self._folds).fold_of
        learned = []
        held_out = []
        for example, held_by in zip(self._examples, self._fold_of):
            (held_out if held_by == fold else learned).append(example)
        return learned, held_out

    def _optimizer(self, candidate: Candidate) -> "CRFOptimizer":
        """Make the optimizer of a candidate. If the config has the same optimizer, its other settings are those of the config."""
        make = _optimizers()[candidate.optimizer]
        block = self._block if self._block["@optimizers"] == candidate.optimizer else {}
        settings = {key: value for key, value in block.items() if not key.startswith("@")}
        if "max_iterations" in _settings_of(make):
            settings.update(iterations_per_step=10, max_iterations=self._iterations)
        optimizer = make(**{**settings, **dict(candidate.settings)})
        if optimizer.averages is not None:
            optimizer.assigns_averages = True  # each evaluation scores the averages, as at the end of a training
        return optimizer


class _Fold:
    """Trains a component with one scheme on all texts that one fold does not hold out. Features are counted once.

    nlp (Language): The pipeline, in which an untrained component replaces the component `name`.
    scheme (str), number (int): The scheme, None for the scheme in the config; and the fold.
    learned, held_out (list[Example]): The texts to learn from, and those to score.
    weights (dict[str, Optional[float]]): The weight of each score.
    """

    def __init__(
        self,
        nlp: Language,
        name: str,
        scheme: Optional[str],
        number: int,
        learned: list[Example],
        held_out: list[Example],
        weights: dict[str, Optional[float]],
    ):
        from ..pipeline.initialization import earlier_annotation

        self.scheme = scheme
        self.number = number
        self._score_weights = weights
        self._pipe = _put_untrained(nlp, name, scheme)
        nlp.initialize(lambda: learned)
        # Features may read the annotation of earlier components
        annotate = earlier_annotation(self._pipe, nlp)
        self._learned = [Example(annotate(example), example.reference) for example in learned]
        self._held_out = [Example(annotate(example), example.reference) for example in held_out]
        # Objectives and the variables of the untrained component, by whether the optimizer learns from sequence after sequence
        self._objectives: dict[bool, tuple[Any, Any]] = {}

    def train(self, optimizers: "Iterable[CRFOptimizer]", iterations: int) -> Iterator[Outcome]:
        """Train with each optimizer until the score on the held-out texts stops rising. Yields the best evaluations."""
        from ..optimizers.batch import BatchOptimizer

        pipe = self._pipe
        objective = None
        for optimizer in optimizers:
            started = time.perf_counter()
            # A minimum is found sooner from the minimum of the previous optimizer. But where a tag has several states, strong
            # regularizers make these equal, and equal states stay equal
            continues = isinstance(optimizer, BatchOptimizer) and pipe.model.attrs["node"].traits.names_states
            if objective is None or not continues:
                objective = self._untrained_objective(optimizer)
            best = -np.inf
            n_weights = 0
            waited = 0  # evaluations since the best score
            while waited < PATIENCE and optimizer.iterations_made(pipe.name) < iterations:
                optimizer.step(objective, key=pipe.name)
                score = self._score()
                waited = 0 if score > best else waited + 1
                if score >= best:  # of equal scores, the last has the weights of a longer training
                    best = score
                    n_weights = int(np.count_nonzero(objective.weights()))
                if optimizer.stop_reason(pipe.name) is not None:
                    break
            yield Outcome(best, n_weights, time.perf_counter() - started)

    def _untrained_objective(self, optimizer: "CRFOptimizer") -> Any:
        """The objective that fits an optimizer, with the weights of the untrained component."""
        key = optimizer.wants_sequences
        if key not in self._objectives:
            # Objectives differ in what a variable stands for, so each keeps its own variables of the untrained component
            for other, untrained in self._objectives.values():
                other.assign(untrained)
            new = self._pipe.training.objective(optimizer, self._learned)
            self._objectives[key] = new, new.weights()
        objective, untrained = self._objectives[key]
        objective.assign(untrained)
        return objective

    def _score(self) -> float:
        """The weighted sum of the scores on the held-out texts. RAISES (ValueError): CRF722 if no score of the component has a
        weight."""
        pipe = self._pipe
        docs = pipe.pipe(example.predicted.copy() for example in self._held_out)
        scores = pipe.score([Example(doc, example.reference) for doc, example in zip(docs, self._held_out)])
        weights = {name: weight for name, weight in self._score_weights.items() if weight and name in scores}
        if not weights:
            raise ValueError(Errors.CRF722.format(name=pipe.name, scores=", ".join(sorted(scores))))
        return sum(weight * (scores[name] or 0.0) for name, weight in weights.items())


def _put_untrained(nlp: Language, name: str, scheme: Optional[str]) -> Any:
    """Put an untrained component in the place of another one, with the same settings but without its own optimizer.

    scheme (str): The scheme of the untrained component; None for the same scheme.
    RETURNS (LearningPipe): The untrained component.
    """
    settings = nlp.config.interpolate()["components"][name]
    factory = settings.pop("factory")
    settings["optimizer"] = None
    if scheme is not None:
        settings["scheme"] = scheme
    blocks = nlp.config["initialize"]["components"]
    initialize = blocks.get(name)
    nlp.replace_pipe(name, factory, config=settings)
    # spaCy has removed labels and gazetteers with the pipe
    if initialize is not None:
        blocks[name] = initialize
    return nlp.get_pipe(name)


def _read_corpus(nlp: Language, corpus: Callable[[Language], Iterable[Example]], name: str) -> list[Example]:
    """Read a corpus. RAISES (ValueError): CRF701 if it can't be read, CRF708 if it is empty."""
    try:
        examples = list(corpus(nlp))
    except ValueError as error:
        # spaCy's own errors, which do not name the corpus
        raise ValueError(Errors.CRF701.format(place=f"The corpus [{name}]", reason=error)) from error
    if not examples:
        raise ValueError(Errors.CRF708.format(path=f"[{name}]"))
    return examples


# ------------------------------------------------------------------------------------------------ what the command reads


@cache
def _optimizers() -> "dict[str, type[CRFOptimizer]]":
    """The optimizers that can be tuned, by their registered names."""
    from ..optimizers.objective import CRFOptimizer

    # `Any`, since thinc annotates this registry of catalogue as a decorator
    registered: Any = thinc_registry.optimizers
    functions = sorted(registered.get_all().items())
    # Ours are registered as classes, others as functions
    return {name: made for name, made in functions if isinstance(made, type) and issubclass(made, CRFOptimizer)}


def _settings_of(optimizer: "type[CRFOptimizer]") -> list[str]:
    return [setting.name for setting in fields(optimizer)]


def _registered(name: str) -> str:
    """Complete the name of an optimizer, such as "SGD". RAISES (ValueError): CRF020 if there is no such optimizer."""
    matches = [registered for registered in _optimizers() if name in (registered, _short(registered))]
    must = "one of " + ", ".join(map(_short, _optimizers()))
    checks.expect(matches, OWNER, "--optimizer", name, must)
    return matches[-1]  # the newest version


def _short(registered: str) -> str:
    """The registered name without package and version."""
    return registered.split(".")[1]


def _parse_values(text: str) -> tuple[str, list[Any]]:
    """Parse a setting and the values to try. RAISES (ValueError): CRF020 for anything but NAME=VALUE,VALUE."""
    name, _, values = text.partition("=")
    try:
        parsed: Any = srsly.json_loads(f"[{values}]")
    except ValueError:
        parsed = []
    must = 'a setting and its values between commas, such as l2=0.1,1 (texts in quotes: a="b","c")'
    checks.expect(name and parsed, OWNER, "--try", text, must)
    return name.strip(), list(dict.fromkeys(parsed))


# --------------------------------------------------------------------------------------------- what the command writes


def _show(trials: list[Trial], best: Trial, folds: int) -> None:
    """Print a table of the trials. Schemes and optimizers have columns if there are several."""
    candidates = [trial.candidate for trial in trials]
    texts: dict[str, list[str]] = {}  # cells of each column, by the title of the column
    schemes = [candidate.scheme or "" for candidate in candidates]
    optimizers = [_short(candidate.optimizer) for candidate in candidates]
    if len(set(schemes)) > 1:
        texts["scheme"] = schemes
    if len(set(optimizers)) > 1:
        texts["optimizer"] = optimizers
    columns: dict[str, list[str]] = {}
    settings = chain.from_iterable(candidate.settings for candidate in candidates)
    for name in dict.fromkeys(name for name, _ in settings):  # each name once
        values = [dict(candidate.settings).get(name, "") for candidate in candidates]
        columns[name] = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
    columns["score"] = [f"{trial.score:.4f}" for trial in trials]
    if folds > 1:
        columns["±"] = [f"{trial.deviation:.4f}" for trial in trials]
    columns["non-zero weights"] = [f"{trial.n_weights:,}" for trial in trials]
    columns["seconds"] = [f"{trial.seconds:.1f}" for trial in trials]
    rows = list(zip(*texts.values(), *columns.values()))
    title = f"{folds} folds" if folds > 1 else "held out: the dev corpus"
    print_table(title, [*texts, *columns], rows, n_texts=len(texts), bold=rows[trials.index(best)])


def use(config: Config, name: str, candidate: Candidate) -> None:
    """Write the scheme of a candidate, and the settings of its optimizer, to a config for the component `name`, with the batcher
    that an optimizer of [training] needs."""
    component = config["components"][name]
    training = config["training"]
    if candidate.scheme is not None:
        component["scheme"] = candidate.scheme
    if _is_of(component.get("optimizer"), "spacy_crf.Minibatch.v1"):
        # So that the optimizer of [training] trains the component
        component["optimizer"] = None
    owner = training  # the block that holds the optimizer
    has_others = len(config["nlp"]["pipeline"]) > 1
    if component.get("optimizer") or (has_others and not _is_of(training.get("optimizer"), candidate.optimizer)):
        owner = component  # the other components keep their optimizer
    if not _is_of(owner.get("optimizer"), candidate.optimizer):
        owner["optimizer"] = {"@optimizers": candidate.optimizer}
        if owner is training:
            # Optimizers of this package need the whole corpus in a batch
            training["batcher"] = {"@batchers": "spacy_crf.full_batch.v1"}
    owner["optimizer"].update(candidate.settings)


def _is_of(block: object, optimizer: str) -> bool:
    return isinstance(block, dict) and block.get("@optimizers") == optimizer
