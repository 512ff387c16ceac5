"""``attnhub.rope`` by its reference."""

from __future__ import annotations

from torch import Tensor

from attnhub.backends.reference import Reference
from attnhub.rope import reference
from attnhub.rope.problem import ApplyRopeProblem


class _ApplyRope:
    def plan(self, problem: ApplyRopeProblem) -> Reference:
        """A plan that holds the rotation."""

        def run(q: Tensor, k: Tensor, positions: Tensor, q_out: Tensor, k_out: Tensor) -> None:
            for x, out in ((q, q_out), (k, k_out)):
                out.copy_(reference.apply_rope(x, positions, problem.rope))

        return Reference(run)


def _apply_rope_cos_sin(
    q: Tensor,
    k: Tensor,
    positions: Tensor,
    cache: Tensor,
    q_out: Tensor,
    k_out: Tensor,
    interleaved: bool,  # noqa: FBT001 - the order of the op's schema
) -> None:
    for x, out in ((q, q_out), (k, k_out)):
        out.copy_(reference.apply_rope_cos_sin_cache(x, positions, cache, interleaved=interleaved))


apply_rope = _ApplyRope()
apply_rope_cos_sin = Reference(_apply_rope_cos_sin)
