"""Batches and sections, for tests of schedules on a CPU and on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnhub.core.device import Device
from attnhub.kernels.schedule import WorkSchedule
from attnhub.kernels.section import Section
from attnhub.testing.generators import seeded
from tests.kernels import pieces
from tests.kernels import schedule_model as model
from tests.kernels.schedule_model import Lengths

PAGE = 16
DECODE = Section(num_workers=132, tile_tokens=1, tile_cost=64, kv_block=16)
#: Prefill with packed heads of a group of 7, each KV head an item of the workers.
PREFILL = Section(
    num_workers=20,
    tile_tokens=18,
    tile_cost=128,
    kv_block=64,
    num_heads=2,
    min_qo_len=2,
    window=(500, 0),
)
FIXED = Section(
    num_workers=7, tile_tokens=4, tile_cost=64, kv_block=64, split_len=256, fixed_slots=5000
)
MIXED = (replace(DECODE, num_workers=6, num_lanes=3, max_qo_len=1), PREFILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch and its metadata on a device, with keys in pages."""

    lengths: list[Lengths]
    qo_indptr: Tensor
    kv_indptr: Tensor
    last_page_len: Tensor

    @classmethod
    def of(cls, lengths: Sequence[Lengths], device: Device) -> Batch:
        qo_lens, kv_lens = torch.tensor([*lengths], dtype=torch.int64).view(-1, 2).unbind(1)
        num_pages = -(-kv_lens // PAGE)
        last = torch.where(kv_lens > 0, kv_lens - (num_pages - 1) * PAGE, 0)
        where = torch.device(device.type, device.index)
        return cls(
            lengths=[*lengths],
            qo_indptr=cumulative(qo_lens).to(where),
            kv_indptr=cumulative(num_pages).to(where),
            last_page_len=last.int().to(where),
        )

    def plan(self, work: WorkSchedule) -> None:
        work.plan(self.qo_indptr, self.kv_indptr, last_page_len=self.last_page_len)

    def copy_(self, other: Batch) -> None:
        """Overwrite what the device reads."""
        for name in ("qo_indptr", "kv_indptr", "last_page_len"):
            getattr(self, name).copy_(getattr(other, name))

    def requests(self) -> list[list[int]]:
        begins = zip(self.qo_indptr.tolist(), self.kv_indptr.tolist(), strict=True)
        pairs = zip(begins, self.lengths, strict=False)
        return [[qo, qo_len, kv, kv_len] for (qo, kv), (qo_len, kv_len) in pairs]


def cumulative(lens: Tensor) -> Tensor:
    return torch.cat([torch.zeros(1, dtype=lens.dtype), lens.cumsum(0)]).int()


def random_lengths(batch: int, seed: int, *, longest: int = 60) -> list[Lengths]:
    """Mostly decode; some requests have no query, no key, or more queries than keys."""
    generator = seeded(seed)

    def draw(high: int, *, of_each: int, otherwise: int) -> Tensor:
        is_drawn = torch.randint(of_each, (batch,), generator=generator) == 0
        return torch.where(is_drawn, torch.randint(high, (batch,), generator=generator), otherwise)

    qo_lens = draw(longest, of_each=4, otherwise=1)
    kv_lens = torch.randint(1500, (batch,), generator=generator)
    kv_lens *= torch.randint(8, (batch,), generator=generator) > 0
    return [*zip(qo_lens.tolist(), kv_lens.tolist(), strict=True)]


def check(work: WorkSchedule, batch: Batch, device: Device) -> None:
    parts = work.workspace.parts
    found = parts["requests"].view(-1, 4)[: len(batch.lengths)]
    assert found.tolist() == batch.requests()
    for i, section in enumerate(work.sections):
        model.check(section, batch.lengths, pieces.read(work, device, i))
        assert not parts[f"counters[{i}]"].any()
