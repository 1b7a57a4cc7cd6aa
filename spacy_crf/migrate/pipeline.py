"""Makes pipelines with a `crf_tagger` or `crf_ner` from weights of other programs, and exports the weights of components."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Optional

import numpy as np
import spacy
from numpy.typing import NDArray
from spacy.language import Language
from spacy.strings import get_string_id
from spacy.tokens import Doc

from ..arrays import ranges
from ..errors import Errors, Warnings, no_component, shown
from ..features.extractor import template_seed
from ..features.feature_index import FeatureIndex, FeatureNames
from ..features.items import hash_item, is_item
from ..features.templates import parse_template
from ..kernels.hashing import mix_all
from ..models.table import Table
from ..pipeline.pipe import LearningPipe
from .foreign import ForeignModel, Weighted
from .functions import PAIRS, SOURCE
from .native import NOTHING, Native, NativeLines, Use

OUTSIDE = "O"
_OF_SCHEME = re.compile(rf"[BILUES]-.+|{OUTSIDE}", re.DOTALL)
FORBIDDEN = -1e4  # exp(FORBIDDEN) is 0


def build_pipeline(
    model: ForeignModel,
    functions: dict[str, dict[str, Any]],
    *,
    lang: str = "en",
    attribute: str = "tag",
    reads: Sequence[str] = (),
    native: Native = NOTHING,
    entities: bool = False,
    program: Optional[str] = None,
) -> Language:
    """Make a pipeline whose component gives the same labels, with the same probabilities, as the other program.

    functions (dict[str, dict]): Blocks of registered functions that make the feature names, by SOURCE and PAIRS.
    attribute (str): The attribute of tokens that receives the labels.
    reads (Sequence[str]): Attributes that the functions read. If `attribute` is one of them, the labels overwrite it.
    native (Native): Native templates in place of the functions.
    entities (bool): Whether the component is a crf_ner, and an entity is a run of tokens with one label other than "O".
    program (str): The program whose words the tokenizer finds, one of `tokenizer.WORDS_OF`; None for spaCy's tokens.
    RAISES (ValueError): CRF898 for entities with labels that are tags, such as B-PER.
    """
    if entities and all(map(_OF_SCHEME.fullmatch, model.labels)):
        raise ValueError(Errors.CRF898.format(labels=shown(model.labels)))
    # Lines that no native template replaces are made by functions, as in the other program
    replayed = {name: [f"fn:{name}[0]"] if name in functions else [] for name in (SOURCE, PAIRS)}
    features = {
        "@misc": "spacy_crf.features.v1",
        "templates": [*native.of_labels.templates, *replayed[SOURCE]],
        "transitions": [*native.of_pairs.templates, *replayed[PAIRS]],
        "padding": native.padding,
        "functions": {**functions, **native.functions},
    }
    tokenizer = {} if program is None else {"@tokenizers": "spacy_crf.ProgramTokenizer.v1", "program": program}
    nlp = spacy.blank(lang, config={"nlp": {"tokenizer": tokenizer}})
    settings: dict[str, Any] = {"model": {"emissions": {"features": features}}}
    if entities:
        settings["scheme"] = "IO"
    else:
        settings["attribute"] = attribute
        settings["overwrite"] = attribute in reads
    component: Any = nlp.add_pipe("crf_ner" if entities else "crf_tagger", config=settings)
    if entities:  # as the other program, which knows no white space
        component.cfg["space_edges"] = True
    for label in model.labels:
        if not (entities and label == OUTSIDE):
            component.add_label(label)
    _set_weights(component, model, native)
    return nlp


def _set_weights(component: LearningPipe, model: ForeignModel, native: Native) -> None:
    """Set the tables of features and the weights of a component, whose labels may be in another order than the model's."""
    labels = component.annotation.tag_labels()
    foreign_labels = model.labels
    model = _with_labels(model, labels)
    chain: Any = component.model
    n_states = len(labels)
    [emissions] = chain.layers
    chain.attrs["node"].resize(chain, n_states)
    tables = {}
    features = emissions.attrs["features"]
    for name, source, weighted, lines in (
        ("states", SOURCE, model.states, native.of_labels),
        ("transitions", PAIRS, model.pairs, native.of_pairs),
    ):
        tables[name], weights = _table(weighted, source, lines, features.tables[name].n_columns)
        emissions.set_param(name, weights)
    emissions.attrs["features"] = features.with_tables(tables, n_states=n_states)
    # A label that the other program does not know never begins a sequence
    first = np.where(np.isin(labels, foreign_labels), 0.0, FORBIDDEN)
    for name, weights in (("transitions", model.transitions), ("first", first)):
        chain.set_param(name, weights.astype(np.float32))
    chain.attrs["observed"] = (np.vstack([model.transitions, first, np.zeros(n_states)]) != 0).astype(np.uint8)


