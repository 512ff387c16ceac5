"""The adapter of ``attention``: which facts a call can have together, and its calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from attnhub.attn.problem import FP8, AttentionProblem
from attnhub.plugin import Call, Device, Problem
from attnhub.testing.attention_calls import BatchCall, DenseCall
from attnhub.testing.attention_inputs import requests
from attnhub.testing.attention_variants import variant_of
from attnhub.testing.cases import seed_of
from attnhub.testing.generators import seeded

#: (qo_len, kv_len) of each request: empty ones of every sort in the middle, more queries than keys,
#: several pages; then a batch of one row each. The longer ones pass the tiles of a GPU kernel.
_MIXED = ((3, 9), (0, 4), (1, 0), (1, 17), (7, 5), (0, 0), (2, 33))
_DECODE = ((1, 5), (1, 0), (1, 40), (1, 1))
#: Batches without any query, without any key, without any request.
_NO_QUERIES, _NO_KEYS, _NOBODY = ((0, 4), (0, 0)), ((3, 0), (1, 0)), ()
_LONG_MIXED = ((130, 300), (64, 64))
_LONG_DECODE = ((1, 1500),)
#: (batch, qo_len, kv_len) of dense tensors; batch 0 stands for tensors without that dimension.
_DENSE = ((2, 5, 9), (0, 7, 4), (3, 1, 12), (1, 2, 0), (1, 0, 3))
_LONG_DENSE = ((2, 130, 300), (0, 1, 1500))

#: What dense tensors do not have: field, the only value they know.
_NOT_DENSE = {
    "layout": ("NHD",),
    "mask": ("none", "bool"),
    "offsets": (False,),
    "graph": (False,),
    "deterministic": (False,),
    "metadata": ("host",),
}
_COARSEST_FIRST = ("float8_e5m2", "float8_e4m3fn", "bfloat16", "float16", "float32")


class _Attention:
    """See the module docstring."""

    base: Mapping[str, Any] = {
        "kv": "paged",
        "page_size": 16,
        "num_qo_heads": 4,
        "num_kv_heads": 2,
        "head_dim_qk": 64,
        "head_dim_vo": 64,
        "q_dtype": "float32",
        "kv_dtype": "float32",
        "out_dtype": "float32",
    }
    callable = True

    def clashes(self, facts: Mapping[str, Any], device: Device) -> set[str]:
        """Fields that no call has together, such as a page size without pages."""
        kv, features, graph = facts["kv"], facts["features"], facts["graph"]
        in_buffers = "host" if device.type == "cpu" else "device"
        rules = [
            ((kv == "paged") != (facts["page_size"] is not None), ("kv", "page_size")),
            ((kv == "block_sparse") != (facts["block"] is not None), ("kv", "block")),
            (facts["num_qo_heads"] % facts["num_kv_heads"], ("num_qo_heads", "num_kv_heads")),
            (device.type == "cpu" and facts["metadata"] == "device", ("metadata",)),
            (facts["offsets"] and "rope" not in features, ("offsets", "features")),
            ({"sinks", "softmax_off"} <= features, ("features",)),
            ("rope" in features and facts["head_dim_qk"] % 2, ("features", "head_dim_qk")),
            (graph and kv not in ("paged", "ragged"), ("graph", "kv")),
            (graph and facts["mask"] == "bool", ("graph", "mask")),
            # A graph's metadata lie in buffers on its device, wherever those of a plan come from.
            (graph and facts["metadata"] != in_buffers, ("graph", "metadata")),
        ]
        if kv == "dense":
            rules += [(facts[n] not in known, ("kv", n)) for n, known in _NOT_DENSE.items()]
        return {name for clash, names in rules if clash for name in names}

    def problem(self, cls: type[Problem], device: Device, facts: Mapping[str, Any]) -> Problem:
        """The problem with these facts, and with a variant that uses its features."""
        return cls.of(device, **{**facts, "variant": variant_of(facts["features"])})

    def calls(self, problem: AttentionProblem, device: torch.device) -> Iterator[Call]:
        """Dense tensors of several sizes, or a mixed batch, one of decode rows and empty ones."""
        make = self._dense if problem.kv == "dense" else self._batches
        return make(problem, device)

    def _dense(self, problem: AttentionProblem, device: torch.device) -> Iterator[Call]:
        long = device.type != "cpu"
        for i, size in enumerate((*_DENSE, *(_LONG_DENSE if long else ()))):
            call = DenseCall(problem=problem, size=size, which=i % 2, device=device)
            yield _call(problem, str(call), call)

    def _batches(self, problem: AttentionProblem, device: torch.device) -> Iterator[Call]:
        long = device.type != "cpu"
        batches: dict[str, tuple[tuple[int, int], ...]] = {
            "mixed": (*_MIXED, *(_LONG_MIXED if long else ())),
            "decode": (*_DECODE, *(_LONG_DECODE if long else ())),
            "no queries": _NO_QUERIES,
            "no keys": _NO_KEYS,
            "no requests": _NOBODY,
        }
        if problem.kv == "variable_blocks":  # one request, by definition
            batches = {"mixed": ((130, 300) if long else (11, 19),), "decode": ((1, 40),)}
            batches |= {"no queries": ((0, 4),), "no keys": ((3, 0),)}
        for i, (name, lengths) in enumerate(batches.items()):
            generator = seeded(seed_of(problem) + i)
            call = BatchCall(
                problem=problem,
                requests=requests(problem, lengths, device, generator),
                which=i % 2,
                device=device,
            )
            parts = call.parts() if problem.deterministic and not problem.graph else ()
            yield replace(_call(problem, name, call), parts=parts)


def _call(problem: AttentionProblem, name: str, call: DenseCall | BatchCall) -> Call:
    grows = "softmax_off" in problem.features
    return Call(name=name, run=call.run, expect=call.expect, row=_row(problem), grows=grows)


def _row(problem: AttentionProblem) -> torch.dtype:
    """The coarsest dtype that operands or output are rounded to; float8 K/V may be widened."""
    used = {problem.q_dtype, problem.out_dtype}
    if problem.kv_dtype not in FP8 or problem.q_dtype in FP8:
        used.add(problem.kv_dtype)
    found: torch.dtype = getattr(torch, next(name for name in _COARSEST_FIRST if name in used))
    return found


attention = _Attention()
