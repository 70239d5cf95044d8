"""1 for the expected answer, such as a sum; white space around it does not count."""


def reward(prompt: str, answer: str, expected: str) -> float:
    return float(answer.strip() == expected.strip())
