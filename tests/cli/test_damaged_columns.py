"""Files of columns as people have them, damaged at random: every token, sentence and document of the file is read, or the file is
refused by a message with a code, or a report tells what is left out. And what was read is written and read again the same."""

import io
import random
import re
import warnings

import pytest
import spacy

from spacy_crf.cli.formats import ReadSettings, Report, Source, read
from spacy_crf.cli.formats.columns import is_tag
from spacy_crf.cli.formats.writers import WRITERS, Annotated

NLP = spacy.blank("en")
WORDS = ["Ann", "Rome", "ran", "10\u00a0000", "\u3000", "#", "#ff", "a|b", "é", ".", "-", "O", "'s", "x\u2028y"]
COMMENTS = ["# id 1", "# text = Ann ran", "#", "# newdoc 3", "# a b c d e f g", "#\thttp://a.b/c"]
SEEDS = range(60)


def made(rng):
    """Lines of a file of columns: the word first, the tag last."""
    separator = rng.choice(["\t", "\t", " ", "   "])
    n_between = rng.randrange(3)
    lines = []
    for _ in range(rng.randrange(1, 5)):
        if rng.random() < 0.3:
            lines += [separator.join(["-DOCSTART-", *["-X-"] * n_between, "O"]), ""]
        if rng.random() < 0.5:
            lines.append(rng.choice(COMMENTS))
        label = ""
        for _ in range(rng.randrange(1, 6)):
            goes_on = label and rng.random() < 0.4
            label = label if goes_on else rng.choice(["", "", "PER", "LOC"])
            tag = f"{'I' if goes_on else 'B'}-{label}" if label else rng.choice(["O", "O", "O", "-"])
            lines.append(separator.join([rng.choice(WORDS), *["NN"] * n_between, tag]))
        lines.append("")
    return lines


def damaged(lines, rng):
    lines = list(lines)
    at = rng.randrange(len(lines))
    line = lines[at]
    cells = line.split("\t") if "\t" in line else line.split(" ")
    cell = rng.randrange(len(cells))
    kind = rng.randrange(13)
    if kind == 0:
        lines[at] = "\t".join(cells[:cell] + cells[cell + 1 :])  # a cell is lost
    elif kind == 1:
        lines[at] = "\t".join(cells[: cell + 1] + cells[cell:])  # twice
    elif kind == 2:
        lines[at] = " ".join(cells)  # mixed separators
    elif kind == 3:
        lines[at] = rng.choice([" ", "\t", "\u00a0", "  "]) + line
    elif kind == 4:
        lines[at] = line + rng.choice([" ", "\t", "\u00a0", "\r", "\u3000"])
    elif kind == 5:
        lines = [line for line in lines if line or rng.random() < 0.5]  # ends of sentences are lost
    elif kind == 6:
        lines.insert(at, rng.choice(["", " ", "\t", "\u00a0", "\u3000", "\f", "\ufeff"]))
    elif kind == 7:
        lines.insert(at, rng.choice(COMMENTS))
    elif kind == 8:
        lines[at] = re.sub(r"[BI]-(?=\w+$)", lambda _: rng.choice(["I-", "B_", "", "E-", "b-"]), line)
    elif kind == 9:
        lines[at] = "\ufeff" + line
    elif kind == 10:
        lines[at] = line.replace("\t", "\r").replace(" ", "\r")
    elif kind == 11:
        lines = [re.sub(r"([BI])-(\w+)$", r"\1_\2", line) for line in lines]
    else:
        lines = [line.partition("\t")[2] or line for line in lines]  # the words are lost
    return lines


def rows_of(text):
    """The words and tags of a file by a plain reading, by sentence; None for the end of a document."""
    first_end = re.search(r"\r*\n|\r", text)
    lines = re.split(r"\r*\n|\r" if first_end and "\n" not in first_end[0] else r"\r*\n", text)
    sentences, rows = [], []
    for line in [*lines, ""]:
        line = line.lstrip("\ufeff")
        bare = line.strip(" \t\r\ufeff")
        cells = re.split("\t" if "\t" in line else "[ \r]+", line.strip("\r" if "\t" in line else " \r"))
        is_mark = cells[0].strip(" ") == "-DOCSTART-" or re.match(r"# ?newdoc\b", bare)
        if not bare or is_mark:
            sentences += [rows] if rows else []
            sentences += [None] if is_mark else []
            rows = []
        else:
            rows.append((cells[0].strip(" \ufeff"), cells[-1].strip(), bare.startswith("#")))
    return sentences


def documents(sentences):
    n, is_open = 0, False
    for sentence in sentences:
        n += sentence is not None and not is_open
        is_open = sentence is not None
    return n


def entities_of(tags):
    """The entities of a sentence as conlleval finds them."""
    found, before = 0, ("O", "")
    for tag in tags:
        match = re.fullmatch(r"([BI])[-_](.+)", tag)
        now = (match[1], match[2]) if match else ("O", "")
        found += now[0] != "O" and (now[0] == "B" or before[1] != now[1])
        before = now
    return found


