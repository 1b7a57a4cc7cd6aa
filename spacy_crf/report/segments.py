"""The words and sentences that a trainable tokenizer finds, for reports that show what components find."""

from collections.abc import Iterable
from typing import Any, Optional

from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from ..pipeline.annotation.trimming import Mention
from ..pipeline.boundaries import sentences_at_words
from ..pipeline.tokenizer import TOKENIZER, CharacterTokenizer
from .cases import Judged, match


class Segments:
    """Words, or sentences, in the place of a component and of its annotation.

    name (str): "words" or "sentences".
    """

    spans_are_tokens = True  # reports leave out groups by length
    chains = ()  # whose rules reports show

    def __init__(self, name: str):
        self.name = name
        self.annotation = self

    def mentions_in(self, doc: Doc) -> list[Mention]:
        """The words of a Doc, which are its tokens but white space; or its sentences, without white space at their end."""
        if self.name == "words":
            words = [token for token in doc if not token.is_space]
            return [Mention(t.idx, t.idx + len(t), "word", t._.crf_boundary_prob) for t in words]
        if not doc.has_annotation("SENT_START"):
            return []
        sentences = [sentence for sentence in sentences_at_words(doc).sents if sentence.text.strip()]
        return [Mention(s.start_char, s.start_char + len(s.text.rstrip()), "sentence") for s in sentences]


def find_segments(nlp: Language, component: Optional[str]) -> list[Segments]:
    """The reports on the trainable tokenizer of a pipeline: on words, and on sentences if it finds them.

    component (Optional[str]): The name that the user asks for; for that of a component there are no reports.
    RETURNS (list[Segments]): The reports; none for other tokenizers.
    """
    if not isinstance(nlp.tokenizer, CharacterTokenizer) or component not in (None, TOKENIZER):
        return []
    return [Segments(name) for name in ("words", "sentences")[: 1 + nlp.tokenizer.finds_sentences]]


def judge_segments(segments: Iterable[Segments], examples: list[Example]) -> list[Judged]:
    """Compare words and sentences with the annotation.

    segments (Iterable[Segments]): Words and sentences.
    examples (list[Example]): The texts, with the Docs that the tokenizer made.
    """
    texts = [example.reference.text for example in examples]
    judged = []
    for kind in segments:
        cases = []
        for number, example in enumerate(examples):
            gold = kind.mentions_in(example.reference)
            if gold:
                cases += match(gold, kind.mentions_in(example.predicted), number)
        pipe: Any = kind
        # Reports explain no mistakes of held-out texts
        judged.append(Judged(pipe, examples, cases, texts, held_out=True))
    return judged
