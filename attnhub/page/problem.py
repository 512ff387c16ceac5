"""What a backend needs to know of the paged-cache operations."""

from __future__ import annotations

from dataclasses import dataclass

from attnhub.core.problem import DTYPE_BYTES, Problem, Work, assuming, fact
from attnhub.errors import InvalidArgument

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
class RopeAppendPagedKVProblem(Problem):
    """``attnhub.page.rope_append_paged_kv``."""

    op = "page.rope_append_paged_kv"

    #: of queries, keys and values as they come
    dtype: str = fact(domain=("float32", "float16", "bfloat16"))
    page_size: int = fact(domain=(1, 5, 16, 64))
    num_qo_heads: int = fact(domain=(1, 4, 32))
    num_kv_heads: int = fact(domain=(1, 2, 8))
    head_dim_qk: int = fact(domain=(40, 64, 80, 128, 192, 256))
    head_dim_vo: int = fact(domain=(40, 64, 80, 128, 256))
    #: how many leading elements of a head of queries and keys are turned
    rotary_dim: int = fact(domain=(2, 40, 64, 80, 128, 256))
    interleaved: bool = fact(domain=(False, True), default=False)
    #: of the cache; "none" is a cache of ``dtype``
    fp8: str = fact(domain=("none", "float8_e4m3fn", "float8_e5m2"), default="none")
    #: queries are stored in the cache's FP8 too
    fp8_q: bool = fact(domain=(False, True), default=False)
    layout: str = fact(domain=("NHD", "HND"), default="NHD")

    def validate(self) -> None:
        if self.rotary_dim % 2 or self.rotary_dim > self.head_dim_qk:
            raise InvalidArgument(
                f"rotary_dim={self.rotary_dim}: give an even number up to "
                f"head_dim_qk={self.head_dim_qk}"
            )
        if self.fp8_q and self.fp8 == "none":
            raise InvalidArgument("fp8_q=True: queries are stored as FP8 only if the cache is")

    def work(self) -> Work:
        """Queries, keys and values are read once and written once, the table's rows read."""
        (tokens,), assumed = assuming(self.extent, tokens=128)
        given = DTYPE_BYTES[self.dtype]
        cached = given if self.fp8 == "none" else 1
        queries = self.num_qo_heads * self.head_dim_qk
        entries = self.num_kv_heads * (self.head_dim_qk + self.head_dim_vo)
        moved = queries * (given + (1 if self.fp8_q else given)) + entries * (given + cached)
        turned = (self.num_qo_heads + self.num_kv_heads) * self.rotary_dim
        return Work(
            flops=3.0 * tokens * turned,
            bytes=float(tokens * (moved + 4 * self.rotary_dim)),
            assumed=assumed,
        )


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
