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
from ..errors import Errors, counted, no_component, shown
from ..types import SOFT_LABELS
from ..whole_files import write_whole
from .formats.annotation import Span as Characters
from .formats.annotation import parse_span, tokenized
from .formats.source import Fields, Item, unreadable
from .shared import LangOption, blank, check_writable, command, load_pipeline, progress_bar
from .texts import read_items, read_raw

# First token, token behind the last, label ("" for unknown), probability
Soft = list[tuple[int, int, str, float]]
Labelled = tuple[int, int, str]  # the first three of these
UNSURE = ""


class Answer(NamedTuple):
    """The answer of a teacher about one text."""

    place: str
    text: str
    spans: list[tuple[Characters, float]]  # with scores; the label UNSURE marks parts about which the teacher is unsure

    def of_tokens(self, doc: Doc) -> Soft:
        """Soft labels of the tokens of a Doc. Tokens of a span that does not align with them are UNSURE."""
        found = []
        for (start, end, label), score in self.spans:
            exact = doc.char_span(start, end)
            touched = doc.char_span(start, end, alignment_mode="expand")
            if exact is not None and label:
                found.append((exact.start, exact.end, label, score))
            elif touched is not None:
                found.append((touched.start, touched.end, UNSURE, 1.0))
        return found


OWNER = "spacy crf distil"
_TEACHES = "to learn from: one of spacy_crf, one that writes spans with scores (such as spancat; name the key of any other with "
_TEACHES += "--spans-key), or one that finds entities"
# Component that `distil` adds behind the teacher
_SOFTENER = "spacy_crf_softener"
# In user_data: file and line of a text
_PLACE = "spacy_crf_place"


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
        of_ents = f"doc.ents, by span._.{self.score_extension}" if self.score_extension else "doc.ents, as certain"
        source = self.component or (f"doc.spans['{self.spans_key}']" if self.spans_key else of_ents)
        return f"probabilities of {source}" if self.component else source


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
        nlp = next((each.nlp for each in teachers if isinstance(each, Teacher)), None) or blank(lang)
        if texts is not None:
            raw = read_raw([texts], nlp, lambda done, total: progress(completed=done, total=total))
        elif isinstance(teachers[0], Answers):
            answers = teachers[0].by_text.values()
            raw = (Item(each.place, tokenized(each.text, nlp, each.place)) for each in answers if each.text.strip())
        else:
            raise ValueError(Errors.CRF788.format(option=f"The pipeline {teacher}", other="TEXTS"))
        settings = {"labels": wanted, "min_prob": min_prob, "min_score": min_score, "n_process": n_process}
        streams = [distil(each, part, **settings) for each, part in zip(teachers, tee(raw, len(teachers)))]
        docs = DocBin()
        n_spans = 0
        n_dropped = 0
        for of_text in zip(*streams):  # by each teacher
            doc = of_text[0]
            if len(of_text) > 1:
                found, share = agreed([_soft_of(each) for each in of_text], len(doc))
                doc = _softened(doc, found)
                if share > most:
                    n_dropped += 1
                    continue
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
        raise no_component(_TEACHES, nlp.pipe_names, component)
    if spans_key is not None:
        return Teacher(nlp, None, spans_key)
    if score_extension is not None:
        must = (
            "the name of an attribute that the pipeline, or the file named by --code, registers with Span.set_extension"
        )
        known = Span.has_extension(score_extension)
        checks.expect(known, OWNER, "--score-extension", score_extension, must)
        return Teacher(nlp, None, None, score_extension)
    for name, pipe in reversed(pipes):
        if isinstance(pipe, CRFPipe):
            if isinstance(pipe.annotation, TagSet):
                raise ValueError(
                    Errors.CRF827.format(
                        name=name, attributes=", ".join(part.attribute for part in pipe.annotation.parts)
                    )
                )
            return Teacher(nlp, name, None)
    for _, pipe in reversed(pipes):
        if isinstance(getattr(pipe, "key", None), str) and hasattr(pipe, "suggester"):
            return Teacher(nlp, None, pipe.key)
    if not any("doc.ents" in nlp.get_pipe_meta(name).assigns for name, _ in pipes):
        raise no_component(_TEACHES, nlp.pipe_names)
    return Teacher(nlp, None, None)


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

    labels, min_prob, min_score, n_process: As of the command; by default all labels.
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
            found = teacher.by_text[doc.text].of_tokens(doc)
            yield _softened(doc, certain(found, min_prob, min_score, labels))
        return
    nlp, component, *_ = teacher
    if component is not None:
        checks.labels("--labels", labels or (), nlp.get_pipe(component).labels)
    settings = {**teacher._asdict(), "labels": labels, "min_prob": min_prob, "min_score": min_score}
    del settings["nlp"]
    # Components behind the teacher add nothing, and its own entities would count as certain: the teacher and those stay off
    left_out = nlp.pipe_names[nlp.pipe_names.index(component) :] if component else []
    nlp.add_pipe(_SOFTENER, config=settings)
    handler = nlp.default_error_handler
    nlp.set_error_handler(_refuse)
    try:
        with nlp.select_pipes(disable=left_out):
            yield from nlp.pipe((_placed(doc, nlp.vocab, place) for place, doc in texts), n_process=n_process)
    finally:
        nlp.set_error_handler(handler)
        nlp.remove_pipe(_SOFTENER)


