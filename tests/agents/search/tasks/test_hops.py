"""Tasks with hops: what refers to another clue is found with the answer to that one alone."""

import asyncio
import collections
import dataclasses
import itertools
import re

import numpy as np
import pytest

from jaxrl_agents import chat as chat_lib
from jaxrl_agents.agents.agent import DEMONSTRATOR
from jaxrl_agents.agents.search import hop_drills, quotes, reward, step_drills, tools, view
from jaxrl_agents.agents.search.agent import AGENT
from jaxrl_agents.agents.search.config import SearchConfig
from jaxrl_agents.agents.search.tasks import code_names, hops, make_tasks, practice, task_set
from jaxrl_agents.agents.search.tasks.hop_search import HopSearch
from jaxrl_agents.corpus import chunks
from jaxrl_agents.corpus.index import hybrid
from jaxrl_agents.harness.rollout import Sampling, run_episode
from tests.agents.search.arena import LIMITS

FUSION = hybrid.Fusion(dense_weight=0.3)


@pytest.fixture(scope="module")
def made(source_folder, tmp_path_factory):
  """(task set, index) of tasks with hops."""
  cache = tmp_path_factory.mktemp("hops")
  hop_set, no_chains = make_tasks.make(
    source_folder,
    count_tokens=chunks.count_words_and_marks,
    chunk_tokens=90,
    limits={"train": 24, "dev": 4, "test": 8},
    hop_search=HopSearch(cache, "lsa", FUSION),
  )
  assert no_chains == {}
  return hop_set, hybrid.build(hop_set.chunks, cache)


def every(made):
  return [task for tasks in made[0].tasks.values() for task in tasks]


def found(index, query, limit):
  return [hit.chunk.id for hit in index.search(query, limit=limit, settings=FUSION)]


def hop_clues(task):
  return [clue for clue in task.facts["clues"] if "refers_to" in clue]


def source(task, clue):
  return task.facts["clues"][clue["refers_to"]]


def query(task, clue):
  if "refers_to" not in clue:
    return clue["text"]
  return f"{clue['text']}; {source(task, clue)['name']}"


def test_a_clue_that_refers_to_another_is_found_with_its_name_and_not_alone(made):
  index = made[1]
  for task in every(made):
    for clue in hop_clues(task):
      assert not set(clue["chunk_ids"]) & set(found(index, clue["text"], 12))
      assert set(clue["chunk_ids"]) & set(found(index, query(task, clue), 2))


def test_the_name_is_defined_in_the_hits_of_the_clue_referred_to_and_not_in_the_question(made):
  index = made[1]
  for task in every(made):
    for clue in hop_clues(task):
      asked = source(task, clue)
      seen = set(found(index, query(task, asked), 2)) & set(asked["chunk_ids"])
      names = code_names.defined("\n".join(index.chunk(i).text for i in seen))
      assert asked["name"] in names
      assert not code_names.stands_in(asked["name"], task.prompt)
    assert not code_names.stands_in(task.facts["truth"], task.prompt)


def test_all_other_clues_are_found_by_their_own_words(made):
  for task in every(made):
    for clue in task.facts["clues"]:
      if "refers_to" not in clue:
        assert set(clue["chunk_ids"]) & set(found(made[1], clue["text"], 2))


def test_a_level_more_is_a_hop_more_and_two_clues(made):
  levels = [task.facts["level"] for task in every(made)]
  assert {0, 1} <= set(levels) <= {0, 1, 2}
  for task in every(made):
    level = task.facts["level"]
    assert [clue.get("refers_to") for clue in task.facts["clues"][: level + 2]] == [
      None,
      *range(level + 1),
    ]
    assert (len(hop_clues(task)), len(task.facts["clues"])) == (level + 1, 2 * level + 3)
    final = [fact for fact in task.facts["facts"] if fact["is_final_answer"]]
    assert len(final) == 1 and set(final[0]["answer_chunk_ids"]) <= set(final[0]["chunk_ids"])


