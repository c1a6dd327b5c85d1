"""`learner.loss` and its options: built-in losses by name, those of a user by import path."""

import jax
import numpy as np
import pytest

from examples.own_loss.loss import faded
from jaxrl_agents.learner import loop, losses, train_step
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.runs import config_flags, rl, setup
from tests.learner import test_train_step
from tests.learner.test_losses import make_batch

CONFIG = "configs/search_cpu.py"


def policy_loss(*overrides, config=CONFIG):
  return setup.policy_loss(config_flags.load(config, overrides))


def test_an_override_sets_one_option_of_the_loss_and_keeps_the_others():
  loss = policy_loss("learner.loss=dapo", "learner.loss_options.epsilon_high=0.4")
  assert loss.function is losses.dapo
  assert loss.all_options == {"epsilon_low": 0.2, "epsilon_high": 0.4}
  assert policy_loss("learner.loss_options.unified_mask=true").all_options["unified_mask"] is True


@pytest.mark.parametrize(
  ("overrides", "message"),
  [
    (["learner.loss=cispoo"], "no loss 'cispoo'; did you mean 'cispo'"),
    (["learner.loss_options.epsilon=0.1"], "loss cispo has no option 'epsilon'"),
    (["learner.loss_options.unified_mask=0.5"], "must be a bool"),
    (["learner.loss_options.high=much"], "learner.loss_options.high='much' is no number"),
    (["learner.loss_options=5"], r"set one of them, learner.loss_options.NAME=0.5"),
    (["learner.constant_tokens=9"], "constant_tokens=9 has no effect with learner.loss=cispo"),
    (["learner.advantage_std=true"], "is not one of published, on, off"),
    (
      ["learner.advantage_std=on", "learner.advantage=examples.own_loss.advantage:ranks"],
      "has no effect with learner.advantage=examples.own_loss.advantage:ranks",
    ),
    (["learner.advantage=examples.own_loss.advantage:rank"], "did you mean 'ranks'"),
    (["learner.advantage=math:pi"], "'math:pi' is a float; name a function"),
    (["learner.advantage=math:fsum"], r"of the rewards \[0.0, 1.0\] are 1.0; return as many"),
    (["learner.advantage=math:sqrt"], "'math:sqrt': TypeError: only .* can be converted"),
    (["learner.loss=examples.own_loss.loss:fadde"], "defines no 'fadde'; did you mean 'faded'"),
    (["learner.loss=examples.own_los.loss:faded"], "learner.loss='examples.own_los.loss:faded'"),
    (["learner.loss=math:pi"], "'math:pi' is a float; name a function that makes losses"),
    (["learner.loss=math:fabs"], "loss fabs cannot be called with .*: too many positional arg"),
    (["learner.loss=gspo", "learner.share_prefixes=true"], "does not go with learner.loss=gspo"),
    (["sampler.top_p=0.9"], "no option 'sampler.top_p'; training needs .* set eval.top_p"),
    (["eval.top_p=0"], "eval.top_p=0 must be above 0"),
  ],
)
def test_a_bad_loss_is_refused_with_the_cause_and_the_remedy(overrides, message):
  with pytest.raises(ValueError, match=message):
    config_flags.load(CONFIG, overrides)


def test_a_normaliser_takes_the_place_of_the_published_one():
  assert policy_loss().normaliser == "token_mean"
  assert policy_loss("learner.normaliser=rollout_mean").normaliser == "rollout_mean"
  options = ["learner.normaliser=constant", "learner.constant_tokens=64"]
  assert policy_loss(*options).normaliser == "constant"


@pytest.mark.parametrize(
  ("name", "divided"),
  [("grpo", True), ("dapo", True), ("gspo", True), ("cispo", True), ("dr_grpo", False)],
)
def test_published_advantages_are_divided_by_their_deviation_where_the_paper_says_so(name, divided):
  overrides = [f"learner.loss={name}", "learner.share_prefixes=false"]
  for choice, expected in (("published", divided), ("on", True), ("off", False)):
    config = config_flags.load(CONFIG, [*overrides, f"learner.advantage_std={choice}"])
    found = loop.advantage_options(config.learner, setup.policy_loss(config))
    assert found == {"normalise_std": expected, "own": None}


def test_the_advantages_of_the_example_are_found_by_their_import_path():
  path = "examples.own_loss.advantage:ranks"
  config = config_flags.load(CONFIG, [f"learner.advantage={path}"])
  found = loop.advantage_options(config.learner, setup.policy_loss(config))
  assert found["own"](np.array([2.0, 0.0, 7.0])).tolist() == [0, -1, 1]


def test_the_loss_of_the_example_is_found_by_its_import_path_with_its_options():
  loss = policy_loss(config="examples/own_loss/config.py")
  assert loss.function is faded and loss.all_options == {"width": 0.5}
  batch = make_batch([[-1.0, -1.0]], 2.0, [[True, False]])
  ratio = np.exp(0.5)
  expected = -ratio * np.exp(-1.0) * 2.0 * -0.5
  np.testing.assert_allclose(loss(np.array([[-0.5, -3.0]]), batch), [[expected, 0.0]], rtol=1e-6)


def test_a_divergence_of_grpo_makes_the_run_keep_the_policy_it_started_from():
  options = ["learner.loss=grpo"]
  assert not rl.objective(config_flags.load(CONFIG, options)).needs_reference
  options.append("learner.loss_options.beta=0.04")
  assert rl.objective(config_flags.load(CONFIG, options)).needs_reference


def test_evaluation_may_sample_from_likely_tokens_and_training_samples_from_all():
  config = config_flags.load(CONFIG, ["eval.top_p=0.9", "eval.temperature=0.5"])
  assert setup.sampling(config, seed=3).top_p == 1.0
  chosen = setup.eval_sampling(config)
  assert (chosen.top_p, chosen.temperature, chosen.seed) == (0.9, 0.5, config.seed)


@pytest.mark.slow
def test_a_step_with_the_loss_of_the_example_moves_the_policy():
  rl_objective = train_step.Objective("rl", policy_loss(config="examples/own_loss/config.py"))
  batches = test_train_step.pack(test_train_step.make_rollouts())
  params = params_lib.init(test_train_step.CFG, jax.random.key(0))
  gradients = train_step.gradients(params, batches[0], test_train_step.CFG, rl_objective)
  assert any(np.abs(g).max() > 0 for g in jax.tree.leaves(gradients.grads))
