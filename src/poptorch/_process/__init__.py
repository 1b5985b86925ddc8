"""The process as a whole: environment variables, devices, instances, trace files."""
