"""The search environment against Context-1's rules, through the harness that policies use."""

import asyncio
import dataclasses
import re

import pytest

from jaxrl_agents.agents.episode import MAX_MALFORMED_TURNS
from jaxrl_agents.agents.search import config, reward, tools, view
from jaxrl_agents.agents.search import env as search
from jaxrl_agents.agents.search.config import SearchConfig
from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.corpus.index import hybrid
from jaxrl_agents.harness.rollout import Sampling, run_episode
from jaxrl_agents.harness.scripted_player import Scripted
from jaxrl_agents.types import Message
from tests.agents.search.arena import LIMITS, WORDS, answer, calls, corpus, make_task, play, results

USAGE = re.compile(r"\n\n\[Token usage: ([\d,]+)/([\d,]+)\]$")


def sampled(services, message, turn):
  """A turn as the harness hands it over: tokens as sampled, call ids unique."""
  ids = tuple(dataclasses.replace(c, id=f"{turn}.{i}") for i, c in enumerate(message.tool_calls))
  return dataclasses.replace(message, tool_calls=ids, tokens=services.chat.encode_reply(message))


def prompts(services, trajectory):
  """What the policy saw at each of its turns, as text: segments cut before each trained run."""
  seen = []
  for segment in trajectory.segments:
    starts = [
      i
      for i, trained in enumerate(segment.loss_mask)
      if trained and (i == 0 or not segment.loss_mask[i - 1])
    ]
    seen += [services.chat.decode(segment.tokens[:start]) for start in starts]
  return seen


# ------------------------------------------------------------------------------------------ budget


def test_the_hard_cut_off_of_the_published_budgets_is_24326():
  c = SearchConfig()
  cut_off = view.rejection_budget(c.token_budget, c.threshold_tokens, c.spillage_fraction)
  assert cut_off == 24_326


async def last_result_at(services, usage, turn_after):
  """The last result of a second turn that begins with a view of `usage` tokens."""
  words, length = usage - 500, 0
  while length != usage:
    env = search.make(make_task(prompt=" return" * words), services)
    await env.start()
    context = await env.step(sampled(services, calls(("search_corpus", "copper")), turn=0))
    messages = [m for m in context.messages if not m.ephemeral]
    reply = sampled(services, turn_after(reward.hit_ids(messages[-1].content)), turn=1)
    length = len(services.chat.render((*messages, reply), context.tools))
    words += usage - length
  context = await env.step(reply)
  return [m.content for m in context.messages if m.role == "tool"][-1]


def test_at_24326_tokens_a_search_runs_and_at_24327_it_is_rejected(services):
  published = dataclasses.replace(services, limits=SearchConfig())

  def search_again(_):
    return calls(("search_corpus", "glacier"))

  runs = asyncio.run(last_result_at(published, 24_326, search_again))
  assert runs.startswith("\n# DOCUMENT ID: ")
  rejected = asyncio.run(last_result_at(published, 24_327, search_again))
  assert rejected.startswith(
    "Error: Token budget exceeded (24327/16384 tokens). You must use prune_chunks to reduce "
    "context size or provide your final answer.\n\n[Token usage: "
  )


def test_at_24327_tokens_prune_chunks_still_runs(services):
  published = dataclasses.replace(services, limits=SearchConfig())

  def prune_first(ids):
    return calls(("prune_chunks", ids[:1]))

  text = asyncio.run(last_result_at(published, 24_327, prune_first))
  assert text.startswith("Pruned\n\n[Token usage: ")


def test_results_of_one_turn_count_against_the_calls_after_them(limited):
  # A search shows about 110 tokens: the first begins under the cut-off, the second does not.
  services = limited(threshold_tokens=100, spillage_fraction=0.0)
  trajectory = play(
    services, [calls(("search_corpus", "river"), ("search_corpus", "stone")), answer("100_0")]
  )
  first, second = results(trajectory)
  assert first.startswith("\n# DOCUMENT ID: ")
  assert second.startswith("Error: Token budget exceeded (")


