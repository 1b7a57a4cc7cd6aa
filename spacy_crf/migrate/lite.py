"""Exports trained components for `spacy_crf.lite`, which labels words with NumPy alone, as .npz or JSON."""

import functools
import gzip
import io
import json
import re
from collections.abc import Container, Iterable, Sequence
from itertools import chain, pairwise
from operator import ne
from pathlib import Path
from typing import Any, NamedTuple, Union

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import IDS
from spacy.lang.en.lex_attrs import LEX_ATTRS as ENGLISH
from spacy.lang.en.lex_attrs import _num_words, _ordinal_words
from spacy.lang.lex_attrs import LEX_ATTRS
from spacy.language import Language
from spacy.pipeline import Sentencizer
from spacy.strings import hash_string  # pyright: ignore[reportAttributeAccessIssue]  not in its stub
from spacy.symbols import NAMES
from spacy.tokens import Doc
from spacy.training import Example

from .. import __version__, checks, lite
from ..arrays import ranges
from ..constraints.automaton import make_automaton, minimised, product, rule_graph
from ..constraints.rule_set import RuleSet
from ..errors import Errors, no_component
from ..features.clusters import WordClusters, is_of_clusters, table_read
from ..features.extractor import template_seed
from ..features.feature_index import FeatureIndex, FeatureNames
from ..features.lexemes import NGRAMS
from ..features.segment_templates import CLOSING, OPENING, WHOLE, SegmentFeatureSet, SegmentPart, SegmentTemplate
from ..features.templates import Template
from ..features.token_columns import TOKEN_ATTRIBUTES
from ..kernels.hashing import WORD_END, mix_all
from ..kernels.numerics import FIRST_HASH
from ..lite import features as lite_features
from ..models.sparse import SparseNode
from ..models.table import Table
from ..pipeline.annotation.entities import KEYS
from ..pipeline.annotation.sentences import SentenceStarts
from ..pipeline.annotation.spans import Spans
from ..pipeline.annotation.tags import TagSet, TokenTags
from ..pipeline.chain_set import ChainSetPipe
from ..pipeline.prediction import label_thresholds
from ..pipeline.scorers import attribute_getter
from ..types import Settings
from ..whole_files import write_whole
from .functions import Columns
from .lite_tokenizer import tokenizer_content

_KINDS = {"linear_chain": "chain", "semi_markov": "segments", "max_ent_text": "text", "naive_bayes": "text"}
# Templates of n-grams alone
_NGRAMS = re.compile(r"(?:seg\.\w+:)?(ngrams\d)(?:\[-?\d+\])?")
_MOST_STATES = 1000  # of a graph of rules: the square of it is a matrix
ENGLISH_NUMBERS = {
    "number_words": sorted({*_num_words, *_ordinal_words}),
    "number_endings": ["st", "nd", "rd", "th"],
}
# Attributes of tokens that templates can read where something else than one of them is written
_ATTRIBUTES_OF = {"ents": ["ent_type", "ent_iob"], "sents": ["sent_start"], "pos+morph": []}
_EXPORTED = "whose model lite can hold: a trained linear chain, chain of segments or log-linear model of texts"


class _Part(NamedTuple):
    """A part of a template, as lite reads it."""

    attribute: str
    offset: int
    kind: str = ""  # of parts of spans


class _ParsedTemplate(NamedTuple):
    """A template, as lite reads it."""

    parts: Sequence[_Part]
    once: bool = False  # whether a value counts once in a span, however often it occurs there


