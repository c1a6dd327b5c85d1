"""A function in a thread that does not keep its process from ending, as one of a pool would."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any


def call(function: Callable[[], Any], name: str) -> concurrent.futures.Future[Any]:
  """Calls a function in a thread of this name; the result, or what it raises, is that of the
  future.
  """
  future = concurrent.futures.Future[Any]()
  future.set_running_or_notify_cancel()  # whoever gives up waiting does not cancel the call

  def body() -> None:
    try:
      future.set_result(function())
    except BaseException as error:
      future.set_exception(error)

  threading.Thread(target=body, name=name, daemon=True).start()
  return future
