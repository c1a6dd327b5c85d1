"""Candidates that are worse past the gate: sessions until they are rolled back, and who met them.

Records go through the log's join, the trial and the deployment as in a server; sessions are drawn,
not sampled, and every user says whether they liked the reply.
"""

import pathlib
import random
import statistics
import tempfile

import numpy as np
from realtime.published import publish

from jaxrl_agents.realtime import calls as calls_lib
from jaxrl_agents.realtime import feedback
from jaxrl_agents.realtime.arms import CANARY, user_hash
from jaxrl_agents.realtime.behaviour import FIGURES
from jaxrl_agents.realtime.calls import LoggedCall
from jaxrl_agents.realtime.deployment import Deployer
from jaxrl_agents.realtime.feedback import Event, Join, Kind
from jaxrl_agents.realtime.trial import Trial
from jaxrl_agents.types import Generation

USERS, MOST_SESSIONS, AT_ONCE = 3_000, 8_000, 20
GOOD, BAD = 0.6, 0.4
KINDS = {"persist": Kind(60.0)}
REPLY = Generation(
  np.zeros(1, np.int32), np.zeros(1, np.float32), np.zeros(1, np.int32), None, "stop"
)


def measured(runs: int) -> dict[str, float]:
  """Figures over so many candidates, and over as many that are as good as the stable policy."""
  bad = [_one(BAD, seed) for seed in range(runs)]
  same = [_one(GOOD, seed, most=3_000) for seed in range(runs)]
  caught = [n for n, _, rolled_back in bad if rolled_back]
  exposed = [share for _, share, _ in bad]
  return {
    "rollback_caught_share": len(caught) / runs,
    "rollback_canary_sessions_p50": float(np.quantile(caught, 0.5)),
    "rollback_canary_sessions_p90": float(np.quantile(caught, 0.9)),
    "rollback_users_exposed_mean": statistics.mean(exposed),
    "rollback_users_exposed_most": max(exposed),
    "rollback_false_share": statistics.mean(float(each[2]) for each in same),
  }


def _one(quality: float, seed: int, most: int = MOST_SESSIONS) -> tuple[int, float, bool]:
  """(canary sessions, share of users that came who met it, whether it was rolled back)."""
  rng = random.Random(seed)
  with tempfile.TemporaryDirectory() as folder:
    for version in (0, 1):
      publish(pathlib.Path(folder), version)
    deployer, join = Deployer(folder), Join(KINDS)
    deployer.propose(1)
    deployer.advance()
    trial = Trial(deployer, join)
    users = [user_hash(f"{seed} {i}", b"key") for i in range(USERS)]
    now_s = 0.0
    for start in range(0, most, AT_ONCE):
      now_s += 100.0
      for i in range(start, start + AT_ONCE):
        _session(join, deployer, rng.choice(users), f"s{i}", now_s, rng, quality)
      trial.step(now_s + 61.0)
      if trial.rolled_back or not deployer.now.trial:
        break
    came = {joined.call.user for joined in join.calls.values()}
    return trial.compared.canary.n, len(trial.exposed) / len(came), trial.rolled_back


def _session(join, deployer, user, name, now_s, rng, quality) -> None:
  arm = deployer.now.arm(user)
  call = LoggedCall(
    id=name,
    session=name,
    user=user,
    parent="",
    arm=arm,
    digest=deployer.now.served(arm).digest,
    time_s=now_s,
    latency_s=0.1,
    tools="",
    prompt=REPLY.tokens,
    generation=REPLY,
    behaviour=dict.fromkeys(FIGURES, 0.0),
    features={},
  )
  join.apply(calls_lib.to_record(call))
  join.apply({"kind": feedback.DELIVERED, "calls": [name]})
  liked = float(rng.random() < (quality if arm == CANARY else GOOD))
  join.apply(Event(name, name, "", user, "persist", liked, now_s + 1).record())
