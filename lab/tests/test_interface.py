"""The lab overrides members of the plugin that a page of the plugin lists, methods and what constructors set alike, and few that
nobody else overrides."""

import re
from pathlib import Path

from .overridden import overridden

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
# Whole public methods, which the component or a user calls anyway
PUBLIC = {("Batch", "most_probable"), ("Decoding", "decode"), ("Structure", "expectations")}
# What `Structure.over` sets, and the constructor of a structure that is always over a graph
OVER_A_GRAPH = ("Structure", "graph")
# Ceilings, which fall
LISTED = 70
BY_THE_LAB = 16


def found():
    members = {place: systems for place, systems in overridden().items() if not place[1].startswith("_")}
    del members[OVER_A_GRAPH]
    return members


def test_the_page_lists_what_the_lab_overrides():
    listed = re.findall(r"^\| `(\w+)\.(\w+)` \|", PAGE.read_text(encoding="utf8"), re.MULTILINE)
    assert len(listed) == len(set(listed)) <= LISTED
    assert not found().keys() - set(listed)


def test_few_members_are_there_for_the_lab_alone():
    alone = {place: systems for place, systems in found().items() if "plugin" not in systems}
    assert len(alone) <= BY_THE_LAB
    assert {place for place, systems in alone.items() if len(systems) == 1} <= PUBLIC
