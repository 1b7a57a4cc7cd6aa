"""The trainable tokenizer, ``spacy_crf.Tokenizer.v1``: finds words, and sentences if asked to, by a chain over characters."""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray
from spacy.language import Language
from spacy.pipeline.senter import senter_score
from spacy.scorer import Scorer
from spacy.tokens import Doc
from spacy.training import Example
from spacy.vocab import Vocab

from .. import checks
from ..errors import Errors, Warnings, announcements, counted, in_number
from ..features.characters import UNICODE, Lexicon, Texts, code_points
from ..inference.linear_chain import LinearChain
from ..kernels.characters import BEGINNING, BLANK
from ..models.characters import INSIDE, Annotated, CharacterModel, CharacterObjective
from ..optimizers.lbfgs import LBFGS
from ..types import UNKNOWN_WORDS, Bools, ChainScores, Floats, Ints, StateGraph
from ..whole_files import FileFormat, packed, seal, unpacked, unpacking, unseal, write_whole
from .saving import reason_of

logger = logging.getLogger("spacy.spacy_crf")
FORMAT = FileFormat("a tokenizer", b"spacy_crf tokenizer\n", 1)
FILE_NAME = "tokenizer"
NAME = "spacy_crf.Tokenizer.v1"
ANNOTATIONS = ("tokens", "partial")
BATCH = 1 << 16  # code points in a batch of training, and in a batch of `pipe`
_DELTA = 1e-4  # share of the objective that ten iterations must gain: with less, F1 stays what it is
_MEMORY = 10  # moves that L-BFGS keeps, each of which takes 16 bytes for each weight

YES = 1
NO = -1
NOT_KNOWN = 0


class Gold(NamedTuple):
    """Annotation of a text: for each character, whether a boundary is before it (YES, NO or NOT_KNOWN)."""

    text: str
    words: NDArray[np.int8]  # [T] whether a word begins here
    sentences: NDArray[np.int8]  # [T] whether a sentence begins here


class Boundaries(NamedTuple):
    """How probable boundaries before each character of a text are."""

    words: Floats  # [T]
    sentences: Floats  # [T] 0 from tokenizers that find no sentences


class Beginning(NamedTuple):
    """Why a token begins where it does.

    token (str): The token.
    prob (float): Probability that a token begins here.
    reason (str): "text" at the beginning of the text; "blank" behind white space, if no word of the training data has white space
        inside; "rule" where a pattern or a word of the config decides; else "weights".
    features (list[tuple[str, float]]): The features with the largest weights, for a boundary if positive.
    """

    token: str
    prob: float
    reason: str
    features: list[tuple[str, float]]


def make_tokenizer(
    *,
    sentences: bool = False,
    never_split: Sequence[str] = (),
    always_split: Sequence[str] = (),
    user_words: Sequence[str] = (),
    longest: Optional[int] = None,
    probabilities: bool = False,
) -> Callable[[Language], "CharacterTokenizer"]:
    """Make a tokenizer that learns from annotated texts where words begin, ``spacy_crf.Tokenizer.v1``.

    sentences (bool): Whether it finds sentences too, and sets ``token.is_sent_start``.
    never_split (List[str]): Regular expressions. No token begins inside of what they match.
    always_split (List[str]): Regular expressions. Tokens begin and end at the edges of what they match.
    user_words (List[str]): Words that are always a token of their own. In scripts with upper and lower case they do not touch
        other letters or digits. Where rules contradict each other, `user_words` count most, then `never_split`.
    longest (Optional[int]): Most characters (grapheme clusters) of a token, without white space; None for no limit.
    probabilities (bool): Whether to set ``token._.crf_boundary_prob``, which takes more time.
    RETURNS (Callable[[Language], CharacterTokenizer]): A function that makes the tokenizer of a pipeline.
    RAISES (ValueError): CRF020 for settings that are not possible.
    """
    checks.flag(NAME, "sentences", sentences)
    checks.flag(NAME, "probabilities", probabilities)
    rules = Rules(never_split, always_split, user_words, longest)

    def make(nlp: Language) -> CharacterTokenizer:
        """The tokenizer of a pipeline (`nlp`)."""
        return CharacterTokenizer(nlp.vocab, rules, sentences=sentences, probabilities=probabilities)

    return make


