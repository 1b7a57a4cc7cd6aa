"""Values of a config as spaCy reads them back.

It writes each ``$`` in them twice, and leaves it so where it loads a pipeline; one that is loaded and saved again has four. How
many there were is known from what a component has saved itself.
"""

import json
from typing import Any


def is_written(saved: Any, read: Any) -> bool:
    """Whether a value is what a config says that was written with another one."""
    ours, found = (json.dumps(value, sort_keys=True) for value in (saved, read))
    while "$" in ours and len(ours) < len(found):
        ours = ours.replace("$", "$$")
    return ours == found
