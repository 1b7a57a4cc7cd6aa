"""Commands that inspect a trained pipeline: its predictions, explanations of them, its weights, and its rules."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated, Any, Optional

from spacy.cli._util import Arg, Opt
from spacy.language import Language
from spacy.tokens import Doc, Span, Token
from wasabi import msg, table

from ..errors import Errors, counted, shown
from ..pipeline import CERTAINTIES
from ..whole_files import write_whole
from .formats.annotation import check_length
from .formats.source import Fields
from .shared import (
    ComponentOption,
    JsonOption,
    ModelArgument,
    PageOption,
    check_writable,
    command,
    load_pipeline,
    name_of,
    our_pipes,
    print_table,
)
from .texts import STANDARD, doc_before, read_examples, read_items

if TYPE_CHECKING:
    from ..pipeline.pipe import LearningPipe
    from ..pipeline.prediction import CRFPipe
    from ..pipeline.tokenizer import CharacterTokenizer

ShownTexts = Annotated[
    Optional[list[str]],
    Arg(help='Texts; by default the lines of the standard input, which may be JSONL with "text".'),
]


def found_in(doc: Doc) -> list[tuple[str, ...]]:
    """Rows of the predictions: words, label, and the probability if the pipeline sets it."""
    if doc.has_annotation("ENT_IOB"):
        return [(" ".join(ent.text.split()), ent.label_, *_certainty(ent)) for ent in doc.ents]
    tokens = [token for token in doc if not token.is_space]
    rows = [(token.text, token.tag_, token.pos_, str(token.morph), *_certainty(token)) for token in tokens]
    found = [row for row in rows if any(row[1:])]
    return found or [(label, f"{share:.0%}") for label, share in sorted(doc.cats.items(), key=lambda item: -item[1])]


def words_in(doc: Doc) -> list[tuple[str, ...]]:
    """Rows of the words, a sentence in each row if sentences are known."""
    sentences = doc.sents if doc.has_annotation("SENT_START") else [doc[:]]
    return [(" | ".join(token.text for token in sentence if not token.is_space),) for sentence in sentences]


def _certainty(found: Span | Token) -> list[str]:
    """The probability of a span or token, and the values that a decoder adds."""
    values = ((name, found._.get(name)) for name in CERTAINTIES)
    known = [(name, value) for name, value in values if value is not None]
    return [f"{value:.0%}" if name == "crf_prob" else f"{name} {value:.1%}" for name, value in known]


@command("show")
def show_cli(
    model: ModelArgument,
    texts: ShownTexts = None,
    output: PageOption = None,
) -> None:
    """Print the entities, tags or labels of texts. With --output, also write the marked texts."""
    from ..explain.displacy_marks import render
    from ..pipeline.probabilities import turn_on_confidence

    check_writable(output)
    nlp = load_pipeline(model)
    if output is not None:
        turn_on_confidence(our_pipes(nlp, None, None))
    docs = print_found(nlp, texts, found_in if nlp.pipe_names else words_in)
    if output is not None:
        write_whole(output, (render(docs, page=True, title=name_of(nlp, model), jupyter=False) or "").encode("utf8"))
        msg.good(f"Marked texts in {output}")


def print_found(
    nlp: Language, texts: Optional[list[str]], found_in: Callable[[Doc], list[tuple[str, ...]]] = found_in
) -> list[Doc]:
    """Print what a pipeline finds in texts, by default those of the standard input. RAISES (ValueError): CRF718 without texts.

    found_in (Callable): Returns the rows of the table of a Doc.
    """
    docs = []
    for doc in nlp.pipe(texts or _standard_texts(nlp)):
        docs.append(doc)
        print(f"\n{doc.text}")
        print(indent(table(found_in(doc) or [("nothing found",)], max_col=50).strip("\n"), "  "))
    if not docs:
        raise ValueError(Errors.CRF718)
    return docs


def _standard_texts(nlp: Language) -> Iterator[str]:
    """Read texts from the standard input. RAISES (ValueError): With the place, if a text can't be read or is too long."""
    for place, item in read_items(Path(STANDARD)):
        check_length(item["text"], nlp, place)
        yield item["text"]


