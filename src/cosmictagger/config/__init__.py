"""The configuration of a run, with the keys of CosmicTagger."""
