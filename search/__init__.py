"""The search engine: what a search is and how many run at once. Knows no model."""