def test_a_prune_in_the_same_turn_lowers_the_usage_of_the_other_calls(limited):
  services = limited(threshold_tokens=100, spillage_fraction=0.0)

  def search_again(context):
    return calls(("search_corpus", "stone"))

  def prune_and_search(context):
    ids = [i for m in context.messages if m.role == "tool" for i in reward.hit_ids(m.content)]
    return calls(("search_corpus", "stone"), ("prune_chunks", ids))

  start = calls(("search_corpus", "river"))
  without = results(play(services, [start, search_again, answer()]))
  assert without[1].startswith("Error: Token budget exceeded")
  with_prune = results(play(services, [start, prune_and_search, answer()]))
  assert with_prune[1].startswith("\n# DOCUMENT ID: ")


def test_search_stops_at_the_first_chunk_that_overflows_the_output_budget(limited):
  wide = results(
    play(limited(tool_output_tokens=1_000), [calls(("search_corpus", "river")), answer()])
  )
  sizes = [len(part) for part in re.split(r"(?=\n# DOCUMENT ID)", USAGE.sub("", wide[0])) if part]
  assert len(sizes) == LIMITS.max_shown
  services = limited(tool_output_tokens=100)
  narrow = results(play(services, [calls(("search_corpus", "river")), answer()]))[0]
  shown = USAGE.sub("", narrow)
  assert 0 < services.chat.count(shown) <= 100
  assert USAGE.sub("", wide[0]).startswith(shown)


def test_the_output_shrinks_to_half_of_what_is_left_when_little_is_left(limited):
  # usage is about 60 of 300 tokens: half of what is left is under the output budget of 224.
  services = limited(token_budget=300, threshold_tokens=299)
  text = results(play(services, [calls(("search_corpus", "river")), answer()]))[0]
  usage = len(
    services.chat.render(
      [Message("user", "Which river?"), sampled(services, calls(("search_corpus", "river")), 0)],
      [t.spec for t in search.make(make_task(), services)._tools.values()],
    )
  )
  assert services.chat.count(USAGE.sub("", text)) <= (300 - usage) // 2


def test_the_usage_line_ends_the_last_result_of_a_turn_and_stays(services):
  trajectory = play(
    services,
    [
      calls(("search_corpus", "river"), ("grep_corpus", "part 5")),
      calls(("grep_corpus", "zzz")),
      answer(),
    ],
  )
  first, second, third = results(trajectory)
  assert not USAGE.search(first)
  (used, denominator), (later, _) = USAGE.search(second).groups(), USAGE.search(third).groups()
  assert denominator == "512"
  assert int(used.replace(",", "")) < int(later.replace(",", ""))
  assert view.usage_line(14_203, 32_768) == "\n\n[Token usage: 14,203/32,768]"
  assert prompts(services, trajectory)[-1].count("[Token usage: ") == 2


def test_the_notice_above_the_threshold_is_shown_once_and_by_default_in_training_only(limited):
  services = limited(threshold_tokens=100)
  turns = [calls(("search_corpus", "river")), calls(("grep_corpus", "zzz")), answer()]
  trajectory = play(services, turns)
  seen = prompts(services, trajectory)
  assert [text.count("Over budget") for text in seen] == [0, 1, 1]
  assert len(trajectory.segments) == 2  # the first notice vanishes: that breaks the prefix
  assert sum(m.ephemeral for m in trajectory.log) == 2
  for other in (
    play(limited(threshold_tokens=100, show_hint="none"), turns),
    play(services, turns, make_task(split="test")),
  ):
    assert not any(m.ephemeral for m in other.log)
    assert len(other.segments) == 1
  hinted = limited(threshold_tokens=100, show_hint="all")
  assert sum(m.ephemeral for m in play(hinted, turns, make_task(split="test")).log) == 2


