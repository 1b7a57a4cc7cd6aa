"""The race of settings for the training of a component: cross-validation that drops what falls behind.

For each fold, every candidate (l1, l2, knowledge of words) is trained on the other folds and scored on the held-out one; texts
that belong together are held out together (`folds`). Candidates that fall behind by more than chance leave the race (Maron &
Moore 1994, "Hoeffding races"). The scores over all folds choose the winner and its threshold; then the winner is trained on all
texts.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional, cast

import numpy as np
from numpy.typing import NDArray
from spacy.language import Language
from spacy.training import Example

from .folds import Folds
from .inference.span_choice import LEAST
from .optimizers.lbfgs import LBFGS
from .pipeline.initialization import earlier_annotation
from .pipeline.pipe import LearningPipe
from .pipeline.prediction import CRFPipe
from .pipeline.scorers import score_calibration
from .pipeline.thresholds import Point, best, measure, shrunk, use
from .report.figures import DRAWS, LEVEL, Share
from .report.suspects import Suspect, judged_by, ranked
from .types import Ints, Settings

ITERATIONS = 300
# A candidate starts near its optimum, where a gain of 1 % in ten iterations would not show convergence
DELTA = 2e-3
# Temperatures that are tried, 1 to 2.1: each is this factor above the one before
TEMPERATURE_STEP = 1.1
TEMPERATURES = TEMPERATURE_STEP ** np.arange(9)
# Few labels say little about the best temperature, so it has a log-normal prior: its median, and the deviation of its logarithm
USUAL_TEMPERATURE = 1.3
DEVIATION = 0.15
# Least gain of the optimized score for which a threshold is used: decoding by probabilities takes longer than the best path
LEAST_GAIN = 0.005
# Scores that can choose the settings: F1, and the share of texts that are right as a whole
OPTIMIZED = ("f", "texts")
# Number of folds after which candidates leave the race by less than two standard errors: fewer say little
SURE_FOLDS = 3


class WordKnowledge(NamedTuple):
    """Clusters, vectors or gazetteers, which are made without the annotated texts."""

    templates: Sequence[str]  # read it
    settings: Settings  # load it: of [initialize.components.NAME.words]


class Candidate(NamedTuple):
    """Settings for the training of a component."""

    words: str  # name of the knowledge of words that its templates read
    l1: float
    l2: float


class Trial(NamedTuple):
    """The scores of a candidate on the held-out texts."""

    candidate: Candidate
    f: float  # F1; for a tagger the accuracy
    whole_texts: float  # share of the texts in which all mentions are right and none is missing
    min_prob: Optional[float]  # None for the best path
    folds: int  # number of folds that the candidate took part in
    behind: float = 0.0  # the optimized score of the winner on the texts of these folds, minus that of the candidate
    error: float = 0.0  # standard error of `behind`


class Fitted(NamedTuple):
    """The training of a component on all texts, with its scores by cross-validation."""

    name: str
    texts: int
    chosen: Trial
    f: Share
    whole_texts: Optional[Share]  # share of texts that are right as a whole; None if the component finds no spans
    trials: list[Trial]  # the best first
    held_out: list[Example]  # each text with the prediction of a model trained without it, in the order of the texts
    suspects: list[Suspect]  # texts whose annotation looks wrong to a model trained without them
    together: str = ""  # which texts were held out together, see `folds.Folds.reason`
    temperature: float = 1.0  # by which all scores were divided
    # Calibration errors of the probabilities in `held_out`, before and after the division
    error_before: float = 0.0
    error_after: float = 0.0

    def expectation(self) -> str:
        """The expected scores of the component, in words."""
        scores = f"F1 {self.f.percent()}"
        if self.whole_texts is not None:
            scores += f", whole texts right {self.whole_texts.percent()}"
        together = f". Held out together: {self.together}" if self.together else ""
        return f"{scores}, on texts that it had not seen{together}"


class Decoded(NamedTuple):
    """The results of a candidate, decoded in the best way."""

    counts: NDArray[np.float64]  # [n, 3] annotated, found and right mentions of the texts, in the order of the folds
    min_prob: Optional[float]  # None for the best path
    folds: int  # number of folds that the candidate took part in


@dataclass
class Judged:
    """The results of one candidate on the folds that it was trained for."""

    counts: NDArray[np.float64]  # [N, 3] annotated, found and right mentions of the best path in each held-out text
    points: Optional[list[Point]] = None  # counts for each threshold; None for components that find no spans
    pipes: list[LearningPipe] = field(default_factory=list)  # the trained component of each fold

    def best(self, optimize: str) -> tuple[NDArray[np.float64], Optional[float]]:
        """Choose how to decode: by a threshold of probabilities if this gains enough, else by the best path.

        optimize (str): The score that is to gain, one of `OPTIMIZED`.
        RETURNS (float64[N, 3], Optional[float]): Annotated, found and right mentions in each held-out text, and the threshold
            `min_prob`; None for the best path.
        """
        if self.points is not None:
            if optimize == "texts":
                point = max(self.points, key=lambda point: score_of(np.array(point.counts), optimize))
                min_prob = cast(float, point.min_prob)
            else:
                point = best(self.points)
                # The best threshold of few entities is chance: `shrunk` moves it to what the model expects
                min_prob = shrunk(self.points)
            counts = np.array(point.counts, dtype=np.float64)
            if score_of(counts, optimize) >= score_of(self.counts, optimize) + LEAST_GAIN:
                return counts, min_prob
        return self.counts, None


def lbfgs_block(nlp: Language, name: str) -> Settings:
    """The block of the L-BFGS optimizer that trains a component, its own or that of [training]; empty if another optimizer
    trains it."""
    config = nlp.config.interpolate()
    block = config["components"][name].get("optimizer") or config["training"]["optimizer"]
    if block.get("@optimizers") == "spacy_crf.Minibatch.v1":
        block = config["training"]["optimizer"]
    return dict(block) if block.get("@optimizers") == "spacy_crf.LBFGS.v1" else {}


def features_block(component: Settings) -> Settings:
    """The block of the features of tokens in the block of a component; empty if there is none."""
    model = component.get("model") or {}
    return (model.get("emissions") or {}).get("features") or {}


class Race:
    """The cross-validation of one component: a race of its candidates."""

    def __init__(
        self,
        nlp: Language,
        name: str,
        words: dict[str, WordKnowledge],
        thresholds: bool,
        optimize: str,
        calibrate: bool,
        folds: Folds,
    ):
        self._words = words
        self._nlp = nlp
        self._name = name
        self._thresholds = thresholds
        self._optimize = optimize
        self._calibrate = calibrate
        self._folds = folds
        self._settings = nlp.config.interpolate()["components"][name]
        self._initialize_settings = nlp.config["initialize"]["components"].get(name) or {}
        self._judged: dict[Candidate, Judged] = {}
        self._running: list[Candidate] = []
        # By what is known of words: the component with the labels and features of all texts
        self._untrained: dict[str, LearningPipe] = {}

    def run(self, candidates: list[Candidate], examples: list[Example], on_fold: Callable[[], None]) -> Candidate:
        """Let candidates race on all folds. RETURNS (Candidate): The best one.

        examples (list[Example]): All N texts.
        on_fold (Callable[[], None]): Called after each fold.
        """
        self._judged |= {candidate: Judged(np.zeros((0, 3))) for candidate in candidates}
        self._running = candidates
        for fold in range(self._folds.fold_of.max() + 1):
            self._run_fold(examples, fold)
            on_fold()
        best, *_ = self._trials()
        return best.candidate

    def _run_fold(self, examples: list[Example], fold: int) -> None:
        """Train the running candidates without the held-out texts of a fold, score them on these texts, and drop the bad ones.

        examples (list[Example]): All N texts.
        fold (int): Number of the fold.
        """
        held = self._folds.fold_of == fold
        for words in dict.fromkeys(candidate.words for candidate in self._running):
            candidates = [candidate for candidate in self._running if candidate.words == words]
            if words not in self._untrained:
                self._untrained[words] = self._put_untrained(words, examples)
            pipe = _copied(self._untrained[words])
            seen = self._annotated(pipe, examples, ~held)
            unseen = self._annotated(pipe, examples, held)
            # All labels, but only the features of these texts
            pipe.initialize(lambda seen=seen: seen, nlp=self._nlp, labels=list(pipe.labels))
            for candidate in self._train(pipe, seen, candidates):
                judged = self._judged[candidate]
                judged.pipes.append(_copied(pipe))
                self._judge(judged, pipe, unseen)
        self._drop()

    def _judge(self, judged: Judged, pipe: LearningPipe, unseen: list[Example]) -> None:
        """Add the results of a trained component on texts that it has not seen to the results of its candidate."""
        counts = _counts(pipe, _predicted(pipe, unseen))
        judged.counts = np.concatenate([judged.counts, counts])
        if self._thresholds and _finds_spans(pipe):
            judged.points = sum_points(judged.points, measure(pipe, unseen))

    def finish(self, examples: list[Example]) -> Fitted:
        """Train the winner on all texts, and write its settings to the pipeline's config.

        examples (list[Example]): All N texts.
        """
        trials = self._trials()
        words, l1, l2 = candidate = trials[0].candidate
        judged = self._judged[candidate]
        fold_of = self._folds.fold_of
        unseen = [self._annotated(pipe, examples, fold_of == fold) for fold, pipe in enumerate(judged.pipes)]
        held_out = self._held_out(judged, unseen, trials[0].min_prob)
        untrained = self._untrained[words]
        temperature = 1.0
        error_before = error_after = _calibration_error(untrained, held_out)
        _, n_found, _ = judged.counts.sum(axis=0)
        if self._calibrate and n_found:
            temperature = self._divide_by_best(judged, unseen)
            judged = Judged(np.zeros((0, 3)), pipes=judged.pipes)
            for pipe, texts in zip(judged.pipes, unseen):
                self._judge(judged, pipe, texts)
            # Another threshold now stands for the same odds
            counts, min_prob = judged.best(self._optimize)
            f, whole_texts = (score_of(counts, score) for score in OPTIMIZED)
            trials[0] = trials[0]._replace(f=f, whole_texts=whole_texts, min_prob=min_prob)
            held_out = self._held_out(judged, unseen, min_prob)
            error_after = _calibration_error(untrained, held_out)
        counts = _counts(untrained, held_out)
        # The pipeline holds the untrained component that was made last
        in_pipeline = words == [*self._untrained][-1]
        pipe = self._nlp.get_pipe(self._name) if in_pipeline else self._put_untrained(words, examples)
        self._optimizer_block().update(l1=l1, l2=l2)
        others = [name for name in self._nlp.pipe_names if name != self._name]
        self._nlp.update(examples, sgd=self._optimizer(candidate), exclude=others, annotates=others)
        if temperature != 1.0:
            divide_scores(pipe, temperature)
        if trials[0].min_prob is not None:
            use(self._nlp, pipe, trials[0].min_prob)
        groups = self._folds.group_of
        return Fitted(
            name=self._name,
            texts=len(examples),
            chosen=trials[0],
            f=interval(counts, groups),
            whole_texts=interval(of_texts(counts), groups) if _finds_spans(untrained) else None,
            trials=trials,
            held_out=held_out,
            suspects=_suspects(judged, unseen),
            together=self._folds.reason,
            temperature=temperature,
            error_before=error_before,
            error_after=error_after,
        )

    def _divide_by_best(self, judged: Judged, unseen: list[list[Example]]) -> float:
        """Divide the scores of the components of a candidate by the temperature with the least log loss of the labels that they
        find in texts which they have not learned.

        unseen (list[list[Example]]): The held-out texts of each fold.
        RETURNS (float): The temperature.
        """
        # The labels that a threshold finds would change with the temperature, so components that have one find all labels
        least = LEAST if getattr(judged.pipes[0], "by_probability", False) else None
        # -log of the prior, to which the losses of the labels are added
        losses = (np.log(TEMPERATURES / USUAL_TEMPERATURE) / DEVIATION) ** 2 / 2
        for n in range(len(TEMPERATURES)):
            losses[n] += _log_loss(judged.pipes[0], self._held_out(judged, unseen, least), least)
            for pipe in judged.pipes:
                divide_scores(pipe, TEMPERATURE_STEP)
        # Between the temperatures that were tried the loss is close to a polynomial
        polynomial = np.polyfit(np.log(TEMPERATURES), losses, 4)
        fine = np.geomspace(TEMPERATURES[0], TEMPERATURES[-1], 1000)
        temperature = float(fine[np.argmin(np.polyval(polynomial, np.log(fine)))])
        for pipe in judged.pipes:
            divide_scores(pipe, temperature / (TEMPERATURES[-1] * TEMPERATURE_STEP))
        return temperature

    def _decoded(self, candidate: Candidate) -> Decoded:
        """How a candidate is decoded, with the counts of its mentions."""
        judged = self._judged[candidate]
        counts, min_prob = judged.best(self._optimize)
        return Decoded(counts, min_prob, len(judged.pipes))

    def _trials(self) -> list[Trial]:
        """The trials of all candidates, see `make_trials`."""
        decoded = {candidate: self._decoded(candidate) for candidate in self._judged}
        return make_trials(decoded, self._running, self._folds, self._optimize)

    def _put_untrained(self, words: str, examples: list[Example]) -> LearningPipe:
        """Put a new component into the pipeline, initialized with the labels and features of the examples but untrained.

        words (str): Name of the knowledge of words that its templates read.
        """
        nlp = self._nlp
        name = self._name
        settings = copy.deepcopy(self._settings)
        # The component would read labels and features from a corpus of its own
        initialize = {key: value for key, value in self._initialize_settings.items() if key not in ("corpus", "shards")}
        known = self._words[words]
        if known.templates:
            initialize["words"] = {**(initialize.get("words") or {}), **known.settings}
            features = features_block(settings)
            features["extra"] = [*(features.get("extra") or []), *known.templates]
        nlp.replace_pipe(name, settings.pop("factory"), config=settings)
        # spaCy has removed this block with the pipe
        nlp.config["initialize"]["components"][name] = initialize
        with nlp.select_pipes(enable=name):
            nlp.initialize(lambda: examples)
        return cast(LearningPipe, nlp.get_pipe(name))

    def _annotated(self, pipe: LearningPipe, examples: list[Example], chosen: NDArray[np.bool_]) -> list[Example]:
        """Make Examples of the chosen texts, whose predicted Docs have the annotation of the components before `pipe`."""
        annotate = earlier_annotation(pipe, self._nlp)
        return [Example(annotate(examples[n]), examples[n].reference) for n in np.flatnonzero(chosen)]

    def _train(self, pipe: LearningPipe, examples: list[Example], candidates: list[Candidate]) -> Iterator[Candidate]:
        """Train `pipe` with each candidate, from the weights of the previous one. Yields each candidate after its training."""
        objective = pipe.training.objective(LBFGS(), examples)
        untrained = objective.weights()
        for candidate in candidates:
            # Where a tag has several states, strong regularizers make these equal, and equal states stay equal
            if not pipe.model.attrs["node"].traits.names_states:
                objective.assign(untrained)
            self._optimizer(candidate).step(objective, key=pipe.name)
            yield candidate

    def _optimizer_block(self) -> Settings:
        """The block of the config with the L-BFGS optimizer that trains the component: its own, or that of [training]. Unlike the
        copy from `_lbfgs`, it can be written to."""
        block = self._nlp.config["components"][self._name].get("optimizer")
        if block and block["@optimizers"] == "spacy_crf.LBFGS.v1":
            return block
        return self._nlp.config["training"]["optimizer"]

    def _optimizer(self, candidate: Candidate) -> LBFGS:
        """Make the optimizer of the config, with l1 and l2 of the candidate. One step makes all iterations."""
        settings = {key: value for key, value in lbfgs_block(self._nlp, self._name).items() if not key.startswith("@")}
        settings.update(l1=candidate.l1, l2=candidate.l2, iterations_per_step=ITERATIONS)
        settings["delta"] = min(settings.get("delta", DELTA), DELTA)
        return LBFGS(**settings)

    def _drop(self) -> None:
        """Drop the candidates whose score is more than two standard errors of the difference below the best one. From the fold
        `SURE_FOLDS` on one standard error is enough, and at least half of the candidates leave (successive halving, Jamieson &
        Talwalkar 2016).
        """
        counts = {candidate: self._decoded(candidate).counts for candidate in self._running}
        ascending = sorted(self._running, key=lambda candidate: _rank(counts[candidate], self._optimize))
        best_counts = counts[ascending[-1]]
        n_folds = len(self._judged[ascending[-1]].pipes)
        most_errors = 2
        if n_folds >= SURE_FOLDS:
            most_errors = 1
            ascending = ascending[len(ascending) // 2 :]
        good = []
        for candidate in ascending:
            behind, error = _behind(best_counts, counts[candidate], self._folds, self._optimize)
            if behind <= most_errors * error:
                good.append(candidate)
        # In their old order, in which each training starts with the weights of the previous one
        self._running = [candidate for candidate in self._running if candidate in good]

    def _held_out(self, judged: Judged, unseen: list[list[Example]], min_prob: Optional[float]) -> list[Example]:
        """Predict each text with the component of a candidate that was trained on the other folds.

        judged (Judged): The candidate, with these components.
        unseen (list[list[Example]]): The held-out texts of each fold.
        min_prob (Optional[float]): The threshold; None for the best path.
        RETURNS (list[Example]): All N texts with their predictions, in their order.
        """
        predicted = {}
        for fold, (pipe, texts) in enumerate(zip(judged.pipes, unseen)):
            settings = dict(pipe.cfg)
            pipe.cfg["confidence"] = True
            if min_prob is not None:
                pipe.cfg.update(pipe.threshold_settings(min_prob))
            predicted.update(zip(np.flatnonzero(self._folds.fold_of == fold), _predicted(pipe, texts)))
            pipe.cfg = settings
        return [predicted[n] for n in range(len(predicted))]


def _suspects(judged: Judged, unseen: list[list[Example]]) -> list[Suspect]:
    """Find texts whose annotation looks wrong to the component that has not seen them.

    judged (Judged): A candidate, with its trained component of each fold.
    unseen (list[list[Example]]): The held-out texts of each fold.
    """
    suspects = []
    # The rows of counts are in the order of the folds, and of the texts in each fold
    ends = np.cumsum([len(texts) for texts in unseen])
    counts_of_folds = np.split(judged.counts, ends[:-1])
    for pipe, texts, counts in zip(judged.pipes, unseen, counts_of_folds):
        if isinstance(pipe, CRFPipe):
            # A text is no suspect if it has as many mentions annotated as found and as right ones: most have
            annotated = counts[:, :1]
            wrong = np.flatnonzero((counts != annotated).any(axis=1))
            suspects += judged_by(pipe, [texts[n] for n in wrong])
    return ranked(suspects)


def divide_scores(pipe: LearningPipe, temperature: float) -> None:
    """Divide all scores of a component by a temperature (Guo et al. 2017, "On calibration of modern neural networks").

    A model is too sure of texts that it has not seen. Divided by more than 1 its scores keep their order, but probabilities come
    closer to each other. Scores are sums of weights: with the weights divided, all answers and exports have new probabilities.
    """
    weights = pipe.training.frame()
    weights.assign(weights.weights() / temperature)
    pipe.clear_scores()


def _log_loss(pipe: LearningPipe, examples: list[Example], least: Optional[float]) -> float:
    """The sum of -log p over the labels that `pipe` has found, where p is the probability of a right label, or the probability
    that a wrong label is not there.

    least (Optional[float]): The threshold with which labels were found. Labels that are not found have this probability. None for
        the best path, which is the same at each temperature, and whose loss is that of the labels on it alone.
    """
    decisions = []
    for example in examples:
        decisions += pipe.annotation.decisions(example)
        if least is not None:
            gold, found = pipe.annotation.mentions(example)
            missed = {mention.place for mention in gold} - {mention.place for mention in found}
            decisions += [(least, True)] * len(missed)
    probabilities, right = np.array(decisions).reshape(-1, 2).T
    of_truth = np.where(right, probabilities, 1.0 - probabilities)
    return -float(np.log(np.maximum(of_truth, LEAST)).sum())


def _calibration_error(pipe: LearningPipe, examples: list[Example]) -> float:
    """The calibration error of the probabilities of predicted labels of the kind that `pipe` writes; 0 without labels."""
    scores = score_calibration(pipe.annotation, examples)
    return scores[f"{pipe.annotation.scores_prefix}_calibration_error"] or 0.0


def _copied(pipe: LearningPipe) -> LearningPipe:
    """Copy a component, but not its vocab, which has all words of long lists."""
    return copy.deepcopy(pipe, {id(pipe.vocab): pipe.vocab})


def _predicted(pipe: LearningPipe, examples: list[Example]) -> list[Example]:
    """Make Examples with predictions of `pipe`, on copies of their predicted Docs."""
    docs = pipe.pipe(example.predicted.copy() for example in examples)
    return [Example(doc, example.reference) for doc, example in zip(docs, examples)]


def _finds_spans(pipe: LearningPipe) -> bool:
    return pipe.annotation.scores_prefix.startswith(("ents", "spans_"))


def _counts(pipe: LearningPipe, examples: list[Example]) -> NDArray[np.float64]:
    """Count the annotated, found and right mentions of each text. RETURNS (float64[N, 3])"""
    counts = np.zeros((len(examples), 3))
    for n, example in enumerate(examples):
        gold_mentions, predicted_mentions = pipe.annotation.mentions(example)
        gold = {mention.place for mention in gold_mentions}
        found = {mention.place for mention in predicted_mentions}
        counts[n] = len(gold), len(found), len(gold & found)
    return counts


# ------------------------------------------------------------------------------------------------------------- figures


def make_trials(
    decoded: Mapping[Candidate, Decoded], running: Iterable[Candidate], folds: Folds, optimize: str
) -> list[Trial]:
    """Compare the results of candidates.

    decoded (Mapping[Candidate, Decoded]): The results.
    running (Iterable[Candidate]): The candidates that took part in all folds.
    folds (Folds): The texts of the folds.
    optimize (str): The score that chooses the best candidate, one of `OPTIMIZED`.
    RETURNS (list[Trial]): The winner first, then those that stayed to the end, then those that left later.
    """
    winner = max(running, key=lambda candidate: _rank(decoded[candidate].counts, optimize))
    trials = []
    for candidate, (counts, min_prob, n_folds) in decoded.items():
        # On the same texts: those of the folds that the candidate took part in
        behind, error = _behind(decoded[winner].counts[: len(counts)], counts, folds, optimize)
        f, whole_texts = (score_of(counts, score) for score in OPTIMIZED)
        trials.append(Trial(candidate, f, whole_texts, min_prob, n_folds, behind, error))
    trials.sort(key=lambda trial: (-trial.folds, trial.candidate != winner, trial.behind))
    return trials


def _behind(
    best_counts: NDArray[np.float64], counts: NDArray[np.float64], folds: Folds, optimize: str
) -> tuple[float, float]:
    """How much lower the optimized score of a candidate is than the best one, and the standard error of the difference.

    best_counts, counts (float64[n, 3]): Annotated, found and right mentions in the first n texts held out, by the best candidate
        and by the other one.
    folds (Folds): The texts of the folds.
    optimize (str): The score, one of `OPTIMIZED`.
    """
    if optimize == "texts":
        best_counts = of_texts(best_counts)
        counts = of_texts(counts)
    texts = np.argsort(folds.fold_of, kind="stable")[: len(counts)]
    differences = shares(best_counts) - shares(counts)
    # Texts of a group are alike: their shares do not average out
    error = np.linalg.norm(np.bincount(folds.group_of[texts], differences))
    return f1(best_counts.sum(axis=0)) - f1(counts.sum(axis=0)), float(error)


def _rank(counts: NDArray[np.float64], optimize: str) -> tuple[float, float]:
    """Sort key of candidates by their counts: the optimized score, and F1, since many candidates have as many whole texts.

    counts (float64[n, 3]): Annotated, found and right mentions in each text.
    optimize (str): The score, one of `OPTIMIZED`.
    """
    return score_of(counts, optimize), score_of(counts, "f")


def of_texts(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Counts of whole texts in place of their mentions: each text counts as one that is annotated and one that is found, and as a
    right one if all its mentions are right and none is missing. So their F1 is the share of texts that are right as a whole.

    counts (float64[N, 3]): Annotated, found and right mentions of each text.
    RETURNS (float64[N, 3])
    """
    gold, found, right = counts.T
    one = np.ones(len(counts))
    return np.stack([one, one, (gold == right) & (found == right)], axis=1)


