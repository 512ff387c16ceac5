"""Inputs of the rotations: the sizes of real models for benchmarks, any problem for tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnhub.core.calls import Calls, Run, spaced
from attnhub.core.device import Device
from attnhub.core.problem import Work
from attnhub.core.workload import Workload
from attnhub.rope import api
from attnhub.rope.problem import ApplyRopeCosSinProblem, ApplyRopeProblem, RotationProblem
from attnhub.rope.tables import cos_sin_cache
from attnhub.variant.rope import LinearScaling, Llama3Scaling, Rope, Scaling, YarnScaling

_MAX_POSITION = 8192
_LLAMA3 = Llama3Scaling(factor=8, low_freq_factor=1, high_freq_factor=4, original_max_position=8192)
_YARN = YarnScaling(factor=4, original_max_position=32768)

#: (tokens, (qo_heads, kv_heads, dim), rope, tags); 40 and 80 are no powers of two, 16 of 80 turned
#: is a partial rotation, 1 and 128 tokens are decode batches.
_CASES: tuple[tuple[int, tuple[int, int, int], Rope, str], ...] = (
    (7, (4, 2, 64), Rope(), "small"),
    (5, (4, 1, 40), Rope(interleaved=True, scaling=_YARN), "small"),
    (5, (3, 3, 80), Rope(rotary_dim=16, scaling=_LLAMA3), "small"),
    (1, (32, 8, 128), Rope(theta=5e5, scaling=_LLAMA3), "h200"),
    (128, (32, 8, 128), Rope(theta=5e5, scaling=_LLAMA3), "h200"),
    (8192, (32, 8, 128), Rope(theta=5e5, scaling=_LLAMA3), "h200"),
    (8192, (32, 32, 128), Rope(interleaved=True), "h200"),
)


def _apply_rope(q: Tensor, k: Tensor, positions: Tensor, rope: Rope) -> Callable[[], Any]:
    out = torch.empty_like(q), torch.empty_like(k)
    return lambda: api.apply_rope(q, k, positions, rope, out=out)


def _apply_rope_cos_sin(q: Tensor, k: Tensor, positions: Tensor, rope: Rope) -> Callable[[], Any]:
    out = torch.empty_like(q), torch.empty_like(k)
    cache = cos_sin_cache(_MAX_POSITION, q.shape[2], rope, device=q.device)
    return lambda: api.apply_rope_cos_sin(
        q, k, positions, cache, interleaved=rope.interleaved, out=out
    )


def _workload(
    call: Callable[..., Callable[[], Any]],
    tokens: int,
    heads: tuple[int, int, int],
    rope: Rope,
    tag: str,
) -> Workload:
    qo_heads, kv_heads, dim = heads

    def make(device: torch.device, generator: torch.Generator) -> Callable[[], Any]:
        q, k = (
            torch.randn(tokens, n, dim, generator=generator, device=generator.device).to(
                device, torch.bfloat16
            )
            for n in (qo_heads, kv_heads)
        )
        positions = torch.arange(tokens, dtype=torch.int32, device=device) % _MAX_POSITION
        return call(q, k, positions, rope)

    elements = tokens * (qo_heads + kv_heads) * dim
    pairing = "interleaved" if rope.interleaved else "halves"
    return Workload(
        name=f"{tokens}x{qo_heads}+{kv_heads}x{dim}-{pairing}-bfloat16",
        make=make,
        work=Work(flops=3.0 * elements, bytes=4.0 * elements),
        tags=frozenset({tag}),
        facts={
            "tokens": tokens,
            "num_qo_heads": qo_heads,
            "num_kv_heads": kv_heads,
            "head_dim": dim,
            "rope": str(rope),
            "dtype": "bfloat16",
        },
    )


apply_rope = tuple(_workload(_apply_rope, *case) for case in _CASES)
apply_rope_cos_sin = tuple(_workload(_apply_rope_cos_sin, *case) for case in _CASES)


#: The scaling of each name, such that it changes angles even in the narrowest rotation.
_SCALINGS: dict[str, Scaling | None] = {
    "none": None,
    "linear": LinearScaling(factor=4),
    "llama3": Llama3Scaling(
        factor=8, low_freq_factor=1, high_freq_factor=4, original_max_position=16
    ),
    "yarn": YarnScaling(factor=4, original_max_position=64),
}


def _rotation(problem: RotationProblem, scaling: str = "none") -> Rope:
    whole = problem.rotary_dim == problem.head_dim
    return Rope(
        theta=5e5,
        rotary_dim=None if whole else problem.rotary_dim,
        interleaved=problem.interleaved,
        scaling=_SCALINGS[scaling],
    )


def _three_ways(
    call: Callable[..., tuple[Tensor, Tensor]],
    in_place: Callable[..., None],
    problem: RotationProblem,
    device: torch.device,
    generator: torch.Generator,
) -> Run:
    """Into new memory, into the inputs, and into other tensors in the memory of the inputs."""
    dtype = getattr(torch, problem.dtype)
    given = torch.randint(0, _MAX_POSITION, (2,), generator=generator)
    positions = torch.cat([torch.tensor([0]), given]).to(device, torch.int32)

    def pair(tokens: int = len(positions)) -> tuple[Tensor, Tensor]:
        def rows(heads: int) -> Tensor:
            drawn = torch.randn(tokens, heads, problem.head_dim, generator=generator)
            x = drawn.to(device, dtype)
            return x if problem.contiguous else spaced(x)

        return rows(problem.num_qo_heads), rows(problem.num_kv_heads)

    def run() -> dict[str, Tensor]:
        plain, q_and_k, same, none = pair(), pair(), pair(), pair(0)
        out = tuple(x.fill_(math.nan) for x in pair())
        call(*plain, positions, out=out)
        in_place(*q_and_k, positions)
        call(*same, positions, out=(same[0][:], same[1][:]))
        call(*none, positions[:0])
        return {
            f"{name}, {which}": x
            for which, pair in (("new", out), ("in place", q_and_k), ("same memory", same))
            for name, x in zip(("q", "k"), pair, strict=True)
        }

    return run


def _rope_calls(problem: ApplyRopeProblem, device: torch.device, generator: torch.Generator) -> Run:
    rope = _rotation(problem, problem.scaling)
    return _three_ways(
        lambda q, k, positions, **out: api.apply_rope(q, k, positions, rope, **out),
        lambda q, k, positions: api.apply_rope_(q, k, positions, rope),
        problem,
        device,
        generator,
    )


def _cos_sin_calls(
    problem: ApplyRopeCosSinProblem, device: torch.device, generator: torch.Generator
) -> Run:
    table = cos_sin_cache(_MAX_POSITION, problem.head_dim, _rotation(problem), device=device)
    cache, interleaved = spaced(table), problem.interleaved
    return _three_ways(
        partial(api.apply_rope_cos_sin, cache=cache, interleaved=interleaved),
        partial(api.apply_rope_cos_sin_, cache=cache, interleaved=interleaved),
        problem,
        device,
        generator,
    )


def _wider_than_a_head(facts: Mapping[str, Any], _: Device) -> set[str]:
    return {"rotary_dim", "head_dim"} if facts["rotary_dim"] > facts["head_dim"] else set()


_BASE = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 64, "rotary_dim": 64}
calls = {
    "rope.apply_rope": Calls(build=_rope_calls, base=_BASE, clashes=_wider_than_a_head),
    "rope.apply_rope_cos_sin": Calls(build=_cos_sin_calls, base=_BASE, clashes=_wider_than_a_head),
}
