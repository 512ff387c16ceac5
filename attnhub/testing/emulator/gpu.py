"""The host side of kernels on a CPU: what it loads and launches runs in the emulator."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from attnhub.errors import InvalidArgument
from attnhub.plugin import Backend, Device, KernelSpec, LaunchError, describe
from attnhub.testing.emulator.kernel import EmulatedKernel, Launch
from attnhub.testing.emulator.params import as_pointee
from attnhub.testing.on_cpu import OnCpu

_LOAD = "attnhub.kernels.load"
_KIB = 1024
_MAX_THREADS = 1024
_MAX_CLUSTER, _FIRST_WITH_CLUSTERS = 16, 90

_kernel = functools.cache(EmulatedKernel.from_spec)


@dataclass(slots=True, kw_only=True)
class EmulatedGpu:
    """Stands for a GPU and its driver: while it is installed, it is the device "cpu".

    ``attnhub.plugin.kernel`` then gives kernels that run in the emulator, so that a planner, its
    plans and the public API above them can be tested without a GPU. Launches that a GPU of its
    compute capability refuses are refused here too. The fixture ``emulated_gpu`` installs one for a
    test. A kernel may touch every tensor whose address was taken, from there to
    the tensor's end.

    Args:
        sm: the compute capability that kernels are made for.
        num_sms: SMs that host sides see.
        ctas_per_sm: CTAs of any kernel that one of them holds, fewer where their shared memory
            leaves no room.
        seed: of the schedule, as in :class:`Launch`.

    Example:
        >>> def test_attention(emulated_gpu, isolated_registry):
        ...     isolated_registry.register(emulated_gpu.plugin(manifest.attnhub_backends()), "mine")
        ...     attn = attnhub.BatchAttention(..., device="cpu", backend="mine")
    """

    sm: int = 80
    num_sms: int = 2
    ctas_per_sm: int = 1
    seed: int = 0
    #: Every kernel that ran, by name, with its launch.
    launches: list[tuple[str, Launch]] = field(default_factory=list)
    # Held, so that no address comes to mean another tensor.
    _tensors: dict[int, Tensor] = field(default_factory=dict)
    _patches: pytest.MonkeyPatch | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name in ("sm", "num_sms") and getattr(self, "_patches", None) is not None:
            self._describe()

    def _describe(self) -> None:
        """Have host sides see what it is now."""
        assert self._patches is not None
        cpu = replace(describe("cpu"), num_sms=self.num_sms)
        self._patches.setattr("attnhub.core.device.CPU", cpu)
        self._patches.setattr(f"{_LOAD}.describe", lambda device: replace(cpu, sm=self.sm))

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let all that loads and launches kernels do it here."""
        address = Tensor.data_ptr

        def data_ptr(tensor: Tensor) -> int:
            found = address(tensor)
            self._tensors[found] = tensor
            return found

        def compiled(specs: Iterable[KernelSpec], **_: Any) -> list[Any]:
            return [SimpleNamespace(spec=spec, image=b"") for spec in specs]

        monkeypatch.setattr(Tensor, "data_ptr", data_ptr)
        monkeypatch.setattr(f"{_LOAD}._loaded", {})
        monkeypatch.setattr(f"{_LOAD}.compile_kernels", compiled)
        monkeypatch.setattr(f"{_LOAD}.LoadedKernel", lambda image, spec: _Loaded(self, spec))
        monkeypatch.setattr(f"{_LOAD}.raw_stream", lambda index: 0)
        self._patches = monkeypatch
        self._describe()

    @property
    def device(self) -> Device:
        """What host sides are made for."""
        return describe("cpu")

    def plugin(self, backends: Iterable[Backend]) -> OnCpu:
        """A plugin with the same backends, but for this device; each keeps its name."""
        return OnCpu.of(backends)

    @property
    def smem_of_cta(self) -> int:
        """Bytes of shared memory that a CTA may have."""
        sm = describe(f"sm_{self.sm}")
        return (sm.smem_kb - sm.smem_kept_kb) * _KIB

    def room_for(self, smem: int) -> int:
        """How many CTAs with so much shared memory each an SM holds."""
        sm = describe(f"sm_{self.sm}")
        each = smem + sm.smem_kept_kb * _KIB
        return min(self.ctas_per_sm, sm.smem_kb * _KIB // max(each, 1))

    def launch(self, spec: KernelSpec, shape: Launch, values: tuple[Any, ...]) -> None:
        """Run a kernel to its end."""
        self.launches.append((spec.name, shape))
        given = {
            member.name: self._tensor(value, member.kind) if member.is_pointer else value
            for member, value in zip(spec.params.fields, values, strict=True)
        }
        _kernel(spec).run(shape, **given)

    def _tensor(self, address: int, kind: str) -> Tensor | None:
        """The memory that a pointer gives to a kernel."""
        if not address:
            return None
        if address in self._tensors:
            return as_pointee(self._tensors[address], kind)
        for tensor in self._tensors.values():
            storage = tensor.untyped_storage()
            offset = address - storage.data_ptr()
            if 0 <= offset < storage.nbytes():
                rest = torch.empty(0, dtype=torch.uint8).set_(storage)[offset:]
                return as_pointee(rest, kind)
        raise InvalidArgument(f"address {address:#x}: no tensor whose data_ptr() was asked for")


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What LoadedKernel is on a GPU."""

    gpu: EmulatedGpu
    spec: KernelSpec

    def ctas_per_sm(self, device: int, *, block: int, smem: int = 0) -> int:
        self.launcher(device, block=block, smem=smem)
        return self.gpu.room_for(smem)

    def launcher(
        self, device: int, *, block: int, smem: int = 0, cluster: int = 1, pdl: bool = False
    ) -> _Launcher:
        gpu = self.gpu
        largest = _MAX_CLUSTER if gpu.sm >= _FIRST_WITH_CLUSTERS else 1
        for name, value, low, high in (
            ("block", block, 1, _MAX_THREADS),
            ("smem", smem, 0, gpu.smem_of_cta),
            ("cluster", cluster, 1, largest),
        ):
            if not low <= value <= high:
                raise LaunchError(
                    f"{name}={value}: {self.spec} on a GPU of sm_{gpu.sm} takes {low} to {high}"
                )
        shape = Launch(block=block, smem=smem, cluster=1, seed=self.gpu.seed)
        return _Launcher(self.gpu, self.spec, shape, cluster)


@dataclass(frozen=True, slots=True)
class _Launcher:
    """What Launcher is on a GPU."""

    gpu: EmulatedGpu
    spec: KernelSpec
    shape: Launch
    cluster: int
    bound: tuple[Any, ...] = ()

    def bind(self, *last: Any) -> _Launcher:
        params = self.spec.params
        if told := params.misfit(last, max(len(params.fields) - len(last), 0)):
            raise LaunchError(f"{self.spec}: {told}")
        return replace(self, bound=last)

    def __call__(self, grid: int | tuple[int, int, int], stream: int, *values: Any) -> None:
        extents = (grid,) if isinstance(grid, int) else grid
        shape = replace(self.shape, grid=extents, cluster=self.cluster)
        self.gpu.launch(self.spec, shape, (*values, *self.bound))
