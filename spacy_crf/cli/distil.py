"""The command `distil`: a pipeline (the teacher) annotates raw texts with probabilities, from which a faster pipeline learns by
the loss `spacy_crf.SoftLabels.v1`."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, tee
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Optional, Union

from spacy.cli._util import Arg, Opt
from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span, SpanGroup
from spacy.vocab import Vocab
from wasabi import msg

from .. import checks
from ..errors import Errors, counted, shown
from ..types import SOFT_LABELS
from ..whole_files import write_whole
from .formats.annotation import Span as Characters
from .formats.annotation import parse_span, tokenized
from .formats.source import Fields, Item, unreadable
from .shared import LangOption, blank, check_writable, command, load_pipeline, progress_bar, without_component
from .texts import read_items, read_raw

UNSURE = ""  # the label of tokens about which a teacher is unsure


class SoftLabel(NamedTuple):
    """Tokens `begin` up to, not including, `end`, and the probability that they are a span of the label."""

    begin: int
    end: int
    label: str
    prob: float

    @property
    def span(self) -> "Labelled":
        """The tokens and the label, without the probability."""
        return self.begin, self.end, self.label


Soft = list[SoftLabel]  # of one text
Labelled = tuple[int, int, str]  # first token, token behind the last, and label


class Answer(NamedTuple):
    """The answer of a teacher about one text."""

    place: str
    text: str
    spans: list[tuple[Characters, float]]  # with scores; the label UNSURE marks parts about which the teacher is unsure

    def of_tokens(self, doc: Doc) -> Soft:
        """Make soft labels for the tokens of a Doc. Where a span does not align with tokens, these are UNSURE."""
        soft = []
        for (start, end, label), score in self.spans:
            aligned = doc.char_span(start, end)
            expanded = doc.char_span(start, end, alignment_mode="expand")
            if aligned is not None and label:
                soft.append(SoftLabel(aligned.start, aligned.end, label, score))
            elif expanded is not None:
                soft.append(SoftLabel(expanded.start, expanded.end, UNSURE, 1.0))
        return soft


OWNER = "spacy crf distil"
_TEACHES = "to learn from: one of spacy_crf, one that writes spans with scores (such as spancat; name the key of any other with "
_TEACHES += "--spans-key), or one that finds entities"
_SOFTENER = "spacy_crf_softener"  # the component that `distil` adds behind the teacher
_PLACE = "spacy_crf_place"  # the key of doc.user_data for the file and line of a text


class Teacher(NamedTuple):
    """A pipeline, and the source of its probabilities. If `component` and `spans_key` are None, the source is the entities.

    component (str): The component that gives the probabilities, or None.
    spans_key (str): The key of ``doc.spans`` with scored spans, or None.
    score_extension (str): NAME of the extension ``span._.NAME`` with the probabilities of entities; None if entities are certain.
    """

    nlp: Language
    component: Optional[str]
    spans_key: Optional[str]
    score_extension: Optional[str] = None

    def __str__(self) -> str:
        if self.component:
            return f"probabilities of {self.component}"
        if self.spans_key:
            return f"doc.spans['{self.spans_key}']"
        return f"doc.ents, by span._.{self.score_extension}" if self.score_extension else "doc.ents, as certain"


class Answers(NamedTuple):
    """A file of answers that takes the place of a teacher."""

    path: Path
    by_text: dict[str, Answer]

    def __str__(self) -> str:
        return f"answers in {self.path}"


@command("distil")
def distil_cli(
    teacher: str = Arg(..., help="A pipeline (name of a package, or a folder), or a .jsonl file of answers."),
    texts: Optional[Path] = Arg(
        None, help="Raw texts: .jsonl, .spacy, or lines; - for the standard input. By default the texts of the answers."
    ),
    output: Path = Opt(..., "--output", "-o", help="The .spacy file to write."),
    others: Optional[list[str]] = Opt(
        None, "--teacher", help="Another teacher. Tokens where teachers differ stay open."
    ),
    component: Optional[str] = Opt(None, help="The teaching component; by default the last possible one."),
    spans_key: Optional[str] = Opt(None, help="Key of doc.spans with the teacher's spans and scores."),
    score_extension: Optional[str] = Opt(None, help="NAME of the extension span._.NAME with the scores of entities."),
    labels: Optional[str] = Opt(None, help="Only these labels, separated by commas."),
    min_prob: float = Opt(0.05, help="Leave out labels with a lower probability."),
    min_score: float = Opt(0.0, help="Leave tokens with a lower score open."),
    max_disagreement: float = Opt(1.0, help="Drop texts where teachers differ about a larger share of tokens."),
    n_process: int = Opt(1, help="Number of processes that annotate."),
    lang: LangOption = "en",
) -> None:
    """Annotate raw texts with the soft labels of a teacher. Another pipeline learns from them by "spacy_crf.SoftLabels.v1".

    The soft labels are the exact probabilities of a component of this package; the scores of spans in doc.spans, as spancat
    writes them; or the scores of entities in an extension. Entities without scores count as certain. The answers of other
    programs, such as language models, come from JSONL.
    """
    with progress_bar("annotating") as progress:
        names = [teacher, *(others or ())]
        files = [Path(name) if name.endswith(".jsonl") else None for name in names]
        check_writable(output, texts, *files)
        most = checks.number(OWNER, "--max-disagreement", max_disagreement, most=1.0)
        wanted = None if labels is None else [label.strip() for label in labels.split(",")]
        teachers: list[Union[Teacher, Answers]] = []
        for name, path in zip(names, files):
            if path is None:
                teachers.append(find_teacher(load_pipeline(name), component, spans_key, score_extension))
            else:
                answers = read_answers(path, wanted)
                teachers.append(Answers(path, {answer.text: answer for answer in answers}))
        msg.info(f"Soft labels: {'; '.join(map(str, teachers))}")
        # All teachers get the tokens of the first pipeline, so that their soft labels can be compared
        pipelines = [source.nlp for source in teachers if isinstance(source, Teacher)]
        nlp = pipelines[0] if pipelines else blank(lang)
        if texts is not None:
            raw = read_raw([texts], nlp, lambda done, total: progress(completed=done, total=total))
        elif isinstance(teachers[0], Answers):
            with_words = [answer for answer in teachers[0].by_text.values() if answer.text.strip()]
            raw = (Item(answer.place, tokenized(answer.text, nlp, answer.place)) for answer in with_words)
        else:
            raise ValueError(Errors.CRF788.format(option=f"The pipeline {teacher}", other="TEXTS"))
        settings = {"labels": wanted, "min_prob": min_prob, "min_score": min_score, "n_process": n_process}
        # Each teacher annotates its own copy of the stream of texts
        streams = [distil(source, copy, **settings) for source, copy in zip(teachers, tee(raw, len(teachers)))]
        docs = DocBin()
        n_spans = 0
        n_dropped = 0
        for by_teachers in zip(*streams):  # a text, as each teacher annotates it
            doc = by_teachers[0]
            if len(by_teachers) > 1:
                soft, disagreement = agreed(list(map(_soft_of, by_teachers)), len(doc))
                if disagreement > most:
                    n_dropped += 1
                    continue
                doc = _softened(doc, soft)
            docs.add(doc)
            n_spans += sum(bool(span.label) for span in doc.spans[SOFT_LABELS])
        if not len(docs):
            raise ValueError(Errors.CRF833.format(path=texts or teacher))
        write_whole(output, docs.to_bytes())
    if n_dropped:
        msg.info(f"Left out, since the teachers differ: {counted(n_dropped, 'text')}")
    msg.good(f"{output}: {counted(len(docs), 'text')}, {counted(n_spans, 'span')} with probabilities")


def find_teacher(
    nlp: Language,
    component: Optional[str] = None,
    spans_key: Optional[str] = None,
    score_extension: Optional[str] = None,
) -> Teacher:
    """Find the source of a teacher's probabilities: a component of spacy_crf, spans with scores, or entities.

    component (str): Name of the component; by default the last one of spacy_crf, else the last one that writes scored spans.
    RAISES (ValueError): CRF710 if there is no such source, CRF827 for one of several attributes, CRF020 if there is no such
        extension.
    """
    from ..pipeline.annotation.tags import TagSet
    from ..pipeline.prediction import CRFPipe

    pipes = [(name, pipe) for name, pipe in nlp.pipeline if component in (None, name)]
    if component is not None and not pipes:
        raise without_component(nlp, _TEACHES, component)
    if spans_key is not None:
        return Teacher(nlp, component=None, spans_key=spans_key)
    if score_extension is not None:
        must = (
            "the name of an attribute that the pipeline, or the file named by --code, registers with Span.set_extension"
        )
        known = Span.has_extension(score_extension)
        checks.expect(known, OWNER, "--score-extension", score_extension, must)
        return Teacher(nlp, component=None, spans_key=None, score_extension=score_extension)
    for name, pipe in reversed(pipes):
        if isinstance(pipe, CRFPipe):
            if isinstance(pipe.annotation, TagSet):
                raise ValueError(
                    Errors.CRF827.format(
                        name=name, attributes=", ".join(part.attribute for part in pipe.annotation.parts)
                    )
                )
            return Teacher(nlp, component=name, spans_key=None)
    for _, pipe in reversed(pipes):
        if isinstance(getattr(pipe, "key", None), str) and hasattr(pipe, "suggester"):
            return Teacher(nlp, component=None, spans_key=pipe.key)
    if not any("doc.ents" in nlp.get_pipe_meta(name).assigns for name, _ in pipes):
        raise without_component(nlp, _TEACHES)
    return Teacher(nlp, component=None, spans_key=None)


def distil(
    teacher: Union[Teacher, Answers],
    texts: Iterable[Item],
    *,
    labels: Optional[list[str]] = None,
    min_prob: float = 0.05,
    min_score: float = 0.0,
    n_process: int = 1,
) -> Iterator[Doc]:
    """Annotate texts with the soft labels of a teacher, one by one, and remove all other annotation.

    texts (Iterable[Item]): The place and the Doc of each text.
    labels (List[str]): The labels to keep; None for all.
    min_prob (float): Labels with a lower probability are left out.
    min_score (float): Tokens whose spans all score less are left open.
    n_process (int): Number of processes that annotate.
    RAISES (ValueError): CRF846 for labels that the teacher does not have; CRF787 with file and line of a text that the teacher
        can't annotate.
    """
    min_prob = checks.number(OWNER, "--min-prob", min_prob, most=1.0)
    min_score = checks.number(OWNER, "--min-score", min_score, most=1.0)
    n_process = checks.count(OWNER, "--n-process", n_process, most=1024)
    if isinstance(teacher, Answers):
        for place, doc in texts:
            if doc.text not in teacher.by_text:
                reason = f"{teacher.path} has no answer for the text '{doc.text[:40]}...'"
                raise ValueError(Errors.CRF787.format(place=place, error=reason, advice=""))
            soft = teacher.by_text[doc.text].of_tokens(doc)
            yield _softened(doc, certain(soft, min_prob, min_score, labels))
        return
    nlp = teacher.nlp
    component = teacher.component
    if component is not None:
        checks.labels("--labels", labels or (), nlp.get_pipe(component).labels)
    settings = {**teacher._asdict(), "labels": labels, "min_prob": min_prob, "min_score": min_score}
    del settings["nlp"]  # a config can't hold it; the others are arguments of `Softener`
    # The teaching component and those behind it stay off: the softener asks it for probabilities, and its own entities, if they
    # were in the Doc, would count as certain
    disabled = nlp.pipe_names[nlp.pipe_names.index(component) :] if component else []
    nlp.add_pipe(_SOFTENER, config=settings)
    handler = nlp.default_error_handler
    nlp.set_error_handler(_refuse)
    try:
        with nlp.select_pipes(disable=disabled):
            yield from nlp.pipe((_placed(doc, nlp.vocab, place) for place, doc in texts), n_process=n_process)
    finally:
        nlp.set_error_handler(handler)
        nlp.remove_pipe(_SOFTENER)


def _unannotated(doc: Doc, vocab: Vocab) -> Doc:
    """A Doc with the same words and no annotation."""
    return Doc(vocab, words=[token.text for token in doc], spaces=[bool(token.whitespace_) for token in doc])


def _placed(doc: Doc, vocab: Vocab, place: str) -> Doc:
    """A Doc with the same words and no annotation, which carries its file and line through the teacher's processes."""
    placed = _unannotated(doc, vocab)
    placed.user_data[_PLACE] = place
    return placed


