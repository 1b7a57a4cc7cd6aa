"""Token vectors from a pretrained subword encoder in an ONNX file: a transformer without PyTorch. The encoder does not learn. Its
weights stay in their file; a saved pipeline contains the digest of the file, and its config the path.
"""

import copy
import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import srsly
from numpy.typing import NDArray
from spacy.attrs import IDX, IS_SPACE, LENGTH
from spacy.tokens import Doc
from thinc.api import Model
from thinc.model import deserialize_attr, serialize_attr
from thinc.types import Floats2d

from .. import checks
from ..arrays import ranges
from ..errors import Errors, known_names, optional_package
from ..inference.threads import default_threads
from .node import no_backprop

_INSTALL = "'spacy-crf[onnx]'"
_OWNER = "spacy_crf.OnnxTok2Vec.v1"
_TOKENIZER = "tokenizer.json"
_POOLINGS = ("first", "last", "mean", "max")
_MERGES = ("mean", "concat")
_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
_BATCH = 1 << 13  # largest number of pieces in a batch, padding included
_OF_PARENTS: list = []  # opened by other processes; never deleted here, which would wait for their threads
Vectors = NDArray[np.float32]


def OnnxTok2Vec(
    path: Union[str, Path],
    tokenizer: Optional[Union[str, Path]] = None,
    layers: Optional[list[Union[str, int]]] = None,
    merge: str = "mean",
    pooling: str = "mean",
    window: int = 512,
    overlap: int = 128,
) -> Model[list[Doc], list[Floats2d]]:
    """Token vectors from an encoder in an ONNX file, which does not learn. Needs the extra `onnx`.

    path (str): The ONNX file. It maps token ids to vectors of pieces (float[B, L, width]).
    tokenizer (str): The tokenizer.json; by default the file of that name beside the ONNX file.
    layers (list[Union[str, int]]): Names or numbers of the outputs to use; by default the first one.
    merge (str): How to combine several outputs: "mean", or "concat" for concatenation.
    pooling (str): How to combine the vectors of a token's pieces: "first", "last", "mean" or "max".
    window (int): Maximum number of pieces that the encoder takes. Longer texts are encoded in windows.
    overlap (int): Number of pieces that two windows share. Each piece gets its vector from the window with more context for it.
    """
    checks.expect(checks.is_path(path), _OWNER, "path", path, "the path of an ONNX file")
    checks.expect(
        tokenizer is None or checks.is_path(tokenizer),
        _OWNER,
        "tokenizer",
        tokenizer,
        "the path of a tokenizer.json, or null",
    )
    outputs = checks.listed(_OWNER, "layers", layers, "names or numbers of outputs")
    checks.expect(
        (layers is None or outputs) and all(type(output) in (str, int) for output in outputs),
        _OWNER,
        "layers",
        layers,
        "a list of names or numbers of outputs, or null",
    )
    window = checks.count(_OWNER, "window", window, least=2)
    settings = {
        "layers": outputs or [0],
        "merge": checks.one_of(_OWNER, "merge", merge, _MERGES),
        "pooling": checks.one_of(_OWNER, "pooling", pooling, _POOLINGS),
        "window": window,
        "overlap": checks.count(_OWNER, "overlap", overlap, least=0, most=window - 2),
    }
    path = Path(path)
    encoder = OnnxEncoder(path, Path(tokenizer) if tokenizer else path.with_name(_TOKENIZER), settings)
    return Model("onnx_tok2vec", _forward, init=_init, dims={"nO": None}, attrs={"encoder": encoder})


def _forward(model: Model, docs: list[Doc], is_train: bool) -> tuple[list[Floats2d], Callable]:
    return [model.ops.asarray2f(vectors) for vectors in model.attrs["encoder"].vectors(docs)], no_backprop


def _init(model: Model, X: object = None, Y: object = None) -> None:
    model.set_dim("nO", model.attrs["encoder"].open().width, force=True)


