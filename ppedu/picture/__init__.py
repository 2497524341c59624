"""Timelines as pictures, on paper and live: one scene, two painters."""