def test_no_gold_chunk_is_shared_by_two_splits(made):
  gold = [
    {i for task in tasks for i in reward.gold_ids(task.facts)} for tasks in made[0].tasks.values()
  ]
  assert all(gold)
  assert not (gold[0] & gold[1] or gold[0] & gold[2] or gold[1] & gold[2])


def test_a_frozen_set_with_hops_needs_the_option_and_one_without_refuses_it(made, tmp_path):
  task_set.save(made[0], tmp_path / "set")
  options = {
    "count_tokens": chunks.count_words_and_marks,
    "chunk_tokens": 90,
    "cache_dir": tmp_path,
  }
  search = HopSearch(tmp_path, "lsa", FUSION)
  assert make_tasks.prepared(tmp_path / "set", hop_search=search, **options).tasks == made[0].tasks
  with pytest.raises(ValueError, match=r"made with hops; set search\.hops=True"):
    make_tasks.prepared(tmp_path / "set", **options)


def test_a_corpus_without_code_has_no_tasks_with_hops_and_is_told_to_do_without(tmp_path):
  (tmp_path / "notes.txt").write_text("The river is long. A stone lies in it.")
  with pytest.raises(ValueError, match=r"no task could be made .* set search\.hops=False"):
    make_tasks.make(
      tmp_path,
      count_tokens=chunks.count_words_and_marks,
      chunk_tokens=90,
      hop_search=HopSearch(tmp_path / "cache", "lsa", FUSION),
    )


def test_names_are_what_a_passage_defines_or_calls_and_words_of_code():
  text = "def send(self, file_name):\n  return Reader(file_name).close(HTTP_OK, speed) or lastly"
  assert code_names.names(text) == ["send", "file_name", "Reader", "close", "HTTP_OK"]
  assert code_names.defined(f"class Reader(Base):\n  {text}") == ["Reader", "send"]


@pytest.fixture(scope="module")
def services(made):
  limits = dataclasses.replace(
    LIMITS, max_shown=2, dense_weight=0.3, token_budget=4_096, threshold_tokens=4_000, max_turns=20
  )
  return tools.SearchServices(
    chat_lib.load(), made[1], dataclasses.replace(limits, tool_output_tokens=900)
  )


def play(name, task, services):
  player = AGENT.player(name, task, services, 0, services.chat)
  sampling = Sampling(max_new_tokens=services.limits.max_new_tokens)
  return asyncio.run(run_episode(player, services.chat, player, task=task, sampling=sampling))


def test_the_expert_follows_hops_that_the_heuristic_cannot(made, services):
  tasks = [task for task in made[0].tasks["train"] if task.facts["level"] == 1][:4]
  for task in tasks:
    log = play("expert", task, services)
    assert log.rewards["output_recall"] == 1.0
    queries = [call.arguments["query"] for call in reward.calls(log.log)]
    assert {f" {query(task, clue)}" for clue in hop_clues(task)} <= set(queries)
    *turns, answer = [message.content for message in log.log if message.role == "assistant"]
    assert turns[0] == "1."
    for place, text in enumerate(turns):
      *marks, number = text.splitlines()
      listed = reward.answer_ids(text)
      assert number == f"{place + 1}." and len(marks) == len(listed) == place
      pairs = zip(listed, task.facts["clues"], strict=False)
      assert all(name in clue["chunk_ids"] for name, clue in pairs)
    assert reward.answer_ids(answer)[: len(listed)] == listed
  recall = lambda name: np.mean([play(name, t, services).rewards["output_recall"] for t in tasks])
  assert recall("heuristic_1x2") < recall("hops_1x2")


def test_what_is_before_a_quoted_token_may_stand_in_the_question_with_other_tokens_after():
  question = [1, 2, 3, 9, 1, 2, 4, 7, 2, 4, 8]
  assert quotes.ambiguity(question, [7]) == "after 0 ambiguous tokens"
  assert (
    quotes.ambiguity(question, [4]) == "after 1 ambiguous tokens"
  )  # 7 or 8, and 2 4 stands twice
  assert quotes.ambiguity(question, [3, 2]) == "after 1 ambiguous tokens"
  assert quotes.ambiguity(question, [5, 1, 2]) == "after 2 ambiguous tokens"