def _softened(doc: Doc, soft: Soft) -> Doc:
    """A Doc with the same words, and soft labels as its only annotation."""
    softened = _unannotated(doc, doc.vocab)
    softened.spans[SOFT_LABELS] = SpanGroup(
        softened,
        spans=[Span(softened, part.begin, part.end, label=part.label) for part in soft],
        attrs={"scores": [part.prob for part in soft]},
    )
    return softened


def _soft_of(doc: Doc) -> Soft:
    """Read the soft labels that `_softened` has written to a Doc."""
    group = doc.spans[SOFT_LABELS]
    return [SoftLabel(span.start, span.end, span.label_, prob) for span, prob in zip(group, group.attrs["scores"])]


def _refuse(name: str, pipe: object, docs: list[Doc], error: Exception) -> NoReturn:
    """Handle an error of the teacher. RAISES (ValueError): CRF787 with the places of the texts."""
    _, code, message = str(error).strip().rpartition("CRF787")
    # The error has a place already: another process has raised it with a traceback, or a component within a component
    if code:
        raise ValueError(code + message) from error
    places = [doc.user_data[_PLACE] for doc in docs if _PLACE in doc.user_data]
    place = "".join(places[:1]) or "a text"
    if len(places) > 1:
        place = f"{places[0]} to {places[-1].rpartition(', ')[2]}"
    reason = f"the teacher's component '{name}': {error or type(error).__name__}"
    raise ValueError(Errors.CRF787.format(place=place, error=reason, advice="")) from error


