"""Data set transforms of the starter programs."""