def export_lite(
    nlp: Language,
    components: Sequence[str] = (),
    *,
    columns: Sequence[str] = ("orth",),
    tokenizer: bool = True,
    prune: float = 0.0,
    bits: int = 32,
) -> Settings:
    """The content of an export; its numbers are arrays.

    components (Sequence[str]): Names of components; by default all of the pipeline.
    columns (Sequence[str]): Attributes of tokens in the columns of rows, "orth" for the word; with others the export reads rows
        instead of texts.
    tokenizer (bool): Whether the export reads texts, by the pipeline's tokenizer.
    prune (float): Weights whose absolute value is at most this are left out.
    bits (int): 32 for weights as they are, 16 for whole numbers that a scale multiplies.
    RAISES (ValueError): CRF710 for a component that is not in the pipeline, CRF791 for what lite cannot compute.
    """
    _check_columns(columns)
    reads_texts = tokenizer and list(columns) == ["orth"]
    described = tokenizer_content(nlp) if reads_texts else None
    finds_words = described is not None and described["kind"] == "characters"
    written: dict[str, str] = {}  # what components write, and the name of the component
    if described is not None and described.get("sentences"):
        written["sents"] = "tokenizer"
    parts = []
    for name, pipe in _exported(nlp, components, finds_words):
        if isinstance(pipe, Sentencizer):
            part = {"name": name, "kind": "sentencizer", "writes": "sents", "punct_chars": sorted(pipe.punct_chars)}
        else:
            part = _Exporter(pipe, columns, written, prune, bits).describe()
        for place in part["writes"].split(","):
            if place in written and place != "cats":
                what = f"'{place}' to write, which the component '{written[place]}' writes too"
                raise _refused(name, what, "Export one of them, by --component")
            written[place] = name
        parts.append(part)
    return {
        "format": lite.FORMAT,
        "version": lite.VERSION,
        "made_by": f"spacy_crf {__version__}",
        "lang": nlp.lang,
        "columns": list(columns),
        "tokenizer": described,
        "components": parts,
    }


def _check_columns(columns: Sequence[str]) -> None:
    """RAISES (ValueError): CRF020 for unknown columns, or if no column has the word."""
    owner = "crf export"
    attributes = ["orth", *TOKEN_ATTRIBUTES]
    for column in columns:
        expected = f"attributes of tokens: {', '.join(attributes)}"
        checks.expect(column in attributes, owner, "--columns", column, expected)
    checks.expect("orth" in columns, owner, "--columns", ",".join(columns), "with orth, the column of the word")


def _exported(nlp: Language, components: Sequence[str], finds_words: bool) -> list[tuple[str, Any]]:
    """The components to export, in the order of the pipeline.

    finds_words (bool): Whether the export has a trained tokenizer, so that components may be missing.
    RAISES (ValueError): CRF710 if there is none, CRF791 for one that lite can't hold.
    """
    # A tokenizer that has learned words can be all of a pipeline
    if not nlp.pipeline and not finds_words:
        raise no_component(_EXPORTED, [])
    for name in components:
        if name not in nlp.pipe_names:
            raise no_component(_EXPORTED, nlp.pipe_names, name)
    chosen = [(name, pipe) for name, pipe in nlp.pipeline if not components or name in components]
    for name, pipe in chosen:
        if isinstance(pipe, Sentencizer):
            continue
        how = "Name the components to export, by --component"
        if not hasattr(pipe, "sparse_features"):
            raise _refused(name, f"the factory {nlp.get_pipe_meta(name).factory}", how)
        if not pipe.is_initialized:
            raise _refused(name, "no labels and weights", "Train it")
        if pipe.model.name not in _KINDS:
            raise _refused(name, f"a model of the kind {pipe.model.name}", "Train a linear chain or segments")
    return chosen


def _refused(name: str, what: str, how: str) -> ValueError:
    """The error CRF791: lite cannot compute this part of the component."""
    return ValueError(Errors.CRF791.format(name=name, what=what, form="an export for lite", how=how))


def _check_settings(pipe: Any, written: Container[str]) -> None:
    """RAISES (ValueError): CRF791 for scores of other than sparse features, a first stage, nested spans, another decode, or
    settings that read spans which an earlier component has `written`."""
    decode = pipe.cfg.get("decode", "viterbi")
    tables = chain.from_iterable(features.tables.values() for features in pipe.feature_stores)
    reads = [table.index for table in tables]
    reads += [layer.attrs["node"] for layer in pipe.model.layers]
    is_sparse = all(isinstance(read, (FeatureIndex, SparseNode)) for read in reads)
    presets = [key for key in map(pipe.cfg.get, KEYS) if f"spans:{key}" in written]
    for is_so, what, how in (
        (not pipe.is_linear, "an encoder", "Train it on sparse features, by spacy_crf.SparseEmissions.v1"),
        (pipe.first_stage is not None, "a first stage", "Train it without second_stage"),
        (bool(pipe.cfg.get("nested")), "nested spans", "Train it without nested"),
        (decode not in ("viterbi", "spans"), f'decode = "{decode}"', 'Set decode = "viterbi" or "spans" in its config'),
        (not is_sparse, "hashed features, vectors, a kernel or trees", "Train it on sparse features without vectors"),
        (bool(presets), f"settings that read the spans {presets}", "Export it without the component that writes them"),
    ):
        if is_so:
            raise _refused(pipe.name, what, how)


