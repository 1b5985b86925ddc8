"""Parts of `popdist.checkpoint`: they need torch, which importing `popdist` does not load."""
