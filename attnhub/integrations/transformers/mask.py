"""The mask function of "attnhub": which keys every layer of one forward sees.

A mask has one of four forms, and only the last costs memory that grows with len * kv_len:

    None                          all keys, up to what the module says: causal, window
    ``[batch, kv_len]``           the same without padding; True is a token
    ``[batch, 1, 1, w, kv_len]``  the same in a window of w tokens; kv_len is 0 if none is padded
    ``[batch, 1, len, kv_len]``   exactly these: packed sequences, chunks, static caches, overlays

As in transformers' own eager attention, the mask decides: the window of the third form holds
whatever the module says, which may be nothing. Its five dimensions mark it as ours: no caller has a
mask of five, and unlike an attribute they outlive copies to other devices and compiled graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    sdpa_mask,
)

from attnhub.core import check


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Tensor] = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    config: Any = None,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> Tensor | None:
    """Return a mask in one of the forms above.

    The signature is that of ``transformers.masking_utils.sdpa_mask``, which builds the exact masks.
    Outside torch.compile the values of a padding mask are read (one synchronisation a forward).

    Raises:
        InvalidArgument: the caller's mask has neither two nor four dimensions.
    """
    if attention_mask is not None and attention_mask.dim() != 2:
        _own(attention_mask)
        return attention_mask  # generate() made it ahead of a static cache's forward
    # transformers allows to skip a mask that is plain: causal or not, with a window or chunks.
    plain = allow_is_causal_skip or allow_is_bidirectional_skip
    chunks = local_size is not None and local_size == getattr(config, "attention_chunk_size", None)
    # The last query sees the last key; not so in a static cache that has room left.
    aligned = not isinstance(q_offset, Tensor) and q_offset + q_length == kv_offset + kv_length
    all_keys = mask_function is bidirectional_mask_function
    if not plain or chunks or not (aligned or all_keys):
        return sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            allow_is_causal_skip=False,
            allow_is_bidirectional_skip=False,
            device=device,
            **kwargs,
        )
    tokens = _tokens(attention_mask, kv_length, kv_offset)
    if local_size is None:
        return tokens
    # `local_size` counts the query itself in a causal window, not in one that is open both ways.
    window = local_size if allow_is_causal_skip else local_size + 1
    if tokens is None:
        return torch.empty(batch_size, 1, 1, window, 0, dtype=torch.bool, device=device)
    return tokens[:, None, None, None].expand(-1, 1, 1, window, -1)


def _own(mask: Tensor) -> None:
    """Require the third form, which only this module makes."""
    if mask.dim() != 5 or mask.shape[1:3] != (1, 1):
        check.fail(
            f"attention_mask has shape {list(mask.shape)}; give [batch, kv_len] where True is a "
            "token, or bool [batch, 1, len, kv_len] where True is a key that the query sees"
        )


def _tokens(mask: Tensor | None, kv_length: int, kv_offset: int) -> Tensor | None:
    """Which keys are tokens, ``[batch, kv_len]``; None if all are."""
    if mask is None:
        return None
    missing = kv_offset + kv_length - mask.shape[1]
    if missing > 0:
        mask = torch.nn.functional.pad(mask, (0, missing))
    mask = mask[:, kv_offset : kv_offset + kv_length]
    return None if not torch.compiler.is_compiling() and mask.all() else mask


def exact_keys(mask: Tensor) -> Tensor:
    """``[batch, len, kv_len]`` from a mask of the last form, or from the caller's own.

    Raises:
        InvalidArgument: a float mask, or one that differs between heads.
    """
    if mask.dtype != torch.bool:
        check.fail(
            f"attention_mask has 4 dimensions and dtype {check.dtype_name(mask.dtype)}, needs bool "
            "(True where a key is seen): a bias on scores is not served"
        )
    check.shape(mask, "attention_mask", ("batch", 1, "len", "kv_len"))
    return mask[:, 0]


def shared_keys(
    mask: Tensor | None, window: int | None, query: Tensor, key: Tensor
) -> tuple[Tensor | None, int | None]:
    """Padding as a view ``[batch, len, kv_len]``, and the window, from the other forms.

    Raises:
        InvalidArgument: the mask is not for these keys, or of no form known here.
    """
    if mask is None:
        return None, window
    if mask.dim() != 2:
        _own(mask)
        window = mask.shape[3]
        if not mask.shape[4]:
            return None, window
        mask = mask[:, 0, 0, 0]
    check.shape(mask, "attention_mask", (query.shape[0], key.shape[2]))
    return mask[:, None].expand(-1, query.shape[2], -1), window
