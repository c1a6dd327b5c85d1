"""Documents: reading, cutting into chunks, searching, and facts about their content."""
