"""A kernel on a GPU, called as in the emulator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnhub.jit.params import ParamField
from attnhub.plugin import KernelSpec, LoadedKernel, arch, kernel, stream, tensor_map
from attnhub.testing.emulator import Launch, TensorMap

_DEVICE = "cuda:0"
#: What lies before and behind the copy of a tensor, and how many bytes of it.
_GUARD, _GUARD_BYTES = 0xA5, 256


@dataclass(frozen=True, slots=True)
class GpuKernel:
    """What EmulatedKernel is, on a GPU: CPU tensors are copied there, and results back.

    Of a launch, hardware takes grid, block, cluster and shared memory. Its schedule is its own and
    never the same, so that a test of several seeds is a test run several times.
    """

    loaded: LoadedKernel

    @classmethod
    def from_spec(cls, spec: KernelSpec) -> GpuKernel:
        """The kernel of a spec, made for the GPU that is here."""
        return cls(kernel(replace(spec, arch=arch(_DEVICE))))

    def run(self, launch: Launch, **values: Any) -> None:
        """Run the grid to its end; tensors that are not ``const`` hold its results.

        Args:
            launch: grid, block, cluster and shared memory.
            values: one for each member, as the emulator takes them.
        """
        params = self.loaded.spec.params
        pairs = zip(params.fields, params.ordered(values), strict=True)
        arguments = [_Argument(field, value) for field, value in pairs]
        launcher = self.loaded.launcher(
            0, block=launch.block, smem=launch.smem, cluster=launch.cluster
        )
        x, y, z = (*launch.grid, 1, 1)[:3]
        launcher((x, y, z), stream(0), *(argument.value for argument in arguments))
        for argument in arguments:
            argument.finish()


class _Argument:
    """A value of a launch; that of a tensor is of a copy on the GPU."""

    def __init__(self, field: ParamField, given: Any) -> None:
        self._name = field.name
        self._tensor = given.tensor if isinstance(given, TensorMap) else given
        if not isinstance(self._tensor, Tensor):
            self.value, self._tensor = given or 0, None
            return
        copy = self._copy()
        if isinstance(given, TensorMap):
            self.value = tensor_map(copy, given.box, swizzle=given.swizzle).encode()
            self._result = copy if given.writable else None
        else:
            self.value = copy.data_ptr()
            self._result = None if field.kind.startswith("const ") else copy

    def _copy(self) -> Tensor:
        """A copy that is aligned as the tensor is, and no better, between guards."""
        x = self._tensor
        last = sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
        memory = x.as_strided((last + 1 if x.numel() else 0,), (1,)).view(torch.uint8)
        begin = _GUARD_BYTES + x.data_ptr() % 16
        end = begin + len(memory)
        room = torch.full((end + _GUARD_BYTES,), _GUARD, dtype=torch.uint8, device=_DEVICE)
        room[begin:end] = memory.to(_DEVICE)
        self._guards = room[:begin], room[end:]
        return room[begin:end].view(x.dtype).as_strided(x.shape, x.stride())

    def finish(self) -> None:
        """Take back a result, once the launch is in the stream."""
        if self._tensor is None:
            return
        for guard in self._guards:
            assert (guard == _GUARD).all(), f"the kernel writes beside {self._name}"
        if self._result is not None:
            self._tensor.copy_(self._result)