def test_quotes_of_an_episode_are_the_words_of_its_clues_and_the_names_from_hits(made, services):
  services = dataclasses.replace(services, chat=chat_lib.load("base"))
  task = next(task for task in made[0].tasks["train"] if task.facts["level"] == 1)
  played = play("expert", task, services)
  found = list(quotes.quotes(task, played, services.chat))
  clues = task.facts["clues"]
  text = lambda index, at: services.chat.decode([played.segments[index].tokens[at]])
  names = [clues[clue["refers_to"]]["name"] for clue in hop_clues(task)]
  taken = [text(i, quote.at).strip() for i, quote in found if quote.is_first is not None]
  assert len(taken) == len(names) and all(taken)
  assert all(name.startswith(token) for name, token in zip(names, taken, strict=True))
  words = "".join(text(i, quote.at) for i, quote in found if quote.is_first is None)
  assert words == "".join(f" {clue['text']}" for clue in clues)
  with pytest.raises(ValueError, match="no search task with clues"):
    next(quotes.quotes(dataclasses.replace(task, facts={}), played, services.chat))


def test_the_demonstrator_takes_the_first_name_that_hits_define(made, services):
  limits = dataclasses.replace(services.limits, generous=0.0, hops=True, hasty=0.0)
  services = dataclasses.replace(services, limits=limits)
  taken = wrong = 0
  for task in made[0].tasks["train"]:
    log = play(DEMONSTRATOR, task, services).log
    queries = [str(call.arguments["query"]) for call in reward.calls(log)]
    results = [message.content for message in log if message.role == "tool"]
    shown = dict(zip(queries, results, strict=True))
    asked = lambda clue, of=queries: next((q for q in of if clue["text"] in q), "")
    for clue in hop_clues(task):
      names = code_names.defined(shown.get(asked(source(task, clue)), ""))
      if names and asked(clue):
        taken += 1
        wrong += asked(clue) != f" {query(task, clue)}"
        assert asked(clue).endswith(f"; {names[0]}")
  assert taken > wrong > 0


@pytest.mark.parametrize("generous", [0.0, 1.0])
def test_a_generous_demonstrator_lists_all_hits_of_each_search(made, services, generous):
  limits = dataclasses.replace(services.limits, generous=generous, hops=True, hasty=0.0)
  services = dataclasses.replace(services, limits=limits)
  task = next(task for task in made[0].tasks["train"] if task.facts["level"] == 1)
  log = play(DEMONSTRATOR, task, services).log
  results = [reward.hit_ids(message.content) for message in log if message.role == "tool"]
  wanted = []
  for clue, hits in zip(task.facts["clues"], results, strict=True):
    right = next((i for i in hits if i in clue["chunk_ids"]), hits[0])
    wanted += hits if generous else [right]
  assert reward.answer_ids(log[-1].content) == wanted[: limits.max_documents]
  assert len(wanted) == (2 if generous else 1) * len(results)


def test_a_generous_demonstrator_prunes_all_hits_but_those_of_the_last_search(made, services):
  """Its list keeps their names, and the name of the next hop is in the hits of the last one."""
  limits = dataclasses.replace(
    services.limits, generous=1.0, hops=True, hasty=0.0, threshold_tokens=500
  )
  services = dataclasses.replace(services, limits=limits)
  prunes = 0
  for task in [task for task in made[0].tasks["train"] if task.facts["level"] > 0][:6]:
    log, shown, last = play(DEMONSTRATOR, task, services).log, [], []
    for message in log:
      for call in message.tool_calls:
        if call.name == reward.PRUNE_TOOL:
          prunes += 1
          assert call.arguments["chunk_ids"] == [i for i in shown if i not in last]
          shown = last
      hits = reward.hit_ids(message.content) if message.role == "tool" else []
      shown, last = [*shown, *hits], hits or last
    every_hit = [i for m in log if m.role == "tool" for i in reward.hit_ids(m.content)]
    assert reward.answer_ids(log[-1].content) == every_hit[: limits.max_documents]
  assert prunes > 2


