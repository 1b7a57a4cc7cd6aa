"""The factories that spaCy finds by their entry points, with default configs.

Every ``spacy.blank()`` imports this file, so it imports numba, and modules that import numba, only when a component is made.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Optional, Union

from spacy.language import Language
from spacy.util import Config
from thinc.api import Model, Optimizer

if TYPE_CHECKING:
    from .candidates import CRFCandidates
    from .pipe import LearningPipe

# A block of a config that makes an object of this package, which this file would import too early
_BLOCK = Optional[Any]
_ByLabel = Union[dict, list]  # as `checks.ByLabel`, which this file would import too early

_DEFAULTS = """
[model]
@architectures = "spacy_crf.{architecture}"
possible_transitions = true

[model.emissions]
@architectures = "spacy_crf.SparseEmissions.v1"
min_count = 1
possible_states = false

[model.emissions.features]
@misc = "spacy_crf.{features}"

[loss]
@losses = "spacy_crf.LogLikelihood.v1"

[optimizer]
@optimizers = "spacy_crf.Minibatch.v1"
learn_rate = 0.02

[scorer]
@scorers = "{scorer}.v1"
"""
# Further defaults for semicrf_ner
_SEGMENTS = """
[model]
longest_segment = null

[model.segments]
@architectures = "spacy_crf.SparseSegments.v1"
min_count = 1
possible_states = false

