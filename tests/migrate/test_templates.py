"""Models of CRF++ and Wapiti: small ones written by the tests, read and compared with labellings that are enumerated; and where
these programs are at hand, models of their own."""

import gzip
import itertools
import os
import pickle
import random
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc
from typer.testing import CliRunner

from spacy_crf.cli import app
from spacy_crf.cli.migrate import check_model, features_block, make_pipeline, read_columns, read_model
from spacy_crf.migrate.checking import compare
from spacy_crf.migrate.crfpp import compile_template, crfpp_features, read_crfpp
from spacy_crf.migrate.foreign import as_octets, as_text
from spacy_crf.migrate.functions import for_config, from_config
from spacy_crf.migrate.wapiti import Expression, compile_pattern, read_wapiti, wapiti_features

LABELS = ["N", "V", "ü"]
WORDS = ["the", "Dog", "a/b", "é1", "$5", "x"]
TAGS = ["DT", "NN"]
TEMPLATES = [
    "U00:%x[0,0]",
    "U01:%x[-2,0]/%x[1,1]",
    "U%x[0,1]",
    "U02:100%%x[8,0]".replace("%%", "$%"),
    "B",
    "B1:%x[-1,1]/%x[0,0]",
]
PATTERNS = [
    "*:x=%X[0,0]",
    "u:far=%x[-5,1]",
    'u:end=%m[0,0,".?.$"]',
    'u:cap=%t[1,0,"^\\u"]',
    "u:last=%x[@-1,0]",
    "b",
    "b:%x[@2,1]",
]


def sentences(n, seed=0):
    """Columns of words and tags."""
    rng = random.Random(seed)
    lengths = [rng.randint(1, 5) for _ in range(n)]
    return [([rng.choice(WORDS) for _ in range(k)], [rng.choice(TAGS) for _ in range(k)]) for k in lengths]


def outside_crfpp(n):
    return f"_B{n:+d}"


def outside_wapiti(n):
    return f"_x{n:+d}" if abs(n) <= 4 else f"_x{'-' if n < 0 else '+'}#"


def plainly(pattern, columns, t, outside):
    """The name of a feature, place by place."""
    size = len(columns[0])

    def fill(match):
        command, absolute, offset, column, expression = match.groups()
        at = int(offset) + t
        if absolute:
            at = int(offset) + size if int(offset) < 0 else int(offset) - 1
        word = columns[int(column)][at] if 0 <= at < size else outside(at if at < 0 else at - size + 1)
        if command == "X":
            word = word.lower()
        elif command == "t":
            word = "true" if re.search(expression.replace("\\u", "[A-Z]"), word) else "false"
        elif command == "m":
            found = re.search(expression.encode(), word.encode())
            word = as_text(found[0]) if found else ""
        return word

    return re.sub(r'%([xXtm])\[(@?)(-?\d+),(\d+)(?:,"(.*?)")?\]', fill, pattern)


class Plain:
    """A model as the tests know it: a weight for each feature with a label, or with two."""

    def __init__(self, patterns, outside, both="", seed=0):
        rng = np.random.default_rng(seed)
        self.patterns, self.outside, self.both = patterns, outside, both
        names = {plainly(p, s, t, outside): None for s in sentences(12) for p in patterns for t in range(len(s[0]))}
        self.names = sorted(names)
        self.of_label = {name: rng.normal(size=3) for name in self.names if name[0] in "Uu" + both}
        self.of_pair = {name: rng.normal(size=(3, 3)) for name in self.names if name[0] in "Bb" + both}

    def best(self, columns):
        """By enumeration."""
        n = len(columns[0])
        found = [[plainly(p, columns, t, self.outside) for p in self.patterns] for t in range(n)]

        def score(path):
            total = sum(self.of_label[f][path[t]] for t in range(n) for f in found[t] if f in self.of_label)
            return total + sum(
                self.of_pair[f][path[t - 1], path[t]] for t in range(1, n) for f in found[t] if f in self.of_pair
            )

        return [LABELS[y] for y in max(itertools.product(range(3), repeat=n), key=score)]


