"""A kernel that reads a schedule and writes down the pieces of each worker, on any device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attnhub.core.device import Device
from attnhub.kernels import load
from attnhub.kernels.schedule import SCHEDULE, WorkSchedule
from attnhub.kernels.section import SECTION
from attnhub.plugin import KernelSpec, ParamLayout
from tests.kernels.schedule_model import PIECE_INTS, Piece

_THREADS = 32
_PARAMS = ParamLayout(
    {
        "schedule": SCHEDULE,
        "section": SECTION,
        "pieces": "Piece*",
        "counts": "i32*",
        "room": "i32",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    threads: int


def spec(arch: str) -> KernelSpec:
    return KernelSpec(
        name="pieces",
        template="tests.kernels.pieces:templates/pieces.cu.jinja",
        context=_Context(threads=_THREADS),
        entry="read_pieces",
        params=_PARAMS,
        arch=arch,
        include_dirs=(load.INCLUDE_DIR, "tests.kernels.pieces:include"),
    )


def read(work: WorkSchedule, device: Device, section: int) -> list[list[Piece]]:
    """What each worker of a section reads."""
    room = 256
    counts, pieces = _read(work, device, section, room)
    if max(counts) > room:  # now it is known how many there are
        counts, pieces = _read(work, device, section, max(counts))
    rows = pieces.tolist()
    return [[Piece.of(ints) for ints in rows[w][:count]] for w, count in enumerate(counts)]


def _read(
    work: WorkSchedule, device: Device, section: int, room: int
) -> tuple[list[int], torch.Tensor]:
    """How many pieces each worker has, and the first ``room`` of them."""
    num_workers = work.sections[section].num_workers
    where = torch.device(device.type, device.index)
    pieces = torch.zeros(num_workers, room, PIECE_INTS, dtype=torch.int32, device=where)
    counts = torch.full((num_workers,), -1, dtype=torch.int32, device=where)
    launch = load.kernel(spec(load.arch(device))).launcher(device.index, block=_THREADS)
    launch(
        num_workers,
        load.stream(device.index),
        *work.schedule(section),
        *work.sections[section].values(),
        pieces.data_ptr(),
        counts.data_ptr(),
        room,
    )
    return counts.tolist(), pieces
