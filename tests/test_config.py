"""An option that does not exist, cannot be read, or would have no effect is an error with a
remedy.
"""

import dataclasses
import pathlib

import pytest

from jaxrl_agents import config
from jaxrl_agents.config import import_path

PATH = "configs/search_cpu.py"
ROOT = pathlib.Path(__file__).parents[1]


def test_options_of_one_section_are_checked_together_whatever_their_order():
  heads = ["policy.model.num_heads=3", "policy.model.num_kv_heads=3"]
  for overrides in (heads, heads[::-1]):
    model = config.load(PATH, overrides).policy.model
    assert (model.num_heads, model.num_kv_heads) == (3, 3)
  with pytest.raises(ValueError, match=r"policy.model.num_heads='3': 3 query heads cannot share"):
    config.load(PATH, heads[:1])
  assert config.load(PATH, ["learner.steps=3", "learner.steps=4"]).learner.steps == 4


@pytest.mark.parametrize(
  "path",
  sorted(
    str(path.relative_to(ROOT))
    for folder in ("configs", "examples", "scripts")
    for path in (ROOT / folder).rglob("*.py")
    if "def get_config()" in path.read_text()
  ),
)
def test_every_config_that_is_shipped_passes_its_checks(path, monkeypatch):
  monkeypatch.chdir(ROOT)
  monkeypatch.syspath_prepend(ROOT)
  assert config.load(path).name


def test_an_error_in_a_config_or_in_an_agents_module_names_its_own_cause(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "broken.py").write_text("\n\n1 / 0\n")
  with pytest.raises(ValueError, match="broken.py cannot be run: ZeroDivisionError.*, at line 3"):
    config.load("broken.py")
  (tmp_path / "own_agent_of_a_test.py").write_text(
    "import dataclasses\n\n@dataclasses.dataclass\nclass C:\n  tools: list = []\n"
  )
  path = "own_agent_of_a_test:AGENT"
  with pytest.raises(ValueError, match="importing own_agent_of_a_test raises ValueError: mutable"):
    import_path.load(path, "agent")
  with pytest.raises(ValueError, match="No module named 'nowhere'; write package.module:name"):
    import_path.load("nowhere.at_all:AGENT", "agent")


def test_a_config_may_define_dataclasses_whose_annotations_are_text(tmp_path):
  text = (ROOT / PATH).read_text().replace("from jaxrl_agents import config\n", "")
  head = "from __future__ import annotations\nimport dataclasses\nfrom jaxrl_agents import config\n"
  own = "\n\n@dataclasses.dataclass\nclass Own:\n  rate: float = 0.5\n"
  doc, _, rest = text.partition('"""\n\n')
  (tmp_path / "own.py").write_text(f'{doc}"""\n{head}{rest}{own}')
  assert config.load(str(tmp_path / "own.py")).learner == config.load(PATH).learner


def test_an_override_is_read_as_the_type_of_its_option():
  loaded = config.load(
    PATH,
    [
      "learner.lr=3e-5",
      "learner.steps=1_000",
      "search.can_prune=false",
      "search.reward.betas=(4, 2)",
    ],
  )
  assert loaded.learner.lr == 3e-5
  assert loaded.learner.steps == 1000
  assert loaded.agent_config.can_prune is False
  assert loaded.agent_config.reward.betas == (4.0, 2.0)


