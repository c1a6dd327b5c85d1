"""A version has one result, whoever evaluates it, whoever dies meanwhile."""

import concurrent.futures
import os
import pathlib
import re
import secrets
import socket
import threading
import time

import pytest

from jaxrl_agents.fleet.version_scores import VersionScores


def record(version, step=1, **scores):
  return {"version": version, "step": step, "time": 1.0, "scores": scores}


def names(folder):
  found = (path.name for path in folder.iterdir() if path.suffix != ".holder")
  return sorted(re.sub("[0-9a-f]{8}.claim", "X.claim", name) for name in found)


def test_a_claimed_version_is_nobody_else_s_and_its_result_is_kept_once(tmp_path):
  one, two = VersionScores(tmp_path, 60.0), VersionScores(tmp_path, 60.0)
  claim = one.claim(4)
  assert two.claim(4) is None and two.newest() is None
  assert one.keep(claim, record(4, step=2))
  assert two.claim(4) is None and two.newest() == (4, 2)
  assert names(tmp_path) == ["v0000000004.json"]


def test_of_two_results_for_one_version_the_first_stays(tmp_path):
  scores = VersionScores(tmp_path, 60.0)
  first = scores.claim(4)
  os.utime(first, (0, 0))  # too old to count: another one evaluates, though the first goes on
  second = tmp_path / first.name.replace(str(os.getpid()), "1")
  second.touch()
  assert scores.keep(second, record(4, step=7))
  assert not scores.keep(first, record(4, step=9))
  assert scores.newest() == (4, 7) and names(tmp_path) == ["v0000000004.json"]


def test_a_claim_counts_no_more_when_its_process_is_gone_or_its_time_is_over(tmp_path):
  scores, host = VersionScores(tmp_path, 60.0), socket.gethostname()
  for number, holder in ((0, f"{host}-{2**22 + 1}"), (2, "elsewhere-1")):
    claim = tmp_path / f"v0000000004.{holder}-00000000.claim"
    claim.touch()
    (tmp_path / f"v0000000004.{number}.holder").write_text(claim.name)
    if holder.startswith("elsewhere"):
      assert scores.claim(4) is None
      os.utime(claim, (0, time.time() - 61))
    own = scores.claim(4)
    assert own is not None and not claim.exists()
    assert scores.claim(4) is None
    own.unlink()


def before_the_claim_is_made(monkeypatch, action):
  """Has another evaluator do something between the checks of the next one and its claim."""
  touch = pathlib.Path.touch

  def late(path):
    monkeypatch.setattr(pathlib.Path, "touch", touch)
    action()
    touch(path)

  monkeypatch.setattr(pathlib.Path, "touch", late)


def test_a_version_whose_evaluation_ends_as_it_is_claimed_is_not_evaluated_again(
  tmp_path, monkeypatch
):
  one, two = VersionScores(tmp_path, 60.0), VersionScores(tmp_path, 60.0)
  before_the_claim_is_made(monkeypatch, lambda: one.keep(one.claim(4), record(4)))
  assert two.claim(4) is None
  assert names(tmp_path) == ["v0000000004.json"]


@pytest.mark.parametrize("tokens", [("00000000", "ffffffff"), ("ffffffff", "00000000")])
def test_of_two_evaluators_that_come_at_once_the_first_has_the_version_whatever_their_names(
  tmp_path, monkeypatch, tokens
):
  one, two = VersionScores(tmp_path, 60.0), VersionScores(tmp_path, 60.0)
  given, claims = iter(tokens), []
  monkeypatch.setattr(secrets, "token_hex", lambda _: next(given))
  before_the_claim_is_made(monkeypatch, lambda: claims.append(one.claim(4)))
  assert two.claim(4) is None
  assert one.keep(claims[0], record(4))


def test_one_of_many_evaluators_that_come_at_once_has_the_version_and_gives_it_back(tmp_path):
  crowd, together = 6, threading.Barrier(6)

  def claims(version):
    together.wait(timeout=30)
    return VersionScores(tmp_path, 60.0).claim(version)

  with concurrent.futures.ThreadPoolExecutor(crowd) as threads:
    for version in (*range(20), *range(20)):
      found = [claim for claim in threads.map(claims, [version] * crowd) if claim is not None]
      assert len(found) == 1
      found[0].unlink()


def test_what_the_learner_withdraws_has_no_result_even_if_it_is_being_evaluated(tmp_path):
  scores = VersionScores(tmp_path, 60.0)
  for version in (4, 8):
    assert scores.keep(scores.claim(version), record(version))
  claim = scores.claim(12)
  scores.withdraw_after(4)
  assert not scores.keep(claim, record(12))
  assert scores.newest() == (4, 1) and names(tmp_path) == ["v0000000004.json"]
  assert scores.keep(scores.claim(12), record(12))  # published again


def test_a_result_that_is_damaged_is_not_the_newest(tmp_path):
  scores = VersionScores(tmp_path, 60.0)
  assert scores.keep(scores.claim(4), record(4))
  (tmp_path / "v0000000008.json").write_text('{"version": 8, "st')
  assert scores.newest() == (4, 1)
