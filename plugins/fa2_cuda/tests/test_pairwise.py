"""The attention kernel in the emulator, for every pair of values of what decides how it computes.

Faults of such code nearly always need two facts to meet: a head dim and a dtype, a length and a
page size. Cases in which each pair of values occurs are few enough to run every time; the product
of all lengths, groups and pages is `exhaustive`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import chain, combinations, product
from typing import Any

import pytest
import torch
from torch import Tensor

import attnhub
from attnhub.plugin import AttentionProblem, Registry, Rope, Variant, describe
from attnhub.testing.attention_inputs import Packed, pack, requests
from attnhub.testing.compare import assert_close
from attnhub.testing.emulator import EmulatedGpu
from attnhub.testing.generators import seeded
from attnhub.testing.tolerance import tolerance
from attnhub_fa2_cuda import manifest, tiles

CPU = torch.device("cpu")
Value = tuple[str, Any]  # of a factor
Case = Mapping[str, Any]

BIAS = attnhub.TensorParam("bias", ndim=1)
VARIANTS = {
    "plain": Variant(),
    "causal": Variant(causal=True),
    "window": Variant(window=(63, 0)),
    "soft_cap": Variant(soft_cap=2.5),
    "alibi": Variant(alibi=True),
    "sinks": Variant(sinks=True),
    "rope": Variant(rope=Rope()),
    "score_mod": Variant(
        score_mod=lambda score, b, h, q_idx, kv_idx: score - BIAS[h] * (q_idx - kv_idx)
    ),
    "mask_mod": Variant(mask_mod=lambda b, h, q_idx, kv_idx: (q_idx - kv_idx + h) % 3 != 1),
    "sigmoid": Variant(
        softmax=False, score_mod=lambda score, b, h, q_idx, kv_idx: torch.sigmoid(score)
    ),
    "packed_mask": Variant(),
}
#: Of q, and of K and V.
DTYPES = {
    "half": ("float16", "float16"),
    "bfloat16": ("bfloat16", "bfloat16"),
    "fp8_kv": ("bfloat16", "float8_e4m3fn"),
}
LENGTHS = {"qo_len": (1, 17, 64, 100, 129), "kv_len": (0, 1, 63, 64, 130, 300)}
#: What a kernel is compiled for, ``sm`` being the GPU whose tiles it has, then what it is given. A
#: page of 0 is ragged; ``beside`` adds a decode request to the one of these lengths.
FACTORS: Mapping[str, tuple[Any, ...]] = {
    "variant": tuple(VARIANTS),
    "dims": (64, 96, 128, (192, 128), 256),
    "dtype": tuple(DTYPES),
    "out": ("same", "float32"),
    "sm": (90, 80, 89),
    **LENGTHS,
    "page": (0, 1, 7, 16, 64),
    "group": (1, 4, 7),
    "beside": (False, True),
}
DECODE_BESIDE = (1, 90)


def is_served(one: Value, other: Value) -> bool:
    """What the manifest refuses: keys that are rotated no longer fit into FP8."""
    return {one, other} != {("variant", "rope"), ("dtype", "fp8_kv")}


def all_pairs(factors: Mapping[str, tuple[Any, ...]]) -> list[frozenset[Value]]:
    values = {name: [(name, value) for value in factors[name]] for name in factors}
    found = (product(values[a], values[b]) for a, b in combinations(factors, 2))
    return [frozenset(pair) for pair in chain(*found) if is_served(*pair)]


def covering_set(factors: Mapping[str, tuple[Any, ...]]) -> list[Case]:
    """Cases, the same ones every time, in which each pair of values that is served occurs.

    Greedy: a case begins with the first pair that none has yet, and takes the other values one by
    one. A refused pair must leave to every factor a value that goes with all others.
    """
    missing = dict.fromkeys(all_pairs(factors))  # a set whose order is always the same
    cases: list[Case] = []
    while missing:
        case = dict(next(iter(missing)))
        for name in factors:
            if name not in case:
                values = [(name, value) for value in factors[name]]
                case |= [best_value(values, case, missing)]
        for pair in combinations(case.items(), 2):
            missing.pop(frozenset(pair), None)
        cases.append({name: case[name] for name in factors})
    return cases


def best_value(values: list[Value], case: Case, missing: Collection[frozenset[Value]]) -> Value:
    """The one that makes the most missing pairs with a case; of equals, the most needed."""
    needed = Counter(chain(*missing))

    def gain(value: Value) -> tuple[int, int]:
        new = sum(frozenset((value, other)) in missing for other in case.items())
        return new, needed[value]

    return max((x for x in values if all(is_served(x, y) for y in case.items())), key=gain)


CASES = covering_set(FACTORS)


def test_every_pair_has_a_case() -> None:
    found = Counter(frozenset(pair) for case in CASES for pair in combinations(case.items(), 2))
    for a, b in combinations(FACTORS, 2):
        for x, y in product(FACTORS[a], FACTORS[b]):
            is_refused = (a, x, b, y) == ("variant", "rope", "dtype", "fp8_kv")
            assert bool(found[frozenset({(a, x), (b, y)})]) != is_refused, (a, x, b, y)
    assert all(list(case) == list(FACTORS) for case in CASES)
    # Every variant has a case with every number of keys, so fewer there cannot be.
    assert len(VARIANTS) * len(LENGTHS["kv_len"]) <= len(CASES) <= 72


def test_what_is_left_out_is_what_the_manifest_refuses() -> None:
    [backend] = (x for x in manifest.attnhub_backends() if x.op == "attention")
    for variant, dtype in product(VARIANTS, DTYPES):
        problem = problem_of({**CASES[0], "variant": variant, "dtype": dtype})
        is_refused = bool(backend.reasons(replace(problem, device=describe("a100"))))
        assert is_refused != is_served(("variant", variant), ("dtype", dtype)), (variant, dtype)


def name_of(case: Case) -> str:
    page = f"page{case['page']}" if case["page"] else "ragged"
    dims = "x".join(map(str, case["dims"])) if isinstance(case["dims"], tuple) else case["dims"]
    out = "" if case["out"] == "same" else f"-{case['out']}"
    beside = "-mixed" if case["beside"] else ""
    return (
        f"{case['variant']}-d{dims}-{case['dtype']}{out}-sm{case['sm']}"
        f"-{case['qo_len']}x{case['kv_len']}-group{case['group']}-{page}{beside}"
    )


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, isolated_registry: Registry) -> EmulatedGpu:
    """The backends of the manifest, for the emulator; of 3 SMs, so that pieces are uneven."""
    gpu = EmulatedGpu(num_sms=3)
    gpu.install(monkeypatch)
    isolated_registry.register(gpu.plugin(manifest.attnhub_backends()), "emulated")
    return gpu


def take_tiles_of(sm: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device "cpu" has no compute capability to choose them by."""
    for name in ("decode", "prefill"):
        real = getattr(tiles, name)
        monkeypatch.setattr(
            tiles, name, lambda form, _, real=real: real(form, describe(f"sm_{sm}").smem_kb)
        )


