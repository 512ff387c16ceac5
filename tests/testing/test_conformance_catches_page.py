"""The suite catches unsound backends of the ops on paged caches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import attnhub
from tests.testing.liars import Register, assert_noticed, packed

# -- page: new a, new b, cache a, cache b, indptr, indices, batch_indices, positions, layout ------


def append_in_page_order(honest: Any, *args: Any) -> None:
    honest(*args[:5], args[5].sort().values, *args[6:])


def append_padding_too(honest: Any, *args: Any) -> None:
    honest(*args[:6], args[6].clamp(min=0), args[7].clamp(min=0), *args[8:])


def append_keys_only(honest: Any, a: Any, b: Any, a_cache: Any, b_cache: Any, *rest: Any) -> None:
    honest(a, a, a_cache, a_cache, *rest)


def append_as_if_packed(honest: Any, a: Any, b: Any, *rest: Any) -> None:
    honest(packed(a), packed(b), *rest)


def append_tidily(honest: Any, a: Any, b: Any, a_cache: Any, *rest: Any) -> None:
    honest(a, b, a_cache, *rest)
    a_cache.copy_(a_cache.float().nan_to_num(0.0))


def append_clears_pages(honest: Any, a: Any, b: Any, a_cache: Any, *rest: Any) -> None:
    honest(a, b, a_cache, *rest)
    a_cache[-1] = 0


def append_as_nhd(honest: Any, *args: Any) -> None:
    if args[-1] == "HND":
        a, b = (x.transpose(1, 2).reshape(x.shape) for x in args[2:4])
        honest(*args[:2], a, b, *args[4:])
    else:
        honest(*args)


def append_until_padding(honest: Any, a: Any, b: Any, *rest: Any) -> None:
    *caches_and_table, batch_indices, positions, layout = rest
    n = int((batch_indices < 0).int().argmax()) if len(batch_indices) else 0
    honest(a[:n], b[:n], *caches_and_table, batch_indices[:n], positions[:n], layout)


# q, k, v, cos_sin_cache, q_out, k_cache, v_cache, scales, then the table and places as above


def rope_turns_padding(honest: Any, q: Any, *args: Any) -> None:
    honest(q, *args)
    padding = args[9] < 0
    args[3][padding] = q[padding].flip(-1).to(args[3].dtype)


def rope_keys_unturned(honest: Any, q: Any, k: Any, v: Any, table: Any, *rest: Any) -> None:
    still = torch.cat([torch.ones_like(x) * (1 - i) for i, x in enumerate(table.chunk(2, -1))], -1)
    kept = rest[1].clone()
    honest(q, k, v, still, *rest)
    turned = rest[1].clone()
    rest[1].copy_(kept)
    honest(q, k, v, table, *rest)
    rest[1].copy_(turned)


def rope_unscaled(honest: Any, *args: Any) -> None:
    honest(*args[:7], attnhub.Scales(), *args[8:])


def rope_first_scale(honest: Any, *args: Any) -> None:
    of = args[7]
    first = (x.flatten()[:1] if isinstance(x, torch.Tensor) else x for x in (of.q, of.k, of.v))
    honest(*args[:7], attnhub.Scales(*first), *args[8:])


def rope_keeps_the_rest(honest: Any, *args: Any) -> None:
    """What lies behind the turned elements is copied only into other memory, of keys too."""
    before, width = args[5].clone(), args[3].shape[1]
    honest(*args)
    args[5][..., width:] = before[..., width:]


FP8 = {"fp8=float8_e4m3fn", "fp8=float8_e5m2", "fp8_q=True"}
WIDE = {f"head_dim_qk={n}" for n in (40, 80, 128, 192, 256)} | {"rotary_dim=2", "rotary_dim=40"}


def indices_without_padding(honest: Any, indptr: Any, lens: Any, request: Any, place: Any) -> None:
    honest(indptr, lens, request, place)
    request.clamp_(min=0)


def lengths_of_nobody(honest: Any, indptr: Any, last: Any, out: Any, page_size: int) -> None:
    honest(indptr, last, out, page_size)
    out.copy_(torch.where(indptr.diff() > 0, out, last))


PAGE = {
    "wrong page": ("append_paged_kv", {"run": append_in_page_order}, {"base"}),
    "padding written": ("append_paged_kv", {"run": append_padding_too}, {"base"}),
    "values not written": ("append_paged_kv", {"run": append_keys_only}, {"base"}),
    "strides ignored": ("append_paged_kv", {"run": append_as_if_packed}, {"base"}),
    "memory of nobody tidied": ("append_paged_kv", {"run": append_tidily}, {"base"}),
    "other pages cleared": ("append_paged_kv", {"run": append_clears_pages}, {"base"}),
    "layout ignored": ("append_paged_kv", {"run": append_as_nhd}, {"layout=HND"}),
    "nothing after padding": ("append_paged_kv", {"run": append_until_padding}, {"base"}),
    "queries of padding changed": (
        "rope_append_paged_kv",
        {"run": rope_turns_padding},
        {"base"},
    ),
    "keys not turned": ("rope_append_paged_kv", {"run": rope_keys_unturned}, {"base"}),
    "scales ignored": ("rope_append_paged_kv", {"run": rope_unscaled}, FP8),
    "one scale for all heads": ("rope_append_paged_kv", {"run": rope_first_scale}, FP8),
    "rest of a key not stored": ("rope_append_paged_kv", {"run": rope_keeps_the_rest}, WIDE),
    "wrong page of a latent row": ("append_paged_mla", {"run": append_in_page_order}, {"base"}),
    "latent strides ignored": ("append_paged_mla", {"run": append_as_if_packed}, {"base"}),
    "padding has a request": (
        "get_batch_indices_positions",
        {"run": indices_without_padding},
        {"base"},
    ),
    "no page, but a length": ("get_seq_lens", {"run": lengths_of_nobody}, {"base"}),
}


@pytest.mark.parametrize(
    ("op", "lie", "noticed"), [pytest.param(*lie, id=name) for name, lie in PAGE.items()]
)
def test_catches(register: Register, op: str, lie: dict[str, Any], noticed: set[str]) -> None:
    assert_noticed(register, f"page.{op}", lie, noticed)
