#!/usr/bin/env python3
"""Optimizers and the choice between checkpoints, through the program: a run with any optimizer goes on at another number of ranks and in another
layout as if it had not ended; the best checkpoint by validation stays beside the newest, and a run without a better one for long ends.
Usage: optimizers_test.py TRAIN [WORD...]   (WORD: only the cases whose name contains one)"""

import sys

import harness
from resume_test import CONFIG, Folder, after_lines, compare, expect, numbers

CUT = {"checkpoint__every": 4, "checkpoint__keep": 0, "run__validate_every": 3}


def resumed(train):
    """Lion, Muon and 8-bit AdamW give the same bits with any strategy, layout, residence and number of ranks, and go on from a checkpoint."""
    problems = []
    kept = {f"offload__{what}": "host" for what in ("weights", "gradients", "moments")}
    for optimizer, state in (("lion", "lion.m"), ("muon", "muon.m"), ("adamw8bit", "adamw8bit.m_scale")):
        keys = {"train__optimizer": optimizer, "train__lr": "1e-3"}
        with Folder(train) as folder:
            first = folder.start(ranks=3, **keys, **CUT)
            whole = (harness.weights_hash(first.out), numbers(folder.path / "out"))
            problems += [] if first.code == 0 else [f"{optimizer}: {first}"]
            later = [line["allocations"] for line in harness.read_metrics(folder.path / "out")[1:]]
            problems += [] if sum(later) == 0 else [f"{optimizer}: memory beside what was planned: {later}"]
            manifest = (folder.path / "out/checkpoints/step-4/manifest.json").read_text()
            problems += [] if state in manifest else [f"{optimizer}: no {state} in the checkpoint"]
            for ranks, other in ((None, {}), (2, {"shard__strategy": "zero2", **kept}), (4, {"shard__layout": "per_parameter", "offload__moments": "host"})):
                result = folder.start("--resume", "out/checkpoints/step-4", "--overwrite", ranks=ranks, **other, **keys, **CUT)
                problems += [f"{optimizer}, {ranks} ranks, {other}: {p}" for p in compare(folder, result, whole)]
            result = folder.start("--resume", "latest", train__steps=9)
            problems += [f"{optimizer}, as adamw: {p}" for p in expect(result, CONFIG, "train.optimizer")]
    return problems


def expected_choice(metrics, patience):
    """By the rule: step and loss of the best validation, and whether there was none better for so long."""
    best, since = None, 0
    for line in metrics:
        if "val_loss" not in line:
            continue
        if best is None or line["val_loss"] < best[1]:
            best, since = (line["step"], line["val_loss"]), 0
        else:
            since += 1
    return best, since >= patience


def check_choice(folder, result, steps):
    metrics = harness.read_metrics(folder.path / "out")
    best, is_over = expected_choice(metrics, 3)
    last = metrics[-1]["step"]
    problems = [] if result.code == 0 and is_over and last < steps else [f"it did not end early: {result}"]
    kept = sorted(name for name in folder.checkpoints())
    problems += [] if kept == sorted({f"step-{best[0]}", f"step-{last}"} - {"step-0"}) else [f"best {best}, last {last}, but {kept}"]
    problems += [] if f"best validation: {best[1]:.4f} of step {best[0]}" in result.out else ["it does not say the best"]
    problems += [] if f"ended after step {last} of {steps}: no better validation in the last 3" in result.out else ["it does not say why it ended"]
    return problems


def chosen(train):
    """The best checkpoint stays beside the newest, patience ends the run, and a run that goes on knows what was best."""
    keys = {"run__validate_every": 1, "run__validate_first": True, "train__patience": 3, "checkpoint__keep_best": True,
            "checkpoint__every": 5, "checkpoint__keep": 1, "train__lr": 0.05, "train__schedule": "constant"}
    problems = []
    with Folder(train) as folder:
        result = folder.start(train__steps=60, **keys)
        problems += check_choice(folder, result, 60)
        whole = (harness.weights_hash(result.out), numbers(folder.path / "out"))
        problems += [] if harness.read_metrics(folder.path / "out")[0]["step"] == 0 else ["no validation before the first step"]
        problems += [] if "step 0/60  val " in result.out else ["the validation before the first step is not printed"]
        last = whole[1][-1]["step"]
        result = folder.start("--resume", "latest", train__steps=60, **keys)  # nothing is left to do
        problems += compare(folder, result, whole)
        folder.start("--overwrite", ranks=2, **{**keys, "train__steps": last - 2})
        result = folder.start("--resume", "latest", ranks=3, train__steps=60, **keys)
        problems += [f"gone on: {p}" for p in check_choice(folder, result, 60) + compare(folder, result, whole)]
    return problems


