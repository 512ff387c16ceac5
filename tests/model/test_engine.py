"""The example engine: in whatever batch, a request gets what the plain model gives it alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from demo import Job, check
from engine import Engine, Request
from model import Model
from plain import PlainModel
from weights import LAYER_NAMES, ModelConfig

from attnhub import sampling
from attnhub.plugin import Registry

if TYPE_CHECKING:
    from tokenizer import Tokenizer

CONFIG = ModelConfig(
    layers=2,
    hidden=48,
    heads=6,
    kv_heads=2,
    head_dim=8,
    ffn=64,
    vocab=97,
    rope_theta=1e4,
    rms_eps=1e-5,
    context=128,
)
# (prompt length, answer length, step before which it comes)
ARRIVALS = [(1, 9, 0), (5, 12, 0), (33, 4, 1), (40, 10, 3), (17, 1, 3), (2, 6, 20)]


@pytest.fixture(scope="module")
def tiny() -> PlainModel:
    """A random model whose answers depend on every token before."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) / shape[-1] ** 0.5

    width, kv_width = CONFIG.heads * CONFIG.head_dim, CONFIG.kv_heads * CONFIG.head_dim
    shapes = {
        "q": (width, CONFIG.hidden),
        "k": (kv_width, CONFIG.hidden),
        "v": (kv_width, CONFIG.hidden),
        "o": (CONFIG.hidden, width),
        "gate": (CONFIG.ffn, CONFIG.hidden),
        "up": (CONFIG.ffn, CONFIG.hidden),
        "down": (CONFIG.hidden, CONFIG.ffn),
    }
    weights = {"embed": random(CONFIG.vocab, CONFIG.hidden), "final_norm": torch.ones(48) * 8}
    for layer in range(CONFIG.layers):
        for name in LAYER_NAMES:
            # Strong enough layers, lest the tied embedding repeat the last token for ever.
            value = random(*shapes[name]) * 3 if name in shapes else 1 + random(CONFIG.hidden)
            weights[f"layers.{layer}.{name}"] = value
    return PlainModel(CONFIG, weights)


def prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(CONFIG.vocab, (length,), generator=generator).tolist()


def new_engine(
    tiny: PlainModel, *, max_step_tokens: int = 256, num_pages: int = 32, **options: Any
) -> Engine:
    """An engine whose cache is NaN wherever nothing was written."""
    model = Model(tiny.config, tiny.weights, num_pages=num_pages, **options)
    for layer in model.layers:
        layer.cache.fill_(torch.nan)
    return Engine(model, max_step_tokens=max_step_tokens)


def serve(
    engine: Engine, arrivals: list[tuple[Request, int]], each_step: Callable[[], None] | None = None
) -> None:
    """Run requests that come at given steps to their ends."""
    step = 0
    while not all(request.finished for request, _ in arrivals):
        for request, arrives in arrivals:
            if arrives == step:
                engine.submit(request)
        engine.step()
        if each_step is not None:
            each_step()
        step += 1
        assert step < 1000, "the engine makes no progress"
    assert engine.queue == []
    assert sorted(engine.free) == list(range(engine.model.num_pages))


def mixed_requests() -> list[tuple[Request, int]]:
    return [(Request(prompt=prompt(n), max_new_tokens=m), at) for n, m, at in ARRIVALS]


def assert_as_plain(tiny: PlainModel, requests: list[Request]) -> None:
    for request in requests:
        expected = tiny.generate(request.prompt, max_new_tokens=request.max_new_tokens)
        assert request.answer == expected


def test_the_tiny_model_is_worth_asking(tiny: PlainModel) -> None:
    answers = [tiny.generate(prompt(n), max_new_tokens=m) for n, m, _ in ARRIVALS if m > 5]
    assert all(len(set(answer)) > 3 for answer in answers)
    changed = [*prompt(40)[:-20], 3, *prompt(40)[-19:]]
    assert tiny.generate(changed, max_new_tokens=10) != tiny.generate(prompt(40), max_new_tokens=10)


