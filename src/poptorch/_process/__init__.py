"""What concerns the whole process: environment variables, devices, instances, trace files."""
