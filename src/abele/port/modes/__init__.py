"""Ports programs with a switch of compute modes: they get one more, and keep the others."""
