"""What kernels in Triton take of a variant: a function for each hook, and the tuple they read."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import itertools
import linecache
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType, ModuleType
from typing import Any

from torch import Tensor

from attnhub.kernels.variant import zero
from attnhub.variant import HOOKS, ParamSpec, Variant
from attnhub.variant.triton_emitter import emit

__all__ = ["TritonVariant"]

_HELPERS = "attnhub.variant.triton_functions"
#: Numbers of emitted modules: equal texts of two variants are forgotten one by one.
_NUMBERS = itertools.count()


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
            return _held(variant, frozenset()).code
        scalars = (spec.name for spec in variant.params if spec.kind == "scalar")
        on_device = frozenset(x for x in scalars if isinstance(params[x], Tensor))
        return _held(variant, on_device).code

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


class _Held:
    """What the cache below holds, and nothing else does: its text goes from linecache with it.

    ``@triton.jit`` has read the text by then. Triton's interpreter reads it at the first call of a
    function, which 1024 other variants do not precede.
    """

    __slots__ = ("__weakref__", "code")

    def __init__(self, code: TritonVariant, file: str) -> None:
        self.code = code
        weakref.finalize(self, linecache.cache.pop, file, None).atexit = False


@lru_cache(maxsize=1024)
def _held(variant: Variant, on_device: frozenset[str]) -> _Held:
    source = emit(variant, on_device=on_device)
    name = _module_name(source)
    file = f"<{name} {next(_NUMBERS)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    # A module that is no file; Triton reads the source of its functions.
    namespace: dict[str, Any] = {"__name__": name}
    exec(compile(source, file, "exec"), namespace)  # noqa: S102 - the emitter wrote it
    names = (*HOOKS, "sink")
    functions = MappingProxyType({key: namespace.get(key) for key in names})
    return _Held(TritonVariant(functions=functions, specs=variant.params), file)


def _module_name(source: str) -> str:
    """The name of an emitted module: other code has another one.

    Triton's cache on disk knows functions in a tuple, as kernels take them, by the names of their
    modules and their own, so the name has to say what they call as well.
    """
    helpers = _text(importlib.import_module(_HELPERS))
    digest = hashlib.sha256(f"{source}\0{helpers}".encode()).hexdigest()[:16]
    return f"attnhub.variant.emitted_{digest}"


@lru_cache(maxsize=1)
def _text(module: ModuleType) -> str:
    """Its source, read once: an upgrade of the file does not change what this process imported."""
    return inspect.getsource(module)