def _place_written(pipe: Any) -> str:
    """Name where a component, or a chain of a set, writes its labels: "ents", "spans:KEY", "cats", "sents", or attributes."""
    annotation = pipe.annotation
    if pipe.labelled == "texts":
        return "cats"
    if isinstance(annotation, TagSet):
        return ",".join(map(_attribute_written, annotation.parts))
    if isinstance(annotation, TokenTags):
        return _attribute_written(annotation)
    if isinstance(annotation, Spans):
        return f"spans:{annotation.key}"
    return "sents" if isinstance(annotation, SentenceStarts) else "ents"


def _attribute_written(annotation: TokenTags) -> str:
    """The attribute of tokens that holds tags, "_.NAME" for an extension."""
    return annotation.attribute if annotation.writes else f"_.{annotation.attribute}"


def _states(transitions: NDArray, first: NDArray, last: NDArray) -> Settings:
    """The graph of the states of a chain, in which forbidden transitions have no arcs."""
    source, target = np.nonzero(transitions > -np.inf)
    every = np.arange(len(first))
    scores = transitions[source, target]
    return {"tag_of": every, "source": source, "target": target, "scores": scores, "first": first, "last": last}


def _choice(decoding: Any) -> dict[str, NDArray]:
    """Scores of O and the labels, by which spans may be chosen together."""
    size = 1 + len(decoding.annotation.labels)
    transitions = np.zeros((size, size))
    ends = np.zeros(size)
    if not decoding.spans_may_touch:
        transitions[np.arange(1, size), np.arange(1, size)] = -np.inf
    return {"transitions": transitions, "first": ends, "last": ends}


