"""The suite catches each way in which a backend or its capability sheet can be unsound."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

import attnhub
from attnhub.attn.problem import FEATURES as ALL_FEATURES
from attnhub.plugin import Capability, Code, OneOf, Problem, Range, Reason, Subset
from attnhub.testing.conformance import cases
from tests.testing.liars import Liar, Register, failures


def without(feature: str) -> Callable[[Any], Any]:
    """Drop a feature from a problem's variant."""
    name, absent = ("softmax", True) if feature == "softmax_off" else (feature, None)
    if feature in ("causal", "alibi", "sinks"):
        absent = False

    def change(problem: Any) -> Any:
        variant = dataclasses.replace(problem.variant, **{name: absent})
        return dataclasses.replace(problem, variant=variant)

    return change


@pytest.mark.parametrize("feature", ALL_FEATURES)
def test_catches_an_ignored_feature(register: Register, feature: str) -> None:
    register(Liar(problem=without(feature)))
    expected = {f"serves-features={feature}"} | ({"serves-offsets=True"} & {feature + "s"})
    if feature == "rope":
        expected.add("serves-offsets=True")
    found = failures(lambda corner: "features" in corner or "offsets" in corner)
    assert set(found) == expected
    if feature != "softmax_off":  # there it is the LSE that should not exist
        assert "elements" in found[f"serves-features={feature}"]


def changed(**fields: Any) -> Callable[[Any, Any], Any]:
    return lambda problem, batch: dataclasses.replace(batch, **fields)


def without_block_mask(problem: Any, batch: Any) -> Any:
    if problem.kv != "block_sparse":
        return batch
    return dataclasses.replace(batch, kv=dataclasses.replace(batch.kv, block_mask=None))


def pages_in_order(problem: Any, batch: Any) -> Any:
    if problem.kv != "paged":
        return batch
    indices = batch.kv.indices.sort().values
    return dataclasses.replace(batch, kv=dataclasses.replace(batch.kv, indices=indices))


def full_last_pages(problem: Any, batch: Any) -> Any:
    if problem.kv != "paged":
        return batch
    last = torch.where(batch.kv.last_page_len > 0, problem.page_size, 0).to(torch.int32)
    kv = dataclasses.replace(batch.kv, last_page_len=last)
    return dataclasses.replace(batch, kv=kv, kv_lens=None)


def keep_first_plan() -> Callable[[Any, Any], Any]:
    kept: list[Any] = []

    def stale(problem: Any, batch: Any) -> Any:
        if not problem.graph:
            return batch
        copy = dataclasses.replace(batch, qo_indptr=batch.qo_indptr.clone())
        kept.append(copy)
        return kept[-1] if len(kept) % 2 else kept[-2]

    return stale


# Lie about the batch, the corners that notice among those looked at.
BATCHES = {
    "custom mask ignored": (changed(mask=None), {"mask=bool", "mask=packed"}),
    "q_offset ignored": (changed(q_offset=None), {"offsets=True"}),
    "k_offset ignored": (changed(k_offset=None), {"offsets=True"}),
    "mask inside of blocks ignored": (
        without_block_mask,
        {"kv=block_sparse", "block=16x16", "block=3x5"},
    ),
}


@pytest.mark.parametrize(("lie", "noticed"), BATCHES.values(), ids=BATCHES)
def test_catches_ignored_metadata(
    register: Register, lie: Callable[[Any, Any], Any], noticed: set[str]
) -> None:
    register(Liar(batch=lie))
    assert set(failures()) == {f"serves-{corner}" for corner in noticed}


@pytest.mark.parametrize("lie", [pages_in_order, full_last_pages], ids=lambda f: f.__name__)
def test_catches_misread_pages(register: Register, lie: Callable[[Any, Any], Any]) -> None:
    register(Liar(batch=lie))
    found = failures(lambda corner: "kv=" in corner or corner == "serves-base")
    assert set(found) == {"serves-base"}


