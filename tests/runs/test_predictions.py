"""The most probable tokens of rows that are padded together."""

import numpy as np

from jaxrl_agents.policy import transformer
from jaxrl_agents.policy.attention import layer
from jaxrl_agents.runs import predictions
from tests.policy import tiny


def test_each_token_is_predicted_from_those_before_it_whatever_the_lengths_of_the_rows():
  cfg, params = tiny.GQA, tiny.init(tiny.GQA)
  rows = [np.asarray(tiny.tokens(cfg, 1, length, seed=length))[0] for length in (5, 70, 1)]
  found = predictions.likeliest(cfg, params)(rows)
  assert [len(each) for each in found] == [5, 70, 1]
  for row, predicted in zip(rows, found, strict=True):
    assert predicted[0] == -1
    for place in {1, len(row) - 1} - {0, len(row)}:
      before = row[None, :place]
      hidden = transformer.forward(params, before, cfg, rows=layer.one_sequence(before)).hidden
      assert predicted[place] == np.argmax(transformer.logits(params, hidden, cfg)[0, -1])
