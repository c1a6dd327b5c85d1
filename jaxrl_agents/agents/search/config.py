"""Options of the search agent: limits of an episode, weights of the reward, the expert's habits."""

from __future__ import annotations

import dataclasses
from typing import Literal

from jaxrl_agents.agents.system_prompt import ENVIRONMENT
from jaxrl_agents.config.judge import check_address
from jaxrl_agents.config.ranges import Count, NotNegative, Positive, Share


@dataclasses.dataclass(frozen=True)
class SearchReward:
  """Weights of the parts of Context-1's reward; see `agents.search.reward`.

  Attributes:
    f_beta, trajectory_recall, answer_found: weights of what the policy found.
    prune_penalty: factor of the penalty for repeated prune calls.
    repeat_penalty: factor of the penalty for documents that an answer names again (ours).
    betas: of F_beta, one for each equally long phase of training (Context-1's five epochs).
  """

  f_beta: NotNegative = 0.7
  trajectory_recall: NotNegative = 0.3
  answer_found: NotNegative = 1.0
  prune_penalty: NotNegative = 1.0
  repeat_penalty: NotNegative = 1.0
  betas: tuple[NotNegative, ...] = (4.0, 3.5, 3.0, 2.5, 2.0)


@dataclasses.dataclass(frozen=True)
class Reranker:
  """A service that orders the hits of a search anew, by Cohere's interface.

  Attributes:
    url: base address ("http://127.0.0.1:8000/v1") of the API, whose path /rerank is asked; "" for
      no reranker. `vllm serve MODEL` with a cross-encoder is such a service.
    model: the model's name in this API.
    key_file, key_env: a file, or a variable of the workers' environment, that holds the API's key.
    candidates: hits of the fused ranking that are scored.
  """

  url: str = ""
  model: str = ""
  key_file: str = ""
  key_env: str = ""
  candidates: Count = 50


@dataclasses.dataclass(frozen=True)
class SearchConfig:
  """Limits are in tokens of the policy's tokenizer; defaults are Context-1's numbers.

  Attributes:
    token_budget: of the whole context.
    threshold_tokens: above it the policy reads a hint; it is the denominator of the usage line.
    spillage_fraction: above threshold + spillage_fraction * (budget - threshold), every tool but
      prune_chunks refuses.
    tool_output_tokens: of one tool result.
    reply_reserve_tokens: the least that a tool result gets where the context is nearly full.
    max_shown: hits that one search shows.
    quote_query: the result of a search begins with its query (at most 100 characters, on top of
      tool_output_tokens), so that a reader of several results knows which is which.
    grep_limit: hits that one grep shows.
    fusion: of BM25 and the dense ranking: by scores, or by ranks as in Context-1.
    dense_weight: of the dense ranking; BM25 has weight 1 (corpus.index.hybrid.Fusion).
    max_turns: of the policy in an episode.
    max_calls: calls of one turn that run; further ones are refused.
    max_new_tokens: of one reply.
    max_documents: documents of an answer that count.
    short_ids: the policy sees chunk ids as numbers drawn for each task (agents.search.short_ids).
    can_prune: the policy has the tool prune_chunks.
    show_hint: tasks in which the policy reads the hint above the threshold: those of training, as
      Context-1's report says, all, as its published harness does, or none.
    tool_deadline_s: of one call.
    tool_latency_s: median of a delay before each call, as of a service on a network.
    tool_latency_sigma: standard deviation of the logarithm of that delay. With 0.5 one call in a
      hundred takes three times the median, with 1.3 twenty times.
    system_prompt: first message: "environment" for `view.system_prompt`, which explains tools,
      limits and the form of an answer; "" for none, as for the shipped policies; else the text.
    hops: tasks whose later clues are found only with the answers to earlier ones
      (agents.search.tasks.hops).
    hasty: share of the demonstrator's episodes in which it searches for one clue and answers.
    generous: share of its episodes in which it lists all hits, and not only those that it knows to
      be right, and prunes all but those of the last search.
    rerank: orders the hits of a search anew.
    reward: weights of the reward.
  """

  token_budget: Count = 32_268
  threshold_tokens: Count = 16_384
  spillage_fraction: Share = 0.5
  tool_output_tokens: Count = 4_096
  reply_reserve_tokens: Count = 512
  max_shown: Count = 10
  quote_query: bool = False
  grep_limit: Count = 5
  fusion: Literal["scores", "ranks"] = "scores"
  dense_weight: NotNegative = 1.0
  max_turns: Count = 128
  max_calls: Count = 64
  max_new_tokens: Count = 2_048
  max_documents: Count = 30
  short_ids: bool = False
  can_prune: bool = True
  show_hint: Literal["training", "all", "none"] = "training"
  tool_deadline_s: Positive = 10.0
  tool_latency_s: NotNegative = 0.0
  tool_latency_sigma: NotNegative = 0.5
  system_prompt: str = ENVIRONMENT
  hops: bool = False
  hasty: Share = 0.3
  generous: Share = 0.25
  rerank: Reranker = Reranker()
  reward: SearchReward = SearchReward()


def check(options: SearchConfig, section: str = "search") -> None:
  """Raises ValueError where two options of a section contradict one another."""
  if options.threshold_tokens >= options.token_budget:
    raise ValueError(
      f"{section}.threshold_tokens={options.threshold_tokens} must be below {section}.token_budget="
      f"{options.token_budget}; lower it"
    )
  if options.rerank.url:
    check_address(options.rerank.url, f"{section}.rerank.url")
  if options.reply_reserve_tokens > options.tool_output_tokens:
    raise ValueError(
      f"{section}.reply_reserve_tokens={options.reply_reserve_tokens} is more than {section}."
      f"tool_output_tokens={options.tool_output_tokens}, of which it is the minimum; lower it"
    )
  if not options.reward.betas:
    raise ValueError(f"{section}.reward.betas=() must hold at least one beta, such as 2.0")
