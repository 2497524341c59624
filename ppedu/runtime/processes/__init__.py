"""Processes: started, watched, interrupted and ended."""
