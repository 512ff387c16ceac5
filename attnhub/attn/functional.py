"""``attention``: one call for dense tensors, any device."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Literal, overload

import torch
from torch import Tensor

from attnhub.attn import inputs
from attnhub.attn.inputs import NO_PARAMS, NO_SCALES
from attnhub.attn.kv import Scales
from attnhub.attn.problem import AttentionProblem
from attnhub.core import check
from attnhub.core import device as devices
from attnhub.core.functional import FunctionalOp
from attnhub.core.problem import Extent, bucket
from attnhub.variant import Variant

_PLAIN = Variant()
_CAUSAL = Variant(causal=True)


_parsed = functools.lru_cache(maxsize=None)(Variant.from_json)


def _key(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Any, mask: Any, *rest: Any) -> Any:
    return (
        q.device,
        q.dtype,
        k.dtype,
        out.dtype,
        bucket(q.shape[0]),
        bucket(q.shape[1]),
        bucket(k.shape[1]),
        q.shape[2:],
        k.shape[2],
        v.shape[3],
        mask is None,
        rest[2],
    )


def _problem(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Any, mask: Any, *rest: Any
) -> AttentionProblem:
    heads, dim = q.shape[2:]
    variant: Variant = rest[2]
    # Of the buckets in the key, not of the sizes: equal keys must mean equal problems.
    batch, qo_len, kv_len = (bucket(n) or 0 for n in (*q.shape[:2], k.shape[1]))
    return AttentionProblem(
        device=devices.describe(q.device),
        extent=Extent(
            batch=batch,
            qo_len=qo_len,
            kv_len=kv_len,
            tokens=batch * qo_len,
            kv_tokens=batch * kv_len,
        ),
        kv="dense",
        num_qo_heads=heads,
        num_kv_heads=k.shape[2],
        head_dim_qk=dim,
        head_dim_vo=v.shape[3],
        q_dtype=check.dtype_name(q.dtype),
        kv_dtype=check.dtype_name(k.dtype),
        out_dtype=check.dtype_name(out.dtype),
        mask="none" if mask is None else "bool",
        features=variant.features,
        functor=variant.functor is not None,
        variant=variant,
    )


def _flatten(*args: Any) -> tuple[Any, ...]:
    *tensors, scales, params, variant = args
    return (*tensors, *inputs.flatten(scales, params), variant.to_json())


def _unflatten(*flat: Any) -> tuple[Any, ...]:
    return (*flat[:6], *inputs.unflatten(*flat[6:11]), _parsed(flat[-1]))


_attention = FunctionalOp(
    "attention",
    "(Tensor q, Tensor k, Tensor v, Tensor(a!) out, Tensor(b!)? lse, Tensor? mask, "
    "Tensor?[] scale_tensors, float[] scale_values, str[] names, Tensor[] tensors, "
    "Scalar[] numbers, str variant) -> ()",
    key=_key,
    problem=_problem,
    flatten=_flatten,
    unflatten=_unflatten,
    facts=1,
)


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = ...,
    variant: Variant | None = ...,
    mask: Tensor | None = ...,
    scales: Scales = ...,
    params: Mapping[str, Tensor | float] = ...,
    out: Tensor | None = ...,
    return_lse: Literal[False] = ...,
) -> Tensor: ...


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = ...,
    variant: Variant | None = ...,
    mask: Tensor | None = ...,
    scales: Scales = ...,
    params: Mapping[str, Tensor | float] = ...,
    out: Tensor | None = ...,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = ...,
    variant: Variant | None = ...,
    mask: Tensor | None = ...,
    scales: Scales = ...,
    params: Mapping[str, Tensor | float] = ...,
    out: Tensor | None = ...,
    return_lse: bool,
) -> Tensor | tuple[Tensor, Tensor]: ...


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    variant: Variant | None = None,
    mask: Tensor | None = None,
    scales: Scales = NO_SCALES,
    params: Mapping[str, Tensor | float] = NO_PARAMS,
    out: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of dense tensors.

    Args:
        q: ``[len, heads, dim]`` or ``[batch, len, heads, dim]``; float16, bfloat16, float32.
        k: ``[kv_len, kv_heads, dim]`` or ``[batch, kv_len, kv_heads, dim]``; also FP8.
        v: like ``k``; its dim may differ and is the output's.
        causal: shorthand for ``Variant(causal=True)``; bottom-right aligned.
        variant: what is computed between the two products; not together with ``causal``.
        mask: bool ``[len, kv_len]`` or ``[batch, len, kv_len]``, True where a key is seen.
        scales: what stored q, k and v are multiplied by.
        params: run-time parameters that the variant names. Compiled code is compiled anew for each
            value of a Python number: give what changes from call to call as a 0-d tensor.
        out: tensor to write to; its dtype may be any of float16, bfloat16, float32.
        return_lse: also return the natural-log LSE, float32 ``[(batch,) len, heads]``.

    Returns:
        ``[(batch,) len, heads, dim_v]`` in the dtype of ``q`` (``out`` if given).

    Raises:
        InvalidArgument: shapes, dtypes, devices or options that contradict each other.

    Equivalent PyTorch, without GQA, for one batch::

        s = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
        out = torch.einsum("hqk,khd->qhd", s.softmax(-1), v)

    Source: Vaswani et al., "Attention Is All You Need" (2017).

    Example::

        out = attnhub.attention(q, k, v, causal=True)
    """
    if variant is None:
        variant = _CAUSAL if causal else _PLAIN
    elif causal:
        check.fail("causal=True and variant=... are both given; say Variant(causal=True, ...)")
    elif not isinstance(variant, Variant):
        check.fail(f"variant is a {type(variant).__name__}, needs attnhub.Variant(...)")
    given = out
    if out is None:
        out = _output(q, v)
    _check_once(q, k, v, out, mask)
    lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device) if return_lse else None
    if return_lse and not variant.softmax:
        check.fail("return_lse with softmax=False: there is no denominator to take a log of")
    if scales is not NO_SCALES:
        inputs.scales(scales, q.shape[-2], k.shape[-2], q.device)
    if params or variant.params or not isinstance(params, dict):
        params = inputs.params(params, variant, q.shape[-2], q.device)
    alone = q.dim() == 3
    if alone:
        q, k, v = q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
        rows = None if lse is None else lse.unsqueeze(0)
        _attention(q, k, v, out.unsqueeze(0), rows, mask, scales, params, variant)
    else:
        _attention(q, k, v, out, lse, mask, scales, params, variant)
    result = out if given is None else given
    return result if lse is None else (result, lse)


