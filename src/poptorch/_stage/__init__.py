"""Stages of a wrapped model: what each needs, and which would take equally long."""
