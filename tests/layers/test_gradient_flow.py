"""Gradients vanish, explode, or arrive."""

from transformer_lab.layers.gradient_flow import curves


def test_gradients_vanish_or_explode_by_the_gain_and_attention_reaches_every_time():
    found = curves(length=40, width=16)
    back = {name: norms[-1 - 30] for name, norms in found.items()}
    assert all(norms[-1] == 1.0 and (norms > 0).all() for norms in found.values())
    assert back["Elman, gain 0.5"] < 1e-8
    assert back["Elman, gain 0.5"] < back["Elman, gain 1"] < 1 < back["Elman, gain 2"]
    lstm = [back[f"LSTM, forget bias {bias}"] for bias in (0, 1, 3)]
    assert 10 * lstm[0] < lstm[1] and 10 * lstm[1] < lstm[2]
    far, near = found["attention"][:20].mean(), found["attention"][20:-1].mean()
    assert 0.5 < far / near < 2.0
