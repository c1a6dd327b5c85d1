"""What the trained policy of one run scores above that of another, on the tasks of both."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from jaxrl_agents.agents import scores
from jaxrl_agents.config import import_path
from jaxrl_agents.harness import group_files
from jaxrl_agents.types import Group
from jaxrl_agents.viewer import inputs

METRICS = ("reward", "output_recall", "solved", "performance")
"""Metrics that are compared; those that a run lacks are left out."""


def table(workdirs: Sequence[str | pathlib.Path]) -> str:
  """A row for each run but the first: the mean difference of each metric with its 95 % bounds.

  Tasks are resampled (`agents.scores.paired_bootstrap`), in whole clusters (`Agent.cluster`), so
  that the bounds are those of the two policies as they are, not of the two ways to train one.

  Raises:
    ValueError: fewer than two runs, one that has not finished, runs without a common task, or runs
      of other tasks by the same names.
  """
  if len(workdirs) < 2:
    raise ValueError("a paired comparison takes two runs or more; give --workdir again")
  trained = [_trained(pathlib.Path(each)) for each in workdirs]
  runs = list(zip(inputs.names(workdirs), trained, strict=True))
  first, of_first = runs[0][0], scores.scores(runs[0][1])
  clusters = _clusters(pathlib.Path(workdirs[0]), runs[0][1])
  rows = []
  for name, groups in runs[1:]:
    _check_same_tasks(runs[0], (name, groups))
    found = scores.scores(groups)
    cells = {
      metric: scores.paired_bootstrap(of_first[metric], found[metric], clusters=clusters)
      for metric in METRICS
      if metric in of_first and metric in found
    }
    texts = {m: f"{g.mean:+.3f} ({g.lower95:+.3f} to {g.upper95:+.3f})" for m, g in cells.items()}
    rows.append((name, max((g.tasks for g in cells.values()), default=0), texts))
  metrics = [m for m in METRICS if any(m in texts for _, _, texts in rows)]
  head = [f"{first} minus", "tasks", *(f"{m.replace('_', ' ')} (95 %)" for m in metrics)]
  lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
  for name, tasks, texts in rows:
    lines.append(f"| {' | '.join([name, str(tasks), *(texts.get(m, '–') for m in metrics)])} |")
  return "\n".join(lines)


def _trained(workdir: pathlib.Path) -> list[Group]:
  file = workdir / "trajectories" / "eval_trained.npz"
  if not file.is_file():
    raise ValueError(
      f"{workdir} has no evaluation of its trained policy ({file.name}); let the run finish"
    )
  return group_files.load_groups(file)


def _check_same_tasks(*runs: tuple[str, Sequence[Group]]) -> None:
  """Raises ValueError if a task of two runs, (name, groups) each, has different prompts in them."""
  (first, ours), (second, theirs) = runs
  prompts = {group.task.id: group.task.prompt for group in ours}
  for task in (group.task for group in theirs):
    if prompts.get(task.id, task.prompt) != task.prompt:
      raise ValueError(
        f"task {task.id!r} of {second} asks {task.prompt[:80]!r}, and in {first} "
        f"{prompts[task.id][:80]!r}: their tasks are different ones, so they cannot be compared"
      )


def _clusters(workdir: pathlib.Path, groups: Sequence[Group]) -> dict[str, str] | None:
  """{task id: its cluster}, as the agent of a run says; None if its summary names no agent."""
  name = inputs.read_run(workdir).summary.get("config", {}).get("agent")
  if name is None:
    return None
  agent = import_path.agent(name)
  return {group.task.id: agent.cluster(group.task) for group in groups}
