"""The attention kernel, its plan and everything above them, in the kernel emulator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import attnhub
from attnhub.attn import PagedKV
from attnhub.errors import InvalidArgument
from attnhub.plugin import AttentionProblem, Registry, Scales, Variant, describe
from attnhub.testing.attention_inputs import Packed, pack, requests
from attnhub.testing.compare import assert_close
from attnhub.testing.conformance import cases
from attnhub.testing.emulator import EmulatedGpu
from attnhub.testing.generators import seeded
from attnhub_fa2_cuda import manifest, tiles

CPU = torch.device("cpu")


@pytest.fixture
def gpu(emulated_gpu: EmulatedGpu, isolated_registry: Registry) -> EmulatedGpu:
    """The backends of the manifest, for the emulator."""
    isolated_registry.register(emulated_gpu.plugin(manifest.attnhub_backends()), "emulated")
    return emulated_gpu


def problem_of(group: int, page: int, **facts: Any) -> AttentionProblem:
    """A paged problem, or with page 0 a ragged one."""
    kv: dict[str, Any] = {"kv": "paged", "page_size": page} if page else {"kv": "ragged"}
    facts = {"dtype": "bfloat16", "variant": Variant(causal=True)} | facts
    return AttentionProblem.of(
        describe("cpu"),
        num_qo_heads=2 * group,
        num_kv_heads=2,
        head_dim=128,
        **kv,
        **facts,
    )


def attention(backend: str, kv: Any = None) -> attnhub.BatchAttention:
    return attnhub.BatchAttention(
        num_qo_heads=8,
        num_kv_heads=2,
        head_dim=128,
        dtype=torch.bfloat16,
        kv=kv or attnhub.Paged(16),
        device="cpu",
        variant=Variant(causal=True),
        backend=backend,
    )


def run(
    backend: str, problem: AttentionProblem, packed: Packed, scales: Scales
) -> dict[str, torch.Tensor]:
    """A batch through the public API, into poisoned outputs; the reference's are float32."""
    dtype = torch.float32 if backend == "reference" else torch.bfloat16
    kv = attnhub.Paged(problem.page_size) if problem.page_size else attnhub.Ragged()
    attn = attnhub.BatchAttention(
        num_qo_heads=problem.num_qo_heads,
        num_kv_heads=problem.num_kv_heads,
        head_dim=128,
        dtype=attnhub.DTypes(torch.bfloat16, torch.bfloat16, dtype),
        kv=kv,
        device="cpu",
        variant=problem.variant,
        backend=backend,
    )
    attn.plan(packed.qo_indptr, packed.metadata)
    out = torch.full(packed.q.shape, torch.nan, dtype=dtype)
    attn.run(packed.q, packed.kv, out=out)
    out, lse = attn.run(packed.q, packed.kv, out=out, scales=scales, return_lse=True)
    return {"output": out, "lse": lse}


def check(
    problem: AttentionProblem,
    lengths: Sequence[tuple[int, int]],
    scales: Scales = Scales(),  # noqa: B008 - immutable
) -> None:
    """Run a batch with requests of these ``(qo_len, kv_len)``, twice on one plan."""
    batch = requests(problem, lengths, CPU, seeded(1))
    packed = pack(problem, batch, CPU, seeded(2), strided=len(lengths) % 2 == 1)
    got = run("fa2_cuda", problem, packed, scales)
    expected = run("reference", problem, packed, scales)
    assert_close(got["output"], expected["output"], dtype=torch.bfloat16)
    assert_close(got["lse"], expected["lse"], dtype=torch.bfloat16, kind="lse")


def test_conformance(gpu: EmulatedGpu) -> None:
    ran = 0
    for case in cases("fa2_cuda", op="attention", pairs=4):
        assert case.check() == "", case.id
        ran += "-serves-" in case.id
    assert ran > 15


@pytest.mark.parametrize(
    ("group", "page", "lengths"),
    [
        # Every length of queries and of keys: within a tile, at its edge, past it; none at all.
        (1, 1, [(1, 0), (17, 64), (64, 130), (100, 1), (129, 300)]),
        (4, 7, [(17, 0), (64, 1), (100, 63), (129, 64), (1, 300)]),
        (7, 16, [(64, 0), (100, 300), (129, 1), (1, 63), (17, 130)]),
        (4, 64, [(100, 0), (129, 130), (1, 64), (17, 1), (64, 63)]),
        (1, 0, [(129, 0), (1, 130), (17, 300), (64, 64), (100, 64)]),
        (7, 0, [(0, 64), (1, 1), (17, 63), (0, 0), (64, 300), (100, 130), (129, 63)]),
    ],
)
def test_mixed_batches(
    gpu: EmulatedGpu, group: int, page: int, lengths: list[tuple[int, int]]
) -> None:
    gpu.num_sms = 3
    check(problem_of(group, page), lengths)


@pytest.mark.parametrize("group", [1, 3, 4, 7, 16])
def test_split_decode(gpu: EmulatedGpu, group: int) -> None:
    """More workers than requests, so that tiles are cut and their pieces merged."""
    gpu.num_sms = 6
    check(problem_of(group, 16), [(1, 700), (1, 3), (1, 260)])
    assert gpu.launches[-1][0] == "fa2_decode_bfloat16_d128"


