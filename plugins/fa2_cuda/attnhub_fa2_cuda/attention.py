"""``attention``: plans over ragged and paged keys by persistent kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnhub.plugin import (
    AttentionBatch,
    AttentionProblem,
    InvalidArgument,
    KernelSpec,
    PagedKV,
    Scales,
    Staging,
    VariantCode,
    arch,
    inverse_frequencies,
    kernels,
    plan_spec,
    stream,
)
from attnhub_fa2_cuda import tiles
from attnhub_fa2_cuda.blocks import Rows
from attnhub_fa2_cuda.kernel import format_of, rotary_dim, spec
from attnhub_fa2_cuda.masks import MaskOffsets
from attnhub_fa2_cuda.shares import Heads, Share, ShareRun, page_size_of

_ALIGNMENT = 16  # bytes of one copy
_ANY = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A kernel that a problem may need: the requests that it takes, by their tile shapes."""

    name: str
    shares: tuple[Share, ...]

    def spec(self, problem: AttentionProblem) -> KernelSpec:
        """The kernel."""
        return spec(problem, self.name, [share.tile for share in self.shares])

    def smem(self, problem: AttentionProblem) -> int:
        """Shared memory of a CTA."""
        return max(share.tile.smem(format_of(problem)) for share in self.shares)


class Choices:
    """The kernels of a problem, and which of them serves a batch.

    Requests whose packed rows fit in one tile of decode are ``short``. A batch of both kinds, or
    one of whose lengths nothing is known, runs in one launch of both tiles if these have as many
    threads; else by the tile of prefill, which serves any.
    """

    def __init__(self, problem: AttentionProblem) -> None:
        form, smem_kb = format_of(problem), problem.device.smem_kb
        decode, prefill = tiles.decode(form, smem_kb), tiles.prefill(form, smem_kb)
        #: queries of the longest request that counts as short
        self.short = decode.rows // Heads.of(problem, decode).group
        everything = (1, _ANY)
        short, long = (1, self.short), (self.short + 1, _ANY)
        self.decode = Choice(
            name="decode", shares=(Share(tile=decode, is_decode=True, qo_lens=everything),)
        )
        self.prefill = Choice(
            name="prefill", shares=(Share(tile=prefill, is_decode=False, qo_lens=everything),)
        )
        self.mixed = self.prefill
        if decode.threads == prefill.threads:
            self.mixed = Choice(
                name="mixed",
                shares=(
                    Share(tile=prefill, is_decode=False, qo_lens=long),
                    Share(tile=decode, is_decode=True, qo_lens=short),
                ),
            )
        # By one tile, and that in the same kernel: in two of them it may not be compiled alike.
        if problem.deterministic:
            self.decode = self.prefill = self.mixed

    def of(self, longest: int | None, shortest: int | None) -> Choice:
        """The kernel for a batch, of whose longest and shortest request something may be known."""
        if longest is not None and longest <= self.short:
            return self.decode
        return self.mixed if shortest is None or shortest <= self.short else self.prefill

    def all(self, problem: AttentionProblem) -> tuple[Choice, ...]:
        """Those that batches may need. A graph goes on with the one that it was captured with."""
        if problem.graph:
            return (self.of(problem.extent.qo_len, None),)
        if problem.block is not None:  # each row of blocks is a request
            return (self.of(problem.block[0], problem.block[0]),)
        found = (self.decode, self.prefill, self.mixed)
        return tuple({choice.name: choice for choice in found}.values())


