"""``python -m spacy crf annotate --workers``: archives in parts, by workers that may die, each text exactly once."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from datetime import datetime
from functools import partial
from io import FileIO
from pathlib import Path

import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from spacy_crf import __version__, progress
from spacy_crf.cli import annotate, app
from spacy_crf.cli.annotate import ERRORS, AnnotateOptions, annotate_archive
from spacy_crf.cli.archive_parts import lines, plan
from spacy_crf.whole_files import unfinished_name
from spacy_crf.workers import work_folder
from spacy_crf.workers.executors import Processes, check_versions
from spacy_crf.workers.work_folder import MANIFEST, LocalFiles
from tests.pipeline.test_probabilities import trained

TEXTS = [f"Ann Lee lives in New York {n} ." if n % 3 else f"Nobody 😀 came {n} ." for n in range(40)]


class Here:
    """An executor that does everything in this process, and is stopped after some tasks."""

    def __init__(self, stops_after=None):
        self._stops_after = stops_after

    def run(self, make, tasks):
        work = make()
        for n, task in enumerate(tasks):
            if n == self._stops_after:
                raise KeyboardInterrupt
            yield task, work(task)


class Backwards(Here):
    def run(self, make, tasks):
        return super().run(make, tasks[::-1])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Do not change."""
    folder = tmp_path_factory.mktemp("parts") / "model"
    trained().to_disk(folder)
    return str(folder)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text(
        "".join(json.dumps({"text": text, "id": n}) + "\n" for n, text in enumerate(TEXTS)), encoding="utf8"
    )
    return str(path)


def annotated(model, source, target, executor=None, *, size=300, strict=False, **options):
    told = []
    options = AnnotateOptions(model, None, str(target), **{"format": "spans", **options}, strict=strict)
    found = annotate_archive(options, source, executor or Here(), size, lambda *args: told.append(args))
    assert told[-1][1:] == (told[-1][2], told[-1][2])
    return found


def parts_of(target, suffix=".jsonl"):
    return sorted(Path(target).glob(f"part-*{suffix}"))


def records_of(target):
    return [json.loads(line) for path in parts_of(target) for line in path.read_text(encoding="utf8").splitlines()]


@given(
    texts=st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=8), max_size=12),
    ends=st.booleans(),
    size=st.integers(1, 40),
)
def test_parts_have_each_line_once(tmp_path_factory, texts, ends, size):
    path = tmp_path_factory.mktemp("lines") / "some.txt"
    content = "\n".join(texts) + ("\n" if ends else "")
    path.write_bytes(content.encode("utf8"))
    found = [line for part in plan(str(path), size)[0] for _, line in lines(part)]
    assert b"".join(found) == content.encode("utf8")
    assert all(line.count(b"\n") <= 1 for line in found)


def test_parts_together_are_what_one_process_finds(model, source, tmp_path):
    found = annotated(model, source, tmp_path / "out")
    assert len(parts_of(tmp_path / "out")) > 3
    nlp = spacy.load(model)
    nlp.get_pipe("crf_ner").cfg["confidence"] = True
    expected = [
        {
            "text": doc.text,
            "id": n,
            "spans": [
                {
                    "start": e.start_char,
                    "end": e.end_char,
                    "label": e.label_,
                    "prob": pytest.approx(e._.crf_prob, abs=1e-6),
                }
                for e in doc.ents
            ],
        }
        for n, doc in enumerate(nlp.pipe(TEXTS))
    ]
    assert records_of(tmp_path / "out") == expected
    assert found["texts"] == len(TEXTS) and found["spans"] == sum(len(record["spans"]) for record in expected) > 0
    assert not (tmp_path / "out" / ERRORS).exists()


