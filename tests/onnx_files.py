"""Small random encoders of pieces of words: an ONNX file, whose bytes are written here, and its tokenizer.json."""

import string
from pathlib import Path
from typing import Any

import numpy as np

FLOAT, INT64 = 1, 7
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *string.printable[:94], *(f"##{each}" for each in string.printable[:94])]
CLS, SEP = 2, 3


def write_encoder(folder: Path, width: int = 16, seed: int = 0, input_name: str = "input_ids") -> Path:
    """Write model.onnx and tokenizer.json. The outputs are "pieces" (vectors of pieces), "sums" (of all pieces up to each one),
    "wide" (of twice the width) and "flat" (which is not of pieces)."""
    folder.mkdir(exist_ok=True, parents=True)
    table = vectors_of_pieces(width, seed)
    nodes = [
        _node("Gather", ["table", input_name], "pieces"),
        _node("CumSum", ["pieces", "axis"], "sums"),
        _node("Concat", ["pieces", "sums"], "wide", axis=2),
        _node("Cast", [input_name], "flat", to=FLOAT),
    ]
    shapes = {"pieces": (0, 0, width), "sums": (0, 0, width), "wide": (0, 0, 2 * width), "flat": (0, 0)}
    graph = [(1, node) for node in nodes] + [(2, "encoder")]
    graph += [(5, _tensor("table", table, FLOAT)), (5, _tensor("axis", np.array([1]), INT64))]
    graph += [(11, _value(name, INT64, (0, 0))) for name in (input_name, "attention_mask")]
    graph += [(12, _value(name, FLOAT, shape)) for name, shape in shapes.items()]
    path = folder / "model.onnx"
    path.write_bytes(_message([(1, 8), (7, _message(graph)), (8, _message([(1, ""), (2, 13)]))]))
    write_tokenizer(folder / "tokenizer.json")
    return path


def write_tokenizer(path: Path) -> None:
    """Write a tokenizer whose pieces are single characters."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordPiece({piece: n for n, piece in enumerate(PIECES)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = [("[CLS]", CLS), ("[SEP]", SEP)]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=special)
    tokenizer.save(str(path))


def vectors_of_pieces(width: int = 16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(len(PIECES), width)).astype(np.float32)


# ------------------------------------------------------------------------- the format: numbers of fields as in onnx.proto


def _node(kind: str, inputs: list[str], output: str, **attributes: int) -> bytes:
    of_node = [(5, _message([(1, name), (3, value), (20, 2)])) for name, value in attributes.items()]
    return _message([*((1, name) for name in inputs), (2, output), (4, kind), *of_node])


def _tensor(name: str, array: np.ndarray, kind: int) -> bytes:
    return _message([*((1, size) for size in array.shape), (2, kind), (8, name), (9, array.tobytes())])


def _value(name: str, kind: int, shape: tuple[int, ...]) -> bytes:
    sizes = [(1, _message([(1, size)] if size else [(2, f"{name}{place}")])) for place, size in enumerate(shape)]
    return _message([(1, name), (2, _message([(1, _message([(1, kind), (2, _message(sizes))]))]))])


def _message(fields: list[tuple[int, Any]]) -> bytes:
    """A message of Protocol Buffers."""
    parts = []
    for number, value in fields:
        if isinstance(value, int):
            parts += [_varint(number << 3), _varint(value)]
        else:
            data = value.encode() if isinstance(value, str) else value
            parts += [_varint(number << 3 | 2), _varint(len(data)), data]
    return b"".join(parts)


def _varint(value: int) -> bytes:
    octets = []
    while value > 127:
        octets.append(value & 127 | 128)
        value >>= 7
    return bytes([*octets, value])
