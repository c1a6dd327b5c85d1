"""mini-swe-agent over LiteLLM: refusals and broken connections."""

import os
import pathlib

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["MSWEA_COST_TRACKING"] = "ignore_errors"
os.environ["MSWEA_SILENT_STARTUP"] = "1"

import litellm
import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import builtin_config_dir
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel
from relay import Relay, fails

litellm.suppress_debug_info = True
relay = Relay(os.environ["OPENAI_BASE_URL"])
agent = yaml.safe_load((builtin_config_dir / "mini.yaml").read_text())["agent"]
templates = {name: agent[name] for name in ("system_template", "instance_template")}


def written(task, **options):
  """What the agent wrote into a file."""
  pathlib.Path("answer").unlink(missing_ok=True)
  model = LitellmModel(model_name="openai/policy", model_kwargs={"api_base": relay.url, **options})
  relay.repetitions = []
  DefaultAgent(model, LocalEnvironment(), **templates).run(f"Write 5 into a file, {task}.")
  return pathlib.Path("answer").read_text()


# As it is, and once more.
for _ in range(2):
  assert written("plain") == "5"
# A prompt that is too long ends the agent at once, a field that the gateway does not have after as
# many tries as for any other error.
with fails(litellm.ContextWindowExceededError, "prompt is too long: "):
  written("word " * 20_000)
assert relay.repetitions == [False]
os.environ["MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT"] = "2"
with fails(litellm.BadRequestError, "top_k is not supported; leave it out"):
  written("refused", top_k=5)
assert relay.repetitions == [False, False]
# The connection breaks while the second reply is sampled, or in the middle of it: OpenAI's library
# repeats the request and marks it, else the agent asks again.
for fault in ("lost", "cut"):
  relay.faults = ["", fault]
  assert written(fault) == "5"
  assert relay.repetitions == [False, False, True], relay.repetitions
relay.faults = ["", "lost"]
assert written("lost again", max_retries=0) == "5"
assert relay.repetitions == [False, False, False], relay.repetitions
print(5)