def _with_labels(model: ForeignModel, labels: list[str]) -> ForeignModel:
    """The model with its labels in another order. A label that it does not have never occurs: steps to it, and from it, have
    weights so low that no other weights can compensate them."""
    size = len(labels)
    new = np.array([labels.index(label) for label in model.labels])  # the new number of each label
    transitions = np.full((size, size), FORBIDDEN)
    transitions[np.ix_(new, new)] = model.transitions
    before, after = divmod(model.pairs.columns, len(model.labels))
    return replace(
        model,
        labels=labels,
        states=replace(model.states, columns=new[model.states.columns]),
        transitions=transitions,
        pairs=replace(model.pairs, columns=new[before] * size + new[after]),
    )


def _table(weighted: Weighted, source: str, native: NativeLines, n_columns: int) -> tuple[Table, NDArray[np.float32]]:
    """Make the table of native features, with the weights other than 0 of the foreign features for which they stand. A native
    feature that stands for several foreign ones gets the sum of their weights.

    weighted (Weighted): The foreign features and their weights.
    source (str): Name of the function that makes the features of replayed lines.
    native (NativeLines): The native templates and features.
    n_columns (int): Number of labels, or of pairs of labels.
    RETURNS (Tuple[Table, float32[W]]): The table and its weights.
    """
    # The weights of each foreign feature side by side
    sorted_weights = np.flatnonzero(weighted.weights != 0)
    sorted_weights = sorted_weights[np.argsort(weighted.rows[sorted_weights], kind="stable")]
    sorted_rows = weighted.rows[sorted_weights]
    # A feature of a replayed line keeps its name, as a value of the function
    uses = []
    for row in np.unique(sorted_rows).tolist():
        if weighted.names[row].startswith(native.heads):
            uses.append(Use(f"fn:{source}[0]", (weighted.names[row],), row))
    uses += native.uses
    numbers: dict[tuple[str, tuple[str, ...]], int] = {}  # of native features, by template and values
    features = [numbers.setdefault((use.template, use.values), len(numbers)) for use in uses]
    rows = [use.row for use in uses]
    begins = np.searchsorted(sorted_rows, rows, side="left")
    ends = np.searchsorted(sorted_rows, rows, side="right")
    copied = sorted_weights[ranges(begins, ends)]  # the foreign weights of each use
    # The cell of a weight is in the row of its native feature and in the column of its labels
    cells = np.repeat(np.array(features, dtype=np.int64), ends - begins) * n_columns + weighted.columns[copied]
    used_cells, cell_of_weight = np.unique(cells, return_inverse=True)
    weights = np.bincount(cell_of_weight, weights=weighted.weights[copied], minlength=len(used_cells))
    starts = np.searchsorted(used_cells, np.arange(len(numbers) + 1) * n_columns)
    index = _index(list(numbers), source)
    return Table(index, starts, (used_cells % n_columns).astype(np.int32), n_columns), weights.astype(np.float32)


def _index(features: list[tuple[str, tuple[str, ...]]], source: str) -> FeatureIndex:
    """Make an index of features: their hashes, as extraction computes them, and their names.

    features (list[tuple[str, tuple[str, ...]]]): The template and the values of each feature.
    source (str): Name of the function that makes the features of replayed lines.
    """
    template_numbers: dict[str, int] = {}  # in order of occurrence
    template_of = np.array(
        [template_numbers.setdefault(template, len(template_numbers)) for template, _ in features], dtype=np.int32
    )
    keys = np.zeros(len(features), dtype=np.uint64)
    # Template by template, since the hash of a feature mixes a seed of its template with its values
    for text, number in template_numbers.items():
        [template] = parse_template(text)
        [rows] = np.nonzero(template_of == number)
        hashes = np.full(len(rows), template_seed(template), dtype=np.uint64)
        for n, part in enumerate(template.parts):
            values = [_value(part.attribute, features[row][1][n], source) for row in rows.tolist()]
            mix_all(hashes, np.array(values, dtype=np.uint64))
        keys[rows] = hashes
    # The values of all features, as numbers of different strings
    strings: dict[str, int] = {}
    parts = []
    starts = [0]
    for _, values in features:
        parts += [strings.setdefault(value, len(strings)) for value in values]
        starts.append(len(parts))
    names = FeatureNames(
        templates=list(template_numbers),
        template_of=template_of,
        part_starts=np.array(starts, dtype=np.int64),
        parts=np.array(parts, dtype=np.int32),
        strings=list(strings),
    )
    return FeatureIndex(keys, names)


def _value(attribute: str, text: str, source: str) -> int:
    """The number by which a feature index knows the value `text` of an attribute.

    source (str): The function that makes the features of attributes such as ``fn:NAME``.
    """
    if attribute == "bias":
        return int(text)
    return hash_item(source, text) if is_item(attribute) else get_string_id(text)


# ---------------------------------------------------------------------------------------------------------- export


_WITHOUT_PAIRS = "Train it with transitions = [] in [components.{name}.model.emissions.features]"
_WITHOUT_RULES = "Remove the block [components.{name}.constraints] from the config of the pipeline"


