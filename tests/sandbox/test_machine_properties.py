"""What a machine adds to the promises of a sandbox."""

import pytest

from jaxrl_agents.sandbox.host import machine_properties
from jaxrl_agents.sandbox.records import Property, Report


@pytest.mark.parametrize(
  ("groups", "files", "expected"),
  [
    ("0::/\n", {}, False),
    ("0::/\n", {"memory.max": "max"}, False),
    ("0::/\n", {"memory.max": "34359738368"}, True),  # a container
    ("0::/user/run\n", {"user/memory.max": "34359738368", "user/run/memory.max": "max"}, True),
    ("0::/user\n", {"other/memory.max": "1000"}, False),
    ("4:memory:/a\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, False),
    ("4:memory:/a\n1:cpu:/\n", {"memory/a/memory.limit_in_bytes": "1073741824"}, True),
    ("4:cpu,memory:/docker/x\n", {"memory/memory.limit_in_bytes": "1073741824"}, True),
    ("4:cpu:/a\n", {"cpu/a/memory.max": "1"}, False),
  ],
)
def test_a_limit_on_memory_is_found_in_a_group_or_above_it(tmp_path, groups, files, expected):
  for name, text in files.items():
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(f"{text}\n")
  assert machine_properties.has_memory_limit(groups, tmp_path) is expected


@pytest.mark.parametrize(
  ("pattern", "holds"),
  [
    ("core", True),
    ("", True),
    ("|/usr/lib/systemd/systemd-coredump %P", False),
    ("@/run/s", False),
  ],
)
def test_a_program_that_takes_crashes_is_named_with_the_remedy(pattern, holds):
  found = machine_properties.crashes(pattern)
  assert found.holds is holds
  assert holds or (pattern[1:].split()[0] in found.why and "core_pattern" in found.remedy)


def test_what_a_machine_lacks_is_told_and_breaks_no_promise():
  lacking = machine_properties.kernel_memory(False)
  report = Report("namespaces", (Property("commands run", True), lacking))
  assert report.holds and lacking.remedy in str(report)
  broken = Report("namespaces", (Property("commands run", False, "why", "how"), lacking))
  assert not broken.holds
