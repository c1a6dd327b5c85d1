"""Serves a policy to agents and client libraries over HTTP.

    python scripts/serve.py --config=configs/search_cpu.py --checkpoint=W --port=8000 --key_file=KEY

Speaks /v1/chat/completions, /v1/completions, /v1/messages, /v1/responses and
/inference/v1/generate. With the key of KEY (made if it is not there) any of these may be asked;
POST /sessions opens a session whose calls are recorded as a trajectory. See docs/own-agent-http.md.
"""

from absl import flags

from jaxrl_agents.runs import config_flags, entry_point, serving, setup

_config = config_flags.define()
_CHECKPOINT = flags.DEFINE_string(
  "checkpoint", "base", "a workdir, a folder of exported weights, or 'base'"
)
_HOST = flags.DEFINE_string("host", "127.0.0.1", "address to listen at")
_PORT = flags.DEFINE_integer("port", 8000, "port to listen at, 0 for any free one")
_KEY_FILE = flags.DEFINE_string("key_file", None, "file of the service key", required=True)


def main() -> None:
  """Loads, compiles, serves."""
  config = _config()
  setup.compilation_cache(config)
  with setup.devices(config):
    serving.serve(
      config, _CHECKPOINT.value, host=_HOST.value, port=_PORT.value, key_file=_KEY_FILE.value
    )


if __name__ == "__main__":
  entry_point.run(main)
