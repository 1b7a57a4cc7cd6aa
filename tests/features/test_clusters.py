"""Clusters of words as attributes: where they come from, what templates find, and that a model keeps them."""

import copy
import gzip
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import spacy
import srsly
from spacy.tokens import Doc, Span
from spacy.util import registry
from spacy.vectors import Vectors
from spacy.vocab import Vocab

from spacy_crf import whole_files
from spacy_crf.cross_validation import _possible
from spacy_crf.features import clusters as module
from spacy_crf.features.clusters import (
    Clusters,
    WordClusters,
    of_lookups,
    read_clusters,
    read_file,
    split,
    write_clusters,
)
from spacy_crf.features.extractor import FeatureSet
from spacy_crf.pipeline import saving
from tests.features.test_features import freeze
from tests.util import PEOPLE, TAG_TEXTS, ner_examples, plain, tag_examples

PATHS = {"Rome": "00000000000000000000001", "paris": "0001", "0.0": "01101", "the": "1", "LOWER": "01100"}
WORDS = WordClusters.of_words(PATHS.items(), digits=True)
TEMPLATES = ["cluster6[-1..0]", "cluster[0]|lower[0]"]


def found(clusters, templates, words, padding=False):
    doc = Doc(spacy.blank("xx").vocab, words=words)
    return freeze(FeatureSet(templates, padding=padding), [doc], clusters=clusters)[2]


def test_what_templates_find():
    """As written, then in lower case, with digits as the table has them; unknown words have none."""
    words = ["Rome", "rome", "PARIS", "1.5", "٣.0", "The", "nowhere", "LOWER"]
    names = found(Clusters(WORDS), ["cluster[0]", "cluster4[0]", "cluster20[0]"], words)
    path_of = dict(zip(words, [PATHS["Rome"], None, "0001", "01101", "01101", "1", None, "01100"]))
    for word, features in zip(words, names):
        path = path_of[word]
        cut = {"cluster": None, "cluster4": 4, "cluster20": 20}
        assert features == (sorted(f"{name}[0]={path[:n]}" for name, n in cut.items()) if path else [])


def test_digits_are_left_where_the_table_was_made_with_them():
    clusters = Clusters(WordClusters.of_words([("0.0", "0"), ("1.5", "1")]))
    assert found(clusters, ["cluster[0]"], ["1.5", "0.0", "2.5"]) == [["cluster[0]=1"], ["cluster[0]=0"], []]


def test_joined_templates_and_padding():
    names = found(Clusters(WORDS), ["cluster4[-1]|cluster6[0]"], ["The", "Paris", "x"], padding=True)
    assert names == [["cluster4[-1]|cluster6[0]=<BOS1>|1"], ["cluster4[-1]|cluster6[0]=1|0001"], []]


def test_spacys_table_of_clusters():
    """Little-endian paths, bit strings, and 0 for none; whatever else was there ended in an overflow."""
    vocab = Vocab()
    table = vocab.lookups.add_table("lexeme_cluster")
    for word, cluster in {"a": 0b10, "b": 0b1101, "c": "0111", "d": 0}.items():
        table[vocab.strings.add(word)] = cluster
    clusters = read_clusters(None, None, vocab, name="crf_ner")
    names = found(clusters, ["cluster[0]"], ["a", "b", "c", "d"])
    assert names == [["cluster[0]=0100"], ["cluster[0]=1011"], ["cluster[0]=0111"], []]
    for wrong in (-1, 1.5, "abc", None):
        table[vocab.strings.add("e")] = wrong
        with pytest.raises(ValueError, match=rf"CRF943: the vocab's table 'lexeme_cluster'.* is {wrong!r}, neither"):
            read_clusters(None, None, vocab, name="crf_ner")
    with pytest.raises(ValueError, match=r"CRF943: nothing .*no word has a cluster"):
        of_lookups([(7, 0)], "nothing")


# ------------------------------------------------------------------------------------------------------------- files


