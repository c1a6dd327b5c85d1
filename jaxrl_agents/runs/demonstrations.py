"""Makes the sources of the warm-up's mixture once; caches each under a hash of what determines it.

tasks -> the demonstrator's episodes -> filter -> segments in the cache -> the run's folder
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import pathlib
import shlex
import shutil
import threading
import types
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from jaxrl_agents import chat as chat_lib
from jaxrl_agents import config as config_lib
from jaxrl_agents import durable, full_disk
from jaxrl_agents.agents.agent import DEMONSTRATOR, Agent, Tasks
from jaxrl_agents.chat import document_numbers as numbers_lib
from jaxrl_agents.chat.document_numbers import DocumentNumbers
from jaxrl_agents.config import SFT_SOURCES, RunConfig, cache_folder
from jaxrl_agents.corpus import code_digest
from jaxrl_agents.learner import segment_files
from jaxrl_agents.runs import agent_setting, mcp_tools, processes, rollout_workers, setup
from jaxrl_agents.runs.progress import Progress
from jaxrl_agents.runs.workdir import Workdir
from jaxrl_agents.types import Group, Segment, Task

DRILL_TOKENS = 128
DRILL_PERIOD = 48

_IMPORT_S = 600.0

_OPTIONS = {
  "demonstrations": (
    "demonstration_tasks",
    "demonstration_share",
    "rollouts_per_task",
  ),
  "practice": ("practice_tasks",),
  "copies": ("copy_segments",),
  "drills": ("drills",),
}
"""The options of SftConfig that decide a source."""


def make(config: RunConfig, corpus: Tasks, workdir: Workdir) -> dict[str, float]:
  """Brings the sources of the mixture to `workdir.demonstrations`; returns {source: rate}.

  What an earlier run of the same config wrote there is kept, whatever the code is now.

  Raises:
    ValueError: two entries of `sft.beside` have one name.
  """
  rates = _rates(config)
  for name in rates:
    _bring(config, lambda: corpus, name, workdir, as_name=name)
  for entry, rate in zip(config.sft.beside, config.sft.beside_rates, strict=True):
    file, *overrides = shlex.split(entry)
    other = config_lib.load(file, overrides)
    opened = functools.cache(functools.partial(agent_setting.open_tasks, other))
    shares = _rates(other)
    for name, share in shares.items():
      as_name = f"{other.name}_{name}"
      if as_name in rates:
        raise ValueError(
          f"two configs of sft.beside have the name {other.name!r}, by which their sources are "
          f"told apart; give one of them another, as in {f'{entry} name={other.name}_2'!r}"
        )
      _bring(other, opened, name, workdir, as_name=as_name)
      rates[as_name] = rate * share / sum(shares.values())
  return rates


def digests(workdir: Workdir, names: Iterable[str]) -> dict[str, str]:
  """{source: digest of its manifest} of the sources in the folder of a run."""
  return {name: segment_files.read_segments(workdir.demonstrations / name).digest for name in names}


def _rates(config: RunConfig) -> dict[str, float]:
  """{source: rate} of those that are drawn from at all."""
  rates = zip(SFT_SOURCES, config.sft.rates, strict=True)
  return {name: rate for name, rate in rates if rate > 0}


def _bring(
  config: RunConfig, opened: Callable[[], Tasks], name: str, workdir: Workdir, *, as_name: str
) -> None:
  """Makes or finds one source, and copies it to the run's folder."""
  folder = workdir.demonstrations / as_name
  if not (folder / segment_files.MANIFEST).exists():
    if folder.exists():
      raise ValueError(
        f"{folder / segment_files.MANIFEST} is missing; restore it from a copy, or remove the "
        "folder: it is then made again"
      )
    corpus = opened()
    kept = cache_folder(config.corpus) / f"sources_{digest(config, corpus, name)}"
    if not (kept / segment_files.MANIFEST).exists():
      segments, counts = _made(config, corpus, name)
      own = kept.with_name(f".{kept.name}.{uuid.uuid4().hex}")
      segment_files.write_segments(own, segments, counts=counts)
      try:
        own.rename(kept)
      except OSError:
        shutil.rmtree(own, ignore_errors=True)
        if not (kept / segment_files.MANIFEST).exists():  # no other run has written the same
          raise
    segment_files.read_segments(kept)  # damage is reported where it is
    _copy_whole(kept, folder)
  counts = segment_files.read_segments(folder).counts
  if counts and processes.is_first():
    workdir.merge_summary({as_name: counts})


def digest(config: RunConfig, corpus: Tasks, name: str) -> str:
  """Names a source by all that decides it: tasks, chat format, options, seed, and the code that
  makes it (without comments and docstrings).
  """
  agent = agent_setting.agent(config)
  options = dataclasses.asdict(config.agent_config)
  decides = {
    "source": name,
    "seed": config.seed,
    "agent": config.agent,
    "thinking": config.policy.thinking,
    "options": {k: v for k, v in options.items() if k not in _undecided(agent)},
    "sft": {option: getattr(config.sft, option) for option in _OPTIONS[name]},
    "tasks": corpus.digest,
    "code": code_digest.of(type(agent).__module__, alone=__name__),
  }
  if named := agent.named_code_digest(config.agent_config):
    decides["named"] = named
  if config.tools.mcp:  # the demonstrator's prompts list them
    decides["mcp"] = mcp_tools.listing(config).digest
  found = hashlib.sha256(json.dumps(decides, sort_keys=True).encode())
  for path in chat_lib.tokenizer_files(config.policy.tokenizer):
    found.update(path.read_bytes())
  return found.hexdigest()[:16]


