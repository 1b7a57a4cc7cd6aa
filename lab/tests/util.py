"""What the tests of the lab share beside `tests.util`."""

from importlib import metadata

LAB = {entry.name for entry in metadata.distribution("spacy-crf-lab").entry_points}


def registered(name: str) -> str:
    """Under which name of a config the lab, or else the plugin, has a system of this name."""
    return f"spacy_crf_lab.{name}.v1" if f"spacy_crf_lab.{name}.v1" in LAB else f"spacy_crf.{name}.v1"
