"""The server between real worker processes and a tiny engine."""

import time
from concurrent.futures import Future, ThreadPoolExecutor

import jax
import numpy as np
import pytest

from jaxrl_agents import chat, record_log
from jaxrl_agents.fleet.replies import Replies
from jaxrl_agents.fleet.schedule import Recorded, Schedule
from jaxrl_agents.harness.rollout import Sampling
from jaxrl_agents.harness.worker_pool import WorkerPool
from jaxrl_agents.harness.worker_process import Job, WorkerSpec
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.sampler.engine import Engine
from jaxrl_agents.sampler.server import RolloutError, RolloutServer
from jaxrl_agents.types import SamplingLimits, Task

CFG = PolicyConfig(
  vocab_size=chat.load("base").vocab_size,
  embed_dim=8,
  num_layers=1,
  num_heads=1,
  num_kv_heads=1,
  head_dim=8,
  num_experts=2,
  experts_per_token=1,
  expert_ffw_dim=8,
)


def make_engine(seed, version):
  engine = Engine(
    CFG,
    params_lib.init(CFG, jax.random.key(seed)),
    version=version,
    slots=8,
    page_tokens=8,
    num_pages=100,
    max_context_tokens=128,
    prefill_tokens=32,
    draft_tokens=0,
    prefill_rows=1,
  )
  engine.warm_up()
  return engine


@pytest.fixture(scope="module")
def engine():
  return make_engine(0, 0)


@pytest.fixture(scope="module")
def frozen():
  return make_engine(7, 70)


@pytest.fixture(scope="module")
def pool():
  with WorkerPool(WorkerSpec("tests.sampler.counting:build"), 2, groups_per_worker=4) as pool:
    yield pool


def job(name, rollouts=2, **facts):
  return Job(name, Task(name, "counting", f"count {name}", facts), rollouts, Sampling())


def bits(groups):
  """All that was sampled, by group and rollout."""
  return {
    g.id: [
      (s.tokens.tobytes(), s.logprobs.tobytes(), s.routing.tobytes())
      for t in g.trajectories
      for s in t.segments
    ]
    for g in groups
  }


@pytest.mark.slow
def test_every_job_comes_back_as_one_group_of_two_turn_episodes(engine, pool):
  server = RolloutServer(engine, pool, max_rollouts=3)
  groups = list(server.collect(job(f"a{i}") for i in range(5)))
  assert sorted(g.task.id for g in groups) == [f"a{i}" for i in range(5)]
  for group in groups:
    assert len(group.trajectories) == 2
    for trajectory in group.trajectories:
      assert not trajectory.error and trajectory.metrics["turns"] == 2
      assert 2 <= trajectory.rewards["tokens"] <= 12
  assert pool.unfinished == 0 and engine.num_unfinished == 0


def test_a_deterministic_run_repeats_bit_by_bit_and_keeps_the_order(engine, pool):
  def run():
    engine.set_params(params_lib.init(CFG, jax.random.key(1)), engine.version)  # an empty cache
    server = RolloutServer(engine, pool, max_rollouts=3, deterministic=True)  # 1.5 groups
    return list(server.collect(job(f"b{i}") for i in range(4)))

  first, second = run(), run()
  assert [g.task.id for g in first] == [g.task.id for g in second]
  assert bits(first) == bits(second) and set(bits(first)) == {f"b{i}" for i in range(4)}
  one, other = first[0].trajectories
  assert not np.array_equal(one.segments[0].tokens, other.segments[0].tokens)


def test_a_group_whose_worker_died_is_played_again(engine, pool, tmp_path):
  server = RolloutServer(engine, pool, max_rollouts=4)
  jobs = [job("c0"), job("c1", 1, dies=1, folder=str(tmp_path)), job("c2")]
  groups = list(server.collect(jobs))
  assert sorted(g.task.id for g in groups) == ["c0", "c1", "c2"]
  assert not any(t.error for g in groups for t in g.trajectories)


def test_a_rollout_whose_worker_died_goes_on_with_the_replies_that_it_had(engine, pool, tmp_path):
  server = RolloutServer(engine, pool, max_rollouts=4)
  again = []
  server.played_again = lambda *what: again.append(what)
  (tmp_path / "marks").mkdir()
  with Replies(tmp_path / "replies.log", 0, lambda group: True) as replies:
    server.replies = replies
    facts = {"dies": 1, "late": True, "folder": str(tmp_path / "marks")}
    (group,) = server.collect([job("l0", 1, **facts)])
    assert replies.take_found() == 1
  ((name, samples, why),) = again
  assert (name, samples) == ("l0", ()) and "exit status 3" in why
  (plain,) = RolloutServer(engine, pool, max_rollouts=4).collect([job("l0", 1)])
  assert bits([group]) == bits([plain])  # as if its worker had lived


