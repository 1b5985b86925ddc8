"""Tracing of tensor functions to graphs that write only at their end."""
