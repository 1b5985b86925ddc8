"""The commonly used subset of the SambaFlow API, on the engine ``abele``."""
