"""Benchmarks against peers, in one run; results are in results/."""