# ------------------------------------------------------------------------------------------- in the teacher's processes


@Language.factory(_SOFTENER)
class Softener:
    """Component that replaces each Doc by a Doc with the teacher's probabilities and no other annotation."""

    def __init__(
        self,
        nlp: Language,
        name: str,
        component: Optional[str],
        spans_key: Optional[str],
        score_extension: Optional[str],
        labels: Optional[list[str]],
        min_prob: float,
        min_score: float,
    ):
        self._pipe = None if component is None else nlp.get_pipe(component)
        self._spans_key = spans_key
        self._score_extension = score_extension
        self._labels = labels
        self._min_prob = min_prob
        self._min_score = min_score

    def __call__(self, doc: Doc) -> Doc:
        """Return a Doc with the words of this one, and soft labels by the source of probabilities that `Teacher` describes."""
        from ..pipeline.supervision import soft_scores

        if self._pipe is not None:
            soft = _of_component(self._pipe, doc, self._min_prob)
        elif self._spans_key is not None:
            group = doc.spans.get(self._spans_key, ())
            scores = soft_scores(group, self._spans_key) if self._spans_key in doc.spans else ()
            soft = [SoftLabel(span.start, span.end, span.label_, score) for span, score in zip(group, scores)]
        else:
            soft = [SoftLabel(ent.start, ent.end, ent.label_, self._score(ent)) for ent in doc.ents]
        return _softened(doc, certain(soft, self._min_prob, self._min_score, self._labels))

    def _score(self, ent: Span) -> float:
        """The probability of an entity, from its extension; 1 without one. RAISES (ValueError): CRF020 for no probability."""
        if self._score_extension is None:
            return 1.0
        name = f"span._.{self._score_extension} of '{ent.text}'"
        return checks.number(OWNER, name, ent._.get(self._score_extension), most=1.0)


