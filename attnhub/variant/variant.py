"""`Variant`: what attention computes between the products with K and V, as a hashable value."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

from attnhub.errors import InvalidArgument
from attnhub.variant.checks import check_bool, check_int, check_positive
from attnhub.variant.functor import Functor
from attnhub.variant.graph import Graph
from attnhub.variant.params import ParamSpec, merge_params
from attnhub.variant.rope import Rope
from attnhub.variant.trace import HOOKS, Mod, trace

ALIBI_SLOPES = ParamSpec(name="alibi_slopes", kind="tensor", ndim=1, dtype="float32")
_WITH_DATA = (Graph, Rope, Functor)
SINKS = ParamSpec(name="sinks", kind="tensor", ndim=1, dtype="float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The structure of one attention: a hashable, torch-free value that holds no tensors.

    Query i has the logical position q_idx = i + kv_len - qo_len, key j has kv_idx = j. The steps,
    in order: query_mod and key_mod; `rope`; s = scale * q.k; soft cap; ALiBi; score_mod; causal,
    window and mask_mod; softmax; product with V; output_mod. Tensors and scalars that it names
    (`params`) are given at plan or run.

    Args:
        causal: keep kv_idx <= q_idx.
        window: (left, right), keep q_idx - left <= kv_idx <= q_idx + right; -1 is open (Longformer,
            arXiv:2004.05150). With `causal` the right bound is 0 whatever `right` says; see `band`.
        soft_cap: s becomes soft_cap * tanh(s / soft_cap) (Gemma 2, arXiv:2408.00118).
        alibi: add alibi_slopes[h] * (kv_idx - q_idx) (Press et al. 2021, arXiv:2108.12409);
            run-time parameter "alibi_slopes", float32 [num_qo_heads].
        sinks: a logit per head joins the denominator (gpt-oss, arXiv:2508.10925); run-time
            parameter "sinks", float32 [num_qo_heads]. Needs `softmax`.
        rope: rotation of queries and keys inside the attention, or None.
        scale: factor of q.k; None means 1 / sqrt(head_dim_qk).
        softmax: False makes the scores themselves the weights, 0 where masked; LSE then does not
            exist.
        score_mod: (score, b, h, q_idx, kv_idx) -> score.
        mask_mod: (b, h, q_idx, kv_idx) -> True to keep. Hide pairs here, not by -inf in score_mod:
            a kernel can skip what is masked.
        query_mod, key_mod, output_mod: elementwise, (x, b, h, q_idx, d) -> x; a key's are
            (x, b, h_kv, kv_idx, d). d is the channel.
        functor: all hooks by a struct in CUDA C++, instead of mods, soft cap, ALiBi and sinks.

    A mod given as a function is traced here and the field holds its `Graph` (see `trace`), so two
    functions that compute the same make equal variants. A mod must be defined for pairs that are
    masked as well: keep an index of a tensor in range for them, by torch.clamp or torch.where.

    Raises:
        InvalidArgument: a value of the wrong type or range, sinks without softmax, or one parameter
            name declared two ways.
        TraceError: a mod that cannot be traced.

    Example:
        Sigmoid attention (Ramapuram et al. 2024, arXiv:2409.04431):

        >>> import torch
        >>> from attnhub.variant import ScalarParam, Variant
        >>> bias = ScalarParam("bias")
        >>> sigmoid = lambda score, b, h, q_idx, kv_idx: torch.sigmoid(score + bias)
        >>> print(Variant(causal=True, softmax=False, score_mod=sigmoid).describe())
        causal, no softmax, score_mod = sigmoid(score + bias)
    """

    causal: bool = False
    window: tuple[int, int] | None = None
    soft_cap: float | None = None
    alibi: bool = False
    sinks: bool = False
    rope: Rope | None = None
    scale: float | None = None
    softmax: bool = True
    score_mod: Graph | Mod | None = None
    mask_mod: Graph | Mod | None = None
    query_mod: Graph | Mod | None = None
    key_mod: Graph | Mod | None = None
    output_mod: Graph | Mod | None = None
    functor: Functor | None = None
    _params: tuple[ParamSpec, ...] = field(init=False, repr=False, compare=False)
    _text: str = field(init=False, repr=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("causal", "alibi", "sinks", "softmax"):
            check_bool(name, getattr(self, name))
        for name in ("soft_cap", "scale"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_positive(name, getattr(self, name)))
        object.__setattr__(self, "window", _check_window(self.window))
        if not isinstance(self.rope, (Rope, type(None))):
            raise InvalidArgument(
                f"rope={self.rope!r} is of type {type(self.rope).__name__}; give a Rope or None"
            )
        if self.sinks and not self.softmax:
            raise InvalidArgument(
                "sinks=True with softmax=False: a sink is a term of the softmax denominator; "
                "drop sinks or keep softmax"
            )
        self._check_functor()
        for name in HOOKS:
            if (mod := getattr(self, name)) is not None:
                object.__setattr__(self, name, trace(name, mod))
        object.__setattr__(self, "_params", merge_params(self._named_params()))
        # A variant is a part of cache keys: its hash is asked for far more often than it is made.
        fields = (getattr(self, each.name) for each in _public_fields())
        object.__setattr__(self, "_hash", hash(tuple(fields)))
        # Torch ops take a variant as text, and a compiler can read an attribute but not make one.
        object.__setattr__(self, "_text", self._to_json())

    def _check_functor(self) -> None:
        if self.functor is None:
            return
        if not isinstance(self.functor, Functor):
            raise InvalidArgument(
                f"functor={self.functor!r} is of type {type(self.functor).__name__}; give a "
                "Functor or None"
            )
        names = ("soft_cap", "alibi", "sinks", *HOOKS)
        twice = [name for name in names if getattr(self, name) not in (None, False)]
        if twice:
            raise InvalidArgument(
                f"functor and {', '.join(twice)}: a functor has all hooks; write these there"
            )

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Callable[[str], Variant], tuple[str]]:
        # Hashes of strings differ from process to process, so the stored one must not travel.
        return Variant.from_json, (self.to_json(),)

    def _named_params(self) -> list[ParamSpec]:
        built_in = [ALIBI_SLOPES] * self.alibi + [SINKS] * self.sinks
        own = () if self.functor is None else self.functor.specs
        return [*built_in, *own, *(spec for _, graph in self.hooks for spec in graph.params)]

    @property
    def params(self) -> tuple[ParamSpec, ...]:
        """Every run-time parameter: alibi_slopes, sinks, those of a functor or of mods, once."""
        return self._params

    @property
    def hooks(self) -> tuple[tuple[str, Graph], ...]:
        """(name, graph) of every mod that is set, in the order of the fields."""
        pairs = ((name, getattr(self, name)) for name in HOOKS)
        return tuple((name, graph) for name, graph in pairs if graph is not None)

    def hook(self, name: str) -> Graph | None:
        """Return the graph of one hook, typed as the field cannot be."""
        return dict(self.hooks).get(name)

    @property
    def band(self) -> tuple[int, int]:
        """Reach (left, right) of a query, with causal and window taken together; -1 is open."""
        left, right = self.window or (-1, -1)
        return left, 0 if self.causal else right

    @property
    def features(self) -> frozenset[str]:
        """Names of what differs from plain softmax attention, for capability sheets.

        These are the field names, with "softmax_off" for softmax=False; for a functor, the mods
        that it stands for. `scale` is a number, not a feature.
        """
        plain = ("causal", "window", "soft_cap", "alibi", "sinks", "rope")
        used = [name for name in plain if getattr(self, name) not in (None, False)]
        off = [] if self.softmax else ["softmax_off"]
        by_hand = () if self.functor is None else self.functor.hooks
        return frozenset([*used, *off, *by_hand, *(name for name, _ in self.hooks)])

    @property
    def digest(self) -> str:
        """sha256 of the canonical form, the same in every process."""
        return _digest(self)

    def to_json(self) -> str:
        """Return the variant as JSON text, which `from_json` reads back to an equal variant.

        Defaults are left out, so fields added later do not change the digests of variants without
        them.
        """
        return self._text

    def _to_json(self) -> str:
        data = {}
        for each in _public_fields():
            value = getattr(self, each.name)
            if value != each.default:
                data[each.name] = value.to_data() if isinstance(value, _WITH_DATA) else value
        return json.dumps(data, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Variant:
        """Return the variant that `to_json` wrote.

        Raises:
            InvalidArgument: the text is not such a variant.
        """
        try:
            data: dict[str, Any] = json.loads(text)
            for name, value in data.items():
                if name in HOOKS:
                    data[name] = Graph.from_data(value)
                elif name == "rope":
                    data[name] = Rope.from_data(value)
                elif name == "functor":
                    data[name] = Functor.from_data(value)
                elif name == "window":
                    data[name] = tuple(value)
            return cls(**data)
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidArgument(
                f"this is not the JSON of a Variant ({error}); give what to_json returned"
            ) from error

    def describe(self) -> str:
        """Return one readable line, such as "causal, window=(128, 0), soft_cap=30"."""
        parts = ["causal"] * self.causal
        if self.window is not None:
            parts.append(f"window={self.window}")
        parts += [
            f"{name}={getattr(self, name):g}"
            for name in ("soft_cap", "scale")
            if getattr(self, name) is not None
        ]
        parts += [name for name in ("alibi", "sinks") if getattr(self, name)]
        parts += [str(self.rope)] * (self.rope is not None)
        parts += ["no softmax"] * (not self.softmax)
        parts += [f"{name} = {graph}" for name, graph in self.hooks]
        if self.functor is not None:
            parts.append(f"functor = {self.functor.struct}")
        return ", ".join(parts) or "plain softmax attention"


@cache
def _public_fields() -> tuple[dataclasses.Field[Any], ...]:
    return tuple(each for each in dataclasses.fields(Variant) if each.init)


@lru_cache(maxsize=1024)
def _digest(variant: Variant) -> str:
    return hashlib.sha256(variant.to_json().encode()).hexdigest()


def _check_window(window: object) -> tuple[int, int] | None:
    """Return (left, right), or None if both sides are open."""
    if window is None:
        return None
    if not isinstance(window, tuple) or len(window) != 2:
        raise InvalidArgument(
            f"window={window!r} is not a pair; give a tuple (left, right), -1 being open, or None"
        )
    left, right = window
    left = check_int("window left", left, minimum=-1)
    right = check_int("window right", right, minimum=-1)
    return None if (left, right) == (-1, -1) else (left, right)
