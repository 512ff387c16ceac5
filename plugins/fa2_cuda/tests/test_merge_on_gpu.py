"""The merges on a GPU: more than 2^31 elements, CUDA graphs, and no wait for the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import attnhub
from attnhub import cascade
from attnhub.testing.compare import assert_close
from attnhub.testing.generators import seeded
from attnhub.testing.waiting import no_waiting

pytestmark = pytest.mark.gpu(sm=80)

DEVICE = "cuda:0"
State = tuple[Tensor, Tensor]


@pytest.fixture(autouse=True)
def ours() -> Iterator[None]:
    with attnhub.use("fa2_cuda"):
        yield


def states(*shape: int) -> State:
    """bfloat16 ``shape`` and its LSEs; about one in eight saw no key and holds NaN."""
    generator = seeded(len(shape), DEVICE)
    o = torch.empty(shape, dtype=torch.bfloat16, device=DEVICE).normal_(generator=generator)
    lse = torch.randn(shape[:-1], generator=generator, device=DEVICE)
    empty = torch.rand(shape[:-1], generator=generator, device=DEVICE) < 1 / 8
    return o.masked_fill_(empty[..., None], math.nan), lse.masked_fill_(empty, -math.inf)


def by_reference(call: Callable[[], State]) -> State:
    with attnhub.use("reference"):
        return call()


def check(actual: State, expected: State) -> None:
    assert_close(actual[0], expected[0], name="o")
    assert_close(actual[1], expected[1], kind="lse", name="lse")


#: More tokens of 32 heads and 128 elements than 2^31 elements hold.
MANY_TOKENS = (1 << 31) // (32 * 128) + 5
ENDS = [slice(0, 64), slice(MANY_TOKENS // 2 - 32, MANY_TOKENS // 2 + 32), slice(-64, None)]


def test_two_states_of_more_than_two_billion_elements() -> None:
    o, lse = states(MANY_TOKENS, 32, 128)
    o_b, lse_b = o.flip(1), lse.flip(1).contiguous()
    before = [(o[s].clone(), lse[s].clone()) for s in ENDS]
    cascade.merge_state_(o, lse, o_b, lse_b)
    for s, state in zip(ENDS, before, strict=True):
        other = o_b[s], lse_b[s]
        expected = by_reference(lambda a=state, b=other: cascade.merge_state(*a, *b))
        check((o[s], lse[s]), expected)
    assert not o.isnan().any()


def test_many_states_of_more_than_two_billion_elements() -> None:
    tokens = MANY_TOKENS // 3 + 1
    o, lse = states(tokens, 3, 32, 128)
    out, out_lse = cascade.merge_states(o, lse)
    for s in (slice(0, 64), slice(-64, None)):
        expected = by_reference(lambda s=s: cascade.merge_states(o[s], lse[s]))
        check((out[s], out_lse[s]), expected)
    assert not out.isnan().any()


@pytest.mark.parametrize(
    ("tokens", "count"),
    [
        pytest.param(1, 132, id="a row for the whole device"),
        pytest.param(16, 64, id="warps share states"),
        pytest.param(4097, 3, id="more rows than CTAs"),
    ],
)
def test_captured_and_replayed(tokens: int, count: int) -> None:
    """Without waiting for the device, and with the numbers of what the tensors hold by then."""
    o, lse = states(tokens, count, 8, 128)
    out = torch.empty_like(o[:, 0]), torch.empty_like(lse[:, 0])
    parts = [torch.empty_like(x[:, 0]).copy_(x[:, i]) for i in range(2) for x in (o, lse)]
    in_place = [x.clone() for x in parts[:2]]
    mask = torch.arange(tokens, device=DEVICE) % 2 == 0

    def run() -> None:
        cascade.merge_states(o, lse, out=out)
        cascade.merge_state(*parts, out=(parts[2], parts[3]))
        cascade.merge_state_(*in_place, *parts[2:], mask=mask)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    fresh = states(tokens, count, 8, 128)
    o.copy_(fresh[0].roll(1, 0))
    lse.copy_(fresh[1].roll(1, 0))
    before, kept = [x.clone() for x in parts], [x.clone() for x in in_place]
    with no_waiting():
        graph.replay()
    check(out, by_reference(lambda: cascade.merge_states(o, lse)))
    merged = by_reference(lambda: cascade.merge_state(*before))
    check((parts[2], parts[3]), merged)
    expected = by_reference(lambda: cascade.merge_state(*kept, *parts[2:]))
    for now, new, old in zip(in_place, expected, kept, strict=True):
        chosen = mask.view(-1, *[1] * (new.dim() - 1))
        assert_close(now, new.where(chosen, old), kind="output" if new.dim() == 3 else "lse")


def test_eager_calls_do_not_wait() -> None:
    o, lse = states(300, 5, 8, 64)
    pair = [torch.empty_like(x[:, 0]).copy_(x[:, i]) for i in range(2) for x in (o, lse)]
    cascade.merge_states(o, lse)  # planned, compiled and loaded
    cascade.merge_state(*pair)
    with no_waiting():
        many, two = cascade.merge_states(o, lse), cascade.merge_state(*pair)
    check(many, by_reference(lambda: cascade.merge_states(o, lse)))
    check(two, by_reference(lambda: cascade.merge_state(*pair)))


def test_on_a_stream_of_the_caller() -> None:
    o, lse = states(5000, 4, 8, 128)
    expected = by_reference(lambda: cascade.merge_states(o, lse))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        late = torch.empty_like(o)
        torch.cuda._sleep(20_000_000)  # what runs on another stream would read `late` too early
        late.copy_(o)
        merged = cascade.merge_states(late, lse)
    side.synchronize()
    check(merged, expected)
