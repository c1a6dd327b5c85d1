"""A real HTTP server on this machine that answers chat completions as a test tells it to."""

import contextlib
import http.server
import json
import re
import threading


def completion(content):
  """A chat completion with one message of the given content."""
  return {"choices": [{"message": {"role": "assistant", "content": content}}]}


def criteria(request):
  """The names of the criteria that a request asks about."""
  return re.findall(r'^- "(\w+)"', request["messages"][0]["content"], re.MULTILINE)


def verdict(request, grade, **flags):
  """The verdict that gives each criterion the same grade."""
  grades = dict.fromkeys(criteria(request), grade)
  return json.dumps(grades | {"violates": False, "injects": False} | flags)


@contextlib.contextmanager
def serving(answer):
  """The base address of a server, and the requests so far.

  `answer(handler, request, number)` returns a text, which is sent as a completion, (status, bytes),
  or None if it has sent something itself.
  """
  requests = []

  class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
      body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
      requests.append(body | {"authorization": self.headers.get("Authorization", "")})
      found = answer(self, body, len(requests) - 1)
      if isinstance(found, str):
        found = (200, json.dumps(completion(found)).encode())
      if found is not None:
        with contextlib.suppress(OSError):
          self.send_response(found[0])
          self.send_header("Content-Length", str(len(found[1])))
          self.end_headers()
          self.wfile.write(found[1])

    def log_message(self, *arguments):
      pass

  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
  server.daemon_threads = True
  thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
  thread.start()
  try:
    yield f"http://127.0.0.1:{server.server_port}/v1", requests
  finally:
    server.shutdown()
    server.server_close()
    thread.join(10)
