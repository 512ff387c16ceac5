"""For authors of backends: generators, comparison, conformance, benchmark protocol."""
