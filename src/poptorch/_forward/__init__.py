"""Statements of programs inside forward about placement and memory, and their capture."""
