"""Run from the repository, never imported by the package: evidence, its results, and benchmarks."""
