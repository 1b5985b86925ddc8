"""Reports of compiled models and of pipelines, as files."""
