#!/usr/bin/env python3
"""The comparison with PyTorch on a GPU alternates, computes medians and ratios, and says in one line what is missing; stand-ins take the places of
the programs. Where $ZSHARD_PEER_PYTHON has PyTorch, its model has zshard's number of parameters and, with the same weights, zshard's loss, and
the scripts run on the CPU. Usage: gpu_peers_test.py TRAIN"""

import json
import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "train" / "program"))
import harness
import tiny_run

PEERS = harness.ROOT / "bench" / "peers"
STAND_IN = """#!{python}
import json, pathlib, sys
what = next((word for word in ("gpu_step", "gpu_kernels") if any(word in argument for argument in sys.argv)), pathlib.Path(sys.argv[0]).name)
if "--check" in sys.argv:
    print({check!r}, file=sys.stderr)
    sys.exit(77 if {check!r} else 0)
calls = pathlib.Path({calls!r})
with calls.open("a") as f:
    f.write(what + " " + " ".join(sys.argv[1:]) + chr(10))
value = {values!r}[what][sum(line.startswith(what) for line in calls.read_text().splitlines()) - 1]
if isinstance(value, str):
    print(value, file=sys.stderr)
    sys.exit(3)
if "kernels" in what:
    rows = [dict(kernel=k, shape=s, dtype="bf16", flops=f, bytes=1e6, ms_min=value) for k, s, f in
            (("attention_forward", "1 x 8", 1e9), ("attention_backward", what, 1e9), ("copy", "77", 0), ("copy_rows", "77", 0))]
    print(json.dumps(dict(kernels=rows)))
else:
    print(json.dumps(dict(tokens_per_s=value, step_ms=1000 / value, pct_of_product_ceiling=value / 2, peak_bytes=None, gpu="A GPU", version="9.9")))
"""


class StandIns:
    def __init__(self, folder, name, check="", **values):
        self.folder = pathlib.Path(folder) / name
        self.folder.mkdir()
        self.calls = self.folder / "calls"
        for program in ("bench_step", "bench_kernels", "python"):
            path = self.folder / program
            path.write_text(STAND_IN.format(python=sys.executable, check=check if program == "python" else "", calls=str(self.calls), values=values))
            path.chmod(0o755)

    def compare(self, *flags):
        return harness.run([sys.executable, PEERS / "compare_gpu.py", "--build", self.folder, "--python", self.folder / "python", *flags], timeout_s=120)


def one_line_problems(result, code, *words):
    lines = result.err.splitlines()
    good = result.code == code and not result.out and len(lines) == 1 and all(word in lines[0] for word in words)
    return [] if good else [f"exit {code} and one line with {words} expected"]


def numbers_problems(result, stand_ins):
    if result.code != 0 or result.err:
        return ["exit 0 expected"]
    report, calls = json.loads(result.out), [line.split()[0] for line in stand_ins.calls.read_text().splitlines()]
    step, kernels = report["steps"][0], {row["what"]: row["ms"] for row in report["kernels"]}
    facts = {
        "who begins changes": calls == ["bench_step", "gpu_step", "gpu_step", "bench_step", "bench_kernels", "bench_kernels", "gpu_kernels",
                                        "gpu_kernels", "bench_kernels", "bench_kernels"],
        "rates are medians": step["tokens_per_s"] == {"zshard": 30, "PyTorch": 15, "ratio": 2},
        "what is not known has no ratio": step["peak_bytes"] == {"zshard": None, "PyTorch": None, "ratio": None},
        "the fastest call counts, of shapes that both have": kernels == {
            "attention_forward 1 x 8 bf16": {"zshard": 1, "PyTorch": 2, "ratio": 2}, "copy 77 bf16": {"zshard": 1, "PyTorch": 2, "ratio": 2}},
    }
    return [f"not so: {fact}" for fact, holds in facts.items() if not holds]


def stand_in_cases(report, folder):
    small = ["--model", "tiny,2", "--rounds", "2"]
    good = dict(bench_step=[20, 40], gpu_step=[10, 20], bench_kernels=[3, 4, 1, 2], gpu_kernels=[2, 5])
    stand_ins = StandIns(folder, "good", **good)
    result = stand_ins.compare(*small, "--json", "--set", "cuda.tf32=true")
    report.case("numbers of alternated rounds", numbers_problems(result, stand_ins), result)
    flags = "--preset tiny --dtype bf16 --micro-batch 2 --sequence 1024 --steps 10 --device cuda --json"
    steps = [line for line in stand_ins.calls.read_text().splitlines() if "--preset" in line]
    good_flags = steps[:2] and steps[0] == f"bench_step {flags} --set cuda.tf32=true" and steps[1].endswith(f"gpu_step.py {flags}")
    report.case("both get the same flags", [] if good_flags else [f"{flags} expected: {steps}"])
    result = StandIns(folder, "table", **good).compare(*small)
    words = ["A GPU; PyTorch 9.9", "tokens/s", "30", "2.00", "unknown", "TFLOP/s", "GB/s", "tiny bf16, 2 x 1024 tokens"]
    report.case("the table", [f"'{word}' is missing" for word in words if word not in result.out] + (["exit 0 expected"] if result.code else []), result)
    result = StandIns(folder, "fails", bench_step=["bench_step: error: it broke"]).compare(*small)
    report.case("bench_step fails", one_line_problems(result, 1, "zshard failed", "exit code 3", "it broke"), result)
    result = StandIns(folder, "no_gpu", check="skipped: PyTorch finds no GPU").compare(*small)
    report.case("PyTorch finds no GPU", one_line_problems(result, harness.SKIP, "finds no GPU"), result)
    (pathlib.Path(folder) / "table" / "bench_kernels").unlink()
    result = harness.run([sys.executable, PEERS / "compare_gpu.py", "--build", pathlib.Path(folder) / "table"])
    report.case("bench_kernels is not built", one_line_problems(result, 1, "table/bench_kernels"), result)