def score_of(counts: NDArray[np.float64], score: str) -> float:
    """F1 ("f"), or the share of texts that are right as a whole ("texts").

    counts (float64[N, 3]): Annotated, found and right mentions of each text.
    """
    scored = of_texts(counts) if score == "texts" else counts
    return f1(scored.sum(axis=0))


def f1(counts: NDArray[np.float64]) -> float:
    """F1 from the numbers of annotated, found and right mentions: float64[3]."""
    gold, found, right = counts
    return float(2 * right / (gold + found)) if gold + found else 0.0


def shares(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """The share of each text in the error of F1 = 2 right / (gold + found), by the delta method:

        share[n] = (2 right[n] - F1 · (gold[n] + found[n])) / (gold + found)

    |shares| is the standard error of F1; |shares - other shares| is the standard error of the difference between the F1 of two
    candidates.

    counts (float64[N, 3]): Annotated, found and right mentions of each text.
    RETURNS (float64[N])
    """
    gold, found, right = counts.T
    f = f1(counts.sum(axis=0))
    total = gold.sum() + found.sum()
    return (2 * right - f * (gold + found)) / max(1.0, total)


def interval(counts: NDArray[np.float64], group_of: Ints) -> Share:
    """F1 of all texts with its bootstrap interval over groups of texts, by percentiles (Efron & Tibshirani 1993, chapter 13).

    counts (float64[N, 3]): Annotated, found and right mentions of each text.
    group_of (int64[N]): The group of each text.
    """
    of_groups = np.stack([np.bincount(group_of, column) for column in counts.T], axis=1)  # [G, 3]
    n = len(of_groups)
    # How often each of G groups is drawn when G groups are drawn with replacement
    frequencies = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=DRAWS)  # [DRAWS, G]
    f_of_draws = [f1(total) for total in frequencies @ of_groups]
    low, high = np.quantile(f_of_draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Share(f1(counts.sum(axis=0)), float(low), float(high))


def sum_points(points: Optional[list[Point]], others: list[Point]) -> list[Point]:
    """Add the counts of the same thresholds on two sets of texts. `points` is None for the first set."""
    if points is None:
        return others
    sums = []
    for point, other in zip(points, others):
        labels = {*point.by_label, *other.by_label}
        none: Counter[str] = Counter()
        by_label = {label: point.by_label.get(label, none) + other.by_label.get(label, none) for label in labels}
        found = point.found + other.found
        right = point.expected_right + other.expected_right
        gold = point.expected_gold + other.expected_gold
        sums.append(Point(point.min_prob, found, right, gold, by_label, point.counts + other.counts))
    return sums
