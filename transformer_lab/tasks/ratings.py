"""Ratings of players from comparisons of two, by the model of Bradley and Terry (1952)."""

import numpy as np
from jaxtyping import Float, Int

ROUNDS = 1000


def ratings(wins: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n"]:
    """Ratings r with mean 0 that make the results likeliest; i beats j with s(r_i - r_j), s being
    the logistic function.

    `wins[i, j]` counts how often i beat j, a tie as half a win of each. Each player is given half a
    win over each other, so that no rating is infinite. Of two players with 6 and 2 wins the ratings
    differ by ln(6.5 / 2.5). Hunter 2004, eq. 3, until nothing moves.
    """
    size = len(wins)
    wins = np.where(np.eye(size, dtype=bool), 0.0, wins + 0.5)
    games, strength = wins + wins.T, np.ones(size)
    for _ in range(ROUNDS):
        new = wins.sum(axis=1) / (games / np.add.outer(strength, strength)).sum(axis=1)
        new /= np.exp(np.log(new).mean())
        still = np.allclose(new, strength, rtol=1e-12)
        strength = new
        if still:
            break
    return np.log(strength)


def interval(
    results: Int[np.ndarray, "prompts"], draws: int = 1000, seed: int = 0, level: float = 0.95
) -> tuple[float, float, float]:
    """How much higher the first of two players is rated, with the ends of its interval.

    `results` are 1 where the first won, -1 where the second did, 0 for a tie. The interval is that
    of the middle `level` of ratings from prompts drawn anew with replacement (Efron 1979).
    """

    def higher(some: np.ndarray) -> float:
        won, lost = (
            (some > 0).sum() + (some == 0).sum() / 2,
            (some < 0).sum() + (some == 0).sum() / 2,
        )
        first, second = ratings(np.array([[0.0, won], [lost, 0.0]]))
        return float(first - second)

    rng = np.random.default_rng(seed)
    found = [higher(rng.choice(results, len(results))) for _ in range(draws)]
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return higher(results), float(low), float(high)
