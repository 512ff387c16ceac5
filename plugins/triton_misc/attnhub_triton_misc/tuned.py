"""Settings that this machine's GPU was measured to do better by than by those of the tables.

``python -m attnhub_triton_misc.benchmarks.tune`` measures and writes them, to a file in AttnHub's
cache folder for each GPU, version of this plugin and version of Triton. Planning looks into it, as
a dictionary; nothing is measured then, and a run asks for nothing.
"""

from __future__ import annotations

import functools
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import triton

from attnhub.plugin import Cache, Device
from attnhub_triton_misc.settings import HeadSettings, MergeSettings, RowSettings

S = TypeVar("S", RowSettings, MergeSettings, HeadSettings)
#: From the key of a problem and its default to what is taken instead.
Choice = Callable[[str, Any], Any]

REASON = "measured on this GPU by attnhub_triton_misc.benchmarks.tune"
_choice: ContextVar[Choice | None] = ContextVar("attnhub_triton_misc_choice", default=None)


def choose(problem: Any, default: S) -> S:
    """What was measured to be the best setting for problems like this one, else ``default``."""
    trial = _choice.get()
    if trial is not None:
        return trial(key_of(problem), default)
    # A machine without measurements does not even make a key.
    settings = read(problem.device)
    entry = settings.get(key_of(problem)) if settings else None
    if entry is None:
        return default
    setting = _setting(entry, default)
    if setting is None:
        _ignore(file_of(problem.device), f"{entry!r} is no setting for {key_of(problem)}")
        return default
    return setting


@contextmanager
def trying(choice: Choice) -> Iterator[None]:
    """While it lasts, plans made in this context take what ``choice`` says.

    Example::

        with trying(lambda key, default: replace(default, warps=8)):
            attnhub.norm.rmsnorm(x, weight)  # if its plan was not made before
    """
    token = _choice.set(choice)
    try:
        yield
    finally:
        _choice.reset(token)


def key_of(problem: Any) -> str:
    """The facts and bucketed sizes that plans may depend on, as ``explain`` writes them."""
    facts = str(problem).partition(": ")[2]
    return f"{problem.op}: {facts}, {problem.extent.text(problem.sizes)}"


def file_of(device: Device) -> Path:
    """Where the settings for a device are kept."""
    name = re.sub(r"[^A-Za-z0-9.]+", "-", " ".join(_header(device).values()))
    return Cache().home / "tuned" / f"{name}.json"


@functools.lru_cache
def read(device: Device) -> dict[str, Any]:
    """The entries for a device, read once a process; none from a file that is not for it."""
    file = file_of(device)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if any(content[name] != value for name, value in _header(device).items()):
            return _ignore(file, "it was measured on something else")
        return dict(content["settings"])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        return _ignore(file, f"it cannot be read ({type(error).__name__}: {error})")


def save(device: Device, found: Mapping[str, S | None]) -> Path:
    """Keep settings beside those kept before; None removes one. Later plans take them."""
    file, settings = file_of(device), dict(read(device))
    for key, setting in found.items():
        settings.pop(key, None)
        if setting is not None:
            settings[key] = {name: getattr(setting, name) for name in setting.CHOSEN}
    text = json.dumps({**_header(device), "settings": settings}, indent=1)
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(f".{os.getpid()}")  # another process may be reading
    part.write_text(text + "\n", encoding="utf-8")
    part.replace(file)
    read.cache_clear()
    return file


def _header(device: Device) -> dict[str, str]:
    try:
        own = version("attnhub-triton-misc")
    except PackageNotFoundError:  # run from a source tree
        own = "source"
    return {"gpu": device.name, "plugin": own, "triton": triton.__version__}


def _setting(entry: Any, default: S) -> S | None:
    """What an entry says, if it says all that may be chosen, and that is legal."""
    if not isinstance(entry, dict) or entry.keys() != set(default.CHOSEN):
        return None
    setting = replace(default, **entry, reason=REASON)
    return setting if setting.is_legal() else None


def _ignore(file: Path, why: str) -> dict[str, Any]:
    warnings.warn(
        f"{file}: {why}, so the settings of the tables are taken; measure anew by `python -m "
        "attnhub_triton_misc.benchmarks.tune`, or remove the file",
        RuntimeWarning,
        stacklevel=4,
    )
    return {}