def _of_component(pipe: Any, doc: Doc, min_prob: float) -> Soft:
    """The labels of a Doc and their probabilities, by a component of spacy_crf. Entities of components in front of it count as
    certain."""
    if not len(doc):
        return []
    soft = []
    if pipe.decoding.outside < 0:  # every token has a label
        marginals, tags = pipe.marginals(doc, keep_annotation=True)
        # The most probable tag of a token has at least the probability 1 / len(tags), and is kept
        least = min(min_prob, 1.0 / len(tags))
        for t, n in zip(*(marginals >= least).nonzero()):
            if marginals[t, n] > 0.0:
                soft.append(SoftLabel(int(t), int(t) + 1, tags[n], float(marginals[t, n])))
        return soft
    spans = list(pipe.span_probabilities(doc, min_prob, keep_annotation=True))
    if not pipe.annotation.spans_are_tokens:
        spans += [(ent, 1.0) for ent in doc.ents if ent.label_ not in pipe.labels]
    for span, prob in spans:
        # Rounding may lift a sum of probabilities above 1
        soft.append(SoftLabel(span.start, span.end, span.label_, min(1.0, prob)))
    return sorted(soft)


# --------------------------------------------------------------------------------------------- answers of teachers


def read_answers(path: Path, labels: Optional[list[str]]) -> Iterator[Answer]:
    """Read answers from JSONL: each has a "text", its "entities", and optionally a list of its "unsure" parts.

    labels (list[str]): The labels that entities may have; None for any.
    RAISES (ValueError): With file and line, CRF701 or CRF871 for an answer that can't be read, CRF846 for other labels.
    """
    for place, fields in read_items(path):
        text = fields["text"]
        n_listed = Counter()  # by words, number of entities that the teacher lists without offsets
        entities = fields.get("entities")
        unsure = fields.get("unsure") or []
        if not isinstance(entities, list) or not isinstance(unsure, list):
            raise unreadable(place, 'an answer needs a list under "entities"; "unsure" is a list, too')
        spans = [_entity(entity, text, n_listed, labels, place) for entity in entities]
        # A teacher that lists some words n times means their first n occurrences: what it thinks of others is not known
        for words, n in n_listed.items():
            for begin in _occurrences(words, text, place)[n:]:
                spans.append((Characters(begin, begin + len(words), UNSURE), 1.0))
        for part in unsure:
            if isinstance(part, str) or (isinstance(part, dict) and "start" not in part):
                words: Any = part if isinstance(part, str) else part.get("text")
                for begin in _occurrences(words, text, place):
                    spans.append((Characters(begin, begin + len(words), UNSURE), 1.0))
            else:
                # `parse_span` refuses objects without a label
                labelled = {**part, "label": "unsure"} if isinstance(part, dict) else part
                spans.append((parse_span(labelled, text, place)._replace(label=UNSURE), 1.0))
        yield Answer(place, text, spans)


