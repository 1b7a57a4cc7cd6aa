"""The command `aggregate`: one annotation from those of several annotators, rules or models."""

from itertools import chain, product
from pathlib import Path
from typing import Any, Optional

import numpy as np
from spacy.attrs import LOWER
from spacy.cli._util import Arg, Opt
from spacy.tokens import Doc, Span, SpanGroup
from wasabi import msg

from spacy_crf import checks
from spacy_crf.cli.formats.spacy_files import docs_of
from spacy_crf.cli.shared import FileOption, LangOption, blank, check_writable, command, print_table, progress_bar
from spacy_crf.errors import counted, known_names
from spacy_crf.pipeline.corpora import doc_bin
from spacy_crf.types import SOFT_LABELS
from spacy_crf.whole_files import write_whole

OWNER = "spacy crf aggregate"


@command("aggregate")
def aggregate_cli(
    output: FileOption,
    data: Path = Arg(..., help="Texts with several annotations: .spacy.", exists=True),
    spans_key: str = Opt(..., help="Keys of doc.spans, one for each source, separated by commas."),
    labels: Optional[str] = Opt(None, help="Only these labels, separated by commas."),
    min_prob: float = Opt(0.5, help="Leave tokens open whose annotation has a lower probability; at least 0.5."),
    soft: bool = Opt(False, "--soft", help="Write all likely spans with their probabilities, for SoftLabels.v1."),
    iterations: int = Opt(5, help="Iterations of the Baum-Welch algorithm."),
    lang: LangOption = "en",
) -> None:
    """Make one annotation of entities from several ones. Print how reliable each source is.

    A source is an annotator, a rule or a model, and has a key of doc.spans. It has not seen texts without its key, and has found
    nothing in texts with an empty list. A hidden Markov model learns from the texts what each source confuses. Entities go to
    doc.ents, with their probabilities in span._.crf_prob. Texts that no source has seen stay open.
    """
    from spacy_crf.features.doc_batch import DocBatch, read_attributes

    from ..aggregation import aggregate, votes

    check_writable(output, data)
    keys = list(dict.fromkeys(key.strip() for key in spans_key.split(",") if key.strip()))
    checks.expect(len(keys) > 1, OWNER, "--spans-key", spans_key, "two or more keys of doc.spans, separated by commas")
    least = checks.number(OWNER, "--min-prob", min_prob, least=0.5, most=1.0)
    iterations = checks.count(OWNER, "--iterations", iterations, least=0)
    docs = docs_of(data, blank(lang))
    present = set(chain.from_iterable(doc.spans for doc in docs))
    for key in keys:
        checks.expect(
            key in present,
            OWNER,
            "--spans-key",
            key,
            f"a key of doc.spans in {data}, which has {known_names(sorted(present), key) or 'none'}",
        )
    groups = [doc.spans.get(key, ()) for doc, key in product(docs, keys)]
    known = sorted({span.label_ for span in chain.from_iterable(groups)})
    names = known if labels is None else [label.strip() for label in labels.split(",")]
    checks.labels("--labels", names, known)
    checks.expect(names, OWNER, "--spans-key", spans_key, "keys of spans with labels: all of these lists are empty")
    said = votes(docs, keys, names)
    starts = DocBatch(docs).bounds
    _, words = np.unique(read_attributes(docs, [LOWER])[:, 0], return_inverse=True)
    with progress_bar("aggregating") as progress:
        found = aggregate(
            said,
            words,
            starts,
            len(names),
            iterations=iterations,
            say=lambda done, _: progress(completed=done, total=iterations),
        )
    seen = np.any(said >= 0, axis=0)
    for doc, start in zip(docs, starts.tolist()):
        tokens = slice(start, start + len(doc))
        _annotate(doc, found.of_tokens(tokens), names, least, is_seen=bool(seen[tokens].any()), soft=soft)
    write_whole(output, doc_bin(docs).to_bytes())
    columns = ("source", "texts", "right of its tokens", "found of all tokens", "F1")
    rows = []
    for key, (texts, precision, recall) in zip(keys, found.sources):
        f1 = 2 * precision * recall / max(1e-12, precision + recall)
        rows.append((key, f"{texts:,}", *(f"{100 * value:.1f} %" for value in (precision, recall, f1))))
    print_table("Estimated reliability, by the tokens of entities", columns, rows, n_texts=1)
    n_found = sum(len(doc.spans.get(SOFT_LABELS, ()) if soft else doc.ents) for doc in docs)
    # Likely spans say that their whole text is annotated
    without = [doc for doc in docs if not soft or SOFT_LABELS not in doc.spans]
    n_open = sum(not token.ent_iob for token in chain.from_iterable(without))
    what = "likely span" if soft else "entity"
    msg.good(f"{output}: {counted(len(docs), 'text')}, {counted(n_found, what)}, {counted(n_open, 'token')} open")


def _annotate(doc: Doc, found: Any, labels: list[str], least: float, *, is_seen: bool, soft: bool) -> None:
    """Write what was found in a Doc (`Aggregated`, of its tokens). Two spans that overlap are not both more probable than not."""
    likely = [Span(doc, a, b, label=labels[label]) for a, b, label in zip(*map(np.ndarray.tolist, found.spans))]
    scores = found.probabilities.tolist()
    if soft or not is_seen:
        doc.set_ents([], default="missing")
        if is_seen:
            doc.spans[SOFT_LABELS] = SpanGroup(doc, name=SOFT_LABELS, spans=likely, attrs={"scores": scores})
        return
    # More probable than not: so no two of them overlap
    sure = [(span, p) for span, p in zip(likely, scores) if p >= least and p > 0.5]
    spans = [span for span, _ in sure]
    covered = {token.i for token in chain.from_iterable(spans)}
    [unsure] = np.nonzero(found.outside < least)
    doc.set_ents(spans, missing=[doc[t : t + 1] for t in unsure.tolist() if t not in covered])
    for span, p in sure:
        span._.crf_prob = p