@pytest.mark.parametrize(
    "page_size",
    [
        pytest.param(1, id="a page for each token"),
        pytest.param(5, id="no power of two"),
        pytest.param(16, id="the usual"),
        pytest.param(128, id="a request never needs a second page"),
    ],
)
@pytest.mark.parametrize(
    "max_step_tokens",
    [
        pytest.param(256, id="whole prompts"),
        pytest.param(7, id="prompts in chunks, beside answers"),
        pytest.param(1, id="one token a step: who comes later waits"),
    ],
)
def test_answers_are_the_plain_models(
    tiny: PlainModel, page_size: int, max_step_tokens: int
) -> None:
    engine = new_engine(
        tiny, num_pages=640 // page_size, page_size=page_size, max_step_tokens=max_step_tokens
    )
    arrivals = mixed_requests()
    serve(engine, arrivals)
    assert_as_plain(tiny, [request for request, _ in arrivals])


@pytest.mark.gpu
def test_answers_are_the_plain_models_on_a_gpu(
    tiny: PlainModel, isolated_registry: Registry
) -> None:
    arrivals = mixed_requests()
    serve(new_engine(tiny, device="cuda:0", max_step_tokens=20), arrivals)
    assert_as_plain(tiny, [request for request, _ in arrivals])


def test_a_step_mixes_prompt_chunks_and_answers(tiny: PlainModel) -> None:
    engine = new_engine(tiny, max_step_tokens=16)
    first, second = (Request(prompt=prompt(n), max_new_tokens=8) for n in (4, 33))
    engine.submit(first)
    engine.step()
    engine.submit(second)
    sizes = [[len(chunk.tokens) for chunk in engine.step()] for _ in range(4)]
    assert sizes == [[1, 15], [1, 15], [1, 3], [1, 1]]
    assert len(first.answer) == 5
    assert len(second.answer) == 2


def test_logits_are_the_plain_models(tiny: PlainModel) -> None:
    request = Request(prompt=prompt(23), max_new_tokens=5, keep_logits=True)
    serve(new_engine(tiny, max_step_tokens=10), [(request, 0)])
    expected = tiny.forward(torch.tensor(request.tokens))[22:-1]
    torch.testing.assert_close(torch.stack(request.logits), expected, rtol=0, atol=1e-4)


def test_an_answer_stops_before_the_end_token(tiny: PlainModel) -> None:
    whole = tiny.generate(prompt(5), max_new_tokens=12)
    engine = new_engine(tiny)
    engine.end = whole[4]
    request, other = (Request(prompt=prompt(5), max_new_tokens=n) for n in (12, 2))
    serve(engine, [(request, 0), (other, 0)])
    assert request.answer == whole[: whole.index(engine.end)]
    assert other.answer == whole[:2]


def test_freed_pages_are_used_again_and_their_past_is_not(tiny: PlainModel) -> None:
    engine = new_engine(tiny, num_pages=12, page_size=8, max_step_tokens=20)
    owners: dict[int, set[int]] = {page: set() for page in range(12)}
    arrivals = mixed_requests()

    def poison() -> None:
        for layer in engine.model.layers:
            layer.cache[engine.free] = torch.nan
        for number, (request, _) in enumerate(arrivals):
            for page in request.pages:
                owners[page].add(number)

    serve(engine, arrivals, poison)
    assert_as_plain(tiny, [request for request, _ in arrivals])
    assert max(map(len, owners.values())) > 1


def test_the_youngest_gives_its_pages_back_when_none_is_left(tiny: PlainModel) -> None:
    # The prompts fill the cache: 9 pages of 8, and each request grows from 20 to 40 tokens.
    engine = new_engine(tiny, num_pages=9, page_size=8)
    requests = [Request(prompt=prompt(20, seed), max_new_tokens=20) for seed in (1, 2, 3)]
    for request in requests:
        engine.submit(request)
    sizes = [[len(chunk.tokens) for chunk in engine.step()] for _ in range(6)]
    # At 24 tokens all want a fourth page: the older two get those of the youngest.
    assert sizes == [[20] * 3, [1] * 3, [1] * 3, [1] * 3, [1] * 3, [1] * 2]
    serve(engine, [(r, -1) for r in requests])
    assert_as_plain(tiny, requests)


def test_a_draw_depends_on_its_own_request_only(tiny: PlainModel) -> None:
    def sampled(seed: int) -> Request:
        return Request(prompt=prompt(9), max_new_tokens=12, temperature=1.5, top_p=0.9, seed=seed)

    alone, crowded, late, other = (sampled(seed) for seed in (5, 5, 5, 6))
    serve(new_engine(tiny), [(alone, 0)])
    crowd = [*mixed_requests(), (crowded, 0), (late, 4), (other, 4)]
    serve(new_engine(tiny, page_size=4, num_pages=160, max_step_tokens=11), crowd)
    assert crowded.answer == late.answer == alone.answer
    assert other.answer != alone.answer
    assert alone.answer != tiny.generate(alone.prompt, max_new_tokens=12)
    assert_as_plain(tiny, [request for request, _ in crowd[: len(ARRIVALS)]])


