"""Run-time parameters: name, rank and dtype of the values that a variant needs at plan or run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from attnhub.errors import InvalidArgument
from attnhub.variant.checks import check_int

Kind = Literal["float", "int", "bool"]

DTYPE_KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "float32": "float",
        "float16": "float",
        "bfloat16": "float",
        "int32": "int",
        "int64": "int",
        "bool": "bool",
    }
)
"""dtype names a parameter may have, each with the kind its elements have inside a mod."""

SCALAR_DTYPES = ("float32", "int32")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamSpec:
    """What one run-time parameter must look like; the value itself is never part of a variant.

    `name` is the key in `params={...}`; `kind` is "tensor" or "scalar"; a scalar has `ndim` 0 and
    is float32 or int32; a tensor has `ndim` >= 1 and one of the dtypes in `DTYPE_KINDS`.

    Raises:
        InvalidArgument: a name that is not an ASCII identifier, an unknown dtype, a rank that does
            not fit the kind.

    Example:
        >>> ParamSpec(name="alibi_slopes", kind="tensor", ndim=1, dtype="float32").element_kind
        'float'
    """

    name: str
    kind: Literal["tensor", "scalar"]
    ndim: int
    dtype: str

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and self.name.isascii() and self.name.isidentifier()):
            raise InvalidArgument(
                f"parameter name {self.name!r} is not an ASCII identifier; "
                'use letters, digits and "_", such as "bias"'
            )
        if self.kind not in ("tensor", "scalar"):
            raise InvalidArgument(
                f'parameter {self.name!r} has kind {self.kind!r}; give "tensor" or "scalar"'
            )
        accepted = SCALAR_DTYPES if self.kind == "scalar" else tuple(DTYPE_KINDS)
        if self.dtype not in accepted:
            raise InvalidArgument(
                f"{self.kind} parameter {self.name!r} has dtype {self.dtype!r}; "
                f"give one of the names {', '.join(accepted)}"
            )
        minimum = 1 if self.kind == "tensor" else 0
        check_int(f"ndim of {self.kind} parameter {self.name!r}", self.ndim, minimum=minimum)
        if self.kind == "scalar" and self.ndim != 0:
            raise InvalidArgument(f"scalar parameter {self.name!r} has ndim={self.ndim}; give 0")

    @property
    def element_kind(self) -> Kind:
        """Kind of one element inside a mod."""
        return DTYPE_KINDS[self.dtype]

    def __str__(self) -> str:
        if self.kind == "scalar":
            return f"{self.name}: {self.dtype} scalar"
        return f"{self.name}: {self.dtype} tensor with ndim={self.ndim}"


def merge_params(specs: Iterable[ParamSpec]) -> tuple[ParamSpec, ...]:
    """Return the distinct specs in order of first appearance.

    Raises:
        InvalidArgument: one name is declared twice with different kind, rank or dtype.
    """
    merged: dict[str, ParamSpec] = {}
    for spec in specs:
        known = merged.setdefault(spec.name, spec)
        if known != spec:
            raise InvalidArgument(
                f"parameter {spec.name!r} is declared twice and differently, as ({known}) and as "
                f"({spec}); use one declaration everywhere or rename one of them"
            )
    return tuple(merged.values())
