"""Sampler slices on the nodes of a Ray cluster give what an engine in this process gives."""

import contextlib
import dataclasses
import json
import re
import shutil
import signal
import threading
import time

import jax
import numpy as np
import psutil
import pytest

from jaxrl_agents.fleet import ledger
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.runs import slice_member, weight_files
from jaxrl_agents.runs.engines import frozen_engine, make_engine
from jaxrl_agents.sampler import slices as slices_lib
from jaxrl_agents.sampler.slices import Slices, SlicesError
from jaxrl_agents.types import Message, SamplingLimits
from jaxrl_agents.weights import manifest, store
from tests import s3_server
from tests.fleet.conftest import another_node, needs_ray, whole_run
from tests.runs import small_run
from tests.runs.small_run import CFG, configured
from tests.runs.test_faults import assert_each_step_was_trained_once
from tests.runs.test_several import ended, start, start_both, wait_for
from tests.sampler.counting import CHAT

pytestmark = [
  pytest.mark.slow,
  pytest.mark.timeout(200),
  needs_ray,
]

PROMPTS = [np.arange(1, 3 + i, dtype=np.int32) for i in range(6)]
RUN = {"learner": {"steps": 3}}
STEPS = 8
AHEAD = {
  "learner": {"steps": STEPS, "save_every": 100},
  "sampler": {"slices": 1},
  "workers": {"deterministic": False},
}


def params(version):
  return params_lib.init(CFG, jax.random.key(version))


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
  """A folder with two published versions."""
  folder = tmp_path_factory.mktemp("weights")
  for version in range(2):
    store.publish(params(version), version, folder)
  return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
  return tmp_path_factory.mktemp("cache")


def slices(cluster, weights, *, deterministic=True, start_deadline_s=60, **sampler):
  config = configured(sampler={"slices": 1, **sampler})
  if config.sampler.hosts > 1:
    config = configured(sampler={"slices": 1, **sampler}, sampler_mesh={"expert": 2})
  return Slices(
    cluster.ray,
    slice_member.starter(cluster.ray, config, weights),
    range(config.sampler.slices),
    0,
    max_context_tokens=config.agent_config.token_budget,
    vocab_size=CFG.vocab_size,
    deterministic=deterministic,
    start_deadline_s=start_deadline_s,
  )


def submit(sampler, tokens=6):
  for i, prompt in enumerate(PROMPTS):
    sampler.submit(prompt, SamplingLimits(tokens, (), seed=i))


def finish(sampler):
  """{request: generation} once none is unfinished."""
  found = {}
  while sampler.num_unfinished:
    found |= dict(sampler.step())
  return found


@pytest.fixture(scope="module")
def alone():
  """What an engine in this process gives, and its counters."""
  engine = make_engine(configured(), params(0), 0)
  submit(engine)
  return finish(engine), engine.stats


def test_a_slice_of_one_node_gives_bitwise_what_an_engine_here_gives(cluster, weights, alone):
  expected, stats = alone
  with another_node(cluster, resources={"slice0": 1}), slices(cluster, weights) as sampler:
    sampler.wait_until_ready()
    submit(sampler)
    with pytest.raises(ValueError, match="at least one token id"):
      sampler.submit(np.zeros(0, np.int32), SamplingLimits(4, ()))
    dropped = sampler.submit(PROMPTS[0], SamplingLimits(4, (), seed=9))
    sampler.cancel(dropped)
    found = finish(sampler)
    assert sampler.stats.tokens == stats.tokens
  assert found.keys() == expected.keys()
  for i, generation in expected.items():
    for name in ("tokens", "logprobs", "versions"):
      assert getattr(found[i], name).tobytes() == getattr(generation, name).tobytes()


def test_new_weights_reach_sequences_that_run(cluster, weights, monkeypatch):
  monkeypatch.setattr(slices_lib, "_STEPS", 1)
  with (
    another_node(cluster, resources={"slice0": 1}),
    slices(cluster, weights, deterministic=False) as sampler,
  ):
    sampler.wait_until_ready()
    first = sampler.submit(PROMPTS[0], SamplingLimits(50, (), seed=3))
    assert sampler.step() == []  # asked for two steps
    sampler.load(1)
    second = sampler.submit(PROMPTS[1], SamplingLimits(4, (), seed=3))
    found = finish(sampler)
  versions = found[first].versions.tolist()
  assert len(versions) == 50 and versions == sorted(versions) and set(versions) == {0, 1}
  assert set(found[second].versions) == {1}


