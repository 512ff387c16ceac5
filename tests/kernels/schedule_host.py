"""schedule_host.cc, compiled and called: a plan and its pieces in microseconds."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from attnhub.kernels.schedule import SCHEDULE
from attnhub.kernels.section import SECTION, Section
from attnhub.testing.emulator import INCLUDE_DIR
from tests.kernels.schedule_model import PIECE_INTS, Lengths, Piece

_SOURCE = Path(__file__).with_name("schedule_host.cc")
_EMULATOR = Path(INCLUDE_DIR).parent / "testing/emulator/src"
RANGE_INTS = 16


@functools.cache
def library() -> ctypes.CDLL:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not on the PATH")
    includes = [f"-I{INCLUDE_DIR}", f"-I{_EMULATOR}"]
    flags = ["-std=c++20", "-O2", "-ftrapv", "-DATTNHUB_EMULATOR", "-fPIC", "-shared"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "schedule_host.so"
        subprocess.run(["g++", *flags, *includes, str(_SOURCE), "-o", str(out)], check=True)
        return ctypes.CDLL(str(out))  # what is loaded needs its file no more


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that the plan kernel writes for one section."""

    requests: Tensor  # [batch, 4]
    cost_before: Tensor  # [batch]
    first_slots: Tensor  # [batch]
    next_requests: Tensor  # [batch]
    ranges: Tensor  # [num_workers, 16]

    def pieces(self, section: Section) -> list[list[Piece]]:
        """What each worker reads of it."""
        addresses = [
            x.data_ptr() for x in (self.requests, self.ranges, self.next_requests, self.first_slots)
        ]
        schedule, packed = SCHEDULE.pack([*addresses, 0]), SECTION.pack(section.values())
        found, room = [], 1 << 16
        buffer = torch.empty(room, PIECE_INTS, dtype=torch.int32)
        for worker in range(section.num_workers):
            pieces = ctypes.c_void_p(buffer.data_ptr())
            count = library().read_pieces(schedule, packed, worker, pieces, room)
            assert count <= room
            found.append([Piece.of(ints) for ints in buffer[:count].tolist()])
        return found


def requests_of(lengths: Sequence[Lengths]) -> Tensor:
    """Requests that lie end to end."""
    ints = torch.tensor([*lengths], dtype=torch.int64).view(-1, 2)
    begins = (ints.cumsum(0) - ints) % 2**31  # only looked at where it fits
    return torch.stack([begins[:, 0], ints[:, 0], begins[:, 1], ints[:, 1]], 1).int().contiguous()


def plan(section: Section, lengths: Sequence[Lengths]) -> Plan:
    """Plan a batch as the kernel does."""
    batch = len(lengths)
    made = Plan(
        requests=requests_of(lengths),
        cost_before=torch.empty(batch, dtype=torch.int64),
        first_slots=torch.empty(batch, dtype=torch.int32),
        next_requests=torch.empty(batch, dtype=torch.int32),
        ranges=torch.empty(section.num_workers, RANGE_INTS, dtype=torch.int32),
    )
    outputs = (made.cost_before, made.first_slots, made.next_requests, made.ranges)
    library().plan(
        SECTION.pack(section.values()),
        ctypes.c_void_p(made.requests.data_ptr()),
        batch,
        *(ctypes.c_void_p(x.data_ptr()) for x in outputs),
    )
    return made


def tile_costs_before(section: Section, lengths: Lengths, count: int) -> list[int]:
    """What the first tiles of a request cost: none, one, ... of one head."""
    request, packed = requests_of([lengths]), SECTION.pack(section.values())
    before = library().tile_costs_before
    before.restype = ctypes.c_longlong
    return [before(packed, ctypes.c_void_p(request.data_ptr()), tile) for tile in range(count)]
