"""What the benchmark of training rests on: annotation is unset by whole entities, commands are watched, verdicts are right."""

import sys

import numpy as np
import pytest

pytest.importorskip("pycrfsuite", reason="the benchmarks need the extra 'dev'")
pytest.importorskip("seqeval", reason="the benchmarks need the extra 'dev'")

from . import iterations, training

TAGS = ["B-X", "I-X", "O", "B-Y", "O", "O", "B-X", "I-X"]


@pytest.mark.parametrize("unset", [training.unset_anywhere, training.unset_around_a_quarter])
def test_entities_are_unset_as_a_whole(unset):
    rng = np.random.default_rng(0)
    known = np.array([unset(TAGS, rng) for _ in range(2000)])
    assert (known[:, 0] == known[:, 1]).all() and (known[:, 6] == known[:, 7]).all()
    assert 0.4 < known[:, 2].mean() < 0.6


def test_a_third_stays_complete():
    rng = np.random.default_rng(0)
    known = np.array([training.unset_around_a_quarter(TAGS, rng) for _ in range(2000)])
    n_known = known.sum(axis=1)
    assert 0.3 < (n_known == len(TAGS)).mean() < 0.37
    assert n_known[n_known < len(TAGS)].max() == len(TAGS) // 4


def test_a_command_is_watched(capsys):
    script = "import time; print('begin'); block = bytearray(300 << 20); time.sleep(1); print('end')"
    watched = training.watch([sys.executable, "-c", script])
    assert watched.seconds > watched.longest_silence > 1.0
    assert watched.peak_mb > 300
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["begin", "end"]


def test_a_command_that_fails_is_told():
    with pytest.raises(SystemExit, match="failed"):
        training.watch([sys.executable, "-c", "raise SystemExit(3)"])


def test_verdicts():
    assert training.Line("F1", 93.8, 93.74, "≥ 93.7", True).cells()[-2:] == ["≥ 93.7", "met"]
    assert training.Line("F1", 93.6, 93.74, "≥ 93.7", False).cells()[-1] == "MISSED"
    assert training.Line("seconds", 2.0, 4.0).cells() == ["seconds", 2.0, 4.0, 0.5, "", ""]


def test_iterations_until_near_the_lowest_value():
    assert iterations.needed([9.0, 2.0, 1.009, 1.02, 1.0]) == 3
    assert iterations.needed([1.0]) == 1
