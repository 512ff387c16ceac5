"""The control surface users see: ``use``, ``configure``, ``explain``, ``register``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from attnhub.core import discovery, dispatch, options
from attnhub.core.decision import Decision
from attnhub.core.options import Override


def use(backend: str, *, op: str = "*", mode: str = "require") -> AbstractContextManager[None]:
    """Decide for the dispatcher inside a ``with`` block (this thread or task only).

    Args:
        backend: a registered name. With ``op="*"`` the rule concerns the ops it serves.
        op: an op name or glob (``"norm.*"``) of ops there are. It is meant of each: requiring a
            backend for an op that it does not serve makes calls of that op an error.
        mode: ``"require"`` (unmet need is an error), ``"prefer"`` or ``"deny"``.

    Raises:
        UnknownName: no such backend or op; near names and install hints are listed.

    Example::

        with attnhub.use("reference"):
            out = attnhub.attention(q, k, v, causal=True)
    """
    rule = Override(backend=backend, op=op, mode=mode, scope="use")
    dispatch.default().check_name(rule)
    return options.push(rule)


def configure(*rules: Override) -> None:
    """Replace this process's rules; they rank below ``use()`` and above the environment.

    Example::

        attnhub.configure(attnhub.Override(backend="torch_sdpa", op="attention", mode="deny"))
    """
    dispatcher = dispatch.default()
    for rule in rules:
        dispatcher.check_name(rule)
    dispatcher.rules = tuple(rules)
    dispatcher.registry.touch()


def explain(op: str, *, device: Any, backend: str = "", **facts: Any) -> Decision:
    """The decision for a problem, without tensors and without running anything.

    Args:
        op: ``"attention"``, ``"norm.rmsnorm"``, ... (``attnhub list`` prints all).
        device: a torch device, ``"cuda:0"``, or any device by name: ``"h100"``, ``"sm_89"``.
        backend: as the ``backend=`` argument of the call.
        **facts: the op's problem facts and sizes, as in the example.

    Example::

        print(attnhub.explain("attention", device="h100", num_qo_heads=64, num_kv_heads=8,
                              head_dim=128, dtype="bfloat16", kv=attnhub.Paged(page_size=16),
                              variant=attnhub.Variant(causal=True), batch=64, qo_len=1,
                              kv_len=4096))
    """
    cls = discovery.default().problem_class(op)
    return dispatch.default().decide(cls.of(device, **facts), backend)


def register(plugin: Any, name: str) -> None:
    """Register a plugin object or module in this process, without an entry point."""
    discovery.default().register(plugin, name)
