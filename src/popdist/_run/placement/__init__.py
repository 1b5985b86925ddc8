"""Which instance runs on which host, and which devices it has."""