def _unannotated(doc: Doc, vocab: Vocab) -> Doc:
    """A Doc with the same words and no annotation."""
    return Doc(vocab, words=[token.text for token in doc], spaces=[bool(token.whitespace_) for token in doc])


def _placed(doc: Doc, vocab: Vocab, place: str) -> Doc:
    """A Doc with the same words, which knows its file and line and has no annotation."""
    placed = _unannotated(doc, vocab)
    placed.user_data[_PLACE] = place
    return placed


def _softened(doc: Doc, found: Soft) -> Doc:
    """A Doc with the same words and these soft labels."""
    soft = _unannotated(doc, doc.vocab)
    soft.spans[SOFT_LABELS] = SpanGroup(
        soft,
        spans=[Span(soft, begin, end, label=label) for begin, end, label, _ in found],
        attrs={"scores": [score for *_, score in found]},
    )
    return soft


def _soft_of(doc: Doc) -> Soft:
    """The soft labels of a Doc."""
    group = doc.spans[SOFT_LABELS]
    return [(span.start, span.end, span.label_, score) for span, score in zip(group, group.attrs["scores"])]


def _refuse(name: str, pipe: object, docs: list[Doc], error: Exception) -> NoReturn:
    """Handle an error of the teacher. RAISES (ValueError): CRF787 with the places of the texts."""
    _, code, said = str(error).strip().rpartition("CRF787")
    # Raised by another component, or with a traceback by another process
    if code:
        raise ValueError(code + said) from error
    places = [doc.user_data[_PLACE] for doc in docs if _PLACE in doc.user_data]
    reason = f"the teacher's component '{name}': {error or type(error).__name__}"
    raise ValueError(
        Errors.CRF787.format(
            place=f"{places[0]} to {places[-1].rpartition(', ')[2]}"
            if len(places) > 1
            else "".join(places) or "a text",
            error=reason,
            advice="",
        )
    ) from error


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
        from ..pipeline.supervision import soft_scores

        if self._pipe is not None:
            found = _of_component(self._pipe, doc, self._min_prob)
        elif self._spans_key is not None:
            group = doc.spans.get(self._spans_key, ())
            scores = soft_scores(group, self._spans_key) if self._spans_key in doc.spans else ()
            found = [(span.start, span.end, span.label_, score) for span, score in zip(group, scores)]
        else:
            found = [(ent.start, ent.end, ent.label_, self._score(ent)) for ent in doc.ents]
        return _softened(doc, certain(found, self._min_prob, self._min_score, self._labels))

    def _score(self, ent: Span) -> float:
        if self._score_extension is None:
            return 1.0
        name = f"span._.{self._score_extension} of '{ent.text}'"
        return checks.number(OWNER, name, ent._.get(self._score_extension), most=1.0)


def _of_component(pipe: Any, doc: Doc, min_prob: float) -> Soft:
    """Labels and probabilities of a component of spacy_crf. Entities of components in front of it count as certain."""
    if not len(doc):
        return []
    if pipe.annotation.spans_are_tokens:
        marginals, tags = pipe.marginals(doc, keep_annotation=True)
        likely = zip(*(marginals >= min(min_prob, 1.0 / len(tags))).nonzero())
        return [(int(t), int(t) + 1, tags[n], float(marginals[t, n])) for t, n in likely if marginals[t, n] > 0.0]
    found = pipe.span_probabilities(doc, min_prob, keep_annotation=True)
    # Of components in front of it
    others = [(ent, 1.0) for ent in doc.ents if ent.label_ not in pipe.labels]
    return sorted((span.start, span.end, span.label_, min(1.0, p)) for span, p in (*found, *others))


# --------------------------------------------------------------------------------------------- answers of teachers


def read_answers(path: Path, labels: Optional[list[str]]) -> Iterator[Answer]:
    """Read answers from JSONL: each has a "text", its "entities", and optionally a list of its "unsure" parts.

    labels (list[str]): The labels that entities may have; None for any.
    RAISES (ValueError): With file and line, CRF701 or CRF871 for an answer that can't be read, CRF846 for other labels.
    """
    for place, fields in read_items(path):
        text = fields["text"]
        met = Counter()
        entities = fields.get("entities")
        unsure = fields.get("unsure") or []
        if not isinstance(entities, list) or not isinstance(unsure, list):
            raise unreadable(place, 'an answer needs a list under "entities"; "unsure" is a list, too')
        spans = [_entity(entity, text, met, labels, place) for entity in entities]
        # A teacher that lists some words twice means the first two occurrences
        # Further occurrences of words that the teacher listed n times
        for words, n in met.items():
            spans += [(Characters(begin, begin + len(words), UNSURE), 1.0) for begin in _places(words, text, place)[n:]]
        for part in unsure:
            if isinstance(part, str) or (isinstance(part, dict) and "start" not in part):
                words: Any = part if isinstance(part, str) else part.get("text")
                spans += [(Characters(at, at + len(words), UNSURE), 1.0) for at in _places(words, text, place)]
            else:
                given = {**part, "label": "unsure"} if isinstance(part, dict) else part
                spans.append((parse_span(given, text, place)._replace(label=UNSURE), 1.0))
        yield Answer(place, text, spans)