@pytest.fixture(scope="module")
def crfpp():
    plain, lines, weights = Plain(TEMPLATES, outside_crfpp), [], []
    for name in plain.names:
        lines.append(f"{len(weights)} {name}")
        weights += (plain.of_label if name[0] == "U" else plain.of_pair)[name].ravel().tolist()
    head = ["version: 100", "cost-factor: 2", f"maxid: {len(weights)}", "xsize: 2"]
    parts = [head, LABELS, TEMPLATES, lines, [f"{weight / 2:.16f}" for weight in weights]]
    return plain, "".join("\n".join(part) + "\n\n" for part in parts).encode()


@pytest.fixture(scope="module")
def wapiti():
    plain, weights = Plain(PATTERNS, outside_wapiti, both="*"), []
    for name in plain.names:
        for of in (plain.of_label, plain.of_pair):
            if name in of:
                weights += of[name].ravel().tolist()

    def listed(texts):
        return b"".join(b"%d:%s,\n" % (len(as_octets(text)), as_octets(text)) for text in texts)

    head = b"#mdl#2#%d\n#rdr#%d/2/0\n" % (len(weights), len(PATTERNS))
    lists = listed(PATTERNS) + b"#qrk#3\n" + listed(LABELS) + b"#qrk#%d\n" % len(plain.names) + listed(plain.names)
    return plain, head + lists + "".join(f"{n}={w.hex()}\n" for n, w in enumerate(weights)).encode()


@pytest.fixture(params=["crfpp", "wapiti"])
def program(request):
    return request.param, *request.getfixturevalue(request.param)


def doc_of(nlp, columns):
    return Doc(nlp.vocab, words=columns[0], tags=columns[1])


def test_imported_models_give_the_best_labelling(program, tmp_path):
    """Also after they were saved and loaded, without any code: dollars once became two."""
    name, plain, data = program
    model = read_model(data, "model", name)
    assert model.labels == LABELS
    assert model.n_weights == sum(w.size for w in (*plain.of_label.values(), *plain.of_pair.values()))
    nlp = make_pipeline(model, ["orth", "tag"], None)
    nlp.to_disk(tmp_path)
    again = spacy.load(tmp_path)
    for columns in sentences(40, seed=1):
        best = plain.best(columns)
        for pipeline in (nlp, again):
            assert [token.tag_ for token in pipeline(doc_of(pipeline, columns))] == best


def test_names_are_made_as_the_programs_make_them(program):
    name, plain, _ = program
    source = {"crfpp": crfpp_features, "wapiti": wapiti_features}[name](
        [*map(for_config, plain.patterns)], ["orth", "tag"]
    )
    nlp = spacy.blank("en")
    for columns in sentences(10, seed=2):
        expected = [[plainly(p, columns, t, plain.outside) for p in plain.patterns] for t in range(len(columns[0]))]
        assert source(doc_of(nlp, columns)) == expected
    assert source(nlp.make_doc("")) == []


def test_other_processes_get_the_functions(program):
    name, _, data = program
    nlp = make_pipeline(read_model(data, "model", name), ["orth", "tag"], None)
    functions = pickle.loads(pickle.dumps(nlp.get_pipe("crf_tagger").sparse_features.feature_set.functions))
    columns = sentences(1, seed=8)[0]
    doc = doc_of(nlp, columns)
    for source, function in functions.items():
        assert function(doc) == nlp.get_pipe("crf_tagger").sparse_features.feature_set.functions[source](doc)


def test_sentences_are_sequences_of_their_own(program):
    name, plain, data = program
    nlp = make_pipeline(read_model(data, "model", name), ["orth", "tag"], None)
    one, other = sentences(2, seed=3)
    starts = [t in (0, len(one[0])) for t in range(len(one[0] + other[0]))]
    doc = Doc(nlp.vocab, words=one[0] + other[0], tags=one[1] + other[1], sent_starts=starts)
    assert [token.tag_ for token in nlp(doc)] == plain.best(one) + plain.best(other)


