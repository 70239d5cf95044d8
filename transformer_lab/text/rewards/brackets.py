"""1 for an answer that closes all brackets of the prompt in their order, and nothing else."""

PAIRS = {"(": ")", "[": "]", "{": "}"}


def reward(prompt: str, answer: str, expected: str) -> float:
    left = []
    for character in prompt + answer:
        if character in PAIRS:
            left.append(PAIRS[character])
        elif not left or left.pop() != character:
            return 0.0
    return float(not left)
