"""From a command line to the settings of a run."""
