"""The reranker of the search tool, against a local server that answers as each test wants."""

import asyncio
import dataclasses
import json
import time

import pytest

from jaxrl_agents import chat as chat_lib
from jaxrl_agents.agents import chat_endpoint
from jaxrl_agents.agents.chat_endpoint import Client, Endpoint, EndpointError
from jaxrl_agents.agents.search import config, reranking, reward, tools
from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.corpus.index import hybrid
from jaxrl_agents.corpus.index.hybrid import Hit
from tests.agents import judge_server
from tests.agents.search.arena import LIMITS, answer, calls, corpus, play

HITS = [Hit(Chunk(f"{i}_0", str(i), "", text, 0), 1.0 / (i + 1)) for i, text in enumerate("abc")]


def scored(*scores):
  """An answer with the scores of texts 0, 1, ..., best first as services give them."""
  results = [{"index": i, "relevance_score": score} for i, score in enumerate(scores)]
  results.sort(key=lambda each: -each["relevance_score"])
  return 200, json.dumps({"results": results}).encode()


def order(url, *, key="", deadline_s=10.0, tries=2):
  client = Client(Endpoint(url, "m", key, deadline_s, tries))
  found = asyncio.run(reranking.reranked(client, "which?", HITS, deadline_s=deadline_s))
  return [(hit.chunk.id, hit.score) for hit in found]


def test_hits_come_in_the_order_of_the_scores_and_equal_ones_as_they_were():
  with judge_server.serving(lambda *_: scored(0.5, 0.9, 0.5)) as (url, requests):
    assert order(url, key="secret") == [("1_0", 0.9), ("0_0", 0.5), ("2_0", 0.5)]
  body = {"model": "m", "query": "which?", "documents": ["a", "b", "c"], "top_n": 3}
  assert requests == [body | {"authorization": "Bearer secret"}]


def test_a_busy_service_is_asked_again(monkeypatch):
  monkeypatch.setattr(chat_endpoint, "FIRST_PAUSE_S", 0.01)
  busy_once = lambda handler, request, number: scored(1, 2, 3) if number else (503, b"")
  with judge_server.serving(busy_once) as (url, requests):
    assert [name for name, _ in order(url)] == ["2_0", "1_0", "0_0"]
  assert len(requests) == 2


@pytest.mark.parametrize(
  ("reply", "why"),
  [
    ((401, b"{}"), "status 401"),
    ((200, b"<html>"), "it is not"),
    ((200, b'{"data": []}'), "it is not"),
    ((200, b"[" * 100_000), "it is not"),
    (scored(1.0), "1 scores for 3 texts"),
    ((200, b'{"results": [{"index": "0", "relevance_score": 1}]}'), "1 scores for 3 texts"),
    (scored(1.0, 2.0, float("inf")), "not finite"),
  ],
)
def test_an_answer_without_a_score_for_each_text_is_an_error(monkeypatch, reply, why):
  monkeypatch.setattr(chat_endpoint, "FIRST_PAUSE_S", 0.01)
  with judge_server.serving(lambda *_: reply) as (url, _), pytest.raises(EndpointError, match=why):
    order(url)


def test_a_slow_service_is_an_error_before_the_deadline_of_the_tool():
  def slow(handler, request, number):
    time.sleep(1.0)
    return scored(1, 2, 3)

  with judge_server.serving(slow) as (url, _), pytest.raises(EndpointError, match="no scores"):
    order(url, deadline_s=0.4)


def services(folder, url, **options):
  limits = dataclasses.replace(LIMITS, rerank=config.Reranker(url, "m", **options))
  index = hybrid.build(corpus(), folder, rank=8)
  return tools.load_services(chat_lib.load(), str(index.folder), limits)


def test_the_reranker_decides_what_a_search_shows(tmp_path):
  last_first = lambda handler, request, number: scored(*range(len(request["documents"])))
  script = [calls(("search_corpus", "river")), answer("100_0")]
  with judge_server.serving(last_first) as (url, requests):
    shown = reward.shown_ids(play(services(tmp_path, url, candidates=6), script).log)
  assert [len(request["documents"]) for request in requests] == [6]
  candidates = hybrid.build(corpus(), tmp_path, rank=8).search("river", limit=6)
  best = [hit.chunk.id for hit in reversed(candidates)][: LIMITS.max_shown]
  assert shown == best[: len(shown)] and shown


def test_an_episode_whose_reranker_is_down_fails_and_earns_nothing(tmp_path):
  down = services(tmp_path, "http://127.0.0.1:9/v1")
  with pytest.raises(EndpointError, match="http://127.0.0.1:9/v1"):
    play(down, [calls(("search_corpus", "river")), answer("100_0")])


def test_the_key_of_the_reranker_must_be_there(tmp_path, monkeypatch):
  monkeypatch.delenv("RERANK_KEY", raising=False)
  with pytest.raises(ValueError, match="RERANK_KEY holds no key"):
    services(tmp_path, "http://127.0.0.1:9/v1", key_env="RERANK_KEY")
  monkeypatch.setenv("RERANK_KEY", "secret")
  found = services(tmp_path, "http://127.0.0.1:9/v1", key_env="RERANK_KEY")
  assert found.reranker.endpoint.key == "secret"