def test_weights_are_fetched_while_sequences_run_and_swapped_later(cluster, tmp_path, monkeypatch):
  """What was prepared is swapped in though it is not there any more."""
  monkeypatch.setattr(slices_lib, "_STEPS", 1)
  for version in range(2):
    store.publish(params(version), version, tmp_path)
  with (
    another_node(cluster, resources={"slice0": 1}),
    slices(cluster, tmp_path, deterministic=False) as sampler,
  ):
    sampler.wait_until_ready()
    first = sampler.submit(PROMPTS[0], SamplingLimits(50, (), seed=3))
    assert sampler.step() == []  # asked for two steps
    swap = sampler.prepare(1)
    manifest.path(tmp_path, 1).unlink()
    shutil.rmtree(manifest.files(tmp_path, 1))
    assert sampler.step() == []
    swap()
    second = sampler.submit(PROMPTS[1], SamplingLimits(4, (), seed=3))
    found = finish(sampler)
  versions = found[first].versions.tolist()
  assert len(versions) == 50 and versions == sorted(versions) and set(versions) == {0, 1}
  assert set(found[second].versions) == {1}


def test_the_requests_of_an_actor_that_is_killed_are_sampled_by_the_next_one(
  cluster, weights, monkeypatch, capfd
):
  """To the same tokens; log-probabilities within 1e-5, since others may be beside them then."""
  monkeypatch.setattr(slices_lib, "_STEPS", 1)
  with (
    another_node(cluster, resources={"slice0": 1}),
    slices(cluster, weights, deterministic=False) as sampler,
  ):
    sampler.wait_until_ready()
    submit(sampler, tokens=50)
    assert sampler.step() == []  # asked for two steps
    (member,) = members()
    member.kill()
    found = finish(sampler)
  assert "sampler slice 0 is lost: " in (err := capfd.readouterr().err)
  assert "its 6 requests go to others (0 are left)" in err
  engine = make_engine(configured(), params(0), 0)
  submit(engine, tokens=50)
  for i, generation in finish(engine).items():
    assert found[i].tokens.tolist() == generation.tokens.tolist()
    np.testing.assert_allclose(found[i].logprobs, generation.logprobs, atol=1e-5)


def test_a_slice_that_is_lost_whenever_it_starts_ends_sampling_with_the_cause(cluster, weights):
  starter = slice_member.starter(cluster.ray, configured(sampler={"slices": 1}), weights)

  def doomed(number):
    for actor in (actors := starter(number) or []):
      cluster.ray.kill(actor)
    return actors

  with another_node(cluster, resources={"slice0": 1}), slices(cluster, weights) as sampler:
    sampler._actors = doomed
    with pytest.raises(SlicesError, match="slice 0 was lost 4 times while no request ended"):
      sampler.wait_until_ready()


@whole_run
def test_a_slice_of_two_nodes_is_one_engine(cluster, weights, alone):
  """Log-probabilities within 1e-5 of those of one device; the ids are equal."""
  with (
    another_node(cluster, resources={"slice0": 1}),
    another_node(cluster, resources={"slice0": 1}),
    slices(cluster, weights, hosts=2) as sampler,
  ):
    sampler.wait_until_ready()
    submit(sampler)
    found = finish(sampler)
  for i, generation in alone[0].items():
    assert found[i].tokens.tolist() == generation.tokens.tolist()
    np.testing.assert_allclose(found[i].logprobs, generation.logprobs, atol=1e-5)


def test_without_nodes_for_a_slice_the_message_says_what_to_start(cluster, weights):
  with slices(cluster, weights, start_deadline_s=0.5) as sampler:
    with pytest.raises(SlicesError, match="start the nodes of slice N, as many as sampler.hosts"):
      sampler.wait_until_ready()


@whole_run
def test_a_run_that_samples_on_a_node_has_the_numbers_of_one_with_its_own_engine(
  cluster, cache, tmp_path
):
  """Bitwise: the same programs in the same order."""
  here, there = tmp_path / "here", tmp_path / "there"
  ended(start("small_run.py", here, cache, 1, **RUN))
  fleet = {"backend": "ray", "address": cluster.address}
  with another_node(cluster, resources={"slice0": 1}):
    ended(start("small_run.py", there, cache, 1, fleet=fleet, sampler={"slices": 1}, **RUN))
  expected, found = (np.load(folder / "params.npz") for folder in (here, there))
  assert found["version"] == expected["version"] == 6
  for name in expected.files:
    assert found[name].tobytes() == expected[name].tobytes(), name


