"""A compiled model: its configuration, its session, and its calls."""
