"""What every planned object shares: a device, plans by problem, fixed buffers, a decision."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from attnhub.attn.batch import AttentionBatch, Intake
from attnhub.attn.graph import GraphBuffers
from attnhub.attn.kv import GraphLimits, KVLayout, Paged
from attnhub.core import check, dispatch, handles, options
from attnhub.core import device as devices
from attnhub.core.decision import Decision
from attnhub.core.problem import Extent, Problem, bucket
from attnhub.core.recent import Recent
from attnhub.errors import AttnHubError, KernelError, NotPlanned, PluginError

_Sizes = tuple[int | None, int | None, int | None, int | None, int | None]

NOT_PLANNED = (
    "run() before plan(), or the last plan() failed: call plan(qo_indptr, kv_metadata) first"
)

#: Decisions kept; sizes are bucketed, so a server meets far fewer.
_KEPT = 1024


class PlannedBatch:
    """The planning half of ``BatchAttention`` and ``BatchMLA``; they add ``plan()`` and ``run()``.

    A copy, deep or not, is a new object of the same constructor arguments, not planned yet: two
    objects that shared plans would overwrite each other's batches.

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
        if not isinstance(graph, (GraphLimits, type(None))):
            check.fail(f"graph is a {type(graph).__name__}, needs GraphLimits(...)")
        self._facts = {**facts, "graph": graph is not None}
        self._kv = kv
        self._backend = backend
        self._limits = graph
        self._device = None if device is None else torch.device(device)
        if self._device is not None:
            devices.describe(self._device)  # refuses a GPU without an index
        if backend:
            rule = options.Override(backend=backend, op=self._problem.op, scope="argument")
            dispatch.default().check_name(rule)
        self._constructed = tuple(vars(self))
        self._start()

    def _start(self) -> None:
        """Everything that plans change."""
        #: of each set of facts, the plan of each backend; sizes only choose among them
        self._plans: dict[Any, dict[str, Any]] = {}
        self._chosen: Recent[tuple[Problem, Any, Decision]] = Recent(_KEPT)
        self._generation = 0
        self._plan: Any = None
        self._run: Any = None
        self._decision: Decision | None = None
        self._batch: AttentionBatch | None = None
        self._seen: set[Any] = set()
        self._handle = handles.new(self)
        self._graph: GraphBuffers | None = None
        if self._limits is not None:
            self._prepare_graph(self._limits)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("_constructed", *self._constructed)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start()

    def explain(self) -> Decision:
        """The decision behind the current plan: who runs, what it should cost, why not others."""
        if self._decision is None:
            raise NotPlanned("explain() before plan(): there is no decision yet")
        return self._decision

    # -- plan ------------------------------------------------------------------------------

    def _intake(self, *given: Any, validate: bool) -> Intake:
        """How the metadata of the next batch are taken over, on the device that is meant."""
        device = self._device or self._find_device(given)
        # The buffers of a graph hold copies anyhow.
        return Intake(device=device, validate=validate, copy=self._graph is None)

    def _find_device(self, given: tuple[Any, ...]) -> torch.device:
        tensors = list(given)
        for x in given:
            if dataclasses.is_dataclass(x):
                tensors += [getattr(x, f.name) for f in dataclasses.fields(x)]
        found = next((x.device for x in tensors if isinstance(x, Tensor) and not x.is_cpu), None)
        if found is None:
            check.fail(
                f"no device: give {type(self).__name__}(device=...), since the metadata are on "
                "the host and say nothing about it"
            )
        return found

    def _take(self, batch: AttentionBatch, device: torch.device) -> None:
        """Make ``batch`` the current one: choose a plan for it and hand it over.

        Whatever fails, the object either keeps its last batch or has none: never a mixture.
        """
        self._device = device
        if self._graph is not None:
            self._refill(self._graph, batch)
            return
        while True:
            problem, plan, decision = self._choose(batch)
            batch.extent = problem.extent
            if plan is self._plan:
                self._run = None  # what fails half-way leaves the plan between two batches
            try:
                plan.update(batch)
            except Exception as error:  # noqa: BLE001 - mark_failed raises what is not the plan's
                self._set_aside(problem, decision, error)
                continue
            break
        self._plan, self._decision = plan, decision
        self._batch, self._run = batch, plan.run
        self._seen.clear()

    def _set_aside(self, problem: Problem, decision: Decision, error: Exception) -> AttnHubError:
        """Report a plan that broke; raises the error where the caller or the machine is to blame.

        Decisions that come later in this process see it: the next choice is another backend.
        """
        registry, chosen = dispatch.default().registry, decision.chosen
        assert chosen is not None
        for backend in registry.backends(problem.op):  # none, if its plugin has left meanwhile
            if backend.name == chosen.name:
                alone = len(decision.ranked) == 1
                registry.mark_failed(backend, problem, error, "update()", alone=alone)
        text = f"update() failed: {type(error).__name__}: {error}"
        if isinstance(error, (KernelError, PluginError)):
            return error
        return PluginError(chosen.plugin, text)

    def _batch_facts(self, batch: AttentionBatch) -> dict[str, Any]:
        """Problem fields that each batch decides anew."""
        return {"metadata": batch.metadata}

    def _choose(self, batch: AttentionBatch) -> tuple[Problem, Any, Decision]:
        dispatcher = dispatch.default()
        if self._generation != dispatcher.registry.generation:  # plans of what may be gone
            self._plans.clear()
            self._chosen.clear()
            self._generation = dispatcher.registry.generation
        facts, sizes = self._batch_facts(batch), self._sizes(batch)
        key = (*sizes, *facts.values(), options.scope.get())
        found = self._chosen.get(key)
        if found is None:
            batch_size, qo_len, kv_len, tokens, kv_tokens = sizes
            extent = Extent(
                batch=batch_size, qo_len=qo_len, kv_len=kv_len, tokens=tokens, kv_tokens=kv_tokens
            )
            problem = self._problem_of(extent, facts)
            found = self._chosen.put(key, self._plan_for(problem, tuple(facts.values())))
        return found

    def _plan_for(self, problem: Problem, facts: Any) -> tuple[Problem, Any, Decision]:
        held = self._plans.setdefault(facts, {})
        plan, decision = dispatch.default().plan(problem, self._backend, held=held)
        assert decision.chosen is not None
        held[decision.chosen.name] = plan
        return problem, plan, decision

    def _problem_of(self, extent: Extent, facts: dict[str, Any]) -> Problem:
        assert self._device is not None
        device = devices.describe(self._device)
        return self._problem(device=device, extent=extent, **self._facts, **facts)

    def _sizes(self, batch: AttentionBatch) -> _Sizes:
        """The bucketed sizes of a batch in the order of :class:`Extent`."""
        kv_tokens = None if batch.kv_lens is None else batch.kv_lens.total
        if kv_tokens is None and isinstance(self._kv, Paged):
            kv_tokens = batch.kv.indices.numel() * self._kv.page_size  # type: ignore[union-attr]
        return (
            bucket(batch.batch),
            bucket(batch.max_qo_len),
            bucket(batch.max_kv_len),
            bucket(batch.num_tokens),
            bucket(kv_tokens),
        )

    # -- graph mode ------------------------------------------------------------------------

    def _prepare_graph(self, limits: GraphLimits) -> None:
        if self._device is None:
            check.fail("graph=... fixes buffers now, so it needs device=...")
        self._graph = GraphBuffers(limits, self._kv, self._device)
        pages = limits.max_pages * (self._kv.page_size if isinstance(self._kv, Paged) else 0)
        extent = Extent(
            batch=limits.max_batch,
            qo_len=limits.max_qo_len,
            kv_len=limits.max_kv_len,
            tokens=limits.max_qo_tokens,
            kv_tokens=pages or None,
        ).bucketed()
        self._frozen = self._problem_of(extent, self._batch_facts(self._graph.empty()))
        _, self._plan, self._decision = self._plan_for(self._frozen, ())

    def _refill(self, buffers: GraphBuffers, batch: AttentionBatch) -> None:
        """Another batch for the backend and the addresses that were fixed in the constructor."""
        plan, decision = self._plan, self._decision
        assert plan is not None
        assert decision is not None
        buffers.check(batch)
        self._run = None  # from here on the buffers hold another batch
        batch = buffers.fill(batch)
        batch.extent = self._frozen.extent
        try:
            plan.update(batch)
        except Exception as error:
            raise self._set_aside(self._frozen, decision, error) from error
        self._batch, self._run = batch, plan.run
        self._seen.clear()

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
        """Check page ids that lay on the host against the number of pages."""
        assert self._batch is not None
        highest = self._batch.max_page
        if highest is not None and highest >= cache.shape[0]:
            check.fail(f"indices names page {highest}, but {name} has {cache.shape[0]} pages")