def test_split_prefill(gpu: EmulatedGpu) -> None:
    gpu.num_sms = 5
    check(problem_of(2, 16), [(70, 600)])
    assert gpu.launches[-1][0] == "fa2_prefill_bfloat16_d128"


def test_more_heads_in_a_group_than_a_tile_has_rows(gpu: EmulatedGpu) -> None:
    check(problem_of(48, 16), [(1, 70)])  # three groups of 16
    check(problem_of(71, 16), [(2, 70)])  # a prime number: one head at a time


@pytest.mark.parametrize(
    "variant",
    [
        Variant(),
        Variant(window=(63, 0)),  # begins at a block's edge
        Variant(window=(64, 0)),  # and one key before it
        Variant(window=(0, 0)),  # only itself
        Variant(causal=True, window=(5, 9), soft_cap=3.0),
        Variant(causal=True, scale=2.0),
    ],
    ids=str,
)
def test_variants(gpu: EmulatedGpu, variant: Variant) -> None:
    check(problem_of(4, 16, variant=variant), [(70, 200), (5, 2), (1, 130)])


@pytest.mark.parametrize("seed", [1, 2])
def test_any_schedule_gives_the_same(gpu: EmulatedGpu, seed: int) -> None:
    gpu.seed, gpu.num_sms = seed, 6
    check(problem_of(4, 16), [(1, 500), (1, 90)])
    check(problem_of(4, 16), [(33, 300), (1, 90)])


@pytest.mark.parametrize(
    "scales",
    [
        Scales(q=-1.0, k=0.5, v=2.0),  # the largest score is that of the smallest product
        Scales(q=0.0),  # all keys weigh the same
        Scales(q=torch.linspace(-1, 1, 8), k=torch.tensor([0.5, 2.0]), v=torch.tensor([3.0, 0.0])),
        Scales(v=torch.tensor([-1.5])),
        Scales(
            k=torch.tensor([0.5, 9.0, 2.0, 9.0])[::2], v=torch.tensor([[1.0, 5.0], [2, 5]])[:, 0]
        ),
    ],
    ids=["negative", "zero", "of each head", "one element", "strided"],
)
def test_scales(gpu: EmulatedGpu, scales: Scales) -> None:
    check(problem_of(4, 16), [(20, 100), (1, 30)], scales)


@pytest.mark.parametrize("lengths", [[(1, 300)], [(1, 40)], [(70, 130)]], ids=str)
@pytest.mark.parametrize("where", ["query", "key", "infinite query"])
def test_what_is_no_number_stays_none(
    gpu: EmulatedGpu, where: str, lengths: list[tuple[int, int]]
) -> None:
    """In one piece and in several: NaN in every row that sees it, as from the reference."""
    gpu.num_sms = 4
    problem = problem_of(4, 0)
    [request] = requests(problem, lengths, CPU, seeded(1))
    (request.k if where == "key" else request.q)[0, 0, 5] = math.inf if "inf" in where else math.nan
    packed = pack(problem, [request], CPU, seeded(2), strided=False)
    got = run("fa2_cuda", problem, packed, Scales())
    expected = run("reference", problem, packed, Scales())
    assert expected["output"].isnan().any()
    for name, kind in (("output", "output"), ("lse", "lse")):
        assert_close(got[name], expected[name], dtype=torch.bfloat16, kind=kind)


