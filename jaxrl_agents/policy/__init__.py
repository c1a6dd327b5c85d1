"""The model: pure functions of (params, tokens, cache), knowing no reinforcement learning."""