def launched(case: Case) -> str:
    """The tile that a case is meant to be launched with."""
    if case["qo_len"] == 1:
        return "decode"
    # Where shared memory is small, decode of wide heads has fewer threads: no launch has both.
    is_apart = (case["sm"], case["dims"]) == (89, 256) and case["dtype"] != "fp8_kv"
    return "mixed" if case["beside"] and not is_apart else "prefill"


def problem_of(case: Case) -> AttentionProblem:
    q, kv = DTYPES[case["dtype"]]
    page = case["page"]
    return AttentionProblem.of(
        describe("cpu"),
        num_qo_heads=2 * case["group"],
        num_kv_heads=2,
        head_dim=case["dims"],
        dtype=attnhub.DTypes(q, kv, q if case["out"] == "same" else case["out"]),
        kv=attnhub.Paged(page) if page else attnhub.Ragged(),
        variant=VARIANTS[case["variant"]],
        mask="packed" if case["variant"] == "packed_mask" else "none",
    )


def attention(problem: AttentionProblem, backend: str) -> attnhub.BatchAttention:
    return attnhub.BatchAttention(
        problem.num_qo_heads,
        problem.num_kv_heads,
        (problem.head_dim_qk, problem.head_dim_vo),
        attnhub.DTypes(problem.q_dtype, problem.kv_dtype, out_dtype(problem, backend)),
        attnhub.Paged(problem.page_size) if problem.page_size else attnhub.Ragged(),
        device="cpu",
        variant=problem.variant,
        backend=backend,
    )