class _Exporter:
    """Describes one component, and collects what its templates read.

    pipe (LearningPipe): The component.
    columns (Sequence[str]): The columns of rows.
    written (dict[str, str]): What earlier components write.
    prune (float), bits (int): See `export_lite`.
    """

    def __init__(self, pipe: Any, columns: Sequence[str], written: dict[str, str], prune: float, bits: int):
        self._pipe = pipe
        self._name = pipe.name
        self._vocab = pipe.vocab
        self._written = written
        # Attributes of tokens that templates may read, and those that they do read
        written_attributes = {name for place in written for name in _ATTRIBUTES_OF.get(place, [place])}
        self._columns = {*columns, *written_attributes, "spacy"}
        self._read_columns = dict.fromkeys(columns)
        self._prune = prune
        self._bits = bits
        owner = "crf export"
        checks.number(owner, "--prune", prune)
        checks.one_of(owner, "--bits", bits, (16, 32))
        self._lists: Settings = {"gazetteers": {}, "clusters": {}}
        self._lists.update({"stop_words": [], "number_words": [], "number_endings": []})

    def describe(self) -> Settings:
        """Describe the component. RAISES (ValueError): CRF791 for a part of it that lite cannot compute."""
        pipe = self._pipe
        _check_settings(pipe, self._written)
        model = pipe.model
        node = model.attrs["node"]
        shared = node.potentials(model, {name: model.get_param(name) for name in node.traits.params})
        kind = _KINDS[model.name]
        is_set = pipe.labelled != "texts" and isinstance(pipe, ChainSetPipe)
        described: Settings = {
            "name": pipe.name,
            "kind": "set" if is_set else kind,
            "writes": _place_written(pipe),
            "labels": list(pipe.labels),
        }
        if is_set:
            described["structure"] = kind
            described["max_positive"] = pipe.cfg.get("max_positive")
            described["chains"] = []
            for member in pipe.chains:
                states = member.states
                own = {
                    name: scores[np.ix_(*[states] * scores.ndim)]
                    for name, scores in shared.items()
                    if name != "lengths"
                }
                if "lengths" in shared:
                    own["lengths"] = shared["lengths"][:, states]
                member.parts()  # takes over the settings of the set
                described["chains"].append({**self._chain(member, kind, own), "tags": states})
        else:
            described.update(self._chain(pipe, kind, shared))
        described["readers"] = [self.describe_layer(layer) for layer in model.layers]
        return {**described, **self._lists, "columns": [*self._read_columns]}

    def _chain(self, pipe: Any, kind: str, shared: dict[str, NDArray]) -> Settings:
        """Describe the labels, tags, states and thresholds of a component, or of a chain of a set.

        pipe (CRFPipe): The component or chain.
        kind (str): "chain", "segments" or "text".
        shared (dict): The transitions, firsts and lasts of its states, and for segments the scores of lengths.
        """
        annotation = pipe.annotation
        prefix = getattr(annotation, "prefix", "")
        described: Settings = {
            "writes": _place_written(pipe),
            "labels": [label.removeprefix(prefix) for label in pipe.labels],
            "scheme": None,
            "letters": "",
            "min_prob": None,
            "states": _states(shared["transitions"], shared["first"], shared["last"]),
        }
        if kind == "text":
            return described
        described["min_prob"] = label_thresholds(pipe.name, pipe.cfg["min_prob"], pipe.labels)
        rules = pipe.rules()
        of_spans = pipe.cfg.get("decode") == "spans"
        if of_spans:
            choice = _choice(pipe.decoding)
            described["states"]["choice"] = _states(**choice)
        if rules is not None:
            described["without_rules"] = described["states"]
            described["states"] = self.ruled(rules.all, shared)
            if of_spans:
                ruled = self.ruled(rules.all.of_segments_too, choice, only_hard=True)
                described["states"]["choice"] = {**ruled, "asks": rules.all.asks}
        if not annotation.space_edges:
            for name, states in self.of_blank(pipe, rules, shared).items():
                described[name]["blank"] = states
        if isinstance(annotation, SentenceStarts):
            described["scheme"] = "BILUO"  # each start is a span of one token
            described["letters"] = "U"
        elif not annotation.spans_are_tokens:
            described["scheme"] = annotation.scheme.name
            described["letters"] = annotation.scheme.prefixes
        if kind == "segments":
            described["lengths"] = shared["lengths"]
            if rules is not None:
                described["lengths"] = self.ruled_lengths(rules.all, shared["lengths"])
        return described

    # ----------------------------------------------------------------------------------------------------- templates

    def describe_layer(self, layer: Any) -> Settings:
        """Describe the tables of one layer of the model, and collect the lists that its templates read.

        RAISES (ValueError): CRF791 for templates that lite can't read.
        """
        features = layer.attrs[layer.attrs["node"].attr]
        feature_set = features.feature_set
        if isinstance(feature_set, SegmentFeatureSet):
            templates_of_tables = {
                "begins": feature_set.begins,
                "ends": feature_set.ends,
                "tokens": feature_set.tokens,
                "spans": feature_set.spans + feature_set.span_items,
            }
        else:
            templates_of_tables = {"states": feature_set.counted, "transitions": feature_set.transitions}
        tables = {}
        for name, templates in templates_of_tables.items():
            table = self._table(features.tables[name], layer.get_param(name))
            parsed_by_name = {str(template): _parsed(template) for template in templates}
            # Each template with weights has its name and keys, and gets its parts
            for template in table["templates"]:
                parsed = parsed_by_name[template["name"]]
                self._take_lists(template["name"], parsed, features)
                template["parts"] = []
                for part in parsed.parts:
                    place = [part.attribute, part.offset]
                    template["parts"].append([part.kind, *place] if part.kind else place)
                if parsed.once:
                    template["once"] = True
            if table["templates"] or name == "states":  # lite expects a table of states, even an empty one
                tables[name] = table
        return {"padding": getattr(feature_set, "padding", True), "tables": tables}

    def _table(self, table: Table, weights: NDArray) -> Settings:
        """The weights of a table that pruning and rounding leave, by template and values."""
        kept = np.abs(weights) > self._prune
        scale = 1.0
        if self._bits == 16 and len(weights):
            scale = float(np.abs(weights).max()) / np.iinfo(np.int16).max or 1.0
            weights = np.round(weights / scale).astype(np.int16)
            kept &= weights != 0
        table = table.pruned(kept)
        weights = weights[kept]
        names = _with_marks(table.index.feature_names, table.index.keys)
        values = [names.strings[part] for part in names.parts.tolist()]
        keys = [lite_features.JOINT.join(values[begin:end]) for begin, end in pairwise(names.part_starts.tolist())]
        template_of = names.template_of.tolist()
        order = np.array(sorted(range(len(keys)), key=lambda row: (template_of[row], keys[row])), dtype=np.int64)
        pairs = ranges(table.pair_starts[order], table.pair_starts[order + 1])
        keys_of_templates: dict[str, list[str]] = {}
        for row in order.tolist():
            keys_of_templates.setdefault(names.templates[template_of[row]], []).append(keys[row])
        content = {
            "templates": [{"name": name, "keys": template_keys} for name, template_keys in keys_of_templates.items()],
            "counts": _narrow(np.diff(table.pair_starts)[order]),
            "columns": _narrow(table.pair_columns[pairs]),
            "weights": weights[pairs],
        }
        if self._bits == 16:
            content["scale"] = scale
        return content

    def _take_lists(self, template: str, parsed: _ParsedTemplate, features: Any) -> None:
        """Take over the lists that a template reads.

        RAISES (ValueError): CRF791 for a template that reads what lite does not know.
        """
        for attribute, *_ in parsed.parts:
            if attribute.startswith("in:"):
                name = attribute.removeprefix("in:")
                listed = features.gazetteers[name]
                entries = [[list(words), label] for words, label in listed.entries]
                self._lists["gazetteers"][name] = {"attribute": listed.attribute, "entries": entries}
            elif is_of_clusters(attribute):
                self._take_clusters(table_read(attribute), features.clusters)
            elif attribute in self._columns:
                self._read_columns[attribute] = None
            elif not attribute:
                continue
            elif attribute in lite_features.NGRAMS and len(parsed.parts) > 1:
                what = f"the template {template}, which joins n-grams with something else"
                raise _refused(self._name, what, "Train it without that template")
            else:
                self._check_attribute(template, attribute)

    def _check_attribute(self, template: str, attribute: str) -> None:
        """Take over the word lists that an attribute needs.

        RAISES (ValueError): CRF791 for an attribute that lite does not know, or that the language computes by its own code.
        """
        plain = attribute.removeprefix("if:")
        known = (
            plain in lite_features.STRINGS
            or plain in lite_features.NGRAMS
            or plain in lite_features.FLAGS
            or plain in ("is_stop", "like_num")
        )
        how = "Train it without that template"
        if attribute in TOKEN_ATTRIBUTES:
            how = f"Name the column that has it, such as --columns orth,{attribute}, or train it without that template"
        if not known:
            raise _refused(self._name, f"the template {template}, which reads '{attribute}' from spaCy's Docs", how)
        number = IDS.get(plain.upper())
        getter = self._vocab.lex_attr_getters.get(number)  # pyright: ignore[reportAttributeAccessIssue]  not in its stub
        if plain == "is_stop" and isinstance(getter, functools.partial):
            self._lists["stop_words"] = sorted(getter.keywords.get("stops", ()))
        elif plain == "like_num" and getter is ENGLISH[IDS["LIKE_NUM"]]:
            self._lists.update(ENGLISH_NUMBERS)
        elif number in LEX_ATTRS and getter is not LEX_ATTRS[number]:
            lang = f"'{self._vocab.lang}'"
            raise _refused(self._name, f"the template {template}, for which the language {lang} has its own code", how)

    def _take_clusters(self, name: str, clusters: Settings) -> None:
        """Take over the table of clusters with this name."""
        given = WordClusters.from_dict(clusters[name].to_dict())
        # Words that are symbols of spaCy have its numbers in place of hashes
        words = [hash_string(NAMES[word]) if word < len(NAMES) else word for word in given.words.tolist()]
        self._lists["clusters"][name] = {
            "digits": given.digits,
            "paths": list(given.paths),
            "words": np.array(words, dtype=np.uint64),
            "numbers": given.numbers,
        }

    # ------------------------------------------------------------------------------------------------- white space

    def of_blank(self, pipe: Any, rules: Any, shared: dict[str, NDArray]) -> dict[str, Settings]:
        """Make the states for texts with white space, at which no span begins or ends.

        pipe (CRFPipe): The component.
        rules (Rules): Its rules, or None.
        shared (dict): The transitions, firsts and lasts of the chain.
        RETURNS (dict): The "states" and, if there are rules, the states "without_rules". "may" says which states blank tokens
            (row 0) and other tokens (row 1) may have.
        """
        bridges = pipe.decoding.bridges
        transitions = shared["transitions"]
        first = shared["first"]
        last = shared["last"]
        graph = bridges.graph
        if graph is not None:
            scores_of_arcs = transitions[graph.tag_of[graph.source], graph.tag_of[graph.target]]
            transitions = np.full((len(graph.tag_of), len(graph.tag_of)), -np.inf)
            transitions[graph.source, graph.target] = scores_of_arcs
            first = first[graph.tag_of] + graph.first
            last = last[graph.tag_of] + graph.last
        graphs = {"states": _states(transitions, first, last)}
        if rules is not None:
            wide_rules = rules if graph is None else rules.over(pipe.decoding.over_bridges())
            wide_scores = {"transitions": transitions, "first": first, "last": last}
            graphs = {"states": self.ruled(wide_rules.all, wide_scores), "without_rules": graphs["states"]}
        may = np.stack([bridges.at_blank, bridges.elsewhere]).astype(np.uint8)
        for states in graphs.values():
            states["may"] = may[:, states["tag_of"]]
            states["tag_of"] = bridges.tag_of[states["tag_of"]]
        return graphs

    # --------------------------------------------------------------------------------------------------------- rules

    def ruled(self, rules: RuleSet, shared: dict[str, NDArray], *, only_hard: bool = False) -> Settings:
        """Make the graph of a chain under rules, whose states are pairs of a tag and a state of the rules' joint automaton.

        rules (RuleSet): The rules, which automata express.
        shared (dict): The transitions, firsts and lasts of the chain.
        only_hard (bool): Whether only the rules count that must not be broken.
        RETURNS (dict): The tag of each state, the sources, targets and scores of the arcs, and the firsts and lasts.
        RAISES (ValueError): CRF791 for rules that read tokens, have no automaton, or are left out of probabilities, and for a
            graph that is too large.
        """
        how = f"Remove it from [components.{self._name}.constraints] and test whether the labels are good enough"
        for rule in rules.rules:
            if rule.global_ or rule.reads_pattern or rule.reads_tags:
                raise _refused(self._name, f"the rule '{rule.name}' ({rule.kind})", how)
        if "sents" in self._written and self._pipe.annotation.scores_prefix != "sents":
            for rule, _, _ in rules.automata:
                if not rule.in_sentence:
                    what = f"the rule '{rule.name}' ({rule.kind}) of whole texts, whose sentences are found before"
                    raise _refused(self._name, what, f'Set per = "sentence" in it, or {how[0].lower()}{how[1:]}')
        for rule in rules.left_out:  # probabilities would know it here
            raise _refused(self._name, f"the rule '{rule.name}', which its probabilities leave out", how)
        joint = make_automaton(1, rules.tags.n_events)
        most_states = _MOST_STATES // len(rules.allowed)
        kept = frozenset(rule.place for rule in rules.rules if rule.hard or not only_hard)
        for rule, automaton, _ in rules.automata:
            if rule.place not in kept:
                continue
            larger = product(joint, automaton, max_states=8 * most_states)
            joint = None if larger is None else minimised(larger)
            if joint is None or joint.n_states > most_states:
                what = (
                    f"rules whose automata, up to that of '{rule.name}', have more than {most_states} states together"
                )
                raise _refused(self._name, what, how)
        # Some rules need no automaton: they forbid transitions and first tags
        masks = rules._masks(kept, None)
        transitions = shared["transitions"]
        first = shared["first"]
        if masks.transitions is not None:
            transitions = transitions + masks.transitions
            first = first + masks.first
        graph = rule_graph(rules.tags, joint, rules.allowed)
        # The last tag is the break between sentences, which texts of lite do not have. Without it other states keep their numbers
        tag_of = graph.tag_of
        is_tag = tag_of < len(first)
        inside = is_tag[graph.source] & is_tag[graph.target]
        source = graph.source[inside]
        target = graph.target[inside]
        scores = graph.scores[inside] + transitions[tag_of[source], tag_of[target]]
        is_possible = scores > -np.inf
        return {
            "tag_of": tag_of[is_tag],
            "source": source[is_possible],
            "target": target[is_possible],
            "scores": scores[is_possible],
            "first": graph.first[is_tag] + first[tag_of[is_tag]],
            "last": graph.last[is_tag] + shared["last"][tag_of[is_tag]],
        }

    def ruled_lengths(self, rules: RuleSet, lengths: NDArray) -> NDArray:
        """The scores of lengths (float64[K, S]), less the prices of rules that bound lengths."""
        for rule in rules.local:
            if rule.bounds_length:
                lengths = lengths + np.where(rule.broken_lengths(rules.tags, len(lengths)), rule.price, 0.0)
        return lengths


