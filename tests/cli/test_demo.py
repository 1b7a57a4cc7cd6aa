"""``python -m spacy crf demo``: its answers, what it refuses, and many clients at once."""

import copy
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import spacy
from spacy.tokens import Doc, Span
from spacy.training import Example
from typer.testing import CliRunner

from spacy_crf.cli import app
from spacy_crf.cli import demo as demo_module
from spacy_crf.cli.demo import MOST_BYTES, MOST_CHARACTERS, MOST_EXPLAINED, MOST_UNDER_RULES, Demo, open_server
from spacy_crf.optimizers.lbfgs import LBFGS
from tests.pipeline.test_probabilities import trained
from tests.util import ner_examples, plain, tag_examples

BAD = "<script>window.harmed = true</script>"
TEXT = "Ann Lee lives in New York ."


def annotated(nlp):
    """Examples with spans that overlap, and with labels of texts."""
    docs = [example.reference for example in ner_examples(nlp)]
    for doc in docs:
        doc.spans["sc"] = [*doc.ents, *(Span(doc, ent.start, ent.start + 1, label="FIRST") for ent in doc.ents)]
        doc.cats = {"NAMES": float(bool(doc.ents)), "NONE": float(not doc.ents)}
    return [Example(plain(doc), doc) for doc in docs]


def pipeline(*factories, **config):
    nlp = spacy.blank("en")
    for factory in factories:
        nlp.add_pipe(factory, config=config)
    examples = tag_examples(nlp) if factories == ("crf_tagger",) else annotated(nlp)
    nlp.initialize(lambda: examples)
    nlp.update(examples, sgd=LBFGS(l2=0.1, iterations_per_step=20))
    return nlp


