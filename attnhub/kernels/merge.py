"""Merging attention states by ``attention/merge.cuh``: two of every row, or any number of them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from attnhub.core.device import Device
from attnhub.core.problem import DTYPE_BYTES
from attnhub.jit import KernelSpec, ParamLayout
from attnhub.kernels import load
from attnhub.kernels.fastdiv import FAST_DIV, fast_divisor

__all__ = ["ELEMENTS", "ManyStatesMerge", "TwoStatesMerge", "specs"]

#: dtype of the outputs -> its type in C++. A row of any multiple of 8 elements will do.
ELEMENTS = {"float16": "attnhub::Half", "bfloat16": "attnhub::Bf16", "float32": "float"}

_WARP = 32
_THREADS = 256
_CHUNK_BYTES = 16
_HELD = 2  # chunks of a row that a lane holds at a time
_IN_FLIGHT = 4  # states that merge.cuh loads at a time
_MAX_PART_BITS = (_THREADS // _WARP).bit_length() - 1

_STRIDES = {"stride_token": "i64", "stride_head": "i64", "stride_lse_token": "i64"}
_STATES = ParamLayout({"o": "const void*", "lse": "const float*", **_STRIDES})
_MERGED = ParamLayout({"o": "void*", "lse": "float*", **_STRIDES})
_TWO = ParamLayout(
    {
        "a": _STATES,
        "b": _STATES,
        "out": _MERGED,
        "mask": "const u8*",
        "num_tokens": "i64",
        "heads": FAST_DIV,
        "is_aligned": "bool",
    }
)
_MANY = ParamLayout(
    {
        "states": _STATES,
        "stride_state": "i64",
        "stride_lse_state": "i64",
        "out": _MERGED,
        "num_tokens": "i64",
        "heads": FAST_DIV,
        "num_states": "i32",
        "part_bits": "i32",
        "is_aligned": "bool",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """How lanes share a row: the template arguments of ``RowShape``, and the CTA."""

    element: str
    head_dim: int
    lanes: int
    held: int
    threads: int

    @property
    def of_cta(self) -> int:
        """The rows of a CTA."""
        return self.threads // self.lanes


def _rows(dtype: str, head_dim: int) -> _Rows:
    chunks = head_dim * DTYPE_BYTES[dtype] // _CHUNK_BYTES
    lanes = 1 << (-(-chunks // _HELD) - 1).bit_length()
    return _Rows(
        element=ELEMENTS[dtype],
        head_dim=head_dim,
        lanes=min(lanes, _WARP),
        held=_HELD,
        threads=_THREADS,
    )


def _spec(states: str, params: ParamLayout, arch: str, dtype: str, head_dim: int) -> KernelSpec:
    return KernelSpec(
        name=f"merge_{states}_{dtype}_{head_dim}",
        template=f"attnhub:kernels/templates/merge_{states}.cu.jinja",
        context=_rows(dtype, head_dim),
        entry=f"attnhub_merge_{states}",
        params=params,
        arch=arch,
        include_dirs=(load.INCLUDE_DIR,),
    )


def specs(arch: str, dtype: str, head_dim: int) -> list[KernelSpec]:
    """All kernels here, for one shape of rows."""
    return [merge.spec(arch, dtype, head_dim) for merge in (TwoStatesMerge, ManyStatesMerge)]


class _Merge:
    """A kernel that is ready on one device, for rows ``[tokens, heads, dim]`` of one shape."""

    def __init__(self, spec: KernelSpec, device: Device, num_heads: int, smem: int = 0) -> None:
        loaded = load.kernel(spec)
        self._launch = loaded.launcher(device.index, block=_THREADS, smem=smem)
        self._index = device.index
        self._heads = fast_divisor(num_heads)
        self._rows_of_cta = spec.context.of_cta
        # As many CTAs as the device holds at once: they step through the rows that are left.
        resident = loaded.ctas_per_sm(device.index, block=_THREADS, smem=smem)
        self._max_ctas = device.num_sms * resident

    def _ctas(self, num_tokens: int, rows_of_cta: int) -> int:
        return min(-(-num_tokens * self._heads.divisor // rows_of_cta), self._max_ctas)


class TwoStatesMerge(_Merge):
    """Merges two states of every row.

    Args:
        device: a GPU.
        dtype: of the outputs, one of :data:`ELEMENTS`.
        num_heads: rows of a token.
        head_dim: a multiple of 8.

    Raises:
        NoCompiler, CompileError, DriverError: the kernel cannot be made or loaded.

    Example:
        >>> merge = TwoStatesMerge(describe("cuda:0"), dtype="bfloat16", num_heads=32, head_dim=128)
        >>> merge(o_a, lse_a, o_b, lse_b, out, lse)
    """

    def __init__(self, device: Device, *, dtype: str, num_heads: int, head_dim: int) -> None:
        super().__init__(self.spec(load.arch(device), dtype, head_dim), device, num_heads)
        self._bytes = DTYPE_BYTES[dtype]

    @staticmethod
    def spec(arch: str, dtype: str, head_dim: int) -> KernelSpec:
        """The kernel, for warm-up and ahead-of-time builds."""
        return _spec("two", _TWO, arch, dtype, head_dim)

    def __call__(
        self,
        o_a: Tensor,
        lse_a: Tensor,
        o_b: Tensor,
        lse_b: Tensor,
        out: Tensor,
        lse: Tensor,
        mask: Tensor | None = None,
    ) -> None:
        """Write both states, merged, to ``out`` and ``lse``, which may be one of the two.

        Tokens where ``mask`` is False are left alone. Any strides will do, if the last dimension is
        contiguous.
        """
        num_tokens = out.shape[0]
        if not num_tokens:
            return
        a, b, merged = _state(o_a, lse_a), _state(o_b, lse_b), _state(out, lse)
        strides = a[2] | a[3] | b[2] | b[3] | merged[2] | merged[3]
        self._launch(
            self._ctas(num_tokens, self._rows_of_cta),
            load.stream(self._index),
            *a,
            *b,
            *merged,
            0 if mask is None else mask.data_ptr(),
            num_tokens,
            *self._heads,
            (a[0] | b[0] | merged[0] | strides * self._bytes) % _CHUNK_BYTES == 0,
        )


class ManyStatesMerge(_Merge):
    """Merges any number of states of every row; the arguments are those of TwoStatesMerge.

    Example:
        >>> merge = ManyStatesMerge(describe("cuda:0"), dtype="float32", num_heads=8, head_dim=64)
        >>> merge(o, lse, out, out_lse)
    """

    def __init__(self, device: Device, *, dtype: str, num_heads: int, head_dim: int) -> None:
        self._bytes = DTYPE_BYTES[dtype]
        # Each thread hands over what it holds of a row, with its LSE and its weight, in float32.
        smem = _THREADS * 4 * (_HELD * _CHUNK_BYTES // self._bytes + 2)
        super().__init__(self.spec(load.arch(device), dtype, head_dim), device, num_heads, smem)

    @staticmethod
    def spec(arch: str, dtype: str, head_dim: int) -> KernelSpec:
        """The kernel, for warm-up and ahead-of-time builds."""
        return _spec("many", _MANY, arch, dtype, head_dim)

    def __call__(self, o: Tensor, lse: Tensor, out: Tensor, out_lse: Tensor) -> None:
        """Write the merged states of ``o [tokens, states, heads, dim]`` to ``out``, no part of it.

        Any strides will do, if the last dimension is contiguous.
        """
        num_tokens, num_states = lse.shape[:2]
        if not num_tokens:
            return
        stride_token, stride_state, stride_head, _ = o.stride()
        stride_lse_token, stride_lse_state, _ = lse.stride()
        merged = _state(out, out_lse)
        part_bits = self._part_bits(num_tokens, num_states)
        strides = stride_token | stride_state | stride_head | merged[2] | merged[3]
        self._launch(
            self._ctas(num_tokens, self._rows_of_cta >> part_bits),
            load.stream(self._index),
            o.data_ptr(),
            lse.data_ptr(),
            stride_token,
            stride_head,
            stride_lse_token,
            stride_state,
            stride_lse_state,
            *merged,
            num_tokens,
            *self._heads,
            num_states,
            part_bits,
            (o.data_ptr() | merged[0] | strides * self._bytes) % _CHUNK_BYTES == 0,
        )

    def _part_bits(self, num_tokens: int, num_states: int) -> int:
        """How often the states of a row are halved: until the device is full or few are left."""
        bits = 0
        while (
            bits < _MAX_PART_BITS
            and num_states >> bits > _IN_FLIGHT
            and self._ctas(num_tokens, self._rows_of_cta >> bits) < self._max_ctas
        ):
            bits += 1
        return bits


def _state(o: Tensor, lse: Tensor) -> tuple[int, int, int, int, int]:
    """A state as the kernels take it."""
    stride_token, stride_head, _ = o.stride()
    return o.data_ptr(), lse.data_ptr(), stride_token, stride_head, lse.stride(0)
