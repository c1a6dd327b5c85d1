"""Where a machine keeps files that can be made again."""

from __future__ import annotations

import os
import pathlib

from jaxrl_agents.config.sections import CorpusConfig


def cache_folder(corpus: CorpusConfig) -> pathlib.Path:
  """$JAXRL_CACHE, else `corpus.cache`. The folder may not exist yet."""
  return pathlib.Path(os.environ.get("JAXRL_CACHE", corpus.cache)).expanduser()