@contextmanager
def serving(demo):
    with open_server(demo, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def nlp():
    return trained()


@pytest.fixture(scope="module")
def server(nlp):
    """Without a file."""
    with serving(Demo(nlp)) as opened:
        yield opened


def ask(server, path, given=None, *, method=None, body=None, **headers):
    """Status and answer. A header whose value is None is left out."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    body = json.dumps(given).encode() if given is not None else body
    method = method or ("GET" if body is None else "POST")
    usual = {"Host": f"127.0.0.1:{server.server_port}"}
    if body is not None:
        usual |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    headers = {**usual, **{name.replace("_", "-"): value for name, value in headers.items()}}
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in headers.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders(body)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    is_json = answer.headers.get_content_type() == "application/json"
    return answer.status, json.loads(content) if is_json and content else content


# ------------------------------------------------------------------------------------------------------------ answers

FACTORIES = {
    "crf_ner": ("entities", TEXT, "PER"),
    "semicrf_ner": ("entities", TEXT, "PER"),
    "crf_tagger": ("tags", "the old dog barks", "NN"),
    "crf_spancat": ("spans", TEXT, "FIRST"),
    "crf_textcat": ("cats", TEXT, "NAMES"),
}


@pytest.mark.parametrize("factory", FACTORIES)
def test_each_component_answers_and_what_is_saved_trains_it(factory, tmp_path):
    """Including a label that the component does not have yet."""
    kind, text, label = FACTORIES[factory]
    nlp, saved = pipeline(factory), tmp_path / "new" / "saved.jsonl"
    nlp.to_disk(tmp_path / "model")
    pipe = nlp.get_pipe(factory)
    with serving(Demo(nlp, factory, saved)) as server:
        assert ask(server, "/about") == (200, {"model": "pipeline", "saves": True})
        status, found = ask(server, "/find", {"text": text, "n": 3})
        [section] = found["components"]
        assert status == 200 and (section["name"], section["kind"]) == (factory, kind)
        assert section["labels"] == list(pipe.labels) and label in section["labels"]
        assert "".join(word + space for word, space in section["tokens"]) == text
        assert label in [span[2] for span in section["spans"]] and all(0 < span[3] <= 1 for span in section["spans"])
        shares = [share for share, _ in section["best"]]
        assert 2 <= len(shares) <= 3 and shares == sorted(shares, reverse=True)
        if kind not in ("spans", "cats"):
            doc = nlp.make_doc(text)
            expected = [(p, [[s.start, s.end, s.label_] for s in spans]) for p, spans in pipe.n_best(doc, 3)]
            assert [(p, spans) for p, spans in section["best"]] == [(pytest.approx(p), spans) for p, spans in expected]
        span = next(span[:3] for span in section["spans"] if span[2] == label)
        status, why = ask(server, "/why", {"component": factory, "text": text, "span": span})
        assert status == 200 and label in why["title"] and len(why["rows"]) > 3
        assert any("probability" in line for line in why["lines"])
        spans = [one[:3] for one in section["spans"] if one != [*span, one[3]]] + [[*span[:2], "NEW"]]
        for is_new in (True, False):
            given = {"component": factory, "text": text, "spans": spans}
            assert ask(server, "/save", given) == (200, {"saved": str(saved), "is_new": is_new})
    assert saved.read_text().count("\n") == 1
    arguments = ["update", tmp_path / "model", saved, "--output", tmp_path / "updated"]
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == 0, result.output
    updated = spacy.load(tmp_path / "updated")
    assert "NEW" in updated.get_pipe(factory).labels
    doc = updated(text)
    groups = {"tags": [token.tag_ for token in doc], "cats": [max(doc.cats, key=doc.cats.get)] if doc.cats else []}
    groups |= {"entities": [ent.label_ for ent in doc.ents]}
    groups |= {"spans": [one.label_ for one in doc.spans.get("sc", ())]}
    assert "NEW" in groups[kind]


def test_several_components_are_shown_in_order():
    nlp = pipeline("crf_ner", "crf_textcat", "crf_spancat")
    with serving(Demo(nlp)) as server:
        _, found = ask(server, "/find", {"text": TEXT})
        assert [section["kind"] for section in found["components"]] == ["entities", "cats", "spans"]
        _, empty = ask(server, "/find", {"text": ""})
        assert [section["tokens"] for section in empty["components"]] == [[], [], []]


def test_a_pipeline_has_to_fit(nlp, tmp_path):
    with pytest.raises(ValueError, match="CRF710"):
        Demo(spacy.blank("en"))
    both = pipeline("crf_ner", "crf_textcat")
    with pytest.raises(ValueError, match=r"CRF977.*crf_ner, crf_textcat.*--component"):
        Demo(both, None, tmp_path / "saved.jsonl")
    Demo(both, "crf_textcat", tmp_path / "saved.jsonl")
    tagger = spacy.blank("en")
    pipe = tagger.add_pipe("crf_tagger", config={"attribute": "pos"})
    doc = Doc(tagger.vocab, words=["dogs", "bark"], pos=["NOUN", "VERB"])
    tagger.initialize(lambda: [Example(plain(doc), doc)])
    with pytest.raises(ValueError, match=r"CRF978.*pos"):
        Demo(tagger, pipe.name, tmp_path / "saved.jsonl")
    taken = socket.create_server(("127.0.0.1", 0))
    with taken, pytest.raises(ValueError, match=r"CRF980.*--port"):
        open_server(Demo(nlp), taken.getsockname()[1])


def test_a_line_is_added_behind_an_unfinished_one(nlp, tmp_path):
    saved = tmp_path / "saved.jsonl"
    saved.write_text('{"text": "by hand", "spans": []}')
    with serving(Demo(nlp, None, saved)) as server:
        text = "Zoë 😀 met Bob ."
        assert ask(server, "/save", {"component": "crf_ner", "text": text, "spans": [[3, 4, "PER"]]})[0] == 200
    lines = [json.loads(line) for line in saved.read_text(encoding="utf8").splitlines()]
    assert len(lines) == 2 and lines[1] == {"text": text, "spans": [{"start": 10, "end": 13, "label": "PER"}]}


def test_lines_of_many_clients_are_whole(nlp, tmp_path):
    saved = tmp_path / "saved.jsonl"
    with serving(Demo(nlp, None, saved)) as server, ThreadPoolExecutor(8) as pool:
        texts = [f"Ann{n} met {'Bob ' * n}." for n in range(80)]
        given = [{"component": "crf_ner", "text": text, "spans": [[0, 1, "PER"]]} for text in texts]
        assert {status for status, _ in pool.map(lambda one: ask(server, "/save", one), given)} == {200}
    assert sorted(json.loads(line)["text"] for line in saved.read_text().splitlines()) == sorted(texts)


# ----------------------------------------------------------------------------------------------------------- refusals

FIND = {"text": "Ann"}
JSON = json.dumps(FIND).encode()
REFUSED = {
    "other host": (403, "CRF970", "/find", {"given": FIND, "Host": "evil.example:80"}),
    "host without port": (403, "CRF970", "/", {"Host": "127.0.0.1"}),
    "no host": (403, "CRF970", "/", {"Host": None}),
    "origin": (403, "CRF970", "/find", {"given": FIND, "Origin": "http://evil.example"}),
    "opaque origin": (403, "CRF970", "/find", {"given": FIND, "Origin": "null"}),
    "unknown path": (404, "CRF971", "/etc/passwd", {}),
    "path of a file": (404, "CRF971", "/../demo.py", {}),
    "unknown question": (404, "CRF971", "/nothing", {"given": FIND}),
    "question by GET": (405, "CRF972", "/find", {}),
    "page by POST": (405, "CRF972", "/", {"given": FIND}),
    "PUT": (405, "CRF972", "/find", {"given": FIND, "method": "PUT"}),
    "OPTIONS": (405, "CRF972", "/find", {"method": "OPTIONS"}),
    "unheard of": (405, "CRF972", "/", {"method": "BREW"}),
    "form": (400, "CRF973", "/find", {"body": JSON, "Content_Type": "text/plain"}),
    "no type": (400, "CRF973", "/find", {"body": JSON, "Content_Type": None}),
    "no length": (400, "CRF973", "/find", {"body": JSON, "Content_Length": None}),
    "length of words": (400, "CRF973", "/find", {"body": JSON, "Content_Length": "many"}),
    "negative length": (400, "CRF973", "/find", {"body": JSON, "Content_Length": "-1"}),
    "chunks": (400, "CRF973", "/find", {"body": b"0\r\n\r\n", "Content_Length": None, "Transfer_Encoding": "chunked"}),
    "too long": (413, "CRF974", "/find", {"body": b" " * (MOST_BYTES + 1)}),
    "far too long": (413, "CRF974", "/find", {"body": JSON, "Content_Length": str(10**15)}),
    # 27,000 words under six rules held up all other clients for minutes
    "long text": (413, "CRF914", "/find", {"given": {"text": "a " * (MOST_CHARACTERS // 2) + "a"}}),
    "empty": (400, "CRF973", "/find", {"body": b""}),
    "no JSON": (400, "CRF973", "/find", {"body": b"{'text': 1}"}),
    "no UTF-8": (400, "CRF973", "/find", {"body": b'{"text": "\xff"}'}),
    "deep": (400, "CRF973", "/find", {"body": b"[" * 100_000}),
    "long number": (400, "CRF973", "/find", {"body": b'{"n": ' + b"9" * 10_000 + b"}"}),
    "a list": (400, "CRF973", "/find", {"given": ["Ann"]}),
    "no text": (400, "CRF976", "/find", {"given": {}}),
    "text of numbers": (400, "CRF976", "/find", {"given": {"text": [1]}}),
    "half a character": (400, "CRF701", "/find", {"body": b'{"text": "\\ud800"}'}),
    "no labelling": (400, "CRF976", "/find", {"given": {**FIND, "n": 0}}),
    "true labellings": (400, "CRF976", "/find", {"given": {**FIND, "n": True}}),
    "unknown component": (400, "CRF976", "/why", {"given": {**FIND, "component": BAD, "span": [0, 1, "PER"]}}),
    "span of text": (400, "CRF976", "/why", {"given": {**FIND, "component": "crf_ner", "span": "0:1"}}),
    "span outside": (400, "CRF976", "/why", {"given": {**FIND, "component": "crf_ner", "span": [0, 9, "PER"]}}),
    "span of true": (400, "CRF976", "/why", {"given": {**FIND, "component": "crf_ner", "span": [False, True, "PER"]}}),
    "unknown label": (400, "CRF846", "/why", {"given": {**FIND, "component": "crf_ner", "span": [0, 1, BAD]}}),
    "no file": (409, "CRF975", "/save", {"given": {**FIND, "component": "crf_ner", "spans": []}}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_each_refusal_has_its_code(server, name):
    status, code, path, options = REFUSED[name]
    answer = ask(server, path, **options)
    assert answer[0] == status and answer[1]["error"]["code"] == code
    assert answer[1]["error"]["message"].startswith(f"{code}: ")
    assert ask(server, "/find", FIND)[0] == 200


def test_explanations_under_rules_take_shorter_texts(nlp):
    """The search under rules runs again without each word: it took a minute, and others waited."""
    ruled = copy.deepcopy(nlp)
    ruled.get_pipe("crf_ner").add_rule({"rule": "at_most", "label": "PER", "n": 1})
    asked = ((ruled, MOST_UNDER_RULES, True), (nlp, MOST_UNDER_RULES, False), (nlp, MOST_EXPLAINED, True))
    for pipeline, most, is_refused in asked:
        given = {"text": "Ann " * (most // 4) + "a", "component": "crf_ner", "span": [0, 1, "PER"]}
        demo = Demo(pipeline)
        with pytest.raises(ValueError, match="CRF914") if is_refused else nullcontext():
            demo.answer(demo.why, given)


@pytest.mark.parametrize(
    "spans, code",
    [
        (None, "CRF976"),
        ([[0, 2, "PER"], [1, 3, "ORG"]], "CRF409"),
        ([[0, 1, ""]], "CRF020"),
        ([[0, 1, "\ud800"]], "CRF979"),
        ([[0, 1, " "]], "CRF976"),
        ([[0, 1, "PER "]], "CRF976"),
        ([[0, 1, "P\0"]], "CRF976"),
        ([[0, 1, 100_000 * "P"]], "CRF976"),
    ],
)
def test_nothing_wrong_is_saved(nlp, tmp_path, spans, code):
    with serving(Demo(nlp, None, tmp_path / "saved.jsonl")) as server:
        status, answer = ask(server, "/save", {"component": "crf_ner", "text": TEXT, "spans": spans})
    assert status >= 400 and answer["error"]["code"] == code and not (tmp_path / "saved.jsonl").exists()


def test_what_components_raise_is_told(server, nlp, monkeypatch):
    def fail(*args, **options):
        raise RuntimeError("no more ideas")

    monkeypatch.setattr(nlp.get_pipe("crf_ner"), "n_best", fail)
    status, answer = ask(server, "/find", FIND)
    assert status == 500 and answer["error"]["code"] == "CRF979" and "no more ideas" in answer["error"]["message"]


def test_the_own_names_are_known(server):
    port = server.server_port
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"LOCALHOST:{port}"):
        assert ask(server, "/find", FIND, Host=host, Origin=f"http://{host.lower()}")[0] == 200


def test_only_this_machine_is_served(server):
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize("path, kind", [("/", "text/html"), ("/demo.js", "text/javascript"), ("/page.css", "text/css")])
def test_pages_come_with_a_policy(server, path, kind):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
    connection.request("GET", path)
    answer = connection.getresponse()
    content = answer.read().decode()
    assert answer.status == 200 and answer.headers["Content-Type"] == f"{kind}; charset=utf-8"
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'")
    assert "unsafe" not in policy and answer.headers["X-Content-Type-Options"] == "nosniff"
    for word in ("innerHTML", "insertAdjacent", "document.write", "eval(", "http:", "https:", "//cdn"):
        assert word not in content


def raw(server, data, *, reads=True):
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=30) as client:
        client.sendall(data)
        return b"".join(iter(lambda: client.recv(65536), b"")) if reads else b""


def test_clients_that_go_or_are_slow_or_speak_otherwise(server, capfd, monkeypatch):
    host = f"Host: 127.0.0.1:{server.server_port}\r\n"
    begun = f"POST /find HTTP/1.1\r\n{host}Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{{".encode()
    raw(server, begun, reads=False)
    raw(server, b"", reads=False)
    with socket.create_connection(("127.0.0.1", server.server_port)) as waits:
        waits.sendall(begun)
        assert ask(server, "/find", FIND)[0] == 200
    monkeypatch.setattr(demo_module._Handler, "timeout", 0.2)
    assert raw(server, begun) == b"" and raw(server, b"GET /") == b""
    for data in (
        b"\x16\x03\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET " + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
    ):
        assert b'"CRF973"' in raw(server, data)
    assert raw(server, f"HEAD / HTTP/1.1\r\n{host}\r\n".encode()).startswith(b"HTTP/1.0 405")
    twice = f"GET / HTTP/1.1\r\n{host}{host}\r\n".encode()
    assert b'"CRF970"' in raw(server, twice)
    assert ask(server, "/find", FIND)[0] == 200
    assert capfd.readouterr() == ("", "")


# --------------------------------------------------------------------------------------------------- many at a time


def hammer(server, nlp, n_clients, n_requests):
    """Requests of several clients at once, with new words in each, and wrong ones among them. Returns unexpected answers."""
    refused, surprises = list(REFUSED.values()), []
    texts = ["Ann Lee{} lives in New York .", "Bob{} left Rome{} for Acme Corp ."]
    alone = Demo(nlp)
    said = {text: alone.find({"text": text.format("", "")})["components"][0]["spans"] for text in texts}

    def client(number):
        for n in range(n_requests):
            status, code, path, options = refused[(n + number) % len(refused)]
            if n % 4 == 0:
                found = ask(server, path, **options)
                ok = found[0] == status and found[1]["error"]["code"] == code
            elif n % 4 == 1:
                found = ask(server, "/why", {"component": "crf_ner", "text": f"Ann{number}x{n}", "span": [0, 1, "PER"]})
                ok = found[0] == 200 and found[1]["rows"]
            elif n % 4 == 2:
                found = ask(server, "/find", {"text": f"Ann{number}x{n} met Zoë{n}y{number} .", "n": 2})
                ok = found[0] == 200 and len(found[1]["components"][0]["best"]) == 2
            else:
                text = texts[n // 4 % 2]
                found = ask(server, "/find", {"text": text.format("", "")})
                ok = found[0] == 200 and found[1]["components"][0]["spans"] == [
                    [*span[:3], pytest.approx(span[3])] for span in said[text]
                ]
            if not ok:
                surprises.append((n, found))

    with ThreadPoolExecutor(n_clients) as pool:
        list(pool.map(client, range(n_clients)))
    return surprises


def test_many_clients_at_once_and_words_are_forgotten(server, nlp):
    hammer(server, nlp, 1, 4)
    before = len(nlp.vocab.strings)
    assert hammer(server, nlp, 8, 40) == []
    assert len(nlp.vocab.strings) == before


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_ten_thousand_requests_take_no_memory(server, nlp):
    def megabytes():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    assert hammer(server, nlp, 8, 250) == []
    before = megabytes()
    assert hammer(server, nlp, 8, 1250) == []
    assert megabytes() - before < 20


# ---------------------------------------------------------------------------------------------------------- command


@pytest.mark.skipif(os.name == "nt", reason="signals are sent")
def test_the_command_prints_its_address_and_ends_by_ctrl_c(nlp, tmp_path):
    nlp.to_disk(tmp_path / "model")
    command = [sys.executable, "-m", "spacy", "crf", "demo", str(tmp_path / "model"), "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # In the background of a script, programs begin with signals that they ignore
    with subprocess.Popen(command, **pipes, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)) as process:
        try:
            address = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
            connection = http.client.HTTPConnection("127.0.0.1", int(address[1]))
            connection.request("GET", "/about")
            assert json.load(connection.getresponse()) == {"model": f"{tmp_path.name}/model", "saves": False}
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=60)
            assert process.returncode == 0 and "Traceback" not in output + errors
        finally:
            process.kill()
