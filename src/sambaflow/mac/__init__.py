"""Hints to the vendor's compiler, accepted without effect."""