@pytest.mark.parametrize("stops_after", [0, 1, 3])
def test_what_was_stopped_goes_on(model, source, tmp_path, stops_after):
    whole, target = tmp_path / "whole", tmp_path / "out"
    annotated(model, source, whole)
    with pytest.raises(KeyboardInterrupt):
        annotated(model, source, target, Here(stops_after))
    assert len(parts_of(target)) == stops_after
    (target / unfinished_name("part-00002.jsonl")).write_text("half a li")  # of a worker that was killed
    before = {path: path.stat().st_mtime_ns for path in parts_of(target)}
    (target / unfinished_name(MANIFEST)).write_text("{")
    annotated(model, source, target)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert records_of(target) == records_of(whole)
    assert sorted(os.listdir(target)) == sorted(os.listdir(whole))


def test_a_part_whose_file_is_gone_or_short_is_done_again(model, source, tmp_path):
    whole, target = tmp_path / "whole", tmp_path / "out"
    for folder in (whole, target):
        annotated(model, source, folder)
    first, second, *_ = parts_of(target)
    first.unlink()
    second.write_bytes(second.read_bytes()[:-1])
    annotated(model, source, target)
    assert records_of(target) == records_of(whole)


def test_one_command_at_a_time_writes_to_a_folder(model, source, tmp_path, monkeypatch):
    """The lock of one that is killed is taken over."""
    target = tmp_path / "out"
    target.mkdir()
    holds = "import sys, time; from pathlib import Path; from spacy_crf.workers.work_folder import Lock;"
    holds += "lock = Lock(Path(sys.argv[1]) / 'lock'); print('locked', flush=True); time.sleep(600)"
    other = subprocess.Popen([sys.executable, "-c", holds, str(target)], stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"locked\n"
        unfinished = unfinished_name("part-00000.jsonl")
        (target / unfinished).write_text("of the other")
        with pytest.raises(ValueError, match=rf"CRF736.*{other.pid} of .* works in .*out"):
            annotated(model, source, target)
        assert sorted(os.listdir(target)) == [unfinished, "lock"]
    finally:
        other.kill()
        other.communicate()
    with pytest.raises(KeyboardInterrupt) as kept:
        annotated(model, source, target, Here(1))
    annotated(model, source, target)  # though what was raised still refers to it
    assert kept and [record["id"] for record in records_of(target)] == [*range(len(TEXTS))]
    assert not list(target.glob(".*"))
    monkeypatch.setattr(work_folder, "_lock", no_locks)
    with pytest.warns(UserWarning, match="CRFW490.*No locks"):
        annotated(model, source, tmp_path / "without")
    assert records_of(tmp_path / "without") == records_of(target)


def no_locks(file):
    raise OSError(37, "No locks available")


def test_how_large_parts_are(tmp_path):
    """So small that workers get ready together, so large that they are few."""
    path = tmp_path / "texts.txt"
    for size, part, n in ((10, 2**18, 1), (2**20, 2**18, 4), (2**28, 2**20, 256), (2**32, 2**22, 1024)):
        with path.open("wb") as file:
            file.truncate(size)  # a hole, which takes no room
        parts, _, part_bytes = plan(str(path))
        assert (part_bytes, len(parts)) == (part, n)


def test_a_command_that_failed_leaves_nothing_that_stops_the_next_one(model, source, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(ValueError, match="CRF784"):
        annotated(model, str(tmp_path / "empty.txt"), tmp_path / "out")
    assert annotated(model, source, tmp_path / "out")["texts"]


def test_work_goes_on_with_the_same_only(model, source, tmp_path):
    target = tmp_path / "out"
    annotated(model, source, target)
    with pytest.raises(ValueError, match=r"CRF786.*options"):
        annotated(model, source, target, min_prob=0.5)
    with pytest.raises(ValueError, match=r"CRF786.*part_bytes"):
        annotated(model, source, target, size=500)
    with Path(source).open("a", encoding="utf8") as file:
        file.write('{"text": "One more ."}\n')
    with pytest.raises(ValueError, match=r"CRF786.*files"):
        annotated(model, source, target)
    (target / MANIFEST).write_text("{", encoding="utf8")
    with pytest.raises(ValueError, match=r"CRF786.*manifest"):
        annotated(model, source, target)
    (target / MANIFEST).unlink()
    with pytest.raises(ValueError, match=r"CRF786.*other files"):
        annotated(model, source, target)


def test_texts_that_cannot_be_annotated_are_told_and_left_out(model, tmp_path):
    source = tmp_path / "texts.txt"
    lines = [
        b"Ann Lee left .",
        b'{"text": 3}',
        b"\xff\xfe",
        b"",
        b"x" * 1_000_001,
        b'{"text": "Bob", "spans": [[0, 3, "PER"]]}',
    ]
    source.write_bytes(b"\n".join([*lines, b"Bob Lee came ."]))
    found = annotated(model, str(source), tmp_path / "out", size=1 << 21)
    assert [record["text"] for record in records_of(tmp_path / "out")] == ["Ann Lee left .", "Bob Lee came ."]
    errors = [json.loads(line) for line in (tmp_path / "out" / ERRORS).read_text().splitlines()]
    assert len(errors) == len(found["errors"]) == 4
    assert {code for code in ("CRF709", "CRF701", "E088", "CRF873") for error in errors if code in error["error"]} == {
        "CRF709",
        "CRF701",
        "E088",
        "CRF873",
    }
    assert all(error["place"].startswith(str(source)) and ", byte " in error["place"] for error in errors)
    annotated(model, str(source), tmp_path / "backwards", Backwards(), size=500_000)
    told = [json.loads(line)["error"][:6] for line in (tmp_path / "backwards" / ERRORS).read_text().splitlines()]
    assert told == [error["error"][:6] for error in errors]
    with pytest.raises(ValueError, match=r"CRF787.*byte 15"):
        annotated(model, str(source), tmp_path / "strict", size=1 << 21, strict=True)
    assert parts_of(tmp_path / "strict") == []


def test_any_pipeline_annotates(tmp_path):
    nlp = spacy.blank("en")
    nlp.add_pipe("entity_ruler").add_patterns([{"label": "GPE", "pattern": "Rome"}])
    nlp.to_disk(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("In Rome .\n")
    annotated(str(tmp_path / "model"), str(tmp_path / "texts.txt"), tmp_path / "out")
    assert records_of(tmp_path / "out") == [
        {"text": "In Rome .", "spans": [{"start": 3, "end": 7, "label": "GPE", "prob": 1.0}]}
    ]
    with pytest.raises(ValueError, match=r"CRF710"):
        annotated(str(tmp_path / "model"), str(tmp_path / "texts.txt"), tmp_path / "b", min_prob=0.5)


def test_a_full_disk_leaves_nothing_half(model, source, tmp_path, monkeypatch):
    class Full(FileIO):
        def write(self, *args):
            raise OSError(28, "No space left on device")

    target = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        annotated(model, source, target, Here(stops_after=2))
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    with monkeypatch.context() as patched:
        patched.setattr(LocalFiles, "open", lambda self, path, mode: Full(path, mode))
        with pytest.raises(ValueError, match=r"CRF475.*No space"):
            annotated(model, source, target)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    annotated(model, source, target)
    assert [record["id"] for record in records_of(target)] == [*range(len(TEXTS))]


def test_files_of_a_folder_in_the_order_of_their_names(model, tmp_path):
    folder = tmp_path / "texts"
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "one.txt").write_text("second .\n")
    (folder / "a.jsonl").write_text('{"text": "first ."}\n')
    (folder / "c.pdf").write_text("no text")
    annotated(model, str(folder), tmp_path / "out")
    assert [record["text"] for record in records_of(tmp_path / "out")] == ["first .", "second ."]
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match=r"CRF784"):
        plan(str(empty), 1)
    with pytest.raises(FileNotFoundError):
        plan(str(tmp_path / "missing"), 1)


def test_texts_and_results_may_be_elsewhere(model, source, tmp_path):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe_file("/archive/texts.jsonl", Path(source).read_bytes())
    annotated(model, "memory://archive", "memory://found")
    annotated(model, source, tmp_path / "out")
    found = b"".join(memory.cat_file(path) for path in sorted(memory.glob("/found/part-*")))
    assert found == b"".join(path.read_bytes() for path in parts_of(tmp_path / "out"))
    memory.rm("/archive", recursive=True)
    memory.rm("/found", recursive=True)


def test_addresses_need_fsspec_but_paths_do_not(model, source, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    annotated(model, source, tmp_path / "out")
    assert len(records_of(tmp_path / "out")) == len(TEXTS)
    with pytest.raises(ImportError, match=r"CRF781: memory://found needs fsspec.*pip install 'spacy-crf\[archives\]'"):
        annotated(model, source, "memory://found")


def test_a_part_of_which_nothing_can_be_annotated_ends_the_work(tmp_path):
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.to_disk(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("Rome .\n" * 512)
    with pytest.raises(ValueError, match=r"CRF779.*CRF874"):
        annotated(str(tmp_path / "model"), str(tmp_path / "texts.txt"), tmp_path / "out", size=1 << 20)

    (tmp_path / "long.jsonl").write_text(json.dumps({"text": "Rome .", "more": "x" * 1000}) + "\n")
    (tmp_path / "long.jsonl").write_text((tmp_path / "long.jsonl").read_text() * 600)
    with pytest.raises(ValueError, match=r"CRF779.*CRF874"):  # of parts with fewer texts
        annotated(str(tmp_path / "model"), str(tmp_path / "long.jsonl"), tmp_path / "long", size=300_000)


def test_results_are_no_texts_of_the_next_run(model, source, tmp_path):
    for target in (tmp_path, tmp_path / "out", tmp_path / "a" / "out"):
        with pytest.raises(ValueError, match=r"CRF491.*beside"):
            annotated(model, str(tmp_path), target)
    assert os.listdir(tmp_path) == ["texts.jsonl"]
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(ValueError, match=r"CRF784.*no texts"):
        annotated(model, str(tmp_path / "empty.txt"), tmp_path / "out")


# ---------------------------------------------------------------------------------------------------------- executors


def maker(folder, deaths=0, error=None):
    """Doubles numbers; the first workers that get a 3 are killed."""

    def work(number):
        if number == 3:
            died = len(os.listdir(folder))
            if died < deaths:
                (folder / str(died)).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if error:
                raise error
        return 2 * number

    return work


def doubled(numbers):
    return [(number, 2 * number) for number in numbers]


@pytest.mark.usefixtures("workers_start_early")
def test_the_task_of_a_worker_that_died_is_done_again(tmp_path):
    assert sorted(Processes(2).run(partial(maker, tmp_path, 2), range(8))) == doubled(range(8))
    assert list(Processes(2).run(partial(maker, tmp_path), [])) == []


@pytest.mark.usefixtures("workers_start_early")
def test_what_a_task_raises_is_raised(tmp_path):
    with pytest.raises(OSError, match="No space") as raised:
        list(Processes(2).run(partial(maker, tmp_path, error=OSError(28, "No space", "there")), range(8)))
    assert raised.value.filename == "there"


@pytest.mark.usefixtures("workers_start_early")
def test_a_task_that_kills_workers_ends_the_work(tmp_path):
    with pytest.raises(ValueError, match=r"CRF780.*\b3\b"):
        list(Processes(2).run(partial(maker, tmp_path, 9), [3]))


def test_workers_of_other_versions_are_refused():
    check_versions({"spacy_crf": __version__, "spacy": spacy.__version__})
    with pytest.raises(ValueError, match=r"CRF783.*0\.0\.1"):
        check_versions({"spacy_crf": "0.0.1", "spacy": spacy.__version__})


# ------------------------------------------------------------------------------------------------------- the command


def run(*args):
    result = CliRunner().invoke(app, ["annotate", *map(str, args)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.split())


def test_where_there_is_no_terminal_lines_tell_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    with annotate._progress_bar() as told:
        told(100, 250, 1000)  # of an earlier run
        told(200, 500, 1000)
    [line] = [line for line in capsys.readouterr().err.splitlines() if "left" in line]
    assert line.startswith("annotating, ") and line.endswith(" texts/s, about 0 minutes left: 50%")


def test_the_command_says_what_it_did(model, source, tmp_path):
    code, output = run(model, source, "-o", tmp_path / "out", "--workers", 2, "--part-size", 0.001)
    assert code == 0 and "40 texts" in output
    assert [record["id"] for record in records_of(tmp_path / "out")] == [*range(len(TEXTS))]
    for wrong, expected in {
        ("--strict",): "CRF788",
        ("--executor", "ray"): "CRF788",
        ("--workers", "2", "--sort", "uncertainty"): "CRF789",
        ("--workers", "2", "--part-size", "1"): "CRF786",
    }.items():
        code, output = run(model, source, "-o", tmp_path / "out", *wrong)
        assert code == 1 and expected in output
    assert run(tmp_path / "missing", source, "-o", tmp_path / "b", "--workers", 1)[0] == 1
    assert run(model, tmp_path / "missing", "-o", tmp_path / "b", "--workers", 1)[0] == 1
    assert not (tmp_path / "b").exists()


# ---------------------------------------------------------------------------------------- who is killed, and full disks

MANY = [f"Ann met Bob in Rome at {n} ." for n in range(10_000)]
PART = 5000  # bytes


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """A folder with a pipeline that loads fast and many texts, and the files of their parts."""
    folder = tmp_path_factory.mktemp("archive")
    nlp = spacy.blank("en")
    nlp.add_pipe("entity_ruler").add_patterns([{"label": "GPE", "pattern": "Rome"}])
    nlp.to_disk(folder / "model")
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in MANY))
    annotate_many(folder, folder / "out")
    assert [record["text"] for record in records_of(folder / "out")] == MANY
    return folder, {path.name: path.read_bytes() for path in parts_of(folder / "out")}


def annotate_many(folder, target):
    annotated(str(folder / "model"), str(folder / "texts.txt"), target, size=PART)


def check_whole(target, expected, *, is_done=False):
    """What is in a folder after a blow, or when all is done."""
    manifest = target / MANIFEST
    entries = [json.loads(line) for line in manifest.read_text().splitlines()][1:] if manifest.exists() else []
    found = {path.name: path.read_bytes() for path in parts_of(target)}
    assert found.items() <= expected.items()
    assert all(len(found[entry["file"]]) == entry["bytes"] for _, entry in entries)
    if is_done:
        assert found == expected and len(entries) == len(expected)
        assert sorted(os.listdir(target)) == sorted([*expected, "lock", MANIFEST])


def wait_for_a_part(target, is_over):
    """One more than there are. RETURNS (bool): Whether there is one, or all was over before."""
    n = len(parts_of(target))
    while len(parts_of(target)) <= n:
        if is_over():
            return False
        time.sleep(0.001)
    return True


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_struck_a_few_times_each_text_is_annotated_once(archive, tmp_path):
    """The quick sister of the next: the command is a fork that does without workers."""
    import resource

    (folder, expected), target, generator = archive, tmp_path / "out", random.Random(0)
    for most_bytes in (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 10, 20_000, 5000):
        process = os.fork()
        if not process:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))
            with suppress(ValueError):
                annotate_many(folder, target)
            os._exit(0)
        if wait_for_a_part(
            target, lambda process=process: os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        ):
            time.sleep(generator.uniform(0, 0.02))
            os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        check_whole(target, expected)
    assert 2 <= len(parts_of(target)) < len(expected)
    annotate_many(folder, target)
    check_whole(target, expected, is_done=True)