@whole_run
@pytest.mark.timeout(400)
@pytest.mark.parametrize("hosts", [1, 2])
def test_a_slice_follows_differences_of_the_weights(cluster, cache, tmp_path, hosts):
  """To bitwise the numbers of a run that reads them whole; through a bucket too."""
  exact = {"policy": {"dtype": "bfloat16"}, "learner": {"steps": 3, "canary_bound": 0.1}}
  fleet = {"backend": "ray", "address": cluster.address}
  found = {}
  mesh = {"sampler_mesh": {"expert": 2}} if hosts > 1 else {}
  delta = {"kind": "delta", "anchor_every": 3}
  bucket = f"s3://{s3_server.BUCKET}/slices"
  publications = {"full": {}, "delta": delta, "bucket": {**delta, "folder": bucket}}
  for kind, publish in publications.items():
    with contextlib.ExitStack() as stack:
      stack.enter_context(s3_server.serving())  # the nodes inherit its environment
      for _ in range(hosts):
        stack.enter_context(another_node(cluster, resources={"slice0": 1}))
      sampler = {"slices": 1, "hosts": hosts}
      options = {"fleet": fleet, "sampler": sampler, "publish": publish, **exact, **mesh}
      ended(start("small_run.py", tmp_path / kind, cache, 1, **options))
    found[kind] = np.load(tmp_path / kind / "params.npz")
  for name in found["full"].files:
    assert found["full"][name].tobytes() == found["delta"][name].tobytes(), name
    assert found["full"][name].tobytes() == found["bucket"][name].tobytes(), name
  assert not (tmp_path / "bucket" / "weights").exists()


@whole_run
def test_requests_of_a_slice_whose_node_is_lost_go_to_the_other(cluster, cache, tmp_path):
  sections = {
    "learner": {"steps": 20, "save_every": 100},
    "sampler": {"slices": 2},
    "workers": {"deterministic": False, "episodes": 8},
    "fleet": {"backend": "ray", "address": cluster.address},
  }
  with (
    another_node(cluster, resources={"slice0": 1}),
    another_node(cluster, num_cpus=0, resources={"slice1": 1}) as doomed,
  ):
    run = start("small_run.py", tmp_path, cache, 1, **sections)
    wait_for(run, "step 1")
    cluster.remove_node(doomed, allow_graceful=False)
    output = ended(run)
  assert "step 19" in output and "sampler slice 1 is lost: " in output


def members():
  """The actors of slices that this process' cluster runs."""
  found = []
  for process in psutil.Process().children(recursive=True):
    with contextlib.suppress(psutil.Error):
      if any("SliceMember" in part for part in process.cmdline()):
        found.append(process)
  return found


@pytest.fixture
def steps(monkeypatch):
  """(metrics, groups) of each step of a run in this process."""
  found, report = [], small_run.reported

  def reported(folder, step, metrics, groups):
    found.append((metrics, groups))
    report(folder, step, metrics, groups)

  monkeypatch.setattr(small_run, "reported", reported)
  return found


def versions_of(groups):
  """Of all tokens with loss."""
  return np.concatenate(
    [
      segment.versions[segment.loss_mask]
      for group in groups
      for trajectory in group.trajectories
      for segment in trajectory.segments
    ]
  )


def gone(limit_s=60):
  """Whether no actor of a slice is left, after a while."""
  deadline = time.monotonic() + limit_s
  while members() and time.monotonic() < deadline:
    time.sleep(0.2)
  return not members()