def test_files_come_back(tmp_path):
    path = tmp_path / "folder" / "clusters.bin"
    write_clusters(path, WORDS)
    again = read_file(path)
    assert (again.words == WORDS.words).all() and (again.numbers == WORDS.numbers).all()
    assert again[2:] == WORDS[2:]
    assert Clusters(again) == Clusters(WORDS) != Clusters(again.first(2))
    assert [*path.parent.iterdir()] == [path]
    assert again.first(2).paths == [PATHS["Rome"], PATHS["paris"]]
    assert len(Clusters(again.first(100))) == len(PATHS)


def test_paths_of_wcluster(tmp_path):
    path = tmp_path / "paths"
    path.write_text(PEOPLE + "\n", encoding="utf8")
    read = read_file(path)
    assert Clusters(read.first(2)).of(["Bob", "Rome"], *np.array([[0, 0], read.words[[0, 2]]])).tolist() == [0, -1]
    assert Clusters(read).paths == ["00", "010", "011", "1"]


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"", "it holds no words"),
        (b"\n\n", "it holds no words"),
        (b"PK\x03\x04\xff", "neither what `spacy crf clusters` writes nor text"),
        (b"0\tthe\t1\nthe 0.1 0.2\n", "line 2 is 'the 0.1 0.2'"),
        (b"0\tthe\tmany\n", "line 1 is"),
        (b"2\tthe\tx\n", "line 1 is '2.tthe.tx', not a word, its cluster and perhaps a weight"),
        (b"the\t17\nof\t3\t-inf\n", "line 2 is"),
        (b"the\t17\nof\n", "line 2 is"),
        (b"the\t17\nof 3\t0.5\t2\t1\n", "line 2 is"),
        (b"\x1f\x8b damaged", "it can't be unpacked"),
        (b"0\t\t1\n", "line 1 is"),
        (b"01\tthe\t1\n0\ta\t3\n", "the path '0' is the beginning of '01'"),
    ],
)
def test_files_of_another_format(tmp_path, content, reason):
    path = tmp_path / "clusters.bin"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"CRF943: {path} .*{reason}"):
        read_file(path)


def test_damaged_files(tmp_path):
    path = tmp_path / "clusters.bin"
    with pytest.raises(ValueError, match=f"CRF943: .*{path}"):
        read_file(path)
    write_clusters(path, WORDS)
    data = path.read_bytes()
    other = {**WORDS.to_dict(), "numbers": b""}
    for changed, code in (
        (data[:-1], "CRF508"),
        (data[:-1] + bytes([data[-1] ^ 1]), "CRF508"),
        (whole_files.seal(module.FORMAT._replace(version=2), b""), "CRF502"),
        (whole_files.seal(module.FORMAT, b"\x93"), "CRF508"),
        (whole_files.seal(module.FORMAT, module.srsly.msgpack_dumps(other)), "CRF508"),
    ):
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=f"{code}: .*{path}"):
            read_file(path)


@pytest.mark.parametrize(
    "changed",
    [
        {"paths": ["0"]},
        {"paths": [1, 2, 3, 4, 5]},
        {"digits": 1},
        {"numbers": b""},
        {"words": b"", "numbers": b""},
    ],
)
def test_clusters_of_damaged_models(changed):
    with pytest.raises(ValueError, match="CRF509: the table of clusters is of"):
        Clusters.from_dict({**Clusters(WORDS).to_dict(), **changed})


def test_too_many_clusters():
    words = ((str(n), f"{n:b}") for n in range(module.MOST_CLUSTERS + 1))
    with pytest.raises(ValueError, match="CRF943: 65537 clusters"):
        WordClusters.of_words(words)


# ------------------------------------------------------------------------------------------------- where they come from


@pytest.fixture
def packaged(tmp_path, monkeypatch):
    """As spacy-lookups-data gives tables."""
    path = tmp_path / "xx_lexeme_cluster.json"
    path.write_text('{"Ann": 1, "Rome": 2, "the": 0}', encoding="utf8")
    folders = {"xx": {"lexeme_cluster": path}, "yy": {"lexeme_prob": path}}
    monkeypatch.setattr(registry, "lookups", folders)
    monkeypatch.setattr(module, "cache_folder", lambda path: tmp_path / "kept")
    return path


