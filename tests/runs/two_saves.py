"""One process of several that save the weights of a policy together; run by test_several.

python two_saves.py FOLDER OPTIONS, in JSON: {"processes": ["127.0.0.1:7000", 2, 0], "mesh": {}}.
"""

import json
import pathlib
import sys

import jax

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy import sharding
from jaxrl_agents.runs import processes, weight_files
from tests.runs.small_run import CFG

if __name__ == "__main__":
  folder, options = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
  processes.start(*options["processes"])
  mesh = sharding.make_mesh(**options["mesh"])
  with jax.set_mesh(mesh):
    drawn = params_lib.init(CFG, jax.random.key(0))
    params = sharding.place(drawn, sharding.shardings(CFG, mesh))
    weight_files.save(params, CFG, folder)