def kill_worker(process, generator):
    os.kill(generator.choice(workers_of(process)), signal.SIGKILL)


def kill_driver(process, generator):
    process.kill()


def kill_all(process, generator):
    os.killpg(process.pid, signal.SIGKILL)


def fill_disk(process, generator):
    """No file may be longer: writing one fails halfway."""
    import resource

    longest = generator.choice([0, 10, 1000, 10_000])
    for number in generator.choice([[process.pid], workers_of(process), [process.pid, *workers_of(process)]]):
        resource.prlimit(number, resource.RLIMIT_FSIZE, (longest, resource.RLIM_INFINITY))


def workers_of(process):
    """RAISES (OSError): If they are gone."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    found = [int(number) for number in children if b"spawn_main" in Path(f"/proc/{number}/cmdline").read_bytes()]
    if not found:
        raise ProcessLookupError
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("seed", range(1))
def test_struck_again_and_again_each_text_is_annotated_once(seed, archive, tmp_path):
    """The command, its workers, all of them, or the room for files; then the same again (fifty times: ``--hunt 13``)."""
    (folder, expected), generator, struck, rounds = archive, random.Random(seed), Counter(), 0
    command = [sys.executable, "-m", "spacy", "crf", "annotate", folder / "model", folder / "texts.txt"]
    options = ["--workers", "2", "--part-size", str(PART / 2**20)]
    blows = [kill_worker, kill_driver, kill_all, fill_disk]
    while struck.total() < len(blows):
        target = tmp_path / str(rounds)
        with subprocess.Popen(
            [*command, target, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        ) as process:
            while wait_for_a_part(target, lambda process=process: process.poll() is not None):
                time.sleep(generator.uniform(0, 0.2))
                blow = blows[struck.total() % len(blows)]
                with suppress(ProcessLookupError, FileNotFoundError):
                    blow(process, generator)
                    struck[blow.__name__] += 1
                check_whole(target, expected)
            output = process.communicate()[0].decode()
        assert process.returncode in (0, -signal.SIGKILL) or "CRF475" in output or "CRF780" in output, output
        check_whole(target, expected, is_done=process.returncode == 0)
        rounds += process.returncode == 0
    assert len(struck) == len(blows)
    subprocess.run([*command, target, *options], check=True, capture_output=True)
    check_whole(target, expected, is_done=True)


# ----------------------------------------------------------------------------------------------------------- Parquet


def test_rows_of_parquet_get_columns(model, tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"id": range(40), "when": [datetime(2026, 1, 1)] * 40, "text": [*TEXTS[:39], None]})
    parquet.write_table(table, tmp_path / "texts.parquet", row_group_size=7)
    found = annotated(model, str(tmp_path / "texts.parquet"), tmp_path / "out", size=1)
    paths = parts_of(tmp_path / "out", ".parquet")
    assert len(paths) == 6 and found["texts"] == 39
    assert [place for place, _ in found["errors"]] == [f"{tmp_path / 'texts.parquet'}, row groups 5 to 6, row 5"]
    written = pyarrow.concat_tables(map(parquet.read_table, paths))
    assert written.select(["id", "when", "text"]) == table.slice(0, 39)
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS[:39]))
    annotated(model, str(tmp_path / "lines.jsonl"), tmp_path / "lines")
    expected = [record["spans"] for record in records_of(tmp_path / "lines")]
    assert written.column("spans").to_pylist() == expected and any(expected)
    for wrong in (table.drop_columns("text"), written):
        parquet.write_table(wrong, tmp_path / "wrong.parquet")
        with pytest.raises(ValueError, match=r"CRF784.*column"):
            annotated(model, str(tmp_path / "wrong.parquet"), tmp_path / f"wrong{wrong.num_columns}")
    (tmp_path / "broken.parquet").write_text("no table")
    with pytest.raises(ValueError, match=r"CRF784.*broken"):
        annotated(model, str(tmp_path / "broken.parquet"), tmp_path / "broken")
