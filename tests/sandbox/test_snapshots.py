"""States: snapshots, forks and diffs agree with a plain dict of files, however deep."""

import asyncio
import json
import os
import random
import shlex
import shutil
import time

import pytest

from jaxrl_agents.sandbox.errors import Refused, SandboxClosed
from jaxrl_agents.sandbox.records import Change, SandboxLimits

pytestmark = pytest.mark.slow

# Runs in the sandbox: prints what a dict model predicts.
LOOK = """
import json, os, stat, sys
seen = {}
for top in ("/work", "/tmp"):
  for folder, folders, names in os.walk(top):
    for name in folders + names:
      path = os.path.join(folder, name)
      found = os.lstat(path)
      if stat.S_ISLNK(found.st_mode): seen[path] = ["link", 0, os.readlink(path)]
      elif stat.S_ISDIR(found.st_mode): seen[path] = ["folder", found.st_mode & 0o777, ""]
      elif stat.S_ISFIFO(found.st_mode): seen[path] = ["pipe", found.st_mode & 0o777, ""]
      else: seen[path] = ["file", found.st_mode & 0o777, open(path).read()]
print(json.dumps(seen))
"""


async def look(box):
  result = await box.exec(f"python3 -c {shlex.quote(LOOK)}", output_bytes=4 << 20)
  assert result.code == 0, result
  return {path: tuple(entry) for path, entry in json.loads(result.output).items()}


ACTIONS = ["write", "write", "append", "remove", "folder", "rebuild", "link", "chmod"]
ACTIONS += ["move", "pipe", "move_folder"]


class Model:
  """The file tree as a dict, and the commands that change a sandbox the same way."""

  def __init__(self, seed):
    self.random = random.Random(seed)
    self.tree = {"/work/pkg": ("folder", 0o755, "")}
    self.tree |= {f"/work/pkg/f{i}": ("file", 0o644, f"base {i}\n") for i in range(3)}

  def copy(self):
    other = Model(self.random.random())
    other.tree = dict(self.tree)
    return other

  def folders(self):
    return ["/work", "/tmp", *(p for p, entry in self.tree.items() if entry[0] == "folder")]

  def of_kind(self, kind):
    return [path for path, entry in sorted(self.tree.items()) if entry[0] == kind]

  def below(self, path):
    return [p for p in self.tree if p == path or p.startswith(path + "/")]

  def step(self):  # noqa: C901 one branch for each kind of change
    """One random change to the dict; the command that makes it in a sandbox."""
    folder = self.random.choice(sorted(self.folders()))
    path = f"{folder}/{self.random.choice('abcd')}"
    action = self.random.choice(ACTIONS)
    text = str(self.random.randrange(10**6))
    files, links = self.of_kind("file"), self.of_kind("link")
    if action == "write" and self.tree.get(path, ("file",))[0] == "file":
      mode = self.tree[path][1] if path in self.tree else 0o644
      self.tree[path] = ("file", mode, text + "\n")
      return f"echo {text} > {path}"
    if action == "append" and files:
      path = self.random.choice(files)
      self.tree[path] = (*self.tree[path][:2], self.tree[path][2] + text + "\n")
      return f"echo {text} >> {path}"
    if action == "remove" and self.tree:
      path = self.random.choice(sorted(self.tree))
      for gone in self.below(path):
        del self.tree[gone]
      return f"rm -rf {path}"
    if action == "folder" and path not in self.tree:
      self.tree[path] = ("folder", 0o755, "")
      return f"mkdir {path}"
    if action == "rebuild" and len(self.folders()) > 2:
      path = self.random.choice(sorted(self.folders()[2:]))
      for gone in self.below(path):
        del self.tree[gone]
      self.tree |= {path: ("folder", 0o755, ""), f"{path}/new": ("file", 0o644, text + "\n")}
      return f"rm -r {path} && mkdir {path} && echo {text} > {path}/new"
    if action == "link" and (path not in self.tree or path in links):
      self.tree[path] = ("link", 0, f"../{text}")
      return f"ln -sfn ../{text} {path}"
    if action == "chmod" and files:
      path, mode = self.random.choice(files), self.random.choice([0o600, 0o755, 0o640])
      self.tree[path] = ("file", mode, self.tree[path][2])
      return f"chmod {mode:o} {path}"
    if action == "move" and files and path not in self.tree:
      source = self.random.choice(files)
      self.tree[path] = self.tree.pop(source)
      return f"mv {source} {path}"
    if action == "pipe" and path not in self.tree:
      self.tree[path] = ("pipe", 0o644, "")
      return f"mkfifo {path}"
    if action == "move_folder" and len(self.folders()) > 2 and path not in self.tree:
      source = self.random.choice(sorted(self.folders()[2:]))
      if not (path + "/").startswith(source + "/"):
        for old in self.below(source):
          self.tree[path + old.removeprefix(source)] = self.tree.pop(old)
        return f"mv {source} {path}"
    return "true"


