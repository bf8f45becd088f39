"""Benchmarks: figures with ratios from one run, not timed tests."""
