"""Makes conversations of a file the demonstrations of a warm-up (supervised fine-tuning).

    python scripts/import_chats.py --config=configs/search_cpu.py --chats=chats.jsonl --into=W
    python scripts/train_sft.py --config=configs/search_cpu.py --workdir=W --set sft.rates=1,0,0,0

Each line of the file is a JSON object in the form of OpenAI's chat API: `messages`, whose assistant
messages may hold `tool_calls`, `reasoning_content` and `weight`, and optionally `tools`. All
assistant turns are trained except those with a `weight` of 0, or with --last_only the last one of
them in each conversation. Conversations that do not fit `learner.row_tokens` are left out and
counted.
"""

import pathlib

from absl import flags

from jaxrl_agents.learner import segment_files
from jaxrl_agents.runs import (
  agent_setting,
  chat_examples,
  config_flags,
  entry_point,
  rejection_sampling,
  resumption,
)
from jaxrl_agents.runs.workdir import Workdir

_config = config_flags.define()
_CHATS = flags.DEFINE_string("chats", None, "file of JSON lines", required=True)
_INTO = flags.DEFINE_string("into", None, "folder of the next run", required=True)
_LAST_ONLY = flags.DEFINE_bool("last_only", False, "train the last turn of each conversation only")


def main() -> None:
  """Reads, renders, writes."""
  config = _config()
  segments, counts = chat_examples.examples(
    chat_examples.rows(pathlib.Path(_CHATS.value)),
    agent_setting.load_chat(config),
    most_tokens=config.learner.row_tokens,
    last_only=_LAST_ONLY.value,
  )
  if not segments:
    raise ValueError(
      f"all {counts['conversations']} conversations are longer than learner.row_tokens="
      f"{config.learner.row_tokens}; raise it"
    )
  into = Workdir(_INTO.value)  # makes the folder, and so comes after what can be wrong
  folder = rejection_sampling.check_new(into)
  with into.held():
    resumption.record_demonstrations(config, into)
    segment_files.write_segments(folder, segments, counts=counts)
    into.merge_summary({rejection_sampling.SOURCE: counts})
  trained = sum(int(segment.loss_mask.sum()) for segment in segments)
  print(
    f"{counts['kept']} of {counts['conversations']} conversations ({trained:,} trained tokens) are "
    f"the demonstrations of {into.path}; go on with scripts/train_sft.py "
    f"--config={flags.FLAGS.config} --workdir={into.path} --set sft.rates=1,0,0,0"
  )


if __name__ == "__main__":
  entry_point.run(main)
