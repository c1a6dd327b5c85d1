"""Learning: advantages, packing, losses, the jitted train step, checkpoints."""