def test_comparison_counts_ties_apart(crfpp):
    plain, data = crfpp
    model = read_model(data, "model", "crfpp")
    nlp = make_pipeline(model, ["orth", "tag"], None)
    docs = [doc_of(nlp, columns) for columns in sentences(20, seed=4)]
    right = compare(nlp, model, docs, lambda doc, rows: plain.best(([t.text for t in doc], [t.tag_ for t in doc])))
    assert right.is_same and right.different == 0
    wrong = compare(nlp, model, docs, lambda doc, rows: ["N"] * len(doc))
    assert not wrong.is_same and wrong.largest_gap > 0.01


# -------------------------------------------------------------------------------------------------- expressions, texts


@pytest.mark.parametrize(
    "expression, text, found",
    [
        ("^.?.?.?", "ab", (0, 2)),
        (".?.?.?$", "abcde", (2, 3)),
        ("^\\u", "Ab", (0, 1)),
        ("^\\u", "éA", None),  # letters are those of ASCII
        ("\\d\\d*", "a123", (1, 1)),  # a star takes as few as possible
        ("\\d*$", "a123", (1, 3)),
        ("\\U", "AB", None),
        ("\\.", "a.b", (1, 1)),
        ("a$b", "a$b", (0, 3)),  # a dollar that is not at the end
        ("a?b", "ab", (0, 2)),
        ("a?bc", "abbc", (2, 2)),
        ("", "abc", (0, 0)),
        ("x?y?z", "xyq z", (4, 1)),
        ("a?ab", "ab", (0, 3)),  # longer than it is, as in Wapiti: the failed try with a? has counted b
    ],
)
def test_expressions(expression, text, found):
    assert Expression(expression).find(text.encode()) == found


def as_wapiti_tries(items, octets, at, length):
    """Whether items match at a position: Wapiti's pat_matchit (src/pattern.c), one way after the other."""
    if not items:
        return True
    (known, repeats), *others = items
    is_there = at < len(octets) and re.fullmatch(known, octets[at : at + 1], re.DOTALL) is not None
    if known == b"$":
        return at == len(octets)
    if repeats == "*":
        so_far = length[0]
        if as_wapiti_tries(others, octets, at, length):
            return True
        length[0] = so_far + 1
        return is_there and as_wapiti_tries(items, octets, at + 1, length)
    if repeats == "?":
        if is_there:
            length[0] += 1
            if as_wapiti_tries(others, octets, at + 1, length):
                return True
            length[0] -= 1
        return as_wapiti_tries(others, octets, at, length)
    length[0] += 1
    return is_there and as_wapiti_tries(others, octets, at + 1, length)


def test_expressions_give_what_wapiti_finds_by_trying_one_way_after_the_other():
    rng, classes = random.Random(0), {"a": b"a", "b": b"b", ".": b".", "\\d": b"[0-9]", "\\U": b"[^A-Z]", "\\*": b"[*]"}
    for _ in range(1500):
        texts = [(rng.choice([*classes]), rng.choice(["", "", "*", "?"])) for _ in range(rng.randint(0, 6))]
        is_anchored, ends = rng.random() < 0.3, rng.random() < 0.3
        expression = "^" * is_anchored + "".join(map("".join, texts)) + "$" * ends
        items = [(classes[text], repeats) for text, repeats in texts] + [(b"$", "")] * ends
        octets = "".join(rng.choices("aab1A*", k=rng.randint(0, 7))).encode()
        expected = None
        for begin in range(1 if is_anchored else len(octets) + 1):
            length = [0]
            if expected is None and as_wapiti_tries(items, octets, begin, length):
                expected = begin, length[0]
        assert Expression(expression).find(octets) == expected, (expression, octets)


class Counted(frozenset):
    """The bytes of an item, which counts how often a match asks for one."""

    asked = 0

    def __contains__(self, byte):
        Counted.asked += 1
        return super().__contains__(byte)


