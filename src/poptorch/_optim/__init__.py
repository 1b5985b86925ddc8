"""From optimizer objects to update rules, and an optimizer's state on both sides."""
