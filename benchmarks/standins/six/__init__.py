"""Stands in for six, of which the examples of PyTorch use one name."""
