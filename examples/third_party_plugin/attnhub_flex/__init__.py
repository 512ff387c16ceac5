"""An AttnHub backend made of PyTorch's FlexAttention."""
