"""Search tasks made from a corpus by rule: facts, clues, chains of questions, checks, files."""
