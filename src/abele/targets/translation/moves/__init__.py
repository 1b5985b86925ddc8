"""Operators that only move elements, and those with several results of each element, as loops."""
