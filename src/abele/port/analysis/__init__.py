"""Analyses a program: what its names stand for, what statements read and write, how it trains."""
