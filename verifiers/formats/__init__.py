"""Input formats of step verifiers, as data; no torch here."""
