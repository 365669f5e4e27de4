#!/usr/bin/env python3
"""`replay`: steps of a run are made once more, on other ranks than it had, and have its bits; the step that is looked at shows where its loss and its
gradients came from, and which op first wrote what is not finite.
Usage: replay_test.py TRAIN [WORD...]   (WORD: only the cases whose name contains one)"""

import json
import pathlib
import re
import sys
import tempfile

import harness
import tiny_run

LIMIT_S = 120
USAGE, DISAGREE, CANNOT_CREATE, NON_FINITE = 64, 72, 73, 76
KEYS = {"train__steps": 8, "train__deterministic": True, "checkpoint__every": 3, "checkpoint__keep": 0, "run__sample_tokens": 0}


def expect(problems, condition, what, result):
    problems += [] if condition else [f"{what}: exit {result.code}\n{result.out[-1500:]}{result.err[-1500:]}"]


def run_in(folder, train, **keys):
    command = [train, tiny_run.write_files(folder), *tiny_run.options(**{**KEYS, **keys})]
    return harness.run(command, LIMIT_S, cwd=folder), pathlib.Path(folder, "out")


def replay(train, run, step, *arguments, ranks=None, **keys):
    command = [train, "replay", run, "--step", step, *arguments, *tiny_run.options(**keys)]
    return harness.run(harness.launch(ranks, command), LIMIT_S, cwd=run.parent)


def bits_of_a_run(train):
    """steps of three ranks have their bits on one rank and on two, from the start and from checkpoints, and leave nothing"""
    problems = []
    with tempfile.TemporaryDirectory(prefix="replay.") as folder:
        made, run = run_in(folder, train, comm__ranks=3)
        expect(problems, made.code == 0, "the run", made)
        before = harness.tree(run)
        for step, first, ranks in ((1, 1, None), (5, 4, None), (8, 7, 2)):
            result = replay(train, run, step, ranks=ranks)
            expect(problems, result.code == 0 and f"replayed {f'steps {first} to {step}' if first < step else f'step {step}'}: loss and gradient norm have the run's bits" in result.out, f"step {step}", result)
            loss = json.loads((run / "metrics.jsonl").read_text().splitlines()[step - 1])["loss"]
            expect(problems, f"step {step}: loss {loss}," in result.out and result.out.count("  sample ") == 10, f"what step {step} shows", result)
            expect(problems, re.search(r"^gradients of \d+ parameters, norm [0-9.]+, the largest first:$", result.out, re.M), "gradients", result)
            expect(problems, "not finite" not in result.out and not result.files, "nothing is left, or wrong", result)
        if harness.tree(run) != before:
            problems.append("the run's folder has changed")
    return problems


def norms_agree(train):
    """the norm of the gradients that are shown is that of the metrics, on one rank and on two that share them"""
    problems = []
    with tempfile.TemporaryDirectory(prefix="replay.") as folder:
        _, run = run_in(folder, train)
        norm = json.loads((run / "metrics.jsonl").read_text().splitlines()[4])["grad_norm"]
        for ranks in (None, 2):
            result = replay(train, run, 5, ranks=ranks)
            shown = re.search(r"^gradients of \d+ parameters, norm ([0-9.]+),", result.out, re.M)
            expect(problems, shown and abs(float(shown[1]) / norm - 1) < 1e-5, f"a norm of {norm}", result)
    return problems


def other_settings(train):
    """runs of nested groups, of weights on the host, and in the per-parameter layout are replayed on one rank"""
    problems = []
    for keys in ({"comm__ranks": 4, "shard__strategy": "nested", "shard__group_size": 2, "run__export": "exported"}, {"offload__weights": "host", "offload__gradients": "host"},
                 {"comm__ranks": 2, "shard__layout": "per_parameter", "precision__param": "bf16"}):
        with tempfile.TemporaryDirectory(prefix="replay.") as folder:
            made, run = run_in(folder, train, **keys)
            result = replay(train, run, 5)
            expect(problems, made.code == 0 and result.code == 0 and "have the run's bits" in result.out, str(keys), result)
    return problems


def step_that_differs(train):
    """the first step that differs from the run's metrics is named, with both values"""
    problems = []
    with tempfile.TemporaryDirectory(prefix="replay.") as folder:
        _, run = run_in(folder, train)
        lines = (run / "metrics.jsonl").read_text().splitlines()
        changed = json.loads(lines[4])
        lines[4] = lines[4].replace(f'"loss": {changed["loss"]}', '"loss": 2.5')
        (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        result = replay(train, run, 6)
        expect(problems, result.code == DISAGREE and f"replayed step 5 differs: loss {changed['loss']} here, 2.5 in the run" in result.out, "step 5", result)
        lines[4] = re.sub(r'"grad_norm": [0-9.e-]+', '"grad_norm": 1.5', json.dumps(changed))
        (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        result = replay(train, run, 6)
        expect(problems, result.code == DISAGREE and "replayed step 5 differs" in result.out and "1.5 in the run" in result.out, "its norm", result)
    return problems


def value_not_finite(train):
    """the op that first wrote what is not finite is named, with its unit and its element"""
    problems = []
    with tempfile.TemporaryDirectory(prefix="replay.") as folder:
        made, run = run_in(folder, train, train__lr=1e12, train__schedule="constant", train__warmup=0, checkpoint__every=1)
        expect(problems, made.code == NON_FINITE, "a run that ends", made)
        step = len((run / "metrics.jsonl").read_text().splitlines())
        result = replay(train, run, step)
        words = r"^the first value that is not finite: op \w+ on stream compute in forward of micro-batch 0, behind the gather of unit \S+: element \d+ of \d+ is -?(inf|nan), "
        expect(problems, result.code == 0 and re.search(words, result.out, re.M), f"step {step}", result)
        expect(problems, "have the run's bits" in result.out, "what was not finite is so again", result)
    return problems


def refused(train):
    """a step that was not made, a folder that is no run's, and no step at all are one line each"""
    problems = []
    with tempfile.TemporaryDirectory(prefix="replay.") as folder:
        _, run = run_in(folder, train)
        for result, words in ((replay(train, run, 9), "--step 9 of a run of 8 steps"), (replay(train, run, 0), "--step: 0 is not an integer from 1 "), (replay(train, run, "x"), "--step: x is not an integer from 1 "),
                              (replay(train, pathlib.Path(folder), 1), "this is no run's directory"),
                              (harness.run([train, "replay", run], LIMIT_S, cwd=folder), "--step")):
            expect(problems, result.code == USAGE and words in result.last_error_line() and len(result.err.splitlines()) == 1, words, result)
    return problems


def kept_run(train):
    """with --out the replayed steps are a run of their own"""
    problems = []
    with tempfile.TemporaryDirectory(prefix="replay.") as folder:
        _, run = run_in(folder, train)
        result = replay(train, run, 5, "--out", "kept")
        metrics = harness.read_metrics(pathlib.Path(folder, "kept"))
        expect(problems, result.code == 0 and [line["step"] for line in metrics] == [4, 5], "steps 4 and 5", result)
        result = replay(train, run, 5, "--out", run)
        expect(problems, result.code == CANNOT_CREATE and "give --out a new folder" in result.last_error_line(), "a folder that is there", result)
    return problems


if __name__ == "__main__":
    harness.begin()
    sys.exit(harness.run_cases([bits_of_a_run, norms_agree, other_settings, step_that_differs, value_not_finite, refused, kept_run]))
