"""SmolLM2 as a `transformers` model, from the weights already loaded: no hub, no files."""

from __future__ import annotations

from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from weights import ModelConfig

MODULES = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def llama_from(
    config: ModelConfig, weights: dict[str, Tensor], *, attn_implementation: str = "eager"
) -> LlamaForCausalLM:
    """Return the model in evaluation mode, float32, sharing the memory of `weights`.

    `attn_implementation` is any name that transformers accepts, registered ones included.
    """
    llama = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab,
            hidden_size=config.hidden,
            intermediate_size=config.ffn,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.context,
            rms_norm_eps=config.rms_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
            attn_implementation=attn_implementation,
        )
    )
    state = {hf_name(name): weight for name, weight in weights.items()}
    state["lm_head.weight"] = weights["embed"]
    llama.load_state_dict(state, strict=True, assign=True)
    llama.tie_weights()
    return llama.eval()


def hf_name(name: str) -> str:
    """Return what transformers calls the weight that `load_weights` calls `name`."""
    if name == "embed":
        return "model.embed_tokens.weight"
    if name == "final_norm":
        return "model.norm.weight"
    prefix, layer, module = name.split(".")
    return f"model.{prefix}.{layer}.{MODULES[module]}.weight"
