"""What a backend needs to know of a rotation of queries and keys."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from attnhub.core.problem import Problem, Work, fact
from attnhub.variant.rope import Rope

_SIZES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationProblem(Problem):
    """Facts of every rotation.

    Outputs may be the inputs themselves (same memory, same strides); every backend serves that.
    """

    dtype: str = fact(domain=tuple(_SIZES))
    num_qo_heads: int = fact(domain=(1, 4, 32))
    num_kv_heads: int = fact(domain=(1, 8))
    head_dim: int = fact(domain=(40, 64, 80, 128, 256))
    #: how many leading elements of a head are turned
    rotary_dim: int = fact(domain=(2, 40, 64, 80, 128, 256))
    interleaved: bool = fact(domain=(False, True), default=False)
    #: whether all four tensors are
    contiguous: bool = fact(domain=(True, False), default=True)

    def work(self) -> Work:
        """Each head is read once and written once."""
        tokens = self.extent.tokens if self.extent.tokens is not None else 4096
        heads = tokens * (self.num_qo_heads + self.num_kv_heads)
        return Work(
            flops=3.0 * heads * self.rotary_dim,
            bytes=2.0 * heads * self.head_dim * _SIZES[self.dtype],
            assumed="" if self.extent.tokens is not None else "tokens unknown, assumed 4096",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyRopeProblem(RotationProblem):
    """``attnhub.rope.apply_rope`` and its in-place form.

    ``rope`` is part of the problem, so that a plan can hold what follows from it: the frequencies.
    """

    op = "rope.apply_rope"

    scaling: str = fact(domain=("none", "linear", "llama3", "yarn"), default="none")
    rope: Rope = dataclasses.field(default_factory=Rope)

    @classmethod
    def expand(cls, facts: dict[str, Any]) -> dict[str, Any]:
        """Accept ``rope=Rope(...)``, as the public function does; facts given besides it win."""
        rope = facts.get("rope") or Rope(
            rotary_dim=facts.get("rotary_dim"), interleaved=facts.get("interleaved", False)
        )
        return {**rope_facts(rope, facts.get("head_dim", 0)), "rope": rope, **facts}

    def facts(self) -> dict[str, Any]:
        """As every problem's, with the rotation as plain data."""
        return {**Problem.facts(self), "rope": self.rope.to_data()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyRopeCosSinProblem(RotationProblem):
    """``attnhub.rope.apply_rope_cos_sin`` and its in-place form."""

    op = "rope.apply_rope_cos_sin"


def rope_facts(rope: Rope, head_dim: int) -> dict[str, Any]:
    """The problem fields that a rotation of heads of ``head_dim`` stands for."""
    scaling = rope.to_data()["scaling"]
    return {
        "rotary_dim": head_dim if rope.rotary_dim is None else rope.rotary_dim,
        "interleaved": rope.interleaved,
        "scaling": "none" if scaling is None else scaling["type"],
    }
