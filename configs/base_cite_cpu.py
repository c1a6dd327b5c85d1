"""Second part of the base policy: quoting the ids of search results, on top of configs/base_cpu.py.

    python scripts/train_sft.py --config=configs/base_cite_cpu.py --workdir=W2 \\
        --set policy.init=W/warm_start
"""

import dataclasses
import pathlib

from jaxrl_agents import config


def get_config() -> config.RunConfig:
  """The demonstrations of the first part, with drills of listing ids in place of copying."""
  first = config.load(str(pathlib.Path(__file__).parent / "base_cpu.py"))
  sft = dataclasses.replace(
    first.sft,
    steps=150,
    lr=1e-3,
    copy_segments=0,
    citation_segments=8_000,
    rates=(1.0, 1.0, 0.0, 4.0, 0.0),
    mtp_steps=30,
    save_every=50,
  )
  return dataclasses.replace(first, name="base_cite_cpu", sft=sft)