def _output(q: Tensor, v: Tensor) -> Tensor:
    """What is written to where the caller gave nothing."""
    for name, x in (("q", q), ("v", v)):
        if not isinstance(x, Tensor):
            check.is_tensor(x, name)
    if q.dtype in check.FP8:
        check.fail("q is FP8: give out=, a float16, bfloat16 or float32 tensor, for the result")
    return torch.empty((*q.shape[:-1], *v.shape[-1:]), dtype=q.dtype, device=q.device)


#: Facts of calls that passed the checks: they cost more than the rest of the call.
_seen: set[Any] = set()


def _check_once(q: Tensor, k: Tensor, v: Tensor, out: Tensor, mask: Tensor | None) -> None:
    if torch.compiler.is_compiling():  # traced once, guarded by the compiler
        _check(q, k, v, out, mask)
        return
    tensors = (q, k, v, out) if mask is None else (q, k, v, out, mask)
    for x in tensors:
        if not isinstance(x, Tensor):
            _check_kinds(q, k, v, out, mask)
    facts = (
        q.shape, q.stride(), q.dtype, q.device, k.shape, k.stride(), k.dtype, k.device,
        v.shape, v.stride(), v.dtype, v.device, out.shape, out.stride(), out.dtype, out.device,
        None if mask is None else (mask.shape, mask.stride(), mask.dtype, mask.device),
        torch.is_grad_enabled()
        and (q.requires_grad or k.requires_grad or v.requires_grad or out.requires_grad),
    )  # fmt: skip
    if facts not in _seen:
        _check(q, k, v, out, mask)
        if len(_seen) > 10_000:  # lengths vary without end; the set must not
            _seen.clear()
        _seen.add(facts)


def _check_kinds(q: Any, k: Any, v: Any, out: Any, mask: Any) -> None:
    for name, x in (("q", q), ("k", k), ("v", v), ("out", out)):
        check.is_tensor(x, name)
    if mask is not None:
        check.is_tensor(mask, "mask")


def _check(q: Tensor, k: Tensor, v: Tensor, out: Tensor, mask: Tensor | None) -> None:
    _check_kinds(q, k, v, out, mask)
    check.dtype(q, "q", check.FLOATS + check.FP8)
    if q.dim() not in (3, 4):
        check.fail(
            f"q has {q.dim()} dimensions, needs [len, heads, dim] or [batch, len, heads, dim]"
        )
    batch, (qo_len, heads, dim) = q.shape[:-3], q.shape[-3:]
    check.dtype(k, "k", check.FLOATS + check.FP8)
    check.dtype(v, "v", (k.dtype,))
    check.shape(k, "k", (*batch, "kv_len", "kv_heads", dim))
    kv_len, kv_heads = k.shape[-3:-1]
    inputs.group(heads, kv_heads)
    check.shape(v, "v", (*batch, kv_len, kv_heads, "dim_v"))
    dim_v = v.shape[-1]
    if not dim or not dim_v:
        check.fail("head dimensions must be >= 1")
    check.shape(out, "out", (*batch, qo_len, heads, dim_v))
    check.dtype(out, "out", check.FLOATS)
    for name, x in (("q", q), ("k", k), ("v", v), ("out", out)):
        check.device(x, name, q.device, "q")
        check.last_contiguous(x, name)
    check.no_grad(q, k, v)
    check.no_grad(out, name="out")
    if mask is not None:
        check.dtype(mask, "mask", (torch.bool,))
        check.device(mask, "mask", q.device, "q")
        expected = (qo_len, kv_len)
        check.shape(mask, "mask", expected if mask.dim() == 2 else (*batch, *expected))
        check.last_contiguous(mask, "mask")
