"""What the benchmarks rest on: the way from files to Docs and back, and that both sides read the same features."""

import csv
import os
import re
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from spacy.vocab import Vocab

pytest.importorskip("pycrfsuite", reason="the benchmarks need the extra 'dev'")
pytest.importorskip("seqeval", reason="the benchmarks need the extra 'dev'")

import spacy_crf

from . import beside_others, beside_systems, data, measure, neural, rivals, start
from .speed import Line

CHUNKS = """\
He\tPRP\tB-NP
reckons\tVBZ\tB-VP
the\tDT\tB-NP
deficit\tNN\tI-NP

Oh\tUH\tO

"""


def test_conll_columns():
    first, second = data.parse_conll(CHUNKS.splitlines(keepends=True))
    assert first == (["He", "reckons", "the", "deficit"], ["PRP", "VBZ", "DT", "NN"], ["B-NP", "B-VP", "B-NP", "I-NP"])
    assert second.words == ["Oh"]
    [without_tags] = data.parse_conll(["New\tB-LOC\n", "York\tI-LOC\n"])
    assert without_tags.pos is None and without_tags.tags == ["B-LOC", "I-LOC"]


@pytest.mark.parametrize("tags", [["B-NP", "I-NP", "B-NP"], ["O", "B-X-Y", "I-X-Y"], ["O", "O", "O"]])
def test_entities_survive_the_doc(tags):
    doc = data.make_gold_doc(Vocab(), data.Sentence(["a", "b", "c"], None, tags))
    assert data.iob2_tags(doc) == tags


def test_gold_stays_out_of_the_predicted_doc():
    sentence = data.Sentence(["a", "b"], ["DT", "NN"], ["B-NP", "I-NP"])
    [example] = data.make_examples(Vocab(), [sentence])
    assert [token.tag_ for token in example.predicted] == ["DT", "NN"]
    assert not example.predicted.ents and len(example.reference.ents) == 1
    [example] = data.make_examples(Vocab(), [sentence], entities=False)
    assert [token.tag_ for token in example.reference] == ["B-NP", "I-NP"]


def test_docbin_keeps_words_and_tags(tmp_path):
    from spacy.tokens import DocBin

    sentences = list(data.parse_conll(CHUNKS.splitlines()))
    data.save_docbin(tmp_path / "chunks.spacy", sentences)
    docs = list(DocBin().from_disk(tmp_path / "chunks.spacy").get_docs(Vocab()))
    assert [[token.text for token in doc] for doc in docs] == [s.words for s in sentences]
    assert [data.iob2_tags(doc) for doc in docs] == [s.tags for s in sentences]