[model.segments.features]
@misc = "spacy_crf.segment_features.v1"
"""


def _defaults(architecture: str, features: str, scorer: str) -> Config:
    return Config().from_str(_DEFAULTS.format(architecture=architecture, features=features, scorer=scorer))


def _text_defaults() -> Config:
    defaults = _defaults("MaxEntText.v1", "text_features.v1", "spacy.textcat_scorer")
    defaults["scorer"] = {"@scorers": "spacy.textcat_scorer.v2"}
    del defaults["model"]["possible_transitions"]
    return defaults


# Settings of the components that label tokens
_OF_TOKENS: dict[str, object] = {
    "confidence": False,
    "decode": "viterbi",
    "decoder": None,
    "min_prob": 0.0,
    "constraints": None,
    "alternatives_spans_key": None,
    "incorrect_spans_key": None,
    "second_stage": None,
    "max_words": 500_000,
}
# Settings with which a first stage learns as the component does; its other settings have their defaults
_OF_LEARNING = ("alternatives_spans_key", "incorrect_spans_key", "max_words")


def made(make: "Callable[..., LearningPipe]", factory: str, nlp: Language, **settings: object) -> "LearningPipe":
    """Make a component. Right after that, spaCy reads the factory's metadata for `nlp.analyze_pipes`; which attributes a
    component reads and writes depends on its settings."""
    if settings.get("second_stage") is not None:
        from .two_stage import first_stage  # most components need none

        defaults = {name: default for name, default in _OF_TOKENS.items() if name not in _OF_LEARNING}
        settings["second_stage"] = first_stage(make, nlp.vocab, {**settings, **defaults}, settings["second_stage"])
    component = make(nlp.vocab, **settings)
    meta = replace(nlp.get_factory_meta(factory), assigns=component.assigns(), requires=component.requires())
    Language.set_factory_meta(factory, meta)  # for every language, and also for a pipeline that sources the component
    return component


@Language.factory(
    "crf_ner",
    assigns=["doc.ents", "token.ent_iob", "token.ent_type"],
    default_config={
        "scheme": "BILUO",
        **_OF_TOKENS,
        **_defaults("LinearChain.v1", "ner_features.v1", "spacy.ner_scorer"),
    },
    default_score_weights={"ents_f": 1.0, "ents_p": 0.0, "ents_r": 0.0, "ents_texts": 0.0, "ents_per_type": None},
)
def make_crf_ner(
    nlp: Language,
    name: str,
    model: Model,
    loss: _BLOCK,
    scheme: str,
    confidence: bool,
    decode: str,
    decoder: _BLOCK,
    min_prob: Union[float, _ByLabel],
    constraints: _BLOCK,
    alternatives_spans_key: Optional[str],
    incorrect_spans_key: Optional[str],
    second_stage: Optional[dict],
    max_words: int,
    optimizer: Optional[Optimizer],
    scorer: Optional[Callable],
) -> "LearningPipe":
    """Construct a CRFEntityRecognizer: a linear-chain CRF that writes to `doc.ents`. Entities that a Doc has already are
    kept, and the rest is decoded around them.

    model (Model[List[Doc], ChainScores]): Scores of the tags: `spacy_crf.LinearChain.v1`, on sparse features
        (`spacy_crf.ner_features.v1` by default), on an encoder, or on both.
    loss (Loss): The loss of training, by default `spacy_crf.LogLikelihood.v1`. Each optimizer says which losses it can train.
    scheme (str): Tag scheme of entities: "BILUO", the default, "BIO", "IOB1", or "IO", which joins neighbours of one label;
        "auto" for BIO if the training data has few and short entities per label, else BILUO. A saved model keeps its scheme.
    confidence (bool): Whether every entity gets its probability, as `span._.crf_prob`. Takes about half as long again.
    decode (str): "viterbi", the most probable labelling; "posterior", the valid labelling with the largest expected number of
        right tokens; or "spans", the best set of entities with probabilities of at least `min_prob`.
    decoder (Optional[Decoder]): A block of another package that finds labellings, or computes their probabilities, in its own
        way. None for the exact answers.
    min_prob (Union[float, Dict[str, float]]): From 0 to 1: entities with a lower probability are left out. 0 keeps all. Or a
        table by label, with "*" for other labels.
    constraints (Optional[Constraints]): Rules for prediction, and for training if `in_training` is set:
        `spacy_crf.constraints.v1`. None for no rules.
    alternatives_spans_key (Optional[str]): Key of `doc.spans` of the reference Docs, with possible spans: where annotation is
        missing, only these are possible; elsewhere they are possible beside the annotation. None for no key.
    incorrect_spans_key (Optional[str]): Key of `doc.spans` of the reference Docs, with spans that are wrong:
        precisely these tokens are no entity of this label. None for no key.
    second_stage (Optional[Dict[str, Any]]): Settings of a second stage, which reads the labels that a first stage gives to the
        rest of the Doc: `folds`, `features` (of "token_majority", "entity_majority", "superentity_majority"), and `l1`, `l2`
        and `iterations` of the first stage. None for one stage.
    max_words (int): Different words whose features and scores the component caches; a full cache starts anew. A larger cache is
        faster with many different words, a smaller one takes less memory: about 0.5 KB per word, with many labels up to 256 MB
        in total.
    optimizer (Optional[Optimizer]): The component's own optimizer. The default, `spacy_crf.Minibatch.v1`, gives way to an
        optimizer of this package that is passed as `sgd` or named in [training.optimizer]; other optimizers do not. None to use
        the optimizer given there, as spaCy's own components do.
    scorer (Optional[Callable]): The scoring method. Defaults to `Scorer.score_spans` of the entities.
    """
    from .prediction import CRFEntityRecognizer

    return made(
        CRFEntityRecognizer,
        "crf_ner",
        nlp,
        name=name,
        model=model,
        loss=loss,
        scheme=scheme,
        confidence=confidence,
        decode=decode,
        decoder=decoder,
        min_prob=min_prob,
        constraints=constraints,
        alternatives_spans_key=alternatives_spans_key,
        incorrect_spans_key=incorrect_spans_key,
        second_stage=second_stage,
        max_words=max_words,
        optimizer=optimizer,
        scorer=scorer,
    )


@Language.factory(
    "crf_tagger",
    assigns=["token.tag"],
    default_config={
        "attribute": "tag",
        "overwrite": False,
        "neg_prefix": "!",
        **_OF_TOKENS,
        **_defaults("LinearChain.v1", "tagger_features.v1", "spacy_crf.tagger_scorer"),
    },
    default_score_weights={"crf_tag_acc": 1.0, "tag_acc": None, "pos_acc": None, "morph_acc": None},
)
def make_crf_tagger(
    nlp: Language,
    name: str,
    model: Model,
    loss: _BLOCK,
    attribute: Union[str, list[str]],
    overwrite: bool,
    neg_prefix: str,
    confidence: bool,
    decode: str,
    decoder: _BLOCK,
    min_prob: Union[float, _ByLabel],
    constraints: _BLOCK,
    alternatives_spans_key: Optional[str],
    incorrect_spans_key: Optional[str],
    second_stage: Optional[dict],
    max_words: int,
    optimizer: Optional[Optimizer],
    scorer: Optional[Callable],
) -> "LearningPipe":
    """Construct a CRFTagger: a linear-chain CRF that gives every token one label.

    model (Model[List[Doc], ChainScores]): Scores of the labels: `spacy_crf.LinearChain.v1`, on sparse features
        (`spacy_crf.tagger_features.v1` by default), on an encoder, or on both.
    loss (Loss): The loss of training, by default `spacy_crf.LogLikelihood.v1`. Each optimizer says which losses it can train.
    attribute (str): Attribute where labels are read and written: "tag", the default, "pos", "morph", "pos+morph" for both
        (labels such as "Number=Sing|POS=NOUN"), or the name of a Token extension that is set before the pipeline is built. Or a
        list of them: each has a chain, all chains read features once, and labels are named "tag:NN".
    overwrite (bool): Whether present values are replaced. By default they are kept, and the other tokens are decoded around
        them.
    neg_prefix (str): Prefix of gold values that name a wrong label: "!NN" means any label but NN. "" for no prefix.
    confidence (bool): Whether every token gets its probability, as `token._.crf_prob`. Takes about half as long again.
    decode (str): "viterbi", the most probable labelling; "posterior", the valid labelling with the largest expected number of
        right tokens; or "spans", the best set of labels with probabilities of at least `min_prob`.
    decoder (Optional[Decoder]): A block of another package that finds labellings, or computes their probabilities, in its own
        way. None for the exact answers.
    min_prob (Union[float, Dict[str, float]]): From 0 to 1: labels with a lower probability are left out, and their tokens stay
        without one. 0 keeps all. Or a table by label, with "*" for other labels.
    constraints (Optional[Constraints]): Rules for prediction, and for training if `in_training` is set:
        `spacy_crf.constraints.v1`. None for no rules.
    alternatives_spans_key (Optional[str]): Key of `doc.spans` of the reference Docs, with possible spans: where annotation is
        missing, only these are possible; elsewhere they are possible beside the annotation. None for no key.
    incorrect_spans_key (Optional[str]): Key of `doc.spans` of the reference Docs, with spans that are wrong:
        no token of such a span has its label. None for no key.
    second_stage (Optional[Dict[str, Any]]): Settings of a second stage, which reads the labels that a first stage gives to the
        rest of the Doc: `folds`, `features` (["token_majority"]), and `l1`, `l2` and `iterations` of the first stage. None for
        one stage.
    max_words (int): Different words whose features and scores the component caches; a full cache starts anew. A larger cache is
        faster with many different words, a smaller one takes less memory: about 0.5 KB per word, with many labels up to 256 MB
        in total.
    optimizer (Optional[Optimizer]): The component's own optimizer. The default, `spacy_crf.Minibatch.v1`, gives way to an
        optimizer of this package that is passed as `sgd` or named in [training.optimizer]; other optimizers do not. None to use
        the optimizer given there, as spaCy's own components do.
    scorer (Optional[Callable]): The scoring method. Defaults to the accuracy of the attribute.
    """
    is_list_of_one = isinstance(attribute, (list, tuple)) and len(attribute) == 1
    if is_list_of_one:
        attribute = attribute[0]
    if is_list_of_one or isinstance(attribute, str):
        from .crf_tagger import CRFTagger as Tagger
    else:
        from .tagger_set import CRFTaggerSet as Tagger
    return made(
        Tagger,
        "crf_tagger",
        nlp,
        name=name,
        model=model,
        loss=loss,
        attribute=attribute,
        overwrite=overwrite,
        neg_prefix=neg_prefix,
        confidence=confidence,
        decode=decode,
        decoder=decoder,
        min_prob=min_prob,
        constraints=constraints,
        alternatives_spans_key=alternatives_spans_key,
        incorrect_spans_key=incorrect_spans_key,
        second_stage=second_stage,
        max_words=max_words,
        optimizer=optimizer,
        scorer=scorer,
    )


@Language.factory(
    "crf_senter",
    assigns=["token.is_sent_start"],
    default_config={
        "overwrite": False,
        **_OF_TOKENS,
        **_defaults("LinearChain.v1", "senter_features.v1", "spacy.senter_scorer"),
    },
    default_score_weights={"sents_f": 1.0, "sents_p": 0.0, "sents_r": 0.0},
)
def make_crf_senter(
    nlp: Language,
    name: str,
    model: Model,
    loss: _BLOCK,
    overwrite: bool,
    confidence: bool,
    decode: str,
    decoder: _BLOCK,
    min_prob: Union[float, _ByLabel],
    constraints: _BLOCK,
    alternatives_spans_key: Optional[str],
    incorrect_spans_key: Optional[str],
    second_stage: Optional[dict],
    max_words: int,
    optimizer: Optional[Optimizer],
    scorer: Optional[Callable],
) -> "LearningPipe":
    """Construct a CRFSenter: a linear-chain CRF over a whole Doc that finds the tokens that begin a sentence, and writes
    `token.is_sent_start`, as spaCy's `senter`. Tokens of which the training data says nothing (None) may be either.

    model (Model[List[Doc], ChainScores]): Scores of the two tags, "S" for tokens that begin a sentence and "O" for others:
        `spacy_crf.LinearChain.v1`, on sparse features (`spacy_crf.senter_features.v1` by default), on an encoder, or on both.
    loss (Loss): The loss of training, by default `spacy_crf.LogLikelihood.v1`. Each optimizer says which losses it can train.
    overwrite (bool): Whether present values are replaced. By default they are kept, and the other tokens are decoded around
        them.
    confidence (bool): Whether every token that begins a sentence gets the probability of that, as `token._.crf_prob`. Takes
        about half as long again.
    decode (str): "viterbi", the most probable labelling; "posterior", each token by its own probability; or "spans", all
        tokens that begin a sentence with a probability of at least `min_prob`.
    decoder (Optional[Decoder]): A block of another package that finds labellings, or computes their probabilities, in its own
        way. None for the exact answers.
    min_prob (Union[float, Dict[str, float]]): From 0 to 1: tokens that begin a sentence with a lower probability begin none. 0
        keeps all. Or a table by label: {"S": 0.6}.
    constraints (Optional[Constraints]): Rules for prediction, and for training if `in_training` is set:
        `spacy_crf.constraints.v1`, about the label "S". None for no rules.
    alternatives_spans_key (Optional[str]): Key of `doc.spans` of the reference Docs, with tokens that may begin a sentence, as in
        `crf_tagger`. None for no key.
    incorrect_spans_key (Optional[str]): Key of `doc.spans` of the reference Docs, with tokens that begin none, labelled "S".
        None for no key.
    second_stage (Optional[Dict[str, Any]]): Settings of a second stage, which reads the labels that a first stage gives to the
        rest of the Doc: `folds`, `features` (["token_majority"]), and `l1`, `l2` and `iterations` of the first stage. None for
        one stage.
    max_words (int): Different words whose features and scores the component caches; a full cache starts anew. A larger cache is
        faster with many different words, a smaller one takes less memory: about 0.5 KB per word, with many labels up to 256 MB
        in total.
    optimizer (Optional[Optimizer]): The component's own optimizer. The default, `spacy_crf.Minibatch.v1`, gives way to an
        optimizer of this package that is passed as `sgd` or named in [training.optimizer]; other optimizers do not. None to use
        the optimizer given there, as spaCy's own components do.
    scorer (Optional[Callable]): The scoring method. Defaults to `Scorer.score_spans` of the sentences.
    """
    from .crf_senter import CRFSenter

    return made(
        CRFSenter,
        "crf_senter",
        nlp,
        name=name,
        model=model,
        loss=loss,
        overwrite=overwrite,
        confidence=confidence,
        decode=decode,
        decoder=decoder,
        min_prob=min_prob,
        constraints=constraints,
        alternatives_spans_key=alternatives_spans_key,
        incorrect_spans_key=incorrect_spans_key,
        second_stage=second_stage,
        max_words=max_words,
        optimizer=optimizer,
        scorer=scorer,
    )


@Language.factory(
    "semicrf_ner",
    assigns=["doc.ents", "token.ent_iob", "token.ent_type"],
    default_config={
        **_OF_TOKENS,
        **_defaults("SemiMarkov.v1", "ner_features.v1", "spacy.ner_scorer").merge(Config().from_str(_SEGMENTS)),
    },
    default_score_weights={"ents_f": 1.0, "ents_p": 0.0, "ents_r": 0.0, "ents_texts": 0.0, "ents_per_type": None},
)
def make_semicrf_ner(
    nlp: Language,
    name: str,
    model: Model,
    loss: _BLOCK,
    confidence: bool,
    decode: str,
    decoder: _BLOCK,
    min_prob: Union[float, _ByLabel],
    constraints: _BLOCK,
    alternatives_spans_key: Optional[str],
    incorrect_spans_key: Optional[str],
    second_stage: Optional[dict],
    max_words: int,
    optimizer: Optional[Optimizer],
    scorer: Optional[Callable],
) -> "LearningPipe":
    """Construct a SemiCRFEntityRecognizer: a semi-Markov CRF, which scores entities as a whole and writes to `doc.ents`. Entities
    that a Doc has already are kept, and the rest is decoded around them.

    model (Model[List[Doc], SegmentScores]): Scores of segments and their labels: `spacy_crf.SemiMarkov.v1`, which adds features
        of whole segments (`spacy_crf.segment_features.v1` by default) to features of tokens.
    loss (Loss): The loss of training, by default `spacy_crf.LogLikelihood.v1`. Each optimizer says which losses it can train.
    confidence (bool): Whether every entity gets its probability, as `span._.crf_prob`. Takes about half as long again.
    decode (str): "viterbi", the most probable labelling; "posterior", the valid labelling with the largest expected number of
        right tokens; or "spans", the best set of entities with probabilities of at least `min_prob`.
    decoder (Optional[Decoder]): A block of another package that finds labellings, or computes their probabilities, in its own
        way. None for the exact answers.
    min_prob (Union[float, Dict[str, float]]): From 0 to 1: entities with a lower probability are left out. 0 keeps all. Or a
        table by label, with "*" for other labels.
    constraints (Optional[Constraints]): Rules for prediction, and for training if `in_training` is set:
        `spacy_crf.constraints.v1`. None for no rules.
    alternatives_spans_key (Optional[str]): Key of `doc.spans` of the reference Docs, with possible spans: where annotation is
        missing, only these are possible; elsewhere they are possible beside the annotation. None for no key.
    incorrect_spans_key (Optional[str]): Key of `doc.spans` of the reference Docs, with spans that are wrong:
        precisely these tokens are no entity of this label. None for no key.
    second_stage (Optional[Dict[str, Any]]): Settings of a second stage, which reads the labels that a first stage gives to the
        rest of the Doc: `folds`, `features` (of "token_majority", "entity_majority", "superentity_majority"), and `l1`, `l2`
        and `iterations` of the first stage. None for one stage.
    max_words (int): Different words whose features and scores the component caches; a full cache starts anew. A larger cache is
        faster with many different words, a smaller one takes less memory: about 0.5 KB per word, with many labels up to 256 MB
        in total.
    optimizer (Optional[Optimizer]): The component's own optimizer. The default, `spacy_crf.Minibatch.v1`, gives way to an
        optimizer of this package that is passed as `sgd` or named in [training.optimizer]; other optimizers do not. None to use
        the optimizer given there, as spaCy's own components do.
    scorer (Optional[Callable]): The scoring method. Defaults to `Scorer.score_spans` of the entities.
    """
    from .semi_markov import SemiCRFEntityRecognizer

    return made(
        SemiCRFEntityRecognizer,
        "semicrf_ner",
        nlp,
        name=name,
        model=model,
        loss=loss,
        confidence=confidence,
        decode=decode,
        decoder=decoder,
        min_prob=min_prob,
        constraints=constraints,
        alternatives_spans_key=alternatives_spans_key,
        incorrect_spans_key=incorrect_spans_key,
        second_stage=second_stage,
        max_words=max_words,
        optimizer=optimizer,
        scorer=scorer,
    )


@Language.factory(
    "crf_spancat",
    assigns=["doc.spans"],
    default_config={
        "spans_key": "sc",
        "threshold": 0.5,
        "max_positive": None,
        "groups": "label",
        "nested": False,
        "scheme": "BILUO",
        **{name: _OF_TOKENS[name] for name in ("constraints", *_OF_LEARNING)},
        **_defaults("LinearChain.v1", "ner_features.v1", "spacy.spancat_scorer"),
    },
    default_score_weights={"spans_sc_f": 1.0, "spans_sc_p": 0.0, "spans_sc_r": 0.0},
)
def make_crf_spancat(
    nlp: Language,
    name: str,
    model: Model,
    loss: _BLOCK,
    spans_key: str,
    threshold: Union[float, _ByLabel],
    max_positive: Optional[int],
    groups: Union[str, list[list[str]]],
    nested: bool,
    scheme: str,
    constraints: _BLOCK,
    alternatives_spans_key: Optional[str],
    incorrect_spans_key: Optional[str],
    max_words: int,
    optimizer: Optional[Optimizer],
    scorer: Optional[Callable],
) -> "LearningPipe":
    """Construct a CRFSpanCategorizer: chains over the same tokens, by default one for each label, that write spans which may
    overlap to `doc.spans`, with their exact probabilities.

    model (Model[List[Doc], Any]): Scores of the tags of all labels: `spacy_crf.LinearChain.v1`, as of `crf_ner`, or
        `spacy_crf.SemiMarkov.v1`, as of `semicrf_ner`.
    loss (Loss): The loss of training, by default `spacy_crf.LogLikelihood.v1`: the sum of the losses of the chains.
    spans_key (str): Key of `doc.spans` where spans are read and written. A reference Doc without the key is not annotated; a
        Doc without spans has an empty group.
    threshold (Union[float, Dict[str, float]]): The least probability of a span that is written, or a table by label, with "*"
        for other labels.
    max_positive (Optional[int]): Most labels for the same tokens, the most probable ones. None for any number.
    groups (Union[str, List[List[str]]]): Labels that share a chain, so that their spans never overlap: "label", none; "auto",
        those whose spans do not overlap in the training data, so that flat data has one chain; or lists of labels.
    nested (bool): Whether a group has further chains for spans inside its spans, as many as the training data has levels; with
        groups = "auto" all labels are one group.
    scheme (str): Tag scheme of the spans, as in `crf_ner`; models of segments have none.
    constraints (Optional[Constraints]): Rules, as in `crf_ner`. A rule holds in the chain of the labels that it names.
    alternatives_spans_key (Optional[str]): Key of possible spans, as in `crf_ner`.
    incorrect_spans_key (Optional[str]): Key of wrong spans, as in `crf_ner`.
    max_words (int): Different words whose features and scores the component caches, as in `crf_ner`.
    optimizer (Optional[Optimizer]): The component's own optimizer, as in `crf_ner`.
    scorer (Optional[Callable]): The scoring method. Defaults to `Scorer.score_spans` for `doc.spans[spans_key]`.
    """
    from .span_categorizer import CRFSpanCategorizer

    return made(
        CRFSpanCategorizer,
        "crf_spancat",
        nlp,
        name=name,
        model=model,
        loss=loss,
        spans_key=spans_key,
        threshold=threshold,
        max_positive=max_positive,
        groups=groups,
        nested=nested,
        scheme=scheme,
        constraints=constraints,
        alternatives_spans_key=alternatives_spans_key,
        incorrect_spans_key=incorrect_spans_key,
        max_words=max_words,
        optimizer=optimizer,
        scorer=scorer,
    )


@Language.factory(
    "crf_textcat",
    assigns=["doc.cats"],
    default_config={
        "multilabel": False,
        "threshold": None,
        "exclusive_classes": None,
        "confidence": False,
        "explain": False,
        "max_words": _OF_TOKENS["max_words"],
        **_text_defaults(),
    },
    default_score_weights={
        "cats_score": 1.0,
        "cats_score_desc": None,
        "cats_micro_p": None,
        "cats_micro_r": None,
        "cats_micro_f": None,
        "cats_macro_p": None,
        "cats_macro_r": None,
        "cats_macro_f": None,
        "cats_macro_auc": None,
        "cats_f_per_type": None,
    },
)
def make_crf_textcat(
    nlp: Language,
    name: str,
    model: Model,
    loss: _BLOCK,
    multilabel: bool,
    threshold: Optional[Union[float, _ByLabel]],
    exclusive_classes: Optional[bool],
    confidence: bool,
    explain: bool,
    max_words: int,
    optimizer: Optional[Optimizer],
    scorer: Optional[Callable],
) -> "LearningPipe":
    """Construct a CRFTextClassifier: each text gets the probabilities of its labels, as `doc.cats`.

    model (Model[List[Doc], Any]): Scores of the labels of texts: `spacy_crf.MaxEntText.v1`, by default, or
        `spacy_crf.NaiveBayes.v1`, which is for one label.
    loss (Loss): The loss of training, by default `spacy_crf.LogLikelihood.v1`. Each optimizer says which losses it can train.
    multilabel (bool): Whether texts may have several labels, or none.
    threshold (Union[float, Dict[str, float], None]): With several labels, the least probability of the labels that a text has,
        or a table by label ("*" for all others); None for 0.5. For one label the scorer ignores it.
    exclusive_classes (Optional[bool]): As in spaCy's `textcat`: the opposite of `multilabel`, or None.
    confidence (bool): Whether `doc._.crf_prob` gets the probability of the text's label, the largest of those in `doc.cats`;
        with several labels that of the set of those that reach the threshold.
    explain (bool): Whether `doc._.crf_evidence` gets the evidence of each part of a Doc for its label. Takes twice as long.
    max_words (int): Different words whose features the component caches, as in `crf_tagger`.
    optimizer (Optional[Optimizer]): The component's own optimizer, as in `crf_tagger`.
    scorer (Optional[Callable]): The scoring method. Defaults to `Scorer.score_cats` for the attribute "cats", with `multilabel`
        for several labels.
    """
    from .crf_textcat import CRFTextClassifier

    return made(
        CRFTextClassifier,
        "crf_textcat",
        nlp,
        name=name,
        model=model,
        loss=loss,
        multilabel=multilabel,
        threshold=threshold,
        exclusive_classes=exclusive_classes,
        confidence=confidence,
        explain=explain,
        max_words=max_words,
        optimizer=optimizer,
        scorer=scorer,
    )


@Language.factory(
    "crf_candidates",
    assigns=["doc.spans"],
    default_config={"component": "crf_ner", "spans_key": "crf_candidates", "min_prob": 0.01},
)
def make_crf_candidates(
    nlp: Language, name: str, component: str, spans_key: str, min_prob: Union[float, _ByLabel]
) -> "CRFCandidates":
    """Construct a CRFCandidates, which writes every span that another component finds likely to `doc.spans`, with the
    probabilities in `attrs["scores"]`. The spans may overlap. `python -m spacy crf threshold --recall` puts it before the other
    component, so that both read the same.

    component (str): Name of the other component: a `crf_ner`, `semicrf_ner` or `crf_tagger`, which stays as it is.
    spans_key (str): Key of `doc.spans`.
    min_prob (Union[float, Dict[str, float]]): Least probability, from 0 to 1. Or a table by label, with "*" for other labels.
    """
    from .candidates import CRFCandidates

    return CRFCandidates(nlp, name, component=component, spans_key=spans_key, min_prob=min_prob)