def test_catches_a_graph_whose_plan_is_not_refilled(register: Register) -> None:
    register(Liar(batch=keep_first_plan()))
    assert set(failures(lambda corner: "graph" in corner or "base" in corner)) == {
        "serves-graph=True"
    }


def leaks(honest: Any, q: Any, k: Any, v: Any, out: Any, *rest: Any) -> None:
    honest(q, k, v, out, *rest)
    out += 0 * v.float().sum().to(out.dtype)  # reads what no request owns


def leaves_empty_rows(honest: Any, q: Any, k: Any, v: Any, out: Any, *rest: Any) -> None:
    poisoned = out.clone()
    honest(q, k, v, out, *rest)
    out.copy_(torch.where(out == 0, poisoned, out))


def log2_lse(honest: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *rest: Any) -> None:
    honest(q, k, v, out, lse, *rest)
    lse /= 0.6931


def no_lse_of_empty_rows(
    honest: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *rest: Any
) -> None:
    honest(q, k, v, out, lse, *rest)
    lse.masked_fill_(lse.isinf(), 0.0)


def no_scales(honest: Any, *args: Any) -> None:
    *tensors, _, params = args
    honest(*tensors, attnhub.Scales(), params)


def scalar_scales(honest: Any, *args: Any) -> None:
    *tensors, scales, params = args
    honest(*tensors, attnhub.Scales(*(_first(s) for s in (scales.q, scales.k, scales.v))), params)


def _first(scale: Any) -> Any:
    return scale.flatten()[0] if isinstance(scale, torch.Tensor) else scale


def heads_interleaved(honest: Any, q: Any, k: Any, v: Any, *rest: Any) -> None:
    honest(q.flip(-2), k, v, *rest)


def contiguous_only(honest: Any, q: Any, *rest: Any) -> None:
    honest(q.as_strided(q.shape, torch.empty(q.shape).stride()), *rest)


def crashes(honest: Any, *args: Any) -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


# How the run lies, what the failure of the base corner says.
RUNS = [
    (leaks, "NaN at"),
    (leaves_empty_rows, "NaN at"),
    (log2_lse, "lse:"),
    (no_lse_of_empty_rows, "-inf at 0 positions where none is expected, missing at"),
    (no_scales, "decode: out:"),
    (heads_interleaved, "elements beyond tolerance"),
    (contiguous_only, "decode: out:"),
    (crashes, "mixed: 'liar' raised RuntimeError: CUDA error"),
]


@pytest.mark.parametrize(("lie", "said"), RUNS, ids=lambda x: getattr(x, "__name__", ""))
def test_catches_a_wrong_run(register: Register, lie: Callable[..., None], said: str) -> None:
    register(Liar(run=lie))
    (message,) = failures(lambda corner: corner == "serves-base").values()
    assert said in message
    assert "problem: attention on cpu: kv=paged, num_qo_heads=4" in message


def test_catches_scales_taken_for_one_number(register: Register) -> None:
    register(Liar(run=scalar_scales))
    found = failures(lambda corner: "dtype" in corner)
    assert set(found) == {
        f"serves-{name}_dtype={dtype}"
        for name in ("q", "kv")
        for dtype in ("float8_e4m3fn", "float8_e5m2")
    }


def drifting() -> Callable[..., None]:
    runs = [0]

    def lie(honest: Any, q: Any, k: Any, v: Any, out: Any, *rest: Any) -> None:
        honest(q, k, v, out, *rest)
        runs[0] += 1
        out *= 1 + 2e-7 * runs[0]

    return lie


def batch_dependent(honest: Any, q: Any, k: Any, v: Any, out: Any, *rest: Any) -> None:
    honest(q, k, v, out, *rest)
    out *= 1 + 2e-7 * len(q)


