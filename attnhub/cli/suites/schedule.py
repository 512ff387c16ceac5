"""What a plan costs: the kernel that cuts up a batch, and the host that launches it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attnhub.core import device as devices
from attnhub.core.device import Device
from attnhub.plugin import Section, WorkSchedule
from attnhub.testing.results import Environment, Row
from attnhub.testing.timing import host_overhead, measure

SUITE = "schedule"

#: Budget of the host for a plan.
HOST_US = 15.0

_PAGE_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A batch whose first requests decode and whose last ones are prompts.

    ``limit_us`` is the budget of the device, if there is one.
    """

    name: str
    decode: int
    prompts: int = 0
    kv_len: int
    prompt_len: int = 512
    split_len: int = 0
    limit_us: float | None = None

    def sections(self, num_workers: int) -> list[Section]:
        """Decode with heads as a dimension of the grid, and prompts by head and tile."""
        decode = Section(
            num_workers=num_workers,
            tile_tokens=1,
            tile_cost=64,
            kv_block=16,
            max_qo_len=1,
            split_len=self.split_len,
            fixed_slots=self.decode * -(-self.kv_len // self.split_len) if self.split_len else 0,
        )
        prompt = Section(
            num_workers=num_workers,
            tile_tokens=32,
            tile_cost=128,
            kv_block=64,
            num_heads=8,
            min_qo_len=2,
            window=(-1, 0),
        )
        return [decode, prompt] if self.prompts else [decode]


CASES = (
    Case(name="decode B1 L32768", decode=1, kv_len=32768, limit_us=4.0),
    Case(name="decode B256 L2048", decode=256, kv_len=2048, limit_us=4.0),
    Case(name="decode B4096 L512", decode=4096, kv_len=512, limit_us=6.0),
    Case(name="decode B10000 L512", decode=10_000, kv_len=512),
    Case(name="decode B256 L2048, fixed cuts", decode=256, kv_len=2048, split_len=512),
    Case(name="decode B192 and 64 prompts", decode=192, prompts=64, kv_len=2048),
    Case(name="one prompt of 131072", decode=0, prompts=1, prompt_len=131072, kv_len=131072),
)


def rows(here: Environment, device: str) -> list[Row]:
    """Every figure; ``share_of_ceiling`` is the share of its budget, so smaller is better."""
    target = devices.describe(device)
    return [row for case in CASES for row in _rows(case, here, target)]


def _rows(case: Case, here: Environment, device: Device) -> list[Row]:
    where = torch.device(device.type, device.index)
    qo_lens = torch.tensor([1] * case.decode + [case.prompt_len] * case.prompts)
    pages = torch.full_like(qo_lens, -(-case.kv_len // _PAGE_SIZE))
    last = torch.full_like(qo_lens, case.kv_len - (int(pages[0]) - 1) * _PAGE_SIZE)
    qo_indptr, kv_indptr = (_cumulative(lens).to(where) for lens in (qo_lens, pages))
    last_page_len = last.int().to(where)
    work = WorkSchedule(
        device,
        case.sections(device.num_sms),
        max_batch=qo_lens.numel(),
        page_size=_PAGE_SIZE,
    )

    def plan() -> None:
        work.plan(qo_indptr, kv_indptr, last_page_len=last_page_len)

    plan()
    on_host = host_overhead(plan, calls=500, repeats=40)
    on_device = measure(plan, device=where, graph=True).median_us
    limit = case.limit_us
    share = None if limit is None else on_device / limit
    return [
        here.row(SUITE, case.name, "device time", on_device, "us", share_of_ceiling=share),
        here.row(SUITE, case.name, "host time", on_host, "us", share_of_ceiling=on_host / HOST_US),
    ]


def _cumulative(lens: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.zeros(1, dtype=torch.int64), lens.cumsum(0)]).int()