_EXPLAINED = "of spacy_crf to explain (--span asks about spans and tokens, --label about a text)"
_SPAN = re.compile(r"(\d{1,9}):(\d{1,9})(?::(.+))?")


@command("explain")
def explain_cli(
    model: ModelArgument,
    text: str = Arg(..., help="The text."),
    span: Optional[str] = Opt(
        None, help="Tokens such as 3:5, or 3:5:LABEL; by default each predicted entity, or the most probable one."
    ),
    label: Optional[str] = Opt(
        None, help="For crf_textcat: a label; by default each label found, or the most probable one."
    ),
    against: Optional[str] = Opt(None, help="The label to compare with, or O; by default all others."),
    kind: str = Opt("words", help="words, leave_out, contrast, log_odds, texts or rules."),
    train: Optional[Path] = Opt(None, help="For --kind texts: the training texts.", exists=True),
    effect: bool = Opt(False, "--effect", help="For --kind texts: changes of the decision without each listed text."),
    top: int = Opt(20, min=1, help="Number of features in each list."),
    output: PageOption = None,
    as_json: JsonOption = False,
    component: ComponentOption = None,
) -> None:
    """Print the words that decide the prediction for a text. With each word stands by how much it decides; other kinds print
    features and weights, or (rules) the spans found while the rules are added one by one. Of a pipeline that has nothing but a
    trained tokenizer, the command prints why each word begins where it does."""
    from rich.console import Console

    from ..explain.comparison import NothingToCompare
    from ..explain.explanation import page
    from ..pipeline.crf_textcat import CRFTextClassifier
    from ..pipeline.tokenizer import CharacterTokenizer

    check_writable(output, train)
    nlp = load_pipeline(model)
    if not nlp.pipe_names and isinstance(nlp.tokenizer, CharacterTokenizer):
        _explain_words(nlp.tokenizer, text, top, as_json=as_json)
        return
    if kind == "rules":
        _explain_rules(nlp, text, component)
        return
    explanations = []
    options: dict[str, Any] = {"effect": top} if effect else {}
    if train is not None:
        # Effects of texts depend on the regularization in the config
        optimizer = nlp.config["training"]["optimizer"] or {}
        options |= {name: optimizer[name] for name in ("l1", "l2") if name in optimizer}
        options["corpus"] = list(read_examples(train, nlp))

    def is_explained(pipe: "LearningPipe") -> bool:
        # --span is about components that label tokens, --label about those that label texts
        other_option = span if isinstance(pipe, CRFTextClassifier) else label
        return other_option is None and pipe.labelled is not None

    for pipe in our_pipes(nlp, component, _EXPLAINED, is_explained, of_tokens=False):
        doc = doc_before(nlp, pipe, text)
        decisions: list[Any]  # labels of the text, or spans; None for the most probable label
        if isinstance(pipe, CRFTextClassifier):
            decisions = [label]
            if label is None and against is None:
                decisions = pipe.labels_of(doc) or [None]
        elif span is not None:
            decisions = [_parse_span(span, doc)]
        else:
            best = pipe.n_best(doc, 1)
            decisions = list(best[0][1]) if best else []
            decisions = decisions or _likeliest(pipe, doc)
        for decision in decisions:
            try:
                explanations.append(pipe.explain(doc, decision, against, kind, **options))
            except NothingToCompare:
                # Each labelling has the span, as the first sentence: there is more to say of the others
                if len(decisions) == 1:
                    raise
    if output is not None:
        write_whole(output, page(explanations, top).encode("utf8"))
        msg.good(f"{counted(len(explanations), 'explanation')} in {output}")
        return
    if as_json:
        print(json.dumps([explanation.to_dict() for explanation in explanations], ensure_ascii=False))
        return
    console = Console()
    for explanation in explanations:
        console.print(explanation.to_rich(top))
        console.print()


