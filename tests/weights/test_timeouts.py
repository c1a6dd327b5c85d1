"""A disk or bucket that does not answer is an error that names it."""

import pytest
import tensorstore as ts

from jaxrl_agents.weights import timeouts


def test_a_future_that_never_ends_is_an_error_that_names_the_place():
  _, never = ts.Promise.new()
  with pytest.raises(TimeoutError, match=r"gs://b/v3 has not answered within 0\.05 s; see whether"):
    timeouts.result(never, "gs://b/v3", 0.05)


def test_a_result_and_tensorstores_own_errors_pass_through():
  promise, future = ts.Promise.new()
  promise.set_result(5)
  assert timeouts.result(future, "here", 1.0) == 5
  promise, failed = ts.Promise.new()
  promise.set_exception(ValueError("NOT_FOUND"))
  with pytest.raises(ValueError, match="NOT_FOUND"):
    timeouts.result(failed, "here", 1.0)