def test_packaged_clusters(packaged):
    read = read_clusters("spacy-lookups-data", None, spacy.blank("xx").vocab, name="crf_ner")
    assert found(read, ["cluster[0]"], ["Ann", "rome", "Rome", "the"]) == [["cluster[0]=10"], [], ["cluster[0]=01"], []]


def test_packaged_clusters_are_kept_until_the_package_changes(packaged, tmp_path, monkeypatch):
    def read():
        return read_clusters("spacy-lookups-data", None, spacy.blank("xx").vocab, name="crf_ner")

    first = read()
    (kept,) = (tmp_path / "kept").iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(module, "load_language_data", lambda path: pytest.fail("the package was read again"))
        assert read() == first
    kept.write_bytes(kept.read_bytes()[:-1])
    assert read() == first
    packaged.write_text('{"Ann": 1, "Rome": 2, "Oslo": 3}', encoding="utf8")
    assert len(read()) == 3
    monkeypatch.setattr(module, "cache_folder", lambda path: packaged / "no folder")
    assert len(read()) == 3


def test_packaged_clusters_for_two_at_once(packaged, tmp_path, monkeypatch):
    """Both unpack them, and one whole file is left; a folder that can't be written is no mistake."""
    barrier, load = threading.Barrier(2), module.load_language_data
    monkeypatch.setattr(module, "load_language_data", lambda path: (barrier.wait(10), load(path))[1])
    with ThreadPoolExecutor(2) as executor:
        one, two = executor.map(module.packaged_clusters, ["xx", "xx"])
    assert Clusters(one) == Clusters(two) == Clusters(module.packaged_clusters("xx"))
    assert len([*(tmp_path / "kept").iterdir()]) == 1
    monkeypatch.setattr(module, "load_language_data", load)
    monkeypatch.setattr(module, "cache_folder", lambda path: Path("/proc/nowhere"))
    assert Clusters(module.packaged_clusters("xx")) == Clusters(one)


def test_no_packaged_clusters(packaged):
    with pytest.raises(ValueError, match=r"CRF946: .*'de'.*pip install 'spacy-crf\[clusters\]'"):
        read_clusters("spacy-lookups-data", None, spacy.blank("de").vocab, name="crf_ner")
    vocab = Vocab(lex_attr_getters={spacy.attrs.LANG: lambda text: "yy"})
    with pytest.raises(ValueError, match=r"CRF946: .*'yy'.*en, de, es"):
        read_clusters("spacy-lookups-data", None, vocab, name="crf_ner")


@pytest.mark.parametrize(
    "given", [1, "", [], {}, {"n": 3}, {"path": "x", "n": 3}, {"path": "vectors", "n": 0}, {"path": "x", "words": 3}]
)
def test_settings_are_checked(given):
    with pytest.raises(ValueError, match=r"CRF020: \[initialize.components.crf_ner\]: clusters = "):
        read_clusters(given, None, Vocab(), name="crf_ner")


def vectors_of_groups(n_groups=4, of_each=6, noise=0.1):
    random = np.random.default_rng(0)
    centres = np.eye(n_groups)
    data = np.repeat(centres, of_each, axis=0) + noise * random.normal(size=(n_groups * of_each, n_groups))
    return data.astype(np.float32)


def test_splitting_finds_groups():
    paths, numbers = split(vectors_of_groups(), 4)
    assert len(paths) == 4
    assert [len(set(group)) for group in numbers.reshape(4, 6).tolist()] == [1] * 4
    assert len({*numbers.tolist()}) == 4
    again = split(vectors_of_groups(), 4)
    assert again[0] == paths and (again[1] == numbers).all()
    assert Clusters(WordClusters.of_words((path, path) for path in paths)).is_tree


def test_splitting_stops_where_all_are_the_same():
    points = np.repeat(np.eye(3, dtype=np.float32) * 0.3, 5, axis=0)
    paths, numbers = split(points, 10)
    assert len(paths) == 3 and np.bincount(numbers).tolist() == [5, 5, 5]


def vocab_with_vectors():
    vocab = Vocab()
    words = [f"w{n}" for n in range(24)]
    vocab.vectors = Vectors(strings=vocab.strings, data=vectors_of_groups(), keys=words)
    vocab.vectors.add("alias", row=0)
    return vocab


