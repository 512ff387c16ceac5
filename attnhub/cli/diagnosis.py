"""What ``attnhub doctor`` finds, as plain data. No finding keeps it from the next."""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Iterable, Iterator
from importlib import metadata
from typing import Any

import attnhub
from attnhub.cli import listing, toolchain
from attnhub.cli.kernels import the_cache
from attnhub.cli.shadowing import shadowed
from attnhub.core import device as devices
from attnhub.core import discovery, dispatch, env, options, profile
from attnhub.core.backend import Backend, resolve
from attnhub.core.device import Device
from attnhub.core.options import Override
from attnhub.core.registry import Registry
from attnhub.errors import AttnHubError, PluginWarning, UnknownName
from attnhub.plugin import arch

#: What is broken: pairs of what it is and why.
Problems = list[tuple[str, str]]


def diagnose() -> dict[str, Any]:
    """Everything that ``attnhub doctor`` shows; ``problems`` is empty when nothing is broken."""
    problems: Problems = []
    variables = _environment(problems)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)  # a problem says the same
        registry = discovery.default()
    present = _devices(problems)
    found = {
        "versions": _versions(),
        "devices": [_facts(name, device) for name, device in present.items()],
        "plugins": _plugins(registry, problems),
        "overrides": _overrides(problems),
        "environment": variables,
        "compilers": toolchain.compilers(),
        "driver": toolchain.driver(),
        "prebuilt": toolchain.ready_made(registry, problems),
        "cache": str(the_cache().home),
    }
    problems += _backend_faults(registry, present.values())
    problems += [("shadowed package", fault) for fault in shadowed(discovery.GROUP)]
    return {**found, "problems": [{"what": what, "why": why} for what, why in problems]}


def _environment(problems: Problems) -> list[dict[str, Any]]:
    """Every variable. Unknown ones are problems, and are then taken out of this process's way.

    Whatever reads the environment refuses to go on at the first unknown name, and that would hide
    all the rest.
    """
    unknown = []
    while True:
        try:
            values = env.environment()
            break
        except UnknownName as error:
            problems.append((error.name, str(error)))
            value = os.environ.pop(error.name)
            unknown.append((error.name, value, "unknown, so an error"))
    try:
        profile.load(values.profile)
    except AttnHubError as error:
        problems.append(("ATTNHUB_PROFILE", str(error)))
    known = [(name, os.environ.get(name, ""), meaning) for name, meaning in env.VARIABLES.items()]
    return [
        {"name": name, "value": value, "meaning": meaning, "known": name in env.VARIABLES}
        for name, value, meaning in (*known, *unknown)
    ]


def _versions() -> dict[str, str]:
    versions = {"attnhub": attnhub.__version__, "python": platform.python_version()}
    for name in ("torch", "triton", "pluggy"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    try:
        import torch

        versions["cuda (torch's build)"] = torch.version.cuda or "none"
    except Exception as error:  # noqa: BLE001 - a torch that does not import may be what the user came for
        versions["cuda (torch's build)"] = f"torch does not import: {error}"
    return versions


def _devices(problems: Problems) -> dict[str, Device]:
    found = {"cpu": devices.CPU}
    try:
        import torch

        for i in range(torch.cuda.device_count()):
            found[f"cuda:{i}"] = devices.describe(f"cuda:{i}")
    except Exception as error:  # noqa: BLE001 - a driver at odds with torch fails in many ways
        problems.append(("devices", f"{type(error).__name__}: {error}"))
    return found


def _facts(name: str, device: Device) -> dict[str, Any]:
    return {
        "device": name,
        "name": device.name,
        "arch": device.arch,
        "compiled_for": "" if device.sm is None else arch(device),
        "num_sms": device.num_sms,
        "bandwidth_gb_s": device.bandwidth,
        "tflops": device.tflops,
    }


def _plugins(registry: Registry, problems: Problems) -> list[dict[str, Any]]:
    broken = [info for info in registry.plugins.values() if info.error]
    problems += [(f"plugin {info.name}", info.error) for info in broken]
    installed = {entry.name for entry in discovery.entry_points()}
    problems += [
        ("ATTNHUB_PLUGINS", f"no plugin {name!r} is installed")
        for name in sorted(discovery.listed()[0] - installed)
    ]
    return listing.plugins(registry)


def _overrides(problems: Problems) -> list[dict[str, str]]:
    """The rules in force, highest precedence first, as the dispatcher ranks them."""
    dispatcher = dispatch.default()
    rules: list[Override] = [*reversed(options.scope.get()), *reversed(dispatcher.rules)]
    try:
        rules += reversed(options.from_environment())
    except AttnHubError as error:
        problems.append(("ATTNHUB_BACKEND", str(error)))
    for rule in rules:
        try:
            dispatcher.check_name(rule)
        except AttnHubError as error:
            problems.append((f"override ({rule})", str(error)))
    return [{"scope": r.scope, "op": r.op, "mode": r.mode, "backend": r.backend} for r in rules]


def _backend_faults(registry: Registry, here: Iterable[Device]) -> Iterator[tuple[str, str]]:
    """Each backend that was set aside, has a wrong sheet, or does not load on a device of here."""
    for op in sorted(registry.ops):
        try:
            problem = registry.problem_class(op)
        except AttnHubError as error:
            yield f"op {op}", str(error)
            continue
        for backend in registry.backends(op):
            fault = "; ".join(registry.failures(backend)) or registry.check(backend, problem)
            if not fault and any(_is_for(backend, device) for device in here):
                fault = _load_fault(backend)
            if fault:
                yield f"backend {backend.name} of {op}", fault


def _is_for(backend: Backend, device: Device) -> bool:
    """Whether it may ever run on this device; what is for other devices need not load here."""
    return any(
        device.type in sheet.devices and (device.sm is None or sheet.sm.accepts(device.sm))
        for sheet in backend.sheets()
    )


def _load_fault(backend: Backend) -> str:
    try:
        resolve(backend.load, backend.plugin)
    except AttnHubError as error:
        return str(error)
    return ""
