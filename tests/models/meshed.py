"""Losses and gradients of image models on a mesh of eight devices."""

import jax
import jax.numpy as jnp
import numpy as np

from transformer_lab.models import rules_of
from transformer_lab.training.config import MeshConfig
from transformer_lab.training.mesh import batch_sharding, make_mesh, shardings


def assert_same_on_a_mesh(model, config, params, images, output="logits"):
    """Rows over data and fsdp, kernels over fsdp and tensor; with dropout. A leaf's difference is
    measured by its largest entry, or by a hundredth of the largest of all, for what is far smaller
    may be rounding alone."""
    found = []
    for sizes in ({"data": 1}, {"data": 2, "fsdp": 2, "tensor": 2}):
        mesh = make_mesh(MeshConfig(**sizes), int(np.prod([*sizes.values()])))
        laid, rows = shardings(params, mesh, "", rules_of(config)), batch_sharding(mesh)

        def loss(params, images, mesh=mesh):
            with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
                out = model.apply({"params": params}, images, jax.random.key(3))
            return jnp.square(out[output]).sum()

        step = jax.jit(jax.value_and_grad(loss), in_shardings=(laid, rows))
        placed = jax.device_put(params, laid), jax.device_put(images, rows)
        found.append(jax.device_get(step(*placed)))
    one, other = map(jax.tree.leaves, found)
    least = 1e-2 * max(np.abs(x).max() for x in one)
    for x, y in zip(one, other, strict=True):
        np.testing.assert_allclose(y, x, atol=1e-5 * max(np.abs(x).max(), least))
