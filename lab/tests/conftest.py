"""Fixtures of the plugin's tests."""

from tests.conftest import corpus, paths, people, quiet, tagged_paths, warm_environment

__all__ = ["corpus", "paths", "people", "quiet", "tagged_paths", "warm_environment"]