def test_drills_quote_the_name_that_a_hit_defines_which_is_mostly_made_up(made):
  talk, index = chat_lib.load("base"), made[1]
  drills = list(
    hop_drills.hop_drills(
      made[0].tasks["train"],
      lambda i: index.chunk(i).text,
      lambda query: [hit.chunk for hit in index.search(query, limit=4, settings=FUSION)],
      talk,
      generous=0.5,
      count=60,
      seed=1,
    )
  )
  known = "\n".join(chunk.text for chunk in made[0].chunks)
  made_up, listed = [], []
  for drill in drills:
    prompt, reply = talk.decode(drill.prompt), talk.parse(drill.reply)
    name = reply.tool_calls[0].arguments["query"].rpartition("; ")[2]
    assert name == code_names.defined(prompt.partition("<|tool|>")[2])[0]
    shown, marks = reward.hit_ids(prompt), reward.answer_ids(reply.content)
    assert len(marks) in (1, len(shown)) and set(marks) <= set(shown)
    if len(shown) > 1:
      listed.append(len(marks))
    made_up.append(not code_names.stands_in(name, known))
    assert drill.renamed or not made_up[-1]
    assert name.startswith(talk.decode(drill.reply[drill.name_at : drill.name_at + 1]).strip())
  assert 0.5 < np.mean(made_up) < 0.95
  assert set(listed) == {1, 2}


def with_first_names(clues, found):
  """The queries for clues, each name being the first one that the hits for it define, [names]."""
  names = [each[:1] or [clue["name"]] for clue, each in zip(clues, found, strict=False)]
  taken = [{**clue, "name": name} for clue, (name,) in zip(clues, names, strict=False)]
  taken += clues[len(taken) :]
  return [f" {hops.query_of(taken, place)}" for place in range(len(clues))]


def without_repetitions(talk, tokens, trained):
  """A drill without what its replies repeat, which is not trained, and how many of them do."""
  kept, repeats = np.ones(len(tokens), bool), 0
  edges = np.flatnonzero(np.diff(trained, prepend=False, append=False))
  for (_, stop), (start, end) in itertools.pairwise(edges.reshape(-1, 2)):
    gap = talk.decode(tokens[stop:start])
    if "<|" not in gap:  # both are of one reply
      before = talk.decode(tokens[:stop]).rpartition("<|assistant|>")[2]
      whole = talk.decode(tokens[:end]).rpartition("<|assistant|>")[2]
      again = [int(i) for i in re.findall(r"\d+", gap)]
      assert again and len(re.findall("<Document", whole)) > len(reward.answer_ids(whole))
      assert set(reward.answer_ids(whole)) >= set(reward.answer_ids(before))
      kept[stop:start] = False
      repeats += 1
  return tokens[kept], trained[kept], repeats


