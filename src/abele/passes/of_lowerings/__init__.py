"""Passes that the lowering of a program applies after the common ones; they may change rounding."""
