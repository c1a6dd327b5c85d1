"""Sources of the warm-up are made once for all that decides them, and are a run's own then."""

import dataclasses
import pathlib
import shutil
import sysconfig

import pytest

from jaxrl_agents import chat
from jaxrl_agents import config as config_lib
from jaxrl_agents.agents.coding import agent as coding
from jaxrl_agents.agents.coding.config import CodingConfig
from jaxrl_agents.agents.coding.tasks import task_set
from jaxrl_agents.agents.search.config import SearchConfig, SearchReward
from jaxrl_agents.learner import segment_files
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.runs import agent_setting, resumption
from jaxrl_agents.runs import demonstrations as sources
from jaxrl_agents.runs.workdir import Workdir
from jaxrl_agents.types import Task

MODEL = PolicyConfig(
  vocab_size=chat.load("base").vocab_size,
  embed_dim=8,
  num_layers=1,
  num_heads=1,
  num_kv_heads=1,
  head_dim=8,
  num_experts=2,
  experts_per_token=1,
  expert_ffw_dim=8,
)
NAMES = ("demonstrations", "copies")
PACKAGES = ("json", "logging")


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
  """A config whose corpus is two packages of the library, and that corpus."""
  folder = tmp_path_factory.mktemp("sources")
  library = pathlib.Path(sysconfig.get_paths()["stdlib"])
  for name in PACKAGES:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(library / name, folder / "corpus" / name, ignore=ignored)
  config = config_lib.RunConfig(
    name="sources",
    corpus=config_lib.CorpusConfig(source=str(folder / "corpus"), cache=str(folder / "cache")),
    policy=config_lib.PolicySection(model=MODEL),
    agent_config=SearchConfig(short_ids=True, hasty=0.0),
    sft=config_lib.SftConfig(rates=(0.5, 0.0, 0.5, 0.0), demonstration_tasks=6, copy_segments=5),
    workers=config_lib.WorkersConfig(processes=1),
  )
  return config, agent_setting.open_tasks(config, lambda line: None)


@pytest.fixture(autouse=True)
def no_other_cache(monkeypatch):
  monkeypatch.delenv("JAXRL_CACHE", raising=False)


def read(workdir):
  return {name: segment_files.read_segments(workdir.demonstrations / name) for name in NAMES}


@pytest.mark.slow
def test_a_second_run_finds_what_the_first_one_played(opened, tmp_path, monkeypatch):
  config, corpus = opened
  first, second = Workdir(tmp_path / "first"), Workdir(tmp_path / "second")
  assert sources.make(config, corpus, first) == {"demonstrations": 0.5, "copies": 0.5}
  counts = read(first)["demonstrations"].counts
  assert sum(counts.values()) == 12
  assert first.merge_summary({})["demonstrations"] == counts

  monkeypatch.setattr(sources, "play", lambda *_, **__: pytest.fail("played again"))
  sources.make(config, corpus, second)
  assert {n: d.digest for n, d in read(second).items()} == {
    n: d.digest for n, d in read(first).items()
  }
  assert second.merge_summary({})["demonstrations"] == counts


def test_a_run_keeps_its_sources_whatever_the_cache_holds(opened, tmp_path, monkeypatch):
  config, corpus = opened
  workdir = Workdir(tmp_path)
  sources.make(config, corpus, workdir)
  before = read(workdir)
  monkeypatch.setattr(sources, "_made", lambda *_: pytest.fail("a source is made again"))
  elsewhere = dataclasses.replace(config.corpus, cache=str(tmp_path / "cache"))
  sources.make(dataclasses.replace(config, corpus=elsewhere), corpus, workdir)
  assert {n: d.digest for n, d in read(workdir).items()} == {n: d.digest for n, d in before.items()}


def test_a_source_that_another_run_has_made_meanwhile_is_taken_as_it_is(
  opened, tmp_path, monkeypatch
):
  config, corpus = opened
  elsewhere = dataclasses.replace(config.corpus, cache=str(tmp_path / "cache"))
  config = dataclasses.replace(config, corpus=elsewhere)
  made = sources._made

  def slow(*arguments):
    found = made(*arguments)
    monkeypatch.setattr(sources, "_made", made)
    sources.make(config, corpus, Workdir(tmp_path / "other"))
    return found

  monkeypatch.setattr(sources, "_made", slow)
  copies = dataclasses.replace(config.sft, rates=(0.0, 0.0, 1.0, 0.0))
  config = dataclasses.replace(config, sft=copies)
  workdir = Workdir(tmp_path / "own")
  sources.make(config, corpus, workdir)
  digests = [
    segment_files.read_segments(tmp_path / name / "demonstrations" / "copies").digest
    for name in ("own", "other")
  ]
  assert digests[0] == digests[1]
  assert not [p for p in (tmp_path / "cache").iterdir() if p.name.startswith(".")]


def test_tasks_are_demonstrated_with_all_of_their_repository_and_fewer_with_a_smaller_share():
  tasks = [Task(f"t{i}", "coding", "", {"repo": f"r{i // 4}"}) for i in range(400)]
  chosen = lambda share: {t.id for t in tasks if sources.is_demonstrated(t, share)}
  half = chosen(0.5)
  assert chosen(0.2) < half < chosen(0.9) < chosen(1.0) == {t.id for t in tasks}
  assert 120 < len(half) < 280
  whole = [{t.id in half for t in tasks if t.facts["repo"] == f"r{i}"} for i in range(100)]
  assert all(len(each) == 1 for each in whole)


