"""The search that decides which clues of a task with hops are found."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence

from jaxrl_agents.agents.search.tasks import hops
from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.corpus.index import hybrid


@dataclasses.dataclass(frozen=True)
class HopSearch:
  """How the search tool of the environment finds.

  Attributes:
    cache_dir: of the index.
    dense: leg of the index.
    fusion: of its rankings.
  """

  cache_dir: str | os.PathLike[str]
  dense: hybrid.Dense
  fusion: hybrid.Fusion

  @property
  def settings(self) -> dict[str, object]:
    """All that decides what is found in given chunks, as a manifest holds it."""
    return {"dense": self.dense, **dataclasses.asdict(self.fusion)}

  @contextlib.contextmanager
  def over(self, chunks: Sequence[Chunk]) -> Iterator[hops.Search]:
    """A search of these chunks, while the context lasts; builds their index unless it exists.

    numpy has one thread meanwhile: for products as small as these a second one costs more than it
    brings, sevenfold on a machine whose cores are busy.
    """
    import threadpoolctl  # not needed by those who only play

    index = hybrid.build(chunks, self.cache_dir, dense_leg=self.dense)
    with threadpoolctl.threadpool_limits(1, "blas"):
      yield lambda query, limit: [
        hit.chunk.id for hit in index.search(query, limit=limit, settings=self.fusion)
      ]