def _undecided(agent: Agent) -> tuple[str, ...]:
  """The options of an agent on which its demonstrations do not depend."""
  return (*agent.reward_sections, *agent.places)


def decides(option: str, config: RunConfig, workdir: Workdir) -> bool:
  """Whether a source that is in the run's folder already was made with this option."""
  made = [n for n in _OPTIONS if (workdir.demonstrations / n / segment_files.MANIFEST).exists()]
  agent = agent_setting.agent(config)
  section, _, rest = option.partition(".")
  if section == agent.name:
    return bool(made) and rest.partition(".")[0] not in _undecided(agent)
  if section == "corpus":
    return bool(made) and rest != "cache"
  if option == "sft.beside":
    of_others = workdir.demonstrations.glob(f"*/{segment_files.MANIFEST}")
    return any(manifest.parent.name not in _OPTIONS for manifest in of_others)
  of_sources = {f"sft.{each}" for name in made for each in _OPTIONS[name]}
  return option in of_sources or (option == "seed" and bool(made))


def is_demonstrated(task: Task, share: float) -> bool:
  """Whether a task is among the `share` that is demonstrated: with all of its repository, if it is
  of one, and whatever the seed.
  """
  name = str(task.facts.get("repo", task.id)).encode()
  return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") < share * 2**64


def _copy_whole(kept: pathlib.Path, folder: pathlib.Path) -> None:
  """Copies a folder so that it appears whole or not at all."""
  fresh = folder.with_name(f".{folder.name}")
  shutil.rmtree(fresh, ignore_errors=True)
  with full_disk.named(folder.parent):
    shutil.copytree(kept, fresh)
    durable.replace(fresh, folder)


def _made(
  config: RunConfig, corpus: Tasks, name: str
) -> tuple[Iterator[Segment], Mapping[str, int]]:
  """The segments of a source, and how many of the episodes behind them the filter kept and why."""
  sft = config.sft
  agent, setting = agent_setting.agent(config), agent_setting.setting(config)
  counts = dict[str, int]()
  if name == "demonstrations":
    every = corpus.sample("train", len(corpus.tasks["train"]), config.seed)
    tasks = [task for task in every if is_demonstrated(task, sft.demonstration_share)]
    groups = play(
      config, corpus, tasks[: sft.demonstration_tasks], sft.rollouts_per_task, label=name
    )
    segments, found = agent.imitated(setting, groups)
    counts.update(found)
  elif name == "practice":
    groups = play(config, corpus, agent.practice(setting, corpus), 1, label=name)
    segments = (s for g in groups for t in g.trajectories if not t.error for s in t.segments)
  elif name == "copies":
    segments = segment_files.copy_segments(
      sft.copy_segments,
      DRILL_TOKENS,
      ids=np.concatenate([setting.chat.encode(text) for text in agent.texts(setting, corpus)]),
      max_period=DRILL_PERIOD,
      seed=config.seed,
    )
  else:
    segments = (segment_files.to_imitate(*drill) for drill in agent.drills(setting, corpus))
  if agent.has_stable_ids(config.agent_config):
    numbers, rng = numbers_lib.of(setting.chat), np.random.default_rng(config.seed)
    return (renumbered(s, numbers, rng) for s in segments), counts
  return iter(segments), counts


def play(
  config: RunConfig, corpus: Tasks, tasks: list[Task], rollouts: int, *, label: str
) -> list[Group]:
  """The demonstrator's episodes of `tasks`, played by workers, in the order of tasks.

  Meanwhile this process, which only waits, imports what it will read them with. (Not beside what it
  does itself: in CPython 3.11 `ast.parse` is not safe in two threads,
  https://github.com/python/cpython/issues/106905.)
  """
  agent = agent_setting.agent(config)
  agent.check_player(DEMONSTRATOR, config.agent_config)
  importing = threading.Thread(target=seqio_tasks, daemon=True)
  spec = setup.worker_spec(config, corpus, DEMONSTRATOR)
  sampling = setup.sampling(config, config.seed)
  groups: dict[str, Group] = {}
  scored, total = 0, 0.0
  with Progress(label, len(tasks)) as progress:
    for group in rollout_workers.scripted(
      config, spec, tasks, rollouts, sampling, label=label, ready=importing.start
    ):
      groups[group.id] = group
      for parts in (t.rewards for t in group.trajectories if not t.error):
        if agent.headline in parts:
          scored, total = scored + 1, total + parts[agent.headline]
      progress.advance(**{agent.headline: total / max(scored, 1)})
  importing.join(_IMPORT_S)  # one that takes longer still holds the lock of the import below
  return [groups[f"{label} {i}"] for i in range(len(tasks))]


def seqio_tasks() -> types.ModuleType:
  """The module of that name, imported here alone: it takes ten seconds and a gigabyte."""
  from jaxrl_agents.learner import seqio_mixture as module

  return module


def renumbered(segment: Segment, numbers: DocumentNumbers, rng: np.random.Generator) -> Segment:
  """The segment with the numbers of its documents and chunks drawn anew, consistently.

  They mean nothing; a policy must quote the ones it was shown, not remember them.
  """
  tokens = segment.tokens.copy()
  for places, ids in (
    (numbers.document_places(tokens), numbers.number_ids),
    (numbers.chunk_places(tokens), numbers.chunk_ids),
  ):
    fresh = ids[rng.permutation(len(ids))]
    tokens[places] = fresh[np.searchsorted(ids, tokens[places])]
  return dataclasses.replace(segment, tokens=tokens)
