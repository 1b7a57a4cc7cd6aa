"""The command `init-config`, which writes configs: for a component and a way to learn, or for annotated texts."""
# pyright: reportInvalidTypeForm=false

import re
import sys
from pathlib import Path
from typing import Any, Optional

from spacy.cli._util import Opt
from wasabi import msg

from .. import checks
from ..errors import Errors
from ..whole_files import write_whole
from .configs import (
    LEARNED_TOKENIZER,
    NO_WORDS,
    OPTIMIZE,
    PRESETS,
    SEGMENTERS,
    ComponentName,
    Words,
    config_files,
    fit_command,
    in_language,
    make_config,
    train_command,
)
from .look import look
from .shared import blank, check_writable, choice, command

PresetName = choice("PresetName", PRESETS["crf_ner"])
OptimizeName = choice("OptimizeName", OPTIMIZE)
SegmenterName = choice("SegmenterName", SEGMENTERS)
FileName = choice("FileName", sorted(config_files()))


@command("init-config")
def init_config_cli(
    component: Optional[ComponentName] = Opt(None, help="The component of the pipeline."),
    preset: Optional[PresetName] = Opt(None, help="The way to learn; by default fast."),
    optimize: Optional[OptimizeName] = Opt(None, help="By default efficiency; accuracy finds more, and is slower."),
    file: Optional[FileName] = Opt(None, help="Copy a file of the package in place of all this."),
    for_: Optional[list[Path]] = Opt(
        None, "--for", help="Annotated texts that choose the config, as for `fit`; may be repeated.", exists=True
    ),
    clusters: Optional[list[str]] = Opt(None, help="A table of clusters, SOURCE or NAME=SOURCE; may be repeated."),
    vectors: Optional[str] = Opt(None, help="A pipeline with vectors, or a folder."),
    gazetteers: Optional[Path] = Opt(None, help="A folder of lists of phrases."),
    lookups: Optional[Path] = Opt(None, help="A folder that `lookups` has written."),
    output: str = Opt("-", "--output", "-o", help="The file, - for the standard output."),
    lang: Optional[str] = Opt(None, help="Language of the tokenizer; by default en, with --for shown by the words."),
    segmenter: Optional[SegmenterName] = Opt(None, help="zh: what cuts texts into tokens; by default char."),
    force: bool = Opt(False, "--force", help="Replace an existing file."),
) -> None:
    """Write a complete, commented config for `spacy train`. It is made for a component and a way to learn.

    fast: sparse features and L-BFGS; accurate: an encoder beside them; pool: an encoder that learns alone beside them; neural:
    an encoder alone; words: clusters, vectors and gazetteers; stream: a corpus that may be larger than the memory; partial:
    incomplete annotation. `--optimize accuracy` decides entities by their probability, and tags token by token.
    """
    checks.expect(
        segmenter is None or lang == "zh", "init-config", "--segmenter", segmenter, "left out but for --lang zh"
    )
    given_lang = lang
    lang = lang or "en"
    if file is None or LEARNED_TOKENIZER not in config_files()[file.value].read_text(encoding="utf8"):
        blank(lang, {} if segmenter is None else {"segmenter": segmenter.value})
    options: dict[str, Any] = {"--component": component, "--file": file, "--preset": preset, "--optimize": optimize}
    options["--for"] = for_
    options |= {"--clusters": clusters, "--vectors": vectors, "--gazetteers": gazetteers, "--lookups": lookups}
    used = [option for option, value in options.items() if value is not None]
    name = "config.cfg" if output == "-" else output
    if used == ["--file"]:
        file_name = options["--file"].value
        text = config_files()[file_name].read_text(encoding="utf8")
        # Files name themselves in the commands of their first lines. A function, since `name` may hold backslashes
        text = re.sub(rf"[\w/]*configs/{file_name}\.cfg", lambda match: name, text)
    elif used == ["--for"]:
        findings = look(for_ or (), given_lang)
        text = findings.config(name)
        for line in findings.lines() if output != "-" else ():
            msg.info(line)
        lang = findings.lang or lang
    elif component is None or file is not None or for_ is not None:
        raise ValueError(Errors.CRF745.format(given=" and ".join(used) or "nothing"))
    else:
        gathered = NO_WORDS if lookups is None else Words.gathered(lookups)
        words = Words(
            clusters=(*gathered.clusters, *(clusters or ())),
            vectors=vectors or gathered.vectors,
            gazetteers=gazetteers or gathered.gazetteers,
        )
        preset_name = (preset or PresetName.fast).value
        optimized_for = (optimize or OptimizeName.efficiency).value
        text = make_config(component.value, preset_name, words, optimized_for, lang, name)
    text = in_language(text, lang, None if segmenter is None else segmenter.value)
    if output == "-":
        sys.stdout.write(text)
        return
    path = Path(output)
    check_writable(path)
    if path.exists() and not force:
        raise ValueError(Errors.CRF750.format(path=path, advice="--force replaces it"))
    write_whole(path, text.encode("utf8"))
    msg.good(f"Config in {path}. Next: {train_command(name)}")
    if fit_command(name) in text:
        msg.info(f"Without a dev set, and more accurate with few texts: {fit_command(name)}")
