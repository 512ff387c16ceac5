"""What a backend needs to know of the paged-cache operations."""

from __future__ import annotations

from dataclasses import dataclass

from attnhub.core.problem import Problem, Work, fact

FLOATS = ("float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2")
_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float8_e4m3fn": 1, "float8_e5m2": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Append(Problem):
    dtype: str = fact(domain=FLOATS)
    page_size: int = fact(domain=(1, 5, 16, 64))

    def traffic(self, row: int) -> Work:
        """Each token's ``row`` elements are read once and written once."""
        tokens = 128 if self.extent.tokens is None else self.extent.tokens
        return Work(
            flops=0.0,
            bytes=2.0 * tokens * row * _BYTES[self.dtype],
            assumed="" if self.extent.tokens is not None else "tokens unknown, assumed 128",
        )


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
        batch, tokens = self.extent.batch, self.extent.tokens
        unknown = batch is None or tokens is None
        batch = 64 if batch is None else batch
        tokens = 128 if tokens is None else tokens
        return Work(
            flops=0.0,
            bytes=8.0 * (batch + tokens),
            assumed="batch or tokens unknown, assumed 64 and 128" if unknown else "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SeqLensProblem(Problem):
    """``attnhub.page.get_seq_lens``: int32 throughout, so only the size differs."""

    op = "page.get_seq_lens"
    sizes = ("batch",)

    def work(self) -> Work:
        batch = self.extent.batch
        return Work(
            flops=0.0,
            bytes=12.0 * (64 if batch is None else batch),
            assumed="" if batch is not None else "batch unknown, assumed 64",
        )
