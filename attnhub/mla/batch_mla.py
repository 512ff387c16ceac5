"""``BatchMLA``: constructor, ``plan()``, ``run()``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

import torch
from torch import Tensor

from attnhub.attn import DTypes, GraphLimits, Paged, PagedKV
from attnhub.attn import batch as batches
from attnhub.attn import inputs as attn
from attnhub.attn.planned import NOT_PLANNED, PlannedBatch
from attnhub.core import check, functional, handles
from attnhub.errors import NotPlanned
from attnhub.mla import inputs
from attnhub.mla.inputs import NO_SCALES, MLAScales
from attnhub.mla.problem import HEAD_DIM, MLAProblem, dims, dtype_names, features


class BatchMLA(PlannedBatch):
    """Multi-head latent attention of a batch of requests over a paged latent cache.

    Every token has one latent row ``ckv``, key and value of all heads at once, and one small row
    ``kpe``, the rotary part of its key. Prefill, append, decode, or any mix, in one call.

    The caller absorbs the up-projections of K and V, W_UK ``[heads, 128, 512]`` and W_UV
    ``[heads, 512, 128]`` (DeepSeek's sizes), since they are matrix products of the model::

        q_nope = torch.einsum("thd,hdc->thc", q[..., :128], w_uk)   # latent queries
        latent = mla.run(q_nope, q_pe, (ckv_cache, kpe_cache))      # q_pe: rotated q[..., 128:]
        out = torch.einsum("thc,hcv->thv", latent, w_uv)

    Equivalent PyTorch of ``run``, for one request whose rows are ``ckv`` and ``kpe``, not causal::

        s = torch.einsum("qhc,kc->hqk", q_nope, ckv) + torch.einsum("qhr,kr->hqk", q_pe, kpe)
        out = torch.einsum("hqk,kc->qhc", (s * scale).softmax(-1), ckv)

    Source: DeepSeek-AI, "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts
    Language Model" (2024), section 2.1.

    Args:
        num_heads: query heads.
        dtype: one dtype, or :class:`DTypes` of queries, cache and output; float16, bfloat16 or
            float32, the cache also FP8.
        head_dim: (dim of the latent rows, dim of their rotary part).
        page_size: tokens of a page, any number >= 1.
        scale: what scores are multiplied by; required. It comes from the head dim before
            absorption: DeepSeek's is 1/sqrt(128 + 64), not 1/sqrt(512 + 64).
        causal: bottom-right aligned: query i of n sees key j iff ``j <= i + kv_len - n``.
        device: needed unless the metadata given to ``plan()`` lie on a GPU.
        graph: limits for CUDA graphs: the backend is chosen here, addresses never change.
        deterministic: bitwise equal results, run to run and whatever else is in the batch.
        backend: require this backend.

    Raises:
        InvalidArgument: facts that contradict each other, or no ``scale``.
        BackendUnsupported, NoBackend: from ``plan()`` (from here with ``graph``).

    Example::

        mla = BatchMLA(128, torch.bfloat16, page_size=64, scale=(128 + 64) ** -0.5, device="cuda:0")
        mla.plan(qo_indptr, PagedKV(indptr, indices, last_page_len))
        latent = mla.run(q_nope, q_pe, (ckv_cache, kpe_cache))
    """

    _problem = MLAProblem

    def __init__(
        self,
        num_heads: int,
        dtype: torch.dtype | str | DTypes,
        *,
        head_dim: tuple[int, int] = HEAD_DIM,
        page_size: int,
        scale: float | None = None,
        causal: bool = True,
        device: torch.device | str | None = None,
        graph: GraphLimits | None = None,
        deterministic: bool = False,
        backend: str = "",
    ) -> None:
        self._num_heads = inputs.num_heads(num_heads)
        self._page_size = page_size
        self._dims = dims(head_dim)
        self._scale = inputs.softmax_scale(scale, self._dims)
        names = dtype_names(dtype)
        self._dtypes = tuple(map(check.dtype_of, names))
        inputs.graph_limits(graph)
        facts = {
            "num_heads": num_heads,
            "head_dim_ckv": self._dims[0],
            "head_dim_kpe": self._dims[1],
            "q_dtype": names[0],
            "kv_dtype": names[1],
            "out_dtype": names[2],
            "page_size": page_size,
            "features": features(causal=causal),
            "deterministic": deterministic,
        }
        super().__init__(facts, Paged(page_size), device=device, graph=graph, backend=backend)

    def plan(
        self,
        qo_indptr: Tensor,
        kv_metadata: PagedKV,
        *,
        max_qo_len: int | None = None,
        max_kv_len: int | None = None,
        validate: bool = False,
    ) -> None:
        """Take over the next batch. Never synchronises with the device, unless ``validate``.

        Works on the current stream, whose order keeps it behind the runs of the last batch. If
        those are on another stream, order the two first (an event, or ``wait_stream``).

        Args:
            qo_indptr: ``[batch + 1]`` int32, host or device: request b has query rows
                ``qo_indptr[b]:qo_indptr[b+1]``; one row each is decode.
            kv_metadata: the page table, which both caches share.
            max_qo_len: upper bound, where the metadata are on the device.
            max_kv_len: likewise.
            validate: check device metadata by value too (a synchronisation).

        Raises:
            InvalidArgument: metadata that contradict themselves or the constructor.
            BackendUnsupported, NoBackend: with the table of reasons.
        """
        inputs.page_table(kv_metadata)
        intake = self._intake(qo_indptr, kv_metadata, validate=validate)
        batch = batches.build(
            qo_indptr,
            kv_metadata,
            self._kv,
            intake=intake,
            num_kv_heads=1,
            lengths=(max_qo_len, max_kv_len),
        )
        self._take(batch, intake.device)

    @overload
    def run(
        self,
        q_nope: Tensor,
        q_pe: Tensor,
        kv: tuple[Tensor, Tensor],
        *,
        scales: MLAScales = ...,
        out: Tensor | None = ...,
        return_lse: Literal[False] = ...,
    ) -> Tensor: ...

    @overload
    def run(
        self,
        q_nope: Tensor,
        q_pe: Tensor,
        kv: tuple[Tensor, Tensor],
        *,
        scales: MLAScales = ...,
        out: Tensor | None = ...,
        return_lse: Literal[True],
    ) -> tuple[Tensor, Tensor]: ...

    @overload
    def run(
        self,
        q_nope: Tensor,
        q_pe: Tensor,
        kv: tuple[Tensor, Tensor],
        *,
        scales: MLAScales = ...,
        out: Tensor | None = ...,
        return_lse: bool,
    ) -> Tensor | tuple[Tensor, Tensor]: ...

    def run(
        self,
        q_nope: Tensor,
        q_pe: Tensor,
        kv: tuple[Tensor, Tensor],
        *,
        scales: MLAScales = NO_SCALES,
        out: Tensor | None = None,
        return_lse: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Compute the planned batch: launches only, no synchronisation.

        On the stream of :meth:`plan`, or on one that waits for it. Never on two streams at once:
        counters and partial results are shared, so use one object per stream.

        Args:
            q_nope: ``[tokens, num_heads, head_dim_ckv]``, W_UK absorbed; in graph mode up to
                ``max_qo_tokens`` rows, those past the batch come out as zeros.
            q_pe: ``[tokens, num_heads, head_dim_kpe]``, rotated.
            kv: ``(ckv_cache [pages, page_size, head_dim_ckv], kpe_cache [pages, page_size,
                head_dim_kpe])``, any strides: slices of one tensor will do.
            scales: what the stored rows are multiplied by.
            out: ``[tokens, num_heads, head_dim_ckv]`` to write to.
            return_lse: also return the natural-log LSE, float32 ``[tokens, num_heads]``.

        Returns:
            Latent output ``[tokens, num_heads, head_dim_ckv]``, to which the caller applies W_UV. A
            row that sees no key is 0, its LSE -inf.

        Raises:
            NotPlanned: ``plan()`` was not called.
            InvalidArgument: tensors that do not fit the constructor or the plan.
        """
        ckv, kpe = inputs.caches(kv, self._dims)
        for name, x in (("q_nope", q_nope), ("q_pe", q_pe)):
            if not isinstance(x, Tensor):
                check.is_tensor(x, name)
        if out is not None and not isinstance(out, Tensor):
            check.is_tensor(out, "out")
        if out is None:
            out = torch.empty(q_nope.shape, dtype=self._dtypes[2], device=q_nope.device)
        lse = q_nope.new_empty(q_nope.shape[:2], dtype=torch.float32) if return_lse else None
        if torch.compiler.is_compiling():
            check.no_grad(q_nope, q_pe, ckv, kpe)  # the op sees tensors without their history
            check.no_grad(out, name="out")
            inputs.scales(scales, q_nope.device)
            flat = attn.split_scales(ckv=scales.ckv, kpe=scales.kpe)
            _run_op(q_nope, q_pe, ckv, kpe, out, lse, *flat, self._handle)
        else:
            self._execute(q_nope, q_pe, ckv, kpe, out, lse, scales)
        return out if lse is None else (out, lse)

    def _execute(
        self,
        q_nope: Tensor,
        q_pe: Tensor,
        ckv: Tensor,
        kpe: Tensor,
        out: Tensor,
        lse: Tensor | None,
        scales: MLAScales,
    ) -> None:
        if self._run is None:
            raise NotPlanned(NOT_PLANNED)
        facts = (
            q_nope.shape, q_nope.stride(), q_nope.dtype, q_nope.device,
            q_pe.shape, q_pe.stride(), q_pe.dtype, q_pe.device,
            ckv.shape, ckv.stride(), ckv.dtype, ckv.device,
            kpe.shape, kpe.stride(), kpe.dtype, kpe.device,
            out.shape, out.stride(), out.dtype, out.device,
        )  # fmt: skip
        if facts not in self._seen:
            self._check(q_nope, q_pe, ckv, kpe, out)
            self._seen.add(facts)
        check.no_grad(q_nope, q_pe, ckv, kpe)
        if out.requires_grad:
            check.no_grad(out, name="out")
        if scales is not NO_SCALES:
            inputs.scales(scales, q_nope.device)
        self._run(q_nope, q_pe, ckv, kpe, out, lse, self._scale, scales)

    def _check(self, q_nope: Tensor, q_pe: Tensor, ckv: Tensor, kpe: Tensor, out: Tensor) -> None:
        assert self._device is not None
        heads, page_size = self._num_heads, self._page_size
        dim_ckv, dim_kpe = self._dims
        q_dtype, kv_dtype, out_dtype = self._dtypes
        check.shape(q_nope, "q_nope", ("tokens", heads, dim_ckv))
        self._check_rows(q_nope, "q_nope")
        tokens = q_nope.shape[0]
        check.shape(q_pe, "q_pe", (tokens, heads, dim_kpe))
        check.shape(out, "out", (tokens, heads, dim_ckv))
        check.shape(ckv, "ckv_cache", ("pages", page_size, dim_ckv))
        check.shape(kpe, "kpe_cache", (ckv.shape[0], page_size, dim_kpe))
        for name, x, dtype in (
            ("q_nope", q_nope, q_dtype),
            ("q_pe", q_pe, q_dtype),
            ("ckv_cache", ckv, kv_dtype),
            ("kpe_cache", kpe, kv_dtype),
            ("out", out, out_dtype),
        ):
            check.dtype(x, name, (dtype,))
            check.device(x, name, self._device, "this attention")
            check.last_contiguous(x, name)
        self._check_page_ids(ckv, "ckv_cache")


def _run_flat(
    q_nope: Tensor,
    q_pe: Tensor,
    ckv: Tensor,
    kpe: Tensor,
    out: Tensor,
    lse: Tensor | None,
    scale_tensors: Sequence[Tensor | None],
    scale_numbers: Sequence[float],
    handle: int,
) -> None:
    owner: BatchMLA = handles.get(handle)
    scales = MLAScales(*attn.join_scales(scale_tensors, scale_numbers))
    owner._execute(q_nope, q_pe, ckv, kpe, out, lse, scales)  # noqa: SLF001 - its other door


_run_op = functional.define(
    "mla_run",
    "(Tensor q_nope, Tensor q_pe, Tensor ckv, Tensor kpe, Tensor(a!) out, Tensor(b!)? lse, "
    "Tensor?[] scale_tensors, float[] scale_numbers, int handle) -> ()",
    _run_flat,
)
