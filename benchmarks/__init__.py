"""Measuring: problems, grading, metrics and performance."""
