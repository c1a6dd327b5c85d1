"""Names the bottleneck of a plan, and what to change."""

from __future__ import annotations

from typing import Any

REMEDIES = {
  "parameters": "split them further: more chips, or larger fsdp and expert axes; or "
  "policy.dtype=bfloat16 if it is not",
  "optimizer": "split it further (more chips, a larger fsdp axis), or keep smaller moments "
  "(learner.optimizer=adamw8bit)",
  "gradients": "split them further (more chips, a larger fsdp axis)",
  "activations": "fewer tokens per chip: lower learner.row_tokens or rows_per_microbatch, "
  "raise mesh.context, set learner.remat=layer, or use more chips",
  "cache": "lower sampler.num_pages, or use more chips with fewer slots each",
  "next weights": "they are there beside the old ones in a swap: use more chips",
  "batch": "lower learner.rows_per_microbatch",
}


def of(part: dict[str, Any]) -> list[str]:
  """Lines on memory where it is short, else on what takes the time of the dearest program."""
  memory = part["memory"]
  parts = memory["parts_bytes"]
  if not memory["fits"]:
    largest = max(reversed(parts), key=lambda name: parts[name])
    over = (memory["peak_bytes"] - memory["capacity_bytes"]) / 2**30
    return [
      f"memory binds: {over:.1f} GiB too much; {largest} are the most "
      f"({parts[largest] / 2**30:.1f} GiB). {REMEDIES.get(largest, 'use more chips')}"
    ]
  programs = part["programs"]
  dearest = max(programs, key=lambda p: p["runs"] * max(p["compute_s"], p["collective_s"]))
  lines = []
  if dearest["collective_s"] > dearest["compute_s"]:
    kind = max(dearest["collectives"], key=lambda k: dearest["collectives"][k]["seconds"])
    seconds = dearest["collectives"][kind]["seconds"]
    lines.append(
      f"collectives bind {dearest['name']}: most by {kind}, {seconds:.3g} of "
      f"{dearest['collective_s']:.3g} s. More tokens per chip and microbatch, or a mesh with a "
      "smaller axis there, move less per token"
    )
  else:
    lines.append(f"computing binds {dearest['name']}{_dearest_file(dearest)}")
  return lines


def _dearest_file(program: dict[str, Any]) -> str:
  files = program["compute_by_file"]
  if not files:
    return ""
  file = max(files, key=lambda name: files[name])
  return f": most in {file}, {files[file]:.3g} of {program['compute_s']:.3g} s"