def check(path, seed):
    """RETURNS (Optional[List[Doc]]): The Docs, or None for a file that is refused."""
    rng = random.Random(seed)
    lines = made(rng)
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        lines = damaged(lines or [""], rng)
    text = rng.choice(["", "", "\ufeff"]) + rng.choice(["\n", "\n", "\r\n", "\r"]).join(lines)
    path.write_bytes(text.encode())
    report = Report()
    settings = ReadSettings(n_sents=rng.choice([0, 1]), without_spans=True, format="conll")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            docs = list(read(Source(path), NLP, settings, report))
    except ValueError as error:
        assert re.match(r"CRF\d{3}: ", str(error)), error
        assert path.name in str(error)
        return None
    expected = rows_of(text.removeprefix("\ufeff"))
    rows = [row for sentence in expected for row in sentence or ()]
    hashes = [word for word, _, is_hash in rows if is_hash]
    words = [token.text for doc in docs for token in doc]
    others = [word for word, _, is_hash in rows if not is_hash]
    assert [word for word in words if not word.startswith("#")] == others
    skipped = len(hashes) - (len(words) - len(others))
    n_comments = sum(is_hash and not is_tag(tag) for _, tag, is_hash in rows)
    assert 0 <= skipped <= n_comments + len(report.comments)
    if not skipped:
        n_docs = documents(expected) if settings.n_sents == 0 else sum(map(bool, expected))
        assert len(docs) == n_docs
        tags = [[tag for _, tag, _ in sentence] for sentence in expected if sentence]
        if report.scheme in ("BIO", "IOB1"):
            assert report.spans == sum(map(entities_of, tags))
    return docs


def written_again(docs, name, path):
    """Write Docs in a format of `annotate`, and read the file."""
    found = [Annotated(doc, {}, [(ent, 1.0) for ent in doc.ents], []) for doc in docs]
    file = io.BytesIO()
    WRITERS[name].join(map(WRITERS[name].render, found), file, NLP.vocab)
    path = path.with_suffix(WRITERS[name].suffix)
    path.write_bytes(file.getvalue())
    return list(read(Source(path), NLP, ReadSettings(without_spans=True, predictions=True, n_sents=0), Report()))


def content(docs):
    """By Doc, the tokens and entities but for white space, which columns do not hold."""
    found = []
    for doc in docs:
        words = [(token.text, token.ent_iob == 0) for token in doc if not token.is_space]
        ents = [([token.text for token in ent if not token.is_space], ent.label_) for ent in doc.ents]
        if words:
            found.append((words, [ent for ent in ents if ent[0]]))
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_without_a_word(tmp_path, seed):
    docs = check(tmp_path / "a.conll", seed)
    for name in ("conll", "spacy") if docs and content(docs) else ():
        assert content(written_again(docs, name, tmp_path / "b")) == content(docs)


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_read_is_written_and_read_the_same(tmp_path, name):
    (tmp_path / "a.conll").write_text("Ann\tB-PER\nLee\tI-PER\nran\tO\n\nin\tO\nRome\tB-LOC\n", encoding="utf8")
    docs = list(read(Source(tmp_path / "a.conll"), NLP, ReadSettings(), Report()))
    assert content(written_again(docs, name, tmp_path / "b")) == content(docs)


# --------------------------------------------------------------------------------------------------------- CoNLL-U

FORMS = ["NER={}", "NE={}", "name={}", "Tag={}", "{}", "x=y|NER={}|SpaceAfter=No"]


def made_conllu(rng):
    form = rng.choice(FORMS)
    lines = []
    for _ in range(rng.randrange(1, 5)):
        lines += ["# newdoc id = a"] * (rng.random() < 0.3) + ["# text = Ann"]
        for n in range(1, rng.randrange(2, 6)):
            if rng.random() < 0.1:
                lines.append("\t".join([f"{n}-{n + 1}", "Am", *"________"]))
            tag = rng.choice(["O", "_", "B-PER", "B-LOC"])
            misc = "_" if tag == "_" else form.format(tag)
            head, dep = (0, "root") if n == 1 else (1, "dep")
            lines.append(f"{n}\t{rng.choice(WORDS)}\t_\tX\t_\t_\t{head}\t{dep}\t_\t{misc}")
            if rng.random() < 0.1:
                lines.append("\t".join([f"{n}.1", "x", *"________"]))
        lines.append("")
    return lines


def check_conllu(path, seed):
    rng = random.Random(seed)
    lines = made_conllu(rng)
    for _ in range(rng.choice([0, 1, 1, 2])):
        lines = damaged(lines, rng)
    text = rng.choice(["", "\ufeff"]) + rng.choice(["\n", "\r\n", "\r"]).join(lines)
    path.write_bytes(text.encode())
    settings = ReadSettings(n_sents=rng.choice([0, 1]), without_spans=True, format="conllu")
    try:
        docs = list(read(Source(path), NLP, settings, Report()))
    except ValueError as error:
        assert re.match(r"CRF\d{3}: ", str(error)), error
        return
    rows = [line.lstrip("\ufeff").split("\t") for line in re.split(r"[\r\n]", text)]
    rows = [row for row in rows if re.fullmatch(r"\d+", row[0])]
    assert [token.text for doc in docs for token in doc] == [row[1] for row in rows]
    tagged = [row for row in rows if re.search(r"(^|[|=])[BI][-_](PER|LOC)(\||\s*$)", row[9])]
    assert sum(len(doc.ents) for doc in docs) == len(tagged) or "I-" in text


@pytest.mark.parametrize("seed", range(40))
def test_nothing_of_conllu_is_lost_without_a_word(tmp_path, seed):
    check_conllu(tmp_path / "a.conllu", seed)