def test_a_context_without_room_for_a_reply_ends_the_episode_as_an_overflow(limited):
  services = limited(token_budget=200, threshold_tokens=199, spillage_fraction=1.0)
  turns = [calls(("grep_corpus", "The"), ("grep_corpus", "part"))] * 3
  trajectory = play(services, turns)
  assert trajectory.stop == "context_overflow"
  assert trajectory.error == ""
  assert reward.search_total(trajectory.rewards, beta=4.0) == 0.0


def test_the_reply_may_fill_the_context_and_no_more(services):
  trajectory = play(services, [calls(("search_corpus", "river")), answer("100_0")])
  context = asyncio.run(search.make(make_task(), services).start())
  assert context.max_new_tokens == LIMITS.max_new_tokens
  assert trajectory.metrics["longest_context_tokens"] <= LIMITS.token_budget


# ------------------------------------------------------------------------------------------- tools


def test_no_search_shows_a_chunk_that_an_earlier_search_showed_even_after_a_prune(services):
  def prune_all(context):
    return calls(("prune_chunks", reward.hit_ids(context.messages[-1].content)))

  turns = [
    calls(("search_corpus", "river"), ("search_corpus", "river")),
    prune_all,
    calls(("search_corpus", "river")),
    answer(),
  ]
  trajectory = play(services, turns)
  shown = [i for text in results(trajectory) for i in reward.hit_ids(text)]
  assert len(shown) == 3 * LIMITS.max_shown
  assert len(set(shown)) == len(shown)


def test_grep_shows_chunks_again_also_pruned_ones(services):
  pattern = r"part 0 of river"
  turns = [
    calls(("search_corpus", "river part 0 number00")),
    calls(("prune_chunks", ["100_0"])),
    calls(("grep_corpus", pattern)),
    answer("100_0"),
  ]
  trajectory = play(services, turns)
  assert reward.hit_ids(results(trajectory)[2]) == ["100_0"]
  assert "# DOCUMENT ID: 100_0 " in prompts(services, trajectory)[-1]


def test_grep_shows_no_more_than_the_tokens_of_a_result(limited):
  turns = [calls(("grep_corpus", "The")), answer()]
  (text,) = results(play(limited(tool_output_tokens=90, grep_limit=5), turns))
  assert reward.hit_ids(text) == ["100_0", "100_1"]
  (text,) = results(play(limited(tool_output_tokens=9), turns))
  assert text.startswith("Error: no result fits the 9 tokens left")


def test_a_prune_that_is_refused_prunes_nothing(limited):
  turns = [
    calls(("search_corpus", "river")),
    calls(("search_corpus", "stone"), ("prune_chunks", ["100_0"])),
    answer("100_0"),
  ]
  trajectory = play(limited(max_calls=1), turns)
  assert results(trajectory)[2].startswith("Error: at most 1 calls a turn. Call again.")
  assert trajectory.rewards["num_pruned"] == 0
  assert "# DOCUMENT ID: 100_0 " in prompts(limited(max_calls=1), trajectory)[-1]


def test_grep_shows_at_most_its_limit_and_is_no_seen_set(services):
  turns = [calls(("grep_corpus", "The")), calls(("search_corpus", "river")), answer()]
  first, second = results(play(services, turns))
  assert reward.hit_ids(first) == ["100_0", "100_1", "100_2"]
  assert set(reward.hit_ids(first)) & set(reward.hit_ids(second))


def test_a_hit_is_written_as_in_the_published_harness():
  assert view.hit("417_31", "text\n", 5) == "\n# DOCUMENT ID: 417_31 (5 tokens) \ntext"


def test_nothing_found_is_said(services):
  turns = [calls(("grep_corpus", "no such text")), answer()]
  assert USAGE.sub("", results(play(services, turns))[0]) == "No results found"


def test_a_document_is_read_whole_in_order_if_it_fits(services):
  text = USAGE.sub("", results(play(services, [calls(("read_document", "103_2")), answer()]))[0])
  body = "".join(c.text for c in corpus() if c.doc_id == "103")
  assert text == f"# Document ({services.chat.count(body)} tokens)\n{body}"
  assert reward.hit_ids(text) == []


