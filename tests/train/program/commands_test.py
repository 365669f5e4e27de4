#!/usr/bin/env python3
"""Commands of the trainer: `train NAME ...` does what the option of earlier versions does, which says the new form once; each has its own help, and
refuses what it does not take; `inspect` and `keys` list.
Usage: commands_test.py TRAIN [WORD...]   (WORD: only the cases whose name contains one)"""

import sys

import harness
from resume_test import Folder

USAGE, LIMIT_S = 64, 60
# Command, its arguments, and the same by options.
SAME = (("plan", ["{config}"], ["{config}", "--dry-run"]),
        ("plan", ["{config}", "--full"], ["{config}", "--dry-run=full"]),
        ("plan", ["{config}", "--explain", "blocks.0", "--ranks", "3"], ["--plan-explain", "blocks.0", "{config}", "--ranks", "3"]),
        ("plan", ["{config}", "--diff", "{config}"], ["{config}", "--plan-diff", "{config}"]),
        ("fit", ["{config}", "--largest"], ["{config}", "--fit=largest"]),
        ("evaluate", ["out"], ["--evaluate", "out"]),
        ("sample", ["out", "--prompt", "a", "--tokens", "5"], ["--sample", "out", "--prompt", "a", "--tokens", "5"]),
        ("verify", ["out"], ["--verify", "out"]),
        ("verify-weights", ["out/model.safetensors"], ["--verify-weights", "out/model.safetensors"]),
        ("report", ["out", "--out", "r.html"], ["--report", "out", "--out", "r.html"]),
        ("keys", [], ["--help-config"]))


def aliases(train):
    """Each command prints what its option of earlier versions prints, which beside says the new form in one line on stderr."""
    with Folder(train) as folder:
        start = folder.start(checkpoint__every=4)
        problems = [] if start.code == 0 else [str(start)]
        for name, arguments, before in SAME:
            now, then = (harness.run([train, *(text.format(config=folder.config) for text in words)], LIMIT_S, cwd=folder.path)
                         for words in ([name, *arguments], before))
            if (now.code, then.code) != (0, 0) or (now.out != then.out and name != "fit"):
                problems.append(f"{name}: {now}\n{before}: {then}")
            notes = [line for line in then.err.splitlines() if "is a command now" in line]
            problems += [] if len(notes) == 1 and f": train {name}" in notes[0] and "is a command now" not in now.err else [f"{before} says {notes}, {now.err}"]
        two = harness.run(harness.launch(2, [train, folder.config, "--dry-run"]), LIMIT_S, cwd=folder.path)
        problems += [] if two.code == 0 and two.err.count("is a command now") == 1 else [f"on two ranks: {two}"]
        two = harness.run(harness.launch(2, [train, "keys", "train.beta1"]), LIMIT_S, cwd=folder.path)
        problems += [] if two.code == 0 and two.out.count("train.beta1") == 1 else [f"keys on two ranks: {two}"]
        for words in (["export", "out", "new"], ["--export", "old", "out"]):
            result = harness.run([train, *words], LIMIT_S, cwd=folder.path)
            problems += [] if result.code == 0 else [f"{words}: {result}"]
        files = [(folder.path / name / "model.safetensors").read_bytes() for name in ("new", "old")]
        return problems + ([] if files[0] == files[1] else ["export writes other weights than --export"])


def helps(train):
    """`train --help` lists the commands, and each has its own help."""
    text = harness.run([train, "--help"], LIMIT_S)
    problems = [] if text.code == 0 else [str(text)]
    for name in {name for name, _, _ in SAME} | {"run", "tokenize", "export", "inspect", "document"}:
        problems += [] if f"  train {name} " in text.out else [f"train --help does not list {name}"]
        own = harness.run([train, name, "--help"], LIMIT_S)
        problems += [] if own.code == 0 and "--help" in own.out and own.err == "" else [f"{name} --help: {own}"]
    return problems


def refusals(train):
    """What a command does not take is refused in one line, which names both."""
    problems = []
    with Folder(train) as folder:
        for words, says in ((["evaluate"], "RUN is required"), (["evaluate", "out", "--top-k", "3"], "--top-k is an option of train sample"), (["export", "out"], "DIR is required"),
                            (["plan", folder.config, "--logits", "l"], "--logits is an option of train evaluate"), (["report", "out", "--resume", "latest"], "--resume"),
                            (["sample", "out", "a.txt"], "the argument a.txt was not expected"), (["verify"], "RUN is required"),
                            ([folder.config, "--ranks", "3"], "--ranks is an option of train fit or plan"), ([folder.config, "--stepz"], "--stepz"), (["keys", "nothing"], "no key matches"),
                            (["run"], "no configuration file"), (["plan"], "train plan CONFIG.toml"),
                            (["evalute", "out"], 'there is no command "evalute" (command line): did you mean evaluate?'), (["--evaluate", "out", "--verify", "out"], "--evaluate and --verify do not go together")):
            result = harness.run([train, *words], LIMIT_S, cwd=folder.path)
            last = result.last_error_line()
            problems += [] if result.code == USAGE and says in last and result.out == "" else [f"{words}: expected {says!r}: {result}"]
    return problems


def lists(train):
    """`inspect` lists the tensors of what a run has saved; `keys` the keys that match."""
    with Folder(train) as folder:
        folder.start(ranks=2, checkpoint__every=8)
        problems = []
        for source, rows, says in (("out/checkpoints/step-8", ["(adamw.m)", "(adamw.v)", "(master)"], "step 8, written by 2 ranks"), ("out/model.safetensors", [], "")):
            result = harness.run([train, "inspect", source], LIMIT_S, cwd=folder.path)
            lines = result.out.splitlines()
            problems += [] if result.code == 0 and lines[0].startswith("tensor") and says in lines[-1] else [str(result)]
            problems += [] if f": {len(lines) - 2} tensors, " in lines[-1] else [f"another number of tensors: {lines[-1]}"]
            problems += [f"no {row} of {source}" for row in rows if row not in result.out]
        found = harness.run([train, "keys", "train.beta*"], LIMIT_S).out
        return problems + ([] if "train.beta1" in found and "train.beta2" in found and "train.lr" not in found else [f"keys: {found}"])


def main():
    harness.begin()
    return harness.run_cases((aliases, helps, refusals, lists))


if __name__ == "__main__":
    sys.exit(main())
