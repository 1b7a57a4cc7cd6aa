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
    """A text with its predicted spans, and the fields of its input, such as an id."""

    doc: Doc
    fields: Fields
    spans: list[tuple[Span, float]]  # with their probabilities
    doubtful: list[Span]  # spans below the least probability


class Writer(NamedTuple):
    """A format. render: Makes the record of a text. join: Writes records to a file. suffix: The suffix of such files."""

    render: Callable[[Annotated], str]
    join: Callable[[Iterable[str], BinaryIO, Vocab], None]
    suffix: str


def probability(span: Span) -> float:
    """The probability of a span; 1 if its component does not set it."""
    known = span._.crf_prob
    return 1.0 if known is None else round(known, 6)


def _prodigy(found: Annotated) -> str:
    tokens = [
        {
            "text": token.text,
            "start": token.idx,
            "end": token.idx + len(token),
            "id": token.i,
            "ws": bool(token.whitespace_),
        }
        for token in found.doc
    ]
    spans = [{**_span(span, prob), "token_start": span.start, "token_end": span.end - 1} for span, prob in found.spans]
    given = found.fields.get("meta", {})
    # The place goes into "meta", which Prodigy shows below the text and keeps
    meta = {"meta": {**origin_of(found.doc), **given}} if isinstance(given, dict) else {}
    return _line({**found.fields, **meta, "text": found.doc.text, "tokens": tokens, "spans": spans})


def _span(span: Span, prob: float) -> Fields:
    return {"start": span.start_char, "end": span.end_char, "label": span.label_, "prob": prob}


def _spans(found: Annotated) -> str:
    """Write text, spans, and the labels of the text if it has any."""
    cats = {"cats": found.doc.cats} if found.doc.cats else {}
    spans = [_span(span, prob) for span, prob in found.spans]
    return _line({**origin_of(found.doc), **found.fields, "text": found.doc.text, "spans": spans, **cats})


def _doccano(found: Annotated) -> str:
    spans = [[span.start_char, span.end_char, span.label_] for span, _ in found.spans]
    return _line({**origin_of(found.doc), **found.fields, "text": found.doc.text, "label": spans})


def _labelstudio(found: Annotated) -> str:
    result = [
        {
            "from_name": "label",
            "to_name": "text",
            "type": "labels",
            "value": {"start": span.start_char, "end": span.end_char, "text": span.text, "labels": [span.label_]},
            "score": prob,
        }
        for span, prob in found.spans
    ]
    # Label Studio sorts tasks by this score: the least certain span decides
    score = min((prob for _, prob in found.spans), default=1.0)
    data = {**origin_of(found.doc), **found.fields, "text": found.doc.text}
    return _line({"data": data, "predictions": [{"result": result, "score": score}]})


def _conll(found: Annotated) -> str:
    """Write words and the tags of entities, without white space tokens. Tokens of doubtful entities have missing annotation."""
    doc = found.doc
    blocks = ["-DOCSTART-\tO\n"]
    has_ents = doc.has_annotation("ENT_IOB")
    entity: dict[int, str] = {}
    for span, _ in found.spans:
        # An entity may begin or end with white space, which columns can not hold
        words = [token.i for token in span if not token.is_space]
        entity |= dict.fromkeys(words, f"I-{span.label_}") | dict.fromkeys(words[:1], f"B-{span.label_}")
    entity |= {token.i: "-" for token in chain.from_iterable(found.doubtful)}
    entity |= {token.i: "-" for token in doc if token.ent_iob == 0}
    for sentence in doc.sents if doc.has_annotation("SENT_START") else [doc[:]]:
        rows = [
            f"{token.text}\t{entity.get(token.i, 'O') if has_ents else token.tag_ or '-'}\n"
            for token in sentence
            if not token.is_space
        ]
        blocks.append("".join(rows))
    return "\n".join(blocks) + "\n"


def _spacy(found: Annotated) -> str:
    """Write the Doc as bytes. Tokens of doubtful entities have missing annotation; doubtful spans of groups are left out."""
    doc = found.doc
    likely = [span for span, _ in found.spans]
    doubtful = {*found.doubtful}
    if doc.has_annotation("ENT_IOB"):
        ents = {*doc.ents}
        missing = [span for span in found.doubtful if span in ents]
        missing += [doc[token.i : token.i + 1] for token in doc if token.ent_iob == 0]
        doc.set_ents([span for span in likely if span in ents], missing=missing, default="outside")
    for key, group in doc.spans.items() if doubtful else ():
        scores = group.attrs.get("scores")
        if scores is not None:
            kept = [n for n, span in enumerate(group) if span not in doubtful]
            doc.spans[key] = SpanGroup(
                doc, name=key, spans=[group[n] for n in kept], attrs={**group.attrs, "scores": scores[kept]}
            )
    return base64.b64encode(found.doc.to_bytes()).decode("ascii")


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"


def _join_lines(texts: Iterable[str], file: BinaryIO, vocab: Vocab) -> None:
    for text in texts:
        file.write(text.encode("utf8"))


def _join_list(texts: Iterable[str], file: BinaryIO, vocab: Vocab) -> None:
    # One JSON list, written text by text: an archive does not fit into memory
    separator = "["
    for text in texts:
        file.write((separator + "\n" + text.rstrip("\n")).encode("utf8"))
        separator = ","
    file.write(b"\n]\n" if separator == "," else b"[]\n")


def _join_docs(texts: Iterable[str], file: BinaryIO, vocab: Vocab) -> None:
    docs = doc_bin(Doc(vocab).from_bytes(base64.b64decode(text)) for text in texts)
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

    RAISES (ValueError): CRF874 if the format has no place for what the pipeline sets, that is, tags or labels of texts; CRF883 if
        spans of groups don't fit.
    """
    if format_ == "conll" and groups:
        raise ValueError(Errors.CRF883.format(key=groups[0].name))
    has_any = groups or doc.has_annotation("ENT_IOB") or (format_ == "spans" and doc.cats)
    has_tags = doc.has_annotation("TAG")
    loses_cats = format_ == "conll" and doc.cats and not has_any and not has_tags
    if len(doc) and (loses_cats or (format_ not in WITHOUT_SPANS and not has_any)):
        raise ValueError(Errors.CRF874.format(format=format_, known=" or ".join(WITHOUT_SPANS)))
