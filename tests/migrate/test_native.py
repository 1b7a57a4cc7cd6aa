"""Templates of ours in place of CRF++'s and Wapiti's lines, beside the replay of the same lines."""

import gzip
import random
from itertools import product

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc
from typer.testing import CliRunner

from spacy_crf.cli import app
from spacy_crf.cli.migrate import find_native, make_pipeline, read_columns, read_model
from spacy_crf.migrate.checking import RIVALS
from spacy_crf.migrate.foreign import ForeignModel, Weighted
from spacy_crf.migrate.native import ways_to_make
from tests.migrate.test_templates import (
    DATA,
    PATTERNS,
    TEMPLATES,
    crfpp,
    outside_crfpp,
    outside_wapiti,
    plainly,
    sentences,
    wapiti,
)

__all__ = ["crfpp", "wapiti"]  # fixtures
LABELS = ["N", "V", "ü"]
# Separators inside, what stands outside of a sequence, what spaCy numbers as symbols, no ASCII
WORDS = ["the", "a/b", "/", "//", "b/", "_B-1", "_B+1", "_x-1", "<BOS1>", "X", "é", "新", "b"]
UNKNOWN = ["never", "/never", "_B-2", "_B+2", "_x-#", "<EOS1>", "a/", "NOUN"]
TAGS = ["DT", "NOUN", "", "a/b"]
OUTSIDE = {"crfpp": outside_crfpp, "wapiti": outside_wapiti}
LINES = {
    "crfpp": [
        "U00:%x[0,0]",
        "U01:%x[0,0]/%x[1,0]",  # values with the separator inside
        "U%x[0,0]",  # names that lines share
        "U%x[1,0]",
        "U%x[-1,1]",
        "U02:%x[-2,0]/%x[1,1]/%x[-1,0]",
        "U02:%x[-2,0]/%x[1,1]/%x[-1,0]",  # twice
        "U03:%x[0,0]",  # reads what U00 does
        "U04:%x[1,1]%x[0,1]$",  # nothing between
        "U05",
        "B",
        "B1:%x[-1,1]/%x[0,0]",
        "B/%x[1,0]",
    ],
    "wapiti": [
        "U:low=%X[-1,0]/%X[ 0,0]",  # as AnyStyle's
        'u:cut=%m[-2,0,"^.?"]',  # what stands outside of the sequence is cut too
        'u:_cut=%M[+1,0,"X.?"]/%x[0,1]',
        'u:num=%t[1,0,"\\d"]',
        'b:cap=%t[0,0,"^\\u"]',
        "*:x=%x[0,0]",
        "*:x=%x[-1,0]",
        "u:far=%x[-5,1]/%x[+2,0]",
        "u",
        "u:%x[3,0]",
        "b",
        "b:%x[-1,1]/%x[0,0]",
    ],
}


def texts(n, words, seed):
    rng = random.Random(seed)
    lengths = [rng.randint(1, 6) for _ in range(n)]
    return [([rng.choice(words) for _ in range(k)], [rng.choice(TAGS) for _ in range(k)]) for k in lengths]


def model_of(program, lines, seed=0):
    """With a weight for half of the names that there are in some texts, and a label or two."""
    rng = np.random.default_rng(seed)
    made = [
        plainly(line, columns, t, OUTSIDE[program])
        for columns in texts(60, WORDS, seed)
        for line in lines
        for t in range(len(columns[0]))
    ]
    names = sorted(set(made))

    def weighted(first, n_columns):
        rows, columns = np.array([*product(range(len(names)), range(n_columns))]).T
        of_kind = np.array([name[0] in first and name not in ("b", "B") for name in names])[rows]
        kept = of_kind & (rng.random(len(rows)) < 0.5)
        return Weighted(names, rows[kept], columns[kept], rng.normal(size=kept.sum()))

    transitions = rng.normal(size=(3, 3))
    return ForeignModel(program, LABELS, weighted("Uu*", 3), transitions, weighted("Bb*", 9), list(lines))


def both(model):
    """The pipeline that replays all lines, and the one with native templates."""
    native = find_native(model, ["orth", "tag"])
    replaying = make_pipeline(model, ["orth", "tag"], None)
    return replaying, make_pipeline(model, ["orth", "tag"], None, native=native), native


