"""What the benchmarks measure is what they say, tried on few tokens."""

from __future__ import annotations

import pytest
import torch

from plugins.triton_misc.benchmarks import attention, memory_bound

#: Bytes read and written for each token, as a floor has them.
BYTES = {
    "rmsnorm 4096": 2 * 4096 * 2,
    "rmsnorm 8192": 2 * 8192 * 2,
    "fused_add_rmsnorm 4096": 4 * 4096 * 2,
    "fused_add_rmsnorm 8192": 4 * 8192 * 2,
    "silu_and_mul 4096": 3 * 4096 * 2,
    "silu_and_mul 14336": 3 * 14336 * 2,
    "apply_rope_ 32/8 128": 2 * 40 * 128 * 2,
    "append_paged_kv 8 128 page 16": 4 * 8 * 128 * 2,
    "quantize_fp8 4096 per token": 3 * 4096,
}


@pytest.mark.parametrize("name", BYTES)
def test_each_op_runs_and_counts_its_bytes(name: str, device: torch.device) -> None:
    work = memory_bound.OPS[name](3, device, None)
    work.ours()
    assert work.theirs is None
    assert work.num_bytes == 3 * BYTES[name]


def test_every_op_is_counted() -> None:
    assert memory_bound.OPS.keys() == BYTES.keys()


def test_a_case_of_attention() -> None:
    decode = attention.Case(batch=64, length=4096, is_decode=True)
    assert str(decode) == "decode B64 L4096 32/8"
    assert decode.kv_bytes == 64 * 4096 * 2 * 8 * 128 * 2
    prefill = attention.Case(batch=4, length=4096)
    assert str(prefill) == "prefill B4 L4096 32/8"
    # Two products of 2 L^2 D operations a head, of which a causal mask leaves half.
    assert prefill.flops == 4 * 32 * (2 * 2 * 4096**2 * 128) / 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to measure")
@pytest.mark.parametrize("script", [attention, memory_bound])
def test_a_machine_without_a_gpu_is_told_what_is_needed(script: object) -> None:
    with pytest.raises(SystemExit, match="give --device cuda:0"):
        script.main(["--device", "cpu"])
