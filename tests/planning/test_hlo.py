"""Loops, collectives and cycles of a program's text, against counts by hand."""

import jax
import jax.numpy as jnp
import pytest

from jaxrl_agents.planning import compiling, hlo, timing, topology

TEXT = """HloModule jit_f, is_scheduled=true

FileNames
1 "/here/layers.py"
2 "/here/tiles.py"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=1 end_line=1 column=1 end_column=2}
2 {file_name_id=2 function_name_id=1 line=1 end_line=1 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=1}

%tile (t: (s32[], f32[8])) -> (s32[], f32[8]) {
  %t = (s32[]{:T(128)}, f32[8]{0:T(128)}) parameter(0)
  ROOT %f = (s32[]{:T(128)}, f32[8]{0}) fusion(%t), FRAME=2, X={"estimated_cycles":"10"}
}

%many (t: (s32[], s32[])) -> pred[] {
  %t.1 = (s32[], s32[]) parameter(0)
  %a = s32[] get-tuple-element(%t.1), index=0
  %b = s32[] get-tuple-element(%t.1), index=1
  ROOT %lt = pred[] compare(%a, %b), direction=LT
}

%layer (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p = (s32[], f32[8]) parameter(0)
  %x = f32[8]{0} get-tuple-element(%p), index=1
  %s = (f32[8]{0}, f32[32]{0}, u32[]{:S(2)}) all-gather-start(%x), GROUPS=[2,4]<=[8], FRAME=1
  %d = f32[32]{0} all-gather-done(%s)
  %turned = f32[2,4]{1,0} reshape(%x), FRAME=2
  %gathered = f32[4]{0} fusion(%x), kind=kCustom, FRAME=1
  %k = f32[8]{0} custom-call(%x), FRAME=1, X={"estimated_cycles":"9223372036854775807"}
  %put = f32[8]{0} fusion(%x), X={"aliasing_operands":{"lists":[{"indices":["0","3"]}]}}
  %all-reduce.1 = bf16[64]{0} all-reduce(%y), GROUPS=mesh['a'=2,'b'=4] {'b'}, to_apply=%add
  ROOT %while.1 = (s32[], f32[8]) while(%p), condition=%many, body=%tile, FRAME=2
}

%six (p: (s32[], f32[8])) -> pred[] {
  %n = s32[]{:T(128)} constant(6)
  %p.1 = (s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%p.1), index=0
  ROOT %lt.1 = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %a.1 = f32[8]{0} parameter(0)
  %while.2 = (s32[], f32[8]) while(%a.1), condition=%six, body=%layer, FRAME=1
  ROOT %r = f32[8]{0} get-tuple-element(%while.2), index=1
}
"""
# As XLA writes it; shortened above to fit a line.
TEXT = TEXT.replace("FRAME", "stack_frame_id").replace("GROUPS", "replica_groups")


def test_loops_count_as_often_as_they_run():
  cost = hlo.cost(TEXT, lambda file, around: {"tiles.py:f": (around + 1) / 2}[file])
  assert cost.cycles == {"tiles.py": 6 * 3.5 * 10}
  assert cost.guessed == {"tiles.py:f": 3.5}
  # What has no estimate: read and written, but for what is written in place.
  assert cost.moved == {"tiles.py": 6 * 2 * 32, "layers.py": 6 * 2 * 16}
  gather, reduce = sorted(cost.collectives, key=lambda c: c.kind)
  assert gather == hlo.Collective("all-gather", 32 * 4, 4, "layers.py", 6.0)
  assert reduce == hlo.Collective("all-reduce", 64 * 2, 4, hlo.ELSEWHERE, 6.0)
  assert gather.moved_bytes == 6 * 128 * 3 / 4
  assert reduce.moved_bytes == 6 * 128 * 2 * 3 / 4


def test_a_ring_uses_the_links_of_the_dimensions_that_hold_the_group():
  """v5p sends 100 GB/s over each of six links: 200 a dimension."""
  slice_of_v5p = topology.parse("v5p:4x8x8")
  gather = lambda group: hlo.Collective("all-gather", 10**9, group, "f.py", 2.0)
  assert timing.seconds(gather(8), slice_of_v5p) == pytest.approx(2 * 7 / 8 / 200)
  assert timing.seconds(gather(64), slice_of_v5p) == pytest.approx(2 * 63 / 64 / 400)
  exchange = hlo.Collective("all-to-all", 10**9, 8, "f.py", 1.0)
  assert timing.seconds(exchange, slice_of_v5p) == pytest.approx(7 / 8 * 2 / 200)
  node = topology.parse("h200:8")
  assert timing.seconds(gather(8), node) == pytest.approx(2 * 7 / 8 / 450)


def test_the_length_of_a_scan_is_found_in_what_xla_for_cpu_writes():
  step = lambda x, _: (jnp.sin(jnp.roll(x, 1)), None)
  program = jax.jit(lambda x: jax.lax.scan(step, x, None, length=7)[0])
  text = program.lower(jnp.zeros(1024)).compile().as_text()
  computations, entry = hlo.computations(text)
  runs = {times for name, times, _ in hlo.runs(computations, entry, lambda file, around: 1.0)}
  assert runs == {1.0, 7.0}


def test_what_a_program_would_need_is_read_off_the_error():
  message = (
    "RESOURCE_EXHAUSTED: … the total memory required (33.79G) exceeds available HBM (31.24G)"
  )
  assert compiling.needed_bytes(message) == int(33.79 * 2**30)
  assert compiling.needed_bytes("RESOURCE_EXHAUSTED: Used 1.5M of 1M hbm") == int(1.5 * 2**20)
  assert compiling.needed_bytes("INTERNAL: something else") is None
