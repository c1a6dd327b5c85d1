import math

import numpy as np
import pytest
from scipy.special import erf

from jaxrl_agents.corpus.index import host_encoder

WIDTH, FEED_FORWARD, LAYERS, VOCABULARY, POSITIONS = 48, 96, 2, 40, 64


@pytest.fixture(scope="module")
def weights():
  """Random weights of a small encoder by their BERT names."""
  draw = np.random.default_rng(0)
  shapes = {
    "embeddings.word_embeddings.weight": (VOCABULARY, WIDTH),
    "embeddings.position_embeddings.weight": (POSITIONS, WIDTH),
    "embeddings.token_type_embeddings.weight": (2, WIDTH),
    "embeddings.LayerNorm.weight": (WIDTH,),
    "embeddings.LayerNorm.bias": (WIDTH,),
  }
  for layer in (f"encoder.layer.{i}" for i in range(LAYERS)):
    for part in ("query", "key", "value"):
      shapes[f"{layer}.attention.self.{part}.weight"] = (WIDTH, WIDTH)
      shapes[f"{layer}.attention.self.{part}.bias"] = (WIDTH,)
    for name, rows, columns in (
      ("attention.output.dense", WIDTH, WIDTH),
      ("intermediate.dense", FEED_FORWARD, WIDTH),
      ("output.dense", WIDTH, FEED_FORWARD),
    ):
      shapes[f"{layer}.{name}.weight"] = (rows, columns)
      shapes[f"{layer}.{name}.bias"] = (rows,)
    for name in ("attention.output.LayerNorm", "output.LayerNorm"):
      shapes[f"{layer}.{name}.weight"] = shapes[f"{layer}.{name}.bias"] = (WIDTH,)
  scale = {1: 0.5, 2: 0.3}
  return {
    name: draw.normal(0, scale[len(shape)], shape).astype(np.float32)
    for name, shape in shapes.items()
  }


def rows_of(*lengths):
  draw = np.random.default_rng(1)
  return [draw.integers(0, VOCABULARY, length).tolist() for length in lengths]


def published(weights, row):
  """The vector of one text in float64, head by head and position by position."""
  w = {name: value.astype(np.float64) for name, value in weights.items()}

  def linear(x, name):
    return w[f"{name}.weight"] @ x + w[f"{name}.bias"]

  def norm(x, name):
    scaled = (x - x.mean()) / math.sqrt(x.var() + 1e-12)
    return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

  tables = [
    w[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")
  ]
  xs = [
    norm(tables[0][piece] + tables[1][place] + tables[2][0], "embeddings.LayerNorm")
    for place, piece in enumerate(row)
  ]
  head = WIDTH // 12
  for layer in (f"encoder.layer.{i}" for i in range(LAYERS)):
    q, k, v = (
      [linear(x, f"{layer}.attention.self.{n}") for x in xs] for n in ("query", "key", "value")
    )
    mixed = []
    for place in range(len(xs)):
      parts = []
      for span in (slice(h * head, (h + 1) * head) for h in range(12)):
        odds = [math.exp(q[place][span] @ key[span] / math.sqrt(head)) for key in k]
        parts.append(sum(o * value[span] for o, value in zip(odds, v, strict=True)) / sum(odds))
      mixed.append(np.concatenate(parts))
    for place, x in enumerate(xs):
      x = x + linear(mixed[place], f"{layer}.attention.output.dense")
      x = norm(x, f"{layer}.attention.output.LayerNorm")
      wide = linear(x, f"{layer}.intermediate.dense")
      wide = wide * (1 + erf(wide / math.sqrt(2))) / 2
      xs[place] = norm(x + linear(wide, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
  mean = np.mean(xs, axis=0)
  return mean / np.linalg.norm(mean)


@pytest.mark.parametrize("columns", [0, 16])
def test_the_vectors_are_those_of_the_published_encoder(weights, columns):
  rows = rows_of(7, 2, 7, 30, 1)
  found = host_encoder.vectors(host_encoder.laid_out(weights, columns), rows)
  expected = [published(weights, row) for row in rows]
  np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_text_has_the_same_vector_alone_as_among_others(weights):
  rows = rows_of(*[60] * 20, 5, 9)  # more word pieces than one batch holds
  encoder = host_encoder.laid_out(weights)
  alone = np.concatenate([host_encoder.vectors(encoder, [row]) for row in rows])
  np.testing.assert_allclose(host_encoder.vectors(encoder, rows), alone, atol=1e-6)


def test_batches_hold_each_text_once_and_few_word_pieces():
  rows = rows_of(600, 3, 600, 500, 400, 3)
  batches = list(host_encoder.batches(rows))
  assert batches == [[1, 5, 4, 3], [0], [2]]


def test_gelu_is_exact_to_float32_and_finite_at_the_ends():
  x = np.concatenate([np.linspace(-12, 12, 100_001), [-1e4, 1e4, 0]]).astype(np.float32)
  found = x[:, None].copy()
  x = x.astype(np.float64)
  host_encoder.gelu(found)
  exact = x * (1 + erf(x / math.sqrt(2))) / 2
  assert np.all(np.abs(found[:, 0] - exact) <= 3e-7 * np.abs(x) + 1e-12)


def test_a_corpus_has_the_same_vectors_on_the_cpu_and_by_jax(weights):
  from jaxrl_agents.corpus.index import encode

  rows = rows_of(7, 2, 7, 30, 33, 1)
  expected = [published(weights, row) for row in rows]
  np.testing.assert_allclose(encode.on_cpu(weights, rows), expected, atol=1e-6)
  np.testing.assert_allclose(encode.on_device(weights, rows), expected, atol=1e-6)