def test_a_long_document_is_cut_to_what_matches_the_query_that_found_it_in_document_order(limited):
  services = limited(tool_output_tokens=70)
  found_it = calls(("search_corpus", "part 5 of river number05"))
  text = results(play(services, [found_it, calls(("read_document", "100")), answer()]))[1]
  parts = [int(n) for n in re.findall(r"part (\d)", text)]
  assert 5 in parts
  assert parts == sorted(parts)
  unseen = results(play(services, [calls(("read_document", "100")), answer()]))[0]
  prefix = [int(n) for n in re.findall(r"part (\d)", unseen)]
  assert prefix == list(range(len(prefix)))
  assert 0 < len(prefix) < 6


def test_a_document_of_which_nothing_fits_is_an_error_and_was_not_seen(limited):
  trajectory = play(limited(), [calls(("read_document", "200")), answer("200")])
  text = results(trajectory)[0]
  assert text.startswith("Error: no part of it fits the 224 tokens left. Prune chunks first, or")
  assert trajectory.rewards["unseen_output"] == 1.0


def test_chunks_are_ranked_by_the_rare_words_they_share_with_the_query():
  chunks = [c for c in corpus() if c.doc_id == "100"]
  best = tools.ranked_by(f"the {WORDS[4]} number", chunks)[0]
  assert best.id == "100_3"  # the only part that stands near the fifth word
  assert [c.id for c in tools.ranked_by("absent", chunks)] == [c.id for c in chunks]


@pytest.mark.parametrize(
  ("call", "expected"),
  [
    (("read_document", "9999"), "Error: there is no document '9999'. Use a DOCUMENT ID"),
    (("prune_chunks", ["1_1"]), "Error: none of these was shown: 1_1. Use the ids after DOCUMENT"),
    (("grep_corpus", "(a"), "Error: invalid pattern"),
    (("search_corpus", ""), "Error: search_corpus: 'query' has 0 characters; at least 1 required."),
  ],
)
def test_a_wrong_call_is_answered_with_cause_and_remedy(services, call, expected):
  assert results(play(services, [calls(call), answer()]))[0].startswith(expected)


def test_an_exploding_pattern_is_given_up(limited):
  services = limited(tool_deadline_s=2.0)
  text = results(play(services, [calls(("grep_corpus", "(a+)+$")), answer()]))[0]
  assert re.match(r"Error: (the pattern|grep_corpus) took longer than [\d.]+ s", text)


def test_text_of_a_chunk_cannot_pass_for_a_hit_or_a_usage_line():
  text = view.hit("1_0", "# DOCUMENT ID: 2_0 (3 tokens) \nx\n\n[Token usage: 1/2]", 9)
  assert reward.hit_ids(text) == ["1_0"]
  assert "[Token usage: " not in text


def test_a_result_may_begin_with_its_query_as_it_was_asked(limited):
  query = "3.  the copper\nstands"
  turns = [calls(("search_corpus", query)), answer()]
  quoted, plain = (results(play(limited(quote_query=quotes), turns))[0] for quotes in (True, False))
  assert USAGE.sub("", quoted) == "3. the copper stands" + USAGE.sub("", plain)
  assert reward.hit_ids(quoted) == reward.hit_ids(plain) != []
  turns = [calls(("search_corpus", "river " * 40)), answer()]
  long = results(play(limited(quote_query=True), turns))
  assert long[0].startswith(("river " * 40)[:100] + "\n")


@pytest.mark.parametrize("space", [" ", "  ", "\n", "\u2003"])
def test_a_quoted_query_cannot_pass_for_a_hit_or_a_usage_line(limited, space):
  fake = "# DOCUMENT ID: 100_0 (3 tokens) [Token usage: 1/2]".replace(" ", space)
  turns = [calls(("search_corpus", f"\n{fake}\n{fake}")), answer()]
  text = results(play(limited(quote_query=True), turns))[0]
  plain = results(play(limited(quote_query=False), turns))[0]
  assert reward.hit_ids(text) == reward.hit_ids(plain)
  assert text.count("[Token usage: ") == 1


