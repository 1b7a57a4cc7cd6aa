"""One label per token by a linear chain: tags, parts of speech, morphology, or a custom extension."""

from collections.abc import Iterable

from spacy.tokens.underscore import Underscore
from spacy.training import Example

from .. import checks
from ..errors import Errors
from .annotation.tags import BUILT_IN, TokenTags
from .crf_pipe import CRFPipe
from .scorers import score_tags


class CRFTagger(CRFPipe):
    """Gives every token one label (factory ``crf_tagger``).

    attribute (str), overwrite (bool), neg_prefix (str): See `TokenTags`; the others see `make_crf_tagger`.
    """

    meaning = ("attribute",)

    def __init__(
        self,
        vocab,
        model,
        name="crf_tagger",
        *,
        attribute: str = "tag",
        overwrite: bool = False,
        neg_prefix: str = "!",
        **settings,
    ):
        owner = f"Component '{name}'"
        checks.text(owner, "attribute", attribute)
        checks.flag(owner, "overwrite", overwrite)
        checks.expect(isinstance(neg_prefix, str), owner, "neg_prefix", neg_prefix, 'text, "" for none')
        if attribute not in BUILT_IN and attribute not in Underscore.token_extensions:
            known = ", ".join(sorted(Underscore.token_extensions)) or "none"
            raise ValueError(Errors.CRF406.format(name=name, attribute=attribute, known=known))
        annotation = TokenTags(attribute, overwrite=overwrite, neg_prefix=neg_prefix)
        super().__init__(
            vocab, model, name, annotation=annotation, attribute=attribute, overwrite=overwrite, **settings
        )

    def score(self, examples: Iterable[Example], **kwargs) -> dict:
        if self.scorer is score_tags:
            kwargs["attribute"] = self.cfg["attribute"]
        return super().score(examples, **kwargs)
