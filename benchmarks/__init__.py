"""Benchmarks: lakelens beside a peer and beside the physical limit, on the same data, in one run."""
