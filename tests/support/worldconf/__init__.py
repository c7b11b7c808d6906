"""A configuration package for tests."""
