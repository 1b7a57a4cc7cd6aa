"""Fixtures of the plugin's tests."""

from tests.conftest import corpus, few_texts, paths, people, quiet, tagged_paths, warm_environment

__all__ = ["corpus", "few_texts", "paths", "people", "quiet", "tagged_paths", "warm_environment"]
