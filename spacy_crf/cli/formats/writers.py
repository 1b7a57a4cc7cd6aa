"""Writes the formats of `annotate`, for annotation tools and programs. `read` reads each of them back."""

import base64
import json
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import BinaryIO, NamedTuple

from spacy.tokens import Doc, Span, SpanGroup
from spacy.vocab import Vocab

from ...errors import Errors
from ...pipeline.corpora import doc_bin, origin_of
from .source import Fields


class Annotated(NamedTuple):
    """A text that a pipeline has annotated."""

    doc: Doc
    fields: Fields  # of the input, such as an id
    spans: list[tuple[Span, float]]  # with their probabilities
    doubtful: list[Span]  # spans below the least probability that the user wants


class Writer(NamedTuple):
    """A format."""

    render: Callable[[Annotated], str]  # makes the record of a text
    join: Callable[[Iterable[str], BinaryIO, Vocab], None]  # writes the records of a file
    suffix: str  # of the names of such files


def probability(span: Span) -> float:
    """The probability of a span; 1 if its component does not set it."""
    crf_prob = span._.crf_prob
    return 1.0 if crf_prob is None else round(crf_prob, 6)


def _prodigy(text: Annotated) -> str:
    """Make a task of Prodigy."""
    tokens = [
        {
            "text": token.text,
            "start": token.idx,
            "end": token.idx + len(token),
            "id": token.i,
            "ws": bool(token.whitespace_),
        }
        for token in text.doc
    ]
    spans = [{**_span(span, prob), "token_start": span.start, "token_end": span.end - 1} for span, prob in text.spans]
    meta = text.fields.get("meta", {})
    # The place goes into "meta", which Prodigy shows below the text and keeps. A "meta" that is no object stays as it is
    with_place = {"meta": {**origin_of(text.doc), **meta}} if isinstance(meta, dict) else {}
    return _line({**text.fields, **with_place, "text": text.doc.text, "tokens": tokens, "spans": spans})


def _span(span: Span, prob: float) -> Fields:
    """A span with its characters, label and probability, for JSON."""
    return {"start": span.start_char, "end": span.end_char, "label": span.label_, "prob": prob}


def _spans(text: Annotated) -> str:
    """Make a JSON object of the text, its spans, and its labels if it has any."""
    cats = {"cats": text.doc.cats} if text.doc.cats else {}
    spans = [_span(span, prob) for span, prob in text.spans]
    return _line({**origin_of(text.doc), **text.fields, "text": text.doc.text, "spans": spans, **cats})


def _doccano(text: Annotated) -> str:
    """Make a line of doccano's JSONL."""
    spans = [[span.start_char, span.end_char, span.label_] for span, _ in text.spans]
    return _line({**origin_of(text.doc), **text.fields, "text": text.doc.text, "label": spans})


def _labelstudio(text: Annotated) -> str:
    """Make a task of Label Studio, with the spans as a prediction."""
    result = [
        {
            "from_name": "label",
            "to_name": "text",
            "type": "labels",
            "value": {"start": span.start_char, "end": span.end_char, "text": span.text, "labels": [span.label_]},
            "score": prob,
        }
        for span, prob in text.spans
    ]
    # Label Studio sorts tasks by this score: the least certain span decides
    score = min((prob for _, prob in text.spans), default=1.0)
    data = {**origin_of(text.doc), **text.fields, "text": text.doc.text}
    return _line({"data": data, "predictions": [{"result": result, "score": score}]})


