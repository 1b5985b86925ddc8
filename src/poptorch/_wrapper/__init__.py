"""The wrapped model: capture, compilation, execution and inspection."""
