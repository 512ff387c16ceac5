"""Which kernels a set of calls needs on a device, and who would serve each call."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnhub.attn.kv import DTypes
from attnhub.cli.facts import parse_dtypes, parse_facts, parse_variant
from attnhub.cli.model_config import Wanted, model_calls
from attnhub.core import discovery, dispatch
from attnhub.core.backend import Backend, resolve
from attnhub.core.decision import Decision
from attnhub.core.device import Device
from attnhub.core.problem import Problem
from attnhub.errors import AttnHubError, InvalidArgument
from attnhub.jit import KernelSpec

_PAGE_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A problem, who serves it, and the kernels that it takes.

    ``kernels`` is None for a backend that compiles none. ``fault`` says why there is no backend, or
    why the one that was chosen cannot say what it needs.
    """

    problem: Problem
    steps: tuple[str, ...]
    backend: str = ""
    kernels: tuple[KernelSpec, ...] | None = None
    fault: str = ""

    @property
    def facts(self) -> str:
        """The problem without its op and its device."""
        return str(self.problem).partition(": ")[2]


def read(path: Path, *, dtype: str = "", page_size: int | None = None) -> list[Wanted]:
    """The calls of a model's ``config.json``, or of a list of problems.

    Args:
        path: either file, or the folder of a model.
        dtype: as in ``explain``, instead of the model's own.
        page_size: of the model's cache; default 16.

    Raises:
        InvalidArgument: the file is neither, or not complete.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(
            f"{file}: {error.strerror}; give a model's config.json, its folder or a list of "
            "problems"
        ) from error
    except ValueError as error:
        raise InvalidArgument(f"{file} is not JSON: {error}") from error
    if isinstance(data, Mapping):
        dtypes = _dtypes(dtype)
        return model_calls(data, dtype=dtypes, page_size=page_size or _PAGE_SIZE)
    if not isinstance(data, list):
        raise InvalidArgument(f"{file} holds neither a model's config nor a list of problems")
    if dtype or page_size:
        raise InvalidArgument(
            f"{file} is a list of problems, and each states its own dtype and page_size; leave "
            "--dtype and --page-size out"
        )
    return [_stated(item, f"{file}, problem {n}") for n, item in enumerate(data, 1)]


def _dtypes(text: str) -> DTypes | None:
    if not text:
        return None
    return parse_dtypes(text) if "," in text else DTypes(text, text, text)


def _stated(item: Any, where: str) -> Wanted:
    """A problem in the words of ``explain``, as ``{"op": "attention", "kv": "paged:16", ...}``."""
    if not isinstance(item, Mapping) or not isinstance(item.get("op"), str):
        raise InvalidArgument(f'{where}: give an object such as {{"op": "norm.rmsnorm", ...}}')
    given = dict(item)
    op, variant = given.pop("op"), given.pop("variant", "")
    cls = discovery.default().problem_class(op)
    try:
        facts = parse_facts((f"{name}={_word(value)}" for name, value in given.items()), cls)
        if variant:
            facts["variant"] = parse_variant(variant)
        cls.of("cpu", **facts)
    except AttnHubError as error:
        raise InvalidArgument(f"{where}: {error}") from error
    return Wanted(op=op, facts=facts)


def _word(value: Any) -> str:
    """A value of JSON as ``explain`` takes it."""
    if isinstance(value, list):
        return ("+" if all(isinstance(v, str) for v in value) else "x").join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value).replace("null", "none")


def find(wanted: Iterable[Wanted], device: Device) -> list[Need]:
    """What each call needs; steps that are served alike are one."""
    found: dict[tuple[Any, ...], Need] = {}
    for call in wanted:
        need = _need(call, device)
        key = (call.op, need.facts, need.backend, need.kernels, need.fault)
        if key in found:
            steps = dict.fromkeys((*found[key].steps, *need.steps))
            need = replace(found[key], steps=tuple(steps))
        found[key] = need
    return list(found.values())


def kernels(needs: Iterable[Need]) -> list[KernelSpec]:
    """Every kernel once."""
    return list(dict.fromkeys(spec for need in needs for spec in need.kernels or ()))


def _need(call: Wanted, device: Device) -> Need:
    registry = discovery.default()
    cls = registry.problem_class(call.op)
    sizes = {name: size for name, size in call.sizes.items() if name in cls.sizes}
    problem = cls.of(device, **call.facts, **sizes)
    decision = dispatch.default().decide(problem)
    need = Need(problem=problem, steps=(call.step,) if call.step else ())
    if decision.chosen is None:
        return replace(need, fault=_refusal(decision))
    name = decision.chosen.name
    need = replace(need, backend=name)
    [backend] = (b for b in registry.backends(call.op) if b.name == name)
    try:
        return replace(need, kernels=_specs(backend, problem))
    except Exception as error:  # noqa: BLE001 - a plugin that crashes must not stop the others
        return replace(need, fault=f"{type(error).__name__}: {error}")


def _specs(backend: Backend, problem: Problem) -> tuple[KernelSpec, ...] | None:
    planner = resolve(backend.load, backend.plugin)
    specs = getattr(planner, "specs", None)
    return None if specs is None else tuple(specs(problem))


def _refusal(decision: Decision) -> str:
    """Why nobody serves a problem, by the first reason of each who was asked."""
    told = [f"{r.name}: {r.reasons[0]}" for r in decision.rejected if r.reasons]
    return "; ".join(["no backend fits", *told])
