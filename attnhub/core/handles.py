"""Plan objects behind integers: a torch op can take an int, not an object.

One handle per object, refilled in place: a compiled graph guards the integer, so a new handle per
step would compile anew.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

_objects: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def new(owner: Any) -> int:
    """A handle that lives as long as ``owner``."""
    handle = next(_numbers)
    _objects[handle] = owner
    return handle


def get(handle: int) -> Any:
    """The object behind a handle."""
    return _objects[handle]
