"""What a backend needs to know of a merge of attention states."""

from __future__ import annotations

from dataclasses import dataclass

from attnhub.core.problem import DTYPE_BYTES, Problem, Work, assuming, fact


@dataclass(frozen=True, slots=True, kw_only=True)
class _Merge(Problem):
    dtype: str = fact(domain=("float16", "bfloat16", "float32"))
    num_heads: int = fact(domain=(1, 3, 32))
    head_dim: int = fact(domain=(40, 64, 111, 128, 256))
    #: every tensor of the call
    contiguous: bool = fact(domain=(True, False), default=True)

    def traffic(self, states: int) -> Work:
        """``states`` outputs and LSEs are read or written; each element costs a few operations."""
        (tokens,), assumed = assuming(self.extent, tokens=128)
        rows = float(states * tokens * self.num_heads)
        return Work(
            flops=3.0 * rows * self.head_dim,
            bytes=rows * (self.head_dim * DTYPE_BYTES[self.dtype] + 4),
            assumed=assumed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStateProblem(_Merge):
    """``attnhub.cascade.merge_state``."""

    op = "cascade.merge_state"

    def work(self) -> Work:
        return self.traffic(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStateInPlaceProblem(_Merge):
    """``attnhub.cascade.merge_state_``."""

    op = "cascade.merge_state_in_place"

    mask: bool = fact(domain=(True, False), default=False)

    def work(self) -> Work:
        return self.traffic(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStatesProblem(_Merge):
    """``attnhub.cascade.merge_states``."""

    op = "cascade.merge_states"

    num_states: int = fact(domain=(0, 1, 2, 3, 8), minimum=0)

    def work(self) -> Work:
        return self.traffic(self.num_states + 1)
