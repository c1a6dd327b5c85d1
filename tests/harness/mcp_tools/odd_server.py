"""An MCP server with everything that a client must bear; run it as a program.

python odd_server.py                                over standard input and output
python -m uvicorn tests.harness.mcp_tools.odd_server:app     over HTTP
"""

import asyncio
import os
import pathlib
import subprocess
import sys
import time

from mcp import types
from mcp.server import Server
from mcp.server.stdio import stdio_server

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}
READ_ONLY = types.ToolAnnotations(read_only_hint=True)
counted = 0


def text(*parts, **more):
  content = [types.TextContent(type="text", text=part) for part in parts]
  return types.CallToolResult(content=content, **more)


async def echo(text_):
  return text("first", text_)


async def count(_):
  global counted
  counted += 1
  return text(str(counted))


async def fail(text_):
  return text(f"there is no {text_}", is_error=True)


async def hang(path):
  """Never answers; writes to the file of a path that the call was cancelled."""
  try:
    await asyncio.sleep(600)
  except asyncio.CancelledError:
    if path:
      pathlib.Path(path).write_text("cancelled")
    raise


async def nap(seconds):
  await asyncio.sleep(float(seconds))
  return await count("")


async def block(_):
  """Keeps the whole server from answering."""
  time.sleep(600)


async def die(_):
  print("out of cheese", file=sys.stderr, flush=True)
  os._exit(3)


async def die_once(path):
  """Dies at the first call for a path, answers at the second."""
  if not pathlib.Path(path).exists():
    pathlib.Path(path).write_text("died")
    os._exit(3)
  return text("alive again")


async def flood_line(_):
  while True:
    os.write(wire, b"x" * 65_536)


async def flood_messages(_):
  line = b'{"jsonrpc": "2.0", "method": "notifications/message", "params": {}}\n'
  while True:
    os.write(wire, line * 500)


async def picture(_):
  image = types.ImageContent(type="image", data="AAAA" * 100, mime_type="image/png")
  page = types.TextResourceContents(uri="file:///a.txt", mime_type="text/plain", text="abc")
  inner = types.EmbeddedResource(type="resource", resource=page)
  return types.CallToolResult(content=[types.TextContent(type="text", text="see"), image, inner])


async def long(_):
  return text("ab " * 100_000)


async def huge(_):
  return text("x" * (20 << 20))


async def where(_):
  return text(os.getcwd(), " ".join(f"{k}={v}" for k, v in sorted(os.environ.items())))


async def child(path):
  """Starts a program that outlives this one, and writes its number."""
  running = subprocess.Popen(["sleep", "300"])
  pathlib.Path(path).write_text(f"{os.getpid()} {running.pid}")
  return text("started")


PLAIN = (
  echo,
  count,
  fail,
  hang,
  nap,
  block,
  die,
  flood_line,
  flood_messages,
  picture,
  long,
  huge,
  where,
  child,
)
TOOLS = [types.Tool(name=f.__name__, description=f.__name__, input_schema=TEXT) for f in PLAIN]
TOOLS.append(types.Tool(name="die_once", description="", input_schema=TEXT, annotations=READ_ONLY))
RUNS = {f.__name__: f for f in (*PLAIN, die_once)}


async def list_tools(context, params):
  return types.ListToolsResult(tools=[t for t in TOOLS if t.name != os.environ.get("WITHOUT")])


async def call_tool(context, params):
  return await RUNS[params.name]((params.arguments or {}).get("text", ""))


server = Server("odd", on_list_tools=list_tools, on_call_tool=call_tool)
app = server.streamable_http_app()
wire = os.dup(1)  # what writes here goes past the library, to the client


async def main():
  print("a banner that is no JSON", flush=True)
  async with stdio_server() as (read, write):
    await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
  asyncio.run(main())