def test_a_held_plan_grows(gpu: EmulatedGpu) -> None:
    """Batches larger than all before, with other tiles in between."""
    attn = {name: attention(name) for name in ("fa2_cuda", "reference")}
    problem = problem_of(4, 16)
    for size, longest in ((1, 1), (5, 1), (3, 40), (9, 1), (2, 1), (12, 40)):
        lengths = [(1 + longest * i // size, 30 + 17 * i) for i in range(size)]
        batch = requests(problem, lengths, CPU, seeded(size))
        packed = pack(problem, batch, CPU, seeded(2), strided=False)
        found = {}
        for name, one in attn.items():
            one.plan(packed.qo_indptr, packed.metadata)
            found[name] = one.run(packed.q, packed.kv).float()
        assert_close(found["fa2_cuda"], found["reference"], dtype=torch.bfloat16)


def test_queries_whose_offsets_pass_2_to_the_31(gpu: EmulatedGpu) -> None:
    stride = 2**31 + 64
    # Only the rows that are written take memory.
    q, out = (torch.empty(stride + 8 * 128, dtype=torch.bfloat16) for _ in range(2))
    q, out = (x.as_strided((2, 8, 128), (stride, 128, 1)) for x in (q, out))
    q.copy_(torch.randn(2, 8, 128))
    k, v = (torch.randn(90, 2, 128).bfloat16() for _ in "kv")
    lengths = [torch.tensor(x, dtype=torch.int32) for x in ([0, 2], [0, 90])]
    found = {}
    for name in ("fa2_cuda", "reference"):
        attn = attention(name, kv=attnhub.Ragged())
        attn.plan(lengths[0], attnhub.RaggedKV(lengths[1]))
        found[name] = attn.run(q, (k, v), out=out).float()
    assert_close(found["fa2_cuda"], found["reference"], dtype=torch.bfloat16)


@pytest.mark.parametrize("kv_bytes", [1, 2])
@pytest.mark.parametrize("dim_qk", [16, 64, 112, 128, 192, 256])
@pytest.mark.parametrize("dim_vo", [16, 64, 128, 144, 192, 256])
def test_tiles_fit_every_gpu(dim_qk: int, dim_vo: int, kv_bytes: int) -> None:
    form = tiles.Format(dim_qk=dim_qk, dim_vo=dim_vo, kv_bytes=kv_bytes)
    for choose in (tiles.prefill, tiles.decode):
        for sm in (80, 86, 87, 88, 89, 90, 100, 103, 120, 121, 999):
            device = describe(f"sm_{sm}")
            tile = choose(form, device.smem_kb)
            assert tile.smem(form) <= (device.smem_kb - 1) * 1024
            assert tile.ctas_per_sm * (tile.smem(form) + 1024) <= device.smem_kb * 1024


@pytest.mark.parametrize("sm", [80, 89, 90])
def test_the_tiles_of_each_gpu(gpu: EmulatedGpu, sm: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table's other rows compute the same."""
    smem_kb = describe(f"sm_{sm}").smem_kb
    for name in ("decode", "prefill"):
        real = getattr(tiles, name)
        monkeypatch.setattr(tiles, name, lambda form, _, real=real: real(form, smem_kb))
    check(problem_of(4, 16), [(70, 200), (30, 90)])
    check(problem_of(4, 16), [(1, 200), (1, 90)])
    check(problem_of(4, 16), [(70, 200), (1, 90), (4, 300), (5, 0)])


def test_a_stride_that_nothing_moves_along(gpu: EmulatedGpu) -> None:
    """Of one page, one row or one head any stride is as good as another."""
    attn = attention("fa2_cuda")
    indptr = torch.tensor([0, 1], dtype=torch.int32)
    attn.plan(indptr, PagedKV(indptr, indptr[:1], torch.tensor([9], dtype=torch.int32)))
    q = torch.randn(1, 8, 128).bfloat16()
    k, v = (torch.randn(1, 16, 2, 128).bfloat16() for _ in "kv")
    expected = attn.run(q, (k, v))
    odd = [x.as_strided(x.shape, (3, *x.stride()[1:])) for x in (q, k, v)]
    assert torch.equal(attn.run(odd[0], (odd[1], odd[2])), expected)


def test_pages_whose_offsets_pass_2_to_the_31(gpu: EmulatedGpu) -> None:
    heads, page = 1, 16
    page_elements = page * heads * 128
    last = 2**31 // page_elements + 2
    # Only the pages that are written take memory.
    k = torch.empty(last + 1, page, heads, 128, dtype=torch.bfloat16)
    v = torch.empty_like(k)
    pages = torch.tensor([last, 0, last - 1], dtype=torch.int32)
    for x in (k, v):
        x[pages.long()] = torch.randn(3, page, heads, 128).bfloat16()
    q = torch.randn(1, 2, 128).bfloat16()
    out = {}
    for name in ("fa2_cuda", "reference"):
        attn = attnhub.BatchAttention(
            num_qo_heads=2,
            num_kv_heads=heads,
            head_dim=128,
            dtype=torch.bfloat16,
            kv=attnhub.Paged(page),
            device="cpu",
            backend=name,
        )
        indptr = torch.tensor([0, 3], dtype=torch.int32)
        last_page_len = torch.tensor([9], dtype=torch.int32)
        attn.plan(torch.tensor([0, 1], dtype=torch.int32), PagedKV(indptr, pages, last_page_len))
        out[name] = attn.run(q, (k, v))
    assert_close(out["fa2_cuda"], out["reference"].float(), dtype=torch.bfloat16)


def test_rows_that_16_byte_copies_cannot_reach_are_refused(gpu: EmulatedGpu) -> None:
    attn = attnhub.BatchAttention(
        num_qo_heads=2,
        num_kv_heads=2,
        head_dim=128,
        dtype=torch.bfloat16,
        kv=attnhub.Ragged(),
        device="cpu",
        backend="fa2_cuda",
    )
    lengths = torch.tensor([0, 3], dtype=torch.int32)
    attn.plan(lengths, attnhub.RaggedKV(lengths))
    rows = torch.zeros(3, 2, 128, dtype=torch.bfloat16)
    shifted = torch.zeros(3 * 2 * 128 + 1, dtype=torch.bfloat16)[1:].view(3, 2, 128)
    with pytest.raises(InvalidArgument, match=r"q begins at .*a multiple of 16 bytes"):
        attn.run(shifted, (rows, rows))
    wide = torch.zeros(3, 2, 132, dtype=torch.bfloat16)[..., :128]
    with pytest.raises(InvalidArgument, match=r"v begins at .*strides \(264, 132, 1\)"):
        attn.run(rows, (rows, wide))
