"""mini-swe-agent over LiteLLM: a coding agent with a shell and nothing else."""

import os
import pathlib

os.environ["MSWEA_COST_TRACKING"] = "ignore_errors"
os.environ["MSWEA_SILENT_STARTUP"] = "1"

import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import builtin_config_dir
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

config = yaml.safe_load((builtin_config_dir / "mini.yaml").read_text())
model = LitellmModel(
  model_name="openai/policy", model_kwargs={"api_base": os.environ["OPENAI_BASE_URL"]}
)
agent = config["agent"]
templates = {name: agent[name] for name in ("system_template", "instance_template")}
coder = DefaultAgent(model, LocalEnvironment(), **templates)
coder.run("Write 5 into the file answer.")
print(pathlib.Path("answer").read_text())
