"""Every tensor of every public function: what is no tensor, or needs a gradient, is refused.

The families' own tests cover shapes, dtypes, devices and strides; these two rules hold for all.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from attnhub import (
    Rope,
    activation,
    cascade,
    gemm,
    norm,
    page,
    quantization,
    rope,
    sampling,
)
from attnhub.attn import PagedKV
from attnhub.errors import InvalidArgument

Make = Callable[[], dict[str, Any]]


def f(*shape: int) -> torch.Tensor:
    return torch.full(shape, 0.5)


def i(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def seeds() -> dict[str, Any]:
    return {"seed": torch.arange(2), "offset": torch.arange(2)}


def rotation() -> dict[str, Any]:
    return {"q": f(2, 3, 8), "k": f(2, 1, 8), "positions": i(0, 1)}


def looked_up() -> dict[str, Any]:
    return {**rotation(), "cache": f(2, 8)}


def append(*names: str, heads: tuple[int, ...] = ()) -> dict[str, Any]:
    table = PagedKV(i(0, 1), i(0), i(2))
    return {**{name: f(2, *heads, 4) for name in names}, "table": table} | {
        "batch_indices": i(0, 0),
        "positions": i(0, 1),
    }


def filters(**more: Any) -> dict[str, Any]:
    return {"probs": f(2, 5), "indices": i(0, 1), **seeds(), **more}


def drafts(probs: str = "draft_probs") -> dict[str, Any]:
    ids = torch.zeros(2, 1, dtype=torch.int32)
    return {"draft_token_ids": ids, "target_probs": f(2, 2, 5), probs: f(2, 1, 5), **seeds()}


def state() -> dict[str, Any]:
    return {"o_b": f(2, 3, 8), "lse_b": f(2, 3)}


def gated() -> dict[str, Any]:
    return {"x": f(2, 8), "dtype": E4M3, "scale": f(), "out": f(2, 4).to(E4M3)}


PARAMS: dict[str, Any] = {"temperature": f(2), "top_k": i(1, 2), "top_p": f(2), "min_p": f(2)}
BOTH = {name: PARAMS[name] for name in ("top_k", "top_p")}
E4M3 = torch.float8_e4m3fn

CALLS: dict[Callable[..., Any], Make] = {
    norm.rmsnorm: lambda: {"x": f(2, 8), "weight": f(8), "out": f(2, 8)},
    norm.gemma_rmsnorm: lambda: {"x": f(2, 8), "weight": f(8), "out": f(2, 8)},
    norm.fused_add_rmsnorm: lambda: {"x": f(2, 8), "residual": f(2, 8), "weight": f(8)},
    norm.gemma_fused_add_rmsnorm: lambda: {"x": f(2, 8), "residual": f(2, 8), "weight": f(8)},
    norm.layernorm: lambda: {"x": f(2, 8), "weight": f(8), "bias": f(8), "out": f(2, 8)},
    rope.apply_rope: lambda: {**rotation(), "rope": Rope(), "out": (f(2, 3, 8), f(2, 1, 8))},
    rope.apply_rope_: lambda: {**rotation(), "rope": Rope()},
    rope.apply_rope_cos_sin: lambda: {**looked_up(), "out": (f(2, 3, 8), f(2, 1, 8))},
    rope.apply_rope_cos_sin_: looked_up,
    activation.silu_and_mul: gated,
    activation.gelu_and_mul: gated,
    activation.gelu_tanh_and_mul: gated,
    page.append_paged_kv: lambda: {
        **append("k_new", "v_new", heads=(1,)),
        "kv_cache": (f(2, 3, 1, 4), f(2, 3, 1, 4)),
    },
    page.rope_append_paged_kv: lambda: {
        **append(),
        "qkv": f(2, 5, 4),
        "cos_sin_cache": f(2, 4),
        "kv_cache": (f(2, 3, 1, 4), f(2, 3, 1, 4)),
        "out": f(2, 3, 4),
    },
    page.append_paged_mla: lambda: {
        **append("ckv", "kpe"),
        "ckv_cache": f(2, 3, 4),
        "kpe_cache": f(2, 3, 4),
    },
    page.get_batch_indices_positions: lambda: {
        "append_indptr": i(0, 1),
        "seq_lens": i(1),
        "num_tokens": 1,
    },
    page.get_seq_lens: lambda: {"table": PagedKV(i(0, 1), i(0), i(2)), "page_size": 4},
    cascade.merge_state: lambda: {
        "o_a": f(2, 3, 8),
        "lse_a": f(2, 3),
        **state(),
        "out": (f(2, 3, 8), f(2, 3)),
    },
    cascade.merge_state_: lambda: {
        "o": f(2, 3, 8),
        "lse": f(2, 3),
        **state(),
        "mask": i(1, 1) > 0,
    },
    cascade.merge_states: lambda: {
        "o": f(2, 4, 3, 8),
        "lse": f(2, 4, 3),
        "out": (f(2, 3, 8), f(2, 3)),
    },
    quantization.packbits: lambda: {"x": f(8) > 0, "out": torch.zeros(1, dtype=torch.uint8)},
    quantization.unpackbits: lambda: {
        "packed": torch.zeros(1, dtype=torch.uint8),
        "count": 8,
        "out": f(8) < 0,
    },
    quantization.segment_packbits: lambda: {"x": f(8) > 0, "indptr": i(0, 8)},
    quantization.quantize_fp8: lambda: {
        "x": f(2, 8),
        "dtype": E4M3,
        "scale": f(),
        "out": f(2, 8).to(E4M3),
    },
    quantization.dequantize_fp8: lambda: {
        "stored": f(2, 8).to(E4M3),
        "scale": f(),
        "out": f(2, 8),
    },
    gemm.segment_gemm: lambda: {
        "x": f(2, 4),
        "weights": f(1, 4, 3),
        "seg_indptr": i(0, 2),
        "weight_indices": i(0),
        "out": f(2, 3),
    },
    sampling.sample: lambda: {
        "logits": f(2, 5),
        "params": sampling.SamplingParams(**PARAMS),
        **seeds(),
    },
    sampling.sample_from_logits: lambda: {
        "logits": f(2, 5),
        "temperature": f(2),
        "indices": i(0, 1),
        **seeds(),
    },
    sampling.top_k_top_p_sample_from_logits: lambda: {
        "logits": f(2, 5),
        "temperature": f(2),
        **BOTH,
        **seeds(),
    },
    sampling.sample_from_probs: filters,
    sampling.top_k_sample: lambda: filters(top_k=i(1, 2)),
    sampling.top_p_sample: lambda: filters(top_p=f(2)),
    sampling.min_p_sample: lambda: filters(min_p=f(2)),
    sampling.top_k_top_p_sample_from_probs: lambda: filters(**BOTH),
    sampling.softmax: lambda: {"logits": f(2, 5), "temperature": f(2), "out": f(2, 5)},
    sampling.top_k_renorm: lambda: {"probs": f(2, 5), "top_k": i(1, 2), "out": f(2, 5)},
    sampling.top_p_renorm: lambda: {"probs": f(2, 5), "top_p": f(2), "out": f(2, 5)},
    sampling.top_k_mask_logits: lambda: {"logits": f(2, 5), "top_k": i(1, 2), "out": f(2, 5)},
    sampling.top_k: lambda: {"scores": f(2, 5), "k": 2},
    sampling.chain_speculative_sampling: drafts,
    sampling.tree_speculative_sampling: lambda: {
        **drafts(),
        "parents": torch.full((2, 1), -1, dtype=torch.int32),
    },
}

#: Public functions that take no tensor, or are tested as classes.
NO_CALL = {"cos_sin_cache", "positions", "CascadeAttention", "SamplingParams"}

Path = tuple[str, int | None]


def tensors(given: dict[str, Any]) -> Iterator[tuple[Path, torch.Tensor]]:
    """Every tensor of a call, and of the pairs in it, with the place it has there."""
    for name, value in given.items():
        if isinstance(value, torch.Tensor):
            yield (name, None), value
        elif isinstance(value, tuple):
            for at, part in enumerate(value):
                if isinstance(part, torch.Tensor):
                    yield (name, at), part


def put(given: dict[str, Any], where: Path, value: Any) -> None:
    name, at = where
    if at is None:
        given[name] = value
    else:
        given[name] = tuple(value if i == at else part for i, part in enumerate(given[name]))


def assert_refused_unwritten(
    function: Callable[..., Any], given: dict[str, Any], message: str
) -> None:
    before = [(x, x.detach().clone()) for _, x in tensors(given)]
    with pytest.raises(InvalidArgument, match=message):
        function(**given)
    assert all(torch.equal(x.detach().float(), was.float()) for x, was in before)


CASES = [
    pytest.param(function, make, id=f"{function.__module__.split('.')[1]}.{function.__name__}")
    for function, make in CALLS.items()
]
BY_CALL = pytest.mark.parametrize(("function", "make"), CASES)


@BY_CALL
def test_the_call_is_good_and_names_every_tensor(function: Callable[..., Any], make: Make) -> None:
    function(**make())
    missing = {"generator", "indices", "temperature"}  # of draws whose siblings have them
    annotations = inspect.get_annotations(function)
    asked = {name for name, kind in annotations.items() if "Tensor" in kind and name != "return"}
    assert asked - make().keys() <= missing


@pytest.mark.parametrize("family", sorted({str(c.id).split(".")[0] for c in CASES}))
def test_every_function_has_a_call(family: str) -> None:
    public = set(importlib.import_module(f"attnhub.{family}").__all__) - NO_CALL
    called = {f.__name__ for f in CALLS if f.__module__.startswith(f"attnhub.{family}.")}
    assert called == public


@BY_CALL
@pytest.mark.parametrize("wrong", ["text", [0.5], object()], ids=["text", "list", "object"])
def test_what_is_no_tensor_is_refused(function: Callable[..., Any], make: Make, wrong: Any) -> None:
    for where, _ in tensors(make()):
        given = make()
        put(given, where, wrong)
        assert_refused_unwritten(function, given, where[0])


@BY_CALL
def test_a_tensor_that_needs_a_gradient_is_refused(
    function: Callable[..., Any], make: Make
) -> None:
    for where, tensor in tensors(make()):
        if tensor.is_floating_point():
            given = make()
            put(given, where, tensor.clone().requires_grad_())
            assert_refused_unwritten(function, given, "forward only")
            with torch.no_grad():
                function(**given)


PAIRS = [
    pytest.param(function, make, name, id=f"{function.__name__}-{name}")
    for function, make in CALLS.items()
    for name, value in make().items()
    if isinstance(value, tuple)
]


@pytest.mark.parametrize(("function", "make", "name"), PAIRS)
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_pair_has_two_tensors(
    function: Callable[..., Any], make: Make, name: str, count: int
) -> None:
    given = make()
    given[name] = (given[name] * 2)[:count]
    assert_refused_unwritten(function, given, rf"{name} has {count} entries, needs a tuple")
    given[name] = 3
    assert_refused_unwritten(function, given, rf"{name} is a int, needs a tuple \(.*of two tensors")