_FEATURES_OF_WORD = 5  # most features of a word in a table


def _explain_words(tokenizer: "CharacterTokenizer", text: str, top: int, *, as_json: bool) -> None:
    """Print why each word of a text begins where it does: a table with the heaviest features, or JSON with `top` of them."""
    beginnings = tokenizer.explain(text, top)
    if as_json:
        print(json.dumps([beginning._asdict() for beginning in beginnings], ensure_ascii=False))
        return
    rows = []
    for word, probability, reason, features in beginnings:
        listed = ", ".join(f"{name} {weight:+.2f}" for name, weight in features[:_FEATURES_OF_WORD])
        rows.append((word, reason, listed, f"{probability:.1%}"))
    print_table("words", ("word", "begins by", "features", "probability"), rows, n_texts=3)


def _likeliest(pipe: "CRFPipe", doc: Doc) -> list[Span]:
    """The most probable span of a Doc in which nothing is found. RAISES (ValueError): CRF838 if no span is possible."""
    # Most spans have no chance: listing all takes quadratic time, and is rarely needed
    for least in (0.01, 0.0):
        found = pipe.span_probabilities(doc, least)  # the most probable span first
        if found:
            span, _ = found[0]
            return [span]
    raise ValueError(
        Errors.CRF838.format(
            name=pipe.name, what=shown(doc.text), reason="nothing is found, and no span is possible in it"
        )
    )


def _parse_span(given: str, doc: Doc) -> Span:
    """Make the span that "3:5" or "3:5:LABEL" names. RAISES (ValueError): CRF847 if it does not name tokens of the Doc."""
    match = _SPAN.fullmatch(given)
    if match is None or not int(match[1]) < int(match[2]) <= len(doc):
        raise ValueError(
            Errors.CRF847.format(
                given=given, n=len(doc), words=" ".join(f"{token.i}:{token.text}" for token in doc[:30])
            )
        )
    return Span(doc, int(match[1]), int(match[2]), label=match[3] or "")


_WIDEST = 24  # most tags of a printed matrix


