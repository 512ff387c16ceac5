"""The work of a batch, cut evenly over persistent kernels by ``attention/plan.cuh``.

The lengths of a batch lie on the device and stay there: a plan is one small kernel, which nothing
waits for and a CUDA graph may hold. docs/kernels/scheduler.md has the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from attnhub.core.device import Device
from attnhub.errors import InvalidArgument
from attnhub.jit import KernelSpec, ParamLayout
from attnhub.kernels import load
from attnhub.kernels.section import SECTION, Section

__all__ = ["SCHEDULE", "WorkSchedule", "Workspace", "plan_spec"]

#: ``attnhub::Schedule`` as a member of a kernel's parameters; its section is there too.
SCHEDULE = ParamLayout(
    {
        "requests": "const Request*",
        "ranges": "const WorkerRange*",
        "next_requests": "const i32*",
        "first_slots": "const i32*",
        "counters": "i32*",
    }
)
_INPUTS = ParamLayout(
    dict.fromkeys(("qo_indptr", "kv_indptr", "lengths"), "const i32*")
    | {"batch": "i32", "page_size": "i32"}
)
_OUTPUTS = ParamLayout(
    {
        "ranges": "WorkerRange*",
        "next_requests": "i32*",
        "first_slots": "i32*",
        "in_run": "i64*",
    }
)
_MAX_SECTIONS = 2
_PARAMS = ParamLayout(
    {
        "inputs": _INPUTS,
        "requests": "Request*",
        "counters": "i32*",
        "num_counters": "i32",
        "num_sections": "i32",
        **{f"outputs[{i}]": _OUTPUTS for i in range(_MAX_SECTIONS)},
        **{f"sections[{i}]": SECTION for i in range(_MAX_SECTIONS)},
    }
)

#: For so many requests a CTA has fewer threads; beyond the latter their sums lie in global memory.
_FEW, _MAX_IN_SHARED = 1024, 10_000
_FEW_THREADS, _THREADS = 512, 1024
_FIRST_WITH_PDL = 90
_REQUEST_INTS, _RANGE_INTS, _COST_INTS = 4, 16, 2
_ALIGNMENT_INTS = 16


def _smem(requests: int, threads: int) -> int:
    """Shared memory of a CTA: for each warp, each thread, and each request, with gaps."""
    return _THREADS // 32 * (8 + 8 + 4) + _THREADS * (4 + 8) + (requests + threads) * 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    threads: int
    smem: int


def plan_spec(arch: str) -> KernelSpec:
    """The plan kernel, for warm-up and ahead-of-time builds."""
    return KernelSpec(
        name="plan",
        template="attnhub:kernels/templates/plan.cu.jinja",
        context=_Context(threads=_THREADS, smem=_smem(_MAX_IN_SHARED, _THREADS)),
        entry="attnhub_plan",
        params=_PARAMS,
        arch=arch,
        include_dirs=(load.INCLUDE_DIR,),
    )


class Workspace:
    """The one int32 tensor of a schedule, cut into its parts.

    Args:
        sections: of the schedule.
        max_batch: room for so many requests.
        device: where it lies.

    Attributes:
        parts: by name, where those that every section has are numbered, as ``"ranges[0]"``.
    """

    def __init__(self, sections: Sequence[Section], max_batch: int, device: torch.device) -> None:
        self._sections = sections
        sizes = {"requests": max_batch * _REQUEST_INTS}
        for i, section in enumerate(sections):
            sizes[f"ranges[{i}]"] = section.num_workers * _RANGE_INTS
            sizes[f"next_requests[{i}]"] = max_batch
            if section.split_len:
                sizes[f"first_slots[{i}]"] = max_batch
            if max_batch > _MAX_IN_SHARED:
                sizes[f"in_run[{i}]"] = max_batch * _COST_INTS
        # Last and together, as they are zeroed together.
        sizes |= {f"counters[{i}]": section.num_counters for i, section in enumerate(sections)}
        begins = [*accumulate(map(_aligned, sizes.values()), initial=0)]
        ints = torch.empty(begins[-1], dtype=torch.int32, device=device)
        self.parts = {
            name: ints[begin : begin + size]
            for (name, size), begin in zip(sizes.items(), begins, strict=False)
        }
        self._all_counters = ints[begins[-1 - len(sections)] :]

    def schedule(self, section: int) -> tuple[int, ...]:
        """The values of :data:`SCHEDULE`."""
        return self._pointers(section, "requests ranges next_requests first_slots counters")

    def arguments(self) -> tuple[float, ...]:
        """What the plan kernel gets after its inputs."""
        counters = self._all_counters
        values: list[float] = [*self._pointers(0, "requests"), counters.data_ptr()]
        values += (counters.numel(), len(self._sections))
        # A plan of one section has it twice, and no CTA for the second.
        last = len(self._sections) - 1
        for i in (0, last):
            values += self._pointers(i, "ranges next_requests first_slots in_run")
        for i in (0, last):
            values += self._sections[i].values()
        return tuple(values)

    def _pointers(self, section: int, names: str) -> tuple[int, ...]:
        """Of parts of a section or of all; 0 for what is not there."""
        found = (self.parts.get(f"{n}[{section}]", self.parts.get(n)) for n in names.split())
        return tuple(0 if part is None else part.data_ptr() for part in found)


def _aligned(num_ints: int) -> int:
    return -(-num_ints // _ALIGNMENT_INTS) * _ALIGNMENT_INTS


class WorkSchedule:
    """A workspace on one device, and the kernel that fills it.

    A kernel that reads it takes ``schedule(i)`` and ``sections[i].values()`` among its parameters.
    Addresses stay the same until a batch is larger than all before.

    Args:
        device: a GPU.
        sections: one or two, which take different requests.
        max_batch: room for so many requests at first.
        page_size: keys of a page; 1 where keys are not in pages.
        is_frozen: never allocate again, since a CUDA graph holds the addresses.

    Raises:
        InvalidArgument: not one or two sections.
        NoCompiler, CompileError, DriverError: the kernel cannot be made or loaded.

    Example:
        >>> section = Section(num_workers=132, tile_tokens=1, tile_cost=64, kv_block=16)
        >>> work = WorkSchedule(describe("cuda:0"), [section], max_batch=256, page_size=16)
        >>> work.plan(qo_indptr, kv.indptr, last_page_len=kv.last_page_len)
        >>> launch(132, stream, *work.schedule(0), *section.values(), ...)
    """

    def __init__(
        self,
        device: Device,
        sections: Sequence[Section],
        *,
        max_batch: int,
        page_size: int = 1,
        is_frozen: bool = False,
    ) -> None:
        if not 1 <= len(sections) <= _MAX_SECTIONS:
            raise InvalidArgument(f"{len(sections)} sections: give 1 to {_MAX_SECTIONS}")
        kernel = load.kernel(plan_spec(load.arch(device)))
        pdl = device.sm is not None and device.sm >= _FIRST_WITH_PDL
        self._launchers = [
            kernel.launcher(device.index, block=threads, smem=_smem(requests, threads), pdl=pdl)
            for requests, threads in ((_FEW, _FEW_THREADS), (_MAX_IN_SHARED, _THREADS))
        ]
        self._device = device
        self._page_size = page_size
        self._is_frozen = is_frozen
        self.sections = tuple(sections)
        self._allocate(max(max_batch, 1))

    def _allocate(self, max_batch: int) -> None:
        self.max_batch = max_batch
        device = torch.device(self._device.type, self._device.index)
        self.workspace = Workspace(self.sections, max_batch, device)
        self._schedules = [self.workspace.schedule(i) for i in range(len(self.sections))]
        arguments = self.workspace.arguments()
        self._few, self._many = (launcher.bind(*arguments) for launcher in self._launchers)

    def schedule(self, section: int) -> tuple[int, ...]:
        """The values of :data:`SCHEDULE` for a kernel of a section."""
        return self._schedules[section]

    def plan(
        self,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        *,
        last_page_len: Tensor | None = None,
        kv_lens: Tensor | None = None,
    ) -> None:
        """Launch the plan kernel for a batch, on the current stream.

        All are contiguous int32 tensors on the device, and what they hold is read when the kernel
        runs. Without ``last_page_len`` and ``kv_lens`` keys are not in pages.

        Args:
            qo_indptr: queries ``[batch + 1]``, cumulative.
            kv_indptr: pages or keys ``[batch + 1]``, cumulative.
            last_page_len: keys of each request's last page.
            kv_lens: keys of each request that has any pages, instead of what the others say.

        Raises:
            InvalidArgument: more requests than a frozen schedule has room for.
        """
        batch = qo_indptr.numel() - 1
        if batch > self.max_batch:
            self._grow(batch)
        lengths, page_size = last_page_len, self._page_size
        if kv_lens is not None:
            lengths, page_size = kv_lens, 0
        elif last_page_len is None:
            page_size = 1
        launch = self._few if batch <= _FEW else self._many
        launch(
            len(self.sections) + max(-(-batch // _THREADS), 1),
            load.stream(self._device.index),
            qo_indptr.data_ptr(),
            kv_indptr.data_ptr(),
            0 if lengths is None else lengths.data_ptr(),
            batch,
            page_size,
        )

    def _grow(self, batch: int) -> None:
        if self._is_frozen:
            raise InvalidArgument(
                f"batch is {batch}, and this schedule has room for max_batch={self.max_batch}, "
                f"which a CUDA graph keeps it from changing: make it with max_batch={batch} or more"
            )
        self._allocate(1 << (batch - 1).bit_length())