@pytest.mark.parametrize(
    "text", [".?" * 16 + "z$", "^" + ".?" * 100, ".*" * 99 + "z", "a?" * 50 + "a" * 50, "a*" * 40 + "b"]
)
def test_expressions_take_time_in_proportion_to_items_and_bytes(text):
    """One of 16 optional bytes once took a second for a word of 40."""
    expression, octets = Expression(text), b"a" * 60
    expression._items = [(Counted(known), kind) for known, kind in expression._items]
    Counted.asked = 0
    expression.find(octets)
    assert 0 < Counted.asked <= 2 * len(expression._items) * (len(octets) + 1)


def test_bytes_that_are_no_text_stay_apart():
    for octets in (b"abc", "é新".encode(), b"\xc3", b"a\xff\xfe", bytes(range(256))):
        assert as_octets(as_text(octets)) == octets
        as_text(octets).encode("utf8")  # what is hashed
    assert as_text(b"\xc3") != as_text(b"\xc4")


@pytest.mark.parametrize("text", ["$", "%24", "%2524$", "%2", "%x[0,0]$%", "%252", "", "%2$"])
def test_dollars_survive_configs(text):
    assert "$" not in for_config(text)
    assert from_config(for_config(text)) == text


WRONG = [
    (compile_template, "U%y[0,0]", "begins only"),
    (compile_template, "U%x[9,0]", "at most 8"),
    (compile_template, "X%x[0,0]", "begin with U or B"),
    (compile_pattern, "u%x[*1,0]", "begins only"),
    (compile_pattern, 'u%t[0,0,"a**"]', "repeats nothing"),
    (compile_pattern, 'u%m[0,0,"a\\\\"]'.replace("\\\\", "\\"), "begins only"),
    (compile_pattern, "u%t[0,0]", "have an expression"),
    (compile_pattern, 'u%x[0,0,"a"]', "have an expression"),
    (compile_pattern, "x%x[0,0]", "begin with u, b"),
    (compile_pattern, 'u%t[0,0,"' + "a?" * 101 + '"]', "more than 100 items"),
]


@pytest.mark.parametrize("compile_, line, reason", WRONG, ids=range(len(WRONG)))
def test_templates_that_can_not_be_followed(compile_, line, reason):
    with pytest.raises(ValueError, match=f"CRF856.*{re.escape(reason)}"):
        compile_(line)


def test_patterns_may_have_blanks():
    """AnyStyle's have, as Wapiti itself reads numbers."""
    assert compile_pattern("U:a=%x[ 0,1]/%x[-1, 0]/%x[@ 1,0]") == compile_pattern("U:a=%x[0,1]/%x[-1,0]/%x[@1,0]")


def test_models_of_wapiti_are_read_from_open_files(wapiti, tmp_path, monkeypatch):
    """Part by part, texts with line breaks included; weights of 0 are left out."""
    monkeypatch.setattr("spacy_crf.migrate.wapiti._AT_ONCE", 50)
    _, data = wapiti
    last = data[:-1].rfind(b"\n") + 1
    data = data[:last] + re.sub(rb"=.*", b"=0x0p+0", data[last:])
    data = data.replace(b"\n1:N,\n", b"\n3:N\nx,\n")
    (tmp_path / "model").write_bytes(data)
    with (tmp_path / "model").open("rb") as stream:
        streamed = read_wapiti(stream, "model")
    whole = read_wapiti(data, "model")
    assert streamed.labels == whole.labels == ["N\nx", *LABELS[1:]] and streamed.states.names == whole.states.names
    assert 0 not in streamed.states.weights and 0 not in streamed.pairs.weights
    for one, other in ((streamed.states, whole.states), (streamed.pairs, whole.pairs)):
        assert (one.rows.tolist(), one.weights.tolist()) == (other.rows.tolist(), other.weights.tolist())


def test_too_few_columns_are_told(program):
    name, _, data = program
    with pytest.raises(ValueError, match=r"CRF864: The model reads 2 columns, and --columns names orth"):
        make_pipeline(read_model(data, "model", name), ["orth"], None)