def _conll(text: Annotated) -> str:
    """Make the lines of words and tags of entities, without white space tokens. Tokens of doubtful entities have missing
    annotation ("-"). Where the pipeline sets no entities, the tags are `token.tag_`."""
    doc = text.doc
    blocks = ["-DOCSTART-\tO\n"]
    has_ents = doc.has_annotation("ENT_IOB")
    entity_tags: dict[int, str] = {}  # by the number of the token
    for span, _ in text.spans:
        # An entity may begin or end with white space, which columns can not hold
        words = [token.i for token in span if not token.is_space]
        entity_tags |= dict.fromkeys(words, f"I-{span.label_}") | dict.fromkeys(words[:1], f"B-{span.label_}")
    entity_tags |= {token.i: "-" for token in chain.from_iterable(text.doubtful)}
    entity_tags |= {token.i: "-" for token in doc if token.ent_iob == 0}  # missing in the Doc
    for sentence in doc.sents if doc.has_annotation("SENT_START") else [doc[:]]:
        rows = []
        for token in sentence:
            tag = entity_tags.get(token.i, "O") if has_ents else token.tag_ or "-"
            if not token.is_space:
                rows.append(f"{token.text}\t{tag}\n")
        blocks.append("".join(rows))
    return "\n".join(blocks) + "\n"


def _spacy(text: Annotated) -> str:
    """Make the bytes of the Doc, in base 64. Tokens of doubtful entities have missing annotation; doubtful spans of groups are
    left out. The Doc is changed."""
    doc = text.doc
    likely = [span for span, _ in text.spans]
    doubtful = {*text.doubtful}
    if doc.has_annotation("ENT_IOB"):
        ents = {*doc.ents}
        missing = [span for span in text.doubtful if span in ents]
        missing += [doc[token.i : token.i + 1] for token in doc if token.ent_iob == 0]
        doc.set_ents([span for span in likely if span in ents], missing=missing, default="outside")
    for key, group in doc.spans.items():
        scores = group.attrs.get("scores")
        if doubtful and scores is not None:
            kept = [n for n, span in enumerate(group) if span not in doubtful]
            doc.spans[key] = SpanGroup(
                doc, name=key, spans=[group[n] for n in kept], attrs={**group.attrs, "scores": scores[kept]}
            )
    return base64.b64encode(doc.to_bytes()).decode("ascii")


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"


def _join_lines(records: Iterable[str], file: BinaryIO, vocab: Vocab) -> None:
    """Write records that are whole lines."""
    for record in records:
        file.write(record.encode("utf8"))


def _join_list(records: Iterable[str], file: BinaryIO, vocab: Vocab) -> None:
    """Write records as one JSON list. Each is written at once, since an archive does not fit into memory."""
    separator = "["
    for record in records:
        file.write((separator + "\n" + record.rstrip("\n")).encode("utf8"))
        separator = ","
    file.write(b"\n]\n" if separator == "," else b"[]\n")


def _join_docs(records: Iterable[str], file: BinaryIO, vocab: Vocab) -> None:
    """Write records of Docs, which have this vocab, as a .spacy file."""
    docs = doc_bin(Doc(vocab).from_bytes(base64.b64decode(record)) for record in records)
    file.write(docs.to_bytes())


WRITERS = {
    "prodigy": Writer(_prodigy, _join_lines, ".jsonl"),
    "spans": Writer(_spans, _join_lines, ".jsonl"),
    "doccano": Writer(_doccano, _join_lines, ".jsonl"),
    "labelstudio": Writer(_labelstudio, _join_list, ".json"),
    "conll": Writer(_conll, _join_lines, ".conll"),
    "spacy": Writer(_spacy, _join_docs, ".spacy"),
}
WITHOUT_SPANS = ("conll", "spacy")  # formats that take tags of tokens too


def check_spans(format_: str, doc: Doc, groups: Sequence[SpanGroup] = ()) -> None:
    """Check that a Doc, with groups of spans that the pipeline sets, fits a format.

    RAISES (ValueError): CRF874 if the pipeline sets only tags or labels of texts, and the format has no place for these; CRF883
        if spans of groups don't fit.
    """
    if format_ == "conll" and groups:
        raise ValueError(Errors.CRF883.format(key=groups[0].name))
    has_spans = groups or doc.has_annotation("ENT_IOB") or (format_ == "spans" and doc.cats)
    loses_cats = format_ == "conll" and doc.cats and not has_spans and not doc.has_annotation("TAG")
    loses_tags = format_ not in WITHOUT_SPANS and not has_spans
    if len(doc) and (loses_cats or loses_tags):  # an empty Doc has no annotation at all
        raise ValueError(Errors.CRF874.format(format=format_, known=" or ".join(WITHOUT_SPANS)))
