"""What every planned object shares: a device, plans by problem, fixed buffers, a decision."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from attnhub.attn.batch import AttentionBatch
from attnhub.attn.graph import GraphBuffers
from attnhub.attn.kv import GraphLimits, KVLayout, Paged
from attnhub.core import check, dispatch, handles, options
from attnhub.core import device as devices
from attnhub.core.decision import Decision
from attnhub.core.problem import Extent, Problem
from attnhub.errors import NotPlanned


class PlannedBatch:
    """The planning half of ``BatchAttention`` and ``BatchMLA``; they add ``plan()`` and ``run()``.

    Args:
        facts: problem fields that never change.
        kv: how K/V are laid out.
        device: needed unless the metadata given to ``plan()`` lie on a GPU.
        graph: limits for CUDA graphs, or None.
        backend: require this backend.
    """

    #: the class of the problems that plans are made for
    _problem: ClassVar[type[Problem]]

    def __init__(
        self,
        facts: dict[str, Any],
        kv: KVLayout,
        *,
        device: torch.device | str | None,
        graph: GraphLimits | None,
        backend: str,
    ) -> None:
        self._facts = {**facts, "graph": graph is not None}
        self._kv = kv
        self._backend = backend
        self._device = None if device is None else torch.device(device)
        self._plans: dict[Any, tuple[Any, Decision]] = {}
        self._run: Any = None
        self._decision: Decision | None = None
        self._batch: AttentionBatch | None = None
        self._seen: set[Any] = set()
        self._handle = handles.new(self)
        self._graph: GraphBuffers | None = None
        self._limits = graph
        if graph is not None:
            self._prepare_graph(graph)

    def explain(self) -> Decision:
        """The decision behind the current plan: who runs, what it should cost, why not others."""
        if self._decision is None:
            raise NotPlanned("explain() before plan(): there is no decision yet")
        return self._decision

    # -- plan ------------------------------------------------------------------------------

    def _resolve_device(self, qo_indptr: Tensor) -> torch.device:
        if self._device is None:
            if not isinstance(qo_indptr, Tensor) or qo_indptr.device.type == "cpu":
                check.fail(
                    f"no device: give {type(self).__name__}(device=...), since the metadata are on "
                    "the host and say nothing about it"
                )
            self._device = qo_indptr.device
        elif isinstance(qo_indptr, Tensor) and qo_indptr.device.type not in (
            "cpu",
            self._device.type,
        ):
            check.device(qo_indptr, "qo_indptr", self._device, "this attention")
        return self._device

    def _take(self, batch: AttentionBatch, device: torch.device) -> None:
        """Make ``batch`` the current one: choose a plan for it and hand it over."""
        if self._graph is not None:
            batch = self._graph.fill(batch)
        plan, self._decision = self._choose(batch, device)
        plan.update(batch)
        self._batch, self._run = batch, plan.run
        self._seen.clear()

    def _batch_facts(self, batch: AttentionBatch) -> dict[str, Any]:
        """Problem fields that each batch decides anew."""
        return {"metadata": "host" if batch.qo_indptr.device.type == "cpu" else "device"}

    def _choose(self, batch: AttentionBatch, device: torch.device) -> tuple[Any, Decision]:
        facts = self._batch_facts(batch)
        extent = self._graph_extent() if self._limits else self._extent(batch)
        # A graph's backend is fixed in the constructor: its key knows no overrides set later.
        world = (
            () if self._limits else (options.scope.get(), dispatch.default().registry.generation)
        )
        key = (extent, *facts.values(), *world)
        if key not in self._plans:
            problem = self._problem(
                device=devices.describe(device), extent=extent, **self._facts, **facts
            )
            self._plans[key] = dispatch.default().plan(problem, self._backend)
        return self._plans[key]

    def _extent(self, batch: AttentionBatch) -> Extent:
        kv_tokens = None if batch.kv_lens is None else sum(batch.kv_lens)
        if kv_tokens is None and isinstance(self._kv, Paged):
            kv_tokens = batch.kv.indices.numel() * self._kv.page_size  # type: ignore[union-attr]
        return Extent(
            batch=batch.batch,
            qo_len=batch.max_qo_len,
            kv_len=batch.max_kv_len,
            tokens=batch.num_tokens,
            kv_tokens=kv_tokens,
        ).bucketed()

    # -- graph mode ------------------------------------------------------------------------

    def _prepare_graph(self, limits: GraphLimits) -> None:
        if self._device is None:
            check.fail("graph=... fixes buffers now, so it needs device=...")
        self._graph = GraphBuffers(limits, self._kv, self._device)
        self._choose(self._graph.empty(), self._device)

    def _graph_extent(self) -> Extent:
        limits = self._limits
        assert limits is not None
        pages = limits.max_pages * (self._kv.page_size if isinstance(self._kv, Paged) else 0)
        return Extent(
            batch=limits.max_batch, tokens=limits.max_qo_tokens, kv_tokens=pages or None
        ).bucketed()

    # -- run -------------------------------------------------------------------------------

    def _check_rows(self, q: Tensor, name: str) -> None:
        """Check the number of query rows against the plan."""
        assert self._batch is not None
        rows, planned = q.shape[0], self._batch.num_tokens
        if self._limits is not None:
            if not (planned or 0) <= rows <= self._limits.max_qo_tokens:
                check.fail(
                    f"{name} has {rows} rows, needs {planned} (this plan) to "
                    f"{self._limits.max_qo_tokens} (GraphLimits.max_qo_tokens)"
                )
        elif planned is not None and rows != planned:
            check.fail(
                f"{name} has {rows} rows, but the plan has {planned} query tokens; plan() again"
            )

    def _check_page_ids(self, cache: Tensor, name: str) -> None:
        """Check page ids that lie on the host against the number of pages."""
        assert self._batch is not None
        indices = self._batch.kv.indices  # type: ignore[union-attr]
        if indices.device.type == "cpu" and indices.numel() and self._limits is None:
            highest = int(indices.max())
            if highest >= cache.shape[0]:
                check.fail(f"indices names page {highest}, but {name} has {cache.shape[0]} pages")