def without_torch_cases(report, folder):
    (pathlib.Path(folder) / "torch.py").write_text("raise ImportError('hidden by the test')\n")
    for script in ("gpu_step.py", "gpu_kernels.py"):
        result = harness.run([sys.executable, PEERS / script], env={"PYTHONPATH": str(folder)})
        report.case(f"{script} without PyTorch", one_line_problems(result, harness.SKIP, "skipped", "hidden by the test"), result)
    for flags, says in ((["--weights", "x"], "--tokens"), (["--sequence", "4096"], "longer than the context"), (["--steps", "0"], "--steps")):
        result = harness.run([sys.executable, PEERS / "gpu_step.py", *flags])
        report.case(f"refused: {flags}", [] if result.code == 2 and says in result.err else [f"exit 2 and '{says}' expected"], result)


def loss_problems(train, python, folder):
    """`train` takes one step that changes nothing, over every window of its corpus: its loss is that of the weights it saves."""
    sequence, windows = 16, 24
    config = tiny_run.write_files(folder)
    corpus = pathlib.Path(folder) / "corpus.txt"
    corpus.write_text(tiny_run.corpus_text(sequence * windows + 1))
    settings = [f"train.sequence={sequence}", f"train.global_batch={windows}", "train.steps=1", "train.lr=1e-30", "train.weight_decay=0", "data.validation_fraction=0"]
    trained = harness.run([train, config, *(word for setting in settings for word in ("--set", setting))])
    if trained.code != 0:
        return [f"train failed: {trained}"]
    run_dir = pathlib.Path(folder) / "out"
    ours = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[0])["loss"]
    flags = ["--device", "cpu", "--weights", run_dir / "model.safetensors", "--tokens", corpus, "--sequence", str(sequence), "--heads", "2"]
    result = harness.run([python, PEERS / "gpu_step.py", *flags], env={"OMP_NUM_THREADS": "1"}, timeout_s=300)
    if result.code != 0:
        return [f"gpu_step.py failed: {result}"]
    peer = json.loads(result.out)
    blocks, width, vocab, context = 2, 32, 256, 16
    parameters = (vocab + context) * width + blocks * (12 * width * width + 13 * width) + 2 * width
    problems = [] if abs(peer["loss"] - ours) < 2e-6 * ours else [f"losses {ours} and {peer['loss']}"]
    return problems + ([] if peer["parameters"] == parameters else [f"{peer['parameters']} parameters, {parameters} expected"])


def real_cases(report, train, folder):
    python = os.environ.get("ZSHARD_PEER_PYTHON")
    alone = {"OMP_NUM_THREADS": "1"}
    if not python or harness.run([python, PEERS / "gpu_step.py", "--check", "--device", "cpu"], timeout_s=300).code != 0:
        print("no PyTorch in $ZSHARD_PEER_PYTHON: its own cases are left out")
        return
    report.case("the same weights have the same loss", loss_problems(train, python, folder))
    small = ["--preset", "tiny", "--sequence", "32", "--micro-batch", "1", "--micro-batches", "2", "--steps", "2", "--warmup", "1", "--no-compile"]
    result = harness.run([python, PEERS / "gpu_step.py", "--device", "cpu", *small, "--json"], env=alone, timeout_s=300)
    positive = ("tokens_per_s", "step_ms", "loss", "product_ceiling_gflops", "pct_of_product_ceiling", "parameters")
    problems = ["exit 0 expected"] if result.code else [f"no {key}" for key in positive if not json.loads(result.out)[key] > 0]
    report.case("the step on the CPU", problems, result)
    result = harness.run([python, PEERS / "gpu_kernels.py", "--device", "cpu", "--shape", "1,16,2,16", "--copy", "10000"], env=alone, timeout_s=300)
    rows = [] if result.code else [(row["kernel"], row["ms_min"] > 0) for row in json.loads(result.out)["kernels"]]
    good = rows == [("copy", True), ("attention_forward", True), ("attention_backward", True)]
    report.case("the kernels on the CPU", [] if good else [f"three rows expected: {rows}"], result)


def main():
    report = harness.Report()
    with tempfile.TemporaryDirectory(prefix="zshard-test-") as folder:
        stand_in_cases(report, folder)
        without_torch_cases(report, folder)
        (pathlib.Path(folder) / "real").mkdir()
        real_cases(report, sys.argv[1], pathlib.Path(folder) / "real")
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
