"""Equations as people write them in a step: found, read, calculated and judged; no model here."""
