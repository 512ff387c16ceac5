"""An AttnHub backend in CUDA for ``activation.silu_and_mul``: an example to copy."""