# ------------------------------------------------------------------------------------------------------- broken files


def refused(data, name):
    try:
        read_model(data, "broken", name)
    except ValueError as error:
        assert re.match(r"CRF854: broken can't be read as a model of \S+: .+: |CRF856", str(error)), error
        return True
    return False


def test_cut_off_files_are_refused(program):
    name, _, data = program
    assert not refused(data, name)
    last = len(data.rstrip(b"\n")) + 1  # behind it are empty lines
    sizes = {*range(0, last, 41), *range(last - 100, last)}
    assert [size for size in sorted(sizes) if not refused(data[:size], name)] == []
    assert not refused(data[:last], name)


def test_changed_files_are_refused_or_read(program):
    name, _, data = program
    rng = random.Random(0)
    for _ in range(300):
        broken = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            broken[rng.randrange(len(data))] = rng.choice([0, 10, 32, 48, 57, 58, 255, rng.randrange(256)])
        refused(bytes(broken), name)


def test_huge_numbers_take_no_memory(program):
    name, _, data = program
    for old in (rb"maxid: \d+", rb"#mdl#2#\d+", rb"#qrk#\d+", rb"#rdr#\d+"):
        changed = re.sub(
            old, lambda match: re.sub(rb"\d+$", b"999999999999"[: 9 if b"rdr" in match[0] else 12], match[0]), data
        )
        assert changed == data or refused(changed, name)


def test_other_models_of_wapiti_are_refused(wapiti):
    _, data = wapiti
    with pytest.raises(ValueError, match=r"CRF854.*no linear chain"):
        read_wapiti(data.replace(b"#mdl#2", b"#mdl#1"), "model")
    assert read_wapiti(re.sub(rb"^#mdl#2#", b"#mdl#", data), "model").labels == LABELS  # as version 1.3 wrote them


# ------------------------------------------------------------------------------------------------------- the commands


def test_columns_of_checks_are_split_at_tabs_and_blanks_alone(tmp_path):
    (tmp_path / "a").write_text("10\u00a0000 CD\n\u3000\tX\n\nBob\tNNP\n", encoding="utf-8-sig")
    docs = read_columns(tmp_path / "a", spacy.blank("en"), ["orth", "tag"])
    assert [[token.text for token in doc] for doc in docs] == [["10\u00a0000", "\u3000"], ["Bob"]]


def run(*arguments):
    result = CliRunner().invoke(app, [*map(str, arguments)])
    return result.exit_code, result.output


def test_import_command(program, tmp_path):
    name, plain, data = program
    (tmp_path / "model").write_bytes(data)
    settings = ("--output", tmp_path / "nlp", "--columns", "orth,tag", "--attribute", "pos")
    code, output = run("import", tmp_path / "model", "--from", name, *settings)
    assert code == 1 and "CRF020" in output  # these labels are no parts of speech
    code, output = run("import", tmp_path / "model", "--from", name, *settings[:-2])
    assert code == 0, output
    columns = sentences(1, seed=5)[0]
    nlp = spacy.load(tmp_path / "nlp")
    assert [token.tag_ for token in nlp(doc_of(nlp, columns))] == plain.best(columns)


@pytest.mark.parametrize("name, lines", [("crfpp", TEMPLATES), ("wapiti", PATTERNS)])
def test_templates_alone_become_features(name, lines, tmp_path):
    (tmp_path / "templates").write_text("# a comment\n\n" + "\n".join(lines) + "\n", encoding="utf-8-sig")
    code, output = run(
        "import", tmp_path / "templates", "--from", name, "--output", tmp_path / "x.cfg", "--columns", "orth,tag"
    )
    assert code == 0, output
    block = spacy.util.load_config(tmp_path / "x.cfg")["features"]
    assert block == features_block("\n".join(lines), name, ["orth", "tag"])["features"]
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_tagger", config={"model": {"emissions": {"features": block}}})
    columns = sentences(1, seed=6)[0]
    [source, *_] = nlp.get_pipe("crf_tagger").sparse_features.feature_set.functions.values()
    assert len(source(doc_of(nlp, columns))) == len(columns[0])


