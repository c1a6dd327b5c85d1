"""Context-1: an agent that searches a corpus and edits its own context."""
