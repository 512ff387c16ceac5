"""Nothing that is asked for is ignored: features, arguments, gradients."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import attnhub
from attnhub import Rope, activation, cascade, gemm, norm, page, quantization, rope, sampling
from attnhub.attn.problem import FEATURES
from attnhub.core.problem import fact_fields
from attnhub.core.registry import Registry
from attnhub.errors import BackendUnsupported, InvalidArgument, UnknownName
from attnhub.plugin import AnyValue, Capability, Problem, Subset, describe, isolated
from attnhub.testing.attention_variants import variant_of
from tests.field_reports.public_api import public_callables


def _problem_classes() -> Iterator[Any]:
    with isolated() as registry:
        for name in sorted(registry.ops):
            yield pytest.param(registry.problem_class(name), id=name)


@pytest.mark.parametrize("cls", list(_problem_classes()))
def test_a_sheet_refuses_every_feature_that_it_does_not_mention(cls: type[Problem]) -> None:
    """So a backend written before a feature was added can never drop it."""
    fields = fact_fields(cls)
    required = {n: f for n, f in fields.items() if f.default is dataclasses.MISSING}
    old = Capability(accepts={n: AnyValue() for n in required})
    base = {n: f.metadata["domain"][0] for n, f in required.items()}
    assert old.reasons(cls(device=describe("cpu"), **base)) == ()
    for name, f in fields.items():
        for value in f.metadata["domain"]:
            if name in required or value == f.default:
                continue
            p = cls(device=describe("cpu"), **{**base, name: value})
            (reason,) = old.reasons(p)
            absent = f.default in (None, False, "none", frozenset())
            hint = f"fits without {name}" if absent else f"fits if {name} is {f.default}"
            assert (reason.field, reason.hint) == (name, hint)
            if isinstance(value, frozenset):  # a sheet that knows some features names the others
                aware = Capability(accepts={**old.accepts, name: Subset()})
                assert {r.field for r in aware.reasons(p)} == value


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_of_attention_is_served_or_refused_by_name(feature: str) -> None:
    """A soft cap or a sink must not change meaning with the backend."""
    variant = variant_of(frozenset({feature}))
    q, k = torch.randn(3, 4, 8), torch.randn(5, 2, 8)
    params: dict[str, torch.Tensor | float] = {
        spec.name: torch.linspace(0.1, 0.4, 4) if spec.kind == "tensor" else 0.5
        for spec in variant.params
    }

    def call() -> Any:
        return attnhub.attention(q, k, k, variant=variant, params=params)

    expected = call()
    if feature in ("causal", "window"):
        with attnhub.use("torch_sdpa"):
            torch.testing.assert_close(call(), expected)
        return
    message = rf"{feature} is used, needs none \(not supported here\)"
    with attnhub.use("torch_sdpa"), pytest.raises(BackendUnsupported, match=message):
        call()


def test_a_faster_backend_that_lacks_a_feature_is_named_with_that_feature(
    isolated_registry: Registry,
) -> None:
    """Why sinks land on the slow path is said without any log level."""
    facts = {"num_qo_heads": 64, "num_kv_heads": 8, "head_dim": 128, "dtype": "bfloat16"}
    variant = attnhub.Variant(causal=True, sinks=True)
    decision = attnhub.explain("attention", device="sm_120", variant=variant, **facts)
    assert [c.name for c in decision.ranked] == ["reference"]
    fields = {r.name: {x.field for x in r.reasons} for r in decision.rejected if r.reasons}
    assert fields == {"torch_sdpa": {"sinks"}, "torch_varlen": {"sinks"}}
    assert decision.notes == (
        "would fit: torch_sdpa without sinks",
        "would fit: torch_varlen without sinks",
    )


def test_no_public_function_swallows_keywords() -> None:
    """An argument that a function does not know is an error in Python itself."""
    open_ended = {
        function.__qualname__
        for _, function in public_callables()
        if any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())
    }
    # Facts of a problem: each is checked against the fields of the op. To `assuming` the author of
    # an op gives sizes by names of the author's own.
    assert open_ended == {"explain", "Problem.of", "assuming", "launch_triton"}
    with pytest.raises(UnknownName, match="did you mean 'page_size'"):
        attnhub.explain("mla", device="cpu", num_heads=4, dtype="float32", page_sizes=4)
    q = torch.zeros(1, 1, 8)
    with pytest.raises(TypeError, match="attn_mask"):
        attnhub.attention(q, q, q, attn_mask=torch.ones(1, 1))  # type: ignore[call-arg]


def i32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def grad(*shape: int) -> torch.Tensor:
    return torch.rand(*shape).requires_grad_()


def plain(*shape: int) -> torch.Tensor:
    return torch.rand(*shape)


def _batch_attention() -> Any:
    attn = attnhub.BatchAttention(4, 2, 8, torch.float32, device="cpu")
    attn.plan(i32(0, 2), attnhub.RaggedKV(i32(0, 3)))
    attn.run(plain(2, 4, 8), (plain(3, 2, 8), plain(3, 2, 8)))  # the same shapes, without a grad
    return attn.run(plain(2, 4, 8), (plain(3, 2, 8), grad(3, 2, 8)))


def _batch_mla() -> Any:
    mla = attnhub.BatchMLA(
        2, torch.float32, head_dim=(8, 4), page_size=4, scale=1.0, device="cpu"
    )  # fmt: skip
    mla.plan(i32(0, 1), attnhub.PagedKV(i32(0, 1), i32(0), i32(3)))
    caches = plain(1, 4, 8), plain(1, 4, 4)
    mla.run(plain(1, 2, 8), plain(1, 2, 4), caches)
    return mla.run(grad(1, 2, 8), plain(1, 2, 4), caches)


def _append() -> None:
    table = attnhub.PagedKV(i32(0, 1), i32(0), i32(2))
    page.append_paged_kv(grad(2, 2, 8), plain(2, 2, 8), plain(1, 2, 4, 2, 8), table, i32(0, 0),
                         i32(0, 1))  # fmt: skip


_TURN = Rope()
WITH_GRAD: dict[str, Callable[[], Any]] = {
    "attention, q": lambda: attnhub.attention(grad(2, 4, 8), plain(3, 2, 8), plain(3, 2, 8)),
    "attention, v": lambda: attnhub.attention(plain(2, 4, 8), plain(3, 2, 8), grad(3, 2, 8)),
    "BatchAttention, on its second run": _batch_attention,
    "BatchMLA, on its second run": _batch_mla,
    "rmsnorm, weight": lambda: norm.rmsnorm(plain(2, 8), grad(8)),
    "fused_add_rmsnorm": lambda: norm.fused_add_rmsnorm(grad(2, 8), plain(2, 8), plain(8)),
    "layernorm": lambda: norm.layernorm(grad(2, 8), plain(8)),
    "apply_rope": lambda: rope.apply_rope(grad(2, 4, 8), plain(2, 2, 8), i32(0, 1), _TURN),
    "silu_and_mul": lambda: activation.silu_and_mul(grad(2, 8)),
    "merge_state": lambda: cascade.merge_state(grad(2, 4, 8), plain(2, 4), plain(2, 4, 8),
                                               plain(2, 4)),
    "segment_gemm": lambda: gemm.segment_gemm(grad(2, 8), plain(1, 8, 4), i32(0, 2)),
    "append_paged_kv": _append,
    "quantize_fp8": lambda: quantization.quantize_fp8(grad(2, 8), torch.float8_e4m3fn),
    "softmax": lambda: sampling.softmax(grad(2, 8)),
    "sample_from_logits": lambda: sampling.sample_from_logits(grad(2, 8)),
}  # fmt: skip


@pytest.mark.parametrize("call", WITH_GRAD.values(), ids=WITH_GRAD.keys())
def test_a_forward_only_op_says_so_instead_of_dropping_the_gradient(
    call: Callable[[], Any],
) -> None:
    """A backward that does not exist is refused before the forward, never after it."""
    with pytest.raises(InvalidArgument, match=r"forward only .* use torch.no_grad\(\)"):
        call()
    with torch.no_grad():
        call()