@pytest.mark.parametrize(
  ("override", "message"),
  [
    ("learner.lrr=1", r"no option 'learner.lrr'; did you mean 'learner.lr'\?"),
    ("lerner.lr=1", r"did you mean 'learner.lr'\?"),
    ("lerner=1", r"did you mean 'learner'\?"),
    ("learner=1", "is a section"),
    ("learner.lr.x=1", "goes deeper"),
    ("learner.lr", "has no '='"),
    ("learner.steps=many", "cannot be read as int; write for example learner.steps=8"),
    ("learner.lr=little", "cannot be read as float; write for example learner.lr=0.5"),
    ("search.can_prune=maybe", "cannot be read as bool; write for example search.can_prune=true"),
    ("lora.targets=qkv", r"read as tuple; write for example lora.targets=\"\('a', 'b'\)\""),
    ("lora.targets='qkv'", "read as tuple; write for example"),
    ("sft.rates=1", "read as tuple; write for example sft.rates=0.5,0.25"),
    ("learner.row_tokens=512", "raise learner.row_tokens"),
    ("learner.substeps=3", "make it a multiple"),
    ("learner.group_size=1", "at least 2"),
    ("learner.level_weights_early=(0,)", "gives no level a weight"),
    ("learner.level_weights_late=0,0", "gives no level a weight"),
    (
      "sampler.draft_tokens=1 sft.mtp_steps=0 policy.model.mtp_depth=0",
      "draft_tokens=1 has no effect",
    ),
    ("sampler.num_pages=8", "raise sampler.num_pages"),
    (
      "sampler.engines=2 sampler.num_pages=96",
      r"num_pages=96 / engines=2 x page_tokens=16 holds less than .* or lower sampler\.engines",
    ),
    ("sft.rates=1,2", "4 numbers"),
    ("sft.steps=5", "sft.steps=5 leaves no step after sft.warmup_steps=5"),
    (
      "learner.steps=2 learner.schedule=cosine",
      r"learner\.substeps=2 leaves no update after learner\.warmup_steps=4",
    ),
    ("seed=-1", "seed=-1 must be at least 0"),
    ("search.max_turns=0", "search.max_turns=0 must be at least 1"),
    ("learner.beta2=1", "learner.beta2=1 must be at least 0 and at most 0.999999"),
    ("sampler.slices=2", "set fleet.backend=ray and fleet.address=HOST:PORT"),
    ("sampler.hosts=2", "has no effect with sampler.slices=0"),
    (
      "fleet.backend=ray fleet.address=auto sampler.slices=2 sampler.frozen_slices=2",
      "leaves none for the policy in training; set sampler.slices=3",
    ),
    (
      "fleet.backend=ray fleet.address=auto sampler.slices=2 sampler.frozen_slices=1",
      "the agent search plays with no policy but the one in training",
    ),
    ("evaluator.every=2 evaluator.on_node=True", "set evaluator.every, fleet.backend=ray"),
    ("fleet.backend=ray fleet.address=auto evaluator.on_node=True", "with evaluator.every=0"),
    (
      "fleet.backend=ray fleet.address=auto sampler.slices=1 sampler.hosts=2 evaluator.every=2 "
      "evaluator.on_node=True",
      "evaluator.on_node=True does not go with sampler.hosts=2",
    ),
    ("fleet.backend=ray", "set fleet.backend=ray and fleet.address=HOST:PORT"),
    ("fleet.address=auto", "set fleet.backend=ray and fleet.address=HOST:PORT"),
    ("fleet.address=nowhere", "set fleet.backend=ray and fleet.address=HOST:PORT"),
    ("fleet.backend=ray fleet.address=h:99999", "fleet.address='h:99999' with"),
    ("workers.processes=0", "workers.processes=0 must be at least 1"),
    ("sampler_mesh.expert=2", "has no effect with sampler.slices=0"),
    ("sft.rows_per_step=9 learner.rows_per_microbatch=2", "leaves a microbatch of 1 rows"),
    ("policy.model.mtp_depth=0", "sft.mtp_steps=10 has no effect"),
    ("fleet.max_age=2", "has no effect with fleet.depth=0"),
    ("fleet.depth=-1", "fleet.depth=-1 must be at least 0"),
    ("fleet.depth=4", "fleet.max_age=4 must be more than fleet.depth=4"),
    ("fleet.depth=1 workers.deterministic=true", "fleet.replay repeats such a run"),
    ("fleet.depth=1 learner.loss=importance_sampling", "does not clip the ratios of tokens"),
    ("publish.folder=runs/weights", "must be the absolute path of a folder that all processes"),
    ("publish.folder=s3://bucket/x?versionId=1", "must be the absolute path of a folder"),
    ("publish.folder=gs:/bucket/x", "or gs://BUCKET/FOLDER or s3://BUCKET/FOLDER"),
    (
      "fleet.depth=1 fleet.backend=ray fleet.address=auto fleet.replay=w",
      "fleet.replay does not go with fleet.backend=ray: .*set fleet.backend=local",
    ),
    ("fleet.depth=1 fleet.too_old=throw", "too_old"),
    ("publish.kind=delta", "set policy.dtype=bfloat16"),
    ("publish.anchor_every=3", "has no effect with publish.kind=full"),
    ("mesh.expert=3", "learner.rows_per_microbatch=2 does not split"),
    ("mesh.context=3", "learner.row_tokens=2048 does not split"),
    ("learner.rollout_row_tokens=256,512", "raise learner.rollout_row_tokens"),
    (
      "learner.rollout_row_tokens=2048",
      "read as tuple; write for example .*rollout_row_tokens=8,16",
    ),
    ("learner.rollout_row_tokens=1024,2048.5", "read as tuple; write for example"),
    ("learner.rollout_row_tokens=0,2048", "must be at least 1"),
    (
      "mesh.context=2 learner.rollout_row_tokens=1025,2048",
      "rollout_row_tokens=1025 does not split",
    ),
    ("mesh.fsdp=0", "mesh.fsdp=0 must be at least 1"),
    ("agent=swam", r"did you mean 'swarm'\?"),
    ("agent=nowhere.agent:AGENT", "No module named 'nowhere'; write package.module:name"),
    ("agent=tests.sampler.counting:AGNT", r"defines no 'AGNT'; did you mean 'AGENT'\?"),
    ("swarm.parl.finish=0.2", "'swarm.parl.finish'; the agent of this config is search, and its"),
    ("toggle.phase_steps=2", "has no effect with agent=search"),
    ("monitor.host=0.0.0.0", r"monitor.host='0.0.0.0' has no effect with monitor.port=0"),
    ("toggle.solved=2", "toggle.solved=2 must be above 0 and at most 1"),
    ("learner.optimizer=moun", r"did you mean 'muon'\?"),
    ("policy.dtype=bfloat16", r"learner.canary_bound=0.0001 is below .* set it to 0.1 or more"),
  ],
)
def test_a_bad_override_names_the_cause_and_the_remedy(override, message):
  with pytest.raises(ValueError, match=message):
    config.load(PATH, override.split(" "))