def test_missing_data_names_the_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("SPACY_CRF_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(SystemExit, match=r"nowhere.*SPACY_CRF_DATA"):
        data.read_sentences("wnut17", "train")


def test_example_features_leave_out_what_reaches_outside():
    doc = data.make_doc(Vocab(), data.Sentence(["a", "b"], ["X", "Y"], ["O", "O"]))
    first, last = rivals.example_features(doc)
    assert set(first) == {"w(0,)=a", "w(1,)=b", "w(0, 1)=a|b", "t(0,)=X", "t(1,)=Y", "t(0, 1)=X|Y", "__BOS__"}
    assert set(last) == {"w(-1,)=a", "w(0,)=b", "w(-1, 0)=a|b", "t(-1,)=X", "t(0,)=Y", "t(-1, 0)=X|Y", "__EOS__"}


def test_crfsuite_trains_and_tags(tmp_path):
    sentences = list(data.parse_conll(CHUNKS.splitlines()))
    docs = [data.make_doc(Vocab(), s) for s in sentences]
    rival = rivals.CRFsuite(rivals.strong_features, rivals.STRONG_PARAMS).read(docs, [s.tags for s in sentences])
    training = rival.train(tmp_path / "model", max_iterations=20)
    assert 0 < training.iterations <= 20 and training.passes >= training.iterations
    tagger = rivals.CRFsuiteTagger(rivals.strong_features, tmp_path / "model")
    assert [tagger(doc) for doc in docs] == [s.tags for s in sentences]


def test_scores_count_entities_and_tokens():
    gold, predicted = [["B-X", "I-X", "O", "B-Y"]], [["B-X", "O", "O", "B-Y"]]
    assert measure.entity_f1(gold, predicted) == pytest.approx(50.0)
    assert measure.token_accuracy(gold, predicted) == pytest.approx(75.0)


@pytest.mark.parametrize("learner", ["ner", "pool"])
def test_encoders_learn_for_some_seconds(learner, tmp_path, monkeypatch):
    monkeypatch.setenv("SPACY_CRF_DATA", str(tmp_path))
    monkeypatch.setenv("SPACY_CRF_BENCHMARK_CACHE", str(tmp_path / "cache"))
    (tmp_path / "conll2000").mkdir()
    for part in ("train", "test"):  # it has no dev
        (tmp_path / "conll2000" / f"{part}.conll").write_text(CHUNKS * 20, encoding="utf8")
    found = neural.learned("conll2000", learner, 1)
    assert found.dev == 100.0 and found.test > 80.0 and found.words_per_second > 0
    monkeypatch.setattr(neural, "_learn", None)
    assert neural.learned("conll2000", learner, 1) == found


def test_verdicts_know_which_way_is_better():
    assert Line.of_ratio("time", 1.0, 10.0, "s", must=0.3, aim=0.15).cells()[-1] == "aim"
    assert Line.of_ratio("time", 2.0, 10.0, "s", must=0.3, aim=0.15).cells()[-1] == "must"
    assert Line.of_ratio("rate", 5.0, 10.0, "tokens/s", must=0.7, aim=0.9).cells()[-1] == "MISSED"


def test_tables_name_the_machine(capsys):
    measure.show("Speed", ("benchmark", "s"), [("a pass", 0.5)])
    printed = " ".join(capsys.readouterr().out.split())
    assert f"{os.cpu_count()} cores" in printed and measure.machine().split(",")[0].split(";")[0] in printed


def test_figures_are_recorded_with_their_unit(monkeypatch, tmp_path):
    path = tmp_path / "history.csv"
    monkeypatch.setenv(measure.RECORD, str(path))
    monkeypatch.setattr(sys, "argv", ["tests/benchmarks/speed.py"])
    measure.show("A", ("benchmark", "ours", "", "ratio"), [("a pass", 0.25, "ms", 0.5), ("none", None, "ms", "≤ 1")])
    measure.show("B", ("set", "ours, s"), [("wnut17", 12)])
    lines = list(csv.reader(path.read_text(encoding="utf8").splitlines()))
    assert [line[2:6] for line in lines] == [
        ["speed", "a pass, ours", "0.25", "ms"],
        ["speed", "a pass, ratio", "0.5", ""],
        ["speed", "wnut17, ours", "12", "s"],
    ]
    assert {(line[0], line[6]) for line in lines} == {(spacy_crf.__version__, measure.machine())}


def test_the_history_has_figures_of_versions_that_there_were():
    header, *lines = csv.reader(Path(__file__).with_name("history.csv").read_text(encoding="utf8").splitlines())
    assert header == ["version", "date", "benchmark", "what", "figure", "unit", "cpu"] and lines
    for version, day, benchmark, _, figure, *_ in lines:
        assert re.fullmatch(r"0\.\d+\.\d+", version) and date.fromisoformat(day) and float(figure) > 0
        assert Path(__file__).with_name(f"{benchmark.split()[0]}.py").is_file()


def test_siblings_are_busy_only_meanwhile(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    started, popen = [], subprocess.Popen

    def start(*args, **options):
        started.append(popen(*args, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    with measure.busy_siblings():
        assert [process.poll() for process in started] == [None, None]
    assert all(process.poll() is not None for process in started)


ADDRESSES = """\
12\tB-NUMBER
Elm\tB-STREET
Road\tI-STREET

7\tB-NUMBER
Oak\tB-STREET
Way\tI-STREET

"""


def test_systems_are_trained_and_used_in_processes_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("SPACY_CRF_DATA", str(tmp_path))
    (tmp_path / "usaddress").mkdir()
    for split in ("heldout_train", "heldout_dev", "heldout_test"):
        (tmp_path / "usaddress" / f"{split}.conll").write_text(ADDRESSES * 5, encoding="utf8")
    output = tmp_path / "results.jsonl"
    settings = {"names": "usaddress", "sizes": "0", "most_train": 10, "most_test": 10, "minutes": 600}
    for systems in ("ours", "ours; CRFsuite"):  # the second run goes on
        beside_others.main(str(output), systems=systems, table=False, **settings)
    results = beside_others.read_results(output)
    assert [(job.system, row["f1"]) for job, row in results.items()] == [("ours", 100.0), ("CRFsuite", 100.0)]
    assert len(output.read_text(encoding="utf8").splitlines()) == 2
    assert all(row[cost] > 0 for row in results.values() for cost in beside_others.COSTS)
    table = beside_others.as_markdown(results)
    assert "| usaddress | ours |  |  |  | **100.0** |" in table and measure.machine() in table


def test_sentences_for_choosing_a_model(tmp_path, monkeypatch):
    monkeypatch.setenv("SPACY_CRF_DATA", str(tmp_path))
    monkeypatch.setattr(beside_others, "FITTED", 5)
    (tmp_path / "cora_refs").mkdir()
    (tmp_path / "cora_refs" / "train.conll").write_text(ADDRESSES * 10, encoding="utf8")  # it has no dev

    def sizes(system, size, most=20):
        return [len(part) for part in beside_others.parts(beside_others.Job("cora_refs", system, size), most)]

    assert sizes("ours", 0) == [18, 2]  # every tenth
    assert sizes("CRFsuite", 0) == [20, 0]
    assert sizes("ours", 0, most=5) == sizes("ours", 5) == [5, 0]  # few are cross-validated
    assert {job.size for job in beside_others.all_jobs(["cora_refs"], ["ours"], [0, 5, 20, 30])} == {0, 5}


def test_labels_of_addresses_become_entities():
    labels = ["AddressNumber", "StreetName", "StreetName", "ZipCode"]
    assert beside_systems.as_iob2(labels) == ["B-AddressNumber", "B-StreetName", "I-StreetName", "B-ZipCode"]


def test_wapiti_reads_the_strong_features():
    [row] = beside_systems.wapiti_rows("en")(["New York"])
    assert row == "new_york Xxx_Xxxx 1000 New_York N Ne New New k rk ork York"
    first, *_, last = beside_systems.wapiti_patterns().splitlines()
    assert first == "u:lower(-2,)=%x[-2,0]" and last == "b"
    assert "u:shape(-1,0,1)=%x[-1,1]/%x[0,1]/%x[1,1]" in beside_systems.wapiti_patterns()


def test_what_does_not_run_says_why():
    printed = "Traceback:\n  File x\nLookupError: \n*****\n  Resource not found.\n"
    assert beside_others.reason(printed) == "LookupError: Resource not found."
    assert beside_others.reason("Killed\n") == "Killed"


def test_a_version_stands_beside_another_one(capsys):
    start.main(
        beside=sys.executable,
        rounds=1,
        only="events,help,blank",
        components="crf_textcat",
        timed="",
        cores="",
        commands="compile",
    )
    rows = {}
    for line in capsys.readouterr().out.splitlines():
        if line.startswith("│"):
            title, *cells = [cell.strip() for cell in line.strip("│").split("│")]
            rows[title] = cells
    of_this, of_other, ratio = rows["crf_textcat"]
    assert of_this == of_other and int(of_this) > 5 and float(ratio) == 1.0
    assert {"crf compile --help", "blank, with this package", "blank, without"} < rows.keys()