def _entity(
    entity: object, text: str, met: Counter[str], labels: Optional[list[str]], place: str
) -> tuple[Characters, float]:
    """Read the span and the score of an entity. met (Counter[str]): Number of earlier entities with the same words, by words."""
    fields: Fields = entity if isinstance(entity, dict) else {}
    label = fields.get("label", fields.get("entity_group"))
    score = fields.get("score", 1.0)
    if "start" in fields or "text" not in fields:
        span = parse_span({**fields, "label": label} if fields else entity, text, place)
    else:
        words = fields["text"]
        places = _places(words, text, place)
        begin = places[min(met[words], len(places) - 1)]
        span = parse_span({"start": begin, "end": begin + len(words), "label": label}, text, place)
        met[words] += 1
    if not isinstance(score, Real) or isinstance(score, bool) or not 0.0 <= score <= 1.0:  # pyright: ignore[reportOperatorIssue]
        raise unreadable(place, f"the score of {span.named_in(text)} is {shown(score)}, and needs to be from 0 to 1")
    if labels is not None:
        checks.labels(f"{place}, {span.named_in(text)}", [span.label], labels)
    return span, float(score)


def _places(words: object, text: str, place: str) -> list[int]:
    """Places of some words in a text, as whole words or else anywhere. RAISES (ValueError): CRF701 if they do not occur."""
    if isinstance(words, str) and words.strip():
        pattern = re.escape(words)
        # Language models write words without their places: whole words are likelier than parts
        for around in (rf"(?<!\w){pattern}(?!\w)", pattern):
            found = [match.start() for match in re.finditer(around, text)]
            if found:
                return found
    raise unreadable(place, f"{shown(words)} does not occur in the text {shown(text)}")


def certain(found: Soft, min_prob: float, min_score: float, labels: Optional[list[str]]) -> Soft:
    """Remove soft labels below `min_prob`, and labels other than `labels`. Tokens whose spans all score less than `min_score`
    become UNSURE."""
    # Parts without a label are UNSURE, and stay whatever is asked for
    wanted = [part for part in found if not part[2] or (part[3] >= min_prob and (labels is None or part[2] in labels))]
    sure = [part for part in wanted if not part[2] or part[3] >= min_score]
    doubted = _tokens(wanted) - _tokens(sure)
    return sorted([*sure, *((t, t + 1, UNSURE, 1.0) for t in doubted)])


def agreed(answers: list[Soft], n_tokens: int) -> tuple[Soft, float]:
    """Average the soft labels of several teachers. Tokens where their most probable labels differ become UNSURE; a teacher that
    is unsure about a token leaves it to the others.

    RETURNS (Tuple[Soft, float]): The soft labels, and the share of tokens where teachers differ.
    """
    unsure = []
    for found in answers:
        unsure.append(_tokens(part for part in found if not part[2]))
    opinions: list[set[Optional[Labelled]]] = [
        set() for _ in range(n_tokens)
    ]  # by token, of the teachers that are sure
    for found, open_ in zip(answers, unsure):
        for t, decision in enumerate(_decisions(found, n_tokens)):
            if t not in open_:
                opinions[t].add(decision)
    differ = {t for t, of_token in enumerate(opinions) if len(of_token) > 1}
    unknown = differ | {t for t, of_token in enumerate(opinions) if not of_token}
    means = []
    for span in {part[:3] for part in chain.from_iterable(answers) if part[2]}:
        tokens = {*range(span[0], span[1])}
        asked = [found for found, open_ in zip(answers, unsure) if not tokens & open_]
        if asked and not tokens & unknown:
            scores = [_score_of(span, found) for found in asked]
            means.append((*span, sum(scores) / len(scores)))
    return sorted([*means, *((t, t + 1, UNSURE, 1.0) for t in unknown)]), len(differ) / max(1, n_tokens)


def _tokens(parts: Iterable[tuple[int, int, str, float]]) -> set[int]:
    return set(chain.from_iterable(range(begin, end) for begin, end, *_ in parts))


def _score_of(span: Labelled, found: Soft) -> float:
    """The score that a teacher gives a span; 0 if it has not found the span."""
    return max((part[3] for part in found if part[:3] == span), default=0.0)


def _decisions(found: Soft, n_tokens: int) -> list[Optional[Labelled]]:
    """For each token, the span with a probability of at least 0.5 that covers it, or None."""
    of_tokens: list[Optional[Labelled]] = [None] * n_tokens
    # The most probable span is written last
    for begin, end, label, score in sorted(found, key=lambda part: part[3]):
        if label and score >= 0.5:
            of_tokens[begin:end] = [(begin, end, label)] * (end - begin)
    return of_tokens
