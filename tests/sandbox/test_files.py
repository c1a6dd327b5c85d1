"""Reading and writing files: links, pipes and folders inside lead nowhere and block nothing."""

import pytest

from jaxrl_agents.sandbox.errors import Refused

pytestmark = pytest.mark.slow


def test_what_is_written_is_read(in_box):
  content = bytes(range(256)) * 5000

  async def body(box):
    await box.write("new/deep/file", content)
    await box.write("/tmp/script", "#!/bin/sh\necho ran\n", mode=0o755)
    await box.write("pkg/a.txt", "short")
    return [
      await box.read("new/deep/file", limit=1 << 22),
      await box.read("/work/new/deep/file", offset=255, limit=3),
      await box.read("pkg/a.txt"),
      (await box.exec("/tmp/script; stat -c %U:%a new/deep/file")).output,
    ]

  whole, part, short, shown = in_box(body)
  assert whole == content and part == b"\xff\x00\x01" and short == b"short"
  assert shown == "ran\nuser:644\n"


@pytest.mark.parametrize(
  ("make", "path", "match"),
  [
    ("true", "absent", "No such file"),
    ("true", "pkg", "is a directory"),
    ("mkfifo p", "p", "no regular file"),
    ("ln -s p p", "p", "symbolic links"),
    ("true", "/dev/full", "no regular file"),
    ("true", "/proc/self/maps", "belongs to /proc"),
    ("true", "/proc/1/maps", "belongs to /proc"),
    ("ln -s /proc/self/status s", "s", "belongs to /proc"),
    ("echo 1 > f; chmod 0 f", "f", "Permission denied"),
    ("ln -s /etc/shadow s", "s", "No such file"),
    ("ln -s ../../../../root s", "s/.bashrc", "No such file"),
  ],
)
def test_what_is_no_readable_file_is_refused_in_words(in_box, make, path, match):
  async def body(box):
    await box.exec(make)
    with pytest.raises(Refused, match=match):
      await box.read(path)
    return (await box.exec("echo on")).output

  assert in_box(body) == "on\n"


@pytest.mark.parametrize(
  ("make", "path", "match"),
  [
    ("true", "/usr/x", "Read-only file system"),
    ("true", "/etc/passwd", "Permission denied|Read-only"),
    ("true", "/newtop/x", "Read-only file system"),
    ("mkfifo p", "p", "No such device|no regular file"),
    ("true", "pkg", "[Ii]s a directory"),
    ("echo > f", "f/g", "Not a directory|File exists"),
    ("ln -s /proc/self/comm c", "c", "Permission denied|belongs to /proc"),
  ],
)
def test_what_cannot_be_written_is_refused_in_words(in_box, make, path, match):
  async def body(box):
    await box.exec(make)
    with pytest.raises(Refused, match=match):
      await box.write(path, "x")
    return (await box.exec("echo on")).output

  assert in_box(body) == "on\n"
