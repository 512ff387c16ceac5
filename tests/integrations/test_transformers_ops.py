"""A model's norms, rotations and activations by AttnHub: what is replaced, and the same tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: pip install transformers")

import transformers

import attnhub
from attnhub.integrations.transformers import register, use_ops
from attnhub.testing.triton_interpreter import interpreting
from tests.integrations.conftest import plain, tokenizer
from tests.integrations.tiny import MODELS

if TYPE_CHECKING:
    from plain import PlainModel
    from tokenizer import Tokenizer

__all__ = ["plain", "tokenizer"]

TOKENS = torch.tensor([[5, 6, 7, 8, 9], [9, 8, 7, 6, 5]])


def tiny(name: str, **more: Any) -> Any:
    cls, config, fields = MODELS[name]
    torch.manual_seed(0)
    made = getattr(transformers, config)(**{**fields, **more})
    return getattr(transformers, cls)(made).eval()


def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ops that run from now on."""
    from attnhub.core.functional import FunctionalOp

    seen: list[str] = []
    run = FunctionalOp.run

    def record(self: FunctionalOp, *args: Any) -> None:
        seen.append(self.name)
        run(self, *args)

    monkeypatch.setattr(FunctionalOp, "run", record)
    return seen


@pytest.mark.parametrize(
    ("name", "norms", "activation"),
    [
        ("llama", 5, "activation.silu_and_mul"),
        ("mistral", 5, "activation.silu_and_mul"),
        ("gemma2", 9, "activation.gelu_tanh_and_mul"),
    ],
)
def test_logits_stay(
    name: str, norms: int, activation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(name)
    with torch.no_grad():
        expected = model(TOKENS).logits
    done = use_ops(model)
    try:
        assert (done.norms, done.activations, len(done.rotations)) == (norms, 2, 1)
        seen = calls(monkeypatch)
        with torch.no_grad():
            actual = model(TOKENS).logits
        assert set(seen) == {"norm.rmsnorm", "rope.apply_rope_cos_sin", activation}
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    finally:
        done.restore()
    seen.clear()
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS).logits, expected, rtol=1e-5, atol=1e-6)
    assert not seen


def test_projections_share_one_matrix_and_the_state_dict_stays() -> None:
    model = tiny("llama", mlp_bias=True)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    done = use_ops(model)
    try:
        after = model.state_dict()
        assert after.keys() == before.keys()
        assert all(torch.equal(after[name], x) for name, x in before.items())
        mlp = model.model.layers[0].mlp
        ends = mlp.gate_proj.weight.data_ptr() + mlp.gate_proj.weight.nbytes
        assert mlp.up_proj.weight.data_ptr() == ends
    finally:
        done.restore()


def test_a_model_that_is_converted_is_joined_anew() -> None:
    model = tiny("llama")
    done = use_ops(model)
    try:
        model.double().float()  # as a move to another device, it replaces what parameters hold
        model.model.layers[0].mlp.up_proj.weight.data.zero_()
        with torch.no_grad():
            assert torch.equal(model.model.layers[0].mlp(torch.ones(1, 64)), torch.zeros(1, 64))
    finally:
        done.restore()


def test_norms_kept_in_float32_go_on_as_they_were() -> None:
    model = tiny("llama").bfloat16()
    norm = model.model.norm.float()
    x = torch.randn(3, 64).bfloat16()
    with torch.no_grad():
        expected = norm(x)
        done = use_ops(model)
        try:
            assert done.norms == 5
            assert torch.equal(norm(x), expected)
        finally:
            done.restore()


def test_gradients_reach_the_projections() -> None:
    model = tiny("llama")
    mlp = model.model.layers[0].mlp
    done = use_ops(model)
    try:
        mlp(torch.randn(2, 64)).sum().backward()
        assert all(x.weight.grad is not None for x in (mlp.gate_proj, mlp.up_proj, mlp.down_proj))
    finally:
        done.restore()


def test_what_agrees_with_no_op_is_left_alone() -> None:
    model = tiny("llama", hidden_act="relu")
    with torch.no_grad():
        expected = model(TOKENS).logits
    done = use_ops(model)
    try:
        assert (done.norms, done.activations) == (5, 0)
        with torch.no_grad():
            torch.testing.assert_close(model(TOKENS).logits, expected, rtol=1e-4, atol=1e-5)
    finally:
        done.restore()


def test_the_real_model_says_the_same(plain: PlainModel, tokenizer: Tokenizer) -> None:
    from tests.model.hf import llama_from

    register()
    model = llama_from(plain.config, plain.weights)
    prompt = tokenizer.chat("What is the capital of France?")
    ask = {"max_new_tokens": 12, "do_sample": False}
    expected = model.generate(torch.tensor([prompt]), **ask)
    done = use_ops(model)
    try:
        assert (done.norms, done.activations) == (61, 30)
        model.set_attn_implementation("attnhub")
        assert torch.equal(model.generate(torch.tensor([prompt]), **ask), expected)
    finally:
        done.restore()


@pytest.fixture(params=["interpreter", pytest.param("cuda:0", marks=pytest.mark.gpu(sm=80))])
def triton(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """A device where everything is computed by Triton: the CPU by the interpreter, or a GPU."""
    manifest = pytest.importorskip("attnhub_triton_misc.manifest")
    if request.param != "interpreter":
        with attnhub.use("triton_misc"):
            yield torch.device(request.param)
        return
    backends = manifest.attnhub_backends()
    with interpreting("triton_misc", backends), attnhub.use("triton_misc"):
        yield torch.device("cpu")


def test_a_model_all_by_triton_says_what_eager_says(
    triton: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    register()
    model = tiny("llama", attn_implementation="eager").to(triton)
    prompt = TOKENS.to(triton)
    ask = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
    expected = model.generate(prompt, **ask)
    done = use_ops(model)
    try:
        model.set_attn_implementation("attnhub")
        seen = calls(monkeypatch)
        assert torch.equal(model.generate(prompt, **ask), expected)
    finally:
        done.restore()
    ops = {"norm.rmsnorm", "rope.apply_rope_cos_sin", "activation.silu_and_mul", "attention"}
    assert set(seen) == ops
