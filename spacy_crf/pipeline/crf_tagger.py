"""The component that gives every token one label."""

from collections.abc import Iterable

from spacy.tokens.underscore import Underscore
from spacy.training import Example

from .. import checks
from ..errors import Errors
from .annotation.entities import Annotation
from .annotation.tags import BUILT_IN, TokenTags
from .prediction import CRFPipe
from .scorers import score_tags


class CRFTagger(CRFPipe):
    """Gives every token one label (factory ``crf_tagger``).

    attribute (str), overwrite (bool), neg_prefix (str): See `TokenTags`. For other settings see `make_crf_tagger`.
    """

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
        self.name = name
        checks.flag(self.owner, "overwrite", overwrite)
        checks.expect(isinstance(neg_prefix, str), self.owner, "neg_prefix", neg_prefix, 'text, "" for none')
        super().__init__(
            vocab,
            model,
            name,
            fixed_settings=("attribute",),
            annotation=self.annotation_of(attribute, overwrite=overwrite, neg_prefix=neg_prefix),
            attribute=attribute,
            overwrite=overwrite,
            **settings,
        )

    def annotation_of(self, attribute: str, *, overwrite: bool, neg_prefix: str) -> Annotation:
        """The annotation of an attribute of tokens.

        attribute (str): The name of the attribute, as in the config.
        overwrite (bool), neg_prefix (str): See `TokenTags`.
        RAISES (ValueError): CRF020, or CRF406 for an attribute that tokens do not have.
        """
        checks.text(self.owner, "attribute", attribute)
        extensions = Underscore.token_extensions
        if attribute not in BUILT_IN and attribute not in extensions:
            known = ", ".join(sorted(extensions)) or "none"
            raise ValueError(Errors.CRF406.format(name=self.name, attribute=attribute, known=known))
        return TokenTags(attribute, overwrite=overwrite, neg_prefix=neg_prefix)

    def score(self, examples: Iterable[Example], **kwargs) -> dict:
        """Scores of the attribute for examples with predicted Docs; `kwargs` are settings of the scorer."""
        # Other scorers do not know the argument
        if self.scorer is score_tags:
            kwargs["attribute"] = self.cfg["attribute"]
        return super().score(examples, **kwargs)