def test_drills_of_steps_search_prune_above_the_threshold_and_answer_after_the_last_clue(
  made, monkeypatch
):
  monkeypatch.setattr(step_drills, "GARBLED", 0.0)
  talk, index = chat_lib.load("base"), made[1]
  tasks = made[0].tasks["train"]
  drills = step_drills.step_drills(
    tasks,
    lambda i: index.chunk(i).text,
    lambda query: [hit.chunk for hit in index.search(query, limit=4, settings=FUSION)],
    talk,
    SearchConfig(threshold_tokens=1_024, token_budget=1_536, generous=0.3),
    count=180,
    seed=1,
  )
  answers = pruned = strange = generous = failed = missed = repeats = ordered = selective = (
    cleared
  ) = mistaken = 0
  for played in drills:
    tokens, trained, repeating = without_repetitions(talk, *played)
    repeats += repeating
    edges = np.flatnonzero(np.diff(trained, prepend=False, append=False))
    start, stop = int(edges[-2]), int(edges[-1])
    assert stop == len(tokens)
    prompt, reply = talk.decode(tokens[:start]), talk.parse(tokens[start:])
    earlier = edges.reshape(-1, 2)[:-1]
    for a, b in edges.reshape(-1, 2):  # what a trained turn names stands before it
      turn = talk.parse(tokens[a:b])
      assert turn.tool_calls or b == len(tokens)
      named = set(reward.answer_ids(turn.content))
      assert turn.content.count("<Document") == len(named)  # each once
      for call in turn.tool_calls:
        named.update(call.arguments.get("chunk_ids", ()))
      before = talk.decode(tokens[:a])
      assert named <= {*reward.hit_ids(before), *reward.answer_ids(before)}
    searches = re.findall(
      r'(\d+)\.(?:<\|call\|>prune.*?)?<\|call\|>search_corpus{"query": "(.*?)"}', prompt
    )
    used = [int(n.replace(",", "")) for n in re.findall(r"Token usage: ([\d,]+)/1,024", prompt)]
    assert len(used) == len(searches) >= len(earlier)
    shown = reward.hit_ids(prompt)
    gone = re.findall(r'"(\d+_\d+)"', "".join(re.findall(r"prune_chunks{.*?}", prompt)))
    assert not set(gone) & set(shown)
    *prunes, search = reply.tool_calls or [None]
    texts = reply.content.splitlines()
    numbers = [int(number) for number, _ in searches]
    if search:
      numbers.append(int(texts.pop().removesuffix(".")))
    else:
      numbers.append(numbers[-1] + 1)
      answers += 1
    learnt = "".join(talk.decode(tokens[a:b]) for a, b in edges.reshape(-1, 2))
    results = re.findall(r"<\|tool\|>(.*?)<\|", prompt, re.DOTALL)
    results = [each for each in results if not each.startswith(view.PRUNED)]
    asked, found, lost, last = [], [], set(), set()
    steps = zip(searches, results, itertools.pairwise(numbers), strict=True)
    for (_, each), result, (number, following) in steps:
      if following == number:  # it failed and is made again
        failed += 1
        assert f'"{each}"' not in learnt
      else:
        if result.startswith(view.NO_RESULTS):
          lost.add(len(asked))
        asked.append(each)
        last = set(reward.hit_ids(result)) or last
        found.append(code_names.defined(result))
        assert following == number + 1 == len(asked) + 1
    listed = reward.answer_ids(reply.content)
    assert len(listed) == len(texts)
    assert set(listed) <= {*shown, *gone}
    same = [task for task in tasks if f"<|user|>{task.prompt}<|end|>" in prompt]
    if not same:  # some words of its clues are those of other clues
      strange += 1
      question = prompt.partition("<|end|>")[0]
      assert all(query.partition("; ")[0].strip() in question for query in asked)
      continue
    clues = same[0].facts["clues"]
    missed += len(lost)
    assert not lost & {clue.get("refers_to") for clue in clues}
    wanted = with_first_names(clues, [] if gone else found)  # what was pruned is not in sight
    mistaken += wanted != with_first_names(clues, [])
    begin = [each.rpartition("; ")[0] or each for each in wanted]
    assert all(map(str.startswith, asked, begin)) and (gone or asked == wanted[: len(asked)])
    right = {i for clue in clues for i in clue["chunk_ids"]}
    seen = [clue for i, clue in enumerate(clues[: len(asked)]) if i not in lost]
    assert all(set(clue["chunk_ids"]) & set(listed) for clue in seen)
    if not set(listed) <= right:
      generous += 1
      assert len(seen) < len(listed) <= 2 * len(seen)
    elif search:  # a generous one may list right hits alone, in the order of the search
      ordered += all(i in clue["chunk_ids"] for i, clue in zip(listed, seen, strict=False))
      selective += 1
    if not search:
      assert len(asked) == len(wanted)
      continue
    following = search.arguments["query"]
    assert following.startswith(begin[len(asked)]) and (gone or following == wanted[len(asked)])
    assert len(prunes) == (used[-1:] > [1_024])
    unneeded = set(shown) - right
    if not unneeded or not set(listed) <= right:  # all hits are listed and none is needed again
      unneeded = set(shown) - last
      cleared += len(prunes)
    for call in prunes:
      pruned += 1
      assert set(call.arguments["chunk_ids"]) == unneeded != set()
  assert 60 < answers < 120 and pruned > 3 and 40 < strange < 100 and 5 < generous < 60
  assert 5 < failed < 60 and 20 < repeats < 120 and missed > 3 and 0.9 * selective < ordered
  assert mistaken > 3 and cleared > 1


