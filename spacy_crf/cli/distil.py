"""The command `distil`: a pipeline (the teacher) annotates raw texts with probabilities, from which a faster pipeline learns by
the loss `spacy_crf.SoftLabels.v1`."""

from collections.abc import Iterable, Iterator
from itertools import tee
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Optional, Union

from spacy.cli._util import Arg, Opt
from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span, SpanGroup
from spacy.vocab import Vocab
from wasabi import msg

from .. import checks
from ..errors import Errors, counted, no_component
from ..types import SOFT_LABELS
from ..whole_files import write_whole
from .answers import Answer, Soft, agreed, certain, read_answers
from .formats.annotation import tokenized
from .formats.source import Item
from .shared import LangOption, blank, check_writable, command, load_pipeline, progress_bar
from .texts import read_raw

OWNER = "spacy crf distil"
_TEACHES = "to learn from: one of spacy_crf, one that writes spans with scores (such as spancat; name the key of any other with "
_TEACHES += "--spans-key), or one that finds entities"
_SOFTENER = "spacy_crf_softener"  # component that `distil` adds behind the teacher


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
            pairs = ((_unannotated(doc, nlp.vocab), place) for place, doc in texts)
            yield from (doc for doc, _ in nlp.pipe(pairs, as_tuples=True, n_process=n_process))
    finally:
        nlp.set_error_handler(handler)
        nlp.remove_pipe(_SOFTENER)


def _unannotated(doc: Doc, vocab: Vocab) -> Doc:
    """A Doc with the same words and no annotation."""
    return Doc(vocab, words=[token.text for token in doc], spaces=[bool(token.whitespace_) for token in doc])


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
    if code:  # raised by another component, or with a traceback by another process
        raise ValueError(code + said) from error
    places = [doc._context for doc in docs if doc._context is not None]
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
        soft = _softened(doc, certain(found, self._min_prob, self._min_score, self._labels))
        soft._context = doc._context
        return soft

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
    others = [(ent, 1.0) for ent in doc.ents if ent.label_ not in pipe.labels]  # of components in front of it
    return sorted((span.start, span.end, span.label_, min(1.0, p)) for span, p in (*found, *others))
