"""Sampling: draws with filters, the filters themselves, and speculative verification.

Rules that every function here keeps:

* **Rows.** Probabilities are float32 ``[batch, vocab]`` and need not sum to 1: a row is read in
  proportion to its own sum. A row that cannot be sampled (NaN, inf, negative, all zero) gives the
  token -1 and harms no neighbour.
* **Filters** compare with a boundary value and keep every token that equals it, so a result never
  depends on the order of tokens. ``top_k`` keeps the k largest, ``top_p`` the smallest set of top
  tokens that holds that share of the mass, ``min_p`` what is at least that share of the largest.
* **Parameters** are a Python number for the whole batch or a tensor ``[batch]`` (float32; int32 for
  ``top_k``). Python numbers and host tensors must lie in range. Device tensors are not looked at:
  ``top_p`` and ``min_p`` count as clamped to [0, 1] and ``top_k`` to [1, vocab]; a row with a
  temperature that is negative, infinite or NaN cannot be sampled. Under ``torch.compile`` numbers
  may change from call to call without compiling anew.
* **Random numbers** come from one of two places. ``seed=`` and ``offset=`` are int64 ``[batch]``
  tensors on the rows' device: a request's draw depends on its own row, seed and offset only, equal
  ones reproduce it, and different ones are independent. Draws of one token, verification of chains
  and verification of trees never share a random number, so drafts may be drawn and verified at one
  seed and offset; several drafts of one request need an offset each, as do consecutive steps.
  Without them each call draws fresh seeds, on the device, from ``generator=`` (a
  ``torch.Generator`` of that device; default: the device's own), by one small kernel and without
  any copy from or to the host. That advances the generator: two calls differ, and so do two
  replays of a CUDA graph, with which a generator other than the default must be registered
  (``graph.register_generator_state``). Code under ``torch.compile`` cannot name a generator.
  Equal seeds reproduce within a backend, not across backends.
"""

from attnhub.sampling.draw import (
    min_p_sample,
    sample,
    sample_from_logits,
    sample_from_probs,
    top_k_sample,
    top_k_top_p_sample_from_logits,
    top_k_top_p_sample_from_probs,
    top_p_sample,
)
from attnhub.sampling.parameters import SamplingParams
from attnhub.sampling.speculative import chain_speculative_sampling, tree_speculative_sampling
from attnhub.sampling.transform import (
    softmax,
    top_k,
    top_k_mask_logits,
    top_k_renorm,
    top_p_renorm,
)

__all__ = [
    "SamplingParams",
    "chain_speculative_sampling",
    "min_p_sample",
    "sample",
    "sample_from_logits",
    "sample_from_probs",
    "softmax",
    "top_k",
    "top_k_mask_logits",
    "top_k_renorm",
    "top_k_sample",
    "top_k_top_p_sample_from_logits",
    "top_k_top_p_sample_from_probs",
    "top_p_renorm",
    "top_p_sample",
    "tree_speculative_sampling",
]
