"""Random faults in every kind of file that a run writes: found by the file's name, or harmless."""

import dataclasses
import json
import os
import random
import re
import shutil

import jax
import numpy as np
import pytest

from jaxrl_agents import chat, file_digests
from jaxrl_agents.corpus import frozen_sets
from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.corpus.index import hybrid
from jaxrl_agents.harness import group_files
from jaxrl_agents.learner import segment_files
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.runs import (
  demonstrations,
  report_page,
  resumption,
  rl,
  setup,
  sft,
  weight_files,
)
from jaxrl_agents.runs.workdir import Workdir
from jaxrl_agents.viewer import inputs
from tests.harness.test_group_files import group, plain
from tests.runs.small_run import CFG, CONFIG

pytestmark = pytest.mark.slow

SET = ("corpus.jsonl.gz", "tasks.jsonl")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
  """A folder with a file of every kind, written by the functions that a run writes them with."""
  folder = tmp_path_factory.mktemp("run")
  workdir = Workdir(folder)
  for step in range(4):
    workdir.log("rl", step, {"reward": step / 7, "loss": 1.5 - step})
  workdir.merge_summary(rl.description(CONFIG) | {"eval": {"trained": {"reward": 0.25}}})
  for name in ("eval_warm_start", "step_000003"):
    group_files.save_groups(workdir.trajectories / f"{name}.npz", [group(), group(17)])
  weight_files.save(params_lib.init(CFG, jax.random.key(0)), CFG, workdir.warm_start)
  drills = segment_files.copy_segments(5, 12, ids=np.arange(9), max_period=4, seed=0)
  segment_files.write_segments(workdir.demonstrations / "copies", drills, counts={"kept": 5})
  texts = ["the first text of all", "another text, about jax", "what is said in the third"]
  chunks = [Chunk(f"{i}_0", str(i), f"title {i}", text, 0) for i, text in enumerate(texts)]
  shutil.move(hybrid.build(chunks, folder / "cache", rank=2).folder, folder / "index")
  lines = [frozen_sets.json_lines({"id": i, "text": text} for i, text in enumerate(texts))] * 2
  frozen_sets.write(folder / "set", dict(zip(SET, lines, strict=True)), {"seed": 3})
  report_page.write(folder)
  return folder


def known(record):
  """A record without a digest field whose name was damaged, which nothing reads."""
  return {key: value for key, value in record.items() if len(key) != len(file_digests.FIELD)}


def read_metrics(folder):
  return list(map(known, Workdir(folder).lines()))


def read_page(folder):
  """What the page is made of; it names what it leaves out."""
  run = inputs.read_run(folder)
  assert not any("Traceback" in problem for problem in run.problems)
  print(*run.problems)
  report_page.write(folder, out=str(folder / "fresh.html"))
  return list(map(known, run.rows)), known(run.summary)


def read_summary(folder):
  workdir = Workdir(folder)
  resumption.check_goes_on(CONFIG, workdir, 3)
  return known(workdir.read_summary())


def read_groups(folder):
  resumption.check_goes_on(CONFIG, Workdir(folder), 3)
  files = sorted((folder / "trajectories").glob("*.npz"))
  return [plain(group_files.load_groups(file)) for file in files]


def read_weights(folder):
  workdir = Workdir(folder)
  params = setup.warm_params(CONFIG, workdir)
  sizes = dataclasses.asdict(weight_files.load_sizes(workdir.warm_start))
  return sizes, [np.asarray(x).tobytes() for x in jax.tree.leaves(params)]


def read_tokenizer(folder):
  chat.load.cache_clear()
  return chat.load(str(folder / "warm_start")).encode("a text, and <|im_end|> 12_345").tolist()


def read_demonstrations(folder):
  read = segment_files.read_segments(folder / "demonstrations" / "copies")
  return [tuple(x.tolist() for x in read.example(n)) for n in range(len(read))], read.counts


def read_index(folder):
  index = hybrid.load(folder / "index")
  hits = index.search("text of jax")
  return [(hit.chunk, hit.score) for hit in hits], [hit.chunk for hit in index.grep("t")]


