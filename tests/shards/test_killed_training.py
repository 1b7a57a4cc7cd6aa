"""Training on shards by command, whose main process is killed by the system at random moments."""

import sys
import time

import numpy as np
import pytest
import spacy
from spacy.tokens import DocBin

from tests.train_command import after, train, weights
from tests.util import ner_examples

N_KILLED = 1


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
@pytest.mark.parametrize("seed", range(1))
def test_the_same_weights_however_often_it_is_killed(seed, tmp_path):
    """(Ten times: ``--hunt 10``.)"""
    docs = [example.reference for example in ner_examples(spacy.blank("en"))] * 30
    DocBin(docs=docs).to_disk(tmp_path / "texts.spacy")
    random, options = np.random.default_rng((18, seed)), ["--shards", "2", "--workers", "2"]
    start = time.perf_counter()
    assert train(tmp_path / "texts.spacy", tmp_path / "whole", options) == 0
    seconds, expected = time.perf_counter() - start, weights(tmp_path / "whole")
    killed, n_ended = [], 0
    while len(killed) < N_KILLED or not n_ended:
        output = tmp_path / str(n_ended)
        # Before its texts are cut there is nothing that could be lost
        moment = after(random.uniform(0.3, 1.0) * seconds, killed) if len(killed) < N_KILLED else lambda run: None
        code = train(tmp_path / "texts.spacy", output, options, moment)
        if code >= 0:
            assert code == 0
            assert weights(output) == expected
            n_ended += 1
