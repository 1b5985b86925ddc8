"""One compiled model: its configuration, its session, and how calls pass through it."""
