"""What is in annotated texts, and what in them will mislead training."""

import json
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from spacy.language import Language
from spacy.tokens import Doc
from wasabi import msg

from ..errors import Errors
from .corpus import Corpus, Overlap, describe, overlap, to_json
from .formats import FORMATS, Report, Settings, brat
from .group import app
from .reading import read_docs
from .shared import CodeOption, blank, import_code, print_table, told_briefly

_FEW = 50  # spans of a label that are hardly enough to learn and to measure it
_SHOWN = 3  # examples in a line


@app.command("data")
def data_cli(
    path: Annotated[
        Path, typer.Argument(help="Annotated texts: .spacy, a folder, or what `convert` reads.", exists=True)
    ],
    dev: Annotated[
        Optional[Path], typer.Option("--dev", help="Texts to score by: compared with these.", exists=True)
    ] = None,
    lang: Annotated[str, typer.Option("--lang", "-l", help="Language of the tokenizer that training will use.")] = "en",
    top: Annotated[int, typer.Option("--top", min=0, help="So many of the strings annotated in several ways.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")] = False,
    code: CodeOption = None,
) -> None:
    """Look at annotated texts: what is there, and what looks wrong. Labels and lengths of spans, what does not align, repeated
    texts, what train and dev share, and the same words annotated in several ways."""
    with told_briefly():
        import_code(code)
        nlp = blank(lang)
        docs, report = _read(path, nlp)
        dev_docs, dev_report = _read(dev, nlp) if dev else ([], Report())
        facts, dev_facts = describe(docs, nlp), describe(dev_docs, nlp) if dev else None
        common = overlap(docs, dev_docs) if dev else None
    if as_json:
        found = {"train": to_json(facts) | {"unread": to_json(report)}}
        if dev_facts and common:
            found |= {"dev": to_json(dev_facts) | {"unread": to_json(dev_report)}, "overlap": to_json(common)}
        print(json.dumps(found, ensure_ascii=False, indent=2))
        return
    _show(str(path), facts, report, dev_facts)
    if dev_facts and common:
        _show(str(dev), dev_facts, dev_report)
        _show_overlap(common)
    if facts.spans:
        _show_inconsistent(facts, top)


def _read(path: Path, nlp: Language) -> tuple[list[Doc], Report]:
    """RAISES (ValueError): If there are no texts."""
    files = sorted(path.rglob("*.spacy")) if path.is_dir() and not brat.is_collection(path) else [path]
    report, docs = Report(), []
    for file in files:
        docs += read_docs(file, nlp, Settings(overlaps="longest", without_spans=True), report=report)
    if not docs:
        raise ValueError(Errors.CRF708.format(path=path))
    return docs, report


# ----------------------------------------------------------------------------------------------------------- shown


def _show(title: str, facts: Corpus, report: Report, dev: Optional[Corpus] = None) -> None:
    msg.divider(title)
    counted = [f"{facts.documents:,} documents, {facts.tokens:,} tokens"]
    if facts.spans or not (facts.tags or facts.cats):
        counted.append(f"{facts.spans:,} entities; {facts.without_spans:,} documents without any")
    msg.info(f"{FORMATS[report.format].title}: {', '.join(counted)}")
    rows = [
        (label, f"{of.spans:,}", f"{of.strings:,}", *_lengths(of.lengths))
        + ((f"{dev.labels[label].spans:,}" if label in dev.labels else "0",) if dev else ())
        for label, of in facts.labels.items()
    ]
    if rows:
        columns = ("label", "spans", "different", "mean tokens", "most")
        print_table("entities", (*columns, "spans of dev") if dev else columns, rows, n_texts=1)
    if facts.tags:
        tags = [(tag, f"{n:,}", *([f"{dev.tags.get(tag, 0):,}"] if dev else [])) for tag, n in facts.tags.items()]
        print_table("tags", ("tag", "tokens", "tokens of dev") if dev else ("tag", "tokens"), tags, n_texts=1)
    if facts.cats:
        cats = [(cat, f"{n:,}", *([f"{dev.cats.get(cat, 0):,}"] if dev else [])) for cat, n in facts.cats.items()]
        print_table(
            "labels of texts", ("label", "texts", "texts of dev") if dev else ("label", "texts"), cats, n_texts=1
        )
    report.tell()
    for warning in _warnings(facts):
        msg.warn(warning)


