"""The session: its calls, the model that it has on the device, and its messages."""