class Rules:
    """The rules of the config, which hold whatever the weights; the arguments are those of `make_tokenizer`.

    RAISES (ValueError): CRF020 for settings that are not possible.
    """

    def __init__(
        self,
        never_split: Sequence[str],
        always_split: Sequence[str],
        user_words: Sequence[str],
        longest: Optional[int],
    ):
        self.settings: dict[str, Any] = {
            "never_split": list(never_split),
            "always_split": list(always_split),
            "user_words": list(user_words),
            "longest": longest,
        }
        self.longest = None if longest is None else checks.count(NAME, "longest", longest)
        self._never = _compiled("never_split", never_split)
        self._always = _compiled("always_split", always_split)
        # Of words that begin alike the longest counts
        words = checks.listed(NAME, "user_words", user_words, "words")
        words = sorted(words, key=lambda word: len(checks.text(NAME, "user_words", word)), reverse=True)
        self._words = re.compile("|".join(map(_whole_word, words))) if words else None

    @property
    def are_patterns(self) -> bool:
        """Whether there are any rules but `longest`."""
        return bool(self._never or self._always or self._words)

    @property
    def are_of_characters(self) -> bool:
        """Whether rules count the characters of a run of letters, or may cut one."""
        return self.longest is not None or bool(self._always or self._words)

    def restrict(self, text: str, units: Ints, possible: Bools) -> None:
        """Forbid the tags that patterns exclude.

        text (str): The text.
        units (int64[U]): Where its units begin.
        possible (bool[U, S]): The tags that units may have; the method changes it.
        """
        for pattern in self._always:
            for match in pattern.finditer(text):
                _cut(text, units, possible, match.start())
                _cut(text, units, possible, match.end())
        for pattern in self._never:
            for match in pattern.finditer(text):
                _join(units, possible, match)
        for match in self._words.finditer(text) if self._words else ():
            _join(units, possible, match)
            _cut(text, units, possible, match.start())
            _cut(text, units, possible, match.end())


def _compiled(name: str, patterns: Sequence[str]) -> list["re.Pattern[str]"]:
    """Compile the regular expressions of a setting. RAISES (ValueError): CRF020."""
    compiled = []
    for pattern in checks.listed(NAME, name, patterns, "regular expressions"):
        try:
            compiled.append(re.compile(checks.text(NAME, name, pattern)))
        except (re.error, OverflowError, RecursionError) as error:
            checks.expect(False, NAME, name, pattern, f"a list of regular expressions ({error})")
    return compiled


def _whole_word(word: str) -> str:
    """A regular expression for a word, which in scripts with upper and lower case touches no other letters or digits."""
    before = r"(?<!\w)" if word[0].lower() != word[0].upper() else ""
    behind = r"(?!\w)" if word[-1].lower() != word[-1].upper() else ""
    return f"{before}{re.escape(word)}{behind}"


def _cut(text: str, units: Ints, possible: Bools, place: int) -> None:
    """Let a token begin at a place of the text, or behind the white space there; nothing changes inside of a unit, and at the
    beginning of the text, where a token begins anyway."""
    unit = int(np.searchsorted(units, place))
    if 0 < unit < len(units) and not text[place : units[unit]].strip():
        possible[unit] = True
        possible[unit, INSIDE] = False


def _join(units: Ints, possible: Bools, match: "re.Match[str]") -> None:
    """Let no token begin inside of a match."""
    first = max(1, int(np.searchsorted(units, match.start(), side="right")))
    behind = int(np.searchsorted(units, match.end()))
    possible[first:behind] = False
    possible[first:behind, INSIDE] = True


