"""What a backend needs to know of a rotation of queries and keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnhub.core.problem import DTYPE_BYTES, Problem, Work, assuming, fact
from attnhub.errors import InvalidArgument
from attnhub.variant.rope import Rope


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationProblem(Problem):
    """Facts of every rotation.

    Outputs may be the inputs themselves (same memory, same strides); every backend serves that.
    """

    dtype: str = fact(domain=("float32", "float16", "bfloat16"))
    num_qo_heads: int = fact(domain=(1, 4, 32))
    num_kv_heads: int = fact(domain=(1, 8))
    head_dim: int = fact(domain=(40, 64, 80, 128, 256))
    #: how many leading elements of a head are turned
    rotary_dim: int = fact(domain=(2, 40, 64, 80, 128, 256))
    interleaved: bool = fact(domain=(False, True), default=False)
    #: whether all four tensors are
    contiguous: bool = fact(domain=(True, False), default=True)

    def validate(self) -> None:
        if self.rotary_dim % 2 or self.rotary_dim > self.head_dim:
            raise InvalidArgument(
                f"rotary_dim={self.rotary_dim}: give an even number up to head_dim={self.head_dim}"
            )

    def work(self) -> Work:
        """Each head is read once and written once."""
        (tokens,), assumed = assuming(self.extent, tokens=4096)
        heads = tokens * (self.num_qo_heads + self.num_kv_heads)
        return Work(
            flops=3.0 * heads * self.rotary_dim,
            bytes=2.0 * heads * self.head_dim * DTYPE_BYTES[self.dtype],
            assumed=assumed,
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
        """Accept ``rope=Rope(...)`` or its data; facts given besides it win."""
        rope = facts.get("rope") or Rope(
            rotary_dim=facts.get("rotary_dim"), interleaved=facts.get("interleaved", False)
        )
        if isinstance(rope, Mapping):
            rope = Rope.from_data(rope)
        return {**rope_facts(rope, facts.get("head_dim", 0)), **facts, "rope": rope}

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