def test_after_a_reply_without_an_end_drills_train_the_turn_that_should_have_been(
  made, monkeypatch
):
  """The environment says of the reply what it says in episodes; the reply itself is not trained."""
  monkeypatch.setattr(step_drills, "GARBLED", 1.0)
  monkeypatch.setattr(step_drills, "FAILED", 0.0)
  monkeypatch.setattr(step_drills, "REPEATED", 0.0)
  talk, index = chat_lib.load("base"), made[1]
  found = collections.Counter()
  for tokens, trained in step_drills.step_drills(
    made[0].tasks["train"],
    lambda i: index.chunk(i).text,
    lambda query: [hit.chunk for hit in index.search(query, limit=4, settings=FUSION)],
    talk,
    SearchConfig(threshold_tokens=1_024, token_budget=1_536),
    count=40,
    seed=1,
  ):
    edges = np.flatnonzero(np.diff(trained, prepend=False, append=False)).reshape(-1, 2)
    for start, stop in edges:
      turn, before = talk.parse(tokens[start:stop]), talk.decode(tokens[:start])
      assert not any(call.error for call in turn.tool_calls)
      assert turn.content.count("<Document") == len(reward.answer_ids(turn.content))
      said = re.split(r"<\|assistant\|>", before)[-2]
      if "is not closed" in said:
        found["query"] += 1
        query = turn.tool_calls[-1].arguments["query"].split()
        garbled = re.findall(r'{"query": "(.*?)<\|end\|>', said, re.DOTALL)[0].split()
        assert garbled[0] == query[0] and len(garbled) > len(query)
      elif view.CUT_OFF in said:
        found["list"] += 1
        ids = re.findall(r"<Document id=(\w+)>", said)
        assert len(ids) > len(set(ids))
  assert min(found["query"], found["list"]) > 10


def test_drills_without_hops_are_refused():
  with pytest.raises(ValueError, match=r"search\.hops=True"):
    next(
      hop_drills.hop_drills(
        [], str, lambda query: [], chat_lib.load(), generous=0.0, count=1, seed=0
      )
    )


def test_practice_has_the_form_of_tasks_with_hops_and_clues_of_its_own(made):
  clues = [practice.Clue(f"text {i} of it", (f"1_{i}",), f"name{i}", "routine") for i in range(20)]
  for task in practice.hop_practice(clues, 40, seed=3):
    hops_of = hop_clues(task)
    assert len(task.facts["clues"]) == 2 * len(hops_of) + 1 and 1 <= len(hops_of) <= 3
    for place, clue in enumerate(task.facts["clues"]):
      tie = rf"; [a-z ]+ {place}" if clue in hops_of else ""
      assert re.search(rf"{place + 1}\. Routine: {clue['text']}{tie}\.", task.prompt)
      assert not code_names.stands_in(clue["name"], task.prompt)
  with pytest.raises(ValueError, match="6 clues .* needs at least 7; take a larger corpus"):
    practice.hop_practice(clues[:6], 1, seed=3)
  alike = [dataclasses.replace(clue, chunk_ids=("1_0",)) for clue in clues]
  with pytest.raises(ValueError, match="clues that share no chunk"):
    practice.hop_practice(alike, 1, seed=3)
  assert practice.hop_practice(clues, 3, seed=3) == practice.hop_practice(clues, 40, seed=3)[:3]
