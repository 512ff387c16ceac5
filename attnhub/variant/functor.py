"""Hooks written by hand: a struct in CUDA C++ in the place of what is emitted from mods."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnhub.errors import InvalidArgument
from attnhub.variant.params import ParamSpec, merge_params
from attnhub.variant.symbol import ScalarParam, TensorParam
from attnhub.variant.trace import HOOKS

_NAME = re.compile(r"[A-Za-z_]\w*(::[A-Za-z_]\w*)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Functor:
    """A variant's hooks as a C++ struct, for what mods in Python cannot say.

    The struct derives from ``attnhub::PlainVariant``; ``attnhub/attention/variant.cuh`` says which
    hooks there are and what they see. Only kernels that are compiled with it can compute it: there
    is no reference to compare them with. FlashInfer (Ye et al. 2025, arXiv:2501.01005) has
    variants of this kind.

    Args:
        source: declares the struct; it may include headers of AttnHub.
        struct: its name, with its namespace.
        hooks: the mods that it stands for, by the flags that it sets: of ``HOOKS``.
        params: its members, in their order and by their names, each a ``ScalarParam<T>`` or a
            ``TensorParam<T, rank>`` in C++ too. Values are given at plan or run, as for mods.

    Raises:
        InvalidArgument: no C++ name, an unknown hook, something else than parameters, or a name
            that is declared twice.

    Example:
        >>> from attnhub.variant import Functor, ScalarParam, Variant
        >>> source = '''
        ... #include "attnhub/attention/variant.cuh"
        ... #include "attnhub/attention/variant_params.cuh"
        ... struct FlashSigmoid : attnhub::PlainVariant {
        ...   static constexpr bool kTransformsScores = true;
        ...   static constexpr bool kSoftmax = false;
        ...   attnhub::ScalarParam<float> bias;
        ...   ATTNHUB_DEVICE float score(const attnhub::ScorePosition&, float score) const {
        ...     return attnhub::sigmoid(score + bias.get());
        ...   }
        ... };
        ... '''
        >>> sigmoid = Functor(
        ...     source=source,
        ...     struct="FlashSigmoid",
        ...     hooks=("score_mod",),
        ...     params=(ScalarParam("bias"),),
        ... )
        >>> print(Variant(causal=True, softmax=False, functor=sigmoid).describe())
        causal, no softmax, functor = FlashSigmoid
    """

    source: str
    struct: str
    hooks: tuple[str, ...]
    params: tuple[ScalarParam | TensorParam | ParamSpec, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.source, str) or not self.source.strip():
            raise InvalidArgument(f"source={self.source!r}: give the C++ text of the struct")
        if not isinstance(self.struct, str) or not _NAME.fullmatch(self.struct):
            raise InvalidArgument(
                f"struct={self.struct!r}: give the struct's name, as 'mine::FlashSigmoid'"
            )
        if not isinstance(self.hooks, (tuple, list)) or not set(self.hooks) <= set(HOOKS):
            raise InvalidArgument(f"hooks={self.hooks!r}: give some of {', '.join(HOOKS)}")
        object.__setattr__(self, "hooks", tuple(name for name in HOOKS if name in self.hooks))
        specs = tuple(map(_spec, self.params))
        if len(merge_params(specs)) != len(specs):
            raise InvalidArgument(f"params={specs}: one name stands for two members; rename one")
        object.__setattr__(self, "params", specs)

    @property
    def specs(self) -> tuple[ParamSpec, ...]:
        """The parameters as what their values must look like."""
        return self.params  # type: ignore[return-value]

    def to_data(self) -> dict[str, Any]:
        """Return it as plain JSON data, which `from_data` reads back."""
        params = [
            {"name": s.name, "kind": s.kind, "ndim": s.ndim, "dtype": s.dtype} for s in self.specs
        ]
        hooks = list(self.hooks)
        return {"source": self.source, "struct": self.struct, "hooks": hooks, "params": params}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Functor:
        """Return the functor that `to_data` described.

        Raises:
            InvalidArgument: the data do not describe one.
        """
        try:
            params = tuple(ParamSpec(**each) for each in data["params"])
            return cls(
                source=data["source"],
                struct=data["struct"],
                hooks=tuple(data["hooks"]),
                params=params,
            )
        except (KeyError, TypeError) as error:
            raise InvalidArgument(
                f"{data!r} does not describe a Functor ({error}); give what to_data returned"
            ) from error


def _spec(param: object) -> ParamSpec:
    if isinstance(param, ParamSpec):
        return param
    if isinstance(param, TensorParam):
        return param.spec
    if isinstance(param, ScalarParam) and isinstance(param.expr.value, ParamSpec):
        return param.expr.value
    raise InvalidArgument(f"params has {param!r}: give ScalarParam(...) or TensorParam(...)")
