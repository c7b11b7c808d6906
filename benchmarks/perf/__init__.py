"""Performance measurements: each is a script that prints a table of ratios in one run."""
