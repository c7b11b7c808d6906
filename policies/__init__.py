"""Policies: who proposes the next steps."""
