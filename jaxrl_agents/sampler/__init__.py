"""Tokens in; tokens, behaviour log-probabilities and expert routing out.

`pages`, `scheduler`, `slices` and `server` are host code without jax; `engine`, `steps`, `draw` and
`drafts` run on the device; `server` feeds engines from many rollout workers.
"""
