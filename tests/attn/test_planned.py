"""What a planned object keeps, forgets and shares: batches, plans, decisions, copies."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import attnhub
from attnhub import (
    BatchAttention,
    BatchMLA,
    GraphLimits,
    Paged,
    PagedKV,
    RaggedKV,
    Rope,
    Variant,
)
from attnhub.attn.batch import AttentionBatch
from attnhub.cascade import CascadeAttention
from attnhub.core import dispatch
from attnhub.core.registry import Registry
from attnhub.errors import InvalidArgument, NotPlanned, PluginError, PluginWarning
from attnhub.jit import LaunchError
from attnhub.plugin import Backend, Capability, Efficiency, hookimpl

LIMITS = GraphLimits(max_batch=5, max_qo_tokens=8, max_pages=8)


def i32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def paged(**changes: Any) -> BatchAttention:
    return BatchAttention(
        4, 2, 8, torch.float32, Paged(4), **{"device": "cpu", "variant": Variant(causal=True)}
        | changes
    )  # fmt: skip


def table() -> PagedKV:
    """Two requests of 6 and 3 keys."""
    return PagedKV(i32(0, 2, 3), i32(2, 0, 1), i32(2, 3))


QO, Q, CACHE = i32(0, 2, 3), normal(3, 4, 8, seed=0), normal(4, 2, 4, 2, 8, seed=1)


class Stub:
    """A backend whose plans fill the output with a number, and do to a batch what they are told."""

    def __init__(self) -> None:
        self.planned = 0
        self.batches: list[AttentionBatch] = []
        self.error: BaseException | None = None

    @hookimpl
    def attnhub_backends(self) -> list[Backend]:
        return [
            Backend(
                name="stub",
                op="attention",
                capability=Capability(complete=True),
                cost=Efficiency(compute=1e3, memory=1e3),
                load=f"{__name__}:PLANNERS",
            )
        ]

    def plan(self, problem: Any) -> Stub:
        self.planned += 1
        return self

    def update(self, batch: AttentionBatch) -> None:
        if self.error is not None:
            raise self.error
        self.batches.append(batch)

    def run(self, *args: Any) -> None:
        args[3].fill_(7.0)


class _Latest:
    """What ``load`` names: plans of the stub that the running test registered."""

    stub: Stub

    def plan(self, problem: Any) -> Stub:
        return self.stub.plan(problem)


PLANNERS = _Latest()


@pytest.fixture
def stub() -> Iterator[Stub]:
    PLANNERS.stub = Stub()
    with dispatch.isolated() as registry:
        registry.register(PLANNERS.stub, "stubs")
        yield PLANNERS.stub


def decode(attn: BatchAttention, *kv_lens: int, **plan: Any) -> None:
    starts = [sum(-(-n // 4) for n in kv_lens[:b]) for b in range(len(kv_lens) + 1)]
    last = [(n - 1) % 4 + 1 if n else 0 for n in kv_lens]
    ids = i32(*range(starts[-1]))
    attn.plan(i32(*range(len(kv_lens) + 1)), PagedKV(i32(*starts), ids, i32(*last)), **plan)


# -- plans and decisions -----------------------------------------------------------------


def test_one_plan_serves_every_size(stub: Stub) -> None:
    attn = paged()
    for n in (1, 5, 40, 1000, 3, 70):
        decode(attn, n, n)
    assert stub.planned == 1
    assert [b.extent.kv_len for b in stub.batches] == [1, 8, 64, 1024, 4, 128]
    assert stub.batches[0].extent.batch == 2
    assert attn.explain().extent.endswith("kv_tokens <= 256")


def test_each_size_has_its_own_choice_and_each_backend_its_plan(stub: Stub) -> None:
    """Overrides choose another backend for a step; going back makes no new plan."""
    attn = paged()
    for backend in ("stub", "reference", "stub", "reference"):
        with attnhub.use(backend):
            decode(attn, 5, 7)
        chosen = attn.explain().chosen
        assert chosen is not None
        assert chosen.name == backend
        assert (attn.run(Q[:2], CACHE) == 7.0).all() == (backend == "stub")
    assert stub.planned == 1


def test_what_was_decided_before_a_change_of_the_registry_is_dropped() -> None:
    with dispatch.isolated() as registry:
        attn = paged()
        for _ in range(50):
            registry.touch()
            decode(attn, 5, 7)
        assert sum(len(held) for held in attn._plans.values()) == 1
        assert len(attn._chosen) == 1


# -- failures ----------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError("out of luck"), LaunchError("out of luck")])
def test_a_plan_that_breaks_is_set_aside_and_the_next_best_serves(
    stub: Stub, error: Exception
) -> None:
    attn = paged()
    attn.plan(QO, table())
    assert (attn.run(Q, CACHE) == 7.0).all()
    stub.error = error
    with pytest.warns(PluginWarning, match="out of luck"):
        attn.plan(QO, table())
    chosen = attn.explain().chosen
    assert chosen is not None
    assert chosen.name != "stub"
    assert "out of luck" in str(attn.explain())
    plain = paged(backend="reference")
    plain.plan(QO, table())
    torch.testing.assert_close(attn.run(Q, CACHE), plain.run(Q, CACHE))


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(torch.OutOfMemoryError("no memory"), id="out of memory"),
        pytest.param(InvalidArgument("that will not do"), id="invalid argument"),
    ],
)
@pytest.mark.parametrize("graph", [None, LIMITS], ids=["plain", "graph"])
def test_what_is_not_the_plugins_fault_reaches_the_caller(
    stub: Stub, error: Exception, graph: GraphLimits | None
) -> None:
    """... and leaves no mixture of two batches behind."""
    attn = paged(graph=graph)
    attn.plan(QO, table())
    stub.error = error
    with pytest.raises(type(error), match=str(error)):
        attn.plan(QO, table())
    with pytest.raises(NotPlanned, match=r"the last plan\(\) failed"):
        attn.run(Q, CACHE)
    stub.error = None
    attn.plan(QO, table())
    assert (attn.run(Q, CACHE) == 7.0).all()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("out of luck"), r"plugin 'stubs': update.*RuntimeError: out of luck"),
        (LaunchError("out of luck"), "^out of luck$"),
    ],
)
def test_a_plan_of_a_graph_that_breaks_is_an_error(stub: Stub, error: Exception, told: str) -> None:
    """A captured graph goes on launching that backend: no other can take over."""
    attn = paged(graph=LIMITS)
    attn.plan(QO, table())
    stub.error = error
    with (
        pytest.warns(PluginWarning, match="out of luck"),
        pytest.raises((PluginError, LaunchError), match=told),
    ):
        attn.plan(QO, table())
    with pytest.raises(NotPlanned):
        attn.run(Q, CACHE)


def test_an_update_of_a_required_backend_raises_the_error_of_its_kernel_itself(stub: Stub) -> None:
    attn = paged(backend="stub")
    stub.error = LaunchError("out of luck")
    for _ in range(2):  # nothing is set aside
        with pytest.raises(LaunchError, match="out of luck"):
            attn.plan(QO, table())


@pytest.mark.parametrize("graph", [None, LIMITS], ids=["plain", "graph"])
def test_a_refused_batch_leaves_the_last_one(graph: GraphLimits | None) -> None:
    attn = paged(graph=graph)
    attn.plan(QO, table())
    want, decision = attn.run(Q, CACHE), attn.explain()
    refused = PagedKV(i32(0, 2, 3), i32(2, 0, 1), i32(2, 5))
    with pytest.raises(InvalidArgument, match="last_page_len"):
        attn.plan(QO, refused)
    if graph is not None:
        with pytest.raises(InvalidArgument, match="past GraphLimits"):
            decode(attn, *[1] * 6)
    assert torch.equal(attn.run(Q, CACHE), want)
    assert attn.explain() is decision


# -- what belongs to the caller ----------------------------------------------------------


@pytest.mark.parametrize("backend", ["reference", "torch_sdpa"])
@pytest.mark.parametrize("qo", [(0, 1, 2), (0, 2, 3)], ids=["decode", "prefill"])
def test_host_metadata_may_be_overwritten_after_plan(backend: str, qo: tuple[int, ...]) -> None:
    attn, q = paged(backend=backend), Q[: qo[-1]]
    mask = torch.rand(15, generator=torch.Generator().manual_seed(3)) < 0.7
    masks = {"mask": mask} if qo[1] == 2 else {}
    attn.plan(i32(*qo), table(), **masks)
    want = attn.run(q, CACHE)
    given = (i32(*qo), table())
    attn.plan(*given, **masks)
    for x in (given[0], given[1].indptr, given[1].indices, given[1].last_page_len):
        x.fill_(1)
    mask.fill_(False)
    assert torch.equal(attn.run(q, CACHE), want)


def test_offsets_and_parameters_may_be_overwritten_after_plan() -> None:
    variant = Variant(causal=True, rope=Rope(), alibi=True)
    attn = paged(variant=variant, backend="reference")
    params, offset = {"alibi_slopes": torch.ones(4)}, i32(3, 4)
    attn.plan(QO, table(), q_offset=offset, params=params)
    want = attn.run(Q, CACHE)
    attn.plan(QO, table(), q_offset=offset, params=params)
    offset.fill_(0)
    params.clear()
    assert torch.equal(attn.run(Q, CACHE), want)


# -- graphs ------------------------------------------------------------------------------


def test_a_graph_is_explained_before_its_first_plan() -> None:
    chosen = paged(graph=LIMITS).explain().chosen
    assert chosen is not None
    with pytest.raises(NotPlanned, match=r"explain\(\) before plan\(\)"):
        paged().explain()


def test_a_graphs_batch_says_the_same_of_its_padding_everywhere(stub: Stub) -> None:
    attn = paged(graph=LIMITS)
    decode(attn, 6, 3)
    (batch,) = stub.batches
    assert (batch.batch, batch.qo_lens, batch.kv_lens) == (5, [1, 1, 0, 0, 0], [6, 3, 0, 0, 0])
    assert (batch.num_tokens, batch.qo_indptr.tolist()) == (2, [0, 1, 2, 2, 2, 2])


def test_page_ids_are_checked_against_the_cache_in_a_graph_too() -> None:
    for attn in (paged(), paged(graph=LIMITS)):
        attn.plan(QO, PagedKV(i32(0, 2, 3), i32(2, 9, 1), i32(2, 3)))
        with pytest.raises(InvalidArgument, match="indices names page 9, but k has 4 pages"):
            attn.run(Q, CACHE)
        attn.plan(QO, table())
        attn.run(Q, CACHE)


def test_page_ids_past_the_last_page_are_nobodys() -> None:
    """Engines keep a longer buffer whose end holds what it held."""
    attn = paged()
    attn.plan(QO, table())
    want = attn.run(Q, CACHE)
    attn.plan(QO, PagedKV(i32(0, 2, 3), i32(2, 0, 1, 99, -1), i32(2, 3)))
    assert torch.equal(attn.run(Q, CACHE), want)


def test_bounds_of_a_graph_reach_its_decision_and_are_kept(stub: Stub) -> None:
    limits = GraphLimits(max_batch=5, max_qo_tokens=8, max_pages=8, max_qo_len=1, max_kv_len=16)
    attn = paged(graph=limits)
    assert "qo_len <= 1, kv_len <= 16" in attn.explain().extent
    decode(attn, 6, 3)
    assert stub.batches[0].extent.qo_len == 1
    with pytest.raises(InvalidArgument, match=r"qo_len is 2, past GraphLimits\(max_qo_len=1\)"):
        attn.plan(QO, table())
    with pytest.raises(InvalidArgument, match=r"kv_len is 17, past GraphLimits\(max_kv_len=16\)"):
        decode(attn, 17)


# -- where metadata lie ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("elsewhere", "where"),
    [
        pytest.param((), "host", id="all on the host"),
        pytest.param(("indices",), "host", id="page ids are looked up, wherever they lie"),
        pytest.param(("qo_indptr",), "device", id="qo_indptr"),
        pytest.param(("indptr",), "device", id="indptr"),
        pytest.param(("last_page_len",), "device", id="last_page_len"),
    ],
)
def test_metadata_are_on_the_host_if_every_length_is(
    elsewhere: tuple[str, ...], where: str
) -> None:
    given = {"qo_indptr": QO, "indptr": QO, "indices": QO, "last_page_len": QO}
    moved = {n: x.to("meta") if n in elsewhere else x for n, x in given.items()}
    batch = AttentionBatch(batch=2, qo_indptr=moved.pop("qo_indptr"), kv=PagedKV(**moved))
    assert batch.metadata == where


# -- copies ------------------------------------------------------------------------------


def _pickled(x: Any) -> Any:
    return pickle.loads(pickle.dumps(x))


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, _pickled])
def test_a_copy_is_an_object_of_its_own(make: Any) -> None:
    attn = paged()
    attn.plan(QO, table())
    want = attn.run(Q, CACHE)
    twin = make(attn)
    with pytest.raises(NotPlanned):
        twin.run(Q, CACHE)
    decode(twin, 3, 4, 2)
    assert torch.equal(attn.run(Q, CACHE), want)  # the original has its own batch still

    def layer(q: torch.Tensor) -> torch.Tensor:
        return twin.run(q * 1.0, CACHE)

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(Q), twin.run(Q, CACHE))
    assert not torch.equal(compiled(Q), want)


def test_a_model_with_attention_inside_can_be_copied() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn = paged(graph=LIMITS)
            self.mla = BatchMLA(4, "float32", page_size=4, scale=1.0, device="cpu")
            self.cascade = CascadeAttention(
                4, 2, 8, torch.float32, Paged(4), levels=2, device="cpu"
            )

    layer = Layer()
    layer.attn.plan(QO, table())
    twin = copy.deepcopy(layer)
    twin.attn.plan(QO, table())
    assert torch.equal(layer.attn.run(Q, CACHE), twin.attn.run(Q, CACHE))
    first, second = layer.attn._batch, twin.attn._batch
    assert first is not None
    assert second is not None
    assert first.qo_indptr.data_ptr() != second.qo_indptr.data_ptr()


def test_the_registry_of_a_test_is_not_remembered() -> None:
    attn = BatchAttention(4, 2, 8, torch.float32, device="cpu")
    attn.plan(i32(0, 3), RaggedKV(i32(0, 3)))
    with dispatch.isolated() as registry:
        assert isinstance(registry, Registry)
        attn.plan(i32(0, 3), RaggedKV(i32(0, 3)))
    attn.plan(i32(0, 3), RaggedKV(i32(0, 3)))
    assert attn.run(Q, (Q[:, :2], Q[:, :2])).shape == (3, 4, 8)