@command("inspect")
def inspect_cli(
    model: ModelArgument,
    label: Optional[str] = Opt(None, help="Print the weights of this label or tag only."),
    top: int = Opt(20, min=1, help="Number of weights for and against each label."),
    component: ComponentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the labels, features, weights and rules of a model."""
    from ..explain.weights import overview

    pipes = our_pipes(load_pipeline(model), component, "of spacy_crf", of_tokens=False)
    found = [overview(pipe, label, top) for pipe in pipes]
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return
    for pipe, of_component in zip(pipes, found):
        _show_overview(of_component, label)
        for chain in _with_rules(pipe):
            _show_rules(chain)


def _show_overview(found: Fields, label: Optional[str]) -> None:
    """Print the result of `explain.weights.overview` for a component; with a label, only its transitions."""
    msg.divider(f"{found['component']} ({found['class']}, {found['model']})")
    print(f"{counted(len(found['labels']), 'label')}: {', '.join(found['labels'])}")
    print(f"{found['weights']:,} weights that have names")
    for name, part in (("gazetteer", "gazetteers"), ("clusters", "clusters"), ("longest", "longest")):
        for key, value in found.get(part, {}).items():
            print(f"{name} {key}: {value:,}")
    if "encoder" in found:
        print(f"an encoder ({found['encoder']}), whose weights have no names")
    templates = [
        (r["template"], r["of"], f"{r['features']:,}", f"{r['weights']:,}", f"{r['mass']:.2f}")
        for r in found["templates"]
    ]
    print_table("templates", ("template", "weighs", "features", "weights", "sum of |weights|"), templates, n_texts=2)
    of_tokens = [r["template"] for r in found["templates"] if r["of"] == "states"]
    if of_tokens:
        print(f"for a config: templates = {json.dumps(of_tokens, ensure_ascii=False)}")
    for name, sides in found["top"].items():
        for side, rows in sides.items():
            cells = [(row["feature"], row["tags"][0], f"{row['weight']:+.4f}", str(row["count"] or "")) for row in rows]
            if cells:
                print_table(f"{side} {name}", ("feature", "tag", "weight", "met"), cells, n_texts=2)
    if found["transitions"]:
        _show_transitions(found, label)


def _show_transitions(found: Fields, label: Optional[str]) -> None:
    """Print the matrix of transitions (with a label, only its tags and O); for many tags, print the largest weights."""
    from rich.console import Console

    tags = found["tags"]
    chosen = [n for n, tag in enumerate(tags) if label is None or tag == "O" or tag in (label, f"{tag[:2]}{label}")]
    steps = found["transitions"]["transitions"]
    ends = [found["transitions"][name] for name in ("first", "last")]
    # Blocks of columns that fit into the terminal
    if len(chosen) <= _WIDEST:
        widest = 3 + max([5, *(len(tags[n]) for n in chosen)])
        n_columns = max(1, Console().width // widest - 2)
        for begin in range(0, len(chosen), n_columns):
            columns = chosen[begin : begin + n_columns]
            rows = [("begin", *(_cell(ends[0][j]) for j in columns), "")]
            for i in chosen:
                cells = (_cell(steps[i][j]) for j in columns)
                rows.append((tags[i], *cells, _cell(ends[1][i])))
            heads = ("", *(tags[j] for j in columns), "end")
            print_table("transitions (from the row to the column)", heads, rows, n_texts=1)
        return
    weights = [(steps[i][j], tags[i], tags[j]) for i, j in product(chosen, repeat=2) if steps[i][j]]
    largest = sorted(weights, key=lambda item: -abs(item[0]))[:_WIDEST]
    rows = [(before, after, f"{weight:+.4f}") for weight, before, after in largest]
    print_table("the largest transitions (all with --json)", ("from", "to", "weight"), rows, n_texts=2)


def _cell(weight: Optional[float]) -> str:
    """A weight as text: empty without a weight, a dot for a forbidden transition."""
    return "·" if weight is None else f"{weight:+.2f}" if weight else ""


_BY_DECODER = (
    "{decoder} finds a labelling under the masks, and automata check it. If the labelling breaks a rule, an exact search finds "
    "the best one that keeps all rules."
)


def _show_rules(pipe: Any) -> None:
    """Print how the rules of a component are enforced."""
    rows = []
    for rule, how, known in pipe.rules().all.enforcement():
        arguments = {key: value for key, value in rule.table.items() if key not in ("rule", "name", "weight")}
        written = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        rows.append((rule.kind, rule.name, "hard" if rule.hard else f"{rule.weight:g}", written, how, known))
    columns = ("rule", "name", "weight", "arguments", "enforced by", "in probabilities")
    of_chain = "" if pipe.learner is pipe else f": {', '.join(pipe.labels)}"
    print_table(f"{pipe.name}{of_chain}", columns, rows, n_texts=len(columns))
    if pipe.decoding.special_search is not None and pipe.rules().all.automata:
        msg.text(_BY_DECODER.format(decoder=pipe.decoder))


def _explain_rules(nlp: Language, text: str, component: Optional[str]) -> None:
    """Print the rules, and the spans of a text while they are added one by one."""
    from ..explain.comparison import effects

    for of_component in our_pipes(nlp, component, "of spacy_crf with rules", _with_rules):
        for pipe in _with_rules(of_component):
            _show_rules(pipe)
            before, changes = effects(pipe, doc_before(nlp, pipe, text))
            msg.text(f"without rules: {_written(before)}")
            for rule, spans, price in changes:
                msg.text(f"{rule.name}: {_written(spans)}, at a price of {price:.2f}")
            if not changes:
                msg.text("no rule changes anything")


def _with_rules(pipe: "LearningPipe") -> "list[CRFPipe]":
    """The chains of a component that have rules."""
    return [chain for chain in getattr(pipe, "chains", ()) if chain.rules() is not None]


def _written(spans: Iterable[Span]) -> str:
    return "; ".join(f"{span.text} ({span.label_})" for span in spans) or "nothing"
