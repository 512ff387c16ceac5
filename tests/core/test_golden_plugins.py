"""Which backend serves what where the plugins of this repository are installed: a reviewed table.

``python -m tests.core.test_golden_plugins`` rewrites the golden file.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import attnhub
from attnhub import Paged, Variant
from attnhub.plugin import isolated
from tests.core.test_golden_tables import CASES

GOLDEN = Path(__file__).parents[1] / "golden" / "selection_plugins.txt"
PLUGINS = ("fa2_cuda", "triton_misc")
DEVICES = ("cpu", "sm_75", "sm_80", "sm_89", "sm_90", "sm_100", "sm_120")

_ROWS = {"dtype": "bfloat16", "hidden": 4096, "tokens": 128}
_ROPE = {"dtype": "bfloat16", "num_qo_heads": 32, "num_kv_heads": 8, "head_dim": 128}
_STATES = {"dtype": "bfloat16", "num_heads": 32, "head_dim": 128, "tokens": 128}
_PAGES = {"dtype": "bfloat16", "page_size": 16, "num_kv_heads": 8, "tokens": 128}
_DIMS = {"head_dim_qk": 128, "head_dim_vo": 128}
_ROPE_APPEND = {**_PAGES, **_DIMS, "num_qo_heads": 32, "rotary_dim": 128, "fp8": "float8_e4m3fn"}
_FP8 = {**_ROWS, "fp8": "float8_e4m3fn"}
_LLAMA = {"num_qo_heads": 64, "num_kv_heads": 8, "head_dim": 128, "dtype": "bfloat16"}


def _relative(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + (kv_idx - q_idx)


ATTENTION: Mapping[str, Mapping[str, Any]] = {
    **CASES,
    "prefill, dense, score_mod": {
        **_LLAMA,
        "kv": "dense",
        "variant": Variant(score_mod=_relative),
        "batch": 4,
        "qo_len": 4096,
        "kv_len": 4096,
    },
    "decode, paged, score_mod": {
        **_LLAMA,
        "kv": Paged(16),
        "variant": Variant(score_mod=_relative),
        "batch": 64,
        "qo_len": 1,
        "kv_len": 4096,
    },
    "decode, paged, head dim 72": {
        **_LLAMA,
        "kv": Paged(16),
        "head_dim": 72,
        "batch": 64,
        "qo_len": 1,
        "kv_len": 4096,
    },
}
OTHERS: Mapping[str, Mapping[str, Any]] = {
    "norm.rmsnorm": _ROWS,
    "norm.fused_add_rmsnorm": _ROWS,
    "norm.layernorm": _ROWS,
    "activation.silu_and_mul": _ROWS,
    "activation.gelu_and_mul": _ROWS,
    "activation.gelu_tanh_and_mul": _ROWS,
    "rope.apply_rope": _ROPE,
    "rope.apply_rope_cos_sin": {**_ROPE, "rotary_dim": 128},
    "cascade.merge_state": _STATES,
    "cascade.merge_state_in_place": _STATES,
    "cascade.merge_states": {**_STATES, "num_states": 8},
    "page.append_paged_kv": {**_PAGES, **_DIMS},
    "page.append_paged_mla": {
        "dtype": "bfloat16",
        "page_size": 64,
        "dim_ckv": 512,
        "dim_kpe": 64,
    },
    "page.rope_append_paged_kv": _ROPE_APPEND,
    "page.get_batch_indices_positions": {"batch": 64, "tokens": 128},
    "page.get_seq_lens": {"batch": 64},
    "quantization.packbits": {"tokens": 1 << 20},
    "quantization.unpackbits": {"tokens": 1 << 20},
    "quantization.segment_packbits": {"batch": 64, "tokens": 1 << 20},
    "quantization.quantize_fp8": _FP8,
    "quantization.dequantize_fp8": _FP8,
}


def table() -> str:
    """One line a case, one column an architecture."""
    lines = [f"{'':34}" + "".join(f"{device:<14}" for device in DEVICES)]
    cases = [("attention", name, facts) for name, facts in ATTENTION.items()]
    cases += [(op, op, facts) for op, facts in OTHERS.items()]
    with isolated() as hub:
        for name in PLUGINS:
            hub.register(importlib.import_module(f"attnhub_{name}.manifest"), name)
        for op, name, facts in cases:
            row = [attnhub.explain(op, device=device, **facts) for device in DEVICES]
            names = (d.chosen.name if d.chosen else "-" for d in row)
            lines.append(f"{name:34}" + "".join(f"{chosen:<14}" for chosen in names))
    return "\n".join(line.rstrip() for line in lines) + "\n"


def test_selection_equals_the_golden_table() -> None:
    for name in PLUGINS:
        if importlib.util.find_spec(f"attnhub_{name}") is None:
            pytest.skip(f"needs attnhub-{name.replace('_', '-')}: pip install -e plugins/{name}")
    assert table() == GOLDEN.read_text()


if __name__ == "__main__":
    GOLDEN.write_text(table())
