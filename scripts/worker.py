"""Workers of this machine for a run on another one: they play episodes, the run samples for them.

    JAXRL_KEY_FILE=KEY python scripts/worker.py --connect=HOST:PORT --processes=64

The run listens where `workers.listen` of its config says, and both hold the same key (JAXRL_KEY, or
the file that JAXRL_KEY_FILE names): without one nothing is let in, for messages are pickles, which
are code to whoever loads them. Nothing is encrypted: use a private network or a tunnel. Needs this
checkout, no accelerator and no jax, and the folder of the corpus' index, which the run names where
it is missing. The workers stay when the run ends, for the next one; they leave when there has been
none for --patience_s.
"""

import os

from absl import flags

from jaxrl_agents.harness import remote_worker
from jaxrl_agents.runs import entry_point

_CONNECT = flags.DEFINE_string("connect", None, "HOST:PORT of workers.listen", required=True)
_PROCESSES = flags.DEFINE_integer("processes", os.cpu_count() or 1, "worker processes")
_PATIENCE_S = flags.DEFINE_float("patience_s", 600.0, "seconds without a run until they leave")


def main() -> None:
  """Keeps the workers joined."""
  remote_worker.supervise(_CONNECT.value, _PROCESSES.value, _PATIENCE_S.value)


if __name__ == "__main__":
  entry_point.run(main)