@whole_run
@pytest.mark.timeout(400)
def test_a_run_plays_ahead_on_a_slice_whose_weights_change_while_it_samples(
  cluster, tmp_path, steps, monkeypatch
):
  """Each token has the version that sampled it, which the canary scores it under."""
  step = Slices.step

  def slower_than_the_learner(sampler):
    time.sleep(0.15)
    return step(sampler)

  monkeypatch.setattr(slices_lib, "_STEPS", 1)
  monkeypatch.setattr(slices_lib, "_MESSAGES", 1)
  monkeypatch.setattr(Slices, "step", slower_than_the_learner)
  longer = {  # replies that take several programs of the engine
    "agent_config": {"max_new_tokens": 40, "token_budget": 128},
    "learner": AHEAD["learner"] | {"row_tokens": 128},
  }
  long = [dataclasses.replace(task, facts=task.facts | {"tokens": 40}) for task in small_run.TASKS]
  monkeypatch.setattr(small_run, "TASKS", long)
  fleet = {"backend": "ray", "address": cluster.address, "depth": 1}
  with another_node(cluster, resources={"slice0": 1}):
    small_run.run(tmp_path, fleet=fleet, **{**AHEAD, **longer})
    assert gone()
  assert not {"sampler", "publisher"} & {thread.name for thread in threading.enumerate()}
  assert_each_step_was_trained_once(tmp_path, STEPS)
  held = [0, *(metrics["version"] for metrics, _ in steps)]
  seen = set()
  for step, (metrics, groups) in enumerate(steps):
    # With a depth of 1 a group begins once the step before the last one was published.
    versions = set(versions_of(groups).tolist())
    assert versions <= set(held[max(step - 1, 0) : step + 1])
    seen |= versions
    assert metrics["canary_tokens"] > 0
    assert metrics["canary_max_abs_logprob_difference"] < 1e-3
    assert metrics.get("canary_kept_max_abs_logprob_difference", 0.0) < 1e-3
  assert len(seen) >= STEPS - 2
  assert sum(metrics["canary_kept_tokens"] for metrics, _ in steps) > 0


@whole_run
@pytest.mark.timeout(400)
def test_a_slice_fetches_differences_of_the_weights_while_it_samples(cluster, tmp_path, steps):
  """In the thread that fetches; the canary reads the versions back from the same differences."""
  options = {
    **AHEAD,
    "fleet": {"backend": "ray", "address": cluster.address, "depth": 1},
    "policy": {"dtype": "bfloat16"},
    "learner": {"steps": 4, "canary_bound": 0.1},
    "publish": {"kind": "delta"},
  }
  with another_node(cluster, resources={"slice0": 1}):
    small_run.run(tmp_path, **options)
    assert gone()
  assert manifest.versions(tmp_path / "weights") == [0]  # no complete version was asked for
  assert len({version for _, groups in steps for version in versions_of(groups).tolist()}) > 2
  assert all(metrics["canary_tokens"] > 0 for metrics, _ in steps)


@whole_run
@pytest.mark.timeout(400)
def test_a_run_whose_slice_is_killed_twice_trains_each_rollout_once(
  cluster, tmp_path, steps, monkeypatch, capfd
):
  """The slice is started again without anyone's help."""
  fleet = {"backend": "ray", "address": cluster.address, "depth": 1}
  report = small_run.reported

  def reported(folder, step, metrics, groups):
    report(folder, step, metrics, groups)
    if step in (1, 4):  # batch 4 began once step 2 was published
      (member,) = members()
      member.kill()

  monkeypatch.setattr(small_run, "reported", reported)
  with another_node(cluster, resources={"slice0": 1}):
    small_run.run(tmp_path, fleet=fleet, **AHEAD)
    assert gone()
  assert capfd.readouterr().err.count("sampler slice 0 is lost: ") == 2
  assert_each_step_was_trained_once(tmp_path, STEPS)
  assert all(metrics["canary_tokens"] > 0 for metrics, _ in steps)
  states = list(ledger.read(tmp_path / "ledger.log"))
  assert {state.attempt for state in states} == {1}  # the workers go on, and wait for replies


@whole_run
@pytest.mark.timeout(400)
def test_a_killed_run_that_plays_ahead_on_a_slice_goes_on_and_trains_each_group_once(
  cluster, cache, tmp_path
):
  fleet = {"backend": "ray", "address": cluster.address, "depth": 1}
  options = {**AHEAD, "learner": {"steps": 4}, "fleet": fleet}
  with another_node(cluster, resources={"slice0": 1}):
    killed = start("small_run.py", tmp_path, cache, 1, **options)
    wait_for(killed, "step 1")
    killed.kill()
    killed.communicate(timeout=30)
    output = ended(start("small_run.py", tmp_path, cache, 1, **options))
    assert gone()
  assert "step 3" in output and "is lost" not in output
  lines = map(json.loads, (tmp_path / "trained.txt").read_text().splitlines())
  by_step = dict(lines)  # a step that was not saved is trained again, which counts
  groups = sorted(name for names in by_step.values() for name in names)
  assert groups == sorted(f"step {batch} {place}" for batch in range(4) for place in range(2))


