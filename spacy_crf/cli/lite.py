"""Commands that export components, and label rows of columns."""

from pathlib import Path
from typing import Optional

from spacy.cli._util import Arg, Opt
from wasabi import msg

from .. import checks
from ..errors import counted
from ..whole_files import write_whole
from .shared import ModelArgument, check_writable, command, load_pipeline
from .texts import read_examples

FORMS = ("npz", "json", "crfsuite")
OWNER = "crf export"


@command("export")
def export_cli(
    model: ModelArgument,
    output: Path = Arg(..., help="The file to write."),
    form: Optional[str] = Opt(
        None, "--to", help=f"{', '.join(FORMS)}; by default the suffix of the file, or crfsuite."
    ),
    component: Optional[str] = Opt(None, "--component", "-c", help="By default the first exportable one."),
    columns: str = Opt("orth", help="npz, json: attributes of tokens in the columns of rows, such as orth,tag."),
    prune: float = Opt(0.0, help="npz, json: leave out weights whose absolute value is at most this."),
    bits: int = Opt(32, help="npz, json: 16 for weights that are whole numbers with a scale."),
    check: Optional[Path] = Opt(None, help="npz, json: annotated texts; tells how many labels change.", exists=True),
    with_reader: bool = Opt(False, "--with-reader", help="npz, json: write lite.py into the same folder."),
) -> None:
    """Write a component for `spacy_crf.lite` or for CRFsuite.

    `spacy_crf.lite` labels words with NumPy alone. In a model of CRFsuite features keep their names, such as lower[0]=the;
    `spacy_crf.migrate.pipeline.features_of` makes them.
    """
    suffixes = output.name.removesuffix(".gz").rpartition(".")[2]
    form = checks.one_of(OWNER, "--to", form or (suffixes if suffixes in FORMS else "crfsuite"), FORMS)
    check_writable(output, check)
    if form == "crfsuite":
        from ..migrate.crfsuite import write_crfsuite
        from ..migrate.pipeline import weights_of

        weights = weights_of(load_pipeline(model), component)
        write_crfsuite(weights, output)
        msg.good(f"{output}: {counted(len(weights.labels), 'label')}, {weights.n_weights:,} weights")
        return
    from .. import lite
    from ..migrate.lite import compare_lite, export_lite, write_lite

    nlp, names = load_pipeline(model), [name.strip() for name in columns.split(",")]
    content = export_lite(nlp, component, columns=names, prune=prune, bits=bits)
    write_lite(content, output, form)
    tables = [table for reader in content["readers"] for table in reader["tables"].values()]
    n_weights, size = sum(len(table["weights"]) for table in tables), output.stat().st_size / 1e6
    msg.good(f"{output}: {counted(len(content['labels']), 'label')}, {n_weights:,} weights, {size:.2f} MB")
    if with_reader:
        write_whole(output.parent / "lite.py", Path(lite.__file__).read_bytes())
        msg.good(f"{output.parent / 'lite.py'}: reads it, with NumPy alone")
    if check is not None:
        found = compare_lite(nlp, content["component"], lite.load(output), read_examples(check, nlp))
        before, after = (f"{100 * f1:.2f}" for f1 in (found.before, found.after))
        msg.info(
            f"{counted(found.texts, 'text')}: {found.different:,} get other labels; F1 {before} before, {after} after"
        )
