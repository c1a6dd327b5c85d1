"""A plan as text: memory against capacity, time, cost, bottleneck and what to change."""

from __future__ import annotations

from typing import Any

GIB = 2**30


def text(plan: dict[str, Any]) -> str:
  """The plan of `planning.plan.made` for a reader."""
  model = plan["model"]
  lines = [
    f"{plan['config']}: {model['parameters'] / 1e9:.4g} B parameters, "
    f"{model['active_parameters'] / 1e9:.3g} B active per token"
  ]
  for name in ("learner", "rollout"):
    if name in plan:
      lines += ["", *_part(name, plan[name])]
  if "together" in plan:
    memory = plan["together"]
    peak, capacity = memory["peak_bytes"] / GIB, memory["capacity_bytes"] / GIB
    verdict = "fits" if memory["fits"] else "DOES NOT FIT; sampler.slices gives samplers their own"
    lines += ["", f"both on the same chips: {peak:.1f} of {capacity:.1f} GiB: {verdict}"]
  return "\n".join(lines)


def _part(name: str, part: dict[str, Any]) -> list[str]:
  lines = [
    f"{name} on {part['topology']}: {part['chips']} chips, mesh {part['mesh']}, "
    f"parameters {part['parameter_dtype']}",
    *_memory(part["memory"]),
    *_programs(part["programs"]),
    *_time(part),
  ]
  lines += [f"  {line}" for line in part["advice"]]
  return lines


def _memory(memory: dict[str, Any]) -> list[str]:
  peak, capacity = memory["peak_bytes"] / GIB, memory["capacity_bytes"] / GIB
  verdict = "fits" if memory["fits"] else "DOES NOT FIT"
  where = f"at its peak, in {memory['peak_program']}"
  lines = [f"  memory per chip {where}: {peak:.1f} of {capacity:.1f} GiB: {verdict}"]
  for name, size in memory["parts_bytes"].items():
    lines.append(f"    {name:<14} {size / GIB:9.3f} GiB")
  return lines


def _programs(programs: list[dict[str, Any]]) -> list[str]:
  lines = ["  program        runs   compute s  collectives s   moved GB   compiled in s"]
  for each in programs:
    spent = f"{each['compute_s']:11.4g} {each['collective_s']:14.4g}"
    built = each["lower_s"] + each["compile_s"]
    moved = each["moved_bytes"] / 1e9
    lines.append(f"  {each['name']:<12} {each['runs']:6d} {spent} {moved:10.4g} {built:15.1f}")
    for file, length in each["guessed_loops"].items():
      lines.append(f"    a loop in {file} that the data bounds is taken to run {length:.0f} times")
    for kind, moved in each["collectives"].items():
      lines.append(f"    {kind:<34} {moved['bytes'] / 1e9:10.4g} GB in {moved['seconds']:.4g} s")
    for file, seconds in each["compute_by_file"].items():
      lines.append(f"    {file:<34} {seconds:10.4g} s")
  return lines


def _time(part: dict[str, Any]) -> list[str]:
  step, speed, mfu = part["step_s"], part["tokens_per_s"], part["mfu"]
  work = f"{part['flops_per_token'] / 1e9:.4g} GFLOP a token, {part['flops_per_step']:.4g} a step"
  lines = [
    f"  a step of {part['tokens_per_step']:,} tokens: {step['overlapped']:.4g} s where collectives "
    f"overlap, {step['serial']:.4g} s where none do (compute: {part['compute_from']})",
    f"  {work}: MFU {mfu['serial']:.1%} to {mfu['overlapped']:.1%}, {speed['serial']:,.0f} to "
    f"{speed['overlapped']:,.0f} tokens/s",
  ]
  if "usd_per_million_tokens" in part:
    cost = part["usd_per_million_tokens"]
    lines.append(
      f"  {cost['overlapped']:.3g} to {cost['serial']:.3g} USD per million tokens at "
      f"{part['usd_per_chip_hour']:g} USD per chip and hour"
    )
  return lines
