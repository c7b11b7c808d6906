"""Training step verifiers, and finding out what they learned."""
