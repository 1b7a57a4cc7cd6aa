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
from spacy.language import Language, create_tokenizer
from spacy.pipeline.senter import senter_score
from spacy.scorer import Scorer
from spacy.tokenizer import Tokenizer
from spacy.tokens import Doc
from spacy.training import Example
from spacy.vocab import Vocab

from .. import checks
from ..errors import Errors, Warnings, announcements, counted, shown
from ..features.characters import Lexicon, Texts
from ..kernels.characters import BEGINNING
from ..models.characters import INSIDE, CharacterModel, CharacterObjective
from ..optimizers.lbfgs import LBFGS
from ..types import Bools, ChainScores, Floats
from ..whole_files import FileFormat, packed, seal, unpacked, unpacking, unseal, write_whole
from .boundaries import (
    NO,
    NOT_KNOWN,
    YES,
    Gold,
    annotated_texts,
    batches_of,
    known_words,
    read_gold,
    sentences_at_words,
)
from .saving import reason_of
from .tokenizer_rules import NAME, Rules, runs
from .words_to_doc import words_to_doc

logger = logging.getLogger("spacy.spacy_crf")
FORMAT = FileFormat("a tokenizer", b"spacy_crf tokenizer\n", 1)
FILE_NAME = "tokenizer"
ANNOTATIONS = ("tokens", "partial")
TOKENIZER = "tokenizer"  # its name among components
_EXAMPLE = "x y z "  # the text of the only example of `nlp.initialize` without examples
# Most characters of words whose places are features: the search for "ababab..." takes the square of its length
_LONGEST = 100
_DELTA = 1e-4  # share of the objective that ten iterations must gain: with less, F1 stays what it is
_MEMORY = 10  # moves that L-BFGS keeps, each of which takes 16 bytes for each weight


class Boundaries(NamedTuple):
    """How probable boundaries before each character of a text are."""

    words: Floats  # [T]
    sentences: Floats  # [T] 0 from tokenizers that find no sentences


class TokenReason(NamedTuple):
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
    never_split: Sequence[str] = [],  # not (): before spaCy copies a tokenizer it compares the settings with saved ones
    always_split: Sequence[str] = [],
    user_words: Sequence[str] = [],
    longest: Optional[int] = None,
    language_rules: bool = False,
    probabilities: bool = False,
) -> Callable[[Language], "CharacterTokenizer"]:
    """Make a tokenizer that learns from annotated texts where words begin, ``spacy_crf.Tokenizer.v1``.

    sentences (bool): Whether it finds sentences too, and sets ``token.is_sent_start``.
    never_split (List[str]): Regular expressions. No token begins inside of what they match.
    always_split (List[str]): Regular expressions. Tokens begin and end at the edges of what they match.
    user_words (List[str]): Words that are always a token of their own. In scripts with upper and lower case they do not touch
        other letters or digits. Where rules contradict each other, `user_words` count most, then `never_split`, `always_split`
        and `longest`, and a warning says so.
    longest (Optional[int]): Most characters (grapheme clusters) of a token, without white space; None for no limit.
    language_rules (bool): Whether it also learns from the tokens that spaCy's rules for the language find, which takes more time.
    probabilities (bool): Whether to set ``token._.crf_boundary_prob``, which takes more time.
    RETURNS (Callable[[Language], CharacterTokenizer]): A function that makes the tokenizer of a pipeline.
    RAISES (ValueError): CRF020 for settings that are not possible.
    """
    checks.flag(NAME, "sentences", sentences)
    checks.flag(NAME, "language_rules", language_rules)
    checks.flag(NAME, "probabilities", probabilities)
    rules = Rules(never_split, always_split, user_words, longest)

    def make(nlp: Language) -> CharacterTokenizer:
        """The tokenizer of a pipeline (`nlp`)."""
        return CharacterTokenizer(
            nlp.vocab,
            rules,
            sentences=sentences,
            language_rules=create_tokenizer()(nlp) if language_rules else None,
            probabilities=probabilities,
        )

    return make


class _Scored(NamedTuple):
    """Texts with the scores of their tags."""

    texts: Texts
    possible: Bools  # [U, S] the tags that rules leave
    scores: ChainScores  # -inf for other tags
    too_long: Bools  # [U] the units inside of tokens that are longer than the rule `longest` says, see `Rules.restrict`


