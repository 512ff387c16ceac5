"""The host side: what is prepared once for a problem, and the launch."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attnhub.plugin import KernelSpec, arch, kernel, stream
from attnhub_swiglu.kernel import CHUNK, THREADS, spec

_MAX_GRID_Y = 65535


class SiluAndMulPlan:
    """One kernel, ready for rows of one length."""

    def __init__(self, problem: Any) -> None:
        device = problem.device
        loaded = kernel(spec(problem.dtype, arch(device)))
        self._launch = loaded.launcher(device.index, block=THREADS)
        self._device = device.index
        self._num_chunks = problem.hidden // CHUNK
        self._ctas_of_row = -(-self._num_chunks // THREADS)
        # As many rows at once as the device holds CTAs; each CTA goes on to further rows.
        resident = device.num_sms * loaded.ctas_per_sm(device.index, block=THREADS)
        self._max_rows = min(max(resident // self._ctas_of_row, 1), _MAX_GRID_Y)

    def run(self, x: Tensor, out: Tensor, scale: None) -> None:
        """See docs/plan_contract.md. There is no scale: no sheet of ours has FP8."""
        x_rows, out_rows = _rows(x), _rows(out)
        if x_rows is None or out_rows is None:
            for x_part, out_part in zip(x, out, strict=True):
                self.run(x_part, out_part, scale)
            return
        (num_rows, stride_x), (_, stride_out) = x_rows, out_rows
        if num_rows == 0:
            return
        x_address, out_address = x.data_ptr(), out.data_ptr()
        self._launch(
            (self._ctas_of_row, min(num_rows, self._max_rows), 1),
            stream(self._device),
            x_address,
            out_address,
            stride_x,
            stride_out,
            num_rows,
            self._num_chunks,
            (x_address | out_address | 2 * (stride_x | stride_out)) % 16 == 0,
        )


def _rows(x: Tensor) -> tuple[int, int] | None:
    """How many rows, and the stride from each to the next; None if there is no such one."""
    num_rows, stride = 1, 0
    for size, step in zip(reversed(x.shape[:-1]), reversed(x.stride()[:-1]), strict=True):
        if size == 0:
            return 0, 0
        if size > 1:
            if num_rows == 1:
                stride = step
            elif step != num_rows * stride:
                return None
            num_rows *= size
    return num_rows, stride


class SiluAndMulPlanner:
    """What the manifest's ``load`` names."""

    def plan(self, problem: Any) -> SiluAndMulPlan:
        """A plan for any number of rows; compiles the kernel where no cache has it."""
        return SiluAndMulPlan(problem)

    def specs(self, problem: Any) -> list[KernelSpec]:
        """What ``attnhub warmup`` compiles."""
        return [spec(problem.dtype, arch(problem.device))]


planner = SiluAndMulPlanner()
