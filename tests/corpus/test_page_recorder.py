"""Pages recorded from a server of this machine, read back by the tool's store."""

import http.server
import threading
import time

import pytest

from jaxrl_agents.agents.coding import services
from jaxrl_agents.corpus import page_recorder

PAGES = {
  "/guide": ("text/html; charset=latin-1", b"<title>Caf\xe9</title><p>Use <b>walk</b>."),
  "/strict": ("application/xhtml+xml", b"<title>T</title><p>Strict"),
  "/code": ("text/html", b"<p>So:</p><pre>def f(x):\n    return  x\n</pre>"),
  "/odd": ("text/plain", "one\u2028two".encode()),
  "/plain": ("text/plain", b"  two\n  lines\n"),
  "/image": ("image/png", b"\x89PNG"),
  "/broken": ("text/plain", b"\xff\xfe\xfa"),
  "/long": ("text/plain", b"x" * 5_000_000),
}  # fmt: skip


class Handler(http.server.BaseHTTPRequestHandler):
  asked: list[str] = []

  def do_GET(self):
    self.asked.append(self.path)
    if self.path == "/headers":
      for _ in range(60):
        try:
          self.wfile.write(b"H")
          self.wfile.flush()
        except OSError:
          return
        time.sleep(0.05)
    elif self.path == "/slow":
      self.send_response(200)
      self.send_header("Content-Type", "text/plain")
      self.end_headers()
      for _ in range(40):
        try:
          self.wfile.write(b"drop by drop")
        except OSError:
          return
        time.sleep(0.05)
    elif self.path not in PAGES:
      self.send_error(404)
    else:
      kind, content = PAGES[self.path]
      self.send_response(200)
      self.send_header("Content-Type", kind)
      self.end_headers()
      self.wfile.write(content)

  def log_message(self, *_):
    pass


@pytest.fixture
def site():
  with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Handler.asked.clear()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_what_is_recorded_is_what_the_tool_reads_lines_of_code_kept(site, tmp_path):
  out = tmp_path / "pages.jsonl"
  told = list(page_recorder.record([f"{site}/{p}" for p in ("guide", "code", "odd", "plain")], out))
  assert [problem for _, problem in told] == ["", "", "", ""]
  pages = services.load_pages(out)
  assert pages.text(f"{site}/guide") == "Café\n\nUse walk."
  assert pages.text(f"{site}/code").endswith("So:\n\ndef f(x):\n    return  x")
  assert pages.text(f"{site}/plain#part") == "two\n  lines"
  assert pages.text(f"{site}/odd") == "one\u2028two"


def test_what_cannot_be_recorded_is_named_and_asked_for_again(site, tmp_path):
  out = tmp_path / "pages.jsonl"
  urls = [f"{site}/{p}" for p in ("nowhere", "image", "plain", "broken", "long", "plain")]
  urls += ["file:///etc/passwd", "http://127.0.0.1:9/", f"{site}/a space", "http://[bad"]
  problems = dict(page_recorder.record(urls, out, deadline_s=5))
  assert len(problems) == 9 and page_recorder.recorded(out) == {f"{site}/plain"}
  for name, said in (
    ("nowhere", "404"), ("image", "image/png is not text"), ("broken", "can't decode"),
    ("long", "more than 4000000 bytes"),
  ):  # fmt: skip
    assert said in problems[f"{site}/{name}"]
  assert "begin with http" in problems["file:///etc/passwd"]
  Handler.asked.clear()
  list(page_recorder.record(urls[:3], out))
  assert Handler.asked == ["/nowhere", "/image"]


def test_a_line_that_a_stop_cut_short_is_recorded_anew(site, tmp_path):
  out = tmp_path / "pages.jsonl"
  list(page_recorder.record([f"{site}/plain", f"{site}/code"], out))
  whole = out.read_text()
  out.write_text(whole[:-20])
  assert [url for url, _ in page_recorder.record([f"{site}/plain", f"{site}/code"], out)] == [
    f"{site}/code"
  ]
  assert out.read_text() == whole
  out.write_text(whole[:-1])  # a whole line without its end is kept
  assert list(page_recorder.record([f"{site}/code"], out)) == [] and out.read_text() == whole
  out.write_text("no json\n" + whole)
  with pytest.raises(ValueError, match="not JSON lines with a url"):
    list(page_recorder.record([f"{site}/code"], out))


def test_strict_html_is_read_as_html(site):
  assert page_recorder.fetched(f"{site}/strict")["title"] == "T"


@pytest.mark.parametrize("what", ["slow", "headers"])
def test_a_page_that_comes_drop_by_drop_is_given_up_at_its_deadline(site, what):
  began = time.monotonic()
  with pytest.raises(page_recorder.PageError, match=r"not whole after 0\.3 s"):
    page_recorder.fetched(f"{site}/{what}", deadline_s=0.3)
  assert time.monotonic() - began < 1.5
