"""Links between Docs: ``doc._.crf_id`` is the id of a Doc, ``doc._.crf_links`` are the ids of the Docs that it links to, and
``doc._.crf_group`` is the collection that these ids belong to. Importing the factories sets these extensions.
"""

from collections.abc import Iterable, Iterator

from spacy.tokens import Doc
from spacy.training import Example

_NAMES = ("crf_id", "crf_links", "crf_group")

for name in _NAMES:
    if not Doc.has_extension(name):
        Doc.set_extension(name, default=None)


def pass_links(examples: Iterable[Example]) -> Iterator[Example]:
    """Give each predicted Doc the links of its reference Doc, unless it has its own."""
    keys = [("._.", name, None, None) for name in _NAMES]
    for example in examples:
        links = example.reference.user_data
        own = example.predicted.user_data
        own.update({key: links[key] for key in keys if key in links and key not in own})
        yield example
