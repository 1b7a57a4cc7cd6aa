"""Docs as files hold them."""

from collections.abc import Iterable
from typing import Any

from spacy.tokens import Doc, DocBin


def doc_bin(docs: Iterable[Doc], **settings: Any) -> DocBin:
    """A DocBin that has the user data of those Docs that have some: encoding none and reading it takes several times as long as
    all the rest of a sentence."""
    stored = DocBin(**settings)
    for doc in docs:
        stored.store_user_data = bool(doc.user_data)
        stored.add(doc)
        if not doc.user_data:
            stored.user_data.append(None)
    stored.store_user_data = True
    return stored