@pytest.mark.parametrize(
    ("lie", "said"),
    [(drifting(), "mixed, run twice: out differs"), (batch_dependent, "mixed, request 0 alone")],
    ids=["run to run", "by the rest of the batch"],
)
def test_catches_results_that_vary_in_the_last_bits(
    register: Register, lie: Callable[..., None], said: str
) -> None:
    register(Liar(run=lie))
    found = failures(lambda corner: corner in ("serves-base", "serves-deterministic=True"))
    assert list(found) == ["serves-deterministic=True"]
    assert said in found["serves-deterministic=True"]


# -- dishonest sheets --------------------------------------------------------------------------

SMALL: dict[str, Any] = {
    "kv": OneOf("dense"),
    "num_qo_heads": OneOf(4),
    "num_kv_heads": OneOf(4),
    "head_dim_qk": OneOf(64),
    "head_dim_vo": OneOf(64),
    "q_dtype": OneOf("float32"),
    "kv_dtype": OneOf("float32"),
    "out_dtype": OneOf("float32"),
    "features": Subset("causal"),
}


class Boastful(Capability):
    """Accepts what it does not declare."""

    def reasons(self, problem: Problem) -> tuple[Reason, ...]:
        return ()


class Opaque(Capability):
    """Refuses without saying for what."""

    def reasons(self, problem: Problem) -> tuple[Reason, ...]:
        if Capability.reasons(self, problem):
            return (Reason(code=Code.RULE, field="kernel", actual="odd", accepted="even"),)
        return ()


def test_a_small_sheet_is_held_to_its_word(register: Register) -> None:
    register(Liar(), Capability(accepts=SMALL))
    assert failures() == {}
    ids = [case.id for case in cases("liar")]
    assert ids[:2] == ["attention-cpu-serves-base", "attention-cpu-serves-features=causal"]
    assert "attention-cpu-refuses-kv=paged" in ids
    assert "attention-cpu-refuses-features=window" in ids
    assert "attention-cpu-refuses-deterministic=True" in ids


@pytest.mark.parametrize(
    ("sheet", "said"),
    [(Boastful, "dispatch accepts it"), (Opaque, "do not name 'num_kv_heads': kernel is odd")],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_catches_a_dishonest_sheet(register: Register, sheet: type[Capability], said: str) -> None:
    register(Liar(), sheet(accepts=SMALL))
    found = failures(lambda corner: corner == "refuses-num_kv_heads=2")
    assert said in found["refuses-num_kv_heads=2"]


def test_catches_a_sheet_that_no_call_fits(register: Register) -> None:
    register(Liar(), Capability(accepts={**SMALL, "num_kv_heads": OneOf(3)}))
    assert "no call fits its sheets; the nearest one" in failures()["serves-base"]


def test_catches_an_unknown_field(register: Register) -> None:
    register(Liar(), Capability(accepts={**SMALL, "head_dim": OneOf(64)}))
    with pytest.warns(attnhub.errors.PluginWarning, match="head_dim"):
        assert "no field 'head_dim'" in failures()["capability"]


def test_a_declared_value_out_of_reach_is_skipped_with_the_reason(register: Register) -> None:
    sheet = Capability(accepts={**SMALL, "layout": OneOf("NHD", "HND")})
    register(Liar(), sheet)
    (case,) = [c for c in cases("liar") if c.id.endswith("cpu-serves-layout=HND")]
    assert case.check().startswith("declared, but no call with it fits: kv is")


def test_a_backend_for_gpus_is_dispatched_on_a_stand_in(register: Register) -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    sheet = Capability(accepts=SMALL, devices=("cuda",), sm=Range(80, 89))
    register(Liar(), sheet)
    results = {case.id: case.check() for case in cases("liar", pairs=0)}
    assert results["attention-stand-in-serves-base"] == (
        "dispatched for NVIDIA A100 80GB (sm_80), but there is no such GPU here to run on"
    )
    assert results["attention-stand-in-refuses-kv=paged"] == ""


def test_what_this_machine_cannot_run_is_skipped_with_the_reason(register: Register) -> None:
    register(Liar(), torch=">=99")
    (first, *_) = cases("liar", pairs=0)
    assert first.check().endswith("needs >=99")
