"""Everything the manifest declares, against the reference; all else must be refused."""

from attnhub.testing.conformance import suite
from attnhub.testing.triton_interpreter import interpreted
from attnhub_triton_misc import manifest

BACKENDS = manifest.attnhub_backends()

test_conformance = suite("triton_misc")
test_interpreted = interpreted("triton_misc", [b for b in BACKENDS if b.op != "attention"])
# Each call of it takes a second or more: pairs of facts are left to a GPU.
test_interpreted_attention = interpreted("triton_misc", BACKENDS, op="attention", pairs=0)
