"""Memory of the server's process, as scripts/bench_gateway.py measures it."""

from scripts.bench import session_memory


def test_the_memory_of_a_server_does_not_grow_with_sessions_that_are_over():
  found = session_memory.measure("base", "model", sessions=200, rounds=2)
  assert 1.0 < found["session_kib"] < 20.0
  assert found["kept_session_kib"] > 4.0  # what each would add if it were not forgotten
  assert abs(found["growth_kib"]) < 1.0  # blocks of malloc, 132 KiB each, make some of it
