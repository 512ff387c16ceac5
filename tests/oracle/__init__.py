"""Attention written as plain float64 loops, and small random problems to try it on.

Nothing here imports the library under test. `attention` and `mla` are the oracles, `problems` makes
the inputs, once as float64 rows for the oracle and once as tensors for the library.
"""