def weights_of(nlp: Language, component: Optional[str] = None) -> ForeignModel:
    """Export the weights of a component for another program. Features keep their native names. A transition that the tag scheme
    forbids gets a weight so low that no other weights can compensate it.

    RAISES (ValueError): CRF710 if no component can be exported, CRF858 if the component has rules or features of pairs of labels.
    """
    tagger = exported(nlp, component)
    chain: Any = tagger.model
    [emissions] = chain.layers
    features = emissions.attrs["features"]
    first = chain.get_param("first")
    last = chain.get_param("last")
    allowed = tagger.annotation.mask()
    for has_part, what, how in (
        (bool(features.feature_set.transitions), "features of pairs of labels", _WITHOUT_PAIRS),
        (tagger.rules() is not None, "rules", _WITHOUT_RULES),
    ):
        if has_part:
            raise ValueError(Errors.CRF858.format(name=tagger.name, what=what, how=how.format(name=tagger.name)))
    first = np.where(allowed.first, first, FORBIDDEN)
    last = np.where(allowed.last, last, FORBIDDEN)
    table = features.states
    names = _plain_names(table.index)
    rows = table.rows_of_pairs()
    columns = table.pair_columns.astype(np.int64)
    weights = [emissions.get_param("states").astype(np.float64)]
    warn_of_decoding(tagger, "CRFsuite")
    # CRFsuite has no weights for first and last labels: they become features of the first and the last token
    states = np.arange(len(first))
    for name, of_labels in (("__BOS__", first), ("__EOS__", last)):
        if of_labels.any():
            rows = np.append(rows, np.full(len(states), len(names)))
            columns = np.append(columns, states)
            weights.append(of_labels.astype(np.float64))
            names.append(name)
    transitions = np.where(allowed.transitions, chain.get_param("transitions"), FORBIDDEN).astype(np.float64)
    weighted = Weighted(names, rows, columns, np.concatenate(weights))
    return ForeignModel("spacy_crf", tagger.tags(), weighted, transitions)


def _plain_names(index: FeatureIndex) -> list[str]:
    """Names of features. If a function made the feature, the name lacks its template, so that a model imported from CRFsuite is
    exported with the names it had."""
    return [name.removeprefix(f"fn:{SOURCE}[0]=") for name in index.names()]


def features_of(nlp: Language, docs: Iterable[Doc], component: Optional[str] = None) -> list[list[dict[str, float]]]:
    """Compute the named features of tokens, as input for the program to which a component was exported.

    docs (Iterable[Doc]): Docs with the annotation of the components in front of it.
    RETURNS (list[list[dict[str, float]]]): For each sentence, the features of its tokens.
    """
    tagger = exported(nlp, component)
    [emissions] = tagger.model.layers
    features = emissions.attrs["features"]
    names = _plain_names(features.states.index)
    sequences = []
    for doc in docs:
        starts, found, _ = features.look_up([doc])
        rows, values, token_starts = found["states"]
        values = np.ones(len(rows)) if values is None else values
        tokens: list[dict[str, float]] = [{} for _ in doc]
        for t, token in enumerate(tokens):
            for n in range(token_starts[t], token_starts[t + 1]):
                name = names[rows[n]]
                token[name] = token.get(name, 0.0) + float(values[n])
        for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist()):
            if begin < end:
                tokens[begin]["__BOS__"] = tokens[end - 1]["__EOS__"] = 1.0
                sequences.append(tokens[begin:end])
    return sequences


def exported(nlp: Language, component: Optional[str]) -> LearningPipe:
    """Find the component to export. RAISES (ValueError): CRF710 if no component can be exported."""
    fitting: list[Any] = [pipe for name, pipe in nlp.pipeline if component in (None, name) and pipe_fits(pipe)]
    if not fitting:
        wanted = "whose model CRFsuite and Wapiti can hold: a trained linear chain on sparse features alone, not on hashed ones"
        raise no_component(wanted, nlp.pipe_names, component)
    return fitting[0]


def warn_of_decoding(tagger: LearningPipe, form: str) -> None:
    """Warn of settings of a component that another program can't have, since it labels by the best path.

    form (str): The name of the program, for the message.
    """
    plain = {"decode": "viterbi", "min_prob": 0.0}
    settings = [f"{name} = {tagger.cfg[name]!r}" for name in plain if tagger.cfg[name] != plain[name]]
    if settings:
        tagger.warn(Warnings.CRFW858, settings=" and ".join(settings), form=form)
    if not tagger.annotation.space_edges:
        tagger.warn(Warnings.CRFW900, form=form)


def pipe_fits(pipe: Any) -> bool:
    """Whether a component can be exported: an initialized linear chain on sparse features alone."""
    if not hasattr(pipe, "sparse_features") or pipe.chains[0] is not pipe:
        return False
    if pipe.model.name != "linear_chain" or len(pipe.model.layers) > 1:
        return False
    states = pipe.sparse_features and pipe.sparse_features.states
    return pipe.is_initialized and isinstance(getattr(states, "index", None), FeatureIndex)