def test_a_task_that_kills_every_worker_is_set_aside_and_the_others_are_played(
  engine, pool, tmp_path, capfd
):
  server = RolloutServer(engine, pool, max_rollouts=1, max_retries=2)
  jobs = [job("e0"), job("d0", 2, dies=9, folder=str(tmp_path)), job("e1")]
  groups = {group.task.id: group for group in server.collect(jobs)}
  assert sorted(groups) == ["d0", "e0", "e1"]
  errors = [trajectory.error for trajectory in groups["d0"].trajectories]
  assert len(errors) == 2 and "its worker died 3 times" in errors[0] and "status 3" in errors[0]
  assert not any(t.error for name in ("e0", "e1") for t in groups[name].trajectories)
  assert "task d0 was set aside" in capfd.readouterr().err
  assert pool.unfinished == 0 and engine.num_unfinished == 0


def test_groups_beside_a_task_that_kills_its_workers_are_not_set_aside_with_it(
  engine, pool, tmp_path
):
  server = RolloutServer(engine, pool, max_rollouts=16)
  beside = [job(f"h{i}", 2) for i in range(6)]
  jobs = [*beside[:3], job("k0", 2, dies=9, folder=str(tmp_path)), *beside[3:]]
  groups = {group.task.id: group for group in server.collect(jobs)}
  assert len(groups) == 7
  for name, group in groups.items():
    assert all(bool(t.error) == (name == "k0") for t in group.trajectories), name


def test_no_progress_ends_with_the_state_of_everything(engine):
  class SilentPool:
    def submit(self, job):
      pass

    def describe(self):
      return "one worker"

    def poll(self, timeout_s):
      return []

  server = RolloutServer(engine, SilentPool(), max_rollouts=1, stall_s=0.01)
  with pytest.raises(
    RolloutError, match="2 rollouts in play.*'e0'.*pool: one worker; engine: version"
  ):
    list(server.collect([job("e0")]))
  time.sleep(2.0)  # in which the caller does other things: it counts for nothing
  began = time.monotonic()
  with pytest.raises(RolloutError, match="2 rollouts in play"):
    list(server.collect([]))
  assert time.monotonic() - began < 1.5


class Talking:
  """A pool whose workers say what is given, a list for each time that they are asked."""

  def __init__(self, said):
    self.said, self.sent = said, []

  def submit(self, job):
    pass

  def poll(self, timeout_s):
    return self.said.pop(0) if self.said else []

  def send(self, worker, message):
    self.sent.append((worker, *message[:2]))

  def describe(self):
    return "two workers"


def ask(number, seed):
  """A worker's request, which takes several steps."""
  limits = SamplingLimits(max_new_tokens=50, stop_tokens=(), seed=seed)
  return "generate", number, np.arange(4, dtype=np.int32), limits, "f0"


def test_a_request_that_nobody_waits_for_any_more_leaves_the_engine(engine):
  """Whether it waits for the engine or is in it; another worker's of the same number stays."""
  said = [
    [(0, ask(0, 1)), (1, ask(0, 2))],
    [(0, ask(1, 3)), (0, ("cancel", 1)), (0, ("cancel", 0)), (0, ("cancel", 9))],
  ]
  pool, jobs = Talking(said), iter([job("f0")])
  server = RolloutServer(engine, pool, max_rollouts=2)
  server.round(lambda: next(jobs, None))
  assert engine.num_unfinished == 2
  server.round(lambda: None)
  assert engine.num_unfinished == 1
  while not pool.sent:
    server.round(lambda: None)
  assert pool.sent == [(1, "generation", 0)] and engine.num_unfinished == 0


@pytest.mark.parametrize("when", ["before it is submitted", "before it was canceled"])
def test_a_replay_submits_and_cancels_as_recorded_whenever_its_workers_stop_waiting(
  engine, tmp_path, when
):
  both, dropped = [(0, ask(0, 1)), (1, ask(0, 2))], [(0, ("cancel", 0))]

  def calls(name, said, recorded=None):
    """The calls of each step, until the second request is answered."""
    (tmp_path / name).mkdir()
    with record_log.Log(tmp_path / name / "log") as log:
      log.append({"is": "began", "options": {}, "start": ""})
      pool, jobs = Talking(said), iter([job("f0")])
      server = RolloutServer(engine, pool, max_rollouts=2, stall_s=20)
      server.schedule = Schedule(log, Recorded(recorded) if recorded else None)
      server.schedule.draft_costs({})
      while not pool.sent:
        server.round(lambda: next(jobs, None))
      assert pool.sent == [(1, "generation", 0)] and engine.num_unfinished == 0
      assert not server._held
    steps = [each["calls"] for each in record_log.scan(tmp_path / name / "log") if "calls" in each]
    return [each for each in steps if each]

  recorded = calls("recorded", [both, [], dropped])
  assert [[kind for kind, *_ in step] for step in recorded] == [["submit"] * 2, ["cancel"]]
  said = {
    "before it is submitted": [both[:1], dropped, both[1:]],
    "before it was canceled": [both, dropped],
  }[when]
  assert calls("replay", said, tmp_path / "recorded" / "log") == recorded