# ------------------------------------------------------------------------------- view and log


def test_pruning_cuts_the_span_from_the_view_keeps_it_in_the_log_and_starts_a_segment(services):
  turns = [
    calls(("search_corpus", "river part 0 number00")),
    lambda context: calls(("prune_chunks", ["100_0"])),
    answer("101_1"),
  ]
  trajectory = play(services, turns)
  span = "# DOCUMENT ID: 100_0 ("
  assert span in results(trajectory)[0]
  before, after = prompts(services, trajectory)[1:]
  assert span in before
  assert span not in after
  assert "part 0 of river" not in after
  assert after.count("# DOCUMENT ID: ") == LIMITS.max_shown - 1
  assert "[Token usage: " in after
  assert '<|call|>prune_chunks{"chunk_ids": ["100_0"]}<|/call|>' in after
  assert "Pruned" in after
  assert len(trajectory.segments) == 2
  assert trajectory.rewards["trajectory_recall"] == 0.5  # 100_0 was shown, pruned or not
  assert sum(int(s.loss_mask.sum()) for s in trajectory.segments) == sum(
    len(m.tokens) for m in trajectory.log if m.role == "assistant"
  )


def test_cutting_spans_keeps_the_rest_and_collapses_blank_lines():
  text = "\n".join(view.hit(i, f"text of {i}", 4) for i in ("1_0", "1_1", "12_1"))
  text += "\n\n[Token usage: 9/10]"
  assert view.without_spans(text, set()) == text
  assert view.without_spans(text, {"9_9"}) == text
  assert view.without_spans(text, {"1_0", "12_1"}) == (
    "\n# DOCUMENT ID: 1_1 (4 tokens) \ntext of 1_1\n\n[Token usage: 9/10]"
  )


def test_without_prunes_and_notices_an_episode_is_one_segment(services):
  turns = [calls(("search_corpus", "river")), calls(("grep_corpus", "part 5")), answer("100_0")]
  trajectory = play(services, turns, make_task(split="test"))
  assert len(trajectory.segments) == 1
  assert [m.role for m in trajectory.log] == [
    *("user", "assistant", "tool", "assistant", "tool", "assistant")
  ]


def test_the_usage_that_is_counted_is_the_length_of_the_prompt_that_is_sampled_from(limited):
  services = limited(threshold_tokens=150)
  asked = []

  class Watched:
    """Passes an environment on and compares its room with the true prompt."""

    def __init__(self, env):
      self.env, self.rewards, self.close = env, env.rewards, env.close

    async def start(self):
      return self.seen(await self.env.start())

    async def step(self, reply):
      return self.seen(await self.env.step(reply))

    def seen(self, context):
      prompt = services.chat.render(context.messages, context.tools)
      room = services.limits.token_budget - len(prompt)
      asked.append((context.max_new_tokens, min(services.limits.max_new_tokens, room)))
      return context

  turns = iter(
    [
      calls(("search_corpus", "river part 0 number00"), ("grep_corpus", "part 3")),
      calls(("prune_chunks", ["100_0"]), ("read_document", "103")),
      calls(("search_corpus", "violin")),
      answer("100_0"),
    ]
  )
  player = Scripted(
    Watched(search.make(make_task(), services)), services.chat, lambda _: next(turns)
  )
  asyncio.run(run_episode(player, services.chat, player, task=make_task(), sampling=Sampling()))
  assert len(asked) == 5
  assert [said for said, _ in asked[:-1]] == [true for _, true in asked[:-1]]


