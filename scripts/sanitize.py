"""Our kernels under the tools of compute-sanitizer, as `scripts/gpu.sh --sanitize` runs them.

``python -m scripts.sanitize FOLDER`` in the root of the repository solves small problems through
the public API, compares each with the reference on the CPU, then does it again under each tool, all
tools at a time, with their logs in FOLDER. ``--cases`` instead of FOLDER does the first only.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import attnhub
from attnhub import BatchAttention, BlockSparse, DTypes, Paged, Ragged, Rope, Variant, cascade
from attnhub.attn import BlockSparseKV, PagedKV, RaggedKV
from attnhub.kernels.schedule import WorkSchedule
from attnhub.plugin import AttentionProblem, describe
from attnhub.testing.attention_inputs import Packed, pack, requests
from attnhub.testing.compare import assert_close
from attnhub.testing.generators import seeded
from tests.kernels.batches import FIXED, MIXED, PAGE, Batch, check, random_lengths

CPU = torch.device("cpu")
FACTS: Mapping[str, Any] = {
    "num_qo_heads": 8,
    "num_kv_heads": 2,
    "head_dim": 128,
    "dtype": DTypes("bfloat16", "bfloat16", "bfloat16"),
    "kv": Paged(16),
    "variant": Variant(causal=True),
}
FP8 = {"dtype": DTypes("bfloat16", "float8_e4m3fn", "bfloat16")}
PROMPTS = ((130, 300), (64, 64), (1, 70))
DECODE = ((1, 1500), (1, 40), (1, 0), (1, 700))
MIX = ((1, 900), (40, 100), (0, 4), (1, 17), (3, 0), (70, 70))
#: Name -> (query and key lengths, facts besides those above).
ATTENTION: Mapping[str, tuple[Sequence[tuple[int, int]], Mapping[str, Any]]] = {
    **{f"prompts, {kv}": (PROMPTS, {"kv": kv}) for kv in (Ragged(), Paged(1), Paged(16))},
    "decode, keys split": (DECODE, {}),
    "mixed": (MIX, {"variant": Variant(window=(65, 3), soft_cap=20.0, rope=Rope())}),
    "FP8 decode": (DECODE, FP8),
    "FP8 mixed": (MIX, {**FP8, "kv": Paged(1)}),
    "blocks": (((130, 300), (64, 64)), {"kv": BlockSparse(64, 64), "variant": Variant()}),
    "mask": (MIX, {"kv": Ragged(), "mask": "bool"}),
}
#: initcheck has to see what torch's kernels write, so of its reports ours are chosen afterwards.
_OURS = ("--kernel-name", "kns=attnhub_")
TOOLS: Mapping[str, Sequence[str]] = {
    "memcheck": (*_OURS, "--report-api-errors", "no"),
    "racecheck": _OURS,
    "initcheck": ("--print-limit", "100000"),
    "synccheck": _OURS,
}
_STARTED = "the GPU answers"


def moved(x: Any, where: torch.device) -> Any:
    """Tensors, and what holds them, on another device."""
    if isinstance(x, tuple):
        return tuple(moved(part, where) for part in x)
    if isinstance(x, PagedKV | RaggedKV | BlockSparseKV):
        return type(x)(*(moved(getattr(x, f.name), where) for f in dataclasses.fields(x)))
    return x.to(where) if isinstance(x, Tensor) else x


def packed(lengths: Sequence[tuple[int, int]], facts: Mapping[str, Any]) -> Packed:
    """A batch on the CPU; ragged keys and values end where their last request does."""
    p, random = AttentionProblem.of(describe("cpu"), **facts), seeded(0)
    found = requests(p, lengths, CPU, random)
    batch = pack(p, found, CPU, random, strided=False, block_mask=True)
    if p.kv != "paged":
        k, v = (x[: sum(kv_len for _, kv_len in lengths)].clone() for x in batch.kv)
        batch = dataclasses.replace(batch, kv=(k, v))
    return batch


def attend(name: str, device: torch.device, backend: str) -> None:
    """One of the batches above, its lengths once on the host and once on the device."""
    lengths, changes = ATTENTION[name]
    facts = {**FACTS, **changes}
    batch = packed(lengths, facts)
    facts.pop("mask", None)

    def run(backend: str, where: torch.device, lens: torch.device, out: str) -> Sequence[Tensor]:
        dtype = dataclasses.replace(facts["dtype"], out=out)
        attn = BatchAttention(**{**facts, "dtype": dtype}, device=where, backend=backend)
        attn.plan(*moved((batch.qo_indptr, batch.metadata), lens), mask=moved(batch.mask, where))
        return attn.run(*moved((batch.q, batch.kv), where), return_lse=True)

    expected = run("reference", CPU, CPU, "float32")
    for lens in {CPU, device}:
        out, lse = run(backend, device, lens, "bfloat16")
        assert_close(out, expected[0], dtype=torch.bfloat16, name=f"lengths on {lens}")
        assert_close(lse, expected[1], dtype=torch.bfloat16, kind="lse", name="LSE")


def merge(device: torch.device, backend: str) -> None:
    """Two states of each row, then all; a few saw no key."""
    generator = seeded(0)

    def run(backend: str, o: Tensor, lse: Tensor) -> Sequence[Tensor]:
        with attnhub.use(backend):
            pair = cascade.merge_state(o[:, 0], lse[:, 0], o[:, 1], lse[:, 1])
            return (*pair, *cascade.merge_states(o, lse))

    for tokens, count in ((33, 2), (5, 3), (2, 64)):
        o = torch.randn(tokens, count, 8, 128, generator=generator).bfloat16()
        lse = torch.randn(tokens, count, 8, generator=generator)
        lse[torch.rand(lse.shape, generator=generator) < 1 / 8] = -torch.inf
        pairs = zip(run(backend, *moved((o, lse), device)), run("reference", o, lse), strict=True)
        for i, (found, expected) in enumerate(pairs):
            assert_close(found, expected, kind="lse" if i % 2 else "output", name=f"{count} states")


def schedule(device: torch.device, backend: str) -> None:
    """The plan kernel alone, against the model of its tests."""
    for sections, size in ((MIXED, 300), ((FIXED,), 40)):
        here = describe(device)
        batch = Batch.of(random_lengths(size, seed=1), here)
        work = WorkSchedule(here, sections, max_batch=size, page_size=PAGE)
        batch.plan(work)
        check(work, batch, here)


def run_cases(device: torch.device, backend: str = "fa2_cuda") -> int:
    """Every case; returns how many were wrong."""
    assert torch.ones(8, device=device).sum().item() == 8
    print(_STARTED, flush=True)
    wrong = 0
    for name in ("plan", "merge", *ATTENTION):
        solve = {"plan": schedule, "merge": merge}.get(name) or partial(attend, name)
        try:
            solve(device, backend)
        except Exception as error:  # noqa: BLE001 - the others are to run too
            print(f"{name}: {type(error).__name__}: {error}")
            wrong += 1
    return wrong


def errors(tool: str, log: str) -> int | None:
    """How many a tool counted, of initcheck those in our kernels; None where it did not finish."""
    total = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", log)
    if tool != "initcheck" or not total:
        return int(total[1]) if total else None
    reports = re.split(r"(?m)^=========\s*$", log)
    return sum("Uninitialized" in report and "attnhub_" in report for report in reports)


def run_tool(sanitizer: str, tool: str, folder: Path) -> bool:
    """Run the cases under a tool and print what came of it; returns whether nothing was wrong."""
    log, start = folder / f"sanitize-{tool}.log", time.monotonic()
    command = [sanitizer, "--tool", tool, *TOOLS[tool], "--show-backtrace", "device"]
    command += [sys.executable, "-m", "scripts.sanitize", "--cases"]
    with log.open("w", encoding="utf-8") as file:
        code = subprocess.run(command, stdout=file, stderr=file, check=False).returncode
    text, seconds = log.read_text(encoding="utf-8", errors="replace"), time.monotonic() - start
    if _STARTED not in text:
        print(f"{tool}: not run: {' | '.join(text.splitlines()[:5])}")
        return True
    count, notes = errors(tool, text), f", the cases ended with status {code}" if code else ""
    notes += ", part of it unseen" if "Internal Sanitizer Error" in text else ""
    print(f"{tool}: {'unknown' if count is None else count} errors, {seconds:.0f} s{notes}")
    return count == 0 and code == 0


def main() -> int:
    """See the module's docstring."""
    # Every allocation of torch is then one of the driver's, whose bounds the tools know.
    os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    if not torch.cuda.is_available():
        print("not run: torch finds no GPU here")
        return 0
    # The first time, without a tool, compiles the kernels.
    if (wrong := run_cases(torch.device("cuda:0"))) or sys.argv[1:] == ["--cases"]:
        return int(wrong > 0)
    path = f"{os.environ['PATH']}:{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/bin"
    if not (sanitizer := shutil.which("compute-sanitizer", path=path)):
        print(f"not run: no compute-sanitizer in {path}")
        return 0
    with ThreadPoolExecutor() as pool:
        run = partial(run_tool, sanitizer, folder=Path(sys.argv[1]))
        return 0 if all([*pool.map(run, TOOLS)]) else 1


if __name__ == "__main__":
    sys.exit(main())