class CharacterTokenizer:
    """A tokenizer that learns where words begin, and sentences if asked to. `initialize` trains it as a whole.

    vocab (Vocab): The vocabulary of the pipeline.
    rules (Rules): The rules of the config.
    sentences (bool), probabilities (bool): See `make_tokenizer`.
    """

    def __init__(self, vocab: Vocab, rules: Rules, *, sentences: bool, probabilities: bool):
        self.vocab = vocab
        self._rules = rules
        self._has_sentences = sentences
        self._sets_probabilities = probabilities
        self._model: Optional[CharacterModel] = None
        self.is_learning = False

    # -------------------------------------------------------------------------------------------------- prediction

    def __call__(self, text: str) -> Doc:
        """Make the Doc of a text (`text`).

        RAISES (ValueError): CRF990 for half of a surrogate pair, CRF991 if the tokenizer was never trained.
        """
        return next(self.pipe([text]))

    def pipe(self, texts: Iterable[str], batch_size: int = 1000) -> Iterator[Doc]:
        """Make the Docs of texts, many at a time.

        texts (Iterable[str]): The texts.
        batch_size (int): Most texts at a time.
        YIELDS (Doc): The Docs, in the order of the texts.
        RAISES (ValueError): As for a single text.
        """
        if self._model is None and self.is_learning:
            # Readers of corpora make Docs before the tokenizer has learned; it learns from the references
            for text in texts:
                edges = [match.span() for match in re.finditer(r"\S+", text)]
                yield words_to_doc(self.vocab, text, *np.array(edges, dtype=np.int64).reshape(-1, 2).T)
            return
        for batch in _batches(texts, len, batch_size):
            yield from self._docs(batch)

    def _docs(self, batch: list[str]) -> Iterator[Doc]:
        """The Docs of a few texts."""
        model = self._trained()
        texts, _, scores = self._scored(batch)
        structure = self._structure(model)
        tags = structure.viterbi(scores).states
        if self._rules.longest is not None and (tags < 0).any():
            # Longer tokens where other rules demand them
            tags = np.where(tags < 0, LinearChain().viterbi(scores).states, tags)
        probabilities = None
        if self._sets_probabilities:
            probabilities = structure.marginals(scores)[:, :INSIDE].sum(axis=1)
        for b, text in enumerate(batch):
            of_text = slice(texts.starts[b], texts.starts[b + 1])
            doc = self._doc(text, texts, b, tags[of_text])
            if probabilities is not None:
                _set_probabilities(doc, probabilities[of_text][tags[of_text] < len(model.transitions) - 1])
            yield doc

    def _doc(self, text: str, texts: Texts, b: int, tags: NDArray[np.int32]) -> Doc:
        """Make a Doc of a text whose units have tags.

        text (str): The text.
        texts (Texts): Several texts, of which this one has the number `b`.
        tags (int32[U]): The tags of its units.
        """
        of_text = slice(texts.starts[b], texts.starts[b + 1])
        begins = tags < len(self._trained().transitions) - 1
        # A word ends with the last unit before the next word
        is_last = np.append(begins[1:], True)[: len(begins)]
        places = texts.units[of_text][begins] - texts.text_starts[b]
        ends = texts.ends[of_text][is_last] - texts.text_starts[b]
        is_sentence = tags[begins] == 0 if self._has_sentences else None
        return words_to_doc(self.vocab, text, places, ends, is_sentence)

    def _trained(self) -> CharacterModel:
        """The model. RAISES (ValueError): CRF991 if the tokenizer was never trained."""
        if self._model is None:
            raise ValueError(Errors.CRF991.format(name=NAME))
        return self._model

    def _scored(self, batch: Sequence[str]) -> tuple[Texts, Bools, ChainScores]:
        """Score texts by the weights and the rules.

        batch (Sequence[str]): The texts.
        RETURNS (Texts, bool[U, S], ChainScores): The texts with their units; the tags that rules leave; and the scores of tags,
            -inf for others.
        """
        model = self._trained()
        texts, possible = self._restricted(batch)
        scores = model.scores(texts)
        scores.emissions[~possible] = -np.inf
        return texts, possible, scores

    def _restricted(self, batch: Sequence[str]) -> tuple[Texts, Bools]:
        """The units of texts (`batch`), and the tags that they may have by the rules: bool[U, S]."""
        model = self._trained()
        texts = model.texts(batch)
        possible = model.possible(texts)
        if model.joins_words and self._rules.are_of_characters:
            # A rule may cut the runs of letters that the model keeps whole
            runs = texts
            texts = Texts.of(batch, joins_words=False)
            possible = model.possible(texts)
            is_inside = ~np.isin(texts.units, runs.units)
            possible[is_inside, :INSIDE] = False
        if self._rules.are_patterns:
            for b, text in enumerate(batch):
                of_text = slice(texts.starts[b], texts.starts[b + 1])
                self._rules.restrict(text, texts.units[of_text] - texts.text_starts[b], possible[of_text])
        return texts, possible

    def _structure(self, model: CharacterModel) -> Any:
        """The chain whose labellings are the segmentations that are not too long."""
        if self._rules.longest is None:
            return LinearChain()
        return LinearChain().over(_graph(len(model.transitions), self._rules.longest))

    def boundary_probabilities(self, text: str) -> Boundaries:
        """How probable it is that words and sentences begin before each character of a text (`text`).

        RAISES (ValueError): As for a call.
        """
        texts, _, scores = self._scored([text])
        marginals = self._structure(self._trained()).marginals(scores)
        words = np.zeros(len(text))
        sentences = np.zeros(len(text))
        words[texts.units] = marginals[:, :INSIDE].sum(axis=1)
        if self._has_sentences:
            sentences[texts.units] = marginals[:, 0]
        return Boundaries(words, sentences)

    def n_best(self, text: str, n: int) -> list[tuple[float, Doc]]:
        """The n most probable segmentations of a text.

        text (str): The text.
        n (int): How many.
        RETURNS (list[tuple[float, Doc]]): Probabilities and Docs, the most probable first; fewer where fewer exist.
        RAISES (ValueError): As for a call.
        """
        texts, _, scores = self._scored([text])
        structure = self._structure(self._trained())
        log_z = structure.log_partition(scores)[0]
        found = []
        for score, tags in structure.n_best(scores, n)[0]:
            found.append((float(np.exp(score - log_z)), self._doc(text, texts, 0, tags)))
        return found

    def explain(self, text: str, top: int = 3) -> list[Beginning]:
        """Why each token of a text begins where it does. White space has no entry.

        text (str): The text.
        top (int): Number of features for each token.
        RETURNS (list[Beginning]): The tokens with their reasons, in order.
        RAISES (ValueError): As for a call.
        """
        checks.count("explain", "top", top, least=0)
        model = self._trained()
        texts, possible, _ = self._scored([text])
        without_rules = model.possible(texts)
        words = self.boundary_probabilities(text).words
        explained = []
        for token in self(text):
            if token.is_space:
                continue
            unit = int(np.searchsorted(texts.units, token.idx))
            reason = "weights"
            if unit == 0:
                reason = "text"
            elif not possible[unit, INSIDE]:
                reason = "rule" if without_rules[unit, INSIDE] else "blank"
            features = model.features_at(text, token.idx)
            features.sort(key=lambda feature: -abs(feature[1]))
            explained.append(Beginning(token.text, float(words[token.idx]), reason, features[:top]))
        return explained

    # -------------------------------------------------------------------------------------------------- training

    def initialize(
        self,
        get_examples: Callable[[], Iterable[Example]],
        *,
        nlp: Optional[Language] = None,
        annotation: str = "tokens",
        lexicon: Union[str, Path, Sequence[str], None] = None,
        min_count: int = 2,
        l1: float = 0.02,
        l2: float = 0.1,
        max_iterations: Optional[int] = None,
    ) -> None:
        """Learn from the references of all examples, until ten iterations lower the objective by less than 0.01 %. The settings
        are those of [initialize.tokenizer] in the config.

        get_examples (Callable[[], Iterable[Example]]): Returns the examples.
        nlp (Optional[Language]): The pipeline, which is not used.
        annotation (str): What references say of boundaries. "tokens": their tokens are the words, except inside the spans of
            ``doc.spans["crf_unknown_words"]``, where words may begin or go on at each token. "partial": words begin and end at
            the edges of ``doc.ents`` and of words of the lexicon, the longest first, and go on inside of the latter; nothing else
            is known.
        lexicon (Union[str, Path, Sequence[str], None]): Words whose places in a text are features, beside those of the training
            data: a file with a word in each line, or a list. They are saved with the tokenizer.
        min_count (int): How often the training data must have a feature.
        l1 (float), l2 (float): Costs of the weights, see `LBFGS`.
        max_iterations (Optional[int]): Most iterations; None until the optimum.
        RAISES (ValueError): CRF020 for settings that are not possible; CRF990 for half of a surrogate pair; CRF992 or CRF993 for
            references from which the tokenizer can't learn.
        """
        owner = "[initialize.tokenizer]"
        checks.one_of(owner, "annotation", annotation, ANNOTATIONS)
        checks.count(owner, "min_count", min_count)
        optimizer = LBFGS(l1=l1, l2=l2, memory=_MEMORY, delta=_DELTA, max_iterations=max_iterations)
        given = _read_words(owner, lexicon)
        with self.learning():
            trie = Lexicon.of(given)
            golds = [_gold(example.reference, annotation, trie) for example in get_examples()]
        counts = Counter(chain.from_iterable(map(_known_words, golds)))
        if given and not counts.keys() & {*given}:
            logger.warning(Warnings.CRFW991.format(n=len(given)))
        corpus, joins_words, has_blanks = self._annotated(golds)
        model, frequencies = CharacterModel.untrained(
            (batch.texts for batch in corpus),
            Lexicon.of([*given, *(word for word, count in counts.items() if count > 1)]),
            min_count,
            has_sentences=self._has_sentences,
            joins_words=joins_words,
            has_blanks=has_blanks,
        )
        objective = CharacterObjective(model, corpus, frequencies)
        n_points = sum(len(gold.text) for gold in golds)
        announcements.info("tokenizer: %s, %s", counted(n_points, "character"), counted(len(model.keys), "feature"))
        while optimizer.stop_reason("tokenizer") is None:
            value = optimizer.step(objective, key="tokenizer")
        announcements.info("tokenizer: objective %.1f, %s", value, optimizer.stop_reason("tokenizer"))
        # So far the lexicon had the words that occur at least twice, so that no word was known by its own place alone. Texts to
        # come are other places, so from now on it has all words
        model.lexicon = Lexicon.of([*given, *counts])
        self._model = model.pruned()
        self._check_rules(golds)

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Let the tokenizer cut texts at white space in this context if it was never trained."""
        self.is_learning = True
        try:
            yield
        finally:
            self.is_learning = False

    def _annotated(self, golds: list[Gold]) -> tuple[list[Annotated], bool, bool]:
        """Turn what is known of texts into tags.

        golds (list[Gold]): The texts, and what is known.
        RETURNS (list[Annotated], bool, bool): The texts in batches; whether words never begin inside of a run of letters, marks
            and digits; and whether words have white space inside.
        RAISES (ValueError): CRF992 if no text has a word, CRF993 if nothing tells where sentences begin, or where none does, and
            sentences are to be found; CRF994 if nothing tells where words go on.
        """
        n_tags = 3 if self._has_sentences else 2
        n_moved = 0
        joins_words = self._rules.longest is None  # which counts characters, not whole runs
        has_blanks = False
        says_all = True  # whether each boundary is known
        goes_on_somewhere = False
        corpus = []
        for batch in _batches(golds, lambda gold: len(gold.text), len(golds)):
            texts = Texts.of([gold.text for gold in batch], joins_words=False)
            words = np.concatenate([gold.words for gold in batch])
            sentences = np.concatenate([gold.sentences for gold in batch])
            clamp, n_moved_here = _clamp(texts, words, sentences, n_tags)
            n_moved += n_moved_here
            if joins_words:
                joined = Texts.of([gold.text for gold in batch], joins_words=True)
                is_joined = ~np.isin(texts.units, joined.units)
                joins_words = not clamp[is_joined, :INSIDE].any()
            goes_on = np.logical_not(clamp[:, :INSIDE].any(axis=1))
            goes_on_somewhere = goes_on_somewhere or bool(goes_on.any())
            is_unknown = clamp[:, INSIDE] & ~goes_on & (texts.gaps != BEGINNING)
            says_all = says_all and not is_unknown.any()
            has_blanks = has_blanks or bool(goes_on[texts.gaps == BLANK].any())
            corpus.append(Annotated(texts, clamp))
        if not any(len(texts.units) for texts, _ in corpus):
            raise ValueError(Errors.CRF992)
        if not (goes_on_somewhere or says_all):
            raise ValueError(Errors.CRF994)
        if self._has_sentences and not _tell_sentences(golds):
            raise ValueError(Errors.CRF993)
        if n_moved:
            text = "tokenizer: %s inside of characters (grapheme clusters of Unicode %s) moved behind them"
            announcements.info(text, in_number(n_moved, "boundary|boundaries"), UNICODE)
        if joins_words:
            whole = []
            for batch, (texts, clamp) in zip(_batches(golds, lambda gold: len(gold.text), len(golds)), corpus):
                joined = Texts.of([gold.text for gold in batch], joins_words=True)
                whole.append(Annotated(joined, clamp[np.isin(texts.units, joined.units)]))
            corpus = whole
        return corpus, joins_words, has_blanks

    def _check_rules(self, golds: list[Gold]) -> None:
        """Warn of tokens of the training data that rules of the config forbid."""
        if not self._rules.are_patterns:
            return
        n_forbidden = 0
        example = ""
        for gold in golds:
            texts, possible = self._restricted([gold.text])
            known = gold.words[texts.units]
            allows = np.where(known == YES, possible[:, :INSIDE].any(axis=1), possible[:, INSIDE])
            forbidden = texts.units[(known != NOT_KNOWN) & ~allows & (texts.gaps != BEGINNING)]
            if len(forbidden):
                n_forbidden += len(forbidden)
                example = example or gold.text[max(0, forbidden[0] - 10) : forbidden[0] + 10]
        if n_forbidden:
            logger.warning(Warnings.CRFW990.format(n=n_forbidden, example=example))

    def score(self, examples: Iterable[Example], **kwargs: object) -> dict[str, Any]:
        """Score the tokens of predicted Docs as spaCy does: token_acc, token_p, token_r and token_f; and with sentences sents_p,
        sents_r and sents_f.

        examples (Iterable[Example]): The examples.
        """
        examples = list(examples)
        scores = Scorer.score_tokenization(examples)
        if self._has_sentences:
            scores.update(senter_score(examples))
        return scores

    # -------------------------------------------------------------------------------------------------- saving

    def to_bytes(self, *, exclude: Sequence[str] = ()) -> bytes:
        """Save what was learned, also nothing. The rules are in the config, and here because spaCy doubles each $ of a config.

        exclude (Sequence[str]): Ignored; spaCy passes it.
        """
        model = None if self._model is None else self._model.to_msg()
        content = {"lang": self.vocab.lang, "rules": self._rules.settings, "model": model}
        return seal(FORMAT, b"".join(packed(content)))

    def from_bytes(self, data: bytes, *, exclude: Sequence[str] = ()) -> "CharacterTokenizer":
        """Load what `to_bytes` saved; after an error nothing has changed.

        data (bytes): The saved tokenizer.
        exclude (Sequence[str]): Ignored; spaCy passes it.
        RAISES (ValueError): CRF501, CRF502, CRF505 or CRF508 for data that is not a tokenizer, is damaged, or does not fit the
            config.
        """
        return self._load(data, "the data")

    def _load(self, data: bytes, source: str) -> "CharacterTokenizer":
        """Load saved data (`data`) that comes from a place (`source`), see `from_bytes`."""
        content = unseal(FORMAT, data, source)
        try:
            with unpacking(data):
                msg = unpacked(content)
                lang = msg["lang"]
                rules = Rules(**msg["rules"])
                model = None if msg["model"] is None else CharacterModel.from_msg(msg["model"])
            if model is not None and model.has_sentences != self._has_sentences:
                ours = self._has_sentences
                raise ValueError(Errors.CRF510.format(setting="sentences", saved=model.has_sentences, ours=ours))
        except Exception as error:  # a file may contain anything, so any error may occur
            raise ValueError(Errors.CRF505.format(source=source, name="tokenizer", reason=reason_of(error))) from error
        if lang != self.vocab.lang:
            logger.warning(Warnings.CRFW992.format(source=source, lang=lang, ours=self.vocab.lang))
        if checks.is_written(rules.settings, self._rules.settings):
            self._rules = rules
        self._model = model
        return self

    def to_disk(self, path: Union[str, Path], *, exclude: Sequence[str] = ()) -> None:
        """Save to a folder (`path`) what `to_bytes` returns; `exclude` excludes nothing."""
        write_whole(Path(path) / FILE_NAME, self.to_bytes())

    def from_disk(self, path: Union[str, Path], *, exclude: Sequence[str] = ()) -> "CharacterTokenizer":
        """Load from a folder (`path`) what `to_disk` saved; `exclude` excludes nothing.

        RAISES (ValueError): CRF701 if there is no file; others as `from_bytes`.
        """
        file = Path(path) / FILE_NAME
        try:
            data = file.read_bytes()
        except OSError as error:
            raise ValueError(Errors.CRF701.format(place=file, reason=error)) from error
        return self._load(data, str(file))


def _batches(items: Iterable[Any], size_of: Callable[[Any], int], most: int) -> Iterator[list[Any]]:
    """Batches of at most so many items, and of about `BATCH` characters, whose number `size_of` returns for an item."""
    batch: list[Any] = []
    size = 0
    for item in items:
        batch.append(item)
        size += size_of(item)
        if size >= BATCH or len(batch) >= most:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch


def words_to_doc(vocab: Vocab, text: str, places: Ints, ends: Ints, is_sentence: Optional[Bools] = None) -> Doc:
    """Make the Doc of a text. White space becomes what spaCy makes of it: one space belongs to the token before; the rest is a
    token.

    vocab (Vocab): The vocabulary.
    text (str): The text.
    places (int64[W]), ends (int64[W]): Where its words begin and end.
    is_sentence (Optional[bool[W]]): Whether a sentence begins with each word; None for no sentences.
    """
    behind = np.append(places[1:], len(text))  # where the next word begins
    has_space = np.append(code_points(text), 0)[ends] == ord(" ")
    has_space &= ends < behind
    blanks = ends + has_space  # where the rest of the white space begins
    has_blank = blanks < behind
    leading = places[:1] if len(places) else np.array([len(text)])
    # A token for white space at the beginning, the words, and tokens for white space behind them
    starts = np.concatenate([[0], places, blanks[has_blank]])
    order = np.argsort(starts, kind="stable")[int(leading[0] == 0) :]
    stops = np.concatenate([leading, ends, behind[has_blank]])[order].tolist()
    words = [text[start:stop] for start, stop in zip(starts[order].tolist(), stops)]
    spaces = np.concatenate([[False], has_space, np.zeros(has_blank.sum(), dtype=bool)])[order].tolist()
    sent_starts = None
    if is_sentence is not None:
        # White space at the beginning belongs to the first sentence
        begins = np.concatenate([[False], is_sentence, np.zeros(has_blank.sum(), dtype=bool)])
        begins[:2] = [leading[0] > 0, leading[0] == 0][: len(begins)]
        sent_starts = begins[order].tolist()
    return Doc(vocab, words=words, spaces=spaces, sent_starts=sent_starts or None)


def _set_probabilities(doc: Doc, probabilities: Floats) -> None:
    """Set the probabilities of the beginnings of a Doc's words, which are its tokens but white space."""
    words = (token for token in doc if not token.is_space)
    for token, probability in zip(words, probabilities.tolist()):
        token._.crf_boundary_prob = probability