def _entity(
    entity: object, text: str, n_listed: Counter[str], labels: Optional[list[str]], place: str
) -> tuple[Characters, float]:
    """Read the span and the score of an entity. If it has words in place of offsets, it is counted in `n_listed`.

    n_listed (Counter[str]): By words, the number of entities in front of this one that have these words and no offsets.
    """
    fields: Fields = entity if isinstance(entity, dict) else {}
    label = fields.get("label", fields.get("entity_group"))
    score = fields.get("score", 1.0)
    if "start" in fields or "text" not in fields:
        span = parse_span({**fields, "label": label} if fields else entity, text, place)
    else:
        words = fields["text"]
        occurrences = _occurrences(words, text, place)
        # The next occurrence; the last one again, if the teacher lists the words more often than they occur
        begin = occurrences[min(n_listed[words], len(occurrences) - 1)]
        span = parse_span({"start": begin, "end": begin + len(words), "label": label}, text, place)
        n_listed[words] += 1
    if not isinstance(score, Real) or isinstance(score, bool) or not 0.0 <= score <= 1.0:  # pyright: ignore[reportOperatorIssue]
        raise unreadable(place, f"the score of {span.named_in(text)} is {shown(score)}, and needs to be from 0 to 1")
    if labels is not None:
        checks.labels(f"{place}, {span.named_in(text)}", [span.label], labels)
    return span, float(score)


