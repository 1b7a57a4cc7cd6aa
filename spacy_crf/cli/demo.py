"""The command `demo`: a server for one person on this machine, whose page shows what a pipeline finds in a text, and why."""

import json
import re
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any, Optional

from spacy.cli._util import Opt
from spacy.language import Language
from spacy.tokens import Doc, Span
from wasabi import msg

from ..errors import Errors, shown
from .formats.annotation import check_length
from .formats.source import Fields
from .shared import ComponentOption, ModelArgument, check_writable, command, load_pipeline, name_of, our_pipes
from .texts import doc_before

if TYPE_CHECKING:
    from ..pipeline.pipe import LearningPipe

HOST = "127.0.0.1"
MOST_BYTES = 1_000_000  # of a request
MOST_CHARACTERS = 10_000  # of a text: others wait while it is answered
MOST_EXPLAINED = 2_000  # characters of a text whose labels are explained
MOST_UNDER_RULES = 1_000  # likewise under rules, where an explanation searches the labelling again without each word
MOST_BEST = 20  # labellings
_MOST_OF_LABEL = 200  # characters
_TOP = 12  # words of an explanation
# Options of `explain`: how many words that might change the decision to try for each label, and how many words on each side are
# left out one by one
_EXPLAINED = {"candidates": 1}
_UNDER_RULES = {"candidates": 0, "near": 10}
_SECONDS = 10.0  # that a client may take for a part of its request


