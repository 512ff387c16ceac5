"""The only door for plugins: everything a backend author needs, and nothing that imports torch.

A plugin is a package with an entry point in the group ``attnhub`` that names a module such as::

    from attnhub.plugin import Backend, Capability, Efficiency, OneOf, hookimpl

    @hookimpl
    def attnhub_backends():
        return [Backend(name="mine", op="norm.rmsnorm", capability=Capability(...),
                        cost=Efficiency(compute=0.5, memory=0.9, overhead_us=3),
                        load="my_package.rmsnorm:planner")]

``load`` names an object with ``plan(problem) -> Plan``; it is imported on first use.
See ``docs/write_a_plugin.md``.
"""

from __future__ import annotations

from attnhub.core.backend import Backend, Cost, Efficiency, Estimate, Op, Plan, Planner
from attnhub.core.capability import (
    AnyValue,
    Capability,
    Constraint,
    MultipleOf,
    OneOf,
    Range,
    Rule,
    SameAs,
    Subset,
)
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

__all__ = [
    "API_VERSION",
    "AnyValue",
    "Backend",
    "Capability",
    "Code",
    "Constraint",
    "Cost",
    "Decision",
    "Device",
    "Efficiency",
    "Estimate",
    "Extent",
    "InvalidArgument",
    "MultipleOf",
    "OneOf",
    "Op",
    "Plan",
    "Planner",
    "PluginError",
    "Problem",
    "Range",
    "Reason",
    "Registry",
    "Rule",
    "SameAs",
    "Subset",
    "Work",
    "Workload",
    "describe",
    "fact",
    "hookimpl",
    "isolated",
    "registry",
]
