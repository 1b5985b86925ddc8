"""Weights and random state of a wrapped model, on the host and on the device."""
