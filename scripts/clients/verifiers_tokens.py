"""The taskset beside this file, played by verifiers' train client: ids in, ids out, two turns."""

import asyncio
import json
import os
import pathlib

import httpx
import renderers
import verifiers.v1 as vf

TOKENIZER = (
  pathlib.Path(__file__).parents[2] / "jaxrl_agents" / "assets" / "base" / "tokenizer.json"
)
TEMPLATE = (
  "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
  "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
__all__ = ["TwoReplies"]


class TwoReplies(vf.Harness[vf.HarnessConfig]):
  """Asks for a reply, and once more."""

  EXECUTES_CODE = NEEDS_CONTAINER = False

  async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
    """Two requests to the endpoint of the rollout, which hands them to the train client."""
    messages = [{"role": "user", "content": data.prompt}]
    head = {"authorization": f"Bearer {secret}"}
    async with httpx.AsyncClient(timeout=None, trust_env=False) as client:
      for again in ("Are you sure?", ""):
        body = {"model": ctx.model, "messages": messages}
        reply = await client.post(f"{endpoint}/chat/completions", json=body, headers=head)
        said = reply.raise_for_status().json()["choices"][0]["message"]["content"]
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": again}]
    return vf.ProgramResult(exit_code=0, stdout="", stderr="")


def tokenizer():
  """A folder with the tokenizer of the policy and its template, as transformers reads them."""
  folder = pathlib.Path("tokenizer").absolute()
  folder.mkdir()
  (folder / "tokenizer.json").write_bytes(TOKENIZER.read_bytes())
  kind = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
  (folder / "tokenizer_config.json").write_text(json.dumps({**kind, "chat_template": TEMPLATE}))
  return str(folder)


async def main():
  """Plays the task and prints its reward."""
  agent = {"harness": {"id": "verifiers_tokens"}, "runtime": {"type": "subprocess"}}
  config = vf.resolve_env_config({"taskset": {"id": "verifiers_taskset"}, "agent": agent})
  client = vf.TrainClientConfig(
    base_url=os.environ["OPENAI_BASE_URL"],
    api_key_var="OPENAI_API_KEY",
    renderer=renderers.DefaultRendererConfig(),
    renderer_model_name=tokenizer(),
  )
  environment = vf.load_environment(config)
  async with environment.serving():
    (task,) = environment.taskset
    model = vf.ModelContext(model="policy", client=client)
    episode = await environment.run_episode(task, model)
  assert episode.ok, episode
  replies = [node for node in episode.traces[0].nodes if node.sampled]
  assert [sum(node.mask) for node in replies] == [len(node.logprobs) for node in replies] == [2, 2]
  print(f"{episode.traces[0].reward:g}")


if __name__ == "__main__":
  asyncio.run(main())