def test_another_agent_begins_with_its_own_defaults_and_its_section_goes_by_its_name():
  loaded = config.load(PATH, ["agent=tests.sampler.counting:AGENT", "counting.max_turns=3"])
  assert (loaded.agent_config.max_turns, loaded.agent_config.token_budget) == (3, 64)
  assert config.options(loaded)["counting.max_turns"] == 3
  with pytest.raises(ValueError, match=r"did you mean 'counting.max_turns'\?"):
    config.load(PATH, ["agent=tests.sampler.counting:AGENT", "counting.max_turn=3"])
  with pytest.raises(ValueError, match="agent_config is a CountingConfig, but the options of"):
    dataclasses.replace(loaded, agent="swarm")


def test_a_swarm_that_prunes_is_an_error():
  with pytest.raises(ValueError, match="set swarm.search.can_prune=False"):
    config.load("configs/swarm_cpu.py", ["swarm.search.can_prune=true"])
  for override, told in (
    ("swarm.search.hops=true", "swarm.search.hops=True has no effect on a swarm"),
    ("swarm.search.generous=0.5", "swarm.search.generous=0.5 has no effect on a swarm"),
    ("swarm.search.max_documents=3", "swarm.search.max_documents=3 has no effect"),
    ("swarm.search.token_budget=640", "swarm.search.threshold_tokens=640 must be below swarm.sea"),
  ):
    with pytest.raises(ValueError, match=told):
      config.load("configs/swarm_cpu.py", [override])
  with pytest.raises(ValueError, match="leave no step for the answer to one look-up"):
    config.load(
      "configs/swarm_tables_cpu.py", ["swarm.tables.steps=1", "swarm.tables.steps_per_lookup=0"]
    )
  with pytest.raises(ValueError, match="must hold at least one beta"):
    config.load("configs/search_cpu.py", ["search.reward.betas=()"])


def test_a_budget_of_all_the_steps_of_a_single_agent_is_an_error():
  with pytest.raises(ValueError, match="swarm.budget_share=1 must be above 0 and below 1"):
    config.load("configs/swarm_cpu.py", ["swarm.budget_share=1"])


@pytest.mark.parametrize(
  ("folders", "ends"),
  [("('a','')", "()"), ("('a','')", "(1.0,)"), ("('a','b','')", "(0.6,0.5)"), ("()", "(0.5,)")],
)
def test_a_curriculum_of_sub_agents_needs_a_rising_end_for_each_but_the_last(folders, ends):
  with pytest.raises(ValueError, match="swarm.sub_until=.* must name one share of the steps"):
    config.load("configs/swarm_cpu.py", [f"swarm.sub_init={folders}", f"swarm.sub_until={ends}"])