@pytest.mark.parametrize("seed", range(3))
def test_sixty_four_nested_forks_agree_with_a_dict_of_files(play, seed):
  model = Model(seed)
  files = {f"pkg/f{i}": f"base {i}\n" for i in range(3)}

  async def body(boxes, base):
    saved = []
    box = await boxes.create(base)
    for depth in range(64):
      commands = [model.step() for _ in range(4)]
      result = await box.exec(" && ".join(commands))
      assert result.code == 0, (commands, result)
      snapshot = await box.snapshot()
      saved.append((snapshot, model.copy()))
      await box.close()
      box = await boxes.create(snapshot)
      if depth % 8 == 7 or depth < 4:
        assert await look(box) == model.tree, depth
    await box.close()
    for snapshot, at_the_time in model.random.sample(saved, 6):  # twice at once
      then = at_the_time.copy()
      pair = await asyncio.gather(boxes.create(snapshot), boxes.create(snapshot))
      command = then.step()
      await pair[0].exec(command)
      seen = await asyncio.gather(*map(look, pair))
      assert (seen[0], seen[1]) == (then.tree, at_the_time.tree), command
      await asyncio.gather(*(one.close() for one in pair))

  play(body, files=files)


@pytest.mark.parametrize("seed", range(3))
def test_a_diff_is_the_difference_of_two_dicts(play, seed):
  model = Model(100 + seed)
  files = {f"pkg/f{i}": f"base {i}\n" for i in range(3)}

  def kept(entry):
    return entry[0], entry[2].encode() if entry[0] in ("file", "link") else None, entry[1]

  async def body(boxes, base):
    box = await boxes.create(base)
    for _ in range(4):
      before = dict(model.tree)
      for _ in range(6):
        await box.exec(model.step())
      expected = {}
      for path in before.keys() | model.tree.keys():
        old, new = before.get(path), model.tree.get(path)
        if old != new:
          kind, content, mode = kept(new) if new else ("gone", None, 0)
          mode = 0o777 if kind == "link" else mode
          expected[path[1:]] = Change(kind, kept(old)[1] if old else None, content, mode)
      seen = {p: c for p, c in (await box.diff()).items() if p not in ("work", "tmp")}
      assert seen == expected
      (fork,) = await box.fork()
      await box.close()
      box = fork
    await box.close()

  play(body, files=files)


def test_a_restored_state_gives_the_same_observations(play):
  actions = [
    "pwd; echo $x $y; greet you; umask; alias ll",
    # All but the size of folders, which depends on the file system that a layer lies on.
    "find /work /tmp -type d -printf '%m %T@ %p\\n' -o -printf '%m %s %T@ %p\\n' | sort; cat gone",
    "cd ..; f=$(mktemp -u XX); echo ${#f}; set -u; echo $nothing",
    'echo on; shopt -p nullglob; printf \'%s\\n\' "${list[@]}" "${map[k]}"',
    "python3 -c 'print(hash(\"a\"))'; date +%Z; cat /tmp/note",
  ]

  async def body(boxes, base):
    async with await boxes.create(base) as box:
      await box.exec(
        "cd pkg; x=1; export y='two  words\n\"$x\"'; greet() { echo hello $1; }; umask 027"
      )
      await box.exec("shopt -s nullglob; list=(a 'b c'); declare -A map=([k]=v); alias ll='ls -l'")
      await box.exec("echo 1 > new; rm ../main.py; echo n > /tmp/note; echo b >> b.txt")
      snapshot = await box.snapshot()
      async with await boxes.create(snapshot) as again:
        live = [(r.code, r.output, r.cwd) for r in [await box.exec(a) for a in actions]]
        restored = [(r.code, r.output, r.cwd) for r in [await again.exec(a) for a in actions]]
    return live, restored

  live, restored = play(body)
  assert live[0][1].startswith('/work/pkg\n1 two words "$x"\nhello you\n0027\n')
  assert restored == live


