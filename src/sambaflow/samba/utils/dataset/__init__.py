"""Transforms of the data sets of the starter programs."""
