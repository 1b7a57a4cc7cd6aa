"""The cache of kernels: code that was compiled with a helper of the plugin goes when the helper changes."""

from pathlib import Path

from spacy_crf import kernels
from spacy_crf_lab import kernels as own

FILES = sorted(Path(own.__file__).parent.glob("[!_]*.py"))


def digests():
    return {path.stem: kernels._digest.__wrapped__(path) for path in FILES}


def test_an_edited_helper_of_the_plugin_changes_the_folder_of_the_kernels_that_import_it(monkeypatch):
    """Also of those that import it by another file, of either package; the kernels of other files stay compiled."""
    read = kernels._source
    helpers = Path(kernels.__file__).parent / "numerics.py"
    before = digests()
    monkeypatch.setattr(kernels, "_source", lambda path: read(path) + "\nEDITED = True\n" * (path == helpers))
    after = digests()
    changed = {name for name in before if after[name] != before[name]}
    assert changed >= {"gibbs", "max_product", "dual"}  # by itself, by `gibbs`, and by files of the plugin
    assert not changed & {"draws", "max_flow"}
