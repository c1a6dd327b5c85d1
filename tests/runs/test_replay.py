"""A run that plays ahead of its learner is repeated bit by bit from the record of its schedule."""

import numpy as np
import pytest

from jaxrl_agents import record_log
from tests.runs import small_run
from tests.sampler.counting import LATENCIES

pytestmark = pytest.mark.slow

OPTIONS = {
  "workers": {"deterministic": False, "episodes": 6},
  "learner": {"steps": 4},
}


def play(folder, monkeypatch, latencies, *, replay=None, **sections):
  monkeypatch.setenv(LATENCIES, str(latencies))
  fleet = {"depth": 2, "replay": str(replay or "")}
  small_run.run(folder, **{**OPTIONS, "fleet": fleet, **sections})
  return folder


def records(folder):
  return list(record_log.scan(folder / "schedule.log"))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
  with pytest.MonkeyPatch.context() as patch:
    return play(tmp_path_factory.mktemp("recorded"), patch, 1)


def assert_same(one, other):
  expected, found = (np.load(folder / "params.npz") for folder in (one, other))
  assert found["version"] == expected["version"] > 0
  for name in expected.files:
    assert found[name].tobytes() == expected[name].tobytes(), name
  assert (one / "trained.txt").read_text() == (other / "trained.txt").read_text()
  digests = [
    {each["group"]: each["digest"] for each in records(folder) if each["is"] == "ended"}
    for folder in (one, other)
  ]
  assert digests[0] == digests[1] and len(digests[0]) == 8


def test_a_replay_with_other_latencies_has_the_same_parameters_and_tokens(
  recorded, tmp_path, monkeypatch
):
  replayed = play(tmp_path / "replayed", monkeypatch, 2, replay=recorded)
  assert_same(recorded, replayed)
  steps = [[each for each in records(f) if each["is"] == "step"] for f in (recorded, replayed)]
  assert steps[0] == steps[1]