def test_a_source_is_named_by_its_options_alone(opened):
  config, corpus = opened
  name_of = lambda name, changed: sources.digest(changed, corpus, name)
  with_sft = lambda **options: dataclasses.replace(
    config, sft=dataclasses.replace(config.sft, **options)
  )
  for name in NAMES:
    assert name_of(name, config) == name_of(name, with_sft(lr=1.0, steps=7))
    assert name_of(name, config) != name_of(name, dataclasses.replace(config, seed=1))
  silent = dataclasses.replace(config, policy=dataclasses.replace(config.policy, thinking="off"))
  assert name_of("drills", config) != name_of("drills", silent)
  for options in ({"demonstration_tasks": 7}, {"rollouts_per_task": 3}):
    assert name_of("demonstrations", config) != name_of("demonstrations", with_sft(**options))
  with_agent = lambda **options: dataclasses.replace(
    config, agent_config=dataclasses.replace(config.agent_config, **options)
  )
  demonstrated = lambda changed: name_of("demonstrations", changed)
  assert demonstrated(config) != demonstrated(with_agent(hasty=1.0))
  assert demonstrated(config) == demonstrated(with_agent(reward=SearchReward(f_beta=0.1)))


def test_sources_of_a_run_are_refused_with_other_options_than_they_were_made_with(opened, tmp_path):
  config, corpus = opened
  with_sft = lambda **options: dataclasses.replace(
    config, sft=dataclasses.replace(config.sft, rates=(0.0, 0.0, 1.0, 0.0), **options)
  )
  config, workdir = with_sft(copy_segments=5), Workdir(tmp_path)
  resumption.begin_warm_up(config, workdir)
  assert sources.make(config, corpus, workdir) == {"copies": 1.0}
  resumption.begin_warm_up(with_sft(copy_segments=5, lr=1e-5, drills=7), workdir)
  searched = dataclasses.replace(config.agent_config, max_turns=3)
  for other, named in (
    (with_sft(copy_segments=6), "sft.copy_segments=5 -> 6"),
    (dataclasses.replace(config, seed=5), "seed=0 -> 5"),
    (dataclasses.replace(config, agent_config=searched), "search.max_turns="),
    (
      dataclasses.replace(config, corpus=dataclasses.replace(config.corpus, chunk_tokens=77)),
      "corpus.chunk_tokens=",
    ),
  ):
    with pytest.raises(ValueError, match=f"was made with other options: {named}"):
      resumption.begin_warm_up(other, workdir)


def test_what_is_made_of_a_frozen_set_is_named_by_the_code_of_its_drills_as_well(tmp_path):
  (tmp_path / "a.py").write_text("x = 1\n")
  frozen = task_set.CodingSet({}, {}, {"sha256": {}})
  tasks = coding.CodingTasks(frozen, CodingConfig(sources=(str(tmp_path),)), tmp_path)
  before = tasks.digest
  assert tasks.digest == before
  (tmp_path / "a.py").write_text("x = 2\n")
  assert tasks.digest != before


def test_a_tool_that_demonstrations_and_drills_use_must_be_offered(tmp_path):
  limits = CodingConfig(tools=("read_file", "edit_file", "grep"))
  tasks = coding.CodingTasks(task_set.CodingSet({}, {}, {"sha256": {}}), limits, tmp_path)
  config = dataclasses.replace(config_lib.load("configs/coding_cpu.py"), agent_config=limits)
  with pytest.raises(ValueError, match="coding.tools lacks undo_edit, shell, which"):
    sources.play(config, tasks, [], 1, label="demonstrations")
  with pytest.raises(ValueError, match="coding.tools lacks undo_edit, shell, which"):
    coding.AGENT.drills(agent_setting.setting(config), tasks)


@pytest.mark.slow
def test_sources_of_other_configs_join_with_overrides_of_their_own(opened, tmp_path):
  config, corpus = opened
  (tmp_path / "other.py").write_text(
    "from jaxrl_agents.agents.search.config import SearchConfig\n"
    "from jaxrl_agents.config import *\n\n\n"
    "def get_config():\n"
    "  sft = SftConfig(rates=(0.0, 0.0, 1.0, 0.0), copy_segments=7)\n"
    "  policy = PolicySection(model=BASE_MODEL)\n"
    "  search = SearchConfig(token_budget=640, threshold_tokens=320, tool_output_tokens=512)\n"
    f"  corpus = {config.corpus!r}\n"
    "  return RunConfig(name='other', corpus=corpus, agent_config=search, policy=policy, sft=sft)\n"
  )
  sft = dataclasses.replace(
    config.sft,
    beside=(f"{tmp_path / 'other.py'} sft.copy_segments=3 search.hasty=0.5",),
    beside_rates=(2.0,),
  )
  workdir = Workdir(tmp_path / "run")
  rates = sources.make(dataclasses.replace(config, sft=sft), corpus, workdir)
  assert rates == {"demonstrations": 0.5, "copies": 0.5, "other_copies": 2.0}
  assert len(segment_files.read_segments(workdir.demonstrations / "other_copies")) == 3
