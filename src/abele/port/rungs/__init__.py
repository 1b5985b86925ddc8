"""Steps of the ladder that run the port in a process of its own and look at its models."""
