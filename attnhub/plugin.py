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

What a planner needs at run time (batches, variants, checks, pinned staging, the making of new ops)
is here too, and loads torch when it is first named: never in a manifest.
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
from attnhub.core.calls import Call, Calls
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
from attnhub.core.problem import Extent, Problem, Work, fact
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
    from attnhub.mla.inputs import MLAScales
    from attnhub.mla.problem import MLAProblem
    from attnhub.variant import Rope, Variant

#: Imported when first named.
_LAZY = {
    "AttentionBatch": "attnhub.attn.batch",
    "AttentionProblem": "attnhub.attn.problem",
    "BlockSparseKV": "attnhub.attn.kv",
    "FunctionalOp": "attnhub.core.functional",
    "MLAProblem": "attnhub.mla.problem",
    "MLAScales": "attnhub.mla.inputs",
    "PagedKV": "attnhub.attn.kv",
    "RaggedKV": "attnhub.attn.kv",
    "Rope": "attnhub.variant",
    "Rows": "attnhub.attn.rows",
    "Scales": "attnhub.attn.kv",
    "Staging": "attnhub.core.staging",
    "VariableBlockKV": "attnhub.attn.kv",
    "Variant": "attnhub.variant",
    "define": "attnhub.core.functional",
    "dtype_name": "attnhub.core.check",
    "dtype_of": "attnhub.core.check",
    "on_host": "attnhub.attn.rows",
    "requests": "attnhub.attn.rows",
}

__all__ = [
    "API_VERSION",
    "AnyValue",
    "AttentionBatch",
    "AttentionProblem",
    "Backend",
    "BatchPlan",
    "BlockSparseKV",
    "Call",
    "Calls",
    "Capability",
    "Code",
    "Constraint",
    "Contract",
    "Cost",
    "Decision",
    "Device",
    "Efficiency",
    "Estimate",
    "Extent",
    "FunctionalOp",
    "InvalidArgument",
    "MLAProblem",
    "MLAScales",
    "MultipleOf",
    "OneOf",
    "Op",
    "PagedKV",
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
    "Staging",
    "Subset",
    "VariableBlockKV",
    "Variant",
    "Work",
    "Workload",
    "define",
    "describe",
    "dtype_name",
    "dtype_of",
    "fact",
    "hookimpl",
    "isolated",
    "on_host",
    "registry",
    "requests",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'attnhub.plugin' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
