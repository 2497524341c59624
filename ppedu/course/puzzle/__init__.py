"""A puzzle: a schedule built operation by operation."""
