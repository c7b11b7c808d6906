"""Configurations of the examples, for Hydra's search path."""
