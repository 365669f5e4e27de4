#!/usr/bin/env python3
"""bench_step tells the same story in all its fields, alone and under mpirun, and refuses bad flags in one line.
Usage: bench_step_test.py BENCH_STEP"""

import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "train" / "program"))
import harness

SMALL = ["--preset", "tiny", "--layers", "2", "--sequence", "64", "--micro-batch", "2", "--steps", "3", "--warmup", "1", "--profile-steps", "1"]
NUMBERS = ("layers width parameters ranks threads micro_batch micro_batches sequence steps loss tokens_per_s step_ms step_ms_min flops_per_token "
           "gflops product_ceiling_gflops pct_of_product_ceiling peak_bytes planned_peak_bytes pss_bytes pss_rank_max_bytes pss_baseline_bytes "
           "pss_baseline_rank_max_bytes").split()
TEXTS = ["program", "preset", "dtype", "reduce_dtype", "device", "isa", "transport"]
OPS = {"linear", "linear_dx", "linear_dweight", "attention", "attention_backward", "layer_norm", "adamw"}


def near(a, b):
    return abs(a - b) <= 1e-6 * max(abs(a), abs(b))


def step_problems(r):
    """What must hold between the numbers of one report, whatever the machine."""
    facts = {
        "tokens_per_s is the tokens of a step by step_ms": near(r["tokens_per_s"], r["ranks"] * r["micro_batches"] * r["micro_batch"] * r["sequence"] / r["step_ms"] * 1e3),
        "a token takes 6 N + 6 L C T": near(r["flops_per_token"], 6 * r["parameters"] + 6 * r["layers"] * r["width"] * r["sequence"]),
        "gflops is tokens by FLOPs": near(r["gflops"], r["tokens_per_s"] * r["flops_per_token"] * 1e-9),
        "pct_of_product_ceiling is their ratio": near(r["pct_of_product_ceiling"], 100 * r["gflops"] / r["product_ceiling_gflops"]),
        "the fastest step is not slower than the median": 0 < r["step_ms_min"] <= r["step_ms"],
        "counted bytes are the plan's": r["peak_bytes"] == r["planned_peak_bytes"] > 0,
        "PSS grew with the model": r["pss_bytes"] > r["pss_baseline_bytes"] > 0,
        "no rank has more than all": r["ranks"] * r["pss_rank_max_bytes"] >= r["pss_bytes"] >= r["pss_rank_max_bytes"] > 0,
    }
    return [f"not so: {fact}" for fact, holds in facts.items() if not holds]


def profile_problems(p):
    compute = [op for op in p["ops"] if op["stream"] == "compute"]
    facts = {
        "the parts of a step are not longer than the step": p["busy_ms"] + p["waiting_ms"] <= p["step_ms"] and p["idle_ms"] >= 0,
        "the parts and the idle time are the step": near(p["busy_ms"] + p["waiting_ms"] + p["idle_ms"], p["step_ms"]),
        "the ops are the busy time": near(sum(op["ms"] for op in compute if not op["is_wait"]), p["busy_ms"]),
        "the ops of a step are there": OPS <= {op["op"] for op in compute},
        "percents are of the step": all(near(op["percent"], 100 * op["ms"] / p["step_ms"]) for op in p["ops"]),
        "every row has calls and a time": all(op["calls"] > 0 and op["ms"] >= 0 for op in p["ops"]),
    }
    return [f"not so: {fact}" for fact, holds in facts.items() if not holds]


def report_problems(result, **expected):
    if result.code != 0 or result.err or len(result.out.splitlines()) != 1:
        return ["exit 0 and one line of output expected"]
    report = json.loads(result.out)
    problems = [f"no number {key}" for key in NUMBERS if not isinstance(report.get(key), (int, float))]
    problems += [f"no text {key}" for key in TEXTS if not isinstance(report.get(key), str)]
    if problems:
        return problems
    problems += [f"{key} is {report[key]}, expected {value}" for key, value in expected.items() if report[key] != value]
    return problems + step_problems(report) + profile_problems(report["profile"])


def usage_problems(result, named):
    lines = result.err.splitlines()
    good = result.code == 64 and not result.out and len(lines) == 1 and lines[0].startswith("bench_step: error: ") and named in lines[0]
    return [] if good and len(lines[0]) <= 300 else [f"exit 64 and one line that names {named} expected"]


def shared_parameters(program):
    """Ranks that read each other's shards hold less than ranks that gather copies, as counted, and as the system sees it; half of that, since
    what the system sees is not all zshard's: what glibc keeps of the heap came to 40 MiB."""
    model = ["--preset", "tiny", "--layers", "8", "--width", "512", "--micro-batch", "1", "--sequence", "64", "--steps", "1", "--json"]
    counted, seen = {}, {}
    for way in ("off", "auto"):
        result = harness.run(harness.mpirun(4, [program, *model, "--set", "shard.strategy=shard_grad_op", "--set", f"shard.zero_copy={way}"]))
        if result.code != 0:
            return f"zero-copy {way}", ["exit 0 expected"], result
        row = json.loads(result.out)
        counted[way], seen[way] = row["ranks"] * row["peak_bytes"], row["pss_bytes"] - row["pss_baseline_bytes"]
    saved, gone = counted["off"] - counted["auto"], seen["off"] - seen["auto"]
    problems = [] if saved > 0 and gone > saved / 2 else [f"{saved} bytes less are counted, {gone} bytes less are there"]
    return f"zero-copy saves {saved / 2**20:.0f} MiB, of which the system sees {gone / 2**20:.0f}", problems, result


