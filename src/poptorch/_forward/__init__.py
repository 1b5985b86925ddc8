"""Placement and memory annotations that programs use inside forward, and their capture."""