def test_a_fork_is_alone_with_its_files(play):
  async def body(boxes, base):
    async with await boxes.create(base) as box:
      await box.exec("echo 1 > shared; (sleep 30 &) ")
      forks = await box.fork(3)
      await asyncio.gather(
        *(f.exec(f"echo {i} >> shared; rm main.py") for i, f in enumerate(forks))
      )
      seen = [await one.read("shared") for one in (box, *forks)]
      processes = await forks[0].exec("set -- /proc/[0-9]*; echo $#")
      whole = await box.read("main.py")
      await asyncio.gather(*(one.close() for one in forks))
      return seen, processes.output, whole

  seen, processes, whole = play(body)
  assert seen == [b"1\n", b"1\n0\n", b"1\n1\n", b"1\n2\n"]
  assert processes == "2\n"  # processes are not part of a state
  assert whole == b"print('hello')\n"


def test_a_fork_costs_what_changed_and_not_what_there_is(play):
  async def body(boxes, _):
    made = []
    for count in (50, 2500):
      base = await boxes.base({f"d{i // 50}/f{i}": "x = 1\n" * 50 for i in range(count)})
      made.append(await boxes.create(base))
      await made[-1].exec("echo 1 >> d0/f0")
    times = [[], []]
    for _ in range(25):  # by turns, so that both see the same machine
      for box, spent in zip(made, times, strict=True):
        start = time.perf_counter()
        (fork,) = await box.fork()
        spent.append(time.perf_counter() - start)
        await fork.close()
    return [min(spent) for spent in times]

  small, large = play(body)
  assert large < 2 * small


def test_snapshots_are_removed_when_no_sandbox_uses_them(play):
  async def body(boxes, base):
    folder = boxes.store.folder
    async with await boxes.create(base) as box:
      await box.exec("echo 1 > a")
      snapshot = await box.snapshot()
      one = await boxes.create(snapshot)
      boxes.drop(snapshot)
      seen = [(folder / snapshot.layers[0]).exists(), await one.read("a")]
      await one.close()
      return [*seen, (folder / snapshot.layers[0]).exists(), (folder / base.layers[0]).exists()]

  assert play(body) == [True, b"1\n", False, True]


def test_odd_files_survive_a_snapshot(play):
  code = r"""
import os, socket
os.makedirs("closed/in"); open("closed/in/f", "w").write("deep"); os.chmod("closed/in/f", 0)
os.chmod("closed", 0)
open(b"bad\xff\nname", "w").write("odd")
with open("sparse", "wb") as f: f.write(b"start"); f.seek(1 << 25); f.write(b"end")
open("one", "w").write("linked"); os.link("one", "two")
s = socket.socket(socket.AF_UNIX); s.bind("sock")
os.symlink("/etc/shadow", "shadow"); os.symlink("../../../..", "up")
os.chmod("main.py", 0o4755)
"""
  check = r"""
import os
print(oct(os.stat("closed").st_mode)); os.chmod("closed", 0o700); os.chmod("closed/in/f", 0o600)
print(open("closed/in/f").read(), open(b"bad\xff\nname").read())
with open("sparse", "rb") as f: print(f.read(5), f.seek(1 << 25), f.read())
print(os.stat("sparse").st_blocks < 100)
print(open("two").read(), os.path.exists("sock"), os.readlink("shadow"), os.path.exists("shadow"))
print(oct(os.stat("main.py").st_mode), sorted(os.listdir("up"))[:2])
"""

  async def body(boxes, base):
    async with await boxes.create(base) as box:
      await box.write("/tmp/make.py", code)
      await box.write("/tmp/check.py", check)
      made = await box.exec("python3 /tmp/make.py")
      changed = await box.diff()
      (fork,) = await box.fork()
      seen = await fork.exec("python3 /tmp/check.py")
      await fork.close()
      return made, changed, seen

  made, changed, seen = play(body, limits=SandboxLimits(disk_bytes=64 << 20))
  assert made.code == 0, made
  assert changed["work/closed/in/f"].new == b"deep" and changed["work/shadow"].new == b"/etc/shadow"
  assert seen.output.split("\n") == [
    "0o40000",
    "deep odd",
    "b'start' 33554432 b'end'",
    "True",
    "linked False /etc/shadow False",
    "0o100755 ['bin', 'dev']",
    "",
  ]


