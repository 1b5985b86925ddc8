"""Analyses a program: objects behind names, names read and written, and training steps."""
