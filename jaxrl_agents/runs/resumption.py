"""What a run may find when it is resumed: options and files that would mix two runs are refused."""

from __future__ import annotations

import os
import pathlib
import secrets
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_agents import chat, file_digests
from jaxrl_agents import config as config_lib
from jaxrl_agents.config import RunConfig
from jaxrl_agents.runs import agent_setting, demonstrations, weight_files
from jaxrl_agents.runs.workdir import Workdir
from jaxrl_agents.weights import manifest as manifest_lib
from jaxrl_agents.weights import places

OF_EVALUATION = ("agent", "seed", "corpus", "policy", "eval")
"""Options and sections that an evaluation depends on, beside the agent's own section;
`sampler.temperature` is one of them where `eval.temperature` is negative.
"""

WITHOUT_EFFECT = ("corpus.cache",)
"""Options of these sections on which nothing depends."""

OF_JUDGE = ("model", "rubrics", "trained", "weight", "samples", "temperature", "max_characters")
"""Options of the section judge on which its grades depend."""

OF_WARM_UP = ("agent", "policy.tokenizer", "policy.thinking")
"""Options that a warm-up and what follows it in the same folder must share."""

TASKS = "tasks_digest"
"""In the summary: `Tasks.digest` of the run."""

_WARM_UP, _RUN = "warm_up_config", "config"
_START = "warm_start_digest"
_POLICY_FILES = "policy_files_digests"

_RUN_OF_WEIGHTS = "run_of_weights.txt"
"""In the folder of a run, and in that of versions of the weights elsewhere: whose they are."""


def check_warm_up(config: RunConfig, workdir: Workdir) -> list[str]:
  """The options that differ from those of the folder's warm-up, as "name=before -> now".

  Raises:
    ValueError: one of OF_WARM_UP differs, other than by the path of the same tokenizer: the warm
      start is of no use to this config.
  """
  texts = _changes(config, workdir, _WARM_UP)
  if refused := _of_warm_up(config, workdir, texts):
    raise ValueError(
      f"{workdir.path} holds a warm-up for another agent or chat format: {', '.join(refused)}; "
      "pass the config that it was made with, or choose another --workdir"
    )
  return list(texts.values())


def check_episodes(config: RunConfig, workdir: Workdir) -> None:
  """Raises ValueError if the episodes in a run's folder are of another agent or chat format."""
  if refused := _of_warm_up(config, workdir, _changes(config, workdir, _RUN)):
    raise ValueError(
      f"{workdir.path} holds episodes of another agent or chat format: {', '.join(refused)}; pass "
      "the config that they were played with"
    )


def _changes(config: RunConfig, workdir: Workdir, begun: str) -> dict[str, str]:
  """{option: "name=before -> now"} of what differs from the options `begun` of the summary."""
  differ = config_lib.changed(workdir.read_summary().get(begun) or {}, config)
  return {name: f"{name}={before!r} -> {now!r}" for name, (before, now) in differ.items()}


def _of_warm_up(config: RunConfig, workdir: Workdir, texts: Mapping[str, str]) -> list[str]:
  """Those of OF_WARM_UP, but for another path of the same tokenizer."""
  decisive = set(OF_WARM_UP).difference(_moved_policy_files(config, workdir))
  return [texts[name] for name in OF_WARM_UP if name in texts and name in decisive]


def record_demonstrations(config: RunConfig, workdir: Workdir) -> None:
  """Records what demonstrations were made with that were not made by a warm-up: one with another
  agent or chat format is then refused.
  """
  record_policy_files(config, workdir)
  options = config_lib.options(config)
  workdir.merge_summary({_WARM_UP: {name: options[name] for name in OF_WARM_UP}})


def begin_warm_up(config: RunConfig, workdir: Workdir) -> None:
  """Prints which options of a resumed warm-up have changed, and records those of now.

  Raises:
    ValueError: as `check_warm_up`; or the options differ that demonstrations in the folder were
      made with.
  """
  changes = check_warm_up(config, workdir)
  of_sources = [
    text for text in changes if demonstrations.decides(text.partition("=")[0], config, workdir)
  ]
  if of_sources:
    raise ValueError(
      f"{workdir.demonstrations} holds what was made with other options: {', '.join(of_sources)}; "
      "set them as they were, or choose another --workdir"
    )
  if changes:
    print(f"this warm-up is resumed with changed options: {', '.join(changes)}")
  record_policy_files(config, workdir)
  workdir.merge_summary({_WARM_UP: config_lib.options(config)})