def out_dtype(problem: AttentionProblem, backend: str) -> torch.dtype:
    """A reference is more precise than what it judges."""
    return torch.float32 if backend == "reference" else getattr(torch, problem.out_dtype)


def params_of(problem: AttentionProblem) -> dict[str, Tensor]:
    """Other values for every head."""
    heads = problem.num_qo_heads
    values = {
        "alibi_slopes": torch.exp2(-torch.arange(1.0, heads + 1)),
        "sinks": torch.linspace(-1.0, 3.0, heads),
        "bias": torch.linspace(-0.05, 0.05, heads),
    }
    return {spec.name: values[spec.name] for spec in problem.variant.params}


class Pair:
    """The attention of a case by the kernel and by the reference, held from batch to batch."""

    def __init__(self, case: Case) -> None:
        self.problem = problem_of(case)
        self.attn = {name: attention(self.problem, name) for name in ("fa2_cuda", "reference")}

    def run(self, backend: str, packed: Packed) -> list[Tensor]:
        """Output and LSE, or where there is no softmax the output alone, in poisoned memory."""
        attn, problem = self.attn[backend], self.problem
        attn.plan(packed.qo_indptr, packed.metadata, mask=packed.mask)
        shape = (*packed.q.shape[:-1], problem.head_dim_vo)
        out = torch.full(shape, torch.nan, dtype=out_dtype(problem, backend))
        params, has_lse = params_of(problem), problem.variant.softmax
        got = attn.run(packed.q, packed.kv, out=out, params=params, return_lse=has_lse)
        return list(got) if has_lse else [got]

    def check(self, gpu: EmulatedGpu, case: Case) -> None:
        """Compare a batch of these lengths, and see that the tile meant for it was launched."""
        problem = self.problem
        lengths = [(case["qo_len"], case["kv_len"]), *([DECODE_BESIDE] * case["beside"])]
        batch = requests(problem, lengths, CPU, seeded(1))
        packed = pack(problem, batch, CPU, seeded(2), strided=case["group"] == 4)
        got = self.run("fa2_cuda", packed)
        assert gpu.launches[-1][0].startswith(f"fa2_{launched(case)}_{problem.q_dtype}")
        expected = self.run("reference", packed)
        dtype = getattr(torch, problem.q_dtype)
        for x, wanted, kind in zip(got, expected, ("output", "lse"), strict=False):
            allowed = tolerance(dtype, kind=kind)
            if not problem.variant.softmax:  # sums of values, not averages
                rms = float(wanted.double().square().mean().sqrt())
                allowed = allowed.scaled(max(rms, 1.0))
            assert_close(x, wanted, kind=kind, tolerance=allowed, name=f"{name_of(case)}: {kind}")


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_pairwise(gpu: EmulatedGpu, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    take_tiles_of(case["sm"], monkeypatch)
    Pair(case).check(gpu, case)


COMPILED = [
    {"variant": "causal", "dims": 128, "dtype": "bfloat16", "out": "same", "sm": 90},
    {"variant": "window", "dims": 96, "dtype": "half", "out": "float32", "sm": 80},
    {"variant": "sinks", "dims": (192, 128), "dtype": "bfloat16", "out": "same", "sm": 89},
    {"variant": "soft_cap", "dims": 256, "dtype": "fp8_kv", "out": "float32", "sm": 90},
    {"variant": "packed_mask", "dims": 64, "dtype": "half", "out": "same", "sm": 90},
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("compiled", COMPILED, ids=lambda compiled: compiled["variant"])
@pytest.mark.parametrize("page", FACTORS["page"])
@pytest.mark.parametrize("group", FACTORS["group"])
def test_every_length(
    gpu: EmulatedGpu, compiled: Case, page: int, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of queries and of keys, alone and beside a decode request, on one held attention."""
    take_tiles_of(compiled["sm"], monkeypatch)
    fixed = {**compiled, "page": page, "group": group}
    pair = Pair(fixed)
    for qo_len, kv_len, beside in product(*LENGTHS.values(), FACTORS["beside"]):
        pair.check(gpu, {**fixed, "qo_len": qo_len, "kv_len": kv_len, "beside": beside})
