"""The translation task's scores and text."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiny import make_trainer, start, tiny_config
from transformer_lab.errors import LabError
from transformer_lab.tasks.scores import corpus_scores


def test_bleu_is_the_corpus_score_on_detokenised_text_with_its_signature():
    outputs = ["the cat is on the mat", "a dog"]
    references = ["the cat sat on the mat", "a dog runs in the big park"]
    values, signature = corpus_scores(outputs, references)
    assert abs(values["bleu"] - 21.1345) < 1e-4
    assert "tok:13a" in signature and "version:" in signature
    with pytest.raises(LabError, match="2 translations but 1 references"):
        corpus_scores(outputs, references[:1])


def test_references_are_not_normalised_behind_the_users_back():
    values, _ = corpus_scores(["Wait… for the long answer"], ["Wait... for the long answer"])
    assert values["bleu"] < 100


def test_an_empty_translation_is_an_empty_text_and_n_best_are_all_given():
    config = tiny_config(**{"decode.beam_size": 3, "decode.n_best": 2, "decode.batch_size": 4})
    trainer = make_trainer(config, 1)
    params = start(trainer).params
    task, decoder = trainer.task, trainer.task.decoder(trainer.place)
    found = task.translate(decoder, params, ["", "big moon", "  "])
    assert found[0] == found[2] == [""] and len(found[1]) == 2


def test_labels_are_the_targets_and_inputs_are_shifted_by_the_start_token():
    trainer = make_trainer(tiny_config(), 1)
    task, params = trainer.task, start(trainer).params
    batch = jax.tree.map(jnp.asarray, next(task.eval_batches("validation")))
    whole = jax.jit(task.metrics)(params, batch)["nll"]
    tok, total = task.tokenizer, 0.0
    length = batch["target"].shape[1]
    run = jax.jit(lambda *inputs: jax.nn.log_softmax(task.model.apply({"params": params}, *inputs)))
    for source, mask, target, keep in zip(
        batch["source"], batch["source_mask"], batch["target"], batch["target_mask"], strict=True
    ):
        ids = np.asarray(target)[np.asarray(keep)]
        if len(ids) == 0:
            continue
        assert ids[-1] == tok.eos_id and tok.eos_id not in ids[:-1]
        inputs = [
            tok.bos_id,
            *ids[:-1].tolist(),
            *[0] * (length - len(ids)),
        ]  # no token sees the 0s
        log_probs = run(source[None], mask[None], jnp.array([inputs]))[0]
        total -= float(log_probs[np.arange(len(ids)), ids].sum())
    np.testing.assert_allclose(whole[0], total, rtol=1e-5)
    assert whole[1] == batch["target_mask"].sum()
