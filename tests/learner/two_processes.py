"""One process of a run over eight devices; run by test_processes.

python -m tests.learner.two_processes FOLDER [COORDINATOR COUNT ID]

Alone it has all eight, and restores what two processes saved, under another mesh.
"""

import json
import pathlib
import sys

import jax
import numpy as np

from jaxrl_agents.learner import barriers, checkpoint
from jaxrl_agents.policy import sharding
from jaxrl_agents.runs import processes
from tests.learner import states
from tests.policy import eight_devices

# The outermost axis is cut between the processes: tokens go to the experts of the other one.
SIZES = {"expert": 4, "context": 2}
OTHER_SIZES = {"data": 2, "fsdp": 2, "tensor": 2}
CFG = eight_devices.PLAIN


def abstract(mesh, tx):
  place = lambda x, to: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=to)
  return jax.tree.map(place, states.abstract(CFG, tx), states.shardings(CFG, tx, mesh))


def run(folder):
  """Trains a step and samples; saves, or restores what was saved."""
  tx = eight_devices.optimizer(CFG)
  mesh = sharding.make_mesh(**SIZES)
  initial = eight_devices.initial(CFG)
  with jax.set_mesh(mesh):
    params = sharding.place(initial, sharding.shardings(CFG, mesh))
    (loss, _), grads, after = eight_devices.train(CFG, params, tx)
    generations = eight_devices.sample(CFG, params)
  several = jax.process_count() > 1
  with checkpoint.open_manager(folder / "checkpoints") as manager:
    if several:
      checkpoint.save(manager, 1, after, {"tasks": [3]}, keep=1)
    else:
      other = sharding.make_mesh(**OTHER_SIZES)
      restored, progress, step = checkpoint.restore(manager, abstract(other, tx))
      assert (progress, step) == ({"tasks": [3]}, 1)
      at_home = jax.tree.map(lambda x, t: x.sharding == t.sharding, restored, abstract(other, tx))
      assert all(jax.tree.leaves(at_home)), at_home
      close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
      jax.tree.map(close, restored.replace(key=0), after.replace(key=0))
  found = {
    "loss": float(loss),
    "grad_norms": [float(np.linalg.norm(g)) for g in jax.tree.leaves(barriers.gathered(grads))],
    "tokens": [g.tokens.tolist() for g in generations],
    "logprobs": [g.logprobs.tolist() for g in generations],
  }
  if processes.is_first():
    (folder / f"of_{jax.process_count()}.json").write_text(json.dumps(found))
  processes.wait_for_all("written")


if __name__ == "__main__":
  where, *numbers = sys.argv[1:]
  if numbers:
    processes.start(numbers[0], int(numbers[1]), int(numbers[2]))
  run(pathlib.Path(where))