def test_clusters_of_vectors():
    read = read_clusters({"path": "vectors", "n": 4}, None, vocab_with_vectors(), name="crf_ner")
    names = found(read, ["cluster[0]"], ["w0", "alias", "w5", "w6", "W6", "other"])
    assert names[0] == names[1] == names[2] != names[3] == names[4]
    assert names[5] == []


def test_no_vectors():
    vocab = Vocab()
    with pytest.raises(ValueError, match=r"CRF948: .*the pipeline: there are none"):
        read_clusters("vectors", None, vocab, name="crf_ner")
    vocab.vectors = Vectors(strings=vocab.strings, data=np.zeros((2, 3), dtype=np.float32), keys=["a", "b"])
    with pytest.raises(ValueError, match=r"CRF948: .*all of them are zero"):
        read_clusters("vectors", None, vocab, name="crf_ner")
    data = np.ones((8, 3), dtype=np.float32)
    vocab.vectors = Vectors(strings=vocab.strings, data=data, mode="floret", minn=3, maxn=4, hash_count=2)
    with pytest.raises(ValueError, match=r"CRF948: .*floret"):
        read_clusters("vectors", None, vocab, name="crf_ner")
    with pytest.raises(ValueError, match=r"CRF948: Can't make 25 clusters from the pipeline: it has 24 words"):
        read_clusters({"path": "vectors", "n": 25}, None, vocab_with_vectors(), name="crf_ner")


# --------------------------------------------------------------------------------------------------------- components

SEGMENTS = ["seg.lower", "seg.first:cluster4|seg.last:cluster4", "seg.contains:cluster6"]
FACTORIES = ["crf_ner", "crf_tagger", "semicrf_ner"]


def blank(factory, templates=TEMPLATES, layer=None, segments=SEGMENTS):
    nlp = spacy.blank("en")
    features = {"@misc": "spacy_crf.features.v1", "templates": [*templates, "lower[0]"]}
    model = {"emissions": {"features": features}}
    if layer is not None:
        model["@architectures"] = "spacy_crf.LinearChain.v1"
        model["emissions"]["@architectures"] = layer
    if factory == "semicrf_ner":
        model["segments"] = {"features": {"@misc": "spacy_crf.segment_features.v1", "templates": segments}}
    nlp.add_pipe(factory, config={"model": model})
    return nlp


def examples_for(nlp):
    return (
        tag_examples(nlp, [*TAG_TEXTS, "Bob/NN met/VB Zoe/NN"])
        if nlp.pipe_names == ["crf_tagger"]
        else ner_examples(nlp)
    )


def train(nlp, clusters=None, **initialize):
    examples = examples_for(nlp)
    settings = {**initialize, **({} if clusters is None else {"clusters": clusters})}
    nlp.config["initialize"]["components"][nlp.pipe_names[0]] = settings
    optimizer = registry.get("optimizers", "spacy_crf.LBFGS.v1")(l2=0.01, iterations_per_step=30)
    nlp.initialize(lambda: examples, sgd=optimizer)
    nlp.update(examples, sgd=optimizer)
    return nlp


def scores(nlp, text="Zoe met BOB in quebec"):
    [(_, pipe)] = nlp.pipeline
    return pipe.marginals(nlp.make_doc(text))[0]


def names_of(nlp):
    [(_, pipe)] = nlp.pipeline
    names = [name for store in pipe.feature_stores for table in store.tables.values() for name in table.index.names()]
    return {name for name in names if "cluster" in name}