def _lengths(lengths: dict[int, int]) -> tuple[str, str]:
    mean = sum(length * n for length, n in lengths.items()) / sum(lengths.values())
    return f"{mean:.1f}", str(max(lengths))


def _warnings(facts: Corpus) -> list[str]:
    """What each count means for whoever trains."""
    few = [f"{label} ({of.spans})" for label, of in facts.labels.items() if of.spans < _FEW]
    few_texts = [f"{label} ({n})" for label, n in facts.cats.items() if n < _FEW]
    alike = _alike(facts)
    found = [
        (few, f"labels with fewer than {_FEW} spans", few),
        (few_texts, f"labels with fewer than {_FEW} texts", few_texts),
        (alike, "labels that differ in case or white space only", alike),
        (facts.misaligned, "entities do not align with the tokenizer's tokens, and can't be learned", facts.misaligned),
        (facts.crossing, "entities cross the end of a sentence", facts.crossing),
        (facts.odd, "entities have neither letters nor digits", facts.odd),
        (facts.several_cats, "texts have several labels: crf_textcat takes one", facts.several_cats),
        (
            facts.uncertain_cats,
            "texts have labels with neither 0 nor 1, which crf_textcat refuses",
            facts.uncertain_cats,
        ),
        (facts.repeated_otherwise, "texts are repeated with other annotation", facts.repeated_otherwise),
    ]
    told = [f"{len(places):,} {what}: {_some(shown)}" for places, what, shown in found if places]
    if facts.repeated:
        told.append(f"{facts.repeated:,} documents repeat the text of another")
    if facts.touching:
        told.append(
            f"{facts.touching:,} entities touch one of their own label before them: the scheme IO would join them"
        )
    if facts.spans and facts.unannotated_tokens:
        told.append(f"{facts.unannotated_tokens:,} tokens have no annotation of entities: anything is allowed there")
    if facts.tags and facts.untagged_tokens:
        told.append(f"{facts.untagged_tokens:,} tokens have no tag: crf_tagger allows any there")
    if facts.without_cats:
        told.append(
            f"{facts.without_cats:,} texts have no label: crf_textcat allows any there that is not ruled out by 0"
        )
    return told


def _alike(facts: Corpus) -> list[str]:
    """Labels and tags that are probably meant to be one."""
    by_name: dict[str, list[str]] = {}
    for name in (
        *facts.labels,
        *(tag for tag in facts.tags if tag.strip() and any(letter.isalpha() for letter in tag)),
        *facts.cats,
    ):
        by_name.setdefault("".join(name.lower().split()), []).append(name)
    return [" = ".join(sorted(set(names))) for names in by_name.values() if len(set(names)) > 1]


def _show_overlap(common: Overlap) -> None:
    msg.divider("train and dev")
    for texts, what in (
        (common.documents, "documents of dev are in train too: scores of them are memory"),
        (common.only_in_dev, "labels are in dev only, and can't be found"),
        (common.only_in_train, "labels are in train only, and are not scored"),
    ):
        if texts:
            msg.warn(f"{len(texts):,} {what}: {_some(texts)}")
    if not common.documents:
        msg.good("No text of dev is in train")
    rows = [(label, f"{share:.0%}") for label, share in common.unseen.items()]
    if rows:
        print_table("entities of dev", ("label", "not in train"), rows, n_texts=1)


def _show_inconsistent(facts: Corpus, top: int) -> None:
    if not facts.inconsistent:
        msg.good("No words are annotated in several ways")
        return
    rows: list[tuple[Any, ...]] = []
    for one in facts.inconsistent[:top]:
        labels = ", ".join(f"{label} {n:,}" for label, n in one.labels.items())
        rows.append((one.text, labels, f"{one.unlabelled:,}" if one.unlabelled else ""))
    title = f"{len(facts.inconsistent):,} strings are annotated in several ways"
    print_table(title, ("words", "as", "not annotated"), rows, n_texts=2)


def _some(texts: list[str]) -> str:
    return "; ".join(texts[:_SHOWN]) + (" …" if len(texts) > _SHOWN else "")
