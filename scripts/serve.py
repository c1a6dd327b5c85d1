"""Serves a policy to agents and client libraries over HTTP.

    python scripts/serve.py --config=configs/search_cpu.py --checkpoint=W --port=8000 --key_file=KEY

Speaks /v1/chat/completions, /v1/completions, /v1/messages, /v1/responses and
/inference/v1/generate. With the key of KEY (made if it is not there) any of these may be asked;
POST /sessions opens a session whose calls are recorded as a trajectory. See docs/own-agent-http.md.

    python scripts/serve.py --api=tinker --config=configs/search_cpu.py --key_file=KEY --models=M

serves Tinker's API instead: client programs train the policy, and save their models in M.
"""

from absl import flags

from jaxrl_agents.runs import config_flags, entry_point, serving, setup, tinker_service

_config = config_flags.define()
_API = flags.DEFINE_enum("api", "agents", ["agents", "tinker"], "which clients are served")
_CHECKPOINT = flags.DEFINE_string(
  "checkpoint", "", "a workdir, a folder of weights, or a shipped policy; by default policy.init"
)
_HOST = flags.DEFINE_string("host", "127.0.0.1", "address to listen at")
_PORT = flags.DEFINE_integer("port", 8000, "port to listen at, 0 for any free one", 0, 65535)
_KEY_FILE = flags.DEFINE_string("key_file", None, "file of the service key", required=True)
_MODELS = flags.DEFINE_string("models", None, "folder of saved models, for --api=tinker")


def main() -> None:
  """Loads, compiles, serves."""
  config = _config()
  address = {"host": _HOST.value, "port": _PORT.value, "key_file": _KEY_FILE.value}
  if (_API.value == "tinker") != bool(_MODELS.value):
    raise ValueError("--models names the folder of saved models, and goes with --api=tinker alone")
  checkpoint = _CHECKPOINT.value or config.policy.init
  setup.compilation_cache(config)
  setup.cores_as_devices(config)
  with setup.devices(config):
    if _API.value == "tinker":
      tinker_service.serve(config, checkpoint, directory=_MODELS.value, **address)
    else:
      serving.serve(config, checkpoint, **address)


if __name__ == "__main__":
  entry_point.run(main)
