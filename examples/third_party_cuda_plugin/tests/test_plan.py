"""The whole backend, from the public API to the launch, on a GPU in the emulator."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import attnhub
from attnhub.activation import silu_and_mul
from attnhub.plugin import Backend, Capability, DriverError, Registry, hookimpl, registry
from attnhub.testing.compare import assert_close
from attnhub.testing.conformance import cases
from attnhub.testing.emulator import EmulatedGpu
from attnhub.testing.generators import seeded
from attnhub_swiglu import manifest
from attnhub_swiglu.planner import planner

HIDDEN = 24


@pytest.fixture
def gpu(emulated_gpu: EmulatedGpu, isolated_registry: Registry) -> EmulatedGpu:
    """The backend of the manifest, for the emulator."""
    isolated_registry.register(emulated_gpu.plugin(manifest.attnhub_backends()), "swiglu")
    return emulated_gpu


def normal(*shape: int) -> Tensor:
    """Drawn from a standard normal distribution."""
    return torch.randn(shape, generator=seeded(len(shape))).bfloat16()


def check(x: Tensor, out: Tensor | None = None) -> None:
    """Run the backend, and compare with float64."""
    with attnhub.use("swiglu"):
        actual = silu_and_mul(x, out=out)
    gate, up = x.double().chunk(2, dim=-1)
    assert_close(actual, (gate / (1 + (-gate).exp()) * up).to(x.dtype))


def test_conformance(gpu: EmulatedGpu) -> None:
    ran = 0
    for case in cases("swiglu"):
        assert case.check() == "", case.id
        ran += "-serves-" in case.id
    assert ran > 5
    assert gpu.launches


@pytest.mark.parametrize(
    ("x", "launches"),
    [
        pytest.param(normal(2 * HIDDEN), 1, id="one row"),
        pytest.param(normal(0, 2 * HIDDEN), 0, id="no rows"),
        pytest.param(normal(9, 2 * HIDDEN), 1, id="more rows than CTAs"),
        pytest.param(normal(3, 2, 3 * HIDDEN)[..., HIDDEN:], 1, id="rows with gaps"),
        pytest.param(normal(1, 2 * HIDDEN).expand(4, -1), 1, id="one row, four times"),
        pytest.param(normal(3, 1, 2, 2 * HIDDEN)[:, :, 1:], 1, id="every other row"),
        pytest.param(normal(3, 2, 2 * HIDDEN).transpose(0, 1), 2, id="transposed"),
    ],
)
def test_rows_of_any_strides(gpu: EmulatedGpu, x: Tensor, launches: int) -> None:
    check(x)
    assert len(gpu.launches) == launches


def test_rows_of_the_output_may_lie_apart(gpu: EmulatedGpu) -> None:
    whole = torch.full((4, HIDDEN + 8), math.nan, dtype=torch.bfloat16)
    check(normal(4, 2 * HIDDEN), whole[:, :HIDDEN])
    assert whole[:, HIDDEN:].isnan().all()


def test_rows_that_begin_anywhere(gpu: EmulatedGpu) -> None:
    """The emulator refuses a 16-byte access to them, so they were moved element by element."""
    check(normal(3 * 2 * HIDDEN + 1)[1:].view(3, 2 * HIDDEN))
    check(normal(3, 2 * HIDDEN + 1)[:, : 2 * HIDDEN])


def test_gates_of_any_size(gpu: EmulatedGpu) -> None:
    x = normal(2, 2 * HIDDEN)
    large = torch.tensor([1e4, -1e4, 88, -88, math.inf, -math.inf, math.nan, 0.0])
    x[0, : len(large)] = large
    check(x)


def test_offsets_that_pass_2_to_the_31(gpu: EmulatedGpu) -> None:
    stride = 2**31
    # Only the pages that are written take memory.
    x = torch.empty(stride + 2 * HIDDEN, dtype=torch.bfloat16).as_strided(
        (2, 2 * HIDDEN), (stride, 1)
    )
    check(x.copy_(normal(2, 2 * HIDDEN)))


def test_warm_up_compiles_what_runs(gpu: EmulatedGpu) -> None:
    check(normal(2, 2 * HIDDEN))
    problem = (
        registry()
        .problem_class("activation.silu_and_mul")
        .of(gpu.device, dtype="bfloat16", hidden=HIDDEN)
    )
    assert [spec.name for spec in planner.specs(problem)] == [name for name, _ in gpu.launches]


class OnTheCpu:
    """The backend of the manifest as it is, but for devices that every machine has."""

    @hookimpl
    def attnhub_backends(self) -> list[Backend]:
        [backend] = manifest.attnhub_backends()
        assert isinstance(backend.capability, Capability)
        return [replace(backend, capability=replace(backend.capability, devices=("cpu",)))]


def test_without_a_driver_another_backend_is_chosen(
    isolated_registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get() -> None:
        raise DriverError("no driver here")

    monkeypatch.setattr("attnhub.jit.driver.get", get)
    isolated_registry.register(OnTheCpu(), "swiglu")
    x = normal(2, 2 * HIDDEN)
    assert silu_and_mul(x).shape == (2, HIDDEN)
    facts = {"dtype": "bfloat16", "hidden": HIDDEN}
    decision = attnhub.explain("activation.silu_and_mul", device="cpu", **facts)
    assert decision.chosen is not None
    assert decision.chosen.name != "swiglu"
    assert "no driver here" in str(decision)
