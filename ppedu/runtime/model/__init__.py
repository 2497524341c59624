"""A model cut into stages: where, how evenly, and whether the pieces fit one another."""