def test_capital_first_letters_of_patterns_are_small_ones():
    """As Wapiti reads them. They once made no features."""
    functions = features_block("U:%x[0,0]\nB:%x[-1,0]", "wapiti", ["orth"])["features"]["functions"]
    assert [block["patterns"] for block in functions.values()] == [["U:%x[0,0]"], ["B:%x[-1,0]"]]


# --------------------------------------------------------------------------------------------- the programs themselves


def write_columns(path, n, seed):
    rng = random.Random(seed)
    with path.open("w", encoding="utf8") as file:
        for words, tags in sentences(n, seed):
            file.writelines(f"{word}\t{tag}\t{rng.choice(LABELS)}\n" for word, tag in zip(words, tags))
            file.write("\n")


@pytest.mark.parametrize("form", ["binary", "text"])
def test_models_that_crfpp_has_trained(form, tmp_path):
    pytest.importorskip("CRFPP", reason="CRF++ (crfpy) is not installed")
    learn = pytest.importorskip("shutil").which(
        "crf_learn", path=f"{Path(os.sys.executable).parent}:{os.environ['PATH']}"
    )
    if learn is None:
        pytest.skip("crf_learn is not on the path")
    write_columns(tmp_path / "train", 40, 7)
    (tmp_path / "template").write_text("\n".join(TEMPLATES) + "\n", encoding="utf8")
    command = [learn, "-t", "-c", "1.5", "template", "train", "model"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    data = (tmp_path / ("model" if form == "binary" else "model.txt")).read_bytes()
    model = read_crfpp(data, "model")
    nlp = make_pipeline(model, ["orth", "tag"], None)
    found = check_model(nlp, model, tmp_path / "model", tmp_path / "train", ["orth", "tag"])
    assert (found.sequences, found.is_same) == (40, True)
    if form == "binary":  # every place of a file may be broken
        rng = random.Random(0)
        for _ in range(200):
            broken = bytearray(data)
            at = rng.choice([rng.randrange(60), rng.randrange(len(data))])
            broken[at : at + 4] = rng.randbytes(4)
            refused(bytes(broken[: len(data)]), "crfpp")
        assert all(refused(data[:size], "crfpp") for size in range(0, len(data), 997))


DATA = Path(os.environ.get("SPACY_CRF_DATA", Path(__file__).parents[3] / "shared" / "data")) / "models"
KNOWN = [("crfpp", "crfpp.model", "crfpp_test_v2.out.gz"), ("crfpp", "crfpp.model.txt.gz", "crfpp_test_v2.out.gz")]
KNOWN += [("wapiti", "wapiti.model.gz", "wapiti_test_viterbi.out.gz")]


@pytest.mark.skipif(not DATA.is_dir(), reason="the models of the benchmark data are not at hand (SPACY_CRF_DATA)")
@pytest.mark.parametrize("name, file, output", KNOWN, ids=lambda value: value)
def test_models_of_the_programs_give_their_output(name, file, output, tmp_path):
    """Trained on CoNLL-2000 by CRF++ and Wapiti: 7,222 tokens."""

    def read(path):
        data = (DATA / path).read_bytes()
        return gzip.decompress(data) if path.endswith(".gz") else data

    model = read_model(read(file), file, name)
    nlp = make_pipeline(model, ["orth", "tag"], None)
    (tmp_path / "test").write_bytes(read("test.txt.gz"))
    lines = read(output).decode().split("\n")
    labels = iter(
        [line.split("\t")[-1 if name == "wapiti" else 3].split("/")[0] for line in lines if line and line[:2] != "# "]
    )
    docs = list(read_columns(tmp_path / "test", nlp, ["orth", "tag"]))[:100]
    found = compare(nlp, model, docs, lambda doc, rows: [*itertools.islice(labels, len(doc))])
    assert found.sequences == 100 and found.is_same
