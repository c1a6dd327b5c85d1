"""Reward parts: pure functions of a finished trajectory; the learner weighs them later."""
