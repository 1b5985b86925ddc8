"""Tracing: a function of tensors becomes a graph that writes only at its end."""
