"""The reference page under lab/docs/, made of what the lab registers: ``python -m spacy project run reference``."""

from pathlib import Path

from spacy_crf_lab.errors import Errors, Warnings
from tests import reference_pages as of_plugin

LAB = Path(__file__).parents[1]


def page() -> str:
    return (
        "# Names, settings, commands and messages of the lab\n\n"
        "Made by `python -m spacy project run reference`.\n"
        f"{of_plugin.settings(LAB, whole=False)}{of_plugin.cli('spacy_crf_lab')}\n## Messages\n"
        f"{of_plugin.errors(of_plugin.messages(Errors, Warnings), whole=False)}"
    )


if __name__ == "__main__":
    (LAB / "docs" / "reference.md").write_text(page(), encoding="utf8")
