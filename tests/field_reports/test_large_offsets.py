"""Offsets past 2^31: page ids times strides, custom masks, strided rows.

The memory is asked for but only its ends are touched, so each test needs megabytes of the machine,
not gigabytes. Where a system refuses such promises, the test is skipped. What needs more than 2^31
elements really computed (a norm over 70 000 x 32 768) is left to the GPU's plugins.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import attnhub
from attnhub import (
    BatchAttention,
    BatchMLA,
    Paged,
    PagedKV,
    Ragged,
    RaggedKV,
    Variant,
    activation,
    norm,
    page,
)
from attnhub.attn import rows
from attnhub.attn.problem import AttentionProblem

LIMIT = 1 << 31


def i32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def promised(elements: int, dtype: torch.dtype) -> torch.Tensor:
    """Memory of which a system keeps only the pages that are touched."""
    try:
        return torch.empty(elements, dtype=dtype)
    except RuntimeError as error:
        pytest.skip(f"this machine promises no {elements} elements: {error}")


@pytest.fixture(scope="module")
def halves() -> torch.Tensor:
    """A little more than 2^31 elements of bfloat16."""
    return promised(LIMIT + (1 << 16), torch.bfloat16)


@pytest.mark.parametrize("backend", ["reference", "torch_sdpa"])
@pytest.mark.parametrize("qo_len", [1, 3])
def test_a_high_page_id_is_read_where_it_lies(
    halves: torch.Tensor, backend: str, qo_len: int
) -> None:
    size = 2 * 4 * 1 * 8
    cache = halves[: LIMIT // size * size + 4 * size].view(-1, 2, 4, 1, 8)
    last = cache.shape[0] - 1
    assert (last - 1) * cache.stride(0) >= LIMIT
    new = torch.randn(7, 1, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    table = PagedKV(i32(0, 2), i32(last, last - 1), i32(3))
    page.append_paged_kv(new, -new, cache, table, i32(*[0] * 7), i32(*range(7)))
    attn = BatchAttention(
        2, 1, 8, torch.bfloat16, Paged(4), variant=Variant(causal=True), device="cpu",
        backend=backend,
    )  # fmt: skip
    attn.plan(i32(0, qo_len), table)
    q = torch.ones(qo_len, 2, 8).bfloat16()
    with attnhub.use(backend):
        torch.testing.assert_close(attn.run(q, cache), attnhub.attention(q, new, -new, causal=True))


def test_a_high_page_of_latent_rows_is_read_where_it_lies(halves: torch.Tensor) -> None:
    """Rows of 576 in pages of 16: page ids from 2^31 / (16 x 576) on came out as zeros."""
    joined = halves[: LIMIT // 9216 * 9216 + 3 * 9216].view(-1, 16, 576)
    ckv, kpe = joined[..., :512], joined[..., 512:]
    last = joined.shape[0] - 1
    assert last * joined.stride(0) >= LIMIT
    generator = torch.Generator().manual_seed(0)
    new = torch.randn(5, 576, generator=generator).bfloat16()
    table = PagedKV(i32(0, 1), i32(last), i32(5))
    page.append_paged_mla(
        new[:, :512], new[:, 512:], ckv, kpe, table, i32(*[0] * 5), i32(*range(5))
    )
    q = torch.randn(1, 16, 576, generator=generator).bfloat16()
    results = []
    for caches, where in (((ckv, kpe), table), (_small(new), PagedKV(i32(0, 1), i32(0), i32(5)))):
        mla = BatchMLA(16, torch.bfloat16, page_size=16, scale=192**-0.5, device="cpu")
        mla.plan(i32(0, 1), where)
        results.append(mla.run(q[..., :512], q[..., 512:], caches))
    assert torch.equal(results[0], results[1])
    assert results[0].any()


def _small(new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    cache = torch.zeros(1, 16, 576).bfloat16()
    cache[0, :5] = new
    return cache[..., :512], cache[..., 512:]


def test_a_mask_of_more_than_two_billion_products_is_cut_where_requests_begin() -> None:
    """The first request alone has 2^31 + 16; what the second may see lies behind them."""
    first = (1 << 30) + 8
    bits = torch.tensor([True, False, True, True, False, False, True, False])
    mask = promised(2 * first + 8, torch.bool)
    mask[-8:] = bits
    attn = BatchAttention(1, 1, 1, torch.float32, Ragged(), device="cpu")
    attn.plan(i32(0, 2, 3), RaggedKV(i32(0, first, first + 8)), mask=mask)
    kv = torch.zeros(1, 1, 1).expand(first + 8, 1, 1)
    problem = AttentionProblem.of(
        "cpu", kv=Ragged(), num_qo_heads=1, num_kv_heads=1, head_dim=1, dtype="float32"
    )
    assert attn._batch is not None
    _, second = rows.requests(attn._batch, problem, kv, kv)
    assert second.visible is not None
    assert torch.equal(second.visible[0], bits)


@pytest.mark.parametrize(
    "op",
    [
        pytest.param(lambda x: norm.rmsnorm(x, torch.ones(16).bfloat16()), id="rmsnorm"),
        pytest.param(activation.silu_and_mul, id="silu_and_mul"),
    ],
)
def test_rows_further_apart_than_two_billion_elements(
    halves: torch.Tensor, op: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    x = halves.as_strided((2, 16), (LIMIT + 32, 1))
    x[0], x[1] = 1.0, torch.linspace(-1, 1, 16).bfloat16()
    assert torch.equal(op(x), op(x.clone()))