def read_set(folder):
  manifest = frozen_sets.read_manifest(folder / "set", maker="make.py")
  return known(manifest), [
    frozen_sets.read(folder / "set", n, manifest, maker="make.py") for n in SET
  ]


READERS = {
  "metrics.jsonl": (read_metrics, read_page),
  "summary.json": (read_summary, read_page),
  "report.html": (read_page,),
  "trajectories/": (read_groups, read_page),
  "warm_start/": (read_weights, read_tokenizer),
  "demonstrations/": (read_demonstrations,),
  "index/": (read_index,),
  "set/": (read_set,),
}
"""What reads a file, by the beginning of its path."""

REMEDY = re.compile(r"; \w|\. Restore it from a copy")
"""Errors say what is wrong, then what to do."""


def flip(content, draw):
  content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
  return content


def cut(content, draw):
  return content[: draw.randrange(len(content))]


def zeros(content, draw):
  start = draw.randrange(len(content))
  length = min(draw.choice([1, 16, 512, 4096]), len(content) - start)
  content[start : start + length] = bytes(length)
  return content


def remove(content, draw):
  return None


def damage(path, fault, draw):
  content = fault(bytearray(path.read_bytes()), draw)
  path.unlink()  # and not written in place: it is a hard link
  if content is not None:
    path.write_bytes(content)


def is_part(found, whole):
  """Whether what a page or metrics show is as it was, some of it left out."""
  if isinstance(whole, tuple):
    return all(map(is_part, found, whole))
  if isinstance(whole, list):
    return all(each in whole for each in found)
  return found in ({}, whole)


def outcome(reader, folder, whole, path, capfd):
  """ "same", "left out" or "refused" for a reading of a damaged folder; fails for anything else."""
  try:
    found = reader(folder)
  except (ValueError, OSError) as error:
    text = str(error)
    assert path.name in text or f"{path.parent}" in text, (path, text)
    assert REMEDY.search(text) and "\n" not in text, text
    return "refused"
  said = "".join(capfd.readouterr())
  if found == whole:
    return "same"
  assert reader in (read_metrics, read_page, read_groups) and is_part(found, whole), (reader, path)
  assert path.name in said or not path.exists() or path.read_bytes()[-1:] in b"}\n", (path, said)
  return "left out"


