#!/usr/bin/env python3
"""Commands of the trainer: `train NAME ...` does what the option of earlier versions does, which says the new form once; each has its own help, and
refuses what it does not take; `inspect` and `keys` list.
Usage: commands_test.py TRAIN [WORD...]   (WORD: only the cases whose name contains one)"""

import pathlib
import shutil
import sys

import harness
from resume_test import Folder

USAGE, LIMIT_S = 64, 60
MANUAL = pathlib.Path(__file__).resolve().parents[3] / "model/package/manual.py"
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
NAMES = {name for name, _, _ in SAME} | {"run", "tune", "tokenize", "export", "inspect", "document"}


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
    for name in NAMES:
        problems += [] if f"  train {name} " in text.out else [f"train --help does not list {name}"]
        own = harness.run([train, name, "--help"], LIMIT_S)
        problems += [] if own.code == 0 and "--help" in own.out and own.err == "" else [f"{name} --help: {own}"]
    return problems


def installed(train):
    """Called zshard, as it is installed, it says so in help, errors and advice; `zshard train` trains; manual and completion have every command."""
    with Folder(train) as folder:
        zshard = folder.path / "zshard"
        shutil.copy(train, zshard)
        problems = []
        for words, code, expected in ((["train", folder.config, "--set", "run.dir=new"], 0, "weights: "), (["nope.toml"], 78, "zshard: error: "),
                                      (["evaluate"], USAGE, "see zshard evaluate --help"), (["trian", folder.config], USAGE, "did you mean train?"),
                                      ([folder.config, "--set", "train.none=1"], 78, "zshard keys"), ([folder.config, "--dry-run"], 0, "zshard: note: ")):
            result = harness.run([zshard, *words], LIMIT_S, cwd=folder.path)
            text = result.out + result.err
            problems += [] if result.code == code and expected in text and "train: " not in text and "train keys" not in text else [f"zshard {words}: {result}"]
        manual = harness.run([sys.executable, "-B", MANUAL, zshard, "zshard.1", "completion"], LIMIT_S, cwd=folder.path)
        if manual.code != 0:
            return [*problems, str(manual)]
        page = (folder.path / "zshard.1").read_text().replace("\\-", "-")
        problems += [f"the manual lacks {name}" for name in NAMES if f".SS\nzshard {name}\n" not in page]
        ask = 'source ./completion; COMP_WORDS=(zshard "$@"); COMP_CWORD=$#; _zshard; echo "${COMPREPLY[@]}"'
        for words, expected in ((["ev"], "evaluate"), (["sample", "--ch"], "--chat"), (["train", "--res"], "--resume"), (["verify-w"], "verify-weights")):
            result = harness.run(["bash", "-c", ask, "bash", *words], LIMIT_S, cwd=folder.path)
            problems += [] if result.out.split() == [expected] else [f"completion of {words}: {result}"]
        return problems


def defaults(train):
    """A file of the machine gives all runs its keys, which are named once, and the run's own goes before; what is wrong there ends a run."""
    with Folder(train) as folder:
        site = folder.path / "site.toml"
        env = {"ZSHARD_SITE_CONFIG": str(site)}
        site.write_text("[comm]\ntimeout_s = 77\n[watchdog]\nstep_s = 88\n")
        problems, note = [], f"note: defaults of {site}:2 comm.timeout_s = 77.0, {site}:4 watchdog.step_s = 88.0"
        for ranks, words in ((None, ["plan", folder.config]), (2, [folder.config, "--set", "checkpoint.every=4"])):
            result = harness.run(harness.launch(ranks, [train, *words]), LIMIT_S, cwd=folder.path, env=env)
            problems += [] if result.code == 0 and result.err.count(note) == 1 else [f"{note} expected: {result}"]
        (folder.path / "text.txt").write_text("a text " * 40)
        model = harness.ROOT / "tests/data/huggingface/gpt2"
        for words, times in ((["evaluate", model, "text.txt", "--set", "data.kind=text"], 1), (["evaluate", "out", "text.txt"], 0)):  # a run has its own
            result = harness.run([train, *words], LIMIT_S, cwd=folder.path, env=env)
            problems += [] if result.code == 0 and result.err.count(note) == times else [f"{note}, {times} times: {result}"]
        site.write_text("[comm]\ntimeout_s = 66\n")
        result = harness.run([train, "out/config.toml", "--resume", "latest", "--set", "train.steps=9"], LIMIT_S, cwd=folder.path, env=env)
        kept = (folder.path / "out/config.toml").read_text()
        problems += [] if result.code == 0 and "defaults of" not in result.err and "timeout_s = 77.0" in kept and "step_s = 88.0" in kept else [str(result)]
        site.write_text("[train]\nlr = 1\n")
        result = harness.run([train, folder.config], LIMIT_S, cwd=folder.path, env=env)
        says = f"train.lr is no key of a machine ({site}:2)"
        return problems + ([] if result.code == 78 and says in result.last_error_line() else [f"{says} expected: {result}"])


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
    return harness.run_cases((aliases, helps, installed, defaults, refusals, lists))


if __name__ == "__main__":
    sys.exit(main())