def check_same(replaying, other, columns):
    docs = [[Doc(nlp.vocab, words=words, tags=tags) for words, tags in columns] for nlp in (replaying, other)]
    for one, two in zip(*docs):
        expected, _ = replaying.get_pipe("crf_tagger").marginals(one)
        found, _ = other.get_pipe("crf_tagger").marginals(two)
        assert found == pytest.approx(expected, abs=1e-6)
    expected, found = (
        [[token.tag_ for token in doc] for doc in map(nlp, some)] for nlp, some in zip((replaying, other), docs)
    )
    assert found == expected


@pytest.mark.parametrize("program", LINES)
def test_templates_of_ours_give_what_the_replay_gives(program, tmp_path):
    """For words of the model and others, at all lengths; also when the pipeline was saved."""
    replaying, other, native = both(model_of(program, LINES[program]))
    assert not native.replayed
    features = other.get_pipe("crf_tagger").sparse_features.feature_set
    assert [*features.functions] == ([] if program == "crfpp" else [f"changed{n}" for n in range(5)])
    columns = [*texts(80, WORDS, 1), *texts(80, WORDS + UNKNOWN, 2)]
    check_same(replaying, other, columns)
    other.to_disk(tmp_path)
    check_same(replaying, spacy.load(tmp_path), columns[:40])


@pytest.mark.parametrize("program, lines", [("crfpp", TEMPLATES), ("wapiti", PATTERNS)])
def test_lines_that_can_not_be_ours_are_replayed_beside_the_others(program, lines):
    lines = [*lines, "U09:%x[0,0]" if program == "crfpp" else "u:9=%x[0,0]"]
    replaying, other, native = both(model_of(program, lines))
    assert [line for line, _ in native.replayed] == [line for line in lines if "@" in line]
    assert native.of_labels.templates
    check_same(replaying, other, [*texts(30, WORDS, 3), *texts(30, WORDS + UNKNOWN, 4)])


@pytest.mark.parametrize(
    "program, line, columns, reason",
    [
        ("wapiti", "u:%X[0,1]", ["orth", "tag"], "changes or tests column tag"),
        ("wapiti", 'u:%m[0,1,"^."]', ["orth", "tag"], "changes or tests column tag"),
        ("wapiti", "u:%x[@1,0]", ["orth"], "from an end of the sentence"),
        ("wapiti", "u:%x[-21,0]", ["orth"], "farther away than 20"),
        ("crfpp", "U:%x[0,1]", ["orth", "morph"], "column morph"),
        ("crfpp", "U:%x[0,1]", ["orth", "ent_iob"], "column ent_iob"),
        ("crfpp", "U:%x[0,1]", ["orth", "ext:x"], "column ext:x"),
    ],
)
def test_why_a_line_is_replayed(program, line, columns, reason):
    other = "u" if program == "wapiti" else "U"
    native = find_native(
        ForeignModel(program, LABELS, Weighted.none(), np.zeros((3, 3)), templates=[line, other]), columns
    )
    [(replayed, why)] = native.replayed
    assert replayed == line and reason in why
    assert native.of_labels.templates == ["bias"]


def test_values_that_run_together_are_replayed_if_there_are_many():
    line = "U%x[0,0]%x[1,0]"
    names = [f"U{n:09}" for n in range(300)]
    weighted = Weighted(names, np.arange(300), np.zeros(300, dtype=np.int64), np.ones(300))
    model = ForeignModel("crfpp", LABELS, weighted, np.zeros((3, 3)), templates=[line, "U"])
    [(replayed, why)] = find_native(model, ["orth"]).replayed
    assert replayed == line and "where they end" in why


def test_all_ways_to_make_a_name_are_found():
    for literals in (["U:", "/", ""], ["U", "", ""], ["", "/", "-", "/"], ["U:", ""], ["aa", "a", "a"]):
        for letters in product("a/-", repeat=4):
            name = literals[0] + "".join(letters) + literals[-1]
            found = [*ways_to_make(name, literals)]
            texts_of = {name[i:j] for i in range(len(name) + 1) for j in range(i, len(name) + 1)}
            expected = {
                values
                for values in product(texts_of, repeat=len(literals) - 1)
                if literals[0] + "".join(map("".join, zip(values, literals[1:]))) == name
            }
            assert set(found) == expected and len(found) == len(expected)


