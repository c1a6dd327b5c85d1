"""The section of the judge refuses what has no effect, and what cannot work."""

import pytest

from jaxrl_agents import config as config_lib
from jaxrl_agents.runs import setup

URL = "judge.url=http://127.0.0.1:8099/v1"
CONFIG = "examples/judge_hacking/config.py"


@pytest.mark.parametrize(
  ("overrides", "reason"),
  [
    (["judge.weight=0.5"], "have no effect without a judge"),
    (["judge.url=ftp://host"], "must be a base address"),
    (["judge.url=http://host/v1?key=secret"], "without a key, a query"),
    ([URL, "judge.weight=1.0"], "judge.weight"),
    ([URL, "judge.samples=3"], "the same answer several times"),
    ([URL, "judge.key_file=a", "judge.key_env=b"], "both name a key"),
    ([URL, "judge.deadline_s=500"], "at most workers.stall_s=120"),
    ([URL, "judge.request_s=101"], "must be at most judge.deadline_s=100"),
  ],
)
def test_options_that_cannot_work_are_refused(overrides, reason):
  with pytest.raises(ValueError, match=reason):
    config_lib.load(CONFIG, overrides)


def test_workers_get_a_judge_where_the_config_names_one():
  assert setup.judging(config_lib.load(CONFIG)) is None
  found = setup.judging(config_lib.load(CONFIG, [URL, "judge.trained=('detail','thorough')"]))
  assert found.endpoint.url.endswith("/v1") and found.trained == ("detail", "thorough")
  unknown = config_lib.load(CONFIG, [URL, "judge.trained=('detail','merit')"])
  with pytest.raises(ValueError, match="'merit'; the rubrics that are not held out are detail"):
    setup.judging(unknown)
