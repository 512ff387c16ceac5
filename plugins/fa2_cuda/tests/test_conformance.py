"""Everything the manifest declares, against the reference; all else must be refused."""

from attnhub.testing.conformance import suite

test_conformance = suite("fa2_cuda")