@pytest.mark.parametrize("factory", FACTORIES)
def test_components_keep_their_clusters(factory, people, tmp_path):
    """On disk, as bytes, in copies, where they are sourced, and without the file; in other processes too."""
    nlp = train(blank(factory), str(people))
    people.unlink()
    assert "cluster6[-1]=00" in names_of(nlp) or factory == "crf_tagger"
    expected = scores(nlp)
    nlp.to_disk(tmp_path / "model")
    sourced = spacy.blank("en")
    sourced.add_pipe(factory, source=nlp)
    loaded = spacy.load(tmp_path / "model")
    for again in (loaded, blank(factory).from_bytes(nlp.to_bytes()), copy.deepcopy(nlp), sourced):
        np.testing.assert_array_equal(scores(again), expected)
        [(_, pipe)] = again.pipeline
        assert pipe.to_bytes() == nlp.get_pipe(factory).to_bytes()
    texts = ["Zoe met BOB in quebec", "Bob left Rome"] * 5
    one, two = ([doc.to_json() for doc in loaded.pipe(texts, n_process=n, batch_size=2)] for n in (1, 2))
    assert one == two


def test_a_table_that_features_of_tokens_and_of_segments_read_is_saved_once(people):
    """And is one object again. Files that have it twice still load."""
    nlp = train(blank("semicrf_ner"), str(people))
    expected, pipe = scores(nlp), nlp.get_pipe("semicrf_ner")
    [clusters, other] = [features.clusters[""] for features in pipe.feature_stores]
    words, saved = clusters.to_dict()["words"], pipe.to_bytes()
    assert clusters is other and whole_files.unseal(saving.FORMAT, saved, "").count(words) == 1
    content = srsly.msgpack_loads(whole_files.unseal(saving.FORMAT, saved, ""))
    twice = whole_files.seal(saving.FORMAT, srsly.msgpack_dumps({**content, "model": pipe.model.to_bytes()}))
    for data in (saved, twice):
        again = blank("semicrf_ner")
        stores = again.get_pipe("semicrf_ner").from_bytes(data).feature_stores
        np.testing.assert_array_equal(scores(again), expected)
        first, second = (features.clusters[""] for features in stores)
        assert first == second == clusters and (first is second) == (data is saved)
    broken = srsly.msgpack_loads(content["model"])
    for attrs in broken["attrs"]:
        for name in attrs.keys() & {"features", "segment_features"}:
            attrs[name] = srsly.msgpack_dumps({**srsly.msgpack_loads(attrs[name]), "cluster_tables": {"": 7}})
    content["model"] = srsly.msgpack_dumps(broken)
    with pytest.raises(ValueError, match=r"CRF505: .*CRF509: .*a list that nodes share"):
        pipe.from_bytes(whole_files.seal(saving.FORMAT, srsly.msgpack_dumps(content)))
    np.testing.assert_array_equal(scores(nlp), expected)


def test_unseen_words_are_known_by_their_cluster(people):
    nlp = train(blank("crf_ner", ["cluster[0]", "cluster6[-1..1]"]), str(people))
    assert [ent.text for ent in nlp("Zoe left Oslo .").ents] == ["Zoe", "Oslo"]


@pytest.mark.parametrize("factory", FACTORIES)
def test_templates_without_a_table(factory, people, tmp_path, monkeypatch):
    """Refused where it begins; and a model that lost its table is, too."""
    nlp = blank(factory)
    with pytest.raises(ValueError, match=r"CRF940: .*cluster6\[-1\].*\[initialize.components.NAME\] clusters = "):
        nlp.initialize(lambda: examples_for(nlp))
    nlp = train(nlp, str(people))
    for store in nlp.get_pipe(factory).feature_stores:
        store.clusters = {}
    with pytest.raises(ValueError, match=r"CRF505: .*CRF940: .*train it again"):
        blank(factory).from_bytes(nlp.to_bytes())


def test_clusters_that_nobody_reads(people):
    nlp = blank("crf_ner", ["lower[-1]"])
    with pytest.raises(ValueError, match=r"CRF944: Component 'crf_ner'.*cluster6"):
        train(nlp, str(people))


def test_how_many_words_are_in_clusters_is_told(tmp_path, people, caplog):
    with caplog.at_level(logging.INFO):
        train(blank("crf_ner"), str(people))
    words = {word for example in ner_examples(spacy.blank("en")) for word in example.reference.text.split()}
    assert f"4 of {len(words)} words of the training data are in a cluster ({400 / len(words):.1f} %)" in caplog.text


