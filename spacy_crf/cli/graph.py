"""`crf graph`: which labels of texts depend on each other."""
# pyright: reportInvalidTypeForm=false

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from spacy.cli._util import Opt
from wasabi import msg

from ..errors import Errors
from ..whole_files import write_whole
from .shared import DataArgument, JsonOption, LangOption, SvgOption, blank, check_writable, choice, command, print_table
from .texts import read_examples

if TYPE_CHECKING:
    from ..lab.label_cliques import Annotated, LearnedGraph

Method = choice("Method", ("nodewise", "graphical_lasso", "chow_liu"))
Rule = choice("Rule", ("and", "or"))


class Edge(NamedTuple):
    """Two labels that depend on each other."""

    first: str
    second: str
    texts: int  # that have both
    weight: float  # log-odds of one label by the other; for other methods the partial correlation, or mutual information in nats
    correlation: float
    partial: float  # correlation given all other labels, by the graphical lasso


@command("graph")
def graph_cli(
    data: DataArgument,
    method: Method = Opt("nodewise", help="How pairs are found, as in spacy_crf.LearnedGraph.v1."),
    l1: float = Opt(0.05, help="Pairs whose correlation is not above it, or is explained by others, are left out."),
    max_degree: int = Opt(10, help="Most pairs of a label."),
    rule: Rule = Opt("and", help="For nodewise: pairs that both regressions find, or one of them."),
    output: Optional[Path] = Opt(None, "--output", "-o", help="Write an HTML page with the graph and the table."),
    svg: SvgOption = None,
    lang: LangOption = "en",
    as_json: JsonOption = False,
) -> None:
    """Print which labels of texts depend on each other. Of each pair, the strongest first: the number of texts with both, its
    weight, the correlation, and that given all other labels."""
    from ..lab.label_cliques import LearnedGraph
    from ..report import charts
    from ..report.page import table_page

    files = [path for path in (svg, output) if path is not None]
    for path in files:
        check_writable(path)
    found: Any = (getattr(each, "value", each) for each in (method, rule))
    settings = dict(zip(("method", "rule"), found))
    edges, known = label_graph(data, lang, LearnedGraph(**settings, l1=l1, max_degree=max_degree))
    columns = ("label", "label", "texts", "weight", "correlation", "partial")
    rows = [(*edge[:2], f"{edge.texts:,}", *(f"{number:.3f}" for number in edge[3:])) for edge in edges]
    title = f"{len(known.labels)} labels, {round(known.counts.sum()):,} texts, {len(edges)} pairs"
    chart = charts.label_graph([(edge.first, edge.second, edge.weight) for edge in edges])
    if svg is not None:
        write_whole(svg, charts.alone(chart))
    if output is not None:
        write_whole(output, table_page(f"Labels of {data.name}", title, chart, columns, rows).encode("utf8"))
    if as_json:
        print(json.dumps([edge._asdict() for edge in edges], ensure_ascii=False, indent=2))
        return
    print_table(title, columns, rows, n_texts=2)
    for path in files:
        msg.good(f"Graph in {path}")


def label_graph(data: Path, lang: str, template: "LearnedGraph") -> "tuple[list[Edge], Annotated]":
    """Find the graph of the labels of texts.

    RETURNS (Tuple[List[Edge], Annotated]): The pairs, the strongest first; and the sets of labels of the texts.
    RAISES (ValueError): CRF485 for texts without labels, CRF483 if no text has a value for all of them.
    """
    from ..lab.label_cliques import Annotated, graphical_lasso, partial_correlations
    from ..pipeline.annotation.annotation import GoldReport
    from ..pipeline.annotation.cats import SeveralCats

    nlp = blank(lang)
    examples = read_examples(data, nlp)
    labels = tuple(sorted({label for example in examples for label in example.reference.cats}))
    if not labels:
        raise ValueError(Errors.CRF485.format(path=data))
    annotation: Any = SeveralCats().bind("graph", nlp.vocab, labels)
    clamp = annotation.gold(examples, None, GoldReport()).clamp
    known = Annotated.of([(clamp, None)], labels, "graph").require()
    strengths, together, correlation = template.strengths(known), known.together, known.correlation
    partial = partial_correlations(graphical_lasso(known, template.l1))
    edges = [
        Edge(
            labels[j], labels[k], round(together[j, k]), *(float(of[j, k]) for of in (strengths, correlation, partial))
        )
        for (j, k), _ in template.pairs(known)
    ]
    return edges, known