def test_lines_that_no_name_fits_are_told_without_trying_all_ways():
    """Each value of a crafted line once doubled the time, and a thousand were a RecursionError."""
    assert [*ways_to_make("a" * 60 + "z", ["", *["a"] * 30, "y", "z"])] == []
    assert [*ways_to_make("a" * 1500, [*["a"] * 1500])] == [("",) * 1499]


@pytest.mark.parametrize("columns, code", [(["orth"], "CRF864"), (["orth", "nothing"], "CRF868")])
def test_columns_that_are_not_there(columns, code):
    with pytest.raises(ValueError, match=code):
        find_native(model_of("crfpp", [*LINES["crfpp"][:2], "U9:%x[0,1]"]), columns)


def test_import_command_says_what_is_replayed(wapiti, crfpp, tmp_path):
    _, data = wapiti
    (tmp_path / "model").write_bytes(data)
    arguments = ["import", str(tmp_path / "model"), "--from", "wapiti", "--columns", "orth,tag", "--output"]
    result = CliRunner().invoke(app, [*arguments, str(tmp_path / "nlp")])
    assert result.exit_code == 0, result.output
    assert "5 native templates" in result.output
    assert "u:last=%x[@-1,0]: it reads a position that is counted from an end of the sentence" in " ".join(
        result.output.split()
    )
    result = CliRunner().invoke(app, [*arguments, str(tmp_path / "replay"), "--replay"])
    assert result.exit_code == 0 and "ours" not in result.output
    found = [
        spacy.load(tmp_path / name).get_pipe("crf_tagger").sparse_features.feature_set for name in ("nlp", "replay")
    ]
    assert [[*map(str, features.templates)] for features in found] == [
        ["text:changed0[0]", "tag[-5]", "text:changed1[0]", "text:changed2[1]", "fn:imported[0]"],
        ["fn:imported[0]"],
    ]


def test_import_command_compares_what_is_not_replayed(crfpp, tmp_path, monkeypatch):
    """With labellings that are enumerated, in the place of the other program's."""
    plain, data = crfpp
    (tmp_path / "model").write_bytes(data)
    columns = sentences(20, 5)
    lines = ("".join(f"{word}\t{tag}\n" for word, tag in zip(*sentence)) for sentence in columns)
    (tmp_path / "texts").write_text("\n".join(lines), encoding="utf8")
    best = {"right": lambda doc, rows: plain.best(([t.text for t in doc], [t.tag_ for t in doc]))}
    best["wrong"] = lambda doc, rows: ["N"] * len(doc)
    arguments = ["import", str(tmp_path / "model"), "--from", "crfpp", "--columns", "orth,tag", "--check"]
    arguments += [str(tmp_path / "texts"), "--output", str(tmp_path / "nlp")]
    for name, status, told in (("right", 0, "both programs give the same labels"), ("wrong", 1, "get other labels")):
        monkeypatch.setitem(RIVALS, "crfpp", lambda path, columns, name=name: best[name])
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == status, result.output
        assert "20 sequences" in result.output and told in result.output and "Replayed" not in result.output


@pytest.mark.skipif(not DATA.is_dir(), reason="the models of the benchmark data are not at hand (SPACY_CRF_DATA)")
@pytest.mark.parametrize("program, file, n_replayed", [("crfpp", "crfpp.model", 0), ("wapiti", "wapiti.model.gz", 1)])
def test_models_of_the_programs(program, file, n_replayed, tmp_path):
    """Trained on CoNLL-2000 by CRF++ and Wapiti: 300 sentences, 7,222 tokens."""
    data = (DATA / file).read_bytes()
    model = read_model(gzip.decompress(data) if file.endswith(".gz") else data, file, program)
    replaying, other, native = both(model)
    assert len(native.replayed) == n_replayed
    (tmp_path / "test").write_bytes(gzip.decompress((DATA / "test.txt.gz").read_bytes()))
    docs = list(read_columns(tmp_path / "test", replaying, ["orth", "tag"]))
    check_same(replaying, other, [([t.text for t in doc], [t.tag_ for t in doc]) for doc in docs])
