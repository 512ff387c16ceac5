"""What a backend needs to know of the paged-cache operations."""

from __future__ import annotations

from dataclasses import dataclass

from attnhub.core.problem import DTYPE_BYTES, Problem, Work, assuming, fact

FLOATS = ("float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Append(Problem):
    dtype: str = fact(domain=FLOATS)
    page_size: int = fact(domain=(1, 5, 16, 64))

    def traffic(self, row: int) -> Work:
        """Each token's ``row`` elements are read once and written once."""
        (tokens,), assumed = assuming(self.extent, tokens=128)
        moved = 2.0 * tokens * row * DTYPE_BYTES[self.dtype]
        return Work(flops=0.0, bytes=moved, assumed=assumed)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendPagedKVProblem(_Append):
    """``attnhub.page.append_paged_kv``."""

    op = "page.append_paged_kv"

    num_kv_heads: int = fact(domain=(1, 2, 8))
    head_dim_qk: int = fact(domain=(40, 64, 128, 192, 256))
    head_dim_vo: int = fact(domain=(40, 64, 128, 192, 256))
    layout: str = fact(domain=("NHD", "HND"), default="NHD")

    def work(self) -> Work:
        return self.traffic(self.num_kv_heads * (self.head_dim_qk + self.head_dim_vo))


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendPagedMLAProblem(_Append):
    """``attnhub.page.append_paged_mla``."""

    op = "page.append_paged_mla"

    dim_ckv: int = fact(domain=(512, 96))
    dim_kpe: int = fact(domain=(64, 24))

    def work(self) -> Work:
        return self.traffic(self.dim_ckv + self.dim_kpe)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchIndicesPositionsProblem(Problem):
    """``attnhub.page.get_batch_indices_positions``: int32 throughout, so only sizes differ."""

    op = "page.get_batch_indices_positions"
    sizes = ("batch", "tokens")

    def work(self) -> Work:
        (batch, tokens), assumed = assuming(self.extent, batch=64, tokens=128)
        return Work(flops=0.0, bytes=8.0 * (batch + tokens), assumed=assumed)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeqLensProblem(Problem):
    """``attnhub.page.get_seq_lens``: int32 throughout, so only the size differs."""

    op = "page.get_seq_lens"
    sizes = ("batch",)

    def work(self) -> Work:
        (batch,), assumed = assuming(self.extent, batch=64)
        return Work(flops=0.0, bytes=12.0 * batch, assumed=assumed)