def _with_marks(names: FeatureNames, keys: NDArray[np.uint64]) -> FeatureNames:
    """The names of features (uint64[F]) with marks before and behind words that no other character is: names have "^" and "$",
    which words have too."""
    strings = list(names.strings)
    parts = names.parts.copy()
    for number, template in enumerate(names.templates):
        match = _NGRAMS.fullmatch(template)
        if match is None:
            continue
        size = NGRAMS[match[1]]
        rows = []
        texts = []
        for row in np.flatnonzero(names.template_of == number).tolist():
            text = strings[parts[names.part_starts[row]]]
            if len(text) == size:  # texts of other lengths are positions outside the text
                rows.append(row)
                texts.append(text)
        points = np.array([[*map(ord, text)] for text in texts], dtype=np.uint64).reshape(len(texts), size)
        # Try marks in place of the first and the last character: the right spelling has the hash of the feature
        for first, last in ((True, True), (True, False), (False, True)):
            candidates = points.copy()
            candidates[(points[:, 0] == ord("^")) & first, 0] = WORD_END
            candidates[(points[:, -1] == ord("$")) & last, -1] = WORD_END
            hashes = np.full(len(texts), FIRST_HASH, dtype=np.uint64)
            for column in candidates.T:
                mix_all(hashes, np.ascontiguousarray(column))
            features = np.full(len(texts), template_seed(template), dtype=np.uint64)
            mix_all(features, hashes)
            is_right = (features == keys[rows]) & (candidates != points).any(axis=1)
            for n in np.flatnonzero(is_right).tolist():
                before = lite_features.BEFORE if candidates[n, 0] == WORD_END else texts[n][0]
                behind = lite_features.BEHIND if candidates[n, -1] == WORD_END else texts[n][-1]
                text = before + texts[n][1:-1] + behind
                parts[names.part_starts[rows[n]]] = len(strings)
                strings.append(text)
    return names._replace(strings=strings, parts=parts)


