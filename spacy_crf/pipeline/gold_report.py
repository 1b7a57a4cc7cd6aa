"""What of the gold annotation could not be used: collected while it is read, and said once."""

import logging
from collections.abc import Callable, Iterator

from spacy.tokens import Span

from ..errors import Warnings
from ..models.role import AnnotatedDocs

logger = logging.getLogger("spacy.spacy_crf")


class GoldReport:
    """Collects what of the gold annotation could not be used, to say it once."""

    def __init__(self) -> None:
        self._places: dict[str, list[str]] = {}
        self._counts: dict[str, int] = {}

    def add(self, problem: str, place: str) -> None:
        self._counts[problem] = self._counts.get(problem, 0) + 1
        if self._counts[problem] <= 3:
            self._places.setdefault(problem, []).append(place)

    def add_span(self, span: Span, key: str, problem: str) -> None:
        """About one in ``doc.spans[key]``."""
        self.add(f"spans in doc.spans['{key}'] {problem}", place_of(span))

    def log(self, name: str) -> None:
        for problem, count in self._counts.items():
            places = "; ".join(self._places[problem])
            logger.warning(Warnings.CRFW405.format(name=name, count=count, problem=problem, places=places))


def place_of(span: Span) -> str:
    """Names a span in a report."""
    return f"'{span.text}' ({span.label_}) in '{span.doc.text[:40]}'"


def reported_once(corpus: Callable, report: GoldReport, name: str) -> Callable:
    """The corpus, whose problems are logged when it was read for the first time."""
    told = False

    def read() -> Iterator[AnnotatedDocs]:
        nonlocal told
        yield from corpus()
        if not told:
            report.log(name)
            told = True

    return read