def _read_words(owner: str, words: Any) -> list[str]:
    """The words of a list, or of the lines of a file; `owner` has the setting.

    RAISES (ValueError): CRF020 for anything else, CRF701 for a file that can't be read.
    """
    if not checks.is_path(words):
        return [checks.text(owner, "lexicon", word) for word in checks.listed(owner, "lexicon", words, "words")]
    try:
        lines = Path(words).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeError) as error:
        raise ValueError(Errors.CRF701.format(place=words, reason=error)) from error
    return [line.strip() for line in lines if line.strip()]


def _gold(doc: Doc, annotation: str, lexicon: Lexicon) -> Gold:
    """Read the annotation of a text from a reference Doc.

    doc (Doc): The reference.
    annotation (str), lexicon (Lexicon): See `CharacterTokenizer.initialize`.
    """
    text = doc.text
    lengths = doc.to_array("LENGTH").astype(np.int64)
    ends = np.cumsum(lengths + doc.to_array("SPACY").astype(np.int64))
    places = np.append(0, ends)[: len(doc)]
    is_word = doc.to_array("IS_SPACE") == 0
    if annotation == "tokens":
        words = np.full(len(text), NO, dtype=np.int8)
        words[places[is_word]] = YES
        for span in doc.spans.get(UNKNOWN_WORDS, ()):
            words[places[span.start + 1 : span.end]] = NOT_KNOWN
    else:
        words = lexicon.annotation(text)
        for ent in doc.ents:
            words[ent.start_char] = YES
            words[ent.end_char : ent.end_char + 1] = YES
    sentences = np.where(words == NO, NO, NOT_KNOWN).astype(np.int8)
    # spaCy's values are 1, -1 and 0, as unsigned numbers; a sentence that begins with white space begins at the word behind it
    sent_starts = np.zeros(len(doc), dtype=np.int8)
    if doc.has_annotation("SENT_START"):
        sent_starts[:] = doc.to_array("SENT_START").astype(np.int64)
    sentences[places] = sent_starts
    starts_late = np.flatnonzero((sent_starts == YES) & ~is_word)
    later = np.searchsorted(np.flatnonzero(is_word), starts_late)
    sentences[places[is_word][later[later < is_word.sum()]]] = YES
    return Gold(text, words, sentences)