def record_policy_files(config: RunConfig, workdir: Workdir) -> None:
  """Records digests of the files that options of the policy name, so that these may be moved."""
  workdir.merge_summary({_POLICY_FILES: _policy_files(config)})


def _moved_policy_files(config: RunConfig, workdir: Workdir) -> list[str]:
  """The options that name the same files as when the run began, be it by another path."""
  begun = workdir.read_summary().get(_POLICY_FILES) or {}
  return [name for name, found in _policy_files(config).items() if found == begun.get(name)]


def _policy_files(config: RunConfig) -> dict[str, str]:
  """{option of the policy that names files: digest of them}, of those that are there."""
  weights = weight_files.digest(weight_files.place(config.policy.init))
  return {
    "policy.tokenizer": file_digests.of_files(chat.tokenizer_files(config.policy.tokenizer)),
    **({"policy.init": weights} if weights else {}),
  }


def claim_published(config: RunConfig, workdir: Workdir) -> None:
  """Marks `publish.folder`, if it is set, as this run's. To be called before the run changes files.

  Raises:
    ValueError: it is of another run, whose versions this one would delete, or cannot be used.
  """
  if not config.publish.folder:
    return
  run, place = workdir.path / _RUN_OF_WEIGHTS, workdir.weights
  named = f"publish.folder={config.publish.folder}"
  if not run.exists() or str(workdir.path) not in run.read_text("utf-8"):  # or it is of a copy
    places.write_durably(run, f"{secrets.token_hex(16)} of {workdir.path}\n")
  own, claim = run.read_text("utf-8"), place / _RUN_OF_WEIGHTS
  try:
    place.mkdir(parents=True, exist_ok=True)
    there = [*manifest_lib.versions(place), *manifest_lib.versions(manifest_lib.differences(place))]
    if there and not claim.exists():
      raise ValueError(
        f"{named} holds versions {there[:3]} and no mark of the run that they are of"
      )
    places.write_if_absent(claim, own)
    found = claim.read_bytes().decode(errors="replace")
  except (OSError, ValueError) as error:
    if str(error).startswith(named):
      raise ValueError(f"{error}; choose another place, or empty this one") from None
    raise ValueError(
      f"{named} cannot be used: {error}. See that it exists and that this process may list, read, "
      "write and delete there (jaxrl_agents/weights/places.py says how a bucket is given "
      "credentials), or choose another one"
    ) from error
  if found != own:
    raise ValueError(
      f"{named} holds the weights of another run ({found.strip()}), which this one would delete; "
      "choose another place, or empty this one if that run is over or its folder was moved"
    )


def check_warm_start_is_free(config: RunConfig, workdir: Workdir, first: int) -> None:
  """Raises ValueError if a warm-up that has steps to make, from step `first` on, would replace the
  weights that reinforcement learning in the same folder has begun with.
  """
  begun = workdir.checkpoints / "rl"
  if first < config.sft.steps and any(each.name.isdigit() for each in begun.glob("*")):
    raise ValueError(
      f"the training in {begun} began with other weights than this warm-up will end with ({first} "
      f"of sft.steps={config.sft.steps} are made), and cannot go on with these; choose another "
      "--workdir (copy demonstrations/ and checkpoints/sft/ into it to go on with this warm-up), "
      f"or remove {begun} to give the training up"
    )


def forget_warm_start(config: RunConfig, workdir: Workdir, first: int) -> None:
  """As `forget_results`, of a warm-up that is about to go on from step `first`."""
  if first < config.sft.steps:
    _set_aside(workdir.warm_start)


def drop_set_aside(folder: pathlib.Path) -> None:
  """Removes the weights that `folder` had before those that are there now."""
  if (before := _beside(folder)).exists():
    shutil.rmtree(before)


def _set_aside(folder: pathlib.Path) -> None:
  if folder.exists():
    drop_set_aside(folder)
    os.replace(folder, _beside(folder))


def _beside(folder: pathlib.Path) -> pathlib.Path:
  return folder.with_name(f"{folder.name}.before")


