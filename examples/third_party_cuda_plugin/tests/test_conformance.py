"""Everything the manifest declares, on a GPU against the reference; all else must be refused."""

from attnhub.testing.conformance import suite

test_conformance = suite("swiglu")
