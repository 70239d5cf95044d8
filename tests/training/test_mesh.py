"""Meshes and sharding rules."""

import dataclasses
import re

import jax
import pytest
from jax.sharding import PartitionSpec as P

from tests.tiny import make_trainer, tiny_config
from transformer_lab.errors import LabError
from transformer_lab.ops.layout import AXES
from transformer_lab.training.config import MeshConfig
from transformer_lab.training.mesh import fitted, make_mesh, parse_rules, shardings, without_rule

KERNEL = {"query": {"kernel": jax.ShapeDtypeStruct((8, 6), "float32")}}


def test_minus_one_takes_the_rest_of_the_devices():
    sizes = {"slice": 1, "data": 2, "fsdp": 2, "expert": 1, "sequence": 1, "tensor": 2}
    assert dict(make_mesh(MeshConfig(-1, 2, 2)).shape) == sizes
    assert make_mesh(MeshConfig(1, -1, 1)).shape["fsdp"] == 8


@pytest.mark.parametrize("sizes", [(3, 1, 1), (-1, -1, 1), (2, 2, 1), (0, 1, 1), (-1, 3, 1)])
def test_a_mesh_that_does_not_fit_is_one_line(sizes):
    with pytest.raises(LabError, match="mesh") as info:
        make_mesh(MeshConfig(*sizes))
    assert "\n" not in str(info.value)


@pytest.mark.parametrize(
    ("sizes", "devices", "rows", "found"),
    [
        ({"data": 8}, 1, 0, {}),
        ({"data": 8}, 4, 0, {"data": 4}),
        ({"data": 1}, 8, 0, {}),  # no more than it was trained on
        ({"data": 4, "fsdp": 2}, 2, 0, {"fsdp": 2}),  # copies go first
        ({"data": 2, "fsdp": 2, "tensor": 2}, 8, 0, {"data": 2, "fsdp": 2, "tensor": 2}),
        ({"data": -1}, 8, 4, {"data": 4}),  # a batch of four rows
        ({"data": -1, "fsdp": 8}, 12, 64, {"fsdp": 4}),  # 3 does not divide 64 rows
        ({"data": 1, "fsdp": -1}, 6, 0, {"fsdp": 6}),
    ],
)
def test_a_run_that_is_only_used_lies_on_the_devices_that_there_are(sizes, devices, rows, found):
    expected = {axis: 1 for axis in AXES} | found
    fits = fitted(MeshConfig(**sizes), devices, rows)
    assert {axis: getattr(fits, axis) for axis in AXES} == expected


@pytest.mark.parametrize("sizes", [(16,), (3, 3), (4, 1, 4), (-1, 3), (3, -1)])
def test_the_way_out_of_a_mesh_that_does_not_fit_fits(sizes):
    with pytest.raises(LabError, match="--config.mesh") as info:
        make_mesh(MeshConfig(*sizes))
    told = dict(re.findall(r"--config\.mesh\.(\w+)=(\d+)", str(info.value)))
    changed = dataclasses.replace(MeshConfig(*sizes), **{k: int(v) for k, v in told.items()})
    assert make_mesh(changed).size == 8


def test_rules_address_by_path_and_the_users_come_first():
    mesh = make_mesh(MeshConfig(2, 2, 2))
    assert shardings(KERNEL, mesh)["query"]["kernel"].spec == P("fsdp", "tensor")
    own = shardings(KERNEL, mesh, "query/kernel=tensor,-")["query"]["kernel"]
    assert own.spec == P("tensor", None)


def test_a_dimension_that_does_not_divide_is_not_split():
    mesh = make_mesh(MeshConfig(1, 4, 2))
    odd = {"query": {"kernel": jax.ShapeDtypeStruct((6, 6), "float32")}}
    assert shardings(odd, mesh)["query"]["kernel"].spec == P(None, "tensor")


def test_what_no_rule_covers_has_its_largest_dimension_over_fsdp():
    mesh = make_mesh(MeshConfig(1, 4, 2))
    shapes = {"vector": (8,), "matrix": (8, 12), "odd": (16, 4, 9), "none": (3, 5)}
    tree = {"strange": {k: jax.ShapeDtypeStruct(x, "float32") for k, x in shapes.items()}}
    found = {k: s.spec for k, s in shardings(tree, mesh)["strange"].items()}
    assert found == {
        "vector": P(None), "matrix": P(None, "fsdp"), "odd": P("fsdp", None, None),
        "none": P(None, None),
    }  # fmt: skip
    assert without_rule(tree, ()) == ["strange/matrix", "strange/none", "strange/odd"]
    family = [("strange/matrix", ("tensor", None))]
    assert shardings(tree, mesh, "", family)["strange"]["matrix"].spec == P("tensor", None)
    own = shardings(tree, mesh, "matrix=-,tensor", family)["strange"]["matrix"]  # the user's first
    assert own.spec == P(None, "tensor") and len(without_rule(tree, family)) == 2


def test_useless_rules_are_named():
    mesh = make_mesh(MeshConfig())
    with pytest.raises(LabError, match="qurey"):
        shardings(KERNEL, mesh, "qurey=fsdp,-")
    with pytest.raises(LabError, match="banana"):
        parse_rules("query=banana")


def test_a_batch_that_the_mesh_does_not_divide_is_one_line():
    trainer = make_trainer(tiny_config(**{"mesh.data": 8}))
    batch = next(trainer.task.eval_batches("validation"))
    with pytest.raises(LabError, match="12 rows does not divide.*8"):
        trainer.place({name: value[:1].repeat(12, axis=0) for name, value in batch.items()})
    with pytest.raises(LabError, match="tokens_per_batch"):
        config = tiny_config(**{"mesh.data": 8, "batch.tokens_per_batch": 60})
        make_trainer(config).task.steps_per_epoch()