@whole_run
@pytest.mark.timeout(400)
@pytest.mark.parametrize("publish", [{"kind": "full"}, {"kind": "delta", "anchor_every": 3}])
def test_a_learner_of_two_processes_trains_while_a_slice_plays_ahead(
  cluster, cache, tmp_path, publish
):
  """Both have the parameters of the first; tokens are scored under versions that both read back."""
  exact = publish["kind"] == "delta"
  options = {
    **AHEAD,
    "mesh": {"expert": 2},
    "fleet": {"backend": "ray", "address": cluster.address, "depth": 1},
    "policy": {"dtype": "bfloat16" if exact else "float32"},
    "learner": AHEAD["learner"] | ({"canary_bound": 0.1} if exact else {}),
    "publish": publish,
  }
  with another_node(cluster, resources={"slice0": 1}):
    outputs = [ended(each) for each in start_both(tmp_path, cache, **options)]
  assert all("trained on 2 devices" in output for output in outputs)
  assert all(f"step {STEPS - 1}" in output for output in outputs)
  assert_each_step_was_trained_once(tmp_path, STEPS)
  lines = [json.loads(line) for line in (tmp_path / "metrics.txt").read_text().splitlines()]
  learnt = [metrics for _, metrics in lines if metrics["optimizer_steps"]]
  assert len(learnt) > STEPS / 2 and all(metrics["canary_tokens"] > 0 for metrics in learnt)
  assert max(metrics["age_max"] for metrics in learnt) >= 1
  largest = max(metrics["canary_max_abs_logprob_difference"] for metrics in learnt)
  assert largest < (0.1 if exact else 1e-3)


SWARM = {**AHEAD, "learner": {"steps": 3}, "sampler": {"slices": 2, "frozen_slices": 1}}


@pytest.fixture(scope="module")
def frozen(tmp_path_factory):
  """A folder of weights that are not trained."""
  folder = tmp_path_factory.mktemp("frozen")
  weight_files.save(params(7), CFG, folder)
  return folder


@contextlib.contextmanager
def two_slices(cluster):
  with (
    another_node(cluster, resources={"slice0": 1}),
    another_node(cluster, resources={"slice1": 1}),
  ):
    yield {"backend": "ray", "address": cluster.address}


@whole_run
@pytest.mark.timeout(400)
@pytest.mark.parametrize("depth", [0, 1])
def test_a_policy_that_is_not_trained_is_sampled_on_slices_of_its_own(
  cluster, tmp_path, steps, frozen, depth
):
  """Each episode shows what an engine with these weights says to the same prompts."""
  with two_slices(cluster) as fleet:
    small_run.run(tmp_path, fleet={**fleet, "depth": depth}, frozen=str(frozen), **SWARM)
    assert gone()
  engine, said = frozen_engine(configured(), frozen, 0), {}
  for task in small_run.TASKS:
    for i in range(3):
      prompt = CHAT.render([Message("user", f"{task.prompt} {i}")])
      limits = SamplingLimits(4, CHAT.stop_tokens, seed=i)
      said[engine.submit(np.asarray(prompt), limits)] = task.prompt
  replies = {}
  for request, generation in sorted(finish(engine).items()):
    text = "v0:" + "-".join(map(str, generation.tokens))
    replies.setdefault(said[request], []).append(text)
  assert len(steps) == 3
  for _, groups in steps:
    for group in groups:
      for trajectory in group.trajectories:
        assert trajectory.log[2].content == " ".join(replies[group.task.prompt])


@whole_run
@pytest.mark.timeout(400)
@pytest.mark.parametrize("depth", [0, 1])
def test_a_learner_of_two_processes_trains_beside_a_policy_that_is_not_trained(
  cluster, cache, tmp_path, frozen, depth
):
  with two_slices(cluster) as fleet:
    options = {**SWARM, "fleet": {**fleet, "depth": depth}, "frozen": str(frozen)}
    outputs = [ended(each) for each in start_both(tmp_path, cache, **options)]
  assert all("trained on 2 devices" in output for output in outputs)
  assert_each_step_was_trained_once(tmp_path, 3)


@whole_run
@pytest.mark.timeout(400)
def test_two_processes_that_play_ahead_stop_together_and_go_on(cluster, cache, tmp_path):
  options = {
    **AHEAD,
    "mesh": {"expert": 2},
    "fleet": {"backend": "ray", "address": cluster.address, "depth": 1},
  }
  with another_node(cluster, resources={"slice0": 1}):
    both = start_both(tmp_path, cache, **options)
    wait_for(both[0], "step 1")
    both[1].send_signal(signal.SIGTERM)
    for process in both:
      ended(process, status=143)
    again = [ended(each) for each in start_both(tmp_path, cache, **options)]
  assert all(re.search("^from [2-8]$", output, re.MULTILINE) for output in again)
  assert_each_step_was_trained_once(tmp_path, STEPS)