def main():
    program, report = sys.argv[1], harness.Report()
    run = harness.run

    result = run([program, *SMALL, "--json"])
    report.case("one rank, f32", report_problems(result, ranks=1, layers=2, dtype="f32", sequence=64, steps=3), result)
    result = run(harness.mpirun(2, [program, *SMALL, "--dtype", "bf16", "--micro-batches", "2", "--json"]))
    problems = report_problems(result, ranks=2, dtype="bf16", reduce_dtype="f32", micro_batches=2)
    if not problems:
        ops = {(op["stream"], op["op"]) for op in json.loads(result.out)["profile"]["ops"]}
        problems = [f"no row {row}" for row in [("unshard", "publish"), ("reduce", "reduce_scatter"), ("compute", "wait for unshard")] if row not in ops]
    report.case("two ranks, bf16", problems, result)

    report.case(*shared_parameters(program))

    result = run([program, *SMALL])
    words = ["tokens/s", "product ceiling", "counted peak", "linear_dweight", "nothing to do"]
    report.case("the tables", [f"'{word}' is missing" for word in words if word not in result.out] + (["exit 0 expected"] if result.code else []), result)

    for ranks, start in ((1, [program]), (2, harness.mpirun(2, [program]))):
        result = run([*start, *SMALL, "--watch"])
        look = re.search(r"^watchdog +([\d.]+) us a look, every 100 ms +([\d.]+) us a step", result.out, re.M)
        good = result.code == 0 and result.out.startswith(f"{ranks} rank") and look and float(look[1]) > 0 and float(look[2]) > 0
        report.case(f"the watchdog's looks cost something, {ranks} ranks", [] if good else ["exit 0 and a look that takes time expected"], result)

    result = run([program, "--traffic", "--preset", "tiny", "--dtype", "bf16", "--traffic-ranks", "8", "--traffic-group", "2"])
    rows = {line[:20].strip(): line[20:].split() for line in result.out.splitlines()}
    words = ["ddp", "zero1", "zero2", "zero3", "shard_grad_op", "hsdp", "nested"]
    problems = [f"no row of five numbers for {word}" for word in words if len(rows.get(word, [])) != 5] + (["exit 0 expected"] if result.code else [])
    if not problems and not float(rows["nested"][2]) < float(rows["hsdp"][2]) < float(rows["zero3"][2]):
        problems = ["nested groups send less beyond their group than replicas, and these less than zero3"]
    report.case("the traffic of every strategy", problems, result)
    result = run([program, "--traffic", "--preset", "tiny", "--traffic-group", "3"])
    report.case("refused: groups that do not divide the ranks", usage_problems(result, "groups of 3 do not divide 8 ranks (--traffic-group)"), result)

    result = run([*harness.mpirun(1, [program, *SMALL, "--width", "32"]), ":", "-np", "1", program, *SMALL, "--width", "64"])
    lines = result.err.splitlines()
    good = result.code == 72 and not result.out and len(lines) == 1 and re.search("the ranks differ in their options: rank 1 has --width 64, rank 0 --width 32:", lines[0])
    report.case("refused: ranks with different options", [] if good else ["exit 72 and one line expected"], result)

    for flags, named in [(["--dtype", "f16"], "--dtype"), (["--micro-batch", "0"], "--micro-batch"), (["--preset", "huge"], "--preset"),
                         (["--steps", "many"], "--steps"), (["--nonsense"], "--nonsense"), (["--set", "train.nonsense=1"], "train.nonsense"),
                         (["--transport", "staged"], "--transport"), (["--traffic-ranks", "4"], "--traffic"), (["--watch", "--traffic"], "--traffic"),
                         (["--preset", "tiny", "--sequence", "4096"], "train.sequence"), (["--preset", "tiny", "--width", "129"], "model.width"),
                         (["--warmup", "0", "--set", "cuda.tune_products=true"], "--warmup")]:
        result = run([program, *flags])
        report.case(f"refused: {' '.join(flags)}", usage_problems(result, named), result)
    for what, command in [("no GPU", [program, "--device", "cuda"]), ("no GPU, two ranks", harness.mpirun(2, [program, "--device", "cuda"]))]:
        result = run(command, env={"CUDA_VISIBLE_DEVICES": ""})
        lines = result.err.splitlines()
        good = result.code == 78 and not result.out and len(lines) == 1 and lines[0].startswith("bench_step: error: ")
        report.case(what, [] if good else ["exit 78 and one line expected"], result)
    result = run(harness.mpirun(2, [program, "--steps", "0"]))
    report.case("refused once by two ranks", usage_problems(result, "--steps"), result)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
