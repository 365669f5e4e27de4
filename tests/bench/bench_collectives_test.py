#!/usr/bin/env python3
"""bench_collectives measures every collective over both transports of processes, finds no wrong element, and refuses bad flags in one line.
Usage: bench_collectives_test.py BENCH_COLLECTIVES"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "train" / "program"))
import harness

SMALL = ["--min-bytes", "4096", "--max-bytes", "70000", "--min-time", "0.01", "--json"]
MOST_SETS = 1024
OPS = {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast"}
DTYPES = ("f32", "bf16")
# Sets beyond a large cache take seconds for each operation: all of them once, else one that adds and one that does not.
FEW_OPS, FEW_DTYPES = {"reduce_scatter", "all_to_all"}, ("bf16",)
FEW = ["--op", "reduce_scatter", "--op", "all_to_all", "--dtype", "bf16"]
FIELDS = "bytes time_us time_us_min algbw_gbs busbw_gbs pct_of_copy_ceiling sets calls wrong".split()


def fits_cache(row, report):
    """Whether the sets of all ranks could stay in the last-level cache, or are more than they need be."""
    set_bytes = row["bytes"] * report["ranks"] * (2 if row["op"] == "all_to_all" else 1)
    wanted = 2 * report["last_level_cache_bytes"]
    return row["sets"] * set_bytes < wanted if row["sets"] < MOST_SETS else row["sets"] > MOST_SETS or (MOST_SETS - 1) * set_bytes >= wanted


def report_problems(result, ranks, transports, ops=FEW_OPS, dtypes=FEW_DTYPES):
    if result.code != 0 or result.err or len(result.out.splitlines()) != 1:
        return ["exit 0 and one line of output expected"]
    report = json.loads(result.out)
    rows = report["collectives"]
    problems = [f"no number {key} in {row}" for row in rows for key in FIELDS if not isinstance(row.get(key), (int, float))]
    if problems or report["ranks"] != ranks or not report["copy_gb_per_s"] > 0:
        return problems + [f"{ranks} ranks and a copy ceiling expected"]
    facts = {
        "every operation, dtype and transport is there": {(r["op"], r["dtype"], r["transport"]) for r in rows} == {
            (op, dtype, t) for op in ops for dtype in dtypes for t in transports
            if not (t == "openmpi" and dtype == "bf16" and op in ("reduce_scatter", "all_reduce"))},
        "sizes grow by 4": {r["bytes"] // 4096 for r in rows} == {1, 4, 16},
        "no row is there twice": len({(r["op"], r["dtype"], r["transport"], r["bytes"]) for r in rows}) == len(rows),
        "no element is wrong": all(r["wrong"] == 0 for r in rows),
        "sets are beyond the cache": not any(fits_cache(r, report) for r in rows),
        "times are positive": all(0 < r["time_us_min"] <= r["time_us"] for r in rows),
        "algbw is bytes by time": all(abs(r["algbw_gbs"] * r["time_us"] * 1e3 - r["bytes"]) <= 1e-6 * r["bytes"] for r in rows),
    }
    return [f"not so: {fact}" for fact, holds in facts.items() if not holds]


def usage_problems(result, named):
    lines = result.err.splitlines()
    good = result.code == 64 and not result.out and len(lines) == 1 and lines[0].startswith("bench_collectives: error: ") and named in lines[0]
    return [] if good and len(lines[0]) <= 300 else [f"exit 64 and one line that names {named} expected"]


def main():
    program, report = sys.argv[1], harness.Report()
    run = harness.run
    for ranks in (1, 2, 4):  # sizes are whole lines of every rank
        result = run(harness.mpirun(ranks, [program, *SMALL, *FEW, "--transport", "shm", "--compare"]))
        report.case(f"shm and the library, {ranks} ranks", report_problems(result, ranks, ["shm", "openmpi"]), result)
    result = run(harness.mpirun(3, [program, *SMALL, *FEW, "--transport", "mpi"]))
    report.case("mpi, 3 ranks", report_problems(result, 3, ["mpi"]), result)
    result = run(harness.mpirun(2, [program, *SMALL, "--transport", "mpi", "--transport", "shm", "--compare"]))
    report.case("shm, mpi and the library in one run", report_problems(result, 2, ["shm", "mpi", "openmpi"], OPS, DTYPES), result)
    result = run(harness.mpirun(4, [program, *SMALL, *FEW, "--transport", "hier", "--transport", "mpi"]), env={"ZSHARD_HOSTS_OF": "0,0,1,1"})
    report.case("hier and mpi in one run", report_problems(result, 4, ["hier", "mpi"]), result)
    result = run(harness.mpirun(2, [program, *SMALL, *FEW, "--transport", "auto", "--transport", "mpi"]), env={"ZSHARD_HOSTS_OF": "0,1"})
    report.case("what comes to the same is measured once", report_problems(result, 2, ["mpi"]), result)
    one_size = ["--op", "reduce_scatter", "--dtype", "f32", "--min-bytes", "1048576", "--max-bytes", "1048576", "--min-time", "0.01", "--json"]
    result = run(harness.mpirun(2, [program, *one_size]))
    rows = [(row["sets"], fits_cache(row, json.loads(result.out))) for row in json.loads(result.out)["collectives"]] if result.code == 0 else []
    report.case(f"1 MiB is beyond the cache, {rows[:1]}", [] if len(rows) == 1 and not rows[0][1] else ["enough sets expected"], result)
    result = run(harness.mpirun(2, [program, "--op", "broadcast", "--max-bytes", "4096", "--min-time", "0.01"]))
    report.case("a table", [] if result.code == 0 and "broadcast" in result.out and "shm" in result.out else ["a table expected"], result)
    for flags, named in (
        (["--op", "gather"], "gather not in {all_gather,all_reduce,all_to_all,broadcast,reduce_scatter}"),
        (["--dtype", "f16"], "f16 not in {bf16,f32}"),
        (["--transport", "rdma"], "rdma not in"),
        (["--transport", "shm", "--transport", "hier"], "shm, hier do not go together (--transport)"),
        (["--transport", "mpi", "--transport", "mpi"], "mpi, mpi do not go together (--transport)"),
        (["--transport", "shm", "mpi"], "mpi"),
        (["--transport", "nccl", "--transport", "mpi"], "without --device cuda (--transport)"),
        (["--device", "cuda", "--transport", "nccl", "--transport", "mpi"], "nccl, mpi is no transport between GPUs"),
        (["--device", "cuda", "--transport", "nccl", "--transport", "staged"], "nccl, staged do not go together (--transport)"),
        (["--min-bytes", "0"], "--min-bytes"),
        (["--max-bytes", "1G"], "--max-bytes"),
        (["--min-bytes", "8192", "--max-bytes", "4096"], "no size is 8192 bytes or more and 4096 or fewer"),
        (["--min-time", "-1"], "--min-time"),
        (["--min-time", "NaN", "--max-bytes", "4096"], "it is not a number"),
        (["--json", "out.json"], "out.json"),
        (["--transport", "nccl"], "without --device cuda (--transport)"),
        (["--share-gpu"], "without --device cuda (--share-gpu)"),
        (["--device", "cuda", "--transport", "shm"], "shm is no transport between GPUs"),
        (["--device", "cuda", "--compare"], "(--compare)"),
        (["--nonsense"], "--nonsense"),
    ):
        result = run(harness.mpirun(2, [program, *flags]))
        report.case(f"bad flags {flags}", usage_problems(result, named), result)
    result = run(harness.mpirun(2, [program, "--max-bytes", "4096"]), env={"ZSHARD_TRANSPORT": "rdma"})
    report.case("an unknown transport in the environment, told once", usage_problems(result, "ZSHARD_TRANSPORT"), result)
    result = run(harness.mpirun(2, [program, *SMALL]), env={"ZSHARD_TRANSPORT": "null"})
    report.case("a transport that moves nothing", usage_problems(result, "transport null moves nothing (ZSHARD_TRANSPORT)"), result)
    result = run(harness.mpirun(2, [program, "--device", "cuda"]), env={"CUDA_VISIBLE_DEVICES": ""})
    lines = result.err.splitlines()
    good = result.code == 78 and not result.out and len(lines) == 1 and lines[0].startswith("bench_collectives: error: ")
    report.case("no GPU", [] if good else ["exit 78 and one line expected"], result)
    result = run(harness.mpirun(2, [program, *SMALL]), env={"ZSHARD_HOSTS_OF": "0,0,1"})
    report.case("hosts of other ranks than there are, told once", usage_problems(result, "ZSHARD_HOSTS_OF"), result)
    result = run([program])
    report.case("without mpirun", usage_problems(result, "mpirun"), result)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
