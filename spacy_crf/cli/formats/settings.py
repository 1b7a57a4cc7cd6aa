"""What a user may ask of a reader, and what a reader tells of what it read."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Optional

from wasabi import msg

_SHOWN = 3  # places named of what could not be used


@dataclass(frozen=True)
class Settings:
    """How to read a file.

    format (str): One of the names in ``FORMATS``, or None to be told by the contents.
    encoding (str): Of the file.
    word_column, label_column, tag_column (str): Columns that hold the word or the text, the entity tag or the text's label, and
        ``token.tag``: counted from 1, or by their name where there is a header. Keys, where the file is JSON with texts.
    scheme (str): How entity tags are written, one of ``SCHEMES``, or None to be told by the tags.
    n_sents (int): Sentences of one Doc; 0 for all up to where the file says that a document ends.
    tag_names (Collection[str]): Of tags or labels that are numbers, from 0.
    ignore (Collection[str]): Keys of JSON, or columns of a header, that are passed over, whatever they hold.
    overlaps (str): "longest" keeps the longest of spans that overlap, "error" refuses them.
    without_spans (bool): Whether a file may be one in which nothing is annotated.
    predictions (bool): Whether what a model found counts where nobody annotated.
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
    """What was read, and the places of what could not be used as it stands there."""

    format: str = ""
    scheme: str = ""
    documents: int = 0
    spans: int = 0
    tagged: int = 0  # documents with tags
    labelled: int = 0  # documents with labels of their own
    labels: dict[str, None] = field(default_factory=dict)  # those of documents, in order
    exclusive: bool = True  # whether no document has several of them
    incorrect: int = 0  # spans that are said to be none
    has_spans: bool = False  # whether the file has keys or columns for them, filled or not
    trimmed: list[str] = field(default_factory=list)
    overlapping: list[str] = field(default_factory=list)
    misaligned: list[str] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    unlabelled: list[str] = field(default_factory=list)  # where other texts have labels
    unkept: dict[str, list[str]] = field(default_factory=dict)  # by kind, annotation that Docs do not hold
    long: list[str] = field(default_factory=list)
    binary: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)  # those that nothing was read from

    def tell(self) -> None:
        """Warnings for whoever uses a command."""
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
