"""A policy that hides memory: whatever holds it, the limit on memory or a refusal ends it."""

import pytest

from tests.hostile.conftest import LIMITS

pytestmark = pytest.mark.slow

# Twelve processes hold something each, then all of it is held for a while. `call` makes a system
# call by its numbers on x86_64 and aarch64.
HOLDERS = """
import ctypes, mmap, os, platform, signal, socket, struct, sys, threading, time

libc = ctypes.CDLL(None, use_errno=True)
kept = []

def call(numbers, *arguments):
  number = numbers[platform.machine() == "aarch64"]
  words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
  result = libc.syscall(ctypes.c_long(number), *words)
  if result < 0:
    raise OSError(ctypes.get_errno(), "refused")
  return result

def fill(sock):
  sock.setblocking(False)
  try:
    while True:
      sock.send(bytes(4096))
  except BlockingIOError:
    pass

def hold(n):
{body}

done, end = os.pipe()
for n in range(12):
  if not os.fork():
    try:
      hold(n)
      os.write(end, b"x")
    except OSError as error:
      os.write(end, b"r")
    time.sleep(9)
    os._exit(0)
answers = b"".join(os.read(done, 1) for _ in range(12))
if b"r" in answers:
  print("refused")
else:
  time.sleep(2)
  print("held")
"""

WAYS = {
  "private memory": "kept.append(bytearray(40 << 20))",
  "private memory of a process that nobody may look into": """
libc.prctl(4, 0, 0, 0, 0)
kept.append(bytearray(40 << 20))""",
  "private memory of a process whose first thread has ended": """
def work():
  time.sleep(0.2)
  kept.append(bytearray(40 << 20))
  os.write(end, b"x")
  time.sleep(9)
threading.Thread(target=work).start()
call((60, 93), 0)""",
  "a shared mapping": "m = mmap.mmap(-1, 40 << 20); m.write(bytes(40 << 20)); kept.append(m)",
  "a shared mapping that no process has resident": """
m = mmap.mmap(-1, 40 << 20)
m.write(bytes(40 << 20))
m.madvise(mmap.MADV_DONTNEED)
kept.append(m)""",
  "a shared mapping of /dev/zero": """
f = open("/dev/zero", "r+b", buffering=0)
m = mmap.mmap(f.fileno(), 40 << 20)
m.write(bytes(40 << 20))
kept.append(m)""",
  "a file without a name, never mapped": "f = os.memfd_create('x'); os.write(f, bytes(40 << 20))",
  "a file without a name that waits in a socket": """
f = os.memfd_create('x')
os.write(f, bytes(30 << 20))
a, b = socket.socketpair()
socket.send_fds(a, [b"x"], [f])
os.close(f)
kept.append((a, b))""",
  "a secret mapping": "f = call((447, 447), 0); os.ftruncate(f, 40 << 20)",
  "huge pages": "kept.append(mmap.mmap(-1, 40 << 20, flags=0x40022))",
  "a segment of System V": """
segment = call((29, 194), 0, 40 << 20, 0o1600)
libc.shmat.restype = ctypes.c_void_p
ctypes.memset(libc.shmat(segment, None, 0), 1, 40 << 20)""",
  "semaphores of System V": "[call((64, 190), 0, 32000, 0o1600) for _ in range(40)]",
  "messages of System V": """
for _ in range(2000):
  queue = call((68, 186), 0, 0o1600)
  call((69, 189), queue, struct.pack("l8000s", 1, b""), 8000, 0o4000)""",
  "a message queue of POSIX": "call((240, 180), b'q%d' % n, 0o102, 0o600, None)",
  "pairs of local sockets": """
for _ in range(120):
  pair = socket.socketpair()
  fill(pair[0]), fill(pair[1]), kept.append(pair)""",
  "local sockets with larger buffers": """
for _ in range(120):
  pair = socket.socketpair()
  for s in pair:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    fill(s)
  kept.append(pair)""",
  "connections to itself": """
server = socket.create_server(("127.0.0.1", 0), backlog=200)
for _ in range(100):
  a = socket.create_connection(server.getsockname())
  b = server.accept()[0]
  fill(a), fill(b), kept.append((a, b))""",
  "connections that nobody accepts": """
server = socket.create_server(("127.0.0.1", 0), backlog=4000)
kept.append(server)
for _ in range(200):
  a = socket.create_connection(server.getsockname())
  fill(a), kept.append(a)""",
  "datagrams to itself": """
for _ in range(200):
  a = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
  a.bind(("127.0.0.1", 0))
  for _ in range(60):
    a.sendto(bytes(4096), a.getsockname())
  kept.append(a)""",
  "sockets in flight": """
for _ in range(100):
  a, b = socket.socketpair()
  pair = socket.socketpair()
  fill(pair[0]), fill(pair[1])
  socket.send_fds(a, [b"x"], [pair[0].fileno(), pair[1].fileno()])
  kept.append((a, b))""",
  "pipes": """
for _ in range(240):
  r, w = os.pipe()
  os.set_blocking(w, False)
  try:
    while True: os.write(w, bytes(4096))
  except BlockingIOError: os.close(w)""",
  "pipes of a thread with files of its own": """
def work():
  try:
    call((436, 436), 9999, 9999, 2)
    kept.extend(os.pipe() for _ in range(100))
    os.write(end, b"x")
  except OSError:
    os.write(end, b"r")
threading.Thread(target=work).start()
time.sleep(9)""",
  "larger pipes": """
import fcntl
r, w = os.pipe()
fcntl.fcntl(w, 1031, 1 << 20)""",
  "pages that a file has lost, in a pipe": """
f = os.open("x%d" % n, os.O_RDWR | os.O_CREAT)
os.write(f, bytes(1 << 20))
r, w = os.pipe()
os.splice(f, w, 4096, offset_src=0)""",
  "pages that a file has lost, in sockets": """
f = os.open("x%d" % n, os.O_RDWR | os.O_CREAT)
os.write(f, bytes(1 << 20))
server = socket.create_server(("127.0.0.1", 0))
a = socket.create_connection(server.getsockname())
os.sendfile(a.fileno(), f, 0, 1)""",
  "lists of rights": """
acl = struct.pack("<I", 2) + struct.pack("<HHI", 1, 7, 0xFFFFFFFF)
acl += struct.pack("<HHI", 2, 7, 1000) * 8000
for tag in (4, 16, 32):
  acl += struct.pack("<HHI", tag, 7, 0xFFFFFFFF)
os.mkdir("d%d" % n)
for i in range(400):
  path = "d%d/%d" % (n, i)
  os.mkdir(path)
  os.setxattr(path, "system.posix_acl_access", acl)
  os.setxattr(path, "system.posix_acl_default", acl)""",
  "attributes": """
os.mkdir("d%d" % n)
for i in range(600):
  path = "d%d/%d" % (n, i)
  os.mkdir(path)
  os.setxattr(path, "user.x", bytes(60_000))""",
  "asynchronous input": "call((206, 0), 60_000, ctypes.byref(ctypes.c_ulong()))",
}


