#!/usr/bin/env python3
"""bench_overlap's numbers agree with each other, alone and under mpirun, and a bad command line is one line.
Usage: bench_overlap_test.py BENCH_OVERLAP"""

import json
import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "train" / "program"))
import harness

SMALL = ["--preset", "tiny", "--layers", "2", "--sequence", "64", "--micro-batch", "2", "--steps", "2", "--warmup", "1", "--profile-steps", "2"]
PHASES = ["forward", "backward", "optimizer"]
KINDS = ["gathers", "reductions", "offload"]


def near(a, b):
    return abs(a - b) <= 1e-6 * max(1, abs(a), abs(b))


def number_problems(r):
    """What must hold between the numbers of one report, whatever the machine."""
    phases, path = r["phases"], r["critical_path"]
    facts = {
        "the phases are a step's": [p["phase"] for p in phases] == PHASES,
        "communication is the phases' sum": near(r["communication_ms"], sum(p["communication_ms"] for p in phases)),
        "exposed is what the step takes beyond compute": all(near(p["exposed_ms"], p["step_ms"] - p["compute_ms"]) for p in [*phases, r]),
        "hidden is the rest of communication": all(near(p["hidden_ms"], p["communication_ms"] - p["exposed_ms"]) for p in [*phases, r]),
        "hideable is what is not exposed on paper": all(near(p["hideable_ms"], p["communication_ms"] - p["planned_exposed_ms"]) for p in [*phases, r]),
        "what is exposed on paper is the phases', but for what comes behind them": sum(p["planned_exposed_ms"] for p in phases) <= r["planned_exposed_ms"] + 1e-6,
        "the critical path is the planned step": near(r["planned_step_ms"], sum(piece["ms"] for piece in path)),
        "nothing hides that is not there": r["hideable_ms"] <= r["communication_ms"] + 1e-6,
        "the kinds are all that is moved": [k["kind"] for k in r["kinds"]] == KINDS and near(r["communication_ms"], sum(k["ms"] for k in r["kinds"])),
        "no kind hides what is not of it": all(k["hideable_ms"] <= k["ms"] + 1e-6 for k in r["kinds"]),
        "what is no more than steps differ by has no efficiency": all(
            (p["overlap_efficiency"] is None) == (p["hideable_ms"] <= max(0.01 * r["planned_step_ms"], r["spread_ms"])) for p in [*phases, r]),
        "every time but a difference is positive": all(p["compute_ms"] > 0 and p["step_ms"] > 0 for p in [*phases, r]),
    }
    return [f"not so: {fact}" for fact, holds in facts.items() if not holds]


def report_problems(result, lines=1, **expected):
    if result.code != 0 or result.err or len(result.out.splitlines()) != lines:
        return [f"exit 0 and {lines} lines of output expected"]
    problems = []
    for report in map(json.loads, result.out.splitlines()):
        problems += [f"{key} is {report[key]}, expected {value}" for key, value in expected.items() if report[key] != value]
        problems += number_problems(report)
    return problems


def unshard_problems(r, first):
    """What becomes of units before forward. Publishing takes microseconds, as a step's first compute op does beside it: either may be what
    the other work waits for."""
    path = r["critical_path"]
    unshard = [piece["first_op"] for piece in path if piece["stream"] == "unshard"]
    facts = {
        f"a step of two ranks begins with {first}": path[0]["first_op"].startswith(first) or (first, path[0]["first_op"]) == ("publish", "from_host"),
        f"units are had by {first} alone": all(op.startswith(first) for op in unshard),
        "communication of forward has a price": r["phases"][0]["communication_ms"] > 0,
    }
    return [f"not so: {fact}" for fact, holds in facts.items() if not holds]


