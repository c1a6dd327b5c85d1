"""The reranker over HTTP, against a local server that answers as each test wants."""

import contextlib
import http.server
import json
import threading

import pytest

from jaxrl_agents.corpus.index import rerank_endpoint
from jaxrl_agents.corpus.index.rerank_endpoint import RerankEndpoint, RerankError


@contextlib.contextmanager
def serving(*replies):
  """A server whose i-th request gets the i-th (status, body); yields address and requests."""
  seen, left = [], list(replies)

  class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
      body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
      seen.append((body, self.headers.get("Authorization")))
      status, reply = left.pop(0) if len(left) > 1 else left[0]
      content = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
      self.send_response(status)
      self.send_header("Content-Length", str(len(content)))
      self.end_headers()
      self.wfile.write(content)

    def log_message(self, *_):
      pass

  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
  thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
  thread.start()
  try:
    yield f"http://127.0.0.1:{server.server_port}/v1/rerank", seen
  finally:
    server.shutdown()
    server.server_close()
    thread.join(5)


def scored(*scores):
  """A reply with the scores of texts 0, 1, ..., best first as services give them."""
  results = [{"index": i, "relevance_score": score} for i, score in enumerate(scores)]
  return 200, {"results": sorted(results, key=lambda each: -each["relevance_score"])}


def test_scores_come_back_in_the_order_of_the_texts():
  with serving(scored(0.1, 0.9, 0.5)) as (url, seen):
    assert RerankEndpoint(url, "m", "secret")("which?", ["a", "b", "c"]) == [0.1, 0.9, 0.5]
  body = {"model": "m", "query": "which?", "documents": ["a", "b", "c"], "top_n": 3}
  assert seen == [(body, "Bearer secret")]


def test_nothing_is_asked_about_no_texts():
  assert RerankEndpoint("http://127.0.0.1:9/")("which?", []) == []


def test_a_busy_service_is_asked_again(monkeypatch):
  monkeypatch.setattr(rerank_endpoint, "PAUSES_S", (0.01, 0.01))
  with serving((503, {}), (429, {}), scored(1.0)) as (url, seen):
    assert RerankEndpoint(url)("which?", ["a"]) == [1.0]
  assert len(seen) == 3


@pytest.mark.parametrize(
  ("reply", "why"),
  [
    ((401, {}), "status 401"),
    ((200, b"<html>"), "its reply is not"),
    ((200, {"data": []}), "its reply is not"),
    ((200, b"[" * 100_000), "its reply is not"),
    (scored(1.0), "1 scores for 2 texts"),
    ((200, {"results": [{"index": i, "relevance_score": 1.0} for i in (0, 5)]}), "one for each"),
    (scored(1.0, float("inf")), "not finite"),
    ((200, b" " * (rerank_endpoint.MAX_BYTES + 1)), "more than"),
  ],
)
def test_a_reply_that_is_not_a_score_for_each_text_is_an_error_at_once(reply, why):
  with serving(reply) as (url, seen), pytest.raises(RerankError, match=why):
    RerankEndpoint(url)("which?", ["a", "b"])
  assert len(seen) == 1


def test_a_service_that_is_not_there_is_an_error_within_the_deadline():
  with pytest.raises(RerankError, match="http://127.0.0.1:9/ failed"):
    RerankEndpoint("http://127.0.0.1:9/", deadline_s=0.3)("which?", ["a"])
