"""How an agent begins that was started by a command: bubblewrap, gVisor, or no walls at all.

Its standard input is the socket to the host.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys

from jaxrl_agents.sandbox import kernel, wire
from jaxrl_agents.sandbox.inside import agent, confine


def main() -> None:
  """Confines itself as far as asked on the command line, then serves."""
  settings = json.loads(sys.argv[1])
  fd = confine.agent_fd(settings["limits"]["open_files"])
  _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
  os.dup2(0, fd, inheritable=False)
  link = wire.Wire(fd, fd)
  nothing = os.open("/dev/null", os.O_RDWR)
  for number in (0, 1, 2):
    os.dup2(nothing, number)
  try:
    confine.give_way()
    confine.limit(settings["limits"], processes=settings["is_walled"])
    if settings["is_walled"]:
      kernel.hide_command_line()
      kernel.set_dumpable(False)
    else:
      confine.drop_user(*settings["user"])
      kernel.adopt_orphans()
  except OSError as error:
    link.send({"failed": str(error)})
    return
  folder = settings["folder"]
  os.chdir(folder + "/work")
  root = os.open(folder or "/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
  bash = shutil.which("bash") or "/bin/bash"
  place = agent.Place(root, is_whole=True, prefix=folder)
  agent.run(link, place, bash=bash, is_filtered=settings["is_walled"])
