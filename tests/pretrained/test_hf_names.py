"""The name map: both directions from one table, and every fault listed."""

import numpy as np
import pytest

from transformer_lab.errors import LabError
from transformer_lab.pretrained.names import (
    ROW,
    NameMap,
    Rule,
    Transform,
    dense,
    export_params,
    import_params,
    norm,
    without_wrappers,
)

SHAPES = {
    "embedding": (5, 3),
    "layer_0/up/kernel": (3, 4),
    "layer_0/up/bias": (4,),
    "layer_12/up/kernel": (3, 4),
    "layer_12/up/bias": (4,),
    "final/scale": (3,),
    "final/bias": (3,),
    "head_bias": (5,),
}
RULES = (
    Rule("embedding", "wte.weight"),
    *dense("layer_{i}/up", "h.{i}.fc"),
    *norm("final", "ln_f"),
    Rule("head_bias", "out.bias", ROW),
)
NAMES = NameMap(
    RULES,
    copies={"head.weight": "wte.weight"},
    derived={"positions": lambda: np.eye(3, dtype=np.float32)},
    unused=frozenset(["h.bias"]),
)


def tensors():
    rng = np.random.default_rng(0)
    value = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    return {
        "wte.weight": value(5, 3),
        "h.0.fc.weight": value(4, 3),
        "h.0.fc.bias": value(4),
        "h.12.fc.weight": value(4, 3),
        "h.12.fc.bias": value(4),
        "ln_f.weight": value(3),
        "ln_f.bias": value(3),
        "out.bias": value(1, 5),
    }


def test_import_lays_arrays_out_our_way_and_export_is_its_inverse():
    theirs = tensors()
    ours = import_params(NAMES, theirs, SHAPES, "dir")
    np.testing.assert_array_equal(ours["layer_12"]["up"]["kernel"], theirs["h.12.fc.weight"].T)
    np.testing.assert_array_equal(ours["head_bias"], theirs["out.bias"][0])
    back = export_params(NAMES, ours, SHAPES)
    assert back.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(back[name], value)


def test_one_tensor_of_theirs_packs_several_of_ours():
    join = Transform(lambda *x: np.concatenate(x), lambda x: np.split(x, 3))
    parts = tuple("layer_{i}/" + part for part in "abc")
    names = NameMap((Rule(parts, "h.{i}.abc", join),), prefix="h.", unused=frozenset(["h.{i}.x"]))
    shapes = {f"layer_{i}/{part}": (2, 3) for i in (0, 10) for part in "abc"}
    theirs = {f"h.{i}.abc": np.full((6, 3), i) + np.arange(6.0)[:, None] for i in (0, 10)}
    ours = import_params(names, theirs | {"h.4.x": np.zeros(1, bool)}, shapes, "dir")
    np.testing.assert_array_equal(ours["layer_10"]["b"], [[12.0] * 3, [13.0] * 3])
    back = export_params(names, ours, shapes)
    assert back.keys() == theirs.keys()
    assert all(np.array_equal(back[name], theirs[name]) for name in theirs)
    bare = {name.removeprefix("h."): value for name, value in theirs.items()}
    again = import_params(names, bare, shapes, "dir")
    np.testing.assert_array_equal(again["layer_0"]["c"], ours["layer_0"]["c"])
    with pytest.raises(LabError, match=r"wrong: h.0.abc has the shape \(5, 3\), needs \(6, 3\)$"):
        import_params(names, theirs | {"h.0.abc": np.zeros((5, 3))}, shapes, "dir")


def test_every_fault_is_listed_at_once():
    theirs = tensors()
    del theirs["h.12.fc.bias"], theirs["ln_f.weight"]
    theirs["h.0.fc.weight"] = theirs["h.0.fc.weight"].T
    theirs["ln_f.bias"] = np.zeros(3, np.int32)
    theirs |= {"h.13.fc.bias": np.zeros(4), "extra": np.zeros(1)}
    theirs["head.weight"] = theirs["wte.weight"] + 1e-6
    theirs["positions"] = np.zeros((3, 3), np.float32)
    with pytest.raises(LabError) as error:
        import_params(NAMES, theirs, SHAPES, "dir")
    assert str(error.value) == (
        "dir: missing: h.12.fc.bias, ln_f.weight; unexpected: extra, h.13.fc.bias; "
        "wrong: h.0.fc.weight has the shape (3, 4), needs (4, 3), "
        "ln_f.bias has the type int32, needs a floating-point type, "
        "head.weight is tied to wte.weight but differs from it, "
        "positions differs from its formula by 1.0e+00"
    )


def test_known_copies_derived_and_unused_tensors_pass():
    theirs = tensors()
    theirs["head.weight"] = theirs["wte.weight"].copy()
    theirs["positions"] = np.eye(3, dtype=np.float16)
    theirs["h.bias"] = np.zeros(7)
    ours = import_params(NAMES, theirs, SHAPES, "dir")
    np.testing.assert_array_equal(ours["embedding"], theirs["wte.weight"])
    theirs["positions"] = np.eye(4, dtype=np.float32)
    with pytest.raises(LabError, match=r"positions has the shape \(4, 4\), needs \(3, 3\)"):
        import_params(NAMES, theirs, SHAPES, "dir")


def test_a_copy_stands_in_for_a_missing_original():
    theirs = tensors()
    theirs["head.weight"] = theirs.pop("wte.weight")
    ours = import_params(NAMES, theirs, SHAPES, "dir")
    np.testing.assert_array_equal(ours["embedding"], theirs["head.weight"])


def test_copies_that_readers_need_are_written():
    names = NameMap(RULES, {"head.weight": "wte.weight"}, written_copies=frozenset(["head.weight"]))
    back = export_params(names, import_params(names, tensors(), SHAPES, "dir"), SHAPES)
    np.testing.assert_array_equal(back["head.weight"], tensors()["wte.weight"])


def test_the_table_and_the_parameters_must_cover_each_other():
    with pytest.raises(LabError, match="layer_0/gate: 0 rules"):
        NAMES.names([*SHAPES, "layer_0/gate"])
    with pytest.raises(LabError, match="rule head_bias matches no parameter"):
        NAMES.names([path for path in SHAPES if path != "head_bias"])
    with pytest.raises(LabError, match="embedding: 2 rules"):
        NameMap((*RULES, Rule("embedding", "other"))).names(SHAPES)


def test_export_refuses_parameters_of_another_config():
    ours = import_params(NAMES, tensors(), SHAPES, "dir")
    ours["final"] = {"scale": np.zeros(4, np.float32), "shift": ours["final"]["bias"]}
    with pytest.raises(LabError, match="config: final/bias, final/scale, final/shift$"):
        export_params(NAMES, ours, SHAPES)


def test_what_wrappers_put_before_all_names_is_taken_off_and_said():
    plain = tensors()
    found, taken = without_wrappers({f"module._orig_mod.{n}": v for n, v in plain.items()})
    assert taken == "module._orig_mod." and found.keys() == plain.keys()
    mixed = {"module.a": 0, "b": 1}
    assert without_wrappers(mixed) == (mixed, "")


def test_a_missing_head_says_how_to_tie_it():
    names = NameMap(
        (Rule("embedding/embedding", "wte.weight"), Rule("head/embedding", "lm_head.weight"))
    )
    shapes = {"embedding/embedding": (5, 3), "head/embedding": (5, 3)}
    with pytest.raises(LabError, match='missing: lm_head.weight; .* "tie_word_embeddings": true'):
        import_params(names, {"wte.weight": np.zeros((5, 3), np.float32)}, shapes, "dir")