class CharacterTokenizer:
    """A tokenizer that learns where words begin, and sentences if asked to. `initialize` trains it as a whole.

    vocab (Vocab): The vocabulary of the pipeline.
    rules (Rules): The rules of the config.
    sentences (bool), probabilities (bool): See `make_tokenizer`.
    language_rules (Optional[Tokenizer]): spaCy's tokenizer of the language, from whose tokens it learns too; None for none.
    """

    def __init__(
        self,
        vocab: Vocab,
        rules: Rules,
        *,
        sentences: bool,
        language_rules: Optional[Tokenizer],
        probabilities: bool,
    ):
        self.vocab = vocab
        self._rules = rules
        self._has_sentences = sentences
        self._language_rules = language_rules
        self._sets_probabilities = probabilities
        self._model: Optional[CharacterModel] = None
        self.is_learning = False

    @property
    def is_trained(self) -> bool:
        """Whether it has learned, or was loaded."""
        return self._model is not None

    @property
    def finds_sentences(self) -> bool:
        """Whether it finds sentences too."""
        return self._has_sentences

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
                matches = [*re.finditer(r"\S+", text)]
                starts = [match.start() for match in matches]
                yield words_to_doc(self.vocab, text, starts, [match.end() for match in matches])
            return
        for batch in batches_of(texts, len, batch_size):
            yield from self._docs(batch)

    def _docs(self, batch: list[str]) -> Iterator[Doc]:
        """The Docs of a few texts."""
        scored = self._scored(batch)
        tags = self._rules.best_tags(scored.scores, scored.too_long)
        probabilities = None
        if self._sets_probabilities:
            probabilities = self._rules.marginals(scored.scores, scored.too_long)[:, :INSIDE].sum(axis=1)
        begins = self._begins(tags)
        starts = scored.texts.starts
        for b, doc in enumerate(self._make_docs(batch, scored.texts, tags)):
            if probabilities is not None:
                units = slice(starts[b], starts[b + 1])
                _set_probabilities(doc, probabilities[units][begins[units]])
            yield doc

    def _begins(self, tags: NDArray[np.int32]) -> Bools:
        """Whether a word begins at units with these tags: bool[U]."""
        return tags < len(self._trained().transitions) - 1

    def _make_docs(self, batch: Sequence[str], texts: Texts, tags: NDArray[np.int32]) -> Iterator[Doc]:
        """Make the Docs of texts whose units have tags.

        batch (Sequence[str]), texts (Texts): The texts, and their units.
        tags (int32[U]): The tags of the units.
        YIELDS (Doc): The Docs.
        """
        begins = self._begins(tags)
        # A word ends with the last unit before the next word; each text begins with a word
        is_last = np.append(begins[1:], True)[: len(begins)]
        first_words = np.append(0, np.cumsum(begins))[texts.starts]  # [B + 1] numbers of the first words of texts
        text_starts = np.repeat(texts.text_starts[:-1], np.diff(first_words))
        starts = (texts.units[begins] - text_starts).tolist()
        ends = (texts.ends[is_last] - text_starts).tolist()
        is_sentence = (tags[begins] == 0).tolist() if self._has_sentences else None
        for text, (first, behind) in zip(batch, pairwise(first_words.tolist())):
            flags = None if is_sentence is None else is_sentence[first:behind]
            yield words_to_doc(self.vocab, text, starts[first:behind], ends[first:behind], flags)

    def _trained(self) -> CharacterModel:
        """The model. RAISES (ValueError): CRF991 if the tokenizer was never trained."""
        if self._model is None:
            raise ValueError(Errors.CRF991.format(name=NAME))
        return self._model

    def _scored(self, batch: Sequence[str]) -> _Scored:
        """Score texts by the weights and the rules."""
        model = self._trained()
        texts, possible, too_long = self._restricted(batch)
        scores = model.scores(texts)
        scores.emissions[~possible] = -np.inf
        return _Scored(texts, possible, scores, too_long)

    def _restricted(self, batch: Sequence[str]) -> tuple[Texts, Bools, Bools]:
        """Find the units of texts, and the tags that the rules of the config allow them.

        batch (Sequence[str]): The texts.
        RETURNS (Texts, bool[U, S], bool[U]): The texts with their units; the tags that these may have; and the units inside of
            tokens that are longer than the rule `longest` says.
        """
        model = self._trained()
        rules = self._rules
        texts = model.texts(batch, self._language_rules)
        possible = model.possible(texts)
        if model.joins_words and (rules.cut_letters or rules.longest is not None):
            # A rule may cut the runs of letters that the model keeps whole
            run_starts = texts.units
            texts = Texts.of(batch, joins_words=False, language_rules=self._language_rules)
            possible = model.possible(texts)
            is_inside = ~np.isin(texts.units, run_starts)
            if rules.longest is not None:
                # Runs that are too long may be cut; `first` is the second unit of a run
                for first, behind in runs(is_inside).T:
                    is_inside[first:behind] = behind - first < rules.longest
            possible[is_inside, :INSIDE] = False
        too_long = np.zeros(len(texts.units), dtype=bool)
        if rules:
            for b, text in enumerate(batch):
                units = slice(texts.starts[b], texts.starts[b + 1])
                too_long[units] = rules.restrict(text, texts.units[units] - texts.text_starts[b], possible[units])
        return texts, possible, too_long

    def boundary_probabilities(self, text: str) -> Boundaries:
        """How probable it is that words and sentences begin before each character of a text (`text`).

        RAISES (ValueError): As for a call.
        """
        return self._boundaries(text, self._scored([text]))

    def _boundaries(self, text: str, scored: _Scored) -> Boundaries:
        """The probabilities of boundaries of a text (`text`) from its scores (`scored`)."""
        marginals = self._rules.marginals(scored.scores, scored.too_long)
        words = np.zeros(len(text))
        sentences = np.zeros(len(text))
        words[scored.texts.units] = marginals[:, :INSIDE].sum(axis=1)
        if self._has_sentences:
            sentences[scored.texts.units] = marginals[:, 0]
        return Boundaries(words, sentences)

    def n_best(self, text: str, n: int) -> list[tuple[float, Doc]]:
        """The n most probable segmentations of a text.

        text (str): The text.
        n (int): How many.
        RETURNS (list[tuple[float, Doc]]): Probabilities and Docs, the most probable first; fewer where fewer exist.
        RAISES (ValueError): As for a call.
        """
        checks.count("n_best", "n", n)
        scored = self._scored([text])
        segmentations = self._rules.n_best(scored.scores, scored.too_long, n)
        docs = [next(self._make_docs([text], scored.texts, tags)) for _, tags in segmentations]
        return [(probability, doc) for (probability, _), doc in zip(segmentations, docs)]

    def explain(self, text: str, top: int = 3) -> list[TokenReason]:
        """Why each token of a text begins where it does. White space has no entry.

        text (str): The text.
        top (int): Number of features for each token.
        RETURNS (list[TokenReason]): The tokens with their reasons, in order.
        RAISES (ValueError): As for a call.
        """
        checks.count("explain", "top", top, least=0)
        model = self._trained()
        scored = self._scored([text])
        texts = scored.texts
        possible = scored.possible
        without_rules = model.possible(texts)
        words = self._boundaries(text, scored).words
        explained = []
        tags = self._rules.best_tags(scored.scores, scored.too_long)
        [doc] = self._make_docs([text], texts, tags)
        tokens = [token for token in doc if not token.is_space]
        units = np.searchsorted(texts.units, [token.idx for token in tokens]).tolist()
        for token, unit, features in zip(tokens, units, model.features_of(text, texts, units)):
            reason = "weights"
            if unit == 0:
                reason = "text"
            elif not possible[unit, INSIDE]:
                reason = "rule" if without_rules[unit, INSIDE] else "blank"
            features.sort(key=lambda feature: -abs(feature[1]))
            explained.append(TokenReason(token.text, float(words[token.idx]), reason, features[:top]))
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
        are those of [initialize.tokenizer] in the config. `nlp.initialize` leaves a tokenizer that was trained before as it is if
        this block is empty.

        get_examples (Callable[[], Iterable[Example]]): Returns the examples.
        nlp (Optional[Language]): The pipeline.
        annotation (str): What references say of boundaries. "tokens": their tokens are the words, except inside the spans of
            ``doc.spans["crf_unknown_words"]``, where words may begin or go on at each token. "partial": words begin and end at
            the edges of ``doc.ents`` and of words of the lexicon, the longest first, and go on inside of the latter; nothing else
            is known.
        lexicon (Union[str, Path, Sequence[str], None]): Words whose places in a text are features, beside those of the training
            data: a file with a word in each line, or a list. They are saved with the tokenizer.
        min_count (int): How often the training data must have a feature.
        l1 (float), l2 (float): Costs of the weights, see `LBFGS`.
        max_iterations (Optional[int]): Most iterations; None for no limit.
        RAISES (ValueError): CRF020 for settings that are not possible; CRF990 for half of a surrogate pair; CRF992 to CRF995 for
            references from which the tokenizer can't learn.
        """
        if self.is_trained and nlp is not None and not nlp.config["initialize"]["tokenizer"]:
            announcements.info("tokenizer: trained before, and [initialize.tokenizer] is empty, so it stays as it is")
            return
        owner = "[initialize.tokenizer]"
        checks.one_of(owner, "annotation", annotation, ANNOTATIONS)
        checks.count(owner, "min_count", min_count)
        optimizer = LBFGS(l1=l1, l2=l2, memory=_MEMORY, delta=_DELTA, max_iterations=max_iterations)
        listed = _read_words(owner, lexicon)
        with self.learning():
            trie = Lexicon.of(listed)
            golds = [read_gold(example.reference, annotation, trie) for example in get_examples()]
        if [gold.text for gold in golds] == [_EXAMPLE]:
            raise ValueError(Errors.CRF995)
        counts = Counter(chain.from_iterable(map(known_words, golds)))
        if listed and not counts.keys() & {*listed}:
            logger.warning(Warnings.CRFW991.format(n=len(listed)))
        repeated = [word for word, count in counts.items() if count > 1]
        # `longest` counts characters, not whole runs
        may_join = self._rules.longest is None
        corpus = annotated_texts(
            golds, with_sentences=self._has_sentences, may_join=may_join, language_rules=self._language_rules
        )
        model, frequencies = CharacterModel.untrained(
            (batch.texts for batch in corpus.batches),
            Lexicon.of(word for word in [*listed, *repeated] if len(word) <= _LONGEST),
            min_count,
            has_sentences=self._has_sentences,
            joins_words=corpus.joins_words,
            has_blanks=corpus.has_blanks,
        )
        objective = CharacterObjective(model, corpus.batches, frequencies)
        n_points = sum(len(gold.text) for gold in golds)
        announcements.info("tokenizer: %s, %s", counted(n_points, "character"), counted(len(model.keys), "feature"))
        while optimizer.stop_reason("tokenizer") is None:
            value = optimizer.step(objective, key="tokenizer")
        announcements.info("tokenizer: objective %.1f, %s", value, optimizer.stop_reason("tokenizer"))
        # So far the lexicon had the words that occur at least twice, so that no word was known by its own place alone. Texts to
        # come are other places, so from now on it has all words
        model.lexicon = Lexicon.of(word for word in [*listed, *counts] if len(word) <= _LONGEST)
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

    def _check_rules(self, golds: list[Gold]) -> None:
        """Warn of tokens of the training data that rules of the config forbid."""
        if not self._rules:
            return
        n_forbidden = 0
        example = ""
        for batch in batches_of(golds, lambda gold: len(gold.text), len(golds)):
            texts, possible, _ = self._restricted([gold.text for gold in batch])
            known = np.concatenate([gold.words for gold in batch])[texts.units]
            allows = np.where(known == YES, possible[:, :INSIDE].any(axis=1), possible[:, INSIDE])
            is_forbidden = (known != NOT_KNOWN) & ~allows & (texts.gaps != BEGINNING)
            if self._rules.longest is not None:
                # `first` is the second unit of a word
                for first, behind in runs((known == NO) & (texts.gaps != BEGINNING)).T:
                    is_forbidden[first + self._rules.longest - 1 : behind] = True
            forbidden = texts.units[is_forbidden]
            if len(forbidden):
                n_forbidden += len(forbidden)
                text = "".join(gold.text for gold in batch)
                example = example or text[max(0, forbidden[0] - 10) : forbidden[0] + 10]
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
            at_words = [Example(example.predicted, sentences_at_words(example.reference)) for example in examples]
            scores.update(senter_score(at_words))
        return scores

    # -------------------------------------------------------------------------------------------------- saving

    def to_bytes(self, *, exclude: Sequence[str] = ()) -> bytes:
        """Save the learned weights; an untrained tokenizer can be saved too. The rules are in the config, and here too, because
        spaCy doubles each $ of a config.

        exclude (Sequence[str]): Ignored; spaCy passes it.
        """
        model = None if self._model is None else self._model.to_msg()
        content = {
            "lang": self.vocab.lang,
            "rules": self._rules.settings,
            "language_rules": self._language_rules is not None,
            "model": model,
        }
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
            if model is not None:
                _check_setting("sentences", model.has_sentences, self._has_sentences)
                _check_setting("language_rules", msg["language_rules"], self._language_rules is not None)
        except Exception as error:  # a file may contain anything, so any error may occur
            raise ValueError(Errors.CRF505.format(source=source, name="tokenizer", reason=reason_of(error))) from error
        if lang != self.vocab.lang:
            logger.warning(Warnings.CRFW992.format(source=source, lang=shown(lang), ours=shown(self.vocab.lang)))
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
        except (OSError, ValueError) as error:  # such as a path with a null character
            raise ValueError(Errors.CRF701.format(place=file, reason=error)) from error
        return self._load(data, str(file))


def _check_setting(name: str, saved: bool, ours: bool) -> None:
    """Compare a setting of a saved tokenizer with the config. RAISES (ValueError): CRF510 if they differ."""
    if saved != ours:
        raise ValueError(Errors.CRF510.format(setting=name, saved=saved, ours=ours))


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
    except (OSError, ValueError) as error:  # such as a path with a null character, or a file that is not UTF-8
        raise ValueError(Errors.CRF701.format(place=shown(str(words)), reason=error)) from error
    return [line.strip() for line in lines if line.strip()]