def test_annealing_that_leaves_no_step_to_the_task_alone_is_an_error():
  with pytest.raises(ValueError, match="anneal_end=1 leaves none of the 20 steps"):
    config.load("configs/swarm_cpu.py", ["swarm.parl.anneal_end=1.0"])


def test_the_weights_of_frozen_policies_need_a_slice_each():
  options = ["fleet.backend=ray", "fleet.address=auto", "sampler.slices=3"]
  two = ["swarm.sub_init=('a','b')", "swarm.sub_until=(0.5,)"]
  found = config.load("configs/swarm_cpu.py", [*options, *two, "sampler.frozen_slices=2"])
  assert found.sampler.frozen_slices == 2
  with pytest.raises(ValueError, match="too few for the 2 weights of frozen"):
    config.load("configs/swarm_cpu.py", [*options, *two, "sampler.frozen_slices=1"])


def test_adapters_with_an_optimizer_of_full_parameters_are_an_error():
  for override in ("learner.optimizer=muon", "sft.optimizer=adamw8bit", "learner.qk_clip=100"):
    with pytest.raises(ValueError, match="are for full parameters; with lora.rank=4 set"):
      config.load(PATH, ["lora.rank=4", override])
  loaded = config.load(PATH, ["lora.rank=4", "lora.targets=('qkv','experts.down')"])
  assert loaded.lora.targets == ("qkv", "experts.down")


def test_a_config_that_does_not_exist_names_the_nearest():
  with pytest.raises(ValueError, match=r"does not exist; did you mean '.*search_cpu.py'"):
    config.load("configs/serch_cpu.py")
  with pytest.raises(ValueError, match="is a folder; .* examples/number_game/config.py"):
    config.load("examples/number_game")


def test_equal_options_have_equal_digests_and_any_change_shows():
  one, two = config.load(PATH), config.load(PATH, ["seed=0"])
  assert config.sha256(one) == config.sha256(two)
  assert config.sha256(one) != config.sha256(config.load(PATH, ["seed=1"]))


@pytest.mark.parametrize("path", ["search_cpu", "swarm_cpu", "coding_cpu"])
def test_no_option_takes_a_number_that_is_not_finite_or_that_it_cannot_use(path):
  """Options with a least value are refused below it; counts are refused at 0."""
  file, floats, refused = f"configs/{path}.py", 0, 0
  for option, value in config.options(config.load(file)).items():
    if isinstance(value, float):
      floats += 1
      for text in ("nan", "inf", "-inf"):
        by_range = not option.startswith("policy.model.")  # which checks itself as it is made
        with pytest.raises(
          ValueError, match=f"{option}={text} must be a finite" if by_range else None
        ):
          config.load(file, [f"{option}={text}"])
    if isinstance(value, int | float) and not isinstance(value, bool):
      try:
        config.load(file, [f"{option}=-1"])
      except ValueError as error:
        assert option.rpartition(".")[2] in str(error)
        refused += 1
  assert floats > 20 and refused > 60


@pytest.mark.parametrize("option", ["learner.substeps", "learner.row_tokens", "sampler.slots"])
def test_a_count_of_zero_is_refused(option):
  with pytest.raises(ValueError, match=f"{option}=0 must be at least 1"):
    config.load(PATH, [f"{option}=0"])


def test_a_deep_literal_is_an_error_with_an_example():
  with pytest.raises(ValueError, match="cannot be read as tuple; write for example"):
    config.load(PATH, [f"sft.rates={'(' * 5_000}{')' * 5_000}"])
  with pytest.raises(ValueError, match=r"learner.loss_options.high=nan must be a finite number"):
    config.load(PATH, ["learner.loss_options.high=nan"])


@pytest.mark.parametrize(
  ("override", "message"),
  [
    ("swarm.tables.max_rows=0", "have no effect with swarm.tables.max_rows=0; set max_rows"),
    ("swarm.tables.steps=0", "leave no step for the answer to one look-up; raise steps"),
    ("swarm.sub_failure_rate=1.5", "swarm.sub_failure_rate=1.5 must be at least 0 and at most 1"),
  ],
)
def test_tables_of_every_size_need_sizes_and_a_step(override, message):
  overrides = [override, "swarm.tables.steps=3"] if "max_rows" in override else [override]
  with pytest.raises(ValueError, match=message):
    config.load("configs/swarm_tables_cpu.py", overrides)
