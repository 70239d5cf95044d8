"""What is read from a compiled program's text: closed forms on a text, and on programs of jax."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from transformer_lab.training import hlo

LOOP = """\
HloModule jit_step, is_scheduled=true

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%all-reduce-scatter.1 (input: f32[64,8]) -> f32[8,8] {
  %input = f32[64,8]{1,0:T(8,128)} parameter(0)
  %all-reduce.3 = f32[64,8]{1,0:T(8,128)} all-reduce(%input), channel_id=7, to_apply=%add
  ROOT %part = f32[8,8]{1,0} dynamic-slice(%all-reduce.3), dynamic_slice_sizes={8,8}
}

%piece (p: bf16[4,8]) -> bf16[32,8] {
  %p = bf16[4,8]{1,0} parameter(0)
  ROOT %all-gather.5 = bf16[32,8]{1,0} all-gather(%p), channel_id=3, dimensions={0}
}

%rest (p: bf16[4,8]) -> bf16[32,8] {
  %p = bf16[4,8]{1,0} parameter(0)
  ROOT %all-gather.6 = bf16[32,8]{1,0} all-gather(%p), channel_id=3, dimensions={0}
}

%condition (state: (s32[], bf16[4,8])) -> pred[] {
  %limit = s32[]{:T(128)} constant(6)
  %state = (s32[]{:T(128)}, bf16[4,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

%body (state: (s32[], bf16[4,8])) -> (s32[], bf16[4,8]) {
  %state = (s32[], bf16[4,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %w = bf16[4,8]{1,0} get-tuple-element(%state), index=1
  %first = bf16[32,8]{1,0} fusion(%w), kind=kCustom, calls=%piece
  %second = bf16[32,8]{1,0} fusion(%w), kind=kCustom, calls=%rest
  %dot = f32[4,32]{1,0} dot(%w, %first), lhs_contracting_dims={1}, rhs_contracting_dims={1}, \
metadata={op_name="jit(step)/layer/dot_general"}
  ROOT %next = (s32[], bf16[4,8]{1,0}) tuple(%i, %w)
}

ENTRY %main (a: bf16[4,8], g: f32[64,8]) -> f32[8,8] {
  %a = bf16[4,8]{1,0} parameter(0)
  %g = f32[64,8]{1,0} parameter(1)
  %zero = s32[] constant(0)
  %start = (s32[], bf16[4,8]{1,0}) tuple(%zero, %a)
  %while = (s32[], bf16[4,8]{1,0}) while(%start), condition=%condition, body=%body
  %sent = (bf16[4,8]{1,0}, bf16[4,8]{1,0}, u32[], u32[]) collective-permute-start(%a), channel_id=9
  %came = bf16[4,8]{1,0} collective-permute-done(%sent)
  ROOT %out = f32[8,8]{1,0} fusion(%g), kind=kCustom, calls=%all-reduce-scatter.1
}
"""


def test_a_loops_body_counts_as_often_as_it_runs_and_a_collective_in_parts_once():
    program = hlo.parse(LOOP)
    assert program.collectives() == {
        "all-gather": {"count": 6, "bytes": 6 * 32 * 8 * 2},
        "reduce-scatter": {"count": 1, "bytes": 64 * 8 * 4},
        "collective-permute": {"count": 1, "bytes": 4 * 8 * 2},
    }
    assert program.flops() == 6 * 2 * 4 * 32 * 8
    known = LOOP.replace("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"5"}}')
    assert hlo.parse(known).collectives()["all-gather"]["count"] == 5


def test_the_largest_arrays_are_those_that_are_made_and_say_where():
    best = hlo.parse(LOOP).largest(3)
    assert [x["array"] for x in best] == ["bf16[32,8]", "f32[4,32]", "f32[8,8]"]
    assert best[1] == {"array": "f32[4,32]", "bytes": 512, "by": "dot", "times": 6,
                       "from": "jit(step)/layer/dot_general"}  # fmt: skip


@pytest.mark.parametrize(
    ("line", "flops"),
    [
        # A batch of 16 as a window of which one place is real; a plain product; a contraction of
        # 16 windows (all three as a TPU's compiler writes them).
        ("f32[16,8,32,32] convolution(f32[16,8,32,4] f32[16,8,32,4]), window={size=16x8 "
         "stride=15x7 lhs_dilate=16x8}, dim_labels=01bf_01oi->01bf", 2 * 16 * 8 * 32 * 32 * 4),
        ("f32[16,32,64] convolution(f32[16,32,8] f32[8,64,1]), window={size=1}, "
         "dim_labels=0bf_io0->0bf", 2 * 16 * 32 * 64 * 8),
        ("f32[64,8,1] convolution(f32[16,32,64] f32[16,32,8]), window={size=16}, "
         "dim_labels=0fb_0io->bf0", 2 * 64 * 8 * 32 * 16),
    ],
)  # fmt: skip
def test_a_convolution_counts_only_products_with_numbers_that_are_there(line, flops):
    result, operands, rest = line.split(" convolution(")[0], line.split("(")[1], line.split(")")[1]
    left, right = operands.split(")")[0].split(" ")
    text = f"""\
ENTRY %main (a: f32[1]) -> f32[1] {{
  %a = {left} parameter(0)
  %b = {right} parameter(1)
  ROOT %c = {result} convolution(%a, %b){rest}
}}
"""
    assert hlo.parse(text).flops() == flops


def test_a_step_over_eight_devices_in_closed_form():
    """A weight split over 8 devices is gathered in each of 3 rounds of a loop."""
    mesh = jax.make_mesh((8,), ("fsdp",))
    rows, split, whole = (NamedSharding(mesh, p) for p in (P("fsdp"), P(None, "fsdp"), P()))

    def step(x, w):
        def body(x, w):
            return jnp.tanh(x @ jax.lax.with_sharding_constraint(w, whole)), None

        return jax.lax.scan(body, x, w)[0]

    x = jax.ShapeDtypeStruct((16, 32), "float32", sharding=rows)
    w = jax.ShapeDtypeStruct((3, 32, 32), "float32", sharding=split)
    program = hlo.parse(jax.jit(step).trace(x, w).lower().compile().as_text())
    assert program.flops() == 3 * 2 * 2 * 32 * 32
    found = program.collectives()
    assert set(found) == {"all-gather"} and found["all-gather"]["bytes"] == 3 * 32 * 32 * 4
    assert 3 * 32 * 32 * 4 < program.traffic() < 20 * 3 * 32 * 32 * 4