def check_start(workdir: Workdir, progress: dict[str, Any]) -> None:
  """Raises ValueError if the warm start is no longer the one that a resumed run began with."""
  if progress.get("start", digest := weight_files.digest(workdir.warm_start)) != digest:
    raise ValueError(
      f"{workdir.warm_start}, which the training in {workdir.checkpoints / 'rl'} began with, "
      f"{'is another one now' if digest else 'is missing'}; restore it from a copy, or begin again "
      "in another --workdir"
    )


def check_goes_on(config: RunConfig, workdir: Workdir, first: int, tasks: str = "") -> None:
  """Prints which options of a run resumed at step `first` differ from those that it began with.

  Those that say where the agent runs (`Agent.places`) may differ, those that say where its tasks
  are read from (`Agent.sources`), if `tasks`, the digest of these, is as it was, and the paths of
  the weights and the tokenizer that it began with, if their files are as they were.

  Raises:
    ValueError: an option of OF_EVALUATION differs, so the evaluations could not be compared; or a
      file that says what the run began with is gone.
  """
  steps = sum(line["phase"] == "rl" for line in workdir.lines())
  if steps and not first:
    print(
      f"there is no checkpoint in {workdir.checkpoints / 'rl'}: the {steps} steps in "
      f"{workdir.metrics.name} are trained again from the start",
      file=sys.stderr,
      flush=True,
    )
  played = sorted(workdir.trajectories.glob("eval_*.npz"))
  if first and not (workdir.trajectories / "eval_warm_start.npz").exists():
    raise ValueError(
      f"{workdir.trajectories / 'eval_warm_start.npz'} is missing, and the policy has been trained "
      f"for {first} steps since; restore the file from a copy, or begin again in another --workdir "
      "(copy warm_start/ into it to start from this warm-up)"
    )
  if not played:
    return
  begun = workdir.read_summary().get(_RUN)
  if not begun or not isinstance(begun, dict):
    raise ValueError(
      f"{workdir.summary} does not say with which options {played[0]} was played; restore it from "
      "a copy, or begin again in another --workdir (copy warm_start/ into it to start from this "
      "warm-up)"
    )
  differ = config_lib.changed(begun, config)
  changes = {name: f"{name}={before!r} -> {now!r}" for name, (before, now) in differ.items()}
  agent = agent_setting.agent(config)
  decisive = {*OF_EVALUATION, agent.name, *(f"judge.{option}" for option in OF_JUDGE)}
  same_tasks = bool(tasks) and workdir.read_summary().get(TASKS) == tasks
  moved = (*agent.places, *(agent.sources if same_tasks else ()))
  ignored = {
    *WITHOUT_EFFECT,
    *(f"{agent.name}.{option}" for option in moved),
    *_moved_policy_files(config, workdir),
  }
  if config.eval.temperature < 0:
    decisive.add("sampler.temperature")
  if "judge.url" in differ and not all(differ["judge.url"]):  # turned on or off, not moved
    decisive.add("judge.url")
  refused = [
    text
    for name, text in changes.items()
    if (name in decisive or name.partition(".")[0] in decisive) and name not in ignored
  ]
  if refused:
    raise ValueError(
      f"{workdir.path} holds a run with other options: {', '.join(refused)}; set them as they "
      "were, or choose another --workdir (copy warm_start/ into it to start from this warm-up)"
    )
  if changes:
    print(f"this run is resumed with changed options: {', '.join(changes.values())}")


def forget_other_start(workdir: Workdir, start: str, first: int) -> None:
  """Removes the evaluation of a warm start that has been replaced since, of a run that begins at
  step `first` = 0; records the digest `start` of the one of now.
  """
  file = workdir.trajectories / "eval_warm_start.npz"
  begun = workdir.read_summary().get(_START, start)
  if not first and begun != start and file.exists():
    print(f"the warm start has changed since it was evaluated: {file} is made again", flush=True)
    file.unlink()
  workdir.merge_summary({_START: start})


def forget_results(workdir: Workdir, first: int, baselines: Sequence[str]) -> None:
  """Removes weights and evaluations of a policy that is about to be trained further, from step
  `first`: a run that is stopped then must not take them for its newest. The weights are kept beside
  until there are new ones, since the newest checkpoint may be older where one was damaged.
  """
  if first:
    _set_aside(workdir.trained)
  workdir.drop_from_summary("eval", "paired_bootstrap", "judge")
  kept = {f"eval_{name}" for name in ("base", "warm_start", *baselines)}
  for file in workdir.trajectories.glob("eval_*.npz"):
    if file.stem not in kept:
      file.unlink()
