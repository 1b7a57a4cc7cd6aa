"""Train on all annotated texts, with settings that cross-validation chooses: no annotation is set aside as a dev set.

For each fold, every candidate (l1, l2, word clusters or none) is trained on the other folds and scored on the held-out one.
Candidates that fall behind leave the race (Maron & Moore 1994, "Hoeffding races"). The scores over all folds choose the winner
and its threshold; then the winner is trained on all texts.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import NamedTuple, Optional, Union, cast

import numpy as np
from numpy.typing import NDArray
from spacy.language import Language
from spacy.schemas import ConfigSchemaTraining
from spacy.training import Example
from spacy.util import Config, load_model_from_config, registry

from . import checks
from .errors import Errors, announcements, counted, no_component
from .features.clusters import PACKAGE, has_packaged_clusters
from .optimizers.lbfgs import LBFGS
from .pipeline.corpora import Corpus
from .pipeline.initialization import earlier_annotation
from .pipeline.pipe import LearningPipe
from .pipeline.prediction import CRFPipe
from .pipeline.thresholds import Point, best, measure, shrunk, use
from .report.suspects import Suspect, judged_by, ranked
from .types import Settings

FOLDS = 5
L1 = (0.0, 0.05)
L2 = (0.1, 0.03)
ITERATIONS = 300
# A candidate starts near its optimum, where a gain of 1 % in ten iterations would not show convergence
DELTA = 2e-3
PRESETS = ("spacy_crf.ner_features.v1", "spacy_crf.tagger_features.v1")
# Callbacks of `spacy train` that choose what is chosen here
CHOOSE_TOO = ("spacy_crf.fit_min_prob.v1", "spacy_crf.refit.v1")
CLUSTER_TEMPLATES = (
    "cluster[-2..2]",
    "cluster4[-1..1]",
    "cluster6[-1..1]",
    "cluster10[-1..1]",
    "cluster[-1]|cluster[0]",
    "cluster[0]|cluster[1]",
)
# Least gain of F1 for which a threshold is used: decoding by probabilities takes longer than the best path
LEAST_GAIN = 0.005
DRAWS = 1000
LEVEL = 0.95


class Candidate(NamedTuple):
    """Settings for the training of a component."""

    clusters: bool  # whether templates read the word clusters of spacy-lookups-data
    l1: float
    l2: float


class Trial(NamedTuple):
    """The F1 of a candidate on the held-out texts; for a tagger the accuracy."""

    candidate: Candidate
    f: float
    min_prob: Optional[float]  # None for the best path
    folds: int  # number of folds that the candidate took part in


class Interval(NamedTuple):
    """A value and its bootstrap interval over texts (95 %)."""

    value: float
    low: float
    high: float


class Fitted(NamedTuple):
    """The training of a component on all texts, with its scores by cross-validation."""

    name: str
    texts: int
    chosen: Trial
    f: Interval
    trials: list[Trial]  # the best first
    held_out: list[Example]  # each text with the prediction of a model trained without it, in the order of the texts
    suspects: list[Suspect]  # texts whose annotation looks wrong to a model trained without them

    def expectation(self) -> str:
        """The expected F1 of the component, in words."""
        f, low, high = (100 * share for share in self.f)
        return f"F1 {f:.1f} on texts that it had not seen (95 %: {low:.1f} to {high:.1f})"


@dataclass
class _Judged:
    """Results of one candidate, summed over the folds."""

    counts: NDArray[np.float64]  # [N, 3] annotated, found and right mentions of the best path in each held-out text
    points: Optional[list[Point]] = None  # counts for each threshold; None for components that find no spans
    pipes: list[LearningPipe] = field(default_factory=list)  # the trained component of each fold

    def best(self) -> tuple[float, Optional[float]]:
        """F1 and `min_prob` of the better decoding: by a threshold of probabilities, or by the best path (`min_prob` is None)."""
        path = _f(self.counts.sum(axis=0))
        if self.points is not None:
            min_prob = shrunk(self.points)
            f = next(point.f() for point in self.points if point.min_prob == best(self.points).min_prob)
            if f >= path + LEAST_GAIN:
                return f, min_prob
        return path, None


def fit(
    config: Config,
    read: Callable[[Language], Sequence[Example]],
    *,
    folds: int = FOLDS,
    l1: Sequence[float] = L1,
    l2: Sequence[float] = L2,
    words: bool = True,
    thresholds: bool = True,
    seed: int = 0,
    on_fold: Callable[[], None] = lambda: None,
) -> tuple[Language, list[Fitted]]:
    """Train the components of a config on all texts, each with the settings that win the cross-validation.

    config (Config): A config for `spacy train`, interpolated. Its corpora are not read.
    read (Callable[[Language], Sequence[Example]]): Reads the annotated texts. Each text is held out as a whole.
    l1, l2 (Sequence[float]): The candidates are all pairs of these values, and the pair in the config.
    words (bool): Whether to try word clusters from spacy-lookups-data, if the package has the language and the config names no
        clusters.
    thresholds (bool): Whether to try thresholds of probabilities. They gain F1 by leaving out doubtful entities; where every
        token belongs to a field, such as in addresses, fewer texts are right as a whole.
    on_fold (Callable[[], None]): Called after each fold of each component, and after the component's last training.
    RETURNS (tuple[Language, list[Fitted]]): The pipeline, whose config has the chosen settings, and a report on each component.
    RAISES (ValueError): CRF770 for fewer than two folds, or more folds than texts; CRF771 and CRF772 for components that cannot
        be fitted.
    """
    training = dict(config.get("training") or {})
    if (training.get("before_to_disk") or {}).get("@callbacks") in CHOOSE_TOO:
        config = Config({**config, "training": {**training, "before_to_disk": None}})
    nlp = load_model_from_config(config, auto_fill=True)
    names = _components(nlp, config)
    examples = list(read(nlp))
    if not 2 <= folds <= len(examples):
        raise ValueError(Errors.CRF770.format(folds=folds, texts=counted(len(examples), "text")))
    # The same folds for all components: a component reads what others predict
    fold_of = draw_folds(len(examples), folds, seed)
    fitted = []
    for n, name in enumerate(names):
        # A component reads what components before it predict
        with nlp.select_pipes(disable=names[n + 1 :]):
            race = _Race(nlp, name, _candidates(nlp, name, l1, l2, words), thresholds)
            for fold in range(folds):
                race.run(examples, fold_of == fold)
                on_fold()
            fitted.append(race.finish(examples, fold_of))
            on_fold()
    return nlp, fitted


def draw_folds(n_texts: int, folds: int, seed: int = 0) -> NDArray[np.int64]:
    """The fold that holds out each text: int64[N]."""
    fold_of = np.empty(n_texts, dtype=np.int64)
    fold_of[np.random.default_rng(seed).permutation(n_texts)] = np.arange(n_texts) % folds
    return fold_of


def refit(
    train: Union[str, Path],
    dev: Optional[Union[str, Path]] = None,
    folds: int = FOLDS,
    words: bool = True,
    seed: int = 0,
) -> Callable[[Language], Language]:
    """Callback for ``[training.before_to_disk]`` (``spacy_crf.refit.v1``): `spacy train` saves the pipeline that `fit` trains on
    the texts of train and dev. `fit` runs once, when `spacy train` first saves.

    train (Path): Texts, a .spacy file or a folder of them, such as ${paths.train}.
    dev (Path): More texts, such as ${paths.dev}; none by default.
    folds (int): Number of folds; each is held out once.
    words (bool): Whether to try word clusters from spacy-lookups-data.
    seed (int): Random seed that draws the folds.
    """
    owner = "spacy_crf.refit.v1"
    folds = checks.count(owner, "folds", folds)
    words = checks.flag(owner, "words", words)
    fitted: list[Language] = []

    def read(nlp: Language) -> list[Example]:
        paths = [path for path in (train, dev) if path is not None]
        return [example for path in paths for example in Corpus(Path(path))(nlp)]

    def save(nlp: Language) -> Language:
        if not fitted:
            made, found = fit(nlp.config.interpolate(), read, folds=folds, words=words, seed=seed)
            fitted.append(made)
            made.meta["performance"] = performance(made, found)
            for each in found:
                announcements.info(
                    "spacy_crf.refit.v1: saving %s, trained on all texts. %s", each.name, each.expectation()
                )
        return fitted[0]

    return save


def performance(nlp: Language, fitted: Iterable[Fitted]) -> Settings:
    """The scores of components on held-out texts, for the meta.json of a pipeline."""
    scores: Settings = {}
    for each in fitted:
        scores.update(nlp.get_pipe(each.name).score(each.held_out))
        scores[f"{each.name}_cross_validation"] = {**each.f._asdict(), "texts": each.texts}
    return scores


def _components(nlp: Language, config: Config) -> list[str]:
    """Names of the components to fit.

    RAISES (ValueError): CRF771 for a component that cannot be fitted, CRF772 for a foreign component that needs training.
    """
    training = registry.resolve(nlp.config.interpolate()["training"], schema=ConfigSchemaTraining)
    sourced = [name for name, block in config["components"].items() if "source" in block]
    names = []
    for name, pipe in nlp.pipeline:
        if name in (*training["frozen_components"], *sourced):
            continue
        if isinstance(pipe, LearningPipe):
            if not pipe.is_linear or not _lbfgs(nlp, name) or not pipe.labelled:
                raise ValueError(Errors.CRF771.format(name=name))
            names.append(name)
        elif getattr(pipe, "is_trainable", False):
            raise ValueError(Errors.CRF772.format(name=name))
    if not names:
        raise no_component("to fit", nlp.pipe_names)
    return names


def _lbfgs(nlp: Language, name: str) -> Settings:
    """The block of the L-BFGS optimizer that trains a component, its own or that of [training]; empty if another optimizer
    trains it."""
    config = nlp.config.interpolate()
    block = config["components"][name].get("optimizer") or config["training"]["optimizer"]
    if block.get("@optimizers") == "spacy_crf.Minibatch.v1":
        block = config["training"]["optimizer"]
    return dict(block) if block.get("@optimizers") == "spacy_crf.LBFGS.v1" else {}


def _candidates(nlp: Language, name: str, l1: Sequence[float], l2: Sequence[float], words: bool) -> list[Candidate]:
    """All candidates, with and without clusters; in each group the strongest regularization first, since each training starts
    with the weights of the previous one."""
    own = LBFGS(**{key: value for key, value in _lbfgs(nlp, name).items() if key in ("l1", "l2")})
    pairs = sorted({*product(l1, l2), (own.l1, own.l2)}, key=lambda pair: (pair[0], -pair[1]))
    with_clusters = [False, True] if words and _can_cluster(nlp, name) else [False]
    return [Candidate(clusters, *pair) for clusters, pair in product(with_clusters, pairs)]


def _can_cluster(nlp: Language, name: str) -> bool:
    """Whether a component can use the packaged clusters, and names no clusters itself."""
    if not has_packaged_clusters(str(nlp.lang)):
        return False
    features = _features(nlp.config["components"][name])
    given = nlp.config["initialize"]["components"].get(name) or {}
    has_own = given.get("clusters") is not None or (given.get("words") or {}).get("tables") is not None
    return not has_own and features.get("@misc") in PRESETS


def _features(component: Settings) -> Settings:
    """The block of the features of tokens in the block of a component; empty if there is none."""
    model = component.get("model") or {}
    return (model.get("emissions") or {}).get("features") or {}


class _Race:
    """The cross-validation of one component: a race of its candidates."""

    def __init__(self, nlp: Language, name: str, candidates: list[Candidate], thresholds: bool):
        self._nlp = nlp
        self._name = name
        self._thresholds = thresholds
        self._settings = nlp.config.interpolate()["components"][name]
        self._of_initialize = nlp.config["initialize"]["components"].get(name) or {}
        self._judged = {candidate: _Judged(np.zeros((0, 3))) for candidate in candidates}
        self._running = list(candidates)
        # The component with the labels of all texts, with and without clusters
        self._untrained: dict[bool, LearningPipe] = {}

    def run(self, examples: list[Example], held: NDArray[np.bool_]) -> None:
        """Train the candidates without the held-out texts, and score them on these texts."""
        for clusters in sorted({candidate.clusters for candidate in self._running}):
            if clusters not in self._untrained:
                self._untrained[clusters] = self._initialized(clusters, examples)
            pipe = copy.deepcopy(self._untrained[clusters])
            seen = self._annotated(pipe, examples, ~held)
            unseen = self._annotated(pipe, examples, held)
            pipe.initialize(lambda seen=seen: seen, nlp=self._nlp, labels=list(pipe.labels))
            for candidate in self._trained(pipe, seen, [c for c in self._running if c.clusters == clusters]):
                judged = self._judged[candidate]
                judged.pipes.append(copy.deepcopy(pipe))
                judged.counts = np.concatenate([judged.counts, _counts(pipe, _predicted(pipe, unseen))])
                if self._thresholds and _finds_spans(pipe):
                    judged.points = _added(judged.points, measure(pipe, unseen))
        self._drop()

    def finish(self, examples: list[Example], fold_of: NDArray[np.int64]) -> Fitted:
        """Train the winner on all texts, and write its settings to the pipeline's config."""
        trials = [Trial(c, *judged.best(), len(judged.pipes)) for c, judged in self._judged.items()]
        trials.sort(key=lambda trial: (trial.candidate in self._running, trial.f), reverse=True)
        chosen = trials[0]
        held_out, suspects = self._held_out(chosen, examples, fold_of)
        f = _interval(_counts(self._untrained[chosen.candidate.clusters], held_out))
        # Of the untrained components, the pipeline holds that with clusters, if there is one.
        is_held = chosen.candidate.clusters == max(self._untrained)
        pipe = self._nlp.get_pipe(self._name) if is_held else self._initialized(chosen.candidate.clusters, examples)
        owner = self._optimizer_block()
        owner.update(l1=chosen.candidate.l1, l2=chosen.candidate.l2)
        others = [name for name in self._nlp.pipe_names if name != self._name]
        self._nlp.update(examples, sgd=self._optimizer(chosen.candidate), exclude=others, annotates=others)
        if chosen.min_prob is not None:
            use(self._nlp, pipe, chosen.min_prob)
        return Fitted(self._name, len(examples), chosen, f, trials, held_out, suspects)

    def _initialized(self, clusters: bool, examples: list[Example]) -> LearningPipe:
        """Put a new component into the pipeline, initialized with the labels and features of the examples but untrained."""
        nlp = self._nlp
        name = self._name
        settings = copy.deepcopy(self._settings)
        of_initialize = {key: value for key, value in self._of_initialize.items() if key not in ("corpus", "shards")}
        if clusters:
            of_initialize["clusters"] = PACKAGE
            features = _features(settings)
            features["extra"] = [*(features.get("extra") or []), *CLUSTER_TEMPLATES]
        nlp.replace_pipe(name, settings.pop("factory"), config=settings)
        # spaCy has removed it with the pipe
        nlp.config["initialize"]["components"][name] = of_initialize
        with nlp.select_pipes(enable=name):
            nlp.initialize(lambda: examples)
        return cast(LearningPipe, nlp.get_pipe(name))

    def _annotated(self, pipe: LearningPipe, examples: list[Example], chosen: NDArray[np.bool_]) -> list[Example]:
        annotate = earlier_annotation(pipe, self._nlp)
        return [Example(annotate(examples[n]), examples[n].reference) for n in np.flatnonzero(chosen)]

    def _trained(self, pipe: LearningPipe, examples: list[Example], candidates: list[Candidate]) -> Iterator[Candidate]:
        """Train `pipe` with each candidate, from the weights of the previous one. Yields each candidate after its training."""
        objective = pipe.training.objective(LBFGS(), examples)
        begins = objective.weights()
        for candidate in candidates:
            # Strong regularizers make states equal for good
            if not pipe.model.attrs["node"].traits.names_states:
                objective.assign(begins)
            self._optimizer(candidate).step(objective, key=pipe.name)
            yield candidate

    def _optimizer_block(self) -> Settings:
        """The block of the config that holds the settings of the optimizer, to write to."""
        own = self._nlp.config["components"][self._name].get("optimizer")
        return own if own and own["@optimizers"] == "spacy_crf.LBFGS.v1" else self._nlp.config["training"]["optimizer"]

    def _optimizer(self, candidate: Candidate) -> LBFGS:
        settings = {key: value for key, value in _lbfgs(self._nlp, self._name).items() if not key.startswith("@")}
        settings.update(l1=candidate.l1, l2=candidate.l2, iterations_per_step=ITERATIONS)
        settings["delta"] = min(settings.get("delta", DELTA), DELTA)
        return LBFGS(**settings)

    def _drop(self) -> None:
        """Drop the candidates whose F1 is more than one standard error of the difference below the best F1, and after each fold
        at least half of those that are left (successive halving, Jamieson & Talwalkar 2016)."""
        f = {candidate: self._judged[candidate].best()[0] for candidate in self._running}
        ranked = sorted(f, key=f.__getitem__)
        top = ranked[-1]
        shares = {candidate: _shares(self._judged[candidate].counts) for candidate in self._running}
        good = [c for c in ranked[len(f) // 2 :] if f[c] >= f[top] - np.linalg.norm(shares[top] - shares[c])]
        self._running = [candidate for candidate in self._running if candidate in good]

    def _held_out(
        self, chosen: Trial, examples: list[Example], fold_of: NDArray[np.int64]
    ) -> tuple[list[Example], list[Suspect]]:
        """Predictions of the winner for each text that it was trained without, and texts whose annotation looks wrong to it."""
        found = {}
        suspects = []
        judged = self._judged[chosen.candidate]
        of_folds = np.split(judged.counts, np.cumsum(np.bincount(fold_of))[:-1])
        for fold, (pipe, counts) in enumerate(zip(judged.pipes, of_folds)):
            unseen = self._annotated(pipe, examples, fold_of == fold)
            if isinstance(pipe, CRFPipe):
                # Most texts are predicted as they are annotated, and no suspects
                wrong = np.flatnonzero((counts != counts[:, :1]).any(axis=1))
                suspects += judged_by(pipe, [unseen[n] for n in wrong])
            pipe.cfg["confidence"] = _finds_spans(pipe)
            if chosen.min_prob is not None:
                pipe.cfg.update(pipe.threshold_settings(chosen.min_prob))
            found.update(zip(np.flatnonzero(fold_of == fold), _predicted(pipe, unseen)))
        return [found[n] for n in range(len(examples))], ranked(suspects)


def _predicted(pipe: LearningPipe, examples: list[Example]) -> list[Example]:
    docs = pipe.pipe(example.predicted.copy() for example in examples)
    return [Example(doc, example.reference) for doc, example in zip(docs, examples)]


def _finds_spans(pipe: LearningPipe) -> bool:
    return pipe.annotation.scores_prefix.startswith(("ents", "spans_"))


def _counts(pipe: LearningPipe, examples: list[Example]) -> NDArray[np.float64]:
    """Count the annotated, found and right mentions of each text. RETURNS (float64[N, 3])"""
    counts = np.zeros((len(examples), 3))
    for of_text, example in zip(counts, examples):
        in_gold, in_prediction = pipe.annotation.mentions(example)
        gold = {mention.place for mention in in_gold}
        found = {mention.place for mention in in_prediction}
        of_text[:] = len(gold), len(found), len(gold & found)
    return counts


def _f(counts: NDArray[np.float64]) -> float:
    gold, found, right = counts
    return float(2 * right / (gold + found)) if gold + found else 0.0


def _shares(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """How much each text moves F1 = 2 right / (gold + found), by the delta method:

        share[n] = (2 right[n] - F1 · (gold[n] + found[n])) / (gold + found)

    |shares| is the standard error of F1, and |shares - others| that of the difference between the F1 of two candidates.

    counts (float64[N, 3]): Annotated, found and right mentions of each text.
    RETURNS (float64[N])
    """
    gold, found, right = counts.T
    total = gold.sum() + found.sum()
    return (2 * right - _f(counts.sum(axis=0)) * (gold + found)) / max(1.0, total)


def _interval(counts: NDArray[np.float64]) -> Interval:
    """F1 of all texts with its bootstrap interval over texts, by percentiles (Efron & Tibshirani 1993, chapter 13)."""
    n = len(counts)
    # Each draw weighs texts as drawing N of N with replacement does
    drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=DRAWS) @ counts
    low, high = np.quantile([_f(row) for row in drawn], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(_f(counts.sum(axis=0)), float(low), float(high))


def _added(points: Optional[list[Point]], more: list[Point]) -> list[Point]:
    """Add the counts of the same thresholds on two sets of texts."""
    if points is None:
        return more
    added = []
    for one, other in zip(points, more):
        labels = {*one.by_label, *other.by_label}
        none: Counter[str] = Counter()
        by_label = {name: one.by_label.get(name, none) + other.by_label.get(name, none) for name in labels}
        sums = (
            one.found + other.found,
            one.expected_right + other.expected_right,
            one.expected_gold + other.expected_gold,
        )
        added.append(Point(one.min_prob, *sums, by_label))
    return added