@pytest.mark.parametrize("layer", [None, "spacy_crf.HashedEmissions.v1"])
def test_clusters_that_know_no_word(layer, tmp_path):
    words = {word for example in ner_examples(spacy.blank("en")) for word in example.reference.text.split()}
    other = tmp_path / "other.txt"
    other.write_text("0\tnirgends\t1\n", encoding="utf8")
    said = rf"the clusters know 0 of {len(words)} words .* \(0.0%\).* \[initialize.components.crf_ner\]"
    with pytest.raises(ValueError, match=f"CRF947: Component 'crf_ner': {said}"):
        train(blank("crf_ner", layer=layer), str(other))


def test_a_table_of_few_words_or_of_another_language(tmp_path):
    """One in twenty of the words must be known, or of the table where it is smaller: frequent words alone are few."""
    nlp = blank("crf_ner", ["cluster:own[0]"])
    words = sorted({word for example in ner_examples(nlp) for word in example.reference.text.split()})
    path = tmp_path / "own.tsv"
    path.write_text(f"{words[0]}\t7\n", encoding="utf8")
    train(blank("crf_ner", ["cluster:own[0]"]), words={"tables": {"own": str(path)}})
    path.write_text(f"{words[0]}\t7\n" + "".join(f"wort{n}\t8\n" for n in range(100)), encoding="utf8")
    assert len(words) > 20
    said = r"CRF947: .* the clusters 'own' know 1 of .*leave out \[initialize.components.crf_ner.words.tables\] own"
    with pytest.raises(ValueError, match=said):
        train(nlp, words={"tables": {"own": str(path)}})


def test_segments_alone_read_clusters(people):
    """Only what reads the table keeps it."""
    nlp = train(blank("semicrf_ner", ["lower[-1]"]), str(people))
    of_tokens, of_segments = nlp.get_pipe("semicrf_ner").feature_stores
    assert not of_tokens.clusters and len(of_segments.clusters[""]) == 7
    assert {name.partition("=")[0] for name in names_of(nlp)} == set(SEGMENTS[1:])


def test_beginning_anew_keeps_the_table(people, caplog):
    """Also where the file that the config names is gone."""
    nlp = train(blank("crf_ner"), str(people))
    expected, table = scores(nlp), nlp.get_pipe("crf_ner").sparse_features.clusters[""]
    people.unlink()
    for given in (None, str(people)):
        with caplog.at_level(logging.INFO):
            train(nlp, given)
        assert nlp.get_pipe("crf_ner").sparse_features.clusters[""] is table
        np.testing.assert_allclose(scores(nlp), expected, atol=1e-5)
    assert "the clusters are those of the model" in caplog.text


def test_starting_from_a_model_with_other_clusters(people, tmp_path):
    nlp = train(blank("crf_ner"), str(people))
    nlp.to_disk(tmp_path / "model")
    for given in (None, str(people)):
        going_on = train(blank("crf_ner"), given, start_from=str(tmp_path / "model"))
        assert names_of(going_on) == names_of(nlp)
    with pytest.raises(ValueError, match=r"CRF950: Component 'crf_ner'"):
        train(blank("crf_ner"), {"path": str(people), "most_words": 3}, start_from=str(tmp_path / "model"))


def test_updates_meet_words_of_clusters(people):
    """Going on counts new features of clusters."""
    nlp = train(blank("crf_ner", ["cluster[0]"]), str(people))
    before = names_of(nlp)
    new = ner_examples(nlp, ["[Quebec](GPE) and [Rome](GPE) ."])
    sgd = nlp.resume_training(sgd=registry.get("optimizers", "spacy_crf.LBFGS.v1")(l2=0.1, iterations_per_step=30))
    nlp.update(new, sgd=sgd)
    assert before < names_of(nlp)
    assert all(example.reference.ents[0].text == nlp(plain(example.reference)).ents[0].text for example in new)


def test_most_words(people):
    nlp = train(blank("crf_ner"), {"path": str(people), "most_words": 3})
    clusters = nlp.get_pipe("crf_ner").sparse_features.clusters[""]
    assert len(clusters) == 3 and clusters.paths == ["00", "010"]


# ----------------------------------------------------------------------------------------------------- several tables

CLARK = "Bob 17 0.2\nZoe 17 0.1\nRome 4 0.3\nParis 4\nOslo 4\n"


