"""Clusters: distributed shared memory, remote arrivals, multicast."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnhub.errors import InvalidArgument
from attnhub.testing.emulator import EmulatorError, Launch, Misuse, RaceDetected, TensorMap
from tests.emulator.specs import spec
from tests.machines import HOPPER_MACHINES, kernel_on


def planted(name: str, bug: str = "kNone") -> str:
    return f"{name}<clusters::Bug::{bug}>"


def run(machine: str, name: str, *, seed: int = 0, resident: int = 4) -> tuple[Tensor, Tensor]:
    x, y = torch.randn(24, 32), torch.full((4, 32), torch.nan)
    launch = Launch(
        grid=(4,), block=32, cluster=2, smem=8 * 32 * 4 + 16, seed=seed, resident=resident
    )
    kernel_on(machine, spec(f"clusters::{name}")).run(
        launch, x=TensorMap(tensor=x, box=(8, 32), swizzle=0), y=y
    )
    return x, y


@pytest.mark.parametrize("machine", HOPPER_MACHINES)
@pytest.mark.parametrize("name", [planted("exchange"), "push"])  # by a load, by a store
@pytest.mark.parametrize("resident", [1, 2, 4])  # less than a cluster, one, two
@pytest.mark.parametrize("seed", [0, 1])
def test_reaches_the_memory_of_its_peer(machine: str, name: str, seed: int, resident: int) -> None:
    _, y = run(machine, name, seed=seed, resident=resident)
    lanes = torch.arange(32.0)
    assert torch.equal(y, torch.stack([lanes + 100, lanes, lanes + 100, lanes]))


@pytest.mark.parametrize("machine", HOPPER_MACHINES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_multicast(machine: str, seed: int) -> None:
    x, y = run(machine, planted("multicast"), seed=seed)
    torch.testing.assert_close(y, x.sum(0).expand(4, 32))


@pytest.mark.parametrize(
    ("name", "bug", "error", "text"),
    [
        ("exchange", "kNoSyncBefore", RaceDetected, "of cluster rank 0 wrote, with no barrier"),
        ("exchange", "kNoSyncAfter", Misuse, "shared memory of cluster rank 0, which has ended"),
        ("exchange", "kWrongRank", Misuse, "asks for rank 2 of a cluster of 2"),
        ("multicast", "kOneReader", RaceDetected, "overwrites shared byte .* of cluster rank 1"),
    ],
)
def test_finds(name: str, bug: str, error: type[EmulatorError], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        run("emulator", planted(name, bug))
    assert "at clusters.cuh:" in str(caught.value)


@pytest.mark.parametrize("cluster", [0, 3, 32])  # 3 does not divide the grid
def test_refuses_cluster(cluster: int) -> None:
    with pytest.raises(InvalidArgument, match="cluster="):
        Launch(grid=(4,), block=32, cluster=cluster)
