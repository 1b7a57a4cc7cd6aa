"""Templates that tie whole Docs, for `spacy_crf_lab.LinkedTexts.v1`: Docs that link to each other, and Docs that are linked
together (Taskar, Abbeel & Koller 2002).

``doc._.crf_id`` is the id of a Doc, ``doc._.crf_links`` are the ids of the Docs that it links to, and ``doc._.crf_group`` is the
collection that these ids belong to. Docs without a group are tied to no others, except in a `Collection`.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from typing import ClassVar, NamedTuple, NoReturn

import numpy as np
from spacy.tokens import Doc

from spacy_crf import checks
from spacy_crf.errors import shown
from spacy_crf.features.doc_batch import DocBatch
from spacy_crf.optimizers.objective import setting

from ..errors import Errors, Warnings
from .templates import BIAS, TiePart, TieTemplate, TokenPairs, template

CITED = "cited"
CITING = "citing"


class Collection(DocBatch):
    """Docs that form one collection, whatever their ``doc._.crf_group``."""


class Member(NamedTuple):
    """A Doc of a collection."""

    group: object
    number: int  # of the Doc in its batch
    doc: Doc


def group_of(doc: Doc) -> object:
    """The collection of a Doc, None for none. RAISES (ValueError): CRF492 for other values than a text or a whole number."""
    return _id(doc, "crf_group", doc._.crf_group, "a text, a whole number, or None")


class DocumentTemplate(TieTemplate):
    """Base of the templates that tie Docs. Their only feature is "bias"."""

    ties: ClassVar[str] = "documents"

    def pairs(self, members: list[Member]) -> Iterator[tuple[int, int]]:
        """The numbers of tied Docs, among Docs of collections."""
        raise NotImplementedError

    def find(self, docs: DocBatch) -> TokenPairs:
        """The Docs of a batch that are tied, each pair once.

        RAISES (ValueError): CRF492 for ids that are neither texts nor whole numbers, CRF493 for two Docs with one id.
        """
        groups = [0 if isinstance(docs, Collection) else group_of(doc) for doc in docs]
        members = [Member(group, n, doc) for n, (group, doc) in enumerate(zip(groups, docs)) if group is not None]
        found = np.array(list(self.pairs(members)), dtype=np.int64).reshape(-1, 2)
        # A Doc that links to itself is not tied
        found = found[found[:, 0] != found[:, 1]]
        return TokenPairs(*np.unique(np.sort(found, axis=1) if self.symmetric else found, axis=0).T.copy())

    def _parse(self, feature: object) -> list[TiePart]:
        checks.expect(feature == BIAS, self.owner, "features", feature, f'["{BIAS}"]: Docs have no other features')
        return [TiePart(BIAS, None)]


@template
class LinkedDocuments(DocumentTemplate):
    """Ties each Doc to the Docs that it links to by ``doc._.crf_links``. Links to ids that no Doc of its collection has are
    ignored; a warning with their number is logged once.

    features (List[str]): ["bias"].
    symmetric (bool): Whether the linking and the linked Doc influence each other in the same way.
    associative (bool): See `TieTemplate`.
    """

    def pairs(self, members: list[Member]) -> Iterator[tuple[int, int]]:
        """Each Doc with the Docs that it links to."""
        numbers = _by_id(members)
        n_links = 0
        unknown = []
        for group, number, doc in members:
            for link in _links(doc):
                n_links += 1
                linked = numbers.get((group, link))
                if linked is None:
                    unknown.append((link, doc))
                else:
                    yield number, linked
        if unknown and len(members) > 1:
            link, doc = unknown[0]
            values = {"n": len(unknown), "links": n_links, "link": repr(link), "text": doc.text[:40]}
            self.warn_once(Warnings.CRFW491, **values)


@template
class CoCited(DocumentTemplate):
    """Ties Docs that are linked together.

    by (str): "cited" ties two Docs to which a third Doc of the collection links; "citing" ties two Docs that link to the same id,
        whether a Doc has that id or not.
    max_edges (int): Links that would tie more pairs of Docs tie none; a warning is logged once.
    features (List[str]): ["bias"].
    symmetric (bool): True.
    associative (bool): See `TieTemplate`.
    """

    by: str = setting(CITED, checks.one_of, allowed=(CITED, CITING))
    max_edges: int = setting(1000, checks.count, most=10_000_000)

    def pairs(self, members: list[Member]) -> Iterator[tuple[int, int]]:
        """Docs that one Doc links to, or that link to one id."""
        numbers = _by_id(members)
        together = defaultdict(list)
        for group, number, doc in members:
            for link in _links(doc):
                key, tied = ((group, link), number) if self.by == CITING else (number, numbers.get((group, link)))
                together[key].extend([] if tied is None else [tied])
        for tied in together.values():
            if len(tied) * (len(tied) - 1) // 2 > self.max_edges:
                self.warn_once(Warnings.CRFW492, n=len(tied), most=self.max_edges)
            else:
                yield from combinations(tied, 2)


def _by_id(members: list[Member]) -> dict[tuple[object, object], int]:
    """The number of the Doc with each id of a collection."""
    numbers: dict[tuple[object, object], int] = {}
    for group, number, doc in members:
        name = _id(doc, "crf_id", doc._.crf_id, "a text, a whole number, or None")
        if name is not None and numbers.setdefault((group, name), number) != number:
            raise ValueError(Errors.CRF493.format(id=repr(name), text=doc.text[:40], group=repr(group)))
    return numbers


def _links(doc: Doc) -> list[object]:
    """The ids that a Doc links to, each once."""
    links = doc._.crf_links
    must = "a list of the ids of Docs: texts or whole numbers"
    if links is None:
        return []
    if not isinstance(links, (list, tuple, set)) or None in links:
        _refuse(doc, "crf_links", links, must)
    return list(dict.fromkeys(_id(doc, "crf_links", link, must) for link in links))


def _id(doc: Doc, name: str, value: object, must: str) -> object:
    is_id = value is None or (isinstance(value, (str, int, np.integer)) and not isinstance(value, bool))
    return value if is_id else _refuse(doc, name, value, must)


def _refuse(doc: Doc, name: str, value: object, must: str) -> NoReturn:
    raise ValueError(Errors.CRF492.format(name=name, text=doc.text[:40], value=shown(value), must=must))