def requested(train):
    """A file validate-now in the run's directory asks for a validation behind the step, and goes."""
    problems = []
    for ranks in (None, 2):
        with Folder(train) as folder:
            request, metrics = folder.path / "out" / "validate-now", folder.path / "out" / "metrics.jsonl"
            # 50 ms a step, so that the request comes before the last one.
            result = folder.start(ranks=ranks, on_start=after_lines(metrics, 3, lambda p: request.touch()), fault="step:delay=50", train__steps=60,
                                  run__validate_every=1000)
            validated = [line["step"] for line in harness.read_metrics(folder.path / "out") if "val_loss" in line]
            problems += [] if result.code == 0 and len(validated) == 2 and validated[1] == 60 else [f"{ranks} ranks: validated behind {validated}"]
            problems += ["the request is still there"] if request.exists() else []
    return problems


def averaged(train):
    """The average of the weights changes none of them, is in checkpoints, is exported and is validated if that is asked for."""
    keys = {"train__average": 0.9, "run__validate_every": 4, "data__validation_fraction": 0.2}
    plain_keys = {"run__validate_every": 4, "data__validation_fraction": 0.2}
    with Folder(train) as folder:
        plain = folder.start(run__dir="plain", **plain_keys)
        result = folder.start(ranks=2, **keys)
        own = folder.start(run__dir="own", run__validate_average=True, **keys)
        problems = [] if harness.weights_hash(result.out) == harness.weights_hash(plain.out) == harness.weights_hash(own.out) else ["other weights"]
        problems += [] if folder.checkpoints() == ["step-8"] else [f"no checkpoint at the end: {folder.checkpoints()}"]
        of_weights, of_average = ([line["val_loss"] for line in harness.read_metrics(folder.path / run) if "val_loss" in line] for run in ("plain", "own"))
        problems += [] if len(of_average) == 2 and of_weights != of_average else [f"validated {of_weights}, the average {of_average}"]
        for name, arguments in (("w", []), ("a", ["--average"])):
            exported = harness.run([folder.train, "--export", name, *arguments, "out"], 60, cwd=folder.path)
            problems += [] if exported.code == 0 else [f"--export {arguments}: {exported}"]
        files = [(folder.path / name / "model.safetensors").read_bytes() for name in ("w", "a")]
        problems += [] if len(files[0]) == len(files[1]) and files[0] != files[1] else ["the average is exported as the weights are"]
        refused = harness.run([folder.train, "--export", "b", "--average", "plain"], 60, cwd=folder.path)
        problems += [] if refused.code != 0 and not (folder.path / "b").exists() else [f"an average that is not there: {refused}"]
        return problems


def evaluated_at_average(train):
    """Schedule-free AdamW: validations, final weights, exports and --evaluate are of its average, at any number of ranks, and a run goes on bit by bit."""
    keys = {"train__optimizer": "schedule_free_adamw", "train__lr": "1e-2", "run__validate_batches": 100, "data__validation_fraction": 0.2, **CUT}
    with Folder(train) as folder:
        first = folder.start(ranks=3, **keys)
        whole = (harness.weights_hash(first.out), numbers(folder.path / "out"))
        problems = [] if first.code == 0 else [str(first)]
        lines = harness.read_metrics(folder.path / "out")
        problems += [] if sum(line["allocations"] for line in lines[1:]) == 0 else ["memory beside what was planned"]
        validated = [line["val_loss"] for line in lines if "val_loss" in line]
        for name, source in (("run", "out"), ("checkpoint", "out/checkpoints/step-8")):
            exported = harness.run([folder.train, "--export", name, source], 60, cwd=folder.path)
            problems += [] if exported.code == 0 else [f"--export of a {name}: {exported}"]
        files = [(folder.path / name / "model.safetensors").read_bytes() for name in ("run", "checkpoint")]
        problems += [] if files[0] == files[1] else ["a checkpoint is exported otherwise than its run"]
        evaluated = [harness.run([folder.train, "--evaluate", source], 60, cwd=folder.path).out for source in ("out", "out/checkpoints/step-8")]
        problems += [] if evaluated[0] == evaluated[1] else [f"a checkpoint is evaluated otherwise than its run: {evaluated}"]
        loss = float(evaluated[0].split()[1])  # over the last tokens too, which are no whole window
        problems += [] if abs(loss - validated[-1]) < 2e-3 else [f"validated {validated}, evaluated {loss}"]
        for ranks, other in ((None, {}), (2, {"shard__strategy": "zero2", "run__validate_every": 1}), (4, {"shard__layout": "per_parameter"})):
            result = folder.start("--resume", "out/checkpoints/step-4", "--overwrite", ranks=ranks, **{**keys, **other})
            wanted = whole if "run__validate_every" not in other else (whole[0], numbers(folder.path / "out"))
            problems += [f"{ranks} ranks, {other}: {p}" for p in compare(folder, result, wanted)]
        return problems


def main():
    harness.begin()
    return harness.run_cases((resumed, chosen, requested, averaged, evaluated_at_average))


if __name__ == "__main__":
    sys.exit(main())
