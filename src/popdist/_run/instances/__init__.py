"""Starting instances, watching them, and what they print."""