def _tell_sentences(golds: Iterable[Gold]) -> bool:
    """Whether some word is known to begin a sentence, and some word to begin none."""
    values = {int(value) for gold in golds for value in np.unique(gold.sentences[gold.words != NO])}
    return {YES, NO} <= values


def _known_words(gold: Gold) -> Iterator[str]:
    """The words of a text both of whose edges are known."""
    places = np.flatnonzero(gold.words != NO).tolist()
    edges = [*gold.words.tolist(), YES]
    for start, behind in pairwise([*places, len(gold.text)]):
        if edges[start] == edges[behind] == YES:
            yield gold.text[start:behind].rstrip()


def _clamp(texts: Texts, words: NDArray[np.int8], sentences: NDArray[np.int8], n_tags: int) -> tuple[Bools, int]:
    """The tags that the annotation of texts allows.

    texts (Texts): The texts.
    words (int8[T]), sentences (int8[T]): See `Gold`.
    n_tags (int): S.
    RETURNS (bool[U, S], int): The tags of each unit; and how many boundaries were inside of grapheme clusters.
    """
    known_words = words[texts.units]
    known_sentences = sentences[texts.units]
    places = np.flatnonzero((words == YES) | (sentences == YES))
    # A boundary before white space, or inside of a cluster, is one before the next unit
    units = np.searchsorted(texts.units, places)
    is_inside = units < len(texts.units)
    known_words[units[is_inside]] = YES
    starts_sentence = sentences[places[is_inside]] == YES
    known_sentences[units[is_inside][starts_sentence]] = YES
    n_moved = int((~texts.begins[places]).sum())
    clamp = np.ones((len(texts.units), n_tags), dtype=bool)
    clamp[known_words == YES, INSIDE] = False
    clamp[known_words == NO, :INSIDE] = False
    if n_tags > 2:
        clamp[known_sentences == YES, 1:] = False
        clamp[known_sentences == NO, 0] = False
    clamp[texts.gaps == BEGINNING] = True  # where a word, and a sentence, begins anyway
    return clamp, n_moved


def _graph(n_tags: int, longest: int) -> StateGraph:
    """A graph of states that count the units of a word, so that none has more than `longest`.

    n_tags (int): Number of tags, of which the last says that a word goes on.
    """
    n_begins = n_tags - 1
    n_states = n_begins + longest - 1
    arcs = []
    for state in range(n_states):
        arcs += [(state, target) for target in range(n_begins)]
        # From each beginning to the second unit of a word, and from there one further each time
        following = max(n_begins, state + 1)
        if following < n_states:
            arcs.append((state, following))
    source, target = np.array(arcs, dtype=np.int32).T
    first = np.zeros(n_states)
    first[n_begins:] = -np.inf
    tag_of = np.minimum(np.arange(n_states), n_begins).astype(np.int32)
    return StateGraph(source.copy(), target.copy(), np.zeros(len(source)), first, np.zeros(n_states), tag_of)
