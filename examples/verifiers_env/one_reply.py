"""A harness of `verifiers` that asks the model once, in the process of verifiers.

The harnesses that verifiers brings start programs through `uv`, which needs a package index.
"""

import httpx
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire

__all__ = ["OneReply"]


class OneReply(vf.Harness[vf.HarnessConfig]):
  """The prompt goes in, one reply comes back."""

  APPENDS_SYSTEM_PROMPT = SUPPORTS_RESUME = True
  EXECUTES_CODE = NEEDS_CONTAINER = False

  async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
    """One request to the endpoint of the rollout."""
    system, prompt = self.resolve_prompt(data)
    messages = [vf.SystemMessage(content=system)] if system else []
    messages += [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else prompt
    body = {"model": ctx.model, "messages": [message_to_wire(message) for message in messages]}
    head = {"authorization": f"Bearer {secret}"}
    async with httpx.AsyncClient(timeout=None, verify=False, trust_env=False) as client:
      reply = await client.post(f"{endpoint}/chat/completions", json=body, headers=head)
    reply.raise_for_status()
    return vf.ProgramResult(exit_code=0, stdout="", stderr="")
