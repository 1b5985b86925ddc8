"""Saving, exporting, loading and resuming wrapped models."""