@command("demo")
def demo_cli(
    model: ModelArgument,
    port: int = Opt(5050, min=0, max=65535, help="Port of the page; 0 for any free one."),
    output: Optional[Path] = Opt(None, "--output", "-o", help="Append corrected texts to this JSONL, for `update`."),
    component: ComponentOption = None,
) -> None:
    """Open a page on this machine where a pipeline can be tried. It marks what the pipeline finds in a text with probabilities,
    lists the most probable labellings, and says which words decide. With --output, its user corrects the labels."""
    check_writable(output)
    nlp = load_pipeline(model)
    demo = Demo(nlp, component, output, name_of(nlp, model))
    with open_server(demo, port) as server:
        print(f"http://{HOST}:{server.server_port} (Ctrl-C to stop)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    if output is not None and output.exists():
        msg.good(f"Corrected texts in {output}")


class Demo:
    """Answers the requests of the page. Each request is a JSON object, and so is its answer.

    nlp (Language): The pipeline.
    component (str): Name of the only component to show; None for all of spacy_crf.
    file (Path): JSONL to append corrected texts to; None if texts can't be corrected.
    title (str): Name of the pipeline.
    RAISES (ValueError): CRF710 without a component; CRF977 or CRF978 for a file that can't hold what they find.
    """

    def __init__(
        self,
        nlp: Language,
        component: Optional[str] = None,
        file: Optional[Path] = None,
        title: str = "pipeline",
    ):
        from ..pipeline.probabilities import turn_on_confidence
        from ..pipeline.scorers import IS_SENT_START
        from ..report.segments import find_segments

        # Words and sentences are shown beside what components find; a file of corrections is for the latter
        self._segments = {segments.name: segments for segments in find_segments(nlp, component)}
        wanted = None if self._segments and file is None else "of spacy_crf that gives labels, to try"
        pipes = our_pipes(nlp, component, wanted, lambda pipe: pipe.labelled, of_tokens=False)
        turn_on_confidence(pipes)
        self._nlp = nlp
        self._pipes = {pipe.name: pipe for pipe in pipes}
        self._file = file
        if file is not None and len(pipes) > 1:
            raise ValueError(Errors.CRF977.format(names=", ".join(self._pipes)))
        for name, pipe in self._pipes.items():
            attribute = pipe.cfg.get("attribute", IS_SENT_START) if _kind(pipe) == "tags" else "tag"
            if file is not None and attribute != "tag":
                raise ValueError(Errors.CRF978.format(name=name, attribute=attribute))
        self._title = title
        self._saved: set[str] = set()  # lines that this demo has written
        # Memory zones are not for several threads, nor are sets of chains, which keep the scores of a Doc while they decode it
        self._lock = threading.Lock()
        # Compiles kernels and rules, which stay in memory and thus must not begin in a memory zone
        self.find({"text": "Compiles what is not compiled yet."})

    def answer(self, method: Callable[[Fields], Fields], request: Fields) -> Fields:
        """Answer a request by a method of this object (`find`, `why` or `save`), and forget the words of its text.

        RAISES (ValueError): Any error, with a code.
        """
        message = ""
        _check_length(request, MOST_CHARACTERS)
        # Without the zone, each text would add its words to the vocabulary for good
        with self._lock, self._nlp.memory_zone():
            try:
                return method(request)
            except Exception as error:
                # Components may raise any error. Only its message is kept, since the error may hold Docs, which end with the zone
                message = str(error) if _code(str(error)) else Errors.CRF979.format(reason=f"{error!r:.300}")
        raise ValueError(message)

    def about(self) -> Fields:
        """The name of the pipeline, and whether corrections can be saved."""
        return {"model": self._title, "saves": self._file is not None}

    def find(self, request: Fields) -> Fields:
        """Label the "text" of a request. The label of a whole text is a span of all tokens.

        RETURNS (dict): The "components"; each with its "tokens" (word and white space behind it), "spans" (the first token,
            the token behind the last, the label and the probability), and the "best" labellings: as many as "n" in the request,
            each with its probability and spans.
        """
        text = _field(request, "text", str)
        n = request.get("n", 5)
        if type(n) is not int or not 1 <= n <= MOST_BEST:
            raise _wrong("n", f"a number from 1 to {MOST_BEST}", n)
        sections = self._find_segments(text, n) if self._segments else []
        for name, pipe in self._pipes.items():
            doc = doc_before(self._nlp, pipe, text)
            tokens = [[token.text, token.whitespace_] for token in doc]
            if _kind(pipe) == "cats":
                # Labels come with the most probable first
                best = [(p, [[0, len(doc), label]]) for label, p in pipe.probabilities(doc).items()][:n]
                p, [span] = best[0]
                spans = [[*span, p]]
            else:
                best = [(p, list(map(_as_list, spans))) for p, spans in pipe.n_best(doc, n, keep_annotation=True)]
                spans = []
                for mention in pipe.annotation.mentions_in(pipe(doc)):
                    span = doc.char_span(mention.start, mention.end, mention.label)
                    if span is not None:
                        spans.append([*_as_list(span), mention.probability])
            about = {"name": name, "kind": _kind(pipe), "labels": list(dict.fromkeys(pipe.labels))}
            sections.append({**about, "tokens": tokens, "spans": spans, "best": best})
        return {"components": sections}

    def _find_segments(self, text: str, n: int) -> list[Fields]:
        """The words of a text (`text`), and its sentences if the tokenizer finds them, as `find` returns what components find.
        Their tokens are characters, since the `n` best segmentations have other words."""
        check_length(text, self._nlp, "The text")
        tokenizer = self._nlp.tokenizer
        segmentations = tokenizer.n_best(text, n)
        probabilities = tokenizer.boundary_probabilities(text)._asdict()
        _, doc = segmentations[0]
        sections = []
        for name, segments in self._segments.items():
            spans = []
            for start, end, label, _ in segments.mentions_in(doc):
                spans.append([start, end, label, float(probabilities[name][start])])
            best = []
            for probability, other in segmentations if name == "words" else ():
                best.append((probability, [mention.place for mention in segments.mentions_in(other)]))
            characters = [[character, ""] for character in text]
            section = {"name": name, "kind": "segments", "labels": [name.removesuffix("s")]}
            sections.append({**section, "tokens": characters, "spans": spans, "best": best})
        return sections

    def _why_boundary(self, request: Fields) -> Fields:
        """Explain why the word or sentence that is the "span" of the "text" begins where it does."""
        _check_length(request, MOST_EXPLAINED)
        text = _field(request, "text", str)
        span = request.get("span")
        starts = [mention.start for mention in self._segments["words"].mentions_in(self._nlp.tokenizer(text))]
        if not isinstance(span, list) or span[:1] == [] or span[0] not in starts:
            raise _wrong("span", "[start, end, label] of a word that the tokenizer finds", span)
        token, probability, reason, features = self._nlp.tokenizer.explain(text, _TOP)[starts.index(span[0])]
        lines = [f"A word begins before '{token}' with the probability {probability:.1%}."]
        rows = [(f"{weight:+.2f}", name) for name, weight in features]
        return {"title": f"decided by: {reason}", "lines": lines, "rows": rows}

    def why(self, request: Fields) -> Fields:
        """Explain why the "component" of a request finds, or does not find, the "span" of the "text": the words that decide."""
        if request.get("component") in self._segments:
            return self._why_boundary(request)
        pipe = self._pipe(request)
        has_rules = getattr(pipe, "constraints", None) is not None
        _check_length(request, MOST_UNDER_RULES if has_rules else MOST_EXPLAINED)
        doc = doc_before(self._nlp, pipe, _field(request, "text", str))
        [span] = _spans([request.get("span")], doc)
        decision = span.label_ if _kind(pipe) == "cats" else span
        explanation = pipe.explain(doc, decision, kind="words", **(_UNDER_RULES if has_rules else _EXPLAINED))
        return {"title": explanation.title, "lines": explanation.lines(), "rows": explanation.table(_TOP)}

    def save(self, request: Fields) -> Fields:
        """Append the "text" of a request to the file, with its "spans" as the annotation for the "component", unless this demo
        has appended them before.

        RETURNS (dict): The file ("saved"), and whether the text "is_new".
        """
        from ..pipeline.probabilities import labelling

        if self._file is None:
            raise ValueError(Errors.CRF975)
        pipe = self._pipe(request)
        doc = doc_before(self._nlp, pipe, _field(request, "text", str))
        spans = _spans(_field(request, "spans", list), doc)
        kind = _kind(pipe)
        for span in spans:
            pipe.annotation.check_label(span.label_)
            if span.label_ not in pipe.labels:
                _check_new_label(span.label_)
        labelling(pipe.name, doc, spans, overlap=kind == "spans")  # raises an error for spans that overlap
        line = json.dumps(_record(doc, spans, kind, list(pipe.labels)), ensure_ascii=False) + "\n"
        # A second click on "save" must not repeat the text
        if line in self._saved:
            return {"saved": str(self._file), "is_new": False}
        self._saved.add(line)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a+b") as file:
            if file.seek(0, 2):  # the size of the file
                file.seek(-1, 2)
                # A user may have left the last line of the file without its end
                line = line if file.read() == b"\n" else f"\n{line}"
            file.write(line.encode("utf8"))
        return {"saved": str(self._file), "is_new": True}

    def _pipe(self, request: Fields) -> "LearningPipe":
        """The "component" of a request. RAISES (ValueError): CRF976 if there is no such component."""
        name = _field(request, "component", str)
        if name not in self._pipes:
            raise _wrong("component", f"one of {', '.join(self._pipes)}", name)
        return self._pipes[name]


def _kind(pipe: "LearningPipe") -> str:
    """The kind of labels of a component: "cats", "tags", "spans" (which may overlap) or "entities"."""
    if pipe.labelled == "texts":
        return "cats"
    if pipe.annotation.spans_are_tokens:
        return "tags"
    return "spans" if "spans_key" in pipe.cfg else "entities"


def _as_list(span: Span) -> list[object]:
    """A span as JSON has it, see `_spans`."""
    return [span.start, span.end, span.label_]


def _wrong(key: str, must: str, value: object) -> ValueError:
    """The error CRF976 for a value of a request."""
    return ValueError(Errors.CRF976.format(key=key, must=must, value=shown(value)))


def _field(request: Fields, key: str, kind: type) -> Any:
    """Get a value of a request. RAISES (ValueError): CRF976 unless the value is a string or a list, as `kind` says."""
    if not isinstance(request.get(key), kind):
        raise _wrong(key, "a list" if kind is list else "a string", request.get(key))
    return request[key]


def _check_length(request: Fields, most: int) -> None:
    """Check the length of the "text" of a request. RAISES (ValueError): CRF914 for more than `most` characters."""
    text = request.get("text")
    if isinstance(text, str) and len(text) > most:
        raise ValueError(Errors.CRF914.format(n=len(text), most=most))


def _spans(values: list[Any], doc: Doc) -> list[Span]:
    """Make spans of lists ``[first token, token behind the last, label]``. RAISES (ValueError): CRF976 for any other value."""
    for value in values:
        is_span = isinstance(value, list) and [*map(type, value)] == [int, int, str]
        if not is_span or not 0 <= value[0] < value[1] <= len(doc):
            must = f"[first token, token behind the last, label] in a text of {len(doc)} tokens"
            raise _wrong("span", must, value)
    return [Span(doc, start, end, label=label) for start, end, label in values]


def _check_new_label(label: str) -> None:
    """Check a label that the component does not have yet. RAISES (ValueError): CRF976 for text that nobody means as a label."""
    if len(label) > _MOST_OF_LABEL or label != label.strip() or not label.isprintable():
        must = f"a label of at most {_MOST_OF_LABEL} printable characters, without blanks around it"
        raise _wrong("label", must, label)


def _record(doc: Doc, spans: list[Span], kind: str, labels: list[str]) -> Fields:
    """The annotation of a text in a format that `update` reads.

    kind (str): The kind of the component's labels, see `_kind`.
    labels (List[str]): The labels of the component.
    """
    if kind == "tags":
        tags = {}
        for span in spans:
            tags.update((token.i, span.label_) for token in span)
        words = [token for token in doc if not token.is_space]
        return {"tokens": [token.text for token in words], "pos_tags": [tags.get(token.i, "") for token in words]}
    if kind == "cats":
        chosen = [span.label_ for span in spans[:1]]  # a text has one label, or none; the label may be new
        cats = {label: float(label in chosen) for label in dict.fromkeys([*labels, *chosen])}
        return {"text": doc.text, "cats": cats}
    spans_in_text = [{"start": span.start_char, "end": span.end_char, "label": span.label_} for span in sorted(spans)]
    return {"text": doc.text, "spans": spans_in_text}


# ------------------------------------------------------------------------------------------------------------ server


PAGES = {  # for each path: package, file and type
    "/": ("spacy_crf.cli", "demo.html", "text/html"),
    "/page.css": ("spacy_crf.report", "page.css", "text/css"),
    "/demo.css": ("spacy_crf.cli", "demo.css", "text/css"),
    "/demo.js": ("spacy_crf.cli", "demo.js", "text/javascript"),
}
QUESTIONS = {"/find": Demo.find, "/why": Demo.why, "/save": Demo.save}
METHODS = {**dict.fromkeys([*PAGES, "/about"], "GET"), **dict.fromkeys(QUESTIONS, "POST")}
STATUS = {
    "CRF970": 403,
    "CRF971": 404,
    "CRF972": 405,
    "CRF914": 413,
    "CRF974": 413,
    "CRF975": 409,
    "CRF979": 500,
}  # all others: 400
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def _code(message: str) -> str:
    """The code at the beginning of a message of this package; the empty string for any other message."""
    match = re.match(r"CRFW?\d{3}(?=: )", message)
    return match[0] if match else ""


class Server(ThreadingHTTPServer):
    """Serves the page and answers of a demo, each request in its own thread."""

    daemon_threads = True
    request_queue_size = 128
    demo: Demo

    def server_bind(self) -> None:
        """Bind without asking the network for the name of the host, as HTTPServer does."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # pyright: ignore[reportAttributeAccessIssue]  of text here

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that have gone."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def open_server(demo: Demo, port: int) -> Server:
    """Make a server, which its method `serve_forever` runs. RAISES (ValueError): CRF980 if the port can't be used."""
    try:
        server = Server((HOST, port), _Handler)
    except OSError as error:
        raise ValueError(Errors.CRF980.format(port=port, reason=error.strerror or error)) from None
    server.demo = demo
    return server


class _Handler(BaseHTTPRequestHandler):
    """Answers a request, and closes its connection."""

    server: Server
    timeout = _SECONDS

    def do_GET(self) -> None:
        try:
            self._send(200, *self._answer())
        except ValueError as error:
            self._refuse(str(error))

    do_POST = do_GET

    def _answer(self) -> tuple[str, bytes]:
        """The type and the content of the answer to the request.

        RAISES (ValueError): With an error code, for which `STATUS` has the HTTP status.
        """
        self._check_sender()
        path = self.path.partition("?")[0]
        demo = self.server.demo
        if path not in METHODS:
            raise ValueError(Errors.CRF971.format(path=shown(path)))
        if self.command != METHODS[path]:
            raise ValueError(Errors.CRF972.format(path=shown(path), method=self.command))
        if path in QUESTIONS:
            return _as_json(demo.answer(partial(QUESTIONS[path], demo), self._body()))
        if path == "/about":
            return _as_json(demo.about())
        package, name, kind = PAGES[path]
        return kind, resources.files(package).joinpath(name).read_bytes()

    def _check_sender(self) -> None:
        """Refuse requests from the pages of other servers, even if such a server has made its name point to this machine (DNS
        rebinding).

        RAISES (ValueError): CRF970 for another host or origin.
        """
        own_hosts = [f"{name}:{self.server.server_port}" for name in (HOST, "localhost")]
        hosts = self.headers.get_all("Host", [])
        # Several Host headers could pass one check and be read by another
        if len(hosts) != 1 or hosts[0].lower() not in own_hosts:
            raise ValueError(Errors.CRF970.format(what="Host", value=shown(hosts), known=own_hosts[0]))
        origins = self.headers.get_all("Origin", [])  # browsers leave it out for GET
        if not {*origins} <= {f"http://{host}" for host in own_hosts}:
            raise ValueError(Errors.CRF970.format(what="Origin", value=shown(origins), known=own_hosts[0]))

    def _body(self) -> Fields:
        """Read the JSON of a request. RAISES (ValueError): CRF973 if it can't be read, CRF974 if it is too long."""
        lengths = self.headers.get_all("Content-Length", [])
        if self.headers.get_content_type() != "application/json":
            raise ValueError(Errors.CRF973.format(reason="its Content-Type is not application/json"))
        if len(lengths) != 1 or not re.fullmatch("[0-9]{1,18}", lengths[0]) or "Transfer-Encoding" in self.headers:
            raise ValueError(Errors.CRF973.format(reason="it has no Content-Length that is a number"))
        if int(lengths[0]) > MOST_BYTES:
            raise ValueError(Errors.CRF974.format(n=int(lengths[0]), most=MOST_BYTES))
        body = self.rfile.read(int(lengths[0]))
        if len(body) < int(lengths[0]):
            raise ConnectionAbortedError
        try:
            request = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ValueError(Errors.CRF973.format(reason=f"it is not JSON ({error})")) from None
        if not isinstance(request, dict):
            raise ValueError(Errors.CRF973.format(reason="it is not a JSON object"))
        return request

    def _refuse(self, message: str) -> None:
        """Answer with an error, as JSON and by the status for the code of the message."""
        status = STATUS.get(_code(message), 400)
        self._send(status, *_as_json({"error": {"code": _code(message), "message": message}}))
        # A connection that closes with an unread request is reset, and the client may not see the answer
        self.connection.settimeout(1.0)
        self.connection.shutdown(socket.SHUT_WR)
        rest = 4 * MOST_BYTES  # bytes to read at most
        while rest > 0 and (part := self.rfile.read1(1 << 16)):
            rest -= len(part)

    def _send(self, status: int, kind: str, content: bytes) -> None:
        """Send an answer with this status, content type (`kind`) and content."""
        self.close_connection = True
        self.send_response(status)
        headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(content)), **_HEADERS}
        if status == 405:
            headers["Allow"] = METHODS.get(self.path.partition("?")[0], "GET")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_error(self, code: int, message: Optional[str] = None, explain: Optional[str] = None) -> None:
        """Answer a request that http.server refuses: because of its method (501), or since it is not HTTP."""
        if code == 501:
            self._refuse(Errors.CRF972.format(path=shown(self.path), method=shown(self.command)))
        else:
            self._refuse(Errors.CRF973.format(reason=f"it is not HTTP ({message or code})"))

    def log_message(self, format: str, *args: object) -> None:
        """Texts are not logged."""


def _as_json(value: object) -> tuple[str, bytes]:
    """The type and the content of an answer in JSON."""
    return "application/json", json.dumps(value).encode("ascii")
