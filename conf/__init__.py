"""Configuration: Hydra groups as YAML files, and `build.py`, which turns them into objects."""
