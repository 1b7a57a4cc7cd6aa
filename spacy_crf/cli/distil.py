"""Let a pipeline, the teacher, annotate raw texts with probabilities, from which a faster one learns by
`spacy_crf.SoftLabels.v1`."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn, Optional

import typer
from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span, SpanGroup
from wasabi import msg

from .. import checks
from ..errors import Errors, no_component
from ..types import SOFT_LABELS
from ..whole_files import write_whole
from .shared import check_writable, command, load_pipeline, progress_bar
from .texts import RawText, read_raw

OWNER = "spacy crf distil"
_TEACHES = "to learn from: one of spacy_crf, one that writes spans with scores (such as spancat; name the key of any other with "
_TEACHES += "--spans-key), or one that finds entities"
_SOFTENER = "spacy_crf_softener"  # a component that is added behind the teacher
Soft = list[tuple[int, int, str, float]]  # first token, token behind, label, probability


class Teacher(NamedTuple):
    """A pipeline, and the source of its probabilities.

    component (str): The component whose probabilities are taken, or None.
    spans_key (str): The key of ``doc.spans`` with the probabilities, or None. If both are None, entities count as certain.
    """

    nlp: Language
    component: Optional[str]
    spans_key: Optional[str]

    def __str__(self) -> str:
        source = self.component or (f"doc.spans['{self.spans_key}']" if self.spans_key else "doc.ents, as certain")
        return f"probabilities of {source}" if self.component else source


@command("distil")
def distil_cli(
    teacher: Annotated[str, typer.Argument(help="A pipeline: the name of a package, or a folder.")],
    texts: Annotated[Path, typer.Argument(help="Raw texts: .jsonl, .spacy, or lines; - for the standard input.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The .spacy file to write.")],
    component: Annotated[
        Optional[str],
        typer.Option("--component", "-c", help="The component that teaches; by default the last that can."),
    ] = None,
    spans_key: Annotated[
        Optional[str], typer.Option("--spans-key", help="Key of doc.spans with the teacher's spans and scores.")
    ] = None,
    labels: Annotated[Optional[str], typer.Option("--labels", help="Only these labels, between commas.")] = None,
    min_prob: Annotated[float, typer.Option("--min-prob", help="Leave out less probable labels.")] = 0.05,
    n_process: Annotated[int, typer.Option("--n-process", help="Number of processes that annotate.")] = 1,
) -> None:
    """Let a pipeline annotate raw texts with soft labels. Another one learns from them by the loss "spacy_crf.SoftLabels.v1".

    A component of this package tells its exact probabilities. Others write spans with scores into doc.spans, as spancat does;
    where there are none, the entities that are found count as certain.
    """
    with progress_bar("annotating") as progress:
        check_writable(output, texts)
        found = find_teacher(load_pipeline(teacher), component, spans_key)
        wanted = None if labels is None else [label.strip() for label in labels.split(",")]
        msg.info(f"Soft labels: {found}")
        docs, n_spans = DocBin(), 0
        raw = read_raw([texts], found.nlp, lambda done, total: progress(completed=done, total=total))
        for text in distil(found, raw, labels=wanted, min_prob=min_prob, n_process=n_process):
            docs.add(text.doc)
            n_spans += len(text.doc.spans[SOFT_LABELS])
        if not len(docs):
            raise ValueError(Errors.CRF833.format(path=texts))
        write_whole(output, docs.to_bytes())
    msg.good(f"{output}: {len(docs):,} texts, {n_spans:,} spans with their probabilities")


def find_teacher(nlp: Language, component: Optional[str] = None, spans_key: Optional[str] = None) -> Teacher:
    """Find the source of a teacher's probabilities: one of our components, spans with scores, or entities.

    component (str): Name of the component; by default the last one of ours, else the last one that writes spans with scores.
    spans_key (str): Take the spans under this key of ``doc.spans``.
    RAISES (ValueError): CRF710 if there is no such source.
    """
    from ..pipeline.prediction import CRFPipe

    pipes = [(name, pipe) for name, pipe in nlp.pipeline if component in (None, name)]
    if component is not None and not pipes:
        raise no_component(_TEACHES, nlp.pipe_names, component)
    if spans_key is not None:
        return Teacher(nlp, None, spans_key)
    for name, pipe in reversed(pipes):
        if isinstance(pipe, CRFPipe):
            return Teacher(nlp, name, None)
    for _, pipe in reversed(pipes):
        if isinstance(getattr(pipe, "key", None), str) and hasattr(pipe, "suggester"):
            return Teacher(nlp, None, pipe.key)
    if not any("doc.ents" in nlp.get_pipe_meta(name).assigns for name, _ in pipes):
        raise no_component(_TEACHES, nlp.pipe_names)
    return Teacher(nlp, None, None)


def distil(
    teacher: Teacher,
    texts: Iterable[RawText],
    *,
    labels: Optional[Iterable[str]] = None,
    min_prob: float = 0.05,
    n_process: int = 1,
) -> Iterator[RawText]:
    """Annotate texts by a teacher, one by one. Other annotation is removed.

    texts (Iterable[RawText]): Docs of tokens, with their places.
    labels (Iterable[str]): Only these labels.
    min_prob (float): Less probable spans are left out.
    n_process (int): Number of processes that annotate.
    RAISES (ValueError): CRF846 for labels that the teacher does not have; CRF787 with file and line of a text that the teacher
        can't annotate.
    """
    nlp, component, spans_key = teacher
    min_prob = checks.number(OWNER, "--min-prob", min_prob, most=1.0)
    n_process = checks.count(OWNER, "--n-process", n_process, most=1024)
    labels = None if labels is None else list(labels)
    if component is not None:
        checks.labels("--labels", labels or (), nlp.get_pipe(component).labels)
    settings = {"component": component, "spans_key": spans_key, "labels": labels, "min_prob": min_prob}
    # Components behind the teacher add nothing, and entities that the teacher sets would count as certain
    left_out = nlp.pipe_names[nlp.pipe_names.index(component) :] if component else []
    nlp.add_pipe(_SOFTENER, config=settings)
    handler = nlp.default_error_handler
    nlp.set_error_handler(_refuse)
    try:
        with nlp.select_pipes(disable=left_out):
            pairs = ((_unannotated(text.doc), text._replace(doc=None)) for text in texts)
            for doc, text in nlp.pipe(pairs, as_tuples=True, n_process=n_process):
                yield text._replace(doc=doc)
    finally:
        nlp.set_error_handler(handler)
        nlp.remove_pipe(_SOFTENER)


def _unannotated(doc: Doc) -> Doc:
    """A Doc with the same words and no annotation."""
    return Doc(doc.vocab, words=[token.text for token in doc], spaces=[bool(token.whitespace_) for token in doc])


def _refuse(name: str, pipe: Any, docs: list[Doc], error: Exception) -> NoReturn:
    """RAISES (ValueError): CRF787 with the places of the texts."""
    _, code, said = str(error).strip().rpartition("CRF787")
    if code:  # raised by another component, or with a traceback by another process
        raise ValueError(code + said) from error
    places = [doc._context.place for doc in docs if doc._context is not None]
    place = f"{places[0]} to {places[-1].rpartition(', ')[2]}" if len(places) > 1 else "".join(places) or "a text"
    reason = f"the teacher's component '{name}': {error or type(error).__name__}"
    raise ValueError(Errors.CRF787.format(place=place, error=reason, advice="")) from error


# ------------------------------------------------------------------------------------------- in the teacher's processes


@Language.factory(_SOFTENER)
class Softener:
    """Replaces each Doc by one with the teacher's probabilities and no other annotation."""

    def __init__(
        self,
        nlp: Language,
        name: str,
        component: Optional[str],
        spans_key: Optional[str],
        labels: Optional[list[str]],
        min_prob: float,
    ):
        self._pipe = None if component is None else nlp.get_pipe(component)
        self._spans_key, self._labels, self._min_prob = spans_key, labels, min_prob

    def __call__(self, doc: Doc) -> Doc:
        from ..pipeline.supervision import soft_scores

        if self._pipe is not None:
            found = _of_component(self._pipe, doc, self._min_prob)
        elif self._spans_key is not None:
            group = doc.spans.get(self._spans_key, ())
            scores = soft_scores(group, self._spans_key) if self._spans_key in doc.spans else ()
            found = [(span.start, span.end, span.label_, score) for span, score in zip(group, scores)]
        else:
            found = [(ent.start, ent.end, ent.label_, 1.0) for ent in doc.ents]
        wanted = [
            part for part in found if part[3] >= self._min_prob and (self._labels is None or part[2] in self._labels)
        ]
        soft = _unannotated(doc)
        soft._context = doc._context
        spans = [Span(soft, begin, end, label=label) for begin, end, label, _ in wanted]
        soft.spans[SOFT_LABELS] = SpanGroup(soft, spans=spans, attrs={"scores": [score for *_, score in wanted]})
        return soft


def _of_component(pipe: Any, doc: Doc, min_prob: float) -> Soft:
    """Labels and probabilities of one of our components, and entities of components in front of it as certain."""
    if not len(doc):
        return []
    if pipe.annotation.spans_are_tokens:
        marginals, tags = pipe.marginals(doc, keep_annotation=True)
        likely = zip(*(marginals >= min(min_prob, 1.0 / len(tags))).nonzero())
        return [(int(t), int(t) + 1, tags[n], float(marginals[t, n])) for t, n in likely if marginals[t, n] > 0.0]
    found = pipe.span_probabilities(doc, min_prob, keep_annotation=True)
    others = [(ent, 1.0) for ent in doc.ents if ent.label_ not in pipe.labels]  # of components in front of it
    return sorted((span.start, span.end, span.label_, min(1.0, p)) for span, p in (*found, *others))