def test_a_fault_in_any_file_is_found_by_name_or_harmless(written, tmp_path, capfd):
  draw = random.Random(0)
  whole = {reader: reader(written) for readers in READERS.values() for reader in readers}
  names = sorted(p.relative_to(written) for p in written.rglob("*") if p.is_file())
  names = [name for name in names if name.as_posix().startswith(tuple(READERS))]
  assert len(names) == 28
  counts = dict.fromkeys(("same", "left out", "refused"), 0)
  for trial in range(6 * len(names)):
    name = names[trial % len(names)]
    fault = (flip, flip, flip, cut, zeros, remove)[trial // len(names)]
    folder = tmp_path / str(trial)
    shutil.copytree(written, folder, copy_function=os.link)
    damage(folder / name, fault, draw)
    [readers] = [r for beginning, r in READERS.items() if name.as_posix().startswith(beginning)]
    capfd.readouterr()
    for reader in readers:
      counts[outcome(reader, folder, whole[reader], folder / name, capfd)] += 1
    shutil.rmtree(folder)
  assert counts["refused"] > 4 * len(names)


def test_a_damaged_line_of_metrics_is_left_out_by_number_and_a_resumed_run_removes_it(
  tmp_path, capfd
):
  workdir = Workdir(tmp_path)
  for step in range(3):
    workdir.log("rl", step, {"reward": 0.5})
  lines = workdir.metrics.read_bytes().replace(b'"reward": 0.5', b'"reward": 0.7', 1)
  workdir.metrics.write_bytes(lines + b'{"phase": "rl", "st')
  assert [line["step"] for line in workdir.lines()] == [1, 2]
  error = capfd.readouterr().err
  assert "metrics.jsonl: 2 left out, line 1: it has other content than was written; line 4" in error
  workdir.log("rl", 3, {})
  assert [line["step"] for line in workdir.lines()] == [1, 2, 3]
  workdir.drop_metrics_from("rl", 3)
  assert len(workdir.metrics.read_text().splitlines()) == 2


def test_a_warm_start_without_weights_is_not_replaced_by_other_weights(written, tmp_path):
  shutil.copytree(written, tmp_path / "run")
  workdir = Workdir(tmp_path / "run")
  (workdir.warm_start / "policy.safetensors").unlink()
  with pytest.raises(ValueError, match="holds no policy.safetensors: the warm-up did not end"):
    setup.warm_params(CONFIG, workdir)


def test_a_warm_up_that_did_not_end_is_not_taken_for_a_run_without_one(tmp_path):
  workdir = Workdir(tmp_path / "run")
  (workdir.checkpoints / "sft" / "3").mkdir(parents=True)
  with pytest.raises(
    ValueError, match=r"sft is of a warm-up that did not end; run scripts/train_s"
  ):
    setup.warm_params(CONFIG, workdir)


def test_a_warm_start_that_was_exchanged_under_a_run_is_refused(written, tmp_path):
  shutil.copytree(written, tmp_path / "run")
  workdir = Workdir(tmp_path / "run")
  progress = {"start": weight_files.digest(workdir.warm_start)}
  resumption.check_start(workdir, progress)
  weight_files.save(params_lib.init(CFG, jax.random.key(1)), CFG, workdir.warm_start)
  with pytest.raises(ValueError, match="warm_start, which the training in .* is another one now"):
    resumption.check_start(workdir, progress)
  shutil.rmtree(workdir.warm_start)
  with pytest.raises(
    ValueError, match="warm_start, which the .* is missing; .*begin again in another --workdir"
  ):
    resumption.check_start(workdir, progress)


def test_the_evaluation_of_the_warm_start_is_never_played_by_a_trained_policy(written, tmp_path):
  shutil.copytree(written, tmp_path / "run")
  workdir = Workdir(tmp_path / "run")
  (workdir.trajectories / "eval_warm_start.npz").unlink()
  resumption.check_goes_on(CONFIG, workdir, 0)
  with pytest.raises(ValueError, match="eval_warm_start.npz is missing, .*trained for 3 steps"):
    resumption.check_goes_on(CONFIG, workdir, 3)


def test_evaluations_of_a_policy_that_is_trained_further_are_played_again(written, tmp_path):
  shutil.copytree(written, tmp_path / "run")
  workdir = Workdir(tmp_path / "run")
  for name in ("trained", "one_shot"):
    group_files.save_groups(workdir.trajectories / f"eval_{name}.npz", [group()])
  resumption.forget_results(workdir, 3, ("one_shot",))
  left = sorted(path.stem for path in workdir.trajectories.glob("eval_*"))
  assert left == ["eval_one_shot", "eval_warm_start"]


def test_options_cannot_change_under_evaluations_whose_options_are_lost(written, tmp_path):
  shutil.copytree(written, tmp_path / "run")
  workdir = Workdir(tmp_path / "run")
  workdir.summary.unlink()
  with pytest.raises(ValueError, match="summary.json does not say with which options .*eval_warm"):
    resumption.check_goes_on(CONFIG, workdir, 3)


def test_a_record_with_one_changed_character_is_refused():
  record = {"step": 3, "reward": 0.1, "name": "\u00e4", "none": None}
  text = json.dumps(file_digests.with_digest(record))
  assert file_digests.read_record(text) == record
  for old, new in (("0.1", "0.3"), ('"step"', '"stop"'), ("null", "1")):
    with pytest.raises(ValueError, match="other content than was written"):
      file_digests.read_record(text.replace(old, new))


def test_demonstrations_that_were_exchanged_under_a_warm_up_are_refused(written, tmp_path):
  shutil.copytree(written, tmp_path / "run")
  workdir = Workdir(tmp_path / "run")
  sources = demonstrations.digests(workdir, ["copies"])
  sft.check_sources(workdir, {"sources": sources, "step": 3}, sources)
  drills = segment_files.copy_segments(5, 12, ids=np.arange(9), max_period=4, seed=1)
  segment_files.write_segments(workdir.demonstrations / "copies", drills)
  with pytest.raises(ValueError, match="demonstrations/copies is not the one that the checkpoint"):
    sft.check_sources(workdir, {"sources": sources}, demonstrations.digests(workdir, ["copies"]))
