"""A rank's own work: its list of operations, its stages, its messages and its clocks."""