def test_draws_are_numbered_by_the_answer(tiny: PlainModel) -> None:
    request = Request(
        prompt=prompt(9), max_new_tokens=8, temperature=1.5, top_p=0.9, seed=5, keep_logits=True
    )
    serve(new_engine(tiny), [(request, 0)])
    expected = sampling.sample(
        torch.stack(request.logits),
        sampling.SamplingParams(temperature=1.5, top_p=0.9),
        seed=torch.full((8,), 5),
        offset=torch.arange(8),
    )
    assert request.answer == expected.tolist()


def test_top_p_reaches_the_draw(tiny: PlainModel) -> None:
    # At a high temperature, only the filter can make the draws the most likely tokens.
    narrow = Request(prompt=prompt(9), max_new_tokens=12, temperature=1.5, top_p=1e-3)
    wide = Request(prompt=prompt(9), max_new_tokens=12, temperature=1.5)
    serve(new_engine(tiny), [(narrow, 0), (wide, 0)])
    assert_as_plain(tiny, [narrow])
    assert wide.answer != narrow.answer


@pytest.mark.parametrize(
    ("length", "max_new_tokens"),
    [
        pytest.param(0, 4, id="nothing to continue"),
        pytest.param(4, 0, id="nothing to add"),
        pytest.param(60, 5, id="one token more than 4 pages of 16 hold"),
    ],
)
def test_requests_that_cannot_run_are_refused(
    tiny: PlainModel, length: int, max_new_tokens: int
) -> None:
    engine = new_engine(tiny, num_pages=4)
    with pytest.raises(ValueError, match="together at most 64, what the context and the pages"):
        engine.submit(Request(prompt=prompt(length), max_new_tokens=max_new_tokens))
    assert engine.queue == []


def test_a_request_longer_than_the_context_is_refused(tiny: PlainModel) -> None:
    with pytest.raises(ValueError, match="together at most 128, what the context"):
        new_engine(tiny).submit(Request(prompt=prompt(120), max_new_tokens=9))


def test_a_step_without_room_is_refused(tiny: PlainModel) -> None:
    with pytest.raises(ValueError, match="max_step_tokens=0: a step needs room"):
        new_engine(tiny, max_step_tokens=0)


def test_logits_that_are_not_finite_stop_the_engine(tiny: PlainModel) -> None:
    engine = new_engine(tiny)
    engine.model.first_norm = engine.model.first_norm * torch.nan
    engine.submit(Request(prompt=[7]))
    with pytest.raises(FloatingPointError, match=r"the logits after \[7\] are not finite"):
        engine.step()


def test_an_idle_engine_computes_nothing(tiny: PlainModel) -> None:
    assert new_engine(tiny).step() == []


@pytest.mark.parametrize(
    ("wrong", "passes"),
    [
        pytest.param(None, True, id="all is right"),
        pytest.param("logit", False, id="one logit is off by a hundredth"),
        pytest.param("token", False, id="one token is the second most likely"),
    ],
)
def test_the_demo_check_finds_what_is_wrong(
    tiny: PlainModel, wrong: str | None, *, passes: bool
) -> None:
    request = Request(prompt=prompt(9), max_new_tokens=6, keep_logits=True)
    serve(new_engine(tiny), [(request, 0)])
    if wrong == "logit":
        request.logits[2][50] += 0.01
    if wrong == "token":  # the last one, after which nothing was computed
        request.answer[-1] = int(request.logits[-1].topk(2).indices[1])
    assert check(tiny, [Job(name="", request=request, arrives=0)], 1e-3) is passes


def test_real_chats(plain: PlainModel, tokenizer: Tokenizer) -> None:
    engine = Engine(Model(plain.config, plain.weights, num_pages=16), end=tokenizer.end)
    questions = ["What is the capital of France?", "Name the primary colors."]
    requests = [Request(prompt=tokenizer.chat(q), max_new_tokens=10) for q in questions]
    serve(engine, [(requests[0], 0), (requests[1], 3)])
    for request in requests:
        expected = plain.generate(request.prompt, max_new_tokens=10, end=tokenizer.end)
        assert request.answer == expected
    assert tokenizer.decode(requests[0].answer) == "The capital of France is Paris."