@pytest.mark.parametrize("way", WAYS)
def test_memory_is_limited_or_refused_when_held_as(attempt, way):
  body = "".join(f"  {line}\n" for line in WAYS[way].strip().split("\n"))
  result = attempt(HOLDERS.replace("{body}", body), timeout_s=15)
  assert result.why == "memory" or result.output.endswith("refused\n"), result


def test_a_sandbox_that_was_stopped_for_its_memory_can_be_used_again(hostile):
  body = HOLDERS.replace("{body}", "  kept.append(bytearray(40 << 20))")

  async def run(boxes, base):
    async with await boxes.create(base) as box:
      await box.write("attempt.py", body)
      first = await box.exec("python3 attempt.py", timeout_s=15)
      return first.why, (await box.exec("echo on")).output

  assert hostile(run) == ("memory", "on\n")


def test_ordinary_programs_fit_into_the_smallest_limit(hostile):
  assert LIMITS.memory_bytes == 128 << 20  # SandboxLimits allows no less
  program = """
import asyncio, concurrent.futures, multiprocessing, pathlib, shutil, socket, subprocess, tempfile

async def main():
  server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
  port = server.sockets[0].getsockname()[1]
  for _ in range(20):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await reader.read() == b""
    writer.close()

def double(n):
  return 2 * n

if __name__ == "__main__":
  asyncio.run(main())
  with multiprocessing.Pool(3) as pool:
    assert pool.map(double, range(5)) == [0, 2, 4, 6, 8]
  value = multiprocessing.Value("i", 5)
  queue = multiprocessing.Queue()
  queue.put(value.value)
  assert queue.get() == 5
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    assert list(pool.map(double, range(9)))[8] == 16
  with tempfile.TemporaryDirectory() as folder:
    source = pathlib.Path(folder, "a")
    source.write_bytes(bytes(1 << 20))
    shutil.copy2(source, f"{folder}/b")
    shutil.copytree(folder, f"{folder}/c")
  command = "seq 9 | tail -1; head -c 100000 /dev/zero | wc -c; ulimit -n 100; nice true"
  shown = subprocess.run(command, shell=True, capture_output=True, text=True)
  print(shown.stdout, shown.stderr, "end")
"""

  async def run(boxes, base):
    async with await boxes.create(base) as box:
      await box.write("main.py", program)
      return await box.exec("python3 main.py", timeout_s=30)

  result = hostile(run)
  assert (result.output, result.why) == ("9\n100000\n  end\n", "")
