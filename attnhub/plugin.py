"""The only door for plugins: everything a backend author needs. Importing it loads no torch.

A plugin is a package with an entry point in the group ``attnhub`` that names a module such as::

    from attnhub.plugin import Backend, Capability, Efficiency, OneOf, hookimpl

    @hookimpl
    def attnhub_backends():
        return [Backend(name="mine", op="norm.rmsnorm", capability=Capability(...),
                        cost=Efficiency(compute=0.5, memory=0.9, overhead_us=3),
                        load="my_package.rmsnorm:planner")]

``load`` names an object with ``plan(problem) -> Plan``; it is imported on first use.
See ``docs/write_a_plugin.md``, and ``docs/plan_contract.md`` for what plans of each op take.

What a planner needs at run time (batches, variants, checks, pinned staging, the making of new ops,
compiling and launching kernels) is here too, and is loaded, most of it with torch, when it is first
named: never in a manifest.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from attnhub.core.backend import (
    Backend,
    BatchPlan,
    Cost,
    Efficiency,
    Estimate,
    Op,
    Plan,
    Planner,
)
from attnhub.core.calls import Call, Calls, spaced
from attnhub.core.capability import Capability, Rule
from attnhub.core.constraints import (
    AnyValue,
    Constraint,
    MultipleOf,
    OneOf,
    Range,
    SameAs,
    Subset,
)
from attnhub.core.contracts import Contract
from attnhub.core.decision import Decision
from attnhub.core.device import Device, describe
from attnhub.core.discovery import default as registry
from attnhub.core.dispatch import isolated
from attnhub.core.hooks import API_VERSION, hookimpl
from attnhub.core.problem import Extent, Problem, Work, assuming, bucket, fact
from attnhub.core.reason import Code, Reason
from attnhub.core.registry import Registry
from attnhub.core.workload import Workload
from attnhub.errors import InvalidArgument, PluginError

if TYPE_CHECKING:
    from attnhub.attn.batch import AttentionBatch
    from attnhub.attn.kv import BlockSparseKV, PagedKV, RaggedKV, Scales, VariableBlockKV
    from attnhub.attn.problem import AttentionProblem
    from attnhub.attn.rows import Rows, on_host, requests
    from attnhub.core.check import dtype_name, dtype_of
    from attnhub.core.functional import FunctionalOp, define
    from attnhub.core.staging import Staging
    from attnhub.jit import (
        Cache,
        CompileError,
        DriverError,
        KernelSpec,
        Launcher,
        LaunchError,
        LoadedKernel,
        NoCompiler,
        ParamLayout,
        TensorMap,
        compile_kernels,
    )
    from attnhub.kernels import INCLUDE_DIR, arch, kernel, kernels, stream, tensor_map
    from attnhub.kernels.fastdiv import FAST_DIV, fast_divisor
    from attnhub.kernels.merge import ManyStatesMerge, TwoStatesMerge
    from attnhub.kernels.probe import kernels_run
    from attnhub.kernels.schedule import SCHEDULE, WorkSchedule, plan_spec
    from attnhub.kernels.section import SECTION, Section
    from attnhub.kernels.triton_launch import launch_triton
    from attnhub.kernels.triton_variant import TritonVariant
    from attnhub.kernels.variant import VariantCode
    from attnhub.mla.inputs import MLAScales
    from attnhub.mla.problem import MLAProblem
    from attnhub.rope.frequencies import inverse_frequencies
    from attnhub.variant import Rope, Variant

#: Imported when first named.
_LAZY = {
    "AttentionBatch": "attnhub.attn.batch",
    "AttentionProblem": "attnhub.attn.problem",
    "BlockSparseKV": "attnhub.attn.kv",
    "Cache": "attnhub.jit",
    "CompileError": "attnhub.jit",
    "DriverError": "attnhub.jit",
    "FAST_DIV": "attnhub.kernels.fastdiv",
    "FunctionalOp": "attnhub.core.functional",
    "INCLUDE_DIR": "attnhub.kernels",
    "KernelSpec": "attnhub.jit",
    "LaunchError": "attnhub.jit",
    "Launcher": "attnhub.jit",
    "LoadedKernel": "attnhub.jit",
    "MLAProblem": "attnhub.mla.problem",
    "MLAScales": "attnhub.mla.inputs",
    "ManyStatesMerge": "attnhub.kernels.merge",
    "NoCompiler": "attnhub.jit",
    "PagedKV": "attnhub.attn.kv",
    "ParamLayout": "attnhub.jit",
    "RaggedKV": "attnhub.attn.kv",
    "Rope": "attnhub.variant",
    "Rows": "attnhub.attn.rows",
    "SCHEDULE": "attnhub.kernels.schedule",
    "SECTION": "attnhub.kernels.section",
    "Scales": "attnhub.attn.kv",
    "Section": "attnhub.kernels.section",
    "Staging": "attnhub.core.staging",
    "TensorMap": "attnhub.jit",
    "TritonVariant": "attnhub.kernels.triton_variant",
    "TwoStatesMerge": "attnhub.kernels.merge",
    "VariableBlockKV": "attnhub.attn.kv",
    "Variant": "attnhub.variant",
    "VariantCode": "attnhub.kernels.variant",
    "WorkSchedule": "attnhub.kernels.schedule",
    "arch": "attnhub.kernels",
    "compile_kernels": "attnhub.jit",
    "define": "attnhub.core.functional",
    "dtype_name": "attnhub.core.check",
    "dtype_of": "attnhub.core.check",
    "fast_divisor": "attnhub.kernels.fastdiv",
    "inverse_frequencies": "attnhub.rope.frequencies",
    "kernel": "attnhub.kernels",
    "kernels": "attnhub.kernels",
    "kernels_run": "attnhub.kernels.probe",
    "launch_triton": "attnhub.kernels.triton_launch",
    "on_host": "attnhub.attn.rows",
    "plan_spec": "attnhub.kernels.schedule",
    "requests": "attnhub.attn.rows",
    "stream": "attnhub.kernels",
    "tensor_map": "attnhub.kernels",
}

__all__ = [
    "API_VERSION",
    "FAST_DIV",
    "INCLUDE_DIR",
    "SCHEDULE",
    "SECTION",
    "AnyValue",
    "AttentionBatch",
    "AttentionProblem",
    "Backend",
    "BatchPlan",
    "BlockSparseKV",
    "Cache",
    "Call",
    "Calls",
    "Capability",
    "Code",
    "CompileError",
    "Constraint",
    "Contract",
    "Cost",
    "Decision",
    "Device",
    "DriverError",
    "Efficiency",
    "Estimate",
    "Extent",
    "FunctionalOp",
    "InvalidArgument",
    "KernelSpec",
    "LaunchError",
    "Launcher",
    "LoadedKernel",
    "MLAProblem",
    "MLAScales",
    "ManyStatesMerge",
    "MultipleOf",
    "NoCompiler",
    "OneOf",
    "Op",
    "PagedKV",
    "ParamLayout",
    "Plan",
    "Planner",
    "PluginError",
    "Problem",
    "RaggedKV",
    "Range",
    "Reason",
    "Registry",
    "Rope",
    "Rows",
    "Rule",
    "SameAs",
    "Scales",
    "Section",
    "Staging",
    "Subset",
    "TensorMap",
    "TritonVariant",
    "TwoStatesMerge",
    "VariableBlockKV",
    "Variant",
    "VariantCode",
    "Work",
    "WorkSchedule",
    "Workload",
    "arch",
    "assuming",
    "bucket",
    "compile_kernels",
    "define",
    "describe",
    "dtype_name",
    "dtype_of",
    "fact",
    "fast_divisor",
    "hookimpl",
    "inverse_frequencies",
    "isolated",
    "kernel",
    "kernels",
    "kernels_run",
    "launch_triton",
    "on_host",
    "plan_spec",
    "registry",
    "requests",
    "spaced",
    "stream",
    "tensor_map",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'attnhub.plugin' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
