"""Generated texts of balanced parentheses: one kind of symbols, or five that must match.

Each balanced text has an unbalanced counterpart of the same length and symbols, so that neither
lengths nor counts tell the classes apart."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from transformer_lab.data.labelled import Example
from transformer_lab.data.splits import SPLITS, Splits
from transformer_lab.errors import LabError, at_least, known, within

ALPHABETS = {  # each opening symbol with the one that closes it
    "signs": {"+": "-"},
    "ten": {str(i): str(9 - i) for i in range(5)},
}
BALANCED, UNBALANCED = "balanced", "unbalanced"
_TRIES = 1000


@dataclass(frozen=True)
class ParenthesesConfig:
    """Settings of the texts; lengths are drawn uniformly, with both classes at each length."""

    symbols: str = "signs"  # signs: + is +1, - is -1; ten: 0 to 4 open, i is closed by 9 - i
    min_length: int = 16  # symbols of a text in each split
    max_length: int = 32  # the longest training sequence
    train_size: int = 20_000  # texts, half of each class
    validation_size: int = 500  # sequences held out
    test_size: int = 1000  # sequences for the final scores
    other_lengths: tuple[int, ...] = (32, 48, 64, 96)  # the finished model is scored on these too
    other_size: int = 400  # texts of each of these lengths
    near_misses: float = 0.5  # share of unbalanced texts with two symbols swapped; others: shuffled
    seed: int = 0  # another number makes others

    def __post_init__(self):
        known("config.data.symbols = ", self.symbols, ALPHABETS)
        lengths = (self.min_length, self.max_length, *self.other_lengths)
        if min(lengths) < 2 or any(n % 2 for n in lengths) or self.min_length > self.max_length:
            raise LabError(
                f"config.data.min_length, max_length and other_lengths = {lengths} must be even, "
                "from 2, the first the smallest"
            )
        within("config.data.near_misses", self.near_misses, 0, 1)
        at_least(self, "config.data", 2, *(f"{split}_size" for split in (*SPLITS, "other")))


def is_balanced(text: str, symbols: str) -> bool:
    """Whether each closing symbol matches the last open one, and none stays open."""
    closes, stack = ALPHABETS[symbols], []
    for symbol in text:
        if symbol in closes:
            stack.append(closes[symbol])
        elif not stack or stack.pop() != symbol:
            return False
    return not stack


def balanced(pairs: int, symbols: str, draw: Random) -> str:
    """A balanced text of so many pairs, each such text equally likely.

    Of the rotations of n steps up and n + 1 down, exactly one falls below its start only in the
    last step: the one that begins after the first lowest point (cycle lemma, Dvoretzky 1947)."""
    ups = [True] * pairs + [False] * (pairs + 1)
    draw.shuffle(ups)
    height, lowest, start = 0, 0, 0
    for place, up in enumerate(ups, 1):
        height += 1 if up else -1
        if height < lowest:
            lowest, start = height, place
    closes, stack, text = ALPHABETS[symbols], [], []
    for up in (ups[start:] + ups[:start])[:-1]:
        if up:
            opening = draw.choice(list(closes))
            stack.append(closes[opening])
        text.append(opening if up else stack.pop())
    return "".join(text)


def unbalanced(text: str, symbols: str, near: bool, draw: Random) -> str:
    """An unbalanced text made of a balanced one by swapping two symbols, or by shuffling."""
    while True:
        mixed = list(text)
        if near:
            i, j = draw.sample(range(len(text)), 2)
            mixed[i], mixed[j] = mixed[j], mixed[i]
        else:
            draw.shuffle(mixed)
        if not is_balanced(found := "".join(mixed), symbols):
            return found


def rows(
    config: ParenthesesConfig, lengths: list[int], size: int, draw: Random, held: set[str]
) -> Iterator[Example]:
    """Balanced and unbalanced texts in turn, lengths drawn uniformly, none of them in `held`."""
    for _ in range(-(-size // 2)):
        for _ in range(_TRIES):
            yes = balanced(draw.choice(lengths) // 2, config.symbols, draw)
            near = draw.random() < config.near_misses
            no = unbalanced(yes, config.symbols, near, draw)
            if not held & {yes, no}:
                break
        else:
            raise LabError(
                f"there are too few texts of {min(lengths)} symbols to hold some out: raise "
                "config.data.min_length and other_lengths, or lower the sizes"
            )
        yield Example(yes, None, BALANCED)
        yield Example(no, None, UNBALANCED)


def load(config: ParenthesesConfig) -> Splits:
    """The splits of a config, always the same; no held-out text is trained on."""
    lengths = list(range(config.min_length, config.max_length + 1, 2))
    make = lambda size, number, held: list(  # noqa: E731
        rows(config, lengths, size, _random(config, number), held)
    )
    test, validation = make(config.test_size, 1, set()), make(config.validation_size, 2, set())
    train = make(config.train_size, 3, {row.text for row in (*test, *validation)})
    report = {"train": len(train), "validation": len(validation), "test": len(test)}
    labels = sorted((BALANCED, UNBALANCED))
    return Splits(train, validation, test, report, "none needed (generated)", labels)


def of_length(config: ParenthesesConfig, length: int, trained: set[str]) -> list[Example]:
    """Test texts of one length, perhaps longer than any trained on; none was trained on."""
    return list(rows(config, [length], config.other_size, _random(config, -length), trained))


def baselines(train: list[Example], test: list[Example]) -> dict[str, float]:
    """The accuracy of the commonest class, and of the commonest class of each length."""
    of_each = defaultdict(Counter)
    for row in train:
        of_each[len(row.text)][row.label] += 1
    overall = sum(of_each.values(), Counter())
    guess = {n: counts.most_common(1)[0][0] for n, counts in of_each.items()}
    common = overall.most_common(1)[0][0]
    right = [(row.label == common, row.label == guess.get(len(row.text), common)) for row in test]
    majority, length = (sum(column) / len(test) for column in zip(*right, strict=True))
    return {"majority_baseline": majority, "length_baseline": length}


def _random(config: ParenthesesConfig, number: int) -> Random:
    return Random(f"{config.seed} {number}")
