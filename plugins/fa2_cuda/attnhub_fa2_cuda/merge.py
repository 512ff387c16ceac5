"""``attnhub.cascade``: plans that merge attention states by the kernels that AttnHub has for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from attnhub.plugin import KernelSpec, ManyStatesMerge, TwoStatesMerge, arch


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePlan:
    """A merge that is ready to run."""

    run: Callable[..., None]


def _in_place(merge: TwoStatesMerge) -> Callable[..., None]:
    def run(o: Tensor, lse: Tensor, o_b: Tensor, lse_b: Tensor, mask: Tensor | None) -> None:
        merge(o, lse, o_b, lse_b, o, lse, mask)

    return run


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePlanner:
    """What the manifest's ``load`` names.

    Args:
        merge: the kernel, with its launch.
        form: makes of it a function with the arguments of the op's ``run``.
    """

    merge: type[TwoStatesMerge | ManyStatesMerge]
    form: Callable[[Any], Callable[..., None]] = lambda merge: merge

    def plan(self, problem: Any) -> MergePlan:
        """A plan for any number of tokens; compiles the kernel where no cache has it."""
        merge = self.merge(
            problem.device,
            dtype=problem.dtype,
            num_heads=problem.num_heads,
            head_dim=problem.head_dim,
        )
        return MergePlan(run=self.form(merge))

    def specs(self, problem: Any) -> list[KernelSpec]:
        """The kernel of a problem."""
        return [self.merge.spec(arch(problem.device), problem.dtype, problem.head_dim)]


merge_state = MergePlanner(merge=TwoStatesMerge)
merge_state_in_place = MergePlanner(merge=TwoStatesMerge, form=_in_place)
merge_states = MergePlanner(merge=ManyStatesMerge)
