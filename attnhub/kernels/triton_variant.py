"""What kernels in Triton take of a variant: a function for each hook, and the tuple they read."""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from torch import Tensor

from attnhub.kernels.variant import zero
from attnhub.variant import HOOKS, ParamSpec, Variant
from attnhub.variant.triton_emitter import emit

__all__ = ["TritonVariant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonVariant:
    """A variant as kernels in Triton take it.

    ``functions`` has a ``@triton.jit`` function for each hook that the variant needs and None for
    the others, ``"sink"`` among them: compile-time arguments of a kernel. Each takes the arguments
    of the mod, as blocks that broadcast, and the tuple that :func:`values` gives.

    Example:
        >>> code = TritonVariant.of(Variant(alibi=True), {"alibi_slopes": torch.zeros(8)})
        >>> [name for name, function in code.functions.items() if function]
        ['score_mod']
        >>> code.values({"alibi_slopes": torch.zeros(8)})[1:]
        (1, 8)
    """

    functions: Mapping[str, Any]
    specs: tuple[ParamSpec, ...]

    @classmethod
    def of(cls, variant: Variant, params: Mapping[str, Tensor | float]) -> TritonVariant:
        """The code of a variant for such parameters, made once: scalars may be tensors or not."""
        if not variant.params:
            return _code(variant, frozenset())
        scalars = (spec.name for spec in variant.params if spec.kind == "scalar")
        return _code(variant, frozenset(x for x in scalars if isinstance(params[x], Tensor)))

    def values(self, params: Mapping[str, Tensor | float]) -> tuple[Any, ...]:
        """What a launch gives to the functions, as its argument ``params``."""
        values: list[Any] = []
        for spec in self.specs:
            value = params[spec.name]
            if spec.kind == "scalar":
                values.append(value)
                continue
            assert isinstance(value, Tensor)
            # A look-up in a tensor without elements reads the only one there is.
            data = value if value.numel() else zero(value.device).view(value.dtype)
            values += [data, *value.stride(), *(max(size, 1) for size in value.shape)]
        return tuple(values)


@lru_cache(maxsize=1024)
def _code(variant: Variant, on_device: frozenset[str]) -> TritonVariant:
    namespace = _run(emit(variant, on_device=on_device))
    names = (*HOOKS, "sink")
    functions = MappingProxyType({name: namespace.get(name) for name in names})
    return TritonVariant(functions=functions, specs=variant.params)


def _run(source: str) -> dict[str, Any]:
    """The names of a module that is no file; Triton reads the source of its functions."""
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    name = f"<attnhub variant {digest}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": f"attnhub.variant.emitted_{digest}"}
    exec(compile(source, name, "exec"), namespace)  # noqa: S102 - the emitter wrote it
    return namespace
