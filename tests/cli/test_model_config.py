"""From the configs of real models to problems, with numbers taken from the models' papers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attnhub.attn.kv import DTypes
from attnhub.cli.model_config import _TYPES, Wanted, model_calls
from attnhub.core import discovery
from attnhub.errors import InvalidArgument
from attnhub.rope.problem import ApplyRopeProblem
from attnhub.variant.rope import Llama3Scaling, YarnScaling

CONFIGS = Path(__file__).with_name("configs")


def _config(name: str, **changes: Any) -> dict[str, Any]:
    config = json.loads((CONFIGS / f"{name}.json").read_text()) | changes
    return {key: value for key, value in config.items() if value != "gone"}


def _calls(config: dict[str, Any], dtype: DTypes | None = None) -> list[Wanted]:
    return model_calls(config, dtype=dtype, page_size=16)


def _problems(calls: list[Wanted], op: str, step: str = "prefill") -> list[Any]:
    cls = discovery.default().problem_class(op)
    return [cls.of("h100", **c.facts) for c in calls if c.op == op and c.step == step]


@pytest.mark.parametrize(
    ("name", "heads", "dim", "window", "soft_cap", "ffn"),
    [
        pytest.param("llama_3_1_8b", (32, 8), 128, [None], None, 14336, id="Llama 3.1"),
        pytest.param("smollm2_135m", (9, 3), 64, [None], None, 1536, id="SmolLM2: odd heads"),
        pytest.param("qwen2_7b", (28, 4), 128, [None], None, 18944, id="Qwen2: a group of 7"),
        pytest.param("mistral_7b", (32, 8), 128, [(4095, 0)], None, 14336, id="Mistral: window"),
        pytest.param(
            "gemma_2_27b", (32, 16), 128, [(4095, 0), None], 50.0, 36864, id="Gemma 2: every other"
        ),
    ],
)
def test_dense_models(
    name: str,
    heads: tuple[int, int],
    dim: int,
    window: list[Any],
    soft_cap: float | None,
    ffn: int,
) -> None:
    calls = _calls(_config(name))
    for step in ("decode", "prefill"):
        found = _problems(calls, "attention", step)
        assert [p.variant.window for p in found] == window
        for problem in found:
            assert (problem.num_qo_heads, problem.num_kv_heads) == heads
            assert (problem.head_dim_qk, problem.head_dim_vo) == (dim, dim)
            assert (problem.kv, problem.page_size, problem.q_dtype) == ("paged", 16, "bfloat16")
            assert problem.variant.causal
            assert problem.variant.soft_cap == soft_cap
    op = "gelu_tanh_and_mul" if "gemma" in name else "silu_and_mul"
    assert [p.hidden for p in _problems(calls, f"activation.{op}")] == [ffn]
    [append] = _problems(calls, "page.append_paged_kv")
    assert (append.num_kv_heads, append.head_dim_qk, append.dtype) == (heads[1], dim, "bfloat16")
    assert {c.op for c in calls} >= {
        "cascade.merge_state",
        "norm.fused_add_rmsnorm",
        "page.get_seq_lens",
        "rope.apply_rope_cos_sin",
        "sampling.sample",
    }
    assert not any(c.op == "mla" for c in calls)


def test_scale_is_stated_where_it_is_not_the_usual_one() -> None:
    [window, full] = _problems(_calls(_config("gemma_2_27b")), "attention")
    assert window.variant.scale == full.variant.scale == pytest.approx(1 / 12)
    usual = _calls(_config("gemma_2_27b", query_pre_attn_scalar=128))
    assert [p.variant.scale for p in _problems(usual, "attention")] == [None, None]


def test_latent_model() -> None:
    calls = _calls(_config("deepseek_v3"))
    [mla] = _problems(calls, "mla", "decode")
    assert (mla.num_heads, mla.head_dim_ckv, mla.head_dim_kpe) == (128, 512, 64)
    assert mla.features == {"causal"}
    # Prompts are attended to with the heads written out.
    [dense] = _problems(calls, "attention", "prefill")
    assert (dense.kv, dense.num_kv_heads) == ("ragged", 128)
    assert (dense.head_dim_qk, dense.head_dim_vo) == (192, 128)
    assert _problems(calls, "attention", "decode") == []
    [append] = _problems(calls, "page.append_paged_mla")
    assert (append.dim_ckv, append.dim_kpe, append.page_size) == (512, 64, 16)
    [merge] = _problems(calls, "cascade.merge_state")
    assert merge.head_dim == 128
    # Dense layers, one expert, and the one that every token passes, as large as that.
    assert [p.hidden for p in _problems(calls, "activation.silu_and_mul")] == [18432, 2048]
    assert sorted(p.hidden for p in _problems(calls, "norm.rmsnorm")) == [512, 1536, 7168]


def _ropes(config: dict[str, Any]) -> list[ApplyRopeProblem]:
    return [p for p in _problems(_calls(config), "rope.apply_rope") if p.contiguous]


@pytest.mark.parametrize(
    ("name", "theta", "rotary_dim", "scaling"),
    [
        pytest.param(
            "llama_3_1_8b",
            5e5,
            128,
            Llama3Scaling(
                factor=8, low_freq_factor=1, high_freq_factor=4, original_max_position=8192
            ),
            id="Llama 3.1",
        ),
        pytest.param("smollm2_135m", 1e5, 64, None, id="a theta alone"),
        pytest.param(
            "deepseek_v3",
            1e4,
            64,
            YarnScaling(factor=40, original_max_position=4096, attention_factor=1.0),
            id="YaRN whose two factors cancel, on the rotary part",
        ),
    ],
)
def test_rotations(name: str, theta: float, rotary_dim: int, scaling: Any) -> None:
    [problem] = _ropes(_config(name))
    assert (problem.rope.theta, problem.rope.scaling) == (theta, scaling)
    assert problem.rotary_dim == rotary_dim
    assert problem.interleaved is (name == "deepseek_v3")
    assert (problem.num_kv_heads == 1) is (name == "deepseek_v3")


@pytest.mark.parametrize(
    ("changes", "thetas", "dims"),
    [
        pytest.param(
            {
                "rope_theta": "gone",
                "rope_scaling": "gone",
                "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 7e4},
            },
            [7e4],
            [128],
            id="all in one place, as written today",
        ),
        pytest.param(
            {
                "rope_scaling": None,
                "rope_parameters": {
                    "full_attention": {"rope_type": "default", "rope_theta": 1e6},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                },
            },
            [1e6, 1e4],
            [128, 128],
            id="one for each kind of layer",
        ),
        pytest.param(
            {"rope_scaling": None, "rope_local_base_freq": 1e4},
            [5e5, 1e4],
            [128, 128],
            id="the same as Gemma 3 wrote it first",
        ),
        pytest.param(
            {"rope_scaling": None, "partial_rotary_factor": 0.5}, [5e5], [64], id="half a head"
        ),
        pytest.param({"rope_scaling": None, "rope_theta": "gone"}, [1e4], [128], id="nothing said"),
    ],
)
def test_forms_of_rotations(changes: dict[str, Any], thetas: list[float], dims: list[int]) -> None:
    found = _ropes(_config("llama_3_1_8b", **changes))
    assert [p.rope.theta for p in found] == thetas
    assert [p.rotary_dim for p in found] == dims


def test_a_rotation_of_another_kind_goes_by_its_table() -> None:
    scaling = {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}
    calls = _calls(_config("llama_3_1_8b", rope_scaling=scaling))
    assert _problems(calls, "rope.apply_rope") == []
    assert [p.contiguous for p in _problems(calls, "rope.apply_rope_cos_sin")] == [True, False]


def test_dtypes_of_the_caller() -> None:
    dtype = DTypes("float16", "float8_e4m3fn", "bfloat16")
    calls = _calls(_config("llama_3_1_8b"), dtype)
    [problem] = _problems(calls, "attention")
    assert (problem.q_dtype, problem.kv_dtype, problem.out_dtype) == (
        "float16",
        "float8_e4m3fn",
        "bfloat16",
    )
    [append] = _problems(calls, "page.append_paged_kv")
    assert append.dtype == "float8_e4m3fn"
    assert {p.dtype for p in _problems(calls, "norm.rmsnorm")} == {"bfloat16"}


def test_the_text_part_of_a_larger_model() -> None:
    text = _config("llama_3_1_8b", torch_dtype="gone")
    outer = {"model_type": "llava", "torch_dtype": "float16", "text_config": text}
    [problem] = _problems(_calls(outer), "attention")
    assert (problem.num_qo_heads, problem.q_dtype) == (32, "float16")


def _calls_or_error(config: dict[str, Any]) -> list[Wanted] | str:
    try:
        return _calls(config)
    except InvalidArgument as error:
        return str(error)


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("*.json")))
def test_null_means_what_a_missing_key_does(name: str) -> None:
    """As some tools write every key that they know."""
    for key in {*_config(name), "text_config", "layer_types", "kv_lora_rank", "rope_parameters"}:
        null, missing = _config(name, **{key: None}), _config(name, **{key: "gone"})
        assert _calls_or_error(null) == _calls_or_error(missing), key


@pytest.mark.parametrize("text", ["llama", [{}], 5])
def test_a_text_part_that_is_none(text: object) -> None:
    with pytest.raises(InvalidArgument, match=r"text_config is .*give the model's own"):
        _calls(_config("llama_3_1_8b", text_config=text))


@pytest.mark.parametrize(
    ("layers", "windows"),
    [
        pytest.param(["sliding_attention", "full_attention"] * 2, [(4095, 0), None], id="both"),
        pytest.param(["sliding_attention"] * 4, [(4095, 0)], id="all"),
        pytest.param(["full_attention"] * 4, [None], id="none"),
    ],
)
def test_layers_that_are_listed_decide(layers: list[str], windows: list[Any]) -> None:
    calls = _calls(_config("gemma_2_27b", layer_types=layers))
    assert [p.variant.window for p in _problems(calls, "attention")] == windows


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param(
            {"model_type": "lama"},
            "model_type 'lama' is not known; did you mean 'llama'",
            id="near",
        ),
        pytest.param(
            {"model_type": "falcon", "intermediate_size": "gone", "vocab_size": "gone"},
            "'falcon' is not known; known: .*qwen3_moe; its config lacks intermediate_size, "
            "vocab_size; write its calls as a list of problems",
            id="an unknown type, and what is missing",
        ),
        pytest.param({"model_type": "gone"}, "model_type '' is not known", id="no type"),
        pytest.param(
            {"num_attention_heads": "gone"},
            "model_type 'llama': its config lacks num_attention_heads; give the model's full",
            id="heads",
        ),
        pytest.param(
            {"model_type": "deepseek_v3", "kv_lora_rank": 512},
            "lacks qk_nope_head_dim, qk_rope_head_dim, v_head_dim",
            id="latent",
        ),
        pytest.param({"torch_dtype": "gone"}, "states no dtype; give --dtype", id="dtype"),
        pytest.param({"hidden_act": "relu2"}, "hidden_act is 'relu2'; known are silu", id="act"),
        pytest.param(
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            "the rotation of type 'llama3' lacks low_freq_factor",
            id="half a rotation",
        ),
        pytest.param(
            {"model_type": "gemma2", "sliding_window": 8, "layer_types": ["linear_attention"]},
            "layer_types has linear_attention; known are sliding_attention, full_attention",
            id="a layer of another kind",
        ),
    ],
)
def test_what_is_missing_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        _calls(_config("llama_3_1_8b", **changes))


@pytest.mark.parametrize("kind", sorted(_TYPES.keys() - {"kimi_k2"}))
def test_what_transformers_writes_today_is_read(kind: str) -> None:
    """Its defaults of each type; it has no config of its own for Kimi K2, which is DeepSeek's."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.AutoConfig.for_model(kind, dtype="bfloat16").to_dict()
    calls = _calls(config)
    for call in calls:
        discovery.default().problem_class(call.op).of("h100", **call.facts)
    heads = {p.num_qo_heads for p in _problems(calls, "attention")}
    assert heads == {config["num_attention_heads"]}
    assert any(c.op == "mla" for c in calls) is kind.startswith("deepseek")