def _occurrences(words: object, text: str, place: str) -> list[int]:
    """The characters of a text at which words begin: as whole words, or else as parts of words.

    RAISES (ValueError): CRF701 if the words do not occur in the text.
    """
    if isinstance(words, str) and words.strip():
        pattern = re.escape(words)
        for bounded in (rf"(?<!\w){pattern}(?!\w)", pattern):
            begins = [match.start() for match in re.finditer(bounded, text)]
            if begins:
                return begins
    raise unreadable(place, f"{shown(words)} does not occur in the text {shown(text)}")


def certain(soft: Soft, min_prob: float, min_score: float, labels: Optional[list[str]]) -> Soft:
    """Remove soft labels below `min_prob`, and labels other than `labels`. Tokens whose spans all score less than `min_score`
    become UNSURE."""
    likely = [part for part in soft if part.prob >= min_prob or part.label == UNSURE]
    if labels is not None:
        likely = [part for part in likely if part.label in (*labels, UNSURE)]
    sure = [part for part in likely if part.prob >= min_score or part.label == UNSURE]
    doubted = _tokens(likely) - _tokens(sure)
    return sorted([*sure, *_unsure_tokens(doubted)])


def agreed(answers: list[Soft], n_tokens: int) -> tuple[Soft, float]:
    """Average the soft labels of several teachers. Tokens where their most probable labels differ become UNSURE; a teacher that
    is unsure about a token leaves it to the others.

    RETURNS (Tuple[Soft, float]): The soft labels, and the share of tokens where teachers differ.
    """
    unsure = []  # by teacher: its UNSURE tokens
    # By token, the most probable labels that the teachers find there: spans, or None. Teachers that are unsure about the token do
    # not count
    decisions: list[set[Optional[Labelled]]] = [set() for _ in range(n_tokens)]
    for soft in answers:
        unsure_tokens = _tokens(part for part in soft if part.label == UNSURE)
        unsure.append(unsure_tokens)
        for t, decision in enumerate(_decisions(soft, n_tokens)):
            if t not in unsure_tokens:
                decisions[t].add(decision)
    differing = {t for t, of_teachers in enumerate(decisions) if len(of_teachers) > 1}
    unknown = differing | {t for t, of_teachers in enumerate(decisions) if not of_teachers}
    means = []
    for span in {part.span for part in chain.from_iterable(answers) if part.label != UNSURE}:
        begin, end, _ = span
        tokens = {*range(begin, end)}
        sure = [soft for soft, unsure_tokens in zip(answers, unsure) if not tokens & unsure_tokens]
        if sure and not tokens & unknown:
            total = sum(_prob_of(span, soft) for soft in sure)
            means.append(SoftLabel(*span, total / len(sure)))
    return sorted([*means, *_unsure_tokens(unknown)]), len(differing) / max(1, n_tokens)


def _tokens(parts: Iterable[SoftLabel]) -> set[int]:
    """The tokens that soft labels cover."""
    return set(chain.from_iterable(range(part.begin, part.end) for part in parts))


def _unsure_tokens(tokens: Iterable[int]) -> Soft:
    """Soft labels that say that a teacher is unsure about each of these tokens."""
    return [SoftLabel(t, t + 1, UNSURE, 1.0) for t in tokens]


def _prob_of(span: Labelled, soft: Soft) -> float:
    """The probability that a teacher gives a span; 0 if it has not found the span."""
    return max((part.prob for part in soft if part.span == span), default=0.0)


def _decisions(soft: Soft, n_tokens: int) -> list[Optional[Labelled]]:
    """For each token, the most probable span that covers it; None if no span has a probability of at least 0.5."""
    spans: list[Optional[Labelled]] = [None] * n_tokens
    # The most probable span is written last
    for part in sorted(soft, key=lambda part: part.prob):
        if part.label != UNSURE and part.prob >= 0.5:
            spans[part.begin : part.end] = [part.span] * (part.end - part.begin)
    return spans
