"""What each notebook asks, a module a notebook."""
