"""`crf graph`: which labels of texts, or which numbers of tokens, depend on each other."""
# pyright: reportInvalidTypeForm=false

import json
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
from spacy.cli._util import Opt
from wasabi import msg

from spacy_crf.cli.shared import (
    DataArgument,
    JsonOption,
    LangOption,
    blank,
    check_writable,
    choice,
    command,
    print_table,
)
from spacy_crf.cli.texts import read_examples, read_raw
from spacy_crf.errors import counted
from spacy_crf.whole_files import write_whole

from ..errors import Errors

if TYPE_CHECKING:
    from ..gaussian_graph import Numbers
    from ..label_cliques import Annotated, LearnedGraph

Method = choice("Method", ("nodewise", "graphical_lasso", "chow_liu"))
Rule = choice("Rule", ("and", "or"))


_LEGEND = (
    "Lines: solid for pairs that go together, broken for pairs that exclude each other, wider for more weight. "
    "Partial: the correlation given all others."
)


class Edge(NamedTuple):
    """Two labels or numbers that depend on each other."""

    first: str
    second: str
    texts: int  # that have both labels; for numbers, tokens that have all numbers
    weight: float  # log-odds, or a coefficient of numbers; else the partial correlation, or mutual information in nats
    correlation: float
    partial: float  # correlation given all others, by the graphical lasso


@command("graph")
def graph_cli(
    data: DataArgument,
    method: Method = Opt("nodewise", help="How pairs are found, as in spacy_crf_lab.LearnedGraph.v1."),
    l1: float = Opt(0.05, help="Pairs whose correlation is not above it, or is explained by others, are left out."),
    max_degree: int = Opt(10, help="Most pairs of a label."),
    rule: Rule = Opt("and", help="For nodewise: pairs that both regressions find, or one of them."),
    numbers: Optional[str] = Opt(
        None, help="Numbers of tokens in place of labels: their extensions, as in ext:a,ext:b."
    ),
    output: Optional[Path] = Opt(
        None, "--output", "-o", help="Write a page of HTML with the graph and the table, or a .svg of the graph."
    ),
    lang: LangOption = "en",
    as_json: JsonOption = False,
) -> None:
    """Print which labels or numbers depend on each other. Of each pair, the strongest first: the number of texts with both, its
    weight, the correlation, and that given all others."""
    from spacy_crf.report.charts import alone

    from .. import charts
    from ..label_cliques import LearnedGraph

    check_writable(output)
    template = LearnedGraph(
        method=getattr(method, "value", method), rule=getattr(rule, "value", rule), l1=l1, max_degree=max_degree
    )
    if numbers is None:
        edges, known = label_graph(data, lang, template)
        kind = "label"
        unit = "text"
        n = round(known.counts.sum())
    else:
        edges, known = number_graph(data, lang, template, numbers)
        kind = "number"
        unit = "token"
        n = len(known.values)
    columns = (kind, kind, f"{unit}s", "weight", "correlation", "partial")
    rows = []
    for edge in edges:
        measures = [f"{measure:.3f}" for measure in (edge.weight, edge.correlation, edge.partial)]
        rows.append((edge.first, edge.second, f"{edge.texts:,}", *measures))
    title = f"{counted(len(known.labels), kind)}, {counted(n, unit)}, {counted(len(edges), 'pair')}"
    chart = charts.label_graph([(edge.first, edge.second, edge.weight) for edge in edges])
    if output is not None and output.suffix == ".svg":
        write_whole(output, alone(chart))
    elif output is not None:
        heading = f"{kind.capitalize()}s of {data.name}"
        page = charts.table_page(heading, f"{title}. {_LEGEND}", chart, columns, rows)
        write_whole(output, page.encode("utf8"))
    if as_json:
        names = [f"{unit}s" if name == "texts" else name for name in Edge._fields]
        found = [dict(zip(names, edge)) for edge in edges]
        print(json.dumps(found, ensure_ascii=False, indent=2))
        return
    print_table(title, columns, rows, n_texts=2)
    if output is not None:
        msg.good(f"Graph in {output}")


def label_graph(data: Path, lang: str, template: "LearnedGraph") -> "tuple[list[Edge], Annotated]":
    """Find the graph of the labels of texts.

    RETURNS (Tuple[List[Edge], Annotated]): The pairs, the strongest first; and the sets of labels of the texts.
    RAISES (ValueError): CRF485 for texts without labels, CRF483 if no text has a value for all of them.
    """
    from spacy_crf.pipeline.annotation.cats import SeveralCats
    from spacy_crf.pipeline.annotation.entities import GoldReport

    from ..label_cliques import Annotated

    nlp = blank(lang)
    examples = read_examples(data, nlp)
    labels = tuple(sorted(set(chain.from_iterable(example.reference.cats for example in examples))))
    if not labels:
        raise ValueError(Errors.CRF485.format(path=data))
    annotation: Any = SeveralCats().bind("graph", nlp.vocab, labels)
    clamp = annotation.gold(examples, None, GoldReport()).clamp
    known = Annotated.of([(clamp, None)], labels, "graph").require()
    return _edges(known, template, known.together), known


def number_graph(data: Path, lang: str, template: "LearnedGraph", names: str) -> "tuple[list[Edge], Numbers]":
    """Find the graph of numbers of tokens, each held by an extension: as getter or value of a .spacy file.

    names (str): "ext:a,ext:b".
    RAISES (ValueError): CRF643 for names of fewer than two extensions, CRF640 for values that are no numbers, CRF641 if too few
        tokens have all numbers.
    """
    from ..gaussian_graph import Numbers
    from ..numbers import numbers_of, register

    labels = [name.strip() for name in names.split(",")]
    if len(set(labels)) < 2 or not all(label.startswith("ext:") and label[4:] for label in labels):
        raise ValueError(Errors.CRF643.format(value=names))
    for label in labels:
        register("token", label[4:])
    docs = [item.value for item in read_raw([data], blank(lang))]
    known = Numbers.of([numbers_of(docs, "token", label[4:]) for label in labels], labels)
    # All tokens have all numbers
    together = np.full((len(labels), len(labels)), float(len(known.values)))
    return _edges(known, template, together), known


def _edges(known: Any, template: "LearnedGraph", together: Any) -> list[Edge]:
    """The pairs that a template finds, the strongest first."""
    from ..gaussian_graph import graphical_lasso, partial_correlations

    strengths = template.strengths(known)
    correlation = known.correlation
    partial = partial_correlations(graphical_lasso(correlation, template.l1, known.owner))
    names = known.labels
    edges = []
    for (j, k), _ in template.pairs(known):
        measures = [float(measure[j, k]) for measure in (strengths, correlation, partial)]
        edges.append(Edge(names[j], names[k], round(together[j, k]), *measures))
    return edges
