"""Analyses a PyTorch program: tracked objects, variables read and written, and training steps."""
