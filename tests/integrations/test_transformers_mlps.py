"""Which MLPs `use_ops` replaces, and what may become of their projections after it."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

pytest.importorskip("transformers", reason="needs transformers: pip install transformers")

from attnhub.integrations.transformers import use_ops
from tests.integrations.capturing import capture

DIM = 8
X = torch.linspace(-1.0, 2.0, 3 * DIM).view(3, DIM)


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


class Mlp(nn.Module):
    def __init__(self, act: nn.Module | None = None, *, bias: bool = True) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(DIM, 12, bias=bias)
        self.up_proj = nn.Linear(DIM, 12, bias=bias)
        self.down_proj = nn.Linear(12, DIM, bias=bias)
        self.act_fn = nn.SiLU() if act is None else act

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Unbiased(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        gate = nn.functional.linear(x, self.gate_proj.weight)
        return self.down_proj(self.act_fn(gate) * self.up_proj(x))


class Residual(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class Raises(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        raise KeyError("no such thing")


class Routed(Mlp):
    def forward(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        return super().forward(x) if weight is None else super().forward(x) * weight


class Swapped(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.up_proj(x)) * self.gate_proj(x))


class Normed(Mlp):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(DIM)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x))


class Clipped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.silu(x).clamp(max=7.0)


def tied() -> Mlp:
    mlp = Mlp()
    mlp.up_proj = mlp.gate_proj
    return mlp


NOT_GATED: dict[str, Callable[[], Mlp]] = {
    **{kind.__name__: kind for kind in (Unbiased, Residual, Raises, Routed, Swapped, Normed)},
    "relu": lambda: Mlp(nn.ReLU()),
    "clipped": lambda: Mlp(Clipped()),
    "tied": tied,
    "without values": lambda: Mlp().to("meta"),
}


@pytest.mark.parametrize("name", NOT_GATED)
def test_what_is_no_gated_mlp_stays_as_it_is(name: str) -> None:
    """Though its parameters are zero, so that it agrees with all of them."""
    mlp = NOT_GATED[name]()
    for x in mlp.parameters():
        x.zero_()
    before, mine = copy.deepcopy(mlp.state_dict()), dict(vars(mlp))
    parameters = list(mlp.parameters())
    assert use_ops(mlp).activations == 0
    after = mlp.state_dict()
    assert all(x.is_meta or torch.equal(after[name], x) for name, x in before.items())
    assert vars(mlp) == mine
    assert all(a is b for a, b in zip(mlp.parameters(), parameters, strict=True))


class Adapter(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.extra = base, nn.Linear(base.in_features, base.out_features)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.extra(x)


class Double(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def new_projection(mlp: Mlp) -> None:
    mlp.gate_proj = nn.Linear(DIM, 12)


def new_width(mlp: Mlp) -> None:
    mlp.gate_proj, mlp.up_proj = nn.Linear(DIM, 20), nn.Linear(DIM, 20)
    mlp.down_proj = nn.Linear(20, DIM)


def new_bias(mlp: Mlp) -> None:
    mlp.up_proj.bias = nn.Parameter(torch.arange(12.0))


def no_bias(mlp: Mlp) -> None:
    mlp.up_proj.bias = None


def in_place(mlp: Mlp) -> None:
    mlp.up_proj.weight.mul_(3)


def own_forward(mlp: Mlp) -> None:
    mlp.gate_proj.forward = lambda x: x.repeat(1, 2)[:, :12]  # type: ignore[method-assign]


CHANGES: dict[str, Callable[[Mlp], object]] = {
    "adapter on gate": lambda mlp: setattr(mlp, "gate_proj", Adapter(mlp.gate_proj)),
    "adapter on up": lambda mlp: setattr(mlp, "up_proj", Adapter(mlp.up_proj)),
    "adapter on down": lambda mlp: setattr(mlp, "down_proj", Adapter(mlp.down_proj)),
    "another act": lambda mlp: setattr(mlp, "act_fn", nn.ReLU()),
    "hook on gate": lambda mlp: mlp.gate_proj.register_forward_hook(lambda m, i, out: 2 * out),
    "pre-hook on up": lambda mlp: mlp.up_proj.register_forward_pre_hook(lambda m, i: (2 * i[0],)),
    "hook on down": lambda mlp: mlp.down_proj.register_forward_hook(lambda m, i, out: 2 * out),
    "hook on act": lambda mlp: mlp.act_fn.register_forward_hook(lambda m, i, out: 2 * out),
    "parametrization": lambda mlp: parametrize.register_parametrization(
        mlp.gate_proj, "weight", Double()
    ),
    **{f.__name__: f for f in (new_projection, new_width, new_bias, no_bias, in_place)},
    "own forward": own_forward,
    "another dtype and back": lambda mlp: mlp.double().float(),
}
# What torch.compile does not look at again, of any module: it is to be there at the first call.
UNGUARDED = {name for name in CHANGES if "hook" in name or name == "own forward"}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_after_use_ops_is_seen(name: str, compiled: bool) -> None:
    torch.manual_seed(0)
    mlp = Mlp()
    assert use_ops(mlp).activations == 1
    torch.compiler.reset()
    run: Any = torch.compile(mlp, backend="eager", fullgraph=True) if compiled else mlp
    torch.testing.assert_close(run(X), Mlp.forward(mlp, X))
    CHANGES[name](mlp)
    if name in UNGUARDED:
        torch.compiler.reset()
    torch.testing.assert_close(run(X), Mlp.forward(mlp, X))
    for x in mlp.parameters():
        x.mul_(1.5)
    torch.testing.assert_close(mlp(X), Mlp.forward(mlp, X))


def test_a_hook_for_a_while_moves_no_parameter() -> None:
    mlp, seen = Mlp(), []
    use_ops(mlp)
    before = list(mlp.parameters())
    handle = mlp.up_proj.register_forward_hook(lambda *_: seen.append("up"))
    mlp(X)
    handle.remove()
    mlp(X)
    assert seen == ["up"]
    assert all(a is b for a, b in zip(mlp.parameters(), before, strict=True))


def test_replaced_projections_are_let_go() -> None:
    mlp = Mlp()
    use_ops(mlp)
    old = [weakref.ref(mlp.gate_proj.weight), weakref.ref(mlp.up_proj.weight)]
    mlp.gate_proj, mlp.up_proj = Adapter(nn.Linear(DIM, 12)), Adapter(nn.Linear(DIM, 12))
    mlp(X)
    assert [x() for x in old] == [None, None]


def test_nothing_is_joined_during_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy would be recorded instead of made, and the parameters hold nothing."""
    mlp = Mlp()
    use_ops(mlp)
    mlp.double().float()
    before = [x.data_ptr() for x in mlp.parameters()]
    with monkeypatch.context() as patch:
        capture(patch)
        torch.testing.assert_close(mlp(X), Mlp.forward(mlp, X))
    assert [x.data_ptr() for x in mlp.parameters()] == before


def test_a_copy_of_a_model_computes_by_its_own_parameters() -> None:
    mlp = Mlp()
    use_ops(mlp)
    other = copy.deepcopy(mlp)
    for x in other.parameters():
        x.mul_(2)
    torch.testing.assert_close(other(X), Mlp.forward(other, X))
    torch.testing.assert_close(mlp(X), Mlp.forward(mlp, X))