def main():
    program, report = sys.argv[1], harness.Report()
    result = harness.run([program, *SMALL, "--json"])
    report.case("one rank, whose two models fit into memory", report_problems(result, ranks=1, takes_turns=True), result)

    for zero_copy, first in (("auto", "publish"), ("off", "all_gather")):
        sets = ["--set", f"shard.zero_copy={zero_copy}"]
        result = harness.run(harness.mpirun(2, [program, *SMALL, *sets, "--micro-batches", "2", "--json"]))
        problems = report_problems(result, ranks=2, micro_batches=2)
        if not problems:
            problems = unshard_problems(json.loads(result.out), first)
        report.case(f"two ranks, zero-copy {zero_copy}", problems, result)

    for strategy in ("ddp", "zero1", "shard_grad_op", "nested"):
        group = ["--set", "shard.group_size=1"] if strategy == "nested" else []
        result = harness.run(harness.mpirun(2, [program, *SMALL, "--micro-batches", "2", "--set", f"shard.strategy={strategy}", *group, "--json"]))
        report.case(strategy, report_problems(result, strategy=strategy), result)

    for zero_copy in ("auto", "off"):
        sets = ["--set", "shard.strategy=nested", "--set", "shard.group_size=2", "--set", f"shard.zero_copy={zero_copy}"]
        result = harness.run(harness.mpirun(4, [program, *SMALL, *sets, "--micro-batches", "2", "--json"]), env={"ZSHARD_HOSTS_OF": "0,0,1,1"})
        report.case(f"nested on two hosts, zero-copy {zero_copy}", report_problems(result, transport="hier", ranks=4), result)

    kept = ["--set", "offload.moments=host", "--set", "offload.gradients=host"]
    reports = []
    for slow in ([], ["--set", "offload.cpu_link_gbs=0.2"]):
        result = harness.run(harness.mpirun(2, [program, *SMALL, *kept, *slow, "--micro-batches", "2", "--json"]))
        problems = report_problems(result)
        reports += [] if problems else [json.loads(result.out)]
        if not problems and not reports[-1]["kinds"][2]["ms"] > 0:
            problems = ["what the host keeps has no price"]
        report.case(f"what the host keeps, {slow}", problems, result)
    if len(reports) == 2:
        fast, slow = (r["kinds"][2] for r in reports)
        hides = slow["ms"] > fast["ms"] and slow["ms"] - slow["hideable_ms"] > fast["ms"] - fast["hideable_ms"]
        report.case("a slower link moves longer, and hides less of it", [] if hides else [f"{fast}, {slow}"], result)

    if os.geteuid() == 0:  # who may, as a rule, put another file in the place of /proc/meminfo
        with tempfile.NamedTemporaryFile("w") as meminfo:
            meminfo.write("MemAvailable: 1024 kB\n")
            meminfo.flush()
            script = f'mount --bind {meminfo.name} /proc/meminfo || exit {harness.SKIP}; exec "$@"'
            result = harness.run(["unshare", "--mount", "sh", "-c", script, "sh", program, *SMALL, "--json"])
        if result.code != harness.SKIP and not result.err.startswith("unshare:"):
            report.case("two models that do not fit", report_problems(result, takes_turns=False), result)

    result = harness.run(harness.mpirun(2, [program, *SMALL, "--sweep", "--json"]))
    problems = report_problems(result, lines=16)
    if not problems:
        seen = {(r["prefetch"], r["limit"]) for r in map(json.loads, result.out.splitlines())}
        problems = [] if len(seen) == 16 else [f"16 configurations expected: {sorted(seen)}"]
    report.case("a sweep", problems, result)

    result = harness.run(harness.mpirun(2, [program, *SMALL]))
    words = ["exposed", "hideable", "critical path", "optimizer", "reductions", "offload"]
    report.case("the tables", [f"'{word}' is missing" for word in words if word not in result.out] + (["exit 0 expected"] if result.code else []), result)

    for ranks, flags, says in (
        (2, ["--preset", "huge"], "--preset"),
        (2, ["--layers", "0"], "model.layers is 0"),
        (2, ["--width", "7"], "does not divide model.width 7"),
        (2, ["--sequence", "1000000"], "longer than model.context"),
        (2, ["--steps", "0"], "--steps"),
        (2, ["--dtype", "f16"], "f16 not in {f32,bf16}"),
        (2, ["--set", "nonsense"], "--set"),
        (2, ["--set", "shard.prefetch=-1"], "shard.prefetch is -1"),
        (2, ["--set", "shard.strategy=hsdp", "--set", "shard.group_size=3"], "does not divide the job's 2 ranks"),
        (2, ["--set", "comm.transport=mpi"], "set ZSHARD_TRANSPORT"),
        (2, ["--set", "comm.omit=both"], "comm.omit leaves out what is measured"),
        (2, ["--set", "offload.update=auto"], "set it to host or device"),
        (2, ["--sweep", "twice"], "twice"),
        (2, ["--transport", "nccl"], "--device cuda"),
        (2, ["--device", "cuda", "--transport", "shm"], "shm not in {auto,nccl,staged}"),
        (None, ["--set", "comm.ranks=2"], "comm.ranks"),
    ):
        result = harness.run(harness.launch(ranks, [program, "--preset", "tiny", *flags] if "--preset" not in flags else [program, *flags]))
        lines = result.err.splitlines()
        good = result.code == 64 and not result.out and len(lines) == 1 and lines[0].startswith("bench_overlap: error: ") and says in lines[0]
        report.case(f"refused in one line: {flags}", [] if good else [f"exit 64 and one line that says '{says}' expected"], result)

    for ranks in (None, 2):
        result = harness.run(harness.launch(ranks, [program, *SMALL, "--device", "cuda"]), env={"CUDA_VISIBLE_DEVICES": ""})
        lines = result.err.splitlines()
        good = result.code == 78 and not result.out and len(lines) == 1 and lines[0].startswith("bench_overlap: error: ")
        report.case(f"no GPU, {ranks or 1} ranks", [] if good else ["exit 78 and one line expected"], result)

    result = harness.run(["sh", "-c", 'exec "$@" > /dev/full', "sh", program, *SMALL])
    good = result.code == 74 and "the result cannot be written" in result.err
    report.case("a full disk", [] if good else ["exit 74 and one line expected"], result)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
