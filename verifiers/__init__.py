"""Verifiers: who judges the steps."""