def test_a_request_is_answered_by_the_policy_that_it_names(engine, frozen, pool):
  server = RolloutServer(engine, pool, max_rollouts=4, others={"frozen": frozen})
  group = next(iter(server.collect([job("f0", other="frozen")])))
  for trajectory in group.trajectories:
    observation = trajectory.log[2].content  # asked, replied, told
    assert [part.partition(":")[0] for part in observation.split()] == ["v70"] * 3
    sampled = np.concatenate([s.versions[s.loss_mask] for s in trajectory.segments])
    assert set(sampled) == {0}  # nothing of the frozen policy is in what is trained


class Slow:
  """An engine whose steps take a while, and which knows when they did."""

  def __init__(self, engine, steps):
    self._engine, self._steps = engine, steps

  def __getattr__(self, name):
    return getattr(self._engine, name)

  def step(self):
    began = time.monotonic()
    time.sleep(0.05)
    ended = self._engine.step()
    self._steps.append((began, time.monotonic()))
    return ended


@pytest.mark.slow
def test_engines_step_at_the_same_time_and_sample_the_same_as_one_after_another(
  engine, frozen, pool
):
  jobs = [job("both 0", other="frozen", tokens=30), job("both 1", tokens=60)]
  played = []
  with ThreadPoolExecutor(1) as threads:
    for in_thread in (None, threads.submit):
      own, others = [], []
      server = RolloutServer(
        Slow(engine, own),
        pool,
        max_rollouts=8,
        deterministic=True,
        others={"frozen": Slow(frozen, others)},
        in_thread=in_thread,
      )
      played.append(bits(server.collect(jobs)))
      together = [a for a in own for b in others if a[0] < b[1] and b[0] < a[1]]
      assert own and others and bool(together) == bool(in_thread)
  assert played[0] == played[1]


def test_a_step_in_a_thread_that_does_not_end_names_its_policy(engine, frozen):
  never = Future()
  limits = SamplingLimits(max_new_tokens=4, stop_tokens=())
  with WorkerPool(WorkerSpec("tests.sampler.counting:build"), 1, groups_per_worker=4) as pool:
    server = RolloutServer(
      engine,
      pool,
      max_rollouts=4,
      stall_s=0.5,
      others={"frozen": frozen},
      in_thread=lambda step: never,
    )
    for each in (engine, frozen):
      each.submit(np.array([1, 2, 3]), limits)
    try:
      with pytest.raises(RolloutError, match=r"the steps of frozen did not end within stall_s=0"):
        list(server.collect([job("h0", tokens=60)]))
    finally:
      for each in (engine, frozen):
        each.forget()


def test_a_request_for_a_policy_that_is_not_served_is_refused_by_its_name(engine, pool):
  server = RolloutServer(engine, pool, max_rollouts=4)
  group = next(iter(server.collect([job("g0", other="frozen")])))
  told = [t.log[2].content for t in group.trajectories]
  assert all(text.count("no policy 'frozen' is served") == 3 for text in told)


def test_a_deterministic_run_waits_for_all_that_a_rollout_asks_at_once(engine, frozen, pool):
  def run():
    for each, seed in ((engine, 1), (frozen, 7)):
      each.set_params(params_lib.init(CFG, jax.random.key(seed)), each.version)
    server = RolloutServer(
      engine, pool, max_rollouts=3, deterministic=True, others={"frozen": frozen}
    )
    groups = list(server.collect(job(f"h{i}", other="frozen") for i in range(3)))
    assert server._more_players.total() == 0
    return groups

  first, second = run(), run()
  assert bits(first) == bits(second) and len(first) == 3


def test_a_worker_that_dies_takes_its_further_players_along(engine, frozen, pool, tmp_path):
  server = RolloutServer(
    engine, pool, max_rollouts=2, deterministic=True, others={"frozen": frozen}
  )
  facts = {"other": "frozen", "dies": 1, "folder": str(tmp_path)}
  groups = list(server.collect([job("i0", other="frozen"), job("i1", 1, **facts)]))
  assert sorted(g.task.id for g in groups) == ["i0", "i1"]
  assert not any(t.error for g in groups for t in g.trajectories)
