#!/usr/bin/env python3
"""The Python module: runs that are started, metrics, checkpoints and weights as arrays, tokenizers, plans, and what is refused.
Usage: python_test.py PROGRAM   (by the Python that the module was built for, with its folder in PYTHONPATH)"""

import json
import os
import pathlib
import shutil
import sys
import tempfile

import numpy

import zshard

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIG = """name = "tiny"
device = "cpu"
[model]
layers = 2
heads = 2
width = 32
context = 32
[data]
train = "text.txt"
[train]
sequence = 16
global_batch = 8
micro_batch = 1
steps = 6
deterministic = true
[run]
validate_every = 3
validate_batches = 1
sample_tokens = 0
[checkpoint]
every = 3
keep = 0
"""
failed = []


def check(what, holds):
    print(f"{'ok    ' if holds else 'FAILED'} {what}")
    failed.extend([] if holds else [what])


def refusal(body, kind=zshard.Error):
    try:
        body()
    except kind as error:
        return error
    return None


def safetensors(path):
    """The tensors of a file in f32, read without zshard."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    return {name: numpy.frombuffer(data[8 + size:], "<f4", (t["data_offsets"][1] - t["data_offsets"][0]) // 4, t["data_offsets"][0]).reshape(t["shape"])
            for name, t in header.items() if name != "__metadata__"}


def runs(program):
    lines = []
    run = zshard.train("c.toml", ranks=2, set={"run.dir": "two"}, on_metrics=lines.append, program=program)
    check("each line of metrics is handed on once, in order", [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6])
    metrics = run.metrics
    check("metrics are arrays, NaN where a step has no number", metrics["loss"].dtype == numpy.float64 and metrics["loss"].shape == (6,)
          and list(numpy.isnan(metrics["val_loss"])) == [True, True, False, True, True, False] and metrics["loss"][0] == lines[0]["loss"])
    check("the configuration in force is there", run.config["train"]["steps"] == 6 and run.config["comm"]["ranks"] == 2)
    check("checkpoints are listed by step", run.checkpoints == [3, 6])
    checkpoint, final = run.checkpoint(), safetensors(run.folder / "model.safetensors")
    check("a checkpoint has the final weights, bit for bit", checkpoint.step == 6 and set(checkpoint) == set(final) and len(checkpoint) == len(final)
          and all(checkpoint[name].dtype == numpy.float32 and numpy.array_equal(checkpoint[name], final[name]) for name in final))
    check("the weights' file is read, too", all(numpy.array_equal(run.weights[name], final[name]) for name in run.weights))
    late, zshard._POLL_S = [], 2  # it looks once, and when the run has ended
    one = zshard.train("c.toml", set={"run.dir": "one"}, on_metrics=late.append, program=program).checkpoint(3)
    check("also those that come with the run's end", [line["step"] for line in late] == [1, 2, 3, 4, 5, 6])
    zshard._POLL_S = 0.05
    two = run.checkpoint(3)
    check("the state is that of another number of ranks", one.kinds == two.kinds and {"adamw.m", "adamw.v"} < set(one.kinds) and all(
        numpy.array_equal(one.read(name, kind), two.read(name, kind)) for kind in one.kinds for name in one.names(kind)))
    check("moments are not the weights", not numpy.array_equal(two.read("token_embedding.weight", "adamw.m"), two["token_embedding.weight"]))
    check("it is not the last one's", not numpy.array_equal(two["token_embedding.weight"], checkpoint["token_embedding.weight"]))
    go_on = []
    zshard.train("c.toml", ranks=2, set={"run.dir": "two", "train.steps": 8}, arguments=["--resume", "latest"], on_metrics=go_on.append, program=program)
    check("a run goes on", [line["step"] for line in go_on] == list(range(1, 9)) and run.checkpoints == [3, 6, 8] and run.lines[-1]["step"] == 8)
    launcher = ["mpirun", "-q", "--oversubscribe", "-np", "2"]
    launched = zshard.train("c.toml", set={"run.dir": "launched"}, launcher=launcher, program=program)
    check("a launcher starts its ranks", numpy.array_equal(launched.metrics["loss"], metrics["loss"]) and launched.config["comm"]["ranks"] == 1)
    return run


def plans(run):
    plan = zshard.plan("c.toml", ranks=2, set={"run.dir": "two"})
    check("the plan's bytes are those of the run", plan["step_peak_bytes"] == run.metrics["peak_bytes"][0])
    names = {name for unit in plan["units"] for name in unit["parameters"]}
    check("its units have the model's parameters", names == set(run.checkpoint(3)) and plan["config"]["train"]["steps"] == 6)
    alone = zshard.plan("c.toml")
    check("a plan is of so many ranks", sum(u["shard_elements"] for u in alone["units"]) > sum(u["shard_elements"] for u in plan["units"]))
    rows = zshard.fit("c.toml", ranks=2, memory_bytes=plan["reserved_bytes"] + plan["pinned_bytes"])
    check("what fits is within the memory that is given", rows and all(0 < row["share"] <= 1 for row in rows) and any(row["changes"] == [] for row in rows))
    check("and nothing fits in none", zshard.fit("c.toml", memory_bytes=1) == [])
    check("a plan creates nothing", sorted(os.listdir()) == ["c.toml", "launched", "one", "text.txt", "two"])


def tokenizers():
    for name in ("gpt2", "llama3"):
        folder = ROOT / "tests/data/tokenizers" / name
        tokenizer, cases = zshard.Tokenizer(str(folder)), json.loads((folder / "expected.json").read_text())
        check(f"ids and texts of {name} are those of its own program", len(cases) > 10 and tokenizer.vocab_size > 0 and all(
            tokenizer.encode(case["text"]) == case["ids"] and tokenizer.encode(case["text"], add_special_tokens=False) == case["plain"]
            and tokenizer.decode(case["ids"], skip_special_tokens=True) == case["skipped"] for case in cases))


def refused(program, run):
    error = refusal(lambda: zshard.plan("c.toml", set={"train.stepz": 1}))
    check("a key that is none is named, with the exit code", error is not None and error.code == 78 and "train.stepz" in str(error))
    error = refusal(lambda: zshard.train("c.toml", set={"run.dir": "two"}, program=program))
    check("a job's last line and exit code are raised", error is not None and error.code == 73 and str(error).startswith(f"{os.path.basename(program)}: error: "))
    check("a folder of no run is refused", refusal(lambda: zshard.open_run(".")).code == 68)
    check("as is a checkpoint that is not there", refusal(lambda: run.checkpoint(77)).code == 68)
    check("and a tensor", refusal(lambda: run.checkpoint(3)["none"], KeyError) is not None and refusal(lambda: run.weights["none"], KeyError) is not None)
    check("and a number of ranks", refusal(lambda: zshard.plan("c.toml", ranks=0)).code == 64)
    check("and no memory", refusal(lambda: zshard.fit("c.toml", memory_bytes=0), ValueError) is not None)
    check("what trains nothing is no run", refusal(lambda: zshard.train("c.toml", arguments=["--dry-run"], program=program), ValueError) is not None)
    data = run.folder / "checkpoints/step-3/rank-0.bin"
    content = bytearray(data.read_bytes())
    content[200] ^= 1
    data.write_bytes(content)
    check("damage is found", refusal(lambda: run.checkpoint(3).verify()).code == 68)

    def stop(line):
        raise ZeroDivisionError(line["step"])

    error = refusal(lambda: zshard.train("c.toml", set={"run.dir": "stopped", "train.steps": 10**6}, on_metrics=stop, program=program), ZeroDivisionError)
    check("what a callback raises stops the run", error is not None and error.args[0] == 1)
    lines = len(zshard.open_run("stopped").lines)
    check("which has ended then", lines < 10**6 and shutil.rmtree("stopped") is None and not os.path.exists("stopped"))


def main():
    program = str(pathlib.Path(sys.argv[1]).resolve())
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    with tempfile.TemporaryDirectory(prefix="python.") as folder:
        os.chdir(folder)
        pathlib.Path("text.txt").write_text("In the beginning God created the heaven and the earth. " * 40)
        pathlib.Path("c.toml").write_text(CONFIG)
        run = runs(program)
        plans(run)
        tokenizers()
        refused(program, run)
        os.chdir("/")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
