"""Expressions as readable infix text, in Python's notation and with Python's precedence."""

from __future__ import annotations

from attnhub.variant.expr import Expr, count_uses, topological
from attnhub.variant.params import ParamSpec

_INFIX = {
    **dict.fromkeys(("lt", "le", "gt", "ge", "eq", "ne"), 1),
    "or": 2,
    "xor": 3,
    "and": 4,
    **dict.fromkeys(("add", "sub"), 5),
    **dict.fromkeys(("mul", "div", "floordiv", "mod"), 6),
    **dict.fromkeys(("neg", "not"), 7),
    "pow": 8,
}
_SIGNS = {
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
    "or": "|",
    "xor": "^",
    "and": "&",
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "floordiv": "//",
    "mod": "%",
    "neg": "-",
    "not": "~",
    "pow": "**",
}
_ATOM = 9


def to_text(root: Expr) -> str:
    """Return `root` as one line; results used more than once come first, as `t0 = ...;`.

    Example:
        >>> from attnhub.variant.expr import apply, const
        >>> to_text(apply("mul", apply("add", Expr("input", value="h"), const(1)), const(2)))
        '(h + 1) * 2'
    """
    nodes = topological(root)
    uses = count_uses(nodes)
    texts: dict[Expr, tuple[str, int]] = {}
    lines: list[str] = []
    for node in nodes:
        text, level = _node_text(node, [texts[arg] for arg in node.args])
        if uses[node] > 1 and node.args and not text.isidentifier():
            lines.append(f"t{len(lines)} = {text}; ")
            text, level = f"t{len(lines) - 1}", _ATOM
        texts[node] = text, level
    return "".join(lines) + texts[root][0]


def _node_text(node: Expr, args: list[tuple[str, int]]) -> tuple[str, int]:
    """Text of one node and how tightly it binds; conversions to float go without saying."""
    if node.op == "to_float":
        return args[0]
    if isinstance(node.value, ParamSpec):
        indices = ", ".join(text for text, _ in args)
        return (f"{node.value.name}[{indices}]" if args else node.value.name), _ATOM
    if not args:
        text = str(node.value)
        return text, _INFIX["neg"] if text.startswith("-") else _ATOM
    level = _INFIX.get(node.op)
    if level is None:
        return f"{node.op.removeprefix('to_')}({', '.join(text for text, _ in args)})", _ATOM
    if len(args) == 1:
        return _SIGNS[node.op] + _wrap(args[0], level), level
    # Comparisons chain in Python and powers bind to the right: their left side needs brackets too.
    strict = level in (_INFIX["lt"], _INFIX["pow"])
    left, right = _wrap(args[0], level + strict), _wrap(args[1], level + 1)
    return f"{left} {_SIGNS[node.op]} {right}", level


def _wrap(arg: tuple[str, int], level: int) -> str:
    text, own = arg
    return text if own >= level else f"({text})"
