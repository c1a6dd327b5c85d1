"""Tokens in; tokens, behaviour log-probabilities and expert routing out.

`pages`, `scheduler` and `client` are host code without jax; `sample`, `speculate` and `engine` run
on the device; `server` feeds one engine from many rollout workers.
"""
