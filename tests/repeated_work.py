"""Work that spaCy and its libraries repeat with the same outcome, a fourth of the time of the tests: here it is done once."""

import functools
from collections.abc import Callable
from pickle import dumps, loads  # a test replaces `pickle.loads`, to see that saved models do not call it
from typing import Any


def do_repeated_work_once(replace: Callable[[Any, str, Any], None]) -> dict:
    """replace (Callable): `setattr`, or that of pytest's monkeypatch.
    RETURNS: The words that English splits by a list, which pipelines are then made without."""
    import catalogue
    from confection import Config
    from spacy.lang.en import English
    from srsly import msgpack
    from typer import testing

    # catalogue goes through the entry points of all packages whenever a function is looked up or a Doc becomes bytes
    @functools.cache
    def of_group(group):
        return list(catalogue.AVAILABLE_ENTRY_POINTS.select(group=group))

    replace(catalogue.Registry, "_get_entry_points", lambda registry: of_group(registry.entry_point_namespace))
    for coders in (msgpack.msgpack_encoders, msgpack.msgpack_decoders):  # and through all functions for each array
        replace(coders, "get_all", functools.cache(coders.get_all))

    # confection writes and parses a config to interpolate it: the same few texts, thousands of times
    parse, parsed = Config.from_str, {}

    def parse_once(config, text, *, interpolate=True, **others):
        if any(others.values()):
            return parse(config, text, interpolate=interpolate, **others)
        if (text, interpolate) not in parsed:
            parsed[text, interpolate] = dumps(dict(parse(Config(), text, interpolate=interpolate)))
        config.clear()
        config.update(loads(parsed[text, interpolate]))
        config.is_interpolated = interpolate
        return config

    replace(Config, "from_str", parse_once)

    # typer makes all commands of an app, with all their options, whenever a test calls one of them
    replace(testing, "_get_command", functools.cache(testing._get_command))

    # A blank pipeline takes 64 ms with 1,300 special words, 8 without
    words = English.Defaults.tokenizer_exceptions
    replace(English.Defaults, "tokenizer_exceptions", {})
    return words
