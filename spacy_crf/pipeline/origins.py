"""Where a text comes from: the place in a file, and the id that the file gives the text. Both are ``doc._.crf_source``, which is
a part of the Doc's user data."""

from typing import Any

from spacy.tokens import Doc

SOURCE = "crf_source"
KEY: Any = ("._.", SOURCE, None, None)  # of the extension in the user data, whose type spaCy declares as str


def set_origin(doc: Doc, place: str, id_: object = None) -> None:
    """Set where a text comes from. id_: Its id; anything but a whole number or a string is no id."""
    origin: dict[str, object] = {"place": _encodable(place)}
    if type(id_) is int:
        origin["id"] = id_ if abs(id_) < 2**63 else str(id_)
    elif isinstance(id_, str) and id_:
        origin["id"] = _encodable(id_)
    doc.user_data[KEY] = origin


def origin_of(doc: Doc) -> dict[str, object]:
    """RETURNS (Dict[str, object]): The "place" of a text, and its "id" if it has one; empty if neither is known."""
    found = doc.user_data.get(KEY)
    return {key: found[key] for key in ("place", "id") if key in found} if isinstance(found, dict) else {}


def named_origin(doc: Doc) -> str:
    """The place and the id of a text in words; empty if neither is known."""
    return in_words(origin_of(doc))


def in_words(origin: dict[str, object]) -> str:
    found = [str(origin["place"])] if "place" in origin else []
    if "id" in origin:
        found.append(f"id {origin['id']}")
    return ", ".join(found)


def _encodable(text: str) -> str:
    """Replace halves of characters, which JSON and names of files may have and which can't be saved."""
    return text.encode("utf8", "replace").decode("utf8")
