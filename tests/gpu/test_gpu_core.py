"""What only a GPU can show of the core: no hidden synchronisation, staging, capture, devices."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch

import attnhub
from attnhub import BatchAttention, DTypes, Paged, PagedKV, Ragged, RaggedKV, Scales, Variant
from attnhub.core import device as devices
from attnhub.core.staging import Staging
from attnhub.plugin import Registry
from attnhub.testing.compare import assert_close
from attnhub.testing.waiting import no_waiting

pytestmark = pytest.mark.gpu
DEVICE = "cuda:0"


def i32(*values: int, device: str = "cpu") -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def table(device: str) -> PagedKV:
    return PagedKV(
        i32(0, 2, 2, 5, device=device),
        i32(5, 1, 0, 2, 4, device=device),
        i32(3, 0, 7, device=device),
    )


def test_the_device_is_recognised() -> None:
    found = devices.describe(DEVICE)
    major, minor = torch.cuda.get_device_capability(0)
    assert (found.sm, found.simulated) == (major * 10 + minor, False)
    assert found.bandwidth > 100


def test_plan_does_not_synchronise_with_device_metadata() -> None:
    attn = BatchAttention(
        8, 2, 64, torch.bfloat16, Paged(16), variant=Variant(causal=True), backend="reference"
    )
    qo, metadata = i32(0, 4, 5, 6, device=DEVICE), table(DEVICE)
    with no_waiting():
        attn.plan(qo, metadata)
    assert attn.explain().chosen is not None


@pytest.mark.parametrize("backend", ["reference", "torch_sdpa"])
@pytest.mark.parametrize("where", ["cpu", DEVICE])
@pytest.mark.parametrize("qo", [(0, 1, 2, 3), (0, 4, 5, 6)])
def test_paged_attention_equals_the_cpu(backend: str, where: str, qo: tuple[int, ...]) -> None:
    if backend == "torch_sdpa" and where != "cpu":
        pytest.skip("torch_sdpa takes host metadata only; its sheet says so")
    attn = BatchAttention(
        8,
        2,
        64,
        torch.float32,
        Paged(16),
        device=DEVICE,
        variant=Variant(causal=True),
        backend=backend,
    )
    cpu = BatchAttention(
        8,
        2,
        64,
        torch.float32,
        Paged(16),
        device="cpu",
        variant=Variant(causal=True),
        backend="reference",
    )
    cache = torch.full((7, 2, 16, 2, 64), float("nan"))
    for page, filled in ((5, 16), (1, 3), (0, 16), (2, 16), (4, 7)):
        cache[page, :, :filled] = torch.randn(2, filled, 2, 64)
    q = torch.randn(qo[-1], 8, 64)
    cpu.plan(i32(*qo), table("cpu"))
    want, want_lse = cpu.run(q, cache, return_lse=True)
    attn.plan(i32(*qo, device=where), table(where))
    out = torch.full((qo[-1], 8, 64), float("nan"), device=DEVICE)
    got, lse = attn.run(q.to(DEVICE), cache.to(DEVICE), out=out, return_lse=True)
    assert_close(got.cpu(), want, dtype=torch.bfloat16)  # TF32 may be used on a GPU
    assert_close(lse.cpu(), want_lse, dtype=torch.bfloat16, kind="lse")


@pytest.mark.parametrize("backend", ["torch_varlen", "torch_sdpa"])
@pytest.mark.parametrize(
    "variant",
    [Variant(), Variant(causal=True), Variant(causal=True, window=(5, 0))],
    ids=["full", "causal", "window"],
)
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_ragged_attention_equals_the_reference(backend: str, variant: Variant, layout: str) -> None:
    """Lengths with an empty request, more queries than keys, and a GQA group of four.

    A scale per head of K is more than the varlen kernel can take before rounding; it must not show.
    """
    qo, kv = i32(0, 3, 3, 10, 30, 31), i32(0, 0, 5, 9, 200, 300)
    q = torch.randn(31, 8, 64, device=DEVICE).bfloat16()
    k, v = (torch.randn(300, 2, 64, device=DEVICE).bfloat16() for _ in range(2))
    if layout == "HND":
        k, v = (x.transpose(0, 1).contiguous() for x in (k, v))
    per_head = torch.tensor([1.0, 2.0], device=DEVICE)
    for scales in (Scales(), Scales(q=0.5, k=2.0), Scales(q=0.5, k=per_head, v=3.0)):
        results = []
        for name in (backend, "reference"):
            attn = BatchAttention(
                8, 2, 64, torch.bfloat16, Ragged(layout),
                device=DEVICE, variant=variant, backend=name,
            )  # fmt: skip
            attn.plan(qo, RaggedKV(kv))
            results.append(attn.run(q, (k, v), scales=scales, return_lse=True))
        assert_close(results[0][0], results[1][0], dtype=torch.bfloat16)
        assert_close(results[0][1], results[1][1], dtype=torch.bfloat16, kind="lse")


def test_varlen_does_not_claim_an_output_it_would_round_on_the_way(
    isolated_registry: Registry,
) -> None:
    attn = BatchAttention(
        8, 2, 64, DTypes("bfloat16", "bfloat16", "float32"), Ragged(), device=DEVICE
    )
    attn.plan(i32(0, 3), RaggedKV(i32(0, 5)))
    chosen = attn.explain().chosen
    assert chosen is not None
    assert chosen.name == "torch_sdpa"
    q, k = torch.randn(3, 8, 64, device=DEVICE).bfloat16(), torch.randn(5, 2, 64, device=DEVICE)
    want = attnhub.attention(q.float(), k.bfloat16().float(), k.bfloat16().float())
    got = attn.run(q, (k.bfloat16(), k.bfloat16()))
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


_TABLE = ("qo_indptr", "indptr", "indices", "last_page_len")


@pytest.mark.filterwarnings("ignore::attnhub.errors.PerformanceWarning")
@pytest.mark.parametrize("backend", ["reference", "torch_sdpa", ""])
@pytest.mark.parametrize("qo", [(0, 1, 2, 3), (0, 4, 5, 6)], ids=["decode", "prefill"])
@pytest.mark.parametrize("moved", [(), *((name,) for name in _TABLE), _TABLE, ("indices", "mask")])
def test_metadata_may_lie_in_two_places(
    moved: tuple[str, ...], qo: tuple[int, ...], backend: str
) -> None:
    """Lengths on the device make it a problem with device metadata; page ids and masks do not."""
    lengths_on_device = {"qo_indptr", "indptr", "last_page_len"} & {*moved}
    if backend == "torch_sdpa" and lengths_on_device:
        pytest.skip("torch_sdpa takes host metadata only; its sheet says so")
    attn = BatchAttention(
        8, 2, 64, torch.float32, Paged(16), device=DEVICE, variant=Variant(causal=True),
        backend=backend,
    )  # fmt: skip
    cache, q = torch.randn(7, 2, 16, 2, 64), torch.randn(qo[-1], 8, 64)
    lens = ((b - a) * n for a, b, n in zip(qo, qo[1:], (19, 0, 39), strict=False))
    mask = torch.rand(sum(lens)) < 0.7 if "mask" in moved else None
    cpu = BatchAttention(
        8, 2, 64, torch.float32, Paged(16), device="cpu", variant=Variant(causal=True)
    )
    cpu.plan(i32(*qo), table("cpu"), mask=mask)
    host = {"qo_indptr": i32(*qo)} | {name: getattr(table("cpu"), name) for name in _TABLE[1:]}
    given = {name: x.to(DEVICE) if name in moved else x for name, x in host.items()}
    attn.plan(
        given.pop("qo_indptr"), PagedKV(**given), mask=None if mask is None else mask.to(DEVICE)
    )
    assert ("metadata=device" in str(attn.explain())) == bool(lengths_on_device)
    got = attn.run(q.to(DEVICE), cache.to(DEVICE))
    assert_close(got.cpu(), cpu.run(q, cache), dtype=torch.bfloat16)  # TF32 may be used on a GPU


@pytest.mark.parametrize("backend", ["reference", "torch_sdpa", "torch_varlen"])
@pytest.mark.parametrize("qo", [(0, 1, 2), (0, 3, 5)], ids=["decode", "prefill"])
def test_nothing_depends_on_the_default_device(backend: str, qo: tuple[int, ...]) -> None:
    attn = BatchAttention(
        8, 2, 64, torch.bfloat16, device=DEVICE, variant=Variant(causal=True), backend=backend
    )
    q = torch.randn(qo[-1], 8, 64, device=DEVICE).bfloat16()
    k = torch.randn(9, 2, 64, device=DEVICE).bfloat16()
    indptr, kv_indptr, results = i32(*qo), i32(0, 4, 9), []
    for default in ("cpu", "cuda", "meta"):
        torch.set_default_device(default)
        try:
            attn.plan(indptr, RaggedKV(kv_indptr))
            results.append(attn.run(q, (k, k)))
        finally:
            torch.set_default_device("cpu")
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_autocast_does_not_lower_the_reference() -> None:
    q, k = torch.randn(3, 8, 64, device=DEVICE), torch.randn(5, 2, 64, device=DEVICE)
    for backend in ("reference", "torch_sdpa"):
        with attnhub.use(backend):
            want = attnhub.attention(q, k, k)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                assert torch.equal(attnhub.attention(q, k, k), want)


def test_varlen_is_preferred_for_ragged_half_precision(isolated_registry: Registry) -> None:
    attn = BatchAttention(8, 2, 64, torch.bfloat16, Ragged(), device=DEVICE)
    attn.plan(i32(0, 3), RaggedKV(i32(0, 5)))
    chosen = attn.explain().chosen
    assert chosen is not None
    assert chosen.name == "torch_varlen"


def test_staging_never_overwrites_what_is_in_flight() -> None:
    """Two uploads in a row behind a long kernel: the first must arrive as it was given."""
    staging = Staging(torch.device(DEVICE))
    first, second = (torch.full((1000,), value, dtype=torch.int32) for value in (1, 2))
    targets = [torch.zeros(1000, dtype=torch.int32, device=DEVICE) for _ in range(2)]
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)
    staging.copy(targets[0], first)
    staging.copy(targets[1], second)
    first.fill_(9)  # the caller may reuse his own tensor at once
    torch.cuda.synchronize()
    assert (targets[0] == 1).all()
    assert (targets[1] == 2).all()


def test_full_slabs_wait_for_their_copies() -> None:
    """Behind a long kernel far more than a slab holds, and parts of any size, arrive as given."""
    staging = Staging(torch.device(DEVICE))
    sizes = [1, 3, 1000, 16384, 16385, 40000, 5] * 4
    torch.cuda._sleep(100_000_000)
    arrived = []
    for step, size in enumerate(sizes):
        source = torch.full((size,), step, dtype=torch.int32)
        arrived += staging.upload(source, source[:1])
        source.fill_(-1)
    for step, size in enumerate(sizes):
        assert (arrived[2 * step] == step).all()
        assert arrived[2 * step].numel() == size
        assert arrived[2 * step + 1].tolist() == [step]


def test_slabs_are_used_again() -> None:
    staging = Staging(torch.device(DEVICE))
    target = torch.zeros(10000, dtype=torch.int32, device=DEVICE)
    for step in range(9):  # 40 KB each: a slab for each
        staging.copy(target, torch.full((10000,), step, dtype=torch.int32))
        torch.cuda.synchronize()
    assert len(staging._busy) <= 2
    assert (target == 8).all()


def test_a_slab_belongs_to_one_stream() -> None:
    staging = Staging(torch.device(DEVICE))
    source = torch.ones(10, dtype=torch.int32)
    staging.upload(source)
    slab = staging._slab
    staging.upload(source)
    assert staging._slab is slab
    with torch.cuda.stream(torch.cuda.Stream()):
        (up,) = staging.upload(2 * source)
        torch.cuda.current_stream().synchronize()
        assert staging._slab is not slab
        assert (up == 2).all()
        assert not staging._busy  # no event on a stream that may be gone


def test_tensors_decide_the_device_not_the_current_one() -> None:
    q = torch.randn(4, 8, 64, device=DEVICE).bfloat16()
    cpu = torch.randn(4, 8, 64).bfloat16()
    with pytest.raises(attnhub.errors.InvalidArgument, match="k is on cpu, but q is on cuda:0"):
        attnhub.attention(q, cpu, cpu)
    assert attnhub.attention(cpu, cpu, cpu).device.type == "cpu"


def test_functional_ops_are_captured_in_a_cuda_graph() -> None:
    x, weight = torch.randn(8, 128, device=DEVICE), torch.randn(128, device=DEVICE)
    out = torch.empty_like(x)
    attnhub.norm.rmsnorm(x, weight, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attnhub.norm.rmsnorm(x, weight, out=out)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(out, torch.nn.functional.rms_norm(x, (128,), weight, 1e-6))


def test_graph_mode_without_a_kernel_says_what_is_missing(isolated_registry: Registry) -> None:
    """PyTorch backends cannot be captured: a reason, and the plugin that would fit."""
    limits = attnhub.GraphLimits(max_batch=4, max_qo_tokens=4, max_pages=8)
    with pytest.raises(attnhub.errors.NoBackend, match=r"graph is True.*") as info:
        BatchAttention(8, 2, 64, torch.bfloat16, Paged(16), device=DEVICE, graph=limits)
    assert "attnhub-fa2-cuda" in str(info.value)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="torch.compile needs a C compiler")
def test_compiled_attention_on_the_gpu() -> None:
    attn = BatchAttention(
        8, 2, 64, torch.bfloat16, Paged(16), device=DEVICE, variant=Variant(causal=True)
    )
    attn.plan(i32(0, 4, 5, 6), table("cpu"))
    q = torch.randn(6, 8, 64, device=DEVICE).bfloat16()
    cache = torch.randn(7, 2, 16, 2, 64, device=DEVICE).bfloat16()

    @torch.compile(fullgraph=True)
    def layer(q: torch.Tensor, cache: torch.Tensor) -> Any:
        return attn.run(q * 2, cache) + 1

    with torch.no_grad():
        assert_close(layer(q, cache), attn.run(q * 2, cache) + 1, dtype=torch.bfloat16)


def test_sampling_follows_the_generator_of_the_gpu() -> None:
    logits = torch.randn(4, 1000, device=DEVICE)
    generator = torch.Generator(DEVICE).manual_seed(7)
    first = attnhub.sampling.sample_from_logits(logits, generator=generator)
    second = attnhub.sampling.sample_from_logits(logits, generator=generator)
    generator.manual_seed(7)
    again = attnhub.sampling.sample_from_logits(logits, generator=generator)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
