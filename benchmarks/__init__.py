"""What the README claims of speed, measured side by side: `python -m benchmarks` (or `make bench`)."""