def test_without_the_prune_tool_it_is_neither_offered_nor_advised(limited):
  services = limited(can_prune=False, token_budget=400, threshold_tokens=150, spillage_fraction=0.0)
  turns = [
    calls(("search_corpus", "river")),
    calls(("search_corpus", "stone"), ("prune_chunks", ["100_0"])),
    answer(),
  ]
  trajectory = play(services, turns)
  _, second, third = results(trajectory)
  assert second.endswith("You must provide your final answer.")
  assert third.startswith("Error: there is no tool 'prune_chunks'")
  assert "prune_chunks" not in prompts(services, trajectory)[0]
  assert not any("prune" in m.content for m in trajectory.log if m.role == "user")


# ------------------------------------------------------------------------------------------- stops


def test_an_answer_ends_the_episode_with_its_parts(services):
  trajectory = play(services, [calls(("search_corpus", "river part 0 number00")), answer("100_0")])
  assert trajectory.stop == "answer"
  parts = trajectory.rewards
  assert (parts["precision"], parts["output_recall"], parts["answer_found"]) == (1.0, 0.5, 1.0)
  assert (parts["turns"], parts["tool_calls"], parts["completed"]) == (2.0, 1.0, 1.0)


def test_ids_that_were_not_shown_are_wrong(services):
  found = calls(("grep_corpus", "number00"))
  parts = play(services, [found, answer("100_0", "101_1", "100_77", "5_5")]).rewards
  assert (parts["unseen_output"], parts["num_output"]) == (3.0, 4.0)
  assert (parts["precision"], parts["output_recall"]) == (0.25, 0.5)


def test_the_turn_limit_ends_an_episode_without_an_answer(limited):
  trajectory = play(limited(max_turns=2), [calls(("grep_corpus", "zzz"))] * 3)
  assert trajectory.stop == "turn_limit"
  assert trajectory.rewards["completed"] == 0.0


def test_turns_that_cannot_be_parsed_are_observations_up_to_the_limit(services):
  env = search.make(make_task(), services)

  async def episode():
    await env.start()
    contexts = []
    for turn in range(MAX_MALFORMED_TURNS + 1):
      tokens = services.chat.encode_reply(calls(("search_corpus", "river")))[:3]  # never closed
      reply = services.chat.parse(tokens)
      ids = tuple(dataclasses.replace(c, id=f"{turn}.0") for c in reply.tool_calls)
      contexts.append(await env.step(dataclasses.replace(reply, tool_calls=ids, tokens=tokens)))
    return contexts

  first, *others, last = asyncio.run(episode())
  assert "is not closed with <|/call|>" in first.messages[-1].content
  assert not first.done and not any(context.done for context in others)
  assert (last.done, last.stop) == (True, "malformed")


def test_a_reply_that_was_cut_off_is_no_answer(limited):
  services = limited(max_new_tokens=6)
  trajectory = play(services, [answer("100_0", "100_1", "100_2", "100_3"), answer()])
  assert trajectory.stop == "answer"
  assert trajectory.rewards["num_output"] == 0.0
  assert any(m.content.startswith(view.CUT_OFF) for m in trajectory.log)


def test_limits_that_contradict_one_another_are_refused(limited):
  with pytest.raises(ValueError, match="of which it is the minimum; lower it"):
    config.check(config.SearchConfig(reply_reserve_tokens=300, tool_output_tokens=200))
  with pytest.raises(ValueError, match="has neither"):
    search.make(dataclasses.replace(make_task(), facts={}), limited())


def test_the_number_of_a_list_is_not_searched_for(services, tmp_path):
  numbers = Chunk("300_0", "300", "numbers", "41 1984 41 1984 41 1984", 0)
  built = hybrid.build([*corpus(), numbers], tmp_path, rank=8)
  numbered = dataclasses.replace(services, index=built)

  def found(query):
    made = tools.SearchTools(make_task(), numbered)
    return reward.hit_ids(asyncio.run(made.tools[0].run(query=query)))

  assert found("41. copper") == found("copper")
  assert found("8. copper. 41. glacier") == found("copper. glacier")
  assert "300_0" in found("copper 41") and "300_0" not in found("copper")
  assert "300_0" in found("1984. copper")  # a year
  assert found("41. ") == []
