"""How to read a file, and a report of what was read."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Optional

from wasabi import msg

_SHOWN = 3  # places in each warning


@dataclass(frozen=True)
class Settings:
    """How to read a file.

    format (str): A name in ``FORMATS``; None to find the format by the contents.
    encoding (str): Encoding of the file.
    word_column, label_column, tag_column (str): Columns of the word or text, of the entity tag or label of the text, and of
        ``token.tag``: numbers from 1 on, or names in the header. For JSON with texts: keys.
    scheme (str): Scheme of the entity tags, one of ``SCHEMES``; None to find the scheme by the tags.
    n_sents (int): Number of sentences in a Doc; 0 for whole documents, if the file tells where they end.
    tag_names (Collection[str]): Names of tags or labels that are numbers, from 0 on.
    ignore (Collection[str]): Keys of JSON, or columns of a header, to leave out.
    overlaps (str): "longest" keeps the longest of overlapping spans, "error" refuses them.
    without_spans (bool): Whether a file without any annotation is accepted.
    predictions (bool): Whether the predictions of a model count where nobody annotated.
    """

    format: Optional[str] = None
    encoding: str = "utf-8"
    word_column: Optional[str] = None
    label_column: Optional[str] = None
    tag_column: Optional[str] = None
    scheme: Optional[str] = None
    n_sents: int = 1
    tag_names: Collection[str] = ()
    ignore: Collection[str] = ()
    overlaps: str = "error"
    without_spans: bool = False
    predictions: bool = False


@dataclass
class Report:
    """Counts of what was read, and places of what could not be used."""

    format: str = ""
    scheme: str = ""
    documents: int = 0
    spans: int = 0
    tagged: int = 0  # documents with tags
    labelled: int = 0  # documents with labels of the whole text
    labels: dict[str, None] = field(default_factory=dict)  # of documents, in order
    exclusive: bool = True  # whether no document has several labels
    incorrect: int = 0  # spans that are annotated as wrong
    has_spans: bool = False  # whether the file has keys or columns for spans, filled or empty
    trimmed: list[str] = field(default_factory=list)
    overlapping: list[str] = field(default_factory=list)
    misaligned: list[str] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    unlabelled: list[str] = field(default_factory=list)  # texts without labels, if other texts have some
    unkept: dict[str, list[str]] = field(default_factory=dict)  # by kind, annotation that a Doc can't hold
    long: list[str] = field(default_factory=list)
    binary: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)  # that were not read

    def tell(self) -> None:
        """Print the warnings."""
        for places, what in (
            (self.trimmed, "spans began or ended with white space, which is left out"),
            (self.overlapping, "spans overlap longer ones (or equal ones before them), and are left out"),
            (self.misaligned, "spans do not align with the tokens, and count as missing annotation"),
            (self.rejected, "texts were not accepted by the annotator or are empty, and are left out"),
            (self.unread, "texts are annotated several times: the first that counts is kept"),
            (self.unlabelled, "texts have no label where others have one, and count as not annotated"),
            *((places, f"{kind} can't be kept in doc.ents, and are left out") for kind, places in self.unkept.items()),
            (self.long, "documents are very long: are the ends of sentences marked in the file?"),
        ):
            if places:
                msg.warn(f"{len(places):,} {what}. First: {'; '.join(places[:_SHOWN])}")
        if self.binary:
            msg.info(
                f"{len(self.binary):,} answers are about single spans: the rest of the text counts as missing annotation, and "
                "what was rejected is in doc.spans['incorrect_spans'] (incorrect_spans_key of the components)"
            )
        if self.columns:
            msg.info(f"Columns that are not read: {', '.join(self.columns)}")
