"""What a backend needs to know of a sampling call."""

from __future__ import annotations

from dataclasses import dataclass

from attnhub.core.problem import DTYPE_BYTES, Problem, Work, assuming, fact
from attnhub.errors import InvalidArgument

#: 1: nothing to choose; 111: no multiple of a vector; 128256: several blocks a row.
VOCABS = (1, 111, 1024, 32000, 128256)
_DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows(Problem):
    """Rows of ``vocab`` entries; ``extent.tokens`` is the number of requests."""

    vocab: int = fact(domain=VOCABS)
    contiguous: bool = fact(domain=(True, False), default=True)

    def traffic(self, bytes_per_entry: int, rows_per_request: int = 1) -> Work:
        """Each entry of each row costs a few operations and ``bytes_per_entry``."""
        (requests,), assumed = assuming(self.extent, tokens=32)
        entries = requests * rows_per_request * self.vocab
        return Work(
            flops=4.0 * entries,
            bytes=float(entries * bytes_per_entry),
            assumed=assumed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleProblem(_Rows):
    """Draws from probabilities; ``indices`` means that requests share rows."""

    op = "sampling.sample"

    top_k: bool = fact(domain=(True, False), default=False)
    top_p: bool = fact(domain=(True, False), default=False)
    min_p: bool = fact(domain=(True, False), default=False)
    joint: bool = fact(domain=(True, False), default=False)
    indices: bool = fact(domain=(True, False), default=False)

    def validate(self) -> None:
        if self.joint and not (self.top_k and self.top_p):
            raise InvalidArgument("joint=True: give top_k=True and top_p=True, which it joins")

    def work(self) -> Work:
        return self.traffic(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLogitsProblem(SampleProblem):
    """Draws from logits."""

    op = "sampling.sample_logits"

    dtype: str = fact(domain=_DTYPES)
    temperature: bool = fact(domain=(True, False), default=False)

    def work(self) -> Work:
        return self.traffic(DTYPE_BYTES[self.dtype])


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftmaxProblem(_Rows):
    """``attnhub.sampling.softmax``."""

    op = "sampling.softmax"

    dtype: str = fact(domain=_DTYPES)
    temperature: bool = fact(domain=(True, False), default=False)

    def work(self) -> Work:
        return self.traffic(DTYPE_BYTES[self.dtype] + 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKRenormProblem(_Rows):
    """``attnhub.sampling.top_k_renorm``."""

    op = "sampling.top_k_renorm"

    def work(self) -> Work:
        return self.traffic(8)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopPRenormProblem(_Rows):
    """``attnhub.sampling.top_p_renorm``."""

    op = "sampling.top_p_renorm"

    def work(self) -> Work:
        return self.traffic(8)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKMaskLogitsProblem(_Rows):
    """``attnhub.sampling.top_k_mask_logits``."""

    op = "sampling.top_k_mask_logits"

    dtype: str = fact(domain=_DTYPES)

    def work(self) -> Work:
        return self.traffic(2 * DTYPE_BYTES[self.dtype])


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKProblem(_Rows):
    """``attnhub.sampling.top_k``."""

    op = "sampling.top_k"

    dtype: str = fact(domain=_DTYPES)
    k: int = fact(domain=(1, 50, 2048))

    def validate(self) -> None:
        if self.k > self.vocab:
            raise InvalidArgument(f"k={self.k}: give at most vocab={self.vocab}")

    def work(self) -> Work:
        return self.traffic(DTYPE_BYTES[self.dtype])


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSpeculativeProblem(_Rows):
    """Verification of ``num_drafts`` drafts in a row."""

    op = "sampling.chain_speculative"

    num_drafts: int = fact(domain=(0, 1, 3, 8), minimum=0)

    def work(self) -> Work:
        # Two rows decide the last token; of the others single entries are read.
        return self.traffic(4, rows_per_request=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSpeculativeProblem(_Rows):
    """Verification of a draft tree; ``draft_probs``: its tokens were drawn, not chosen."""

    op = "sampling.tree_speculative"

    num_nodes: int = fact(domain=(1, 4, 16, 64))
    draft_probs: bool = fact(domain=(True, False), default=False)

    def work(self) -> Work:
        return self.traffic(4, rows_per_request=2 if self.draft_probs else 1)
