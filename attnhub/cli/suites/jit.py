"""What kernels cost before they run: compiling one, compiling twelve, and the first call of one."""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from attnhub.attn.kv import DTypes
from attnhub.cli import machine, needs
from attnhub.cli.model_config import Wanted, model_calls
from attnhub.cli.spent import Spent, measured
from attnhub.cli.suites.process import run_python
from attnhub.core import device as devices
from attnhub.core.device import Device
from attnhub.jit import Cache, CompileError, KernelSpec, compile_kernels
from attnhub.testing.results import Environment, Row

SUITE = "jit"

#: Budgets, of which rows state their share: seconds, and milliseconds for the first call.
KERNEL_CPU_SECONDS, MANY_SECONDS, FIRST_CALL_MS = 4.0, 4.0, 50.0
MANY = 12
_MANY = f"{MANY} kernels at once"
_FIRST = "first call of a process"

_PAGE_SIZE = 16
_OLDER = ("l40s", "a100")
_LLAMA = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
_GEMMA = {
    "model_type": "gemma2",
    "attn_logit_softcapping": 50.0,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": 3584,
    "intermediate_size": 14336,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
    "vocab_size": 256000,
}
_DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
}
#: Models of several shapes of heads: plain, soft cap and window, latent.
MODELS = ((_LLAMA, "bfloat16"), (_LLAMA, "float16"), (_GEMMA, "bfloat16"), (_DEEPSEEK, "bfloat16"))

_MERGE = Wanted(
    op="cascade.merge_state", facts={"dtype": "bfloat16", "num_heads": 32, "head_dim": 128}
)
#: It collects garbage first: to look through all objects of torch takes longer than what is timed,
#: and falls due, by their number, at whatever import comes next.
_FIRST_CALL = """
import gc, time, torch
o = torch.zeros(64, 32, 128, dtype=torch.bfloat16, device={device!r})
lse = torch.zeros(64, 32, device={device!r})
torch.cuda.synchronize({device!r})
import attnhub
gc.collect()
start = time.perf_counter()
attnhub.cascade
from attnhub.core import discovery
discovery.default()
found = time.perf_counter()
attnhub.cascade.merge_state(o, lse, o, lse)
torch.cuda.synchronize({device!r})
end = time.perf_counter()
print((end - start) * 1e3, (end - found) * 1e3)
"""


@dataclass(slots=True)
class Measured:
    """Rows, and what was left out or went wrong, by name."""

    rows: list[Row] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def measure(here: Environment, device: str) -> Measured:
    """Every figure; ``share_of_ceiling`` is the share of its budget, so smaller is better.

    On a CPU kernels are compiled for an H100, and none is called. A kernel that does not compile
    leaves the others be.

    Raises:
        NoCompiler: there is no compiler on this machine.
    """
    target = devices.named("h100") if device == "cpu" else machine.present(device)
    specs, found = kernels(target), Measured()
    _each(specs, here, found)
    # Where there are not enough, the same for older devices are as much work.
    specs = list(dict.fromkeys([*specs, *(s for d in _OLDER for s in kernels(devices.named(d)))]))
    if len(specs) < MANY:
        found.skipped[f"{SUITE} {_MANY}"] = f"the plugins here have {len(specs)} kernels"
    elif not found.failed:
        found.rows.append(_at_once(specs[:MANY], here))
    if device == "cpu":
        found.skipped[f"{SUITE} {_FIRST}"] = "it needs a GPU"
    elif not needs.kernels(needs.find([_MERGE], target)):
        found.skipped[f"{SUITE} {_FIRST}"] = f"no plugin here has a kernel of {_MERGE.op}"
    else:
        found.rows += _first_call(here, device)
    return found


def kernels(device: Device) -> list[KernelSpec]:
    """What the models need on a device."""
    calls = [
        call
        for config, dtype in MODELS
        for call in model_calls(config, dtype=DTypes(dtype, dtype, dtype), page_size=_PAGE_SIZE)
    ]
    return needs.kernels(needs.find(calls, device))


def _compile(specs: list[KernelSpec]) -> Spent:
    """What it takes to compile kernels into an empty cache."""
    with tempfile.TemporaryDirectory(prefix="attnhub-bench-") as folder, measured() as spent:
        compile_kernels(specs, cache=Cache(folder), prebuilt=False)
    return spent


def _each(specs: list[KernelSpec], here: Environment, found: Measured) -> None:
    with contextlib.suppress(CompileError):
        _compile(specs[:1])  # the first also loads the compiler and the template engine
    seen: Counter[str] = Counter()
    for spec in specs:
        case = f"{spec.name} {spec.arch}"
        seen[case] += 1
        if seen[case] > 1:  # another kernel of the same name
            case += f" ({seen[case]})"
        try:
            spent = _compile([spec])
        except CompileError as error:
            found.failed[f"{SUITE} {case}"] = error.error
            continue
        share = spent.cpu_seconds / KERNEL_CPU_SECONDS
        found.rows += [
            here.row(SUITE, case, "CPU time", spent.cpu_seconds, "s", share_of_ceiling=share),
            here.row(SUITE, case, "wall time", spent.seconds, "s"),
        ]


def _at_once(specs: list[KernelSpec], here: Environment) -> Row:
    wall = _compile(specs).seconds
    return here.row(SUITE, _MANY, "wall time", wall, "s", share_of_ceiling=wall / MANY_SECONDS)


def _first_call(here: Environment, device: str) -> Iterator[Row]:
    code = _FIRST_CALL.format(device=device)
    with tempfile.TemporaryDirectory(prefix="attnhub-bench-") as folder:
        # The first run fills the cache; of the others the best counts.
        _, *outputs = [run_python(code, ATTNHUB_CACHE_DIR=folder) for _ in range(4)]
    every, own = (min(times) for times in zip(*map(_numbers, outputs), strict=True))
    share = every / FIRST_CALL_MS
    yield here.row(SUITE, _FIRST, "host time", every, "ms", share_of_ceiling=share)
    yield here.row(SUITE, f"{_FIRST}, plugins found", "host time", own, "ms")


def _numbers(output: str) -> list[float]:
    return list(map(float, output.splitlines()[-1].split()))
