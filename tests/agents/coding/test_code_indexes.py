"""Indexes of file trees that several episodes share."""

import threading

from jaxrl_agents.agents.coding.services import CodeIndexes


def test_an_index_is_built_once_by_threads_that_begin_together():
  indexes, barrier, found = CodeIndexes(60), threading.Barrier(6), []

  def look():
    barrier.wait()
    index = indexes.of("tree", {"a.py": "def add(x, y):\n  return x + y\n"})
    found.append((id(index), index.search("add", limit=1)[0].chunk.text))

  threads = [threading.Thread(target=look) for _ in range(6)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(30)
  assert len(found) == 6 and len(set(found)) == 1