class _Opened(NamedTuple):
    """The files of an encoder, opened by one process."""

    process: int
    tokenizer: Any
    session: Any
    inputs: dict[str, type]  # types of the inputs by name
    outputs: list[str]  # names of the outputs to use
    width: int  # of the vectors


class _Window(NamedTuple):
    """Pieces of a Doc that go through the encoder together. Of the N kept pieces the vectors are used; the others are context."""

    doc: int
    ids: list[int]
    types: list[int]
    kept: NDArray[np.int64]  # [N] indices of the kept pieces
    text: NDArray[np.int64]  # [N, 2] first character of each kept piece, and the character behind the piece


class OnnxEncoder:
    """An ONNX file with its tokenizer, and the settings of `OnnxTok2Vec`. Each process that needs the files opens them."""

    def __init__(self, path: Path, tokenizer: Path, settings: dict[str, Any]):
        self.path = path
        self.tokenizer_path = tokenizer
        self.settings = settings
        self.digests: list[str] = []  # of both files, where the encoder was opened
        self._opened: Optional[_Opened] = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def open(self) -> _Opened:
        """The opened files. RAISES (ImportError): CRF781 without a package. (ValueError): CRF966."""
        if self._opened is not None and self._opened.process != os.getpid():  # a fork has none of the session's threads
            _OF_PARENTS.append(self._opened)
            self._opened = None
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def _open(self) -> _Opened:
        """Open both files, and set `digests`. RAISES: As `open`."""
        self.digests = [*map(_digest, (self.path, self.tokenizer_path))]
        runtime = optional_package("onnxruntime", what=_OWNER, install=_INSTALL)
        tokenizer = self._open_tokenizer()
        options = runtime.SessionOptions()
        # Failures are raised, and need no log
        options.log_severity_level = 4
        options.intra_op_num_threads = default_threads()
        try:
            session = runtime.InferenceSession(str(self.path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the package has no exceptions of its own
            raise _unusable(self.path, f"onnxruntime can't read it ({error})") from error
        inputs = {entry.name: np.int32 if "int32" in entry.type else np.int64 for entry in session.get_inputs()}
        if not {"input_ids"} <= {*inputs} <= {*_INPUTS}:
            reason = f"its inputs are {known_names(inputs)}, and need to be some of {known_names(_INPUTS)}"
            raise _unusable(self.path, reason)
        names = [entry.name for entry in session.get_outputs()]
        outputs = []
        for layer in self.settings["layers"]:
            if layer not in names and not (type(layer) is int and -len(names) <= layer < len(names)):
                there = f"has the {len(names)} outputs {known_names(names, layer)}"
                raise _unusable(self.path, f"layers names the output {layer!r}, and the file {there}")
            outputs.append(layer if layer in names else names[layer])
        opened = _Opened(
            process=os.getpid(), tokenizer=tokenizer, session=session, inputs=inputs, outputs=outputs, width=0
        )
        # The file often does not say the width, so the vectors of a short text show it
        ids = tokenizer.encode("a").ids or [0]
        nothing = np.zeros(0, dtype=np.int64)
        window = _Window(doc=0, ids=ids, types=[0] * len(ids), kept=nothing, text=nothing)
        return opened._replace(width=self._run(opened, [window]).shape[2])

    def _open_tokenizer(self):
        """Open the tokenizer, and let it divide texts into windows.

        RAISES (ValueError): CRF966 if the file can't be read, CRF020 if the overlap is as large as a window.
        """
        tokenizers = optional_package("tokenizers", what=_OWNER, install=_INSTALL)
        window = self.settings["window"]
        overlap = self.settings["overlap"]
        try:
            tokenizer = tokenizers.Tokenizer.from_file(str(self.tokenizer_path))
            tokenizer.no_padding()
            tokenizer.enable_truncation(max_length=window, stride=overlap)
            room = window - tokenizer.num_special_tokens_to_add(False)
        except Exception as error:  # the package has no exceptions of its own
            raise _unusable(self.tokenizer_path, f"tokenizers can't read it ({error})") from error
        checks.expect(
            overlap < room,
            _OWNER,
            "overlap",
            overlap,
            f"less than {room}: the window has {window} pieces with special ones",
        )
        return tokenizer

    def _run(self, opened: _Opened, windows: list[_Window]) -> Vectors:
        """Run the encoder on the pieces of some windows. RETURNS (float32[B, L, width])"""
        ids = np.zeros((len(windows), max(len(window.ids) for window in windows)), dtype=np.int64)
        types = np.zeros_like(ids)
        mask = np.zeros_like(ids)
        for row, window in enumerate(windows):
            n = len(window.ids)
            ids[row, :n] = window.ids
            types[row, :n] = window.types
            mask[row, :n] = 1
        positions = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
        arrays: dict[str, NDArray[np.int64]] = dict(zip(_INPUTS, (ids, mask, types, positions)))
        try:
            feeds = {name: arrays[name].astype(dtype) for name, dtype in opened.inputs.items()}
            outputs = opened.session.run(opened.outputs, feeds)
        except Exception as error:  # the package has no exceptions of its own
            advice = f"If the encoder takes fewer than {self.settings['window']} pieces, lower window"
            raise _unusable(self.path, f"onnxruntime: {str(error).rstrip('.')}. {advice}") from error
        for name, output in zip(opened.outputs, outputs):
            if np.ndim(output) != 3 or output.shape[:2] != ids.shape:
                reason = (
                    f"the output '{name}' has the shape {np.shape(output)} for {ids.shape[1]} pieces, and needs to be"
                )
                raise _unusable(self.path, f"{reason} [texts, pieces, width]. Name another one in layers")
        if self.settings["merge"] == "concat":
            return np.concatenate(outputs, axis=2).astype(np.float32)
        if len({output.shape for output in outputs}) > 1:
            widths = ", ".join(str(output.shape[2]) for output in outputs)
            raise _unusable(self.path, f'the outputs have the widths {widths}. Set merge = "concat"')
        return np.asarray(np.mean(outputs, axis=0, dtype=np.float32))

    def vectors(self, docs: Iterable[Doc]) -> list[Vectors]:
        """Vectors of the tokens of each Doc: float32[T, width], 0 for white space and other tokens without pieces.

        docs (Iterable[Doc]): The Docs.
        """
        docs = list(docs)
        opened = self.open()
        windows = self._windows(opened, docs)
        batch = []
        pieces: list[Vectors] = [np.zeros((0, opened.width), np.float32)] * len(windows)  # of each window
        # Batches have windows of about equal length, so that little is padded
        by_length = sorted(range(len(windows)), key=lambda number: len(windows[number].ids))
        for n_done, number in enumerate(by_length, start=1):
            batch.append(number)
            is_last = n_done == len(by_length)
            # The next window would be padded to the longest one, which is itself
            if is_last or (len(batch) + 1) * len(windows[by_length[n_done]].ids) > _BATCH:
                outputs = self._run(opened, [windows[n] for n in batch])
                for row, n in enumerate(batch):
                    pieces[n] = outputs[row, windows[n].kept]
                batch = []
        windows_of_docs: list[list[int]] = [[] for _ in docs]
        for number, window in enumerate(windows):
            windows_of_docs[window.doc].append(number)
        vectors = []
        for doc, numbers in zip(docs, windows_of_docs):
            text = np.concatenate([np.zeros((0, 2), np.int64), *(windows[n].text for n in numbers)])
            doc_pieces = np.concatenate([np.zeros((0, opened.width), np.float32), *(pieces[n] for n in numbers)])
            vectors.append(_pooled(self.settings["pooling"], doc, text, doc_pieces))
        return vectors

    def _windows(self, opened: _Opened, docs: list[Doc]) -> list[_Window]:
        """Divide the pieces of each Doc into overlapping windows."""
        windows = []
        half = self.settings["overlap"] // 2
        for number, encoding in enumerate(opened.tokenizer.encode_batch([doc.text for doc in docs])):
            parts = [encoding, *encoding.overflowing]
            for part in parts:
                [pieces] = np.nonzero(np.array(part.special_tokens_mask) == 0)
                # Of the pieces that two windows share, each window keeps half
                begin = 0 if part is parts[0] else half
                end = len(pieces) - (0 if part is parts[-1] else self.settings["overlap"] - half)
                kept = pieces[begin:end]
                if len(kept):
                    windows.append(
                        _Window(
                            doc=number,
                            ids=part.ids,
                            types=part.type_ids,
                            kept=kept,
                            text=np.array(part.offsets, dtype=np.int64)[kept],
                        )
                    )
        return windows


@serialize_attr.register(OnnxEncoder)
def _serialize(_, value: OnnxEncoder, name: str, model: Model) -> bytes:
    return srsly.msgpack_dumps({**value.settings, "digests": value.digests})


@deserialize_attr.register(OnnxEncoder)
def _deserialize(default: OnnxEncoder, value: bytes, name: str, model: Model) -> OnnxEncoder:
    """Return the encoder of a saved model, with the files that the config names.

    RAISES (ValueError): CRF510 if the settings differ, CRF966 if a file is missing or has changed.
    """
    saved: Any = srsly.msgpack_loads(value)
    for setting, ours in default.settings.items():
        if saved[setting] != ours:
            raise ValueError(Errors.CRF510.format(setting=f"tok2vec.{setting}", saved=saved[setting], ours=ours))
    for path, digest in zip((default.path, default.tokenizer_path), saved["digests"]):
        found = _digest(path)
        if found != digest:
            reason = f"the model was trained with another file (sha256 {digest[:12]}…, and this one has {found[:12]}…)"
            raise _unusable(path, f"{reason}. Put that file there, or name its path")
    encoder = copy.copy(default)
    encoder.digests = saved["digests"]
    return encoder


def _pooled(pooling: str, doc: Doc, text: NDArray[np.int64], pieces: Vectors) -> Vectors:
    """Pool the vectors of pieces (float32[P, width]) into vectors of the tokens of a Doc (float32[T, width]).

    text (int64[P, 2]): Characters of each piece. A piece belongs to each token whose characters it contains.
    """
    vectors = np.zeros((len(doc), pieces.shape[1]), dtype=np.float32)
    idx, length, is_space = doc.to_array([IDX, LENGTH, IS_SPACE]).astype(np.int64).T.reshape(3, len(doc))
    # Where pieces share a character, bounds may fall; those that `searchsorted` reads have to rise
    begins, ends = np.maximum.accumulate(text, axis=0).T
    # [T] the pieces first, ..., behind - 1 share characters with a token
    first = np.searchsorted(ends, idx, side="right")
    behind = np.searchsorted(begins, idx + length, side="left")
    [tokens] = np.nonzero((behind > first) & (is_space == 0))  # that have pieces
    first = first[tokens]
    behind = behind[tokens]
    if not len(tokens):
        return vectors
    if pooling in ("first", "last"):
        vectors[tokens] = pieces[first if pooling == "first" else behind - 1]
        return vectors
    # Sums or maxima over ranges of pieces, which may overlap where a piece belongs to two tokens
    counts = behind - first
    reduce = np.add if pooling == "mean" else np.maximum
    vectors[tokens] = reduce.reduceat(pieces[ranges(first, behind)], np.cumsum(counts) - counts, axis=0)
    if pooling == "mean":
        vectors[tokens] /= counts[:, np.newaxis]
    return vectors


def _digest(path: Path) -> str:
    """Compute the SHA-256 of a file. RAISES (ValueError): CRF966 if the file can't be read."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        reason = f"{error.strerror or error}. Put the file there, or name its path in the config"
        raise _unusable(path, reason) from error
    return digest.hexdigest()


def _unusable(path: Path, reason: str) -> ValueError:
    return ValueError(Errors.CRF966.format(owner=_OWNER, path=path, reason=reason))
