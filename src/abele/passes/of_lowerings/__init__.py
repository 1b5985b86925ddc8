"""Lowering-specific graph passes, applied after the common passes; may change rounding."""