def test_a_strict_umask_of_the_host_changes_nothing(play):
  async def body(boxes, base):
    async with await boxes.create(base) as box:
      await box.exec("echo 1 > new; mkfifo p; mkdir d; chmod 755 p")
      (fork,) = await box.fork()
      shown = await fork.exec("stat -c '%a %n' * | sort -k2; cat main.py")
      await fork.close()
      return shown.output

  old = os.umask(0o077)
  try:
    shown = play(body)
  finally:
    os.umask(old)
  assert shown == ("755 d\n644 main.py\n644 new\n755 p\n755 pkg\n755 run.sh\nprint('hello')\n")


def test_holes_are_not_read_into_memory(in_box):
  async def body(box):
    await box.exec("for i in 1 2 3 4 5; do truncate -s 60M hole$i; done")
    with pytest.raises(Refused, match="holes"):
      await box.diff()
    return await box.read("hole1", limit=3)

  assert in_box(body, limits=SandboxLimits(disk_bytes=64 << 20)) == b"\0\0\0"


def test_a_saved_snapshot_outlives_its_process(play, tmp_path):
  file = tmp_path / "state"

  async def first(boxes, base):
    async with await boxes.create(base) as box:
      await box.exec("rm main.py; cd pkg; echo 1 > new; x=kept; rm -r /work/pkg/b.txt")
      (fork,) = await box.fork()
      await fork.exec("echo 2 >> new; mkdir -p /tmp/d; ln -s new link")
      await boxes.save(await fork.snapshot(), file)
      await fork.close()

  async def second(boxes, _):
    snapshot = await boxes.load(file)
    async with await boxes.create(snapshot) as box:
      shown = await box.exec("pwd; echo $x; cat link; ls . .. /tmp")
      return shown.output, sorted(await box.diff())

  play(first)
  shown, changed = play(second)
  assert shown == "/work/pkg\nkept\n1\n2\n.:\na.txt\nlink\nnew\n\n..:\npkg\nrun.sh\n\n/tmp:\nd\n"
  assert changed == []


def test_a_file_that_is_no_snapshot_or_has_no_base_is_refused(play, tmp_path):
  async def body(boxes, base):
    (tmp_path / "junk").write_bytes(b"junk" * 10)
    for name in ("junk", "absent"):
      with pytest.raises(ValueError, match="is no saved snapshot"):
        await boxes.load(tmp_path / name)
    async with await boxes.create(await boxes.base({"only": str(time.time())})) as box:
      snapshot = await box.snapshot()
      await boxes.save(snapshot, tmp_path / "state")
    shutil.rmtree(boxes.store.folder / snapshot.layers[1])
    with pytest.raises(ValueError, match="make the same base"):
      await boxes.load(tmp_path / "state")

  play(body)


def test_a_closed_sandbox_says_so(play):
  async def body(boxes, base):
    box = await boxes.create(base)
    await box.close()
    with pytest.raises(SandboxClosed, match="create another"):
      await box.exec("true")
    with pytest.raises(ValueError, match="at least 1"):
      async with await boxes.create(base) as other:
        await other.fork(0)

  play(body)