@pytest.fixture
def words(people, tmp_path):
    clark, cities = tmp_path / "clark.tsv.gz", tmp_path / "cities.txt"
    clark.write_bytes(gzip.compress(CLARK.encode("utf8")))
    cities.write_text("Rome\nOslo\n", encoding="utf8")
    return {"tables": {"own": str(people), "clark": str(clark)}, "gazetteers": {"cities": str(cities)}}


NAMED = ["cluster4:own[-1..0]", "cluster:clark[0]", "cluster:clark[0]|lower[0]", "in:cities[0]"]


@pytest.mark.parametrize("factory", FACTORIES)
def test_several_tables_at_once(factory, words, tmp_path):
    """Each under its name, kept on disk, as bytes, in copies, where they are sourced, and in other processes."""
    segments = ["seg.lower", "seg.first:cluster:own"]
    nlp = train(blank(factory, NAMED, segments=segments), words=words)
    for path in (*words["tables"].values(), *words["gazetteers"].values()):
        Path(path).unlink()
    assert {"cluster4:own[0]=00", "cluster:clark[0]=17"} <= names_of(nlp)
    expected = scores(nlp)
    nlp.to_disk(tmp_path / "model")
    sourced = spacy.blank("en")
    sourced.add_pipe(factory, source=nlp)
    loaded = spacy.load(tmp_path / "model")
    for again in (
        loaded,
        blank(factory, NAMED, segments=segments).from_bytes(nlp.to_bytes()),
        copy.deepcopy(nlp),
        sourced,
    ):
        np.testing.assert_array_equal(scores(again), expected)
    texts = ["Zoe met BOB in quebec", "Bob left Rome"] * 5
    one, two = ([doc.to_json() for doc in loaded.pipe(texts, n_process=n, batch_size=2)] for n in (1, 2))
    assert one == two
    if factory == "crf_ner":
        train(loaded, words=words)  # the files are gone, the model has the tables
        np.testing.assert_allclose(scores(loaded), expected, atol=1e-5)
        doc = nlp.make_doc("Zoe left Oslo")
        found = loaded.get_pipe(factory).explain(doc, Span(doc, 0, 1, label="PER"), kind="contrast")
        assert {"cluster:clark[0]=17", "cluster4:own[0]=00"} <= {row.feature for row in found.rows}


def test_segments_read_named_tables(words):
    segments = ["seg.first:cluster4:own|seg.last:cluster:clark", "seg.contains:cluster:clark"]
    nlp = train(blank("semicrf_ner", [], segments=segments), words={"tables": words["tables"]})
    assert {name.partition("=")[0] for name in names_of(nlp)} == set(segments)


def test_one_table_without_a_name(people):
    """``words.tables`` with one source is what ``clusters`` is."""
    one, other = train(blank("crf_ner"), str(people)), train(blank("crf_ner"), words={"tables": str(people)})
    np.testing.assert_array_equal(scores(one), scores(other))


@pytest.mark.parametrize(
    "templates, changed, said",
    [
        (["cluster:other[0]"], {}, r"CRF940: .*cluster:other.*there are cluster:clark, cluster:own alone.*tables\] other = "),
        (["cluster[0]"], {}, r"CRF940: .*there are cluster:clark, cluster:own alone.*NAME\] clusters = "),
        (["cluster5:own[0]"], {}, r"CRF106: .*'cluster5:own'"),
        (["cluster:own[0]", "cluster4:clark[0]"], {}, r"CRF941: .*no tree of bits. Write cluster:clark in place of cluster4"),
        (["lower[0]"], {}, r"CRF944: .*clusters 'own'.*cluster:own\[-1..1\]"),
        (["cluster:own[0]"], {"tables": {"own": 3}}, r"CRF020: \[initialize.components.crf_ner.words.tables\]: own = 3"),
        (["cluster:own[0]"], {"tables": {"a b": "x", "own": "y"}}, r"CRF020: .*without blanks, colons and brackets"),
        (["cluster:own[0]"], {"table": {}}, r"CRF020: \[initialize.components.crf_ner\]: words = "),
        (["cluster:own[0]"], {"tables": {"own": "nowhere.tsv"}}, r"CRF943: nowhere.tsv"),
        (["cluster:own[0]"], {"tables": {"own": "lookups"}}, r"CRF943: the vocab's table 'lexeme_cluster'"),
    ],
)  # fmt: skip
def test_mistakes_with_tables(templates, changed, said, words):
    del words["gazetteers"]
    with pytest.raises(ValueError, match=said):
        train(
            blank("crf_ner", [*templates, *(["cluster:clark[0]", "cluster:own[0]"] if "alone" in said else [])]),
            words={**words, **changed},
        )