def _parsed(template: Union[Template, SegmentTemplate]) -> _ParsedTemplate:
    """A template of tokens or of spans, as lite reads it."""
    if isinstance(template, SegmentTemplate):
        return _ParsedTemplate([*map(_span_part, template.parts)])
    return _ParsedTemplate([_Part(*part) for part in template.parts], once="seg.contains:" in str(template))


def _span_part(part: SegmentPart) -> _Part:
    """A part of a template of spans, by the kinds that lite knows; others keep theirs, and are refused."""
    if part.kind in WHOLE:
        return _Part(WHOLE[part.kind], offset=0, kind="whole")
    if part.kind in OPENING or part.kind in CLOSING:
        attribute, offset = part.of_token
        return _Part(attribute, offset, "first" if part.kind in OPENING else "last")
    if part.kind in ("length", "in"):
        return _Part(f"in:{part.name}" if part.name else "", offset=0, kind=part.kind)
    return _Part(f"seg.{part.kind}:{part.name}", offset=0, kind=part.kind)


def _narrow(numbers: NDArray) -> NDArray:
    """The numbers in the smallest type of unsigned integers that holds them."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))


class Check(NamedTuple):
    """How a component and its export label annotated texts."""

    component: str
    texts: int
    different: int  # texts with other labels
    before: float  # F1 of the component, or accuracy where each token or text has a label
    after: float  # F1 of the export


def compare_lite(nlp: Language, parse: lite.Parser, examples: Sequence[Example]) -> list[Check]:
    """Label annotated texts by the components of an export, in the pipeline and in the export."""
    columns = Columns(parse.columns)
    finds_sentences = any(component.writes == "sents" for component in parse.components.values())
    docs = [*nlp.pipe(example.predicted for example in examples)]
    parsed = []  # for each text its sequences
    for doc in docs:
        sequences = [[*zip(*rows)] for rows in columns.read(doc)]
        if finds_sentences:  # as components of the export
            sequences = [[*chain.from_iterable(sequences)]]
        parsed.append(parse.batch(sequences))
    found = []
    for name, component in parse.components.items():
        gold = [_labels_of(component.writes, example.reference) for example in examples]
        ours = [_labels_of(component.writes, doc) for doc in docs]
        theirs = [_labels_by(component.writes, sequences) for sequences in parsed]
        different = sum(map(ne, ours, theirs))
        found.append(Check(name, len(docs), different, _f1(gold, ours), _f1(gold, theirs)))
    return found


def _labels_of(writes: str, doc: Doc) -> set[tuple]:
    """The labels that a Doc has where a component writes: of spans, of starts of sentences, of tokens, or the best category."""
    kind, _, key = writes.partition(":")
    if kind == "cats":
        return {(max(doc.cats, key=doc.cats.__getitem__),)} if doc.cats else set()
    if kind == "sents":
        return {(token.i,) for token in doc if token.is_sent_start and token.i}
    if kind in ("ents", "spans"):
        spans = doc.spans.get(key, ()) if kind == "spans" else doc.ents
        return {(span.start, span.end, span.label_) for span in spans}
    getters = [attribute_getter(name.removeprefix("_.")) for name in writes.split(",")]
    return {(token.i, *(get(token) for get in getters)) for token in doc}


def _labels_by(writes: str, sequences: Sequence[lite.Parsed]) -> set[tuple]:
    """Collect the labels that an export gave to a text, whose sequences it parsed one by one."""
    kind, _, key = writes.partition(":")
    labels = set()
    first = 0  # first token of a sequence
    for parsed in sequences:
        tokens = parsed.tokens
        number_of_start = {token.start: n for n, token in enumerate(tokens, start=first)}
        number_of_end = {token.end: n for n, token in enumerate(tokens, start=first + 1)}
        if kind == "cats":
            labels = {(next(iter(parsed.cats)),)}
        elif kind == "sents":
            labels |= {(number_of_start[sentence.start],) for sentence in parsed.sentences[1:]}
        elif kind in ("ents", "spans"):
            spans = parsed.spans[key] if kind == "spans" else parsed.entities
            labels |= {(number_of_start[span.start], number_of_end[span.end], span.label) for span in spans}
        else:
            names = writes.split(",")
            labels |= {(first + n, *map(token.attributes.get, names)) for n, token in enumerate(tokens)}
        first += len(tokens)
    return labels


def _f1(gold: list[set[tuple]], found: list[set[tuple]]) -> float:
    """F1 = 2 right / (gold + found), over all texts."""
    n_right = sum(len(a & b) for a, b in zip(gold, found))
    n_labels = sum(map(len, gold)) + sum(map(len, found))
    return 2 * n_right / max(1, n_labels)


# --------------------------------------------------------------------------------------------------------------- files


def write_lite(content: Settings, path: Path, form: str) -> None:
    """Write an export. form (str): "npz", or "json", which is gzipped if the name of the file ends with .gz."""
    file = io.BytesIO()
    if form == "npz":
        arrays: Settings = {}
        text = json.dumps(_parted(content, "", arrays), ensure_ascii=False, separators=(",", ":"))
        np.savez_compressed(file, content=np.frombuffer(text.encode("utf8"), dtype=np.uint8), **arrays)
    else:
        text = as_json(content)
        file.write(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
    write_whole(path, file.getvalue())


def _parted(content: Any, place: str, arrays: dict[str, NDArray]) -> Any:
    """The content without its arrays, which are added to `arrays` under the names of their places."""
    if isinstance(content, np.ndarray):
        arrays[place] = content.astype(content.dtype.newbyteorder("<"))
        return None
    if not isinstance(content, (dict, list)):
        return content
    items: Iterable = content.items() if isinstance(content, dict) else enumerate(content)
    found = [(key, _parted(value, f"{place}/{key}" if place else str(key), arrays)) for key, value in items]
    return dict(found) if isinstance(content, dict) else [value for _, value in found]


def as_json(content: Settings) -> bytes:
    """The content of an export in JSON."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=_listed, allow_nan=False)
    return text.encode("utf8")


def _listed(array: NDArray) -> list[Any]:
    """An array as a list for JSON: hashes (uint64) in hexadecimal digits, other numbers as they are, and None for -inf."""
    if array.dtype == np.uint64:
        return [f"{number:016x}" for number in array.tolist()]
    if array.ndim > 1:
        return [*map(_listed, array)]
    # The text of a float32 has the fewest digits that identify it; its value as float would be written with 17
    numbers = [float(str(number)) for number in array] if array.dtype == np.float32 else array.tolist()
    return [None if number == -np.inf else number for number in numbers]
