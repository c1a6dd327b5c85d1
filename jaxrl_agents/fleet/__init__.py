"""The services of a run beside one another: rollouts are played while the learner learns."""