def test_a_setting_is_given_once(words, people):
    for given in ({"clusters": str(people)}, {"gazetteers": words["gazetteers"]}):
        with pytest.raises(
            ValueError, match=r"CRF020: \[initialize.components.crf_ner\]: words = .*none of these beside it"
        ):
            train(blank("crf_ner", NAMED), words=words, **given)


@pytest.mark.parametrize(
    "content, expected",
    [
        ("Bob\t17\nRome\t4\t0.5\n", {"Bob": "17", "Rome": "4"}),  # ixa-pipes: word2vec and Clark
        ("Bob 17\r\nRome 4 1e-3\r\n", {"Bob": "17", "Rome": "4"}),  # Stanford, after Clark
        ("010\tBob\n011\tNew York\n", {"Bob": "010", "New York": "011"}),  # Stanford, after Koo
        ("010\tBob\t2\n011\tRome\t3\n", {"Rome": "011", "Bob": "010"}),  # wcluster
        ("10\u00a0000 5\n\u3000 6\n", {"10\u00a0000": "5", "\u3000": "6"}),  # other white space is part of words
        ("0\t5\nBob\t17\nRome\t4\n", {"0": "5", "Bob": "17", "Rome": "4"}),  # a word of bits
        ("Bob\t1\t0.2\nBob\t2\t0.7\nRome\t1\nRome\t1\n", {"Bob": "2", "Rome": "1"}),  # the larger weight
    ],
)
def test_files_of_other_programs(content, expected, tmp_path):
    for path, data in ((tmp_path / "a.txt", content.encode()), (tmp_path / "b.gz", gzip.compress(content.encode()))):
        path.write_bytes(data)
        read = read_file(path)
        assert [read.paths[number] for number in read.numbers] == list(expected.values())
        assert Clusters(read).is_tree == ("010" in expected.values())
        assert read.words.tolist() == [spacy.strings.get_string_id(word) for word in expected]


def test_spacys_tables_as_files(tmp_path):
    path = tmp_path / "en_lexeme_cluster.json.gz"
    path.write_bytes(gzip.compress(b'{"Ann": 1, "Rome": 2, "the": 0}'))
    assert read_file(path).paths == ["10", "01"]
    for content in (b"[1]", b"{", b'{"Ann": "x"}'):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"CRF943: {path}"):
            read_file(path)


def test_a_word_in_two_clusters(tmp_path):
    path = tmp_path / "clusters.tsv"
    for content in ("Bob\t1\nRome\t2\nBob\t2\n", "Bob\t1\t3\nRome\t2\t2\nBob\t2\t3\n"):
        path.write_text(content, encoding="utf8")
        with pytest.raises(
            ValueError, match=f"CRF945: {path}: line 3 puts the word 'Bob' in the cluster '2', and line 1 in '1'"
        ):
            read_file(path)


def test_fit_tries_no_other_clusters_beside_those_of_the_config(packaged):
    """Tables in the `words` block count as clusters of the config, as the setting `clusters` does."""
    nlp = spacy.blank("xx")
    features = {"@misc": "spacy_crf.ner_features.v1", "extra": ["cluster:own[0]"]}
    nlp.add_pipe("crf_ner", config={"model": {"emissions": {"features": features}}})
    for given, expected in (({}, True), ({"clusters": "x"}, False), ({"words": {"tables": {"own": "x"}}}, False)):
        nlp.config["initialize"]["components"]["crf_ner"] = given
        assert ("clusters" in _possible(nlp, "crf_ner", True)) == expected