class AttentionPlan:
    """Attention of one problem; a batch comes with ``update``."""

    def __init__(self, problem: AttentionProblem) -> None:
        self._problem = problem
        device, variant = problem.device, problem.variant
        self._device = torch.device(device.type, device.index)
        self._staging = Staging(self._device)
        self._runs: dict[str, ShareRun] = {}
        self._choices = Choices(problem)
        self._needed = self._choices.all(problem)
        kernels(specs(problem))
        self._masks = None
        if problem.mask != "none" and problem.block is None:
            self._masks = MaskOffsets(
                self._staging,
                self._device,
                page_size=page_size_of(problem),
                is_packed=problem.mask == "packed",
                max_batch=problem.extent.batch if problem.graph else None,
            )
        if problem.graph:  # nothing can be allocated or loaded while a graph is captured
            [only] = self._needed
            self._run_of(only, problem.extent.batch or 1, problem.extent.kv_tokens or 0)
        self._scale = variant.scale or 1.0 / math.sqrt(problem.head_dim_qk)
        self._code = VariantCode.of(variant)
        self._rope: tuple[Any, ...] = ()
        if variant.rope is not None:
            frequencies, factor = inverse_frequencies(
                rotary_dim(problem, variant.rope), variant.rope.theta, variant.rope.scaling
            )
            self._frequencies = frequencies.to(self._device)
            self._rope = (self._frequencies.data_ptr(), factor)
        self._hooks = problem.features & {"query_mod", "key_mod"}
        self._index = device.index
        self._is_nhd = problem.layout == "NHD"
        self._kv = problem.kv
        self._kv_bytes = format_of(problem).kv_bytes
        self._out_bytes = 4 if problem.out_dtype == "float32" else 2
        self._scales: tuple[Scales | None, tuple[Any, ...]] = (None, ())
        self._strides: tuple[Any, tuple[Any, ...]] = (None, ())

    def update(self, batch: AttentionBatch) -> None:
        """Upload what lies on the host, and have the device plan the batch."""
        kv: Any = batch.kv
        pages = (kv.last_page_len, kv.indices) if isinstance(kv, PagedKV) else (None, None)
        sparse = (kv.block_indptr, kv.block_indices) if self._problem.block else ()
        # Kept: the kernels read these until the next batch.
        self._metadata = self._staging.all_on_device(
            batch.qo_indptr, kv.indptr, *pages, batch.q_offset, batch.k_offset, *sparse
        )
        qo_indptr, kv_indptr, last_page_len, indices, q_offset, k_offset, *blocks = self._metadata
        mask: tuple[Tensor | None, ...] = ()
        if self._masks is not None:
            mask = self._masks.update(batch, qo_indptr, kv_indptr, last_page_len)
        if self._problem.block is not None:
            block_mask, custom = (
                None if x is None else self._staging.on_device(x)
                for x in (kv.block_mask, batch.mask)
            )
            given = Rows(qo_indptr, kv_indptr, *blocks, block=self._problem.block)
            rows = given.pages(block_mask, custom, is_packed=batch.mask_packed)
            qo_indptr, kv_indptr = rows.qo_indptr, rows.kv_indptr
            last_page_len, indices = rows.last_page_len, rows.indices
            mask = (rows.mask, rows.mask_offsets)
        self._held = (qo_indptr, indices, mask)
        run = self._run_for(batch, indices)
        run.plan(qo_indptr, kv_indptr, last_page_len)
        self._run = run
        values = [qo_indptr.data_ptr() + 4 * (qo_indptr.numel() - 1), *map(_address, mask)]
        if self._rope:
            frequencies, factor = self._rope
            values += (frequencies, _address(q_offset), _address(k_offset), factor)
        self._batch = (*values, _address(indices))

    def _run_for(self, batch: AttentionBatch, indices: Tensor | None) -> ShareRun:
        choice = self._needed[0]
        if self._problem.graph:
            return self._runs[choice.name]
        if len(self._needed) > 1:
            choice = self._choices.of(batch.max_qo_len, batch.min_qo_len)
        requests = batch.batch
        if self._problem.block is not None:  # each row of blocks is one
            requests = batch.kv.block_indptr.numel() - 1  # type: ignore[union-attr]
        kv_tokens = 0 if indices is None else indices.numel() * page_size_of(self._problem)
        return self._run_of(choice, max(requests, 1), kv_tokens)

    def _run_of(self, choice: Choice, batch: int, kv_tokens: int) -> ShareRun:
        problem = self._problem
        run = self._runs.get(choice.name)
        if run is not None and not problem.deterministic:
            return run  # it grows by itself
        if run is None or run.max_batch < batch or run.kv_tokens < kv_tokens:
            run = self._runs[choice.name] = ShareRun(
                problem,
                choice.spec(problem),
                choice.shares,
                smem=choice.smem(problem),
                max_batch=1 << (batch - 1).bit_length(),
                kv_tokens=1 << (kv_tokens - 1).bit_length() if kv_tokens else 0,
            )
        return run

    def run(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor | None,
        mask: Tensor | None,
        scales: Scales,
        params: Mapping[str, Tensor | float],
    ) -> None:
        """See docs/plan_contract.md.

        Raises:
            InvalidArgument: rows of a tensor do not begin at multiples of 16 bytes.
        """
        q_at, k_at, v_at, out_at = q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr()
        seen = (q.stride(), k.stride(), v.stride(), out.stride())
        last_seen, strides = self._strides
        if seen != last_seen:
            strides = self._take_strides(q, k, v, out)
            self._strides = (seen, strides)
        q_steps, k_steps, v_steps, out_steps, are_aligned = strides
        if not are_aligned or (q_at | k_at | v_at | out_at) % _ALIGNMENT:
            _check_alignment(q=q, k=k, v=v, out=out)
        last, factors = self._scales
        if scales is not last:
            factors = self._factors(scales)
            self._scales = (scales, factors)
        run = self._run
        run.launch(
            run.grid,
            stream(self._index),
            q_at,
            *q_steps,
            k_at,
            *k_steps,
            v_at,
            *v_steps,
            out_at,
            0 if lse is None else lse.data_ptr(),
            *out_steps,
            0 if lse is None else lse.stride(0),
            q.shape[0],
            *factors,
            *(self._code.values(params) if self._code.specs else ()),
            *self._batch,
        )

    def _take_strides(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> tuple[Any, ...]:
        """Strides as the kernel takes them, and whether all of them are multiples of 16 bytes."""
        q_steps, out_steps = q.stride()[:2], out.stride()[:2]
        k_steps, v_steps = self._steps(k), self._steps(v)
        sizes = ((q_steps, 2), (k_steps, self._kv_bytes), (v_steps, self._kv_bytes))
        steps = [step * size for found, size in sizes for step in found]
        steps += [step * self._out_bytes for step in out_steps]
        return q_steps, k_steps, v_steps, out_steps, not any(step % _ALIGNMENT for step in steps)

    def _steps(self, x: Tensor) -> tuple[int, int, int]:
        """The strides of K or V: of pages, of the slots of a page, of heads."""
        if self._kv != "paged":  # a page begins at any row, and those of ragged keys have one
            token, head, _ = x.stride() if self._is_nhd else (x.stride(1), x.stride(0), 1)
            return token, token, head
        page, slot, head, _ = x.stride()
        return (page, slot, head) if self._is_nhd else (page, head, slot)

    def _factors(self, scales: Scales) -> tuple[Any, ...]:
        """Of scores, of elements of Q and K, and of the output, as far as the host knows them.

        Then those on the device. What a hook sees of Q or K it has to see with its scale.
        """
        known, on_device = {"q": 1.0, "k": 1.0, "v": 1.0}, list[int]()
        for name in known:
            value = getattr(scales, name)
            if isinstance(value, Tensor):
                on_device += [value.data_ptr(), value.stride(0) if value.numel() > 1 else 0]
            else:
                known[name] = float(value)
                on_device += [0, 0]
        of_scores, of_elements = self._scale, [1.0, 1.0]
        for i, (name, hook) in enumerate((("q", "query_mod"), ("k", "key_mod"))):
            if hook in self._hooks:
                of_elements[i] = known[name]
            else:
                of_scores *= known[name]
        return (of_scores, *of_elements, known["v"], *on_device)


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def _check_alignment(**tensors: Tensor) -> None:
    """Refuse rows that 16-byte copies cannot reach. Strides that nothing moves along are none."""
    for name, x in tensors.items():
        most = _ALIGNMENT // x.element_size()
        moved = [s for n, s in zip(x.shape[:-1], x.stride(), strict=False) if n > 1]
        if x.data_ptr() % _ALIGNMENT or any(stride % most for stride in moved):
            raise InvalidArgument(
                f"{name} begins at {x.data_ptr():#x} with strides {x.stride()}: fa2_cuda copies "
                f"{_ALIGNMENT} bytes at a time, so rows must begin at multiples of {most} elements "
                f"from a multiple of {_ALIGNMENT} bytes; give a copy, as {name}.clone(), or use "
                "another backend"
            )


def specs(problem: AttentionProblem) -> list[KernelSpec]:
    """All kernels of a problem."""
    own = [choice.spec(problem) for choice in Choices(problem).all(problem)]
    return [plan_spec(arch(problem.device)), *own]


class AttentionPlanner:
    """What the manifest's ``load`` names."""

    def plan(self, problem: AttentionProblem) -> AttentionPlan:
        """A plan for batches of any size; compiles the kernels where no cache has them."""
        return AttentionPlan(problem)

    def specs(self, problem: AttentionProblem) -> list[KernelSpec]:
        """All kernels of a problem."""
        return specs(problem)


attention = AttentionPlanner()
