"""Generation with the drafts of a smaller run, and without; both take turns.

    python -m benchmarks.speculative --workdir=runs/gpt --draft=runs/small [--drafted=2,4,8]

Prompts are beginnings of the run's held-out documents; one text at a time, greedy.
"""

import argparse
import statistics

from benchmarks.common import interleave, paired, report
from transformer_lab.decoding.speculative import Speculator
from transformer_lab.opened import open_run

PROMPT, NEW, TEXTS = 32, 96, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workdir", required=True, help="the run of a language model")
    parser.add_argument("--draft", required=True, help="a smaller run with the same tokenizer")
    parser.add_argument("--drafted", default="2,4,8", help="tokens of a draft")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each way")
    parser.add_argument("--append", help="a file that gets the results as table rows")
    args = parser.parse_args()
    changes = {"decode.temperature": 0.0, "decode.max_new_tokens": NEW}
    run, small = open_run(args.workdir, changes), open_run(args.draft)
    task, eos = run.task, run.task.tokenizer.eos_id
    texts = task.examples("validation")[:TEXTS]
    prompts = [task.prompt_ids(text)[:PROMPT] for text in texts]
    ways = {"alone": task.generator()}
    for drafted in map(int, args.drafted.split(",")):
        draft = small.task.model, small.params
        decode = task.decode_settings()
        ways[f"drafts of {drafted}"] = Speculator(
            task.model, decode, draft, eos_id=eos, drafted=drafted
        )
    made = {}

    def turn(name):
        parts = (ways[name].stream(run.params, [p], chunk=32) for p in prompts)
        made[name] = sum(len(ids) for part in parts for _, ids, _ in part)

    seconds = interleave({name: lambda name=name: turn(name) for name in ways}, args.rounds)
    for name, values in seconds.items():
        result = f"{made[name] / statistics.median(values):,.0f} tokens/s"
        if name != "alone":
            rounds = ways[name].tokens / ways[name].rounds
            gain = paired(seconds["alone"], values)
            result += f", {gain:.2f} times that alone, {rounds:.2f} tokens a pass"
        report(f"speculative decoding, {name}", result, args.append)


if __name__ == "__main__":
    main()
