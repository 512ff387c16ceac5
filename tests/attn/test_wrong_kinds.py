"""Values of the wrong kind, where Python would otherwise fail far from the cause or not at all."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import attnhub
from attnhub import (
    BatchAttention,
    BatchMLA,
    BlockSparse,
    BlockSparseKV,
    GraphLimits,
    Paged,
    PagedKV,
    Ragged,
    RaggedKV,
    Rope,
    Scales,
    VariableBlockKV,
    VariableBlocks,
    Variant,
)
from attnhub.errors import InvalidArgument, UnknownName
from attnhub.mla import MLAScales

Q, K = torch.zeros(3, 4, 8), torch.zeros(9, 2, 8)


def i32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


QO = i32(0, 2, 3)


def attention(**changes: Any) -> BatchAttention:
    values: dict[str, Any] = {"kv": Ragged(), "device": "cpu", **changes}
    return BatchAttention(4, 2, 8, torch.float32, values.pop("kv"), **values)


def latent(**changes: Any) -> BatchMLA:
    values: dict[str, Any] = {"scale": 1.0, "page_size": 4, "device": "cpu", **changes}
    return BatchMLA(4, "float32", head_dim=(8, 4), **values)


def table(**changes: torch.Tensor) -> PagedKV:
    values = {"indptr": i32(0, 2, 3), "indices": i32(2, 0, 1), "last_page_len": i32(2, 3)}
    return PagedKV(**{**values, **changes})


@pytest.mark.parametrize("make", [attention, latent], ids=["attention", "mla"])
@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"device": "cuda"}, InvalidArgument, r"device 'cuda' has no index; give one"),
        ({"device": "meta"}, InvalidArgument, "device type 'meta' is not served"),
        ({"backend": "typo"}, UnknownName, "unknown backend 'typo'"),
        ({"backend": "refrence"}, UnknownName, "did you mean 'reference'"),
        ({"graph": {"max_batch": 1}}, InvalidArgument, r"graph is a dict, needs GraphLimits"),
    ],
)
def test_constructors(make: Any, changes: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make(**changes)


@pytest.mark.parametrize("variant", [None, "causal"])
def test_a_variant_is_a_variant(variant: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"variant is a \w+, needs attnhub\.Variant"):
        attention(variant=variant)
    if variant is not None:
        with pytest.raises(InvalidArgument, match=r"variant is a str, needs attnhub\.Variant"):
            attnhub.attention(Q, Q, Q, variant=variant)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_pages": 1.5}, "max_pages=1.5: needs an integer >= 0"),
        ({"max_mask_bytes": -1}, "max_mask_bytes=-1: needs an integer >= 0"),
        ({"max_batch": 2.0}, "max_batch=2.0: needs an integer >= 1"),
        ({"max_qo_len": "1"}, "max_qo_len='1': needs an integer >= 0"),
        ({"max_kv_len": True}, "max_kv_len=True: needs an integer >= 0"),
        ({"offsets": 1}, "offsets=1: give True or False"),
    ],
)
def test_limits_are_whole_numbers(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        GraphLimits(**{"max_batch": 1, "max_qo_tokens": 1, **limits})


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"max_qo_len": "7"}, "max_qo_len='7': needs an integer >= 0"),
        ({"max_kv_len": 7.5}, "max_kv_len=7.5: needs an integer >= 0"),
        ({"max_kv_len": -1}, "max_kv_len=-1: needs an integer >= 0"),
        ({"params": {"x": 1}}, "params has x; this variant takes exactly: none"),
        ({"params": [1]}, "params is a list, needs a dict"),
        ({"mask": torch.ones(30, dtype=torch.bool)[::2]}, r"mask is not contiguous; call mask\."),
        ({"mask": torch.ones(15, dtype=torch.bool, device="meta")}, "mask is on meta, needs the"),
        ({"mask": [[True]] * 2}, r"mask\[0\] must be a torch.Tensor, got list"),
        ({"mask": 5}, "mask is a int, needs a tensor or a list"),
        ({"q_offset": i32(0, 0).to("meta")}, "q_offset is on meta, needs the host or cpu"),
        ({"k_offset": [0, 0]}, "k_offset must be a torch.Tensor, got list"),
    ],
)
def test_options_of_plan(plan: dict[str, Any], message: str) -> None:
    attn = attention(variant=Variant(rope=Rope()))
    with pytest.raises(InvalidArgument, match=message):
        attn.plan(QO, RaggedKV(i32(0, 6, 9)), **plan)


@pytest.mark.parametrize("make", [attention, latent], ids=["attention", "mla"])
@pytest.mark.parametrize("name", ["qo_indptr", "indptr", "indices", "last_page_len"])
def test_each_tensor_of_a_page_table_lies_on_the_host_or_with_the_attention(
    make: Any, name: str
) -> None:
    attn = make() if make is latent else make(kv=Paged(4))
    qo = QO.to("meta") if name == "qo_indptr" else QO
    given = table() if name == "qo_indptr" else table(**{name: getattr(table(), name).to("meta")})
    with pytest.raises(InvalidArgument, match=f"{name} is on meta, needs the host or cpu"):
        attn.plan(qo, given)


@pytest.mark.parametrize("name", ["indptr", "block_indptr", "block_indices", "block_mask"])
def test_each_tensor_of_blocks_lies_on_the_host_or_with_the_attention(name: str) -> None:
    values = {
        "indptr": i32(0, 6, 9),
        "block_indptr": i32(0, 1, 2),
        "block_indices": i32(0, 0),
        "block_mask": torch.ones(2, 2, 4, dtype=torch.bool),
    }
    attn = attention(kv=BlockSparse(2, 4))
    attn.plan(QO, BlockSparseKV(**values))
    values[name] = values[name].to("meta")
    with pytest.raises(InvalidArgument, match=f"{name} is on meta, needs the host or cpu"):
        attn.plan(QO, BlockSparseKV(**values))


@pytest.mark.parametrize("name", ["row_sizes", "col_sizes", "block_map"])
def test_variable_blocks_are_contiguous_and_lie_with_the_attention(name: str) -> None:
    sizes = torch.tensor([[2, 1], [1, 2]], dtype=torch.int32)
    values = {"row_sizes": sizes, "col_sizes": sizes, "block_map": torch.ones(2, 2, 2).bool()}
    attn = attention(kv=VariableBlocks())
    attn.plan(i32(0, 3), VariableBlockKV(**values))
    for change, message in (
        (values[name].to("meta"), "is on meta"),
        (values[name].transpose(0, 1), "is not contiguous"),
        (values[name].tolist(), "must be a torch.Tensor"),
    ):
        with pytest.raises(InvalidArgument, match=f"{name} {message}"):
            attn.plan(i32(0, 3), VariableBlockKV(**{**values, name: change}))  # type: ignore[arg-type]


@pytest.mark.parametrize("last", [3, -1, 1])
def test_a_request_without_pages_has_no_last_page(last: int) -> None:
    attn = attention(kv=Paged(4))
    given = PagedKV(i32(0, 2, 2), i32(2, 0), i32(2, last))
    with pytest.raises(InvalidArgument, match=rf"last_page_len\[1\] is {last}, needs 0 for a"):
        attn.plan(QO, given)
    attn.plan(QO, PagedKV(i32(0, 2, 2), i32(2, 0), i32(2, 0)))


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ({"q": Q.tolist()}, "q must be a torch.Tensor, got list"),
        ({"kv": K}, r"kv is one tensor of shape \[9, 2, 8\], but kv=Ragged.* takes a tuple"),
        ({"kv": (K, K.tolist())}, "v must be a torch.Tensor, got list"),
        ({"kv": None}, "kv is a NoneType, needs one cache tensor or a tuple"),
        ({"out": [0.0]}, "out must be a torch.Tensor, got list"),
        ({"scales": None}, r"scales is a NoneType, needs Scales\("),
        ({"scales": 2.0}, r"scales is a float, needs Scales\("),
        ({"params": None}, "params is a NoneType, needs a dict"),
    ],
)
def test_arguments_of_run(run: dict[str, Any], message: str) -> None:
    attn = attention()
    attn.plan(QO, RaggedKV(i32(0, 6, 9)))
    given: dict[str, Any] = {"q": Q, "kv": (K, K), **run}
    with pytest.raises(InvalidArgument, match=message):
        attn.run(given.pop("q"), given.pop("kv"), **given)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ({"q_nope": Q.tolist()}, "q_nope must be a torch.Tensor, got list"),
        ({"q_pe": None}, "q_pe must be a torch.Tensor, got NoneType"),
        ({"kv": (K, None)}, "kpe_cache must be a torch.Tensor, got NoneType"),
        ({"out": 1}, "out must be a torch.Tensor, got int"),
        ({"scales": Scales()}, "scales is a Scales, needs MLAScales"),
        ({"scales": None}, "scales is a NoneType, needs MLAScales"),
    ],
)
def test_arguments_of_latent_run(run: dict[str, Any], message: str) -> None:
    mla = latent()
    mla.plan(QO, table())
    given: dict[str, Any] = {"q_nope": Q, "q_pe": Q[..., :4], "scales": MLAScales()}
    given |= {"kv": (torch.zeros(3, 4, 8), torch.zeros(3, 4, 4)), **run}
    with pytest.raises(InvalidArgument, match=message):
        mla.run(given.pop("q_nope"), given.pop("q_pe"), given.pop("kv"), **given)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"q": Q.tolist()}, "q must be a torch.Tensor, got list"),
        ({"v": None}, "v must be a torch.Tensor, got NoneType"),
        ({"q": Q.tolist(), "out": Q}, "q must be a torch.Tensor, got list"),
        ({"out": [1]}, "out must be a torch.Tensor, got list"),
        ({"mask": [[True]]}, "mask must be a torch.Tensor, got list"),
        ({"k": K[None]}, r"k has shape \[1, 9, 2, 8\], needs \[kv_len, kv_heads, 8\]"),
        ({"q": Q[None]}, r"k has shape \[9, 2, 8\], needs \[1, kv_len, kv_heads, 8\]"),
        ({"q": torch.zeros(8)}, "q has 1 dimensions, needs"),
        ({"v": torch.zeros(())}, r"v has shape \[\], needs"),
        ({"scales": None}, r"scales is a NoneType, needs Scales\("),
        ({"params": None}, "params is a NoneType, needs a dict"),
    ],
)
def test_arguments_of_attention(call: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"q": Q, "k": K, "v": K, **call}
    with pytest.raises(InvalidArgument, match=message):
        attnhub.attention(given.pop("q"), given.pop("k"), given.pop("v"), **given)


def test_messages_name_the_shapes_that_were_given() -> None:
    """Not those with the batch dimension that AttnHub adds."""
    with pytest.raises(InvalidArgument, match=r"out has shape \[3, 4, 9\], needs \[3, 4, 8\]"):
        attnhub.attention(Q, K, K, out=torch.zeros(3, 4, 9))
    with pytest.raises(InvalidArgument, match=r"mask has shape \[1, 3, 9\], needs \[3, 9\]"):
        attnhub.attention(Q, K, K, mask=torch.ones(1, 3, 9, dtype=torch.bool))


def test_a_rotation_wider_than_a_head() -> None:
    rope = attnhub.Rope(rotary_dim=128)
    with pytest.raises(InvalidArgument, match="rotary_dim=128 with head_dim_qk=64: give at most"):
        attnhub.explain(
            "attention",
            device="cpu",
            num_qo_heads=1,
            num_kv_heads=1,
            head_dim=64,
            dtype="float32",
            variant=Variant(rope=rope),
        )
