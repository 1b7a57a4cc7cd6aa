"""Side-by-side comparisons with other taggers: ``python -m tests.benchmarks.parity`` (or ``.accuracy``, ``.speed``).

They need the extra ``dev``, and public data that is not part of this repository: the folder ``SPACY_CRF_DATA``, by
default ``../shared/data`` beside the repository. ``.spacy_suite`` needs neither: it runs the tests of spaCy.
The test suite runs nothing of this but the files ``test_….py``.
"""
