"""Which norms `use_ops` replaces, tried without a trace, and which it leaves alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

pytest.importorskip("transformers", reason="needs transformers: pip install transformers")

from attnhub.integrations.transformers import use_ops

DIM = 8
X = torch.linspace(-1.0, 2.0, 3 * DIM).view(3, DIM)


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


class Norm(nn.Module):
    """RMSNorm; what derives from it differs in one thing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(DIM))
        self.eps = 1e-5
        self.calls = 0

    def forward(self, hidden: Tensor) -> Tensor:
        self.calls += 1
        return self.normed(hidden) * self.weight

    def normed(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class Gated(Norm):
    def forward(self, hidden: Tensor, gate: Tensor) -> Tensor:
        return super().forward(hidden) * gate


class GatedAtWill(Norm):
    def forward(self, hidden: Tensor, gate: Tensor | None = None) -> Tensor:
        return super().forward(hidden) if gate is None else super().forward(hidden) * gate


class Variadic(Norm):
    def forward(self, *hidden: Tensor) -> Tensor:
        return super().forward(*hidden)


class Fails(Norm):
    def forward(self, hidden: Tensor) -> Tensor:
        raise KeyError("no such thing")


class Biased(Norm):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(DIM))

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden) + self.bias


class Shifted(Norm):
    def __init__(self) -> None:
        super().__init__()
        self.shift = torch.zeros(DIM)

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden) + self.shift


class Buffered(Norm):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, hidden: Tensor) -> Tensor:
        self.count += 1
        return super().forward(hidden)


class SquaredWeight(Norm):
    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden) * self.weight


class EpsOutside(Norm):
    def normed(self, x: Tensor) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True).sqrt() + self.eps)


def wrapped() -> Norm:
    norm = Norm()
    norm.forward = lambda hidden: Norm.forward(norm, hidden)  # type: ignore[method-assign]
    return norm


NOT_NORMS: dict[str, Callable[[], nn.Module]] = {
    **{
        kind.__name__: kind
        for kind in (Gated, GatedAtWill, Variadic, Fails, Biased, Shifted, Buffered)
    },
    "SquaredWeight": SquaredWeight,
    "EpsOutside": EpsOutside,
    "wrapped": wrapped,
    "parametrized": lambda: parametrize.register_parametrization(Norm(), "weight", nn.Identity()),
    "BatchNorm": lambda: nn.BatchNorm1d(DIM),
    "BatchNorm without statistics": lambda: nn.BatchNorm1d(DIM, track_running_stats=False),
    "LayerNorm": lambda: nn.LayerNorm(DIM),
    "LayerNorm without bias": lambda: nn.LayerNorm(DIM, bias=False),
    "without values": lambda: Norm().to("meta"),
}


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", NOT_NORMS)
def test_what_is_no_plain_norm_stays_as_it_is(name: str, training: bool) -> None:
    module = NOT_NORMS[name]().train(training)
    before, mine = copy.deepcopy(module.state_dict()), dict(vars(module))
    assert use_ops(module).norms == 0
    after = module.state_dict()
    assert after.keys() == before.keys()
    assert all(x.is_meta or torch.equal(after[name], x) for name, x in before.items())
    assert vars(module) == mine


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("value", [0.0, 1.0, 0.5])
def test_a_norm_is_known_whatever_its_weight(value: float, dtype: torch.dtype) -> None:
    norm = nn.RMSNorm(DIM, eps=1e-5, dtype=dtype)
    norm.weight.fill_(value)
    before = norm.weight
    assert use_ops(norm).norms == 1
    assert norm.weight is before
    assert torch.equal(before, torch.full((DIM,), value, dtype=dtype))


def test_a_norm_is_tried_without_a_trace_and_called_by_keyword() -> None:
    norm, state = Norm(), torch.get_rng_state()
    called: list[str] = []
    norm.register_forward_hook(lambda *_: called.append("hook"))
    expected = norm(X)
    done = use_ops(norm)
    assert (done.norms, norm.calls, len(called)) == (1, 1, 1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(norm(hidden=X), expected)
    assert (norm.calls, len(called)) == (1, 2)


def test_a_copy_of_a_model_computes_by_its_own_parameters() -> None:
    norm = Norm()
    use_ops(norm)
    other = copy.deepcopy(norm)
    for x in other.parameters():
        x.mul_(2)
    torch.testing.assert_close(other(X), Norm.forward(other, X))
    torch.testing.assert_close(norm(X), Norm.forward(norm, X))
