"""Which built-in backend serves what on which architecture: a table reviewed like code.

``python -m tests.core.test_golden_tables`` rewrites the golden file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attnhub
from attnhub import BlockSparse, DTypes, Paged, Ragged, Variant
from attnhub.plugin import isolated

GOLDEN = Path(__file__).parents[1] / "golden" / "selection.txt"
DEVICES = ("cpu", "sm_80", "sm_89", "sm_90", "sm_100", "sm_120")

_LLAMA = {"num_qo_heads": 64, "num_kv_heads": 8, "head_dim": 128, "dtype": "bfloat16"}
_CAUSAL = Variant(causal=True)
_DECODE = {"kv": Paged(16), "batch": 64, "qo_len": 1, "kv_len": 4096}
_PREFILL = {"kv": Ragged(), "batch": 4, "qo_len": 4096, "kv_len": 4096}
_FP8 = DTypes("bfloat16", "float8_e4m3fn", "bfloat16")

CASES: dict[str, dict[str, Any]] = {
    "decode, paged": {**_LLAMA, **_DECODE, "variant": _CAUSAL},
    "decode, paged, FP8 cache": {**_LLAMA, **_DECODE, "variant": _CAUSAL, "dtype": _FP8},
    "decode, paged, soft cap": {**_LLAMA, **_DECODE, "variant": Variant(causal=True, soft_cap=30)},
    "decode, paged, sinks": {**_LLAMA, **_DECODE, "variant": Variant(causal=True, sinks=True)},
    "decode, paged, CUDA graph": {**_LLAMA, **_DECODE, "variant": _CAUSAL, "graph": True},
    "decode, paged, deterministic": {
        **_LLAMA, **_DECODE, "variant": _CAUSAL, "deterministic": True,
    },
    "decode, metadata on device": {
        **_LLAMA, **_DECODE, "variant": _CAUSAL, "metadata": "device",
    },
    "prefill, ragged": {**_LLAMA, **_PREFILL, "variant": _CAUSAL},
    "prefill, ragged, window": {
        **_LLAMA, **_PREFILL, "variant": Variant(causal=True, window=(1024, 0)),
    },
    "prefill, ragged, float32": {**_LLAMA, **_PREFILL, "variant": _CAUSAL, "dtype": "float32"},
    "prefill, ragged, 192/128": {
        **_LLAMA, **_PREFILL, "variant": _CAUSAL, "head_dim": (192, 128),
    },
    "prefill, ragged, custom mask": {**_LLAMA, **_PREFILL, "mask": "bool"},
    "prefill, block sparse": {**_LLAMA, **_PREFILL, "kv": BlockSparse(16, 16)},
    "prefill, dense": {**_LLAMA, **_PREFILL, "kv": "dense", "variant": _CAUSAL},
}  # fmt: skip


def table() -> str:
    """One line a case, one column an architecture."""
    lines = [f"{'':30}" + "".join(f"{device:<14}" for device in DEVICES)]
    with isolated():
        for name, facts in CASES.items():
            row = [attnhub.explain("attention", device=device, **facts) for device in DEVICES]
            names = (d.chosen.name if d.chosen else "-" for d in row)
            lines.append(f"{name:30}" + "".join(f"{chosen:<14}" for chosen in names))
    return "\n".join(line.rstrip() for line in lines) + "\n"


def test_selection_equals_the_golden_table() -> None:
    assert table() == GOLDEN.read_text()


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(table())
