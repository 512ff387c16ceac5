"""What kernels take of a variant: a part of their source, and one of their parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from attnhub.jit.params import ParamLayout
from attnhub.variant import ParamSpec, Variant
from attnhub.variant.cuda_emitter import CPP_TYPES, emit, member

__all__ = ["VariantCode"]

_MAX_INT = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantCode:
    """A variant as kernels take it: the struct ``attnhub::EmittedVariant``.

    ``source`` declares it, for a template to paste before its first use, ``params`` is its layout,
    for a member of the kernel's parameters, and ``specs`` are the run-time parameters in it.
    ``docs/kernels/variants.md`` tells what kernels do with it. Variants that differ only in what
    kernels do themselves have the same code.

    Example:
        >>> code = VariantCode.of(Variant(alibi=True, causal=True))
        >>> [field.name for field in code.params.fields]
        ['param_alibi_slopes.data', 'param_alibi_slopes.stride[0]', 'param_alibi_slopes.size[0]']
        >>> code.values({"alibi_slopes": torch.zeros(8)})[1:]
        (1, 8)
    """

    source: str
    params: ParamLayout
    specs: tuple[ParamSpec, ...]

    @classmethod
    def of(cls, variant: Variant) -> VariantCode:
        """The code of a variant, made once."""
        return _code(variant)

    def values(self, params: Mapping[str, Tensor | float]) -> tuple[int | float, ...]:
        """The values of the fields of ``params`` for a launch.

        Args:
            params: run-time parameters, as checked by ``run()``. Tensors must outlive the launch.
        """
        values: list[int | float] = []
        for spec in self.specs:
            values += _values(spec, params[spec.name])
        return tuple(values)


@lru_cache(maxsize=1024)
def _code(variant: Variant) -> VariantCode:
    # A struct that is written by hand calls its members as its functor calls the parameters.
    names = [spec.name if variant.functor else member(spec) for spec in variant.params]
    layout = ParamLayout(dict(zip(names, map(_layout, variant.params), strict=True)))
    return VariantCode(source=emit(variant), params=layout, specs=variant.params)


def _layout(spec: ParamSpec) -> ParamLayout:
    """That of ``TensorParam`` or ``ScalarParam`` of ``attention/variant_params.cuh``."""
    element = CPP_TYPES[spec.dtype]
    if spec.kind == "scalar":
        return ParamLayout({"data": f"const {element}*", "number": element})
    strides = {f"stride[{axis}]": "i64" for axis in range(spec.ndim)}
    sizes = {f"size[{axis}]": "i32" for axis in range(spec.ndim)}
    return ParamLayout({"data": f"const {element}*", **strides, **sizes})


def _values(spec: ParamSpec, value: Tensor | float) -> tuple[int | float, ...]:
    if not isinstance(value, Tensor):
        return 0, value
    if spec.kind == "scalar":
        return value.data_ptr(), 0
    sizes = value.shape
    if 0 in sizes:  # a look-up finds the only element there is
        return zero(value.device).data_ptr(), *(0,) * spec.ndim, *sizes
    if max(sizes) > _MAX_INT:  # an index reaches no further
        return value.data_ptr(), *value.stride(), *(min(size, _MAX_INT) for size in sizes)
    return value.data_ptr(), *value.stride(), *sizes


@lru_cache
def zero(device: torch.device) -> Tensor:
    """As large as an element of any dtype."""
    return torch.zeros(1, dtype=torch.int64, device=device)
