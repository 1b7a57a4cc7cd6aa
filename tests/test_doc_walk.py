"""How many functions and files somebody meets who follows one Doc through `crf_ner`."""

import pytest

from .doc_walk import component, walk_of_doc

# Functions, stays in a file, returns to one that was left. Two functions ask whether Docs have white space, at which no span
# begins or ends, and introduce the labels to a vocabulary that would forget them behind a memory zone. A decoding brings the
# class of its batches, and a decoder of another package may answer in its place
MOST = {"plain": (66, 40, 18), "with confidence and a rule": (108, 72, 42)}


@pytest.mark.parametrize("settings", MOST)
def test_the_way_of_a_doc_gets_no_longer(settings):
    walk = walk_of_doc(component(settings))
    assert all(found <= most for found, most in zip((walk.functions, walk.stays, walk.returns), MOST[settings]))
