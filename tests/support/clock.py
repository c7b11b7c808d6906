"""The virtual clock of the benchmarks, for tests."""

from stepsearch.benchmarks.perf.clock import VirtualLoop, run_virtual

__all__ = ["VirtualLoop", "run_virtual"]
