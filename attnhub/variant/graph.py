"""A traced mod: an immutable expression graph that prints as infix text and travels as JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from attnhub.errors import InvalidArgument
from attnhub.variant.expr import Expr, Value, topological
from attnhub.variant.params import ParamSpec, merge_params
from attnhub.variant.text import to_text

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Graph:
    """The expression of one mod.

    `inputs` names the arguments in order, `root` is the node of the result. `nodes` (every node,
    arguments before users, `root` last) and `params` (the run-time parameters, in order of
    appearance) are derived: an emitter is one loop over `nodes`. Equality, hash and `digest` go by
    structure.

    Raises:
        InvalidArgument: an input node that `inputs` does not name, or one parameter declared two
            ways.

    Example:
        >>> from attnhub.variant import trace
        >>> print(trace("score_mod", lambda score, b, h, q_idx, kv_idx: score + (q_idx - kv_idx)))
        score + (q_idx - kv_idx)
    """

    inputs: tuple[str, ...]
    root: Expr
    nodes: tuple[Expr, ...] = field(init=False, compare=False, repr=False)
    params: tuple[ParamSpec, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        nodes = topological(self.root)
        for node in nodes:
            if node.op == "input" and node.value not in self.inputs:
                raise InvalidArgument(
                    f"the graph uses the input {node.value!r} but declares only {self.inputs}; "
                    "declare it"
                )
        specs = (node.value for node in nodes if isinstance(node.value, ParamSpec))
        object.__setattr__(self, "nodes", nodes)
        object.__setattr__(self, "params", merge_params(specs))

    @property
    def digest(self) -> str:
        """sha256 of the canonical form, the same in every process."""
        return hashlib.sha256(repr((self.inputs, self.root.digest)).encode()).hexdigest()

    def __str__(self) -> str:
        return to_text(self.root)

    def __reduce__(self) -> tuple[Callable[[str], Graph], tuple[str]]:
        # The flat JSON form pickles graphs that are deeper than Python's recursion limit.
        return Graph.from_json, (self.to_json(),)

    def to_json(self) -> str:
        """Return the graph as JSON text, which `from_json` reads back to an equal graph."""
        return json.dumps(self.to_data(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Graph:
        """Return the graph that `to_json` wrote.

        Raises:
            InvalidArgument: the text is not such a graph.
        """
        try:
            return cls.from_data(json.loads(text))
        except json.JSONDecodeError as error:
            raise InvalidArgument(
                f"this is not JSON: {error}; give what to_json returned"
            ) from None

    def to_data(self) -> dict[str, Any]:
        """Return the graph as plain dicts and lists; nodes refer to earlier nodes by position."""
        place = {node: position for position, node in enumerate(self.nodes)}
        rows = [
            [node.op, _encode(node.value), [place[arg] for arg in node.args]] for node in self.nodes
        ]
        return {"format": _FORMAT, "inputs": list(self.inputs), "nodes": rows}

    @classmethod
    def from_data(cls, data: Any) -> Graph:
        """Return the graph that `to_data` described.

        Raises:
            InvalidArgument: the data are not such a graph.
        """
        try:
            return cls(tuple(data["inputs"]), _read_nodes(data)[-1])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise InvalidArgument(
                f"these are not the data of a graph ({error}); give what to_json returned"
            ) from error


def _read_nodes(data: Any) -> list[Expr]:
    if data["format"] != _FORMAT:
        raise ValueError(f"format {data['format']!r} is not {_FORMAT}")
    nodes: list[Expr] = []
    for op, value, places in data["nodes"]:
        if not all(0 <= place < len(nodes) for place in places):
            raise ValueError(f"node {len(nodes)} refers to nodes that do not precede it")
        nodes.append(Expr(op, tuple(nodes[place] for place in places), _decode(value)))
    return nodes


def _encode(value: Value) -> Any:
    """JSON form of a node's value; floats as text, because JSON has neither infinities nor NaN."""
    if isinstance(value, ParamSpec):
        return asdict(value)
    return {"float": repr(value)} if isinstance(value, float) else value


def _decode(value: Any) -> Value:
    if isinstance(value, dict):
        return float(value["float"]) if "float" in value else ParamSpec(**value)
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    raise ValueError(f"{value!r} is not the value of a node")
