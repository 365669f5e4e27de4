#!/usr/bin/env python3
"""bench_kernels knows every kernel of the table, tells the same story in all its fields, and refuses bad flags in one line.
Usage: bench_kernels_test.py BENCH_KERNELS"""

import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "train" / "program"))
import harness

GPU_ALONE = {"cross_entropy_in_place", "matmul_gelu", "matmul_gelu_backward"}  # the CPU's table has none of them
FIELDS = "kernel shape dtype threads bound bytes flops calls ms_min ms_median gb_per_s gflops percent".split()


def near(a, b):
    return abs(a - b) <= 1e-6 * max(abs(a), abs(b))


def coverage_problems(listed, absent=frozenset()):
    """Every function of the table has a case, but those between host and device: on the CPU they are memcpy, which is a ceiling. `absent`:
    those that the device's table has not, which must have none."""
    table = (harness.ROOT / "kernels" / "kernels.h").read_text()
    kernels = set(re.findall(r"void \(\*(\w+)\)\(ExecContext&", table)) - {"upload", "download"} - absent
    found = {line.split()[0] for line in listed.splitlines()}
    if len(kernels) < 20:
        return [f"only {len(kernels)} kernels in kernels.h: the test looked wrongly"]
    return [f"no case for {name}" for name in sorted(kernels - found)] + [f"{name} is no kernel of the table" for name in sorted(found - kernels)]


def row_problems(row, ceilings):
    missing = [field for field in FIELDS if field not in row]
    if missing:
        return [f"no field {field}" for field in missing]
    at = next(c for c in ceilings if c["threads"] == row["threads"])
    ceiling = {"memory": (row["gb_per_s"], at["copy_gb_per_s"]), "products": (row["gflops"], at["product_gflops"].get(row["dtype"])), "latency": None}[row["bound"]]
    facts = {
        "gb_per_s is bytes by the fastest call": near(row["gb_per_s"], row["bytes"] / row["ms_min"] * 1e-6),
        "gflops is FLOPs by the fastest call": near(row["gflops"], row["flops"] / row["ms_min"] * 1e-6),
        "the fastest call is not slower than the median": 0 < row["ms_min"] <= row["ms_median"],
        "there were calls": row["calls"] > 0,
        "percent is of the ceiling": row["percent"] is None if ceiling is None else near(row["percent"], 100 * ceiling[0] / ceiling[1]),
    }
    return [f"{row['kernel']} {row['shape']} {row['threads']}: not so: {fact}" for fact, holds in facts.items() if not holds]


def report_problems(result, rows, threads, kinds):
    """`kinds`: the ceilings that must have been measured, of copy and product."""
    if result.code != 0 or result.err or len(result.out.splitlines()) != 1:
        return ["exit 0 and one line of output expected"]
    report = json.loads(result.out)
    problems = [f"{len(report['kernels'])} rows, expected {rows}"] if len(report["kernels"]) != rows else []
    if [c["threads"] for c in report["ceilings"]] != threads or {row["threads"] for row in report["kernels"]} != set(threads):
        problems.append(f"threads {threads} expected")
    if (report["device"], report["gpu"]) != ("cpu", None):
        problems.append("the CPU is the device")
    if report["last_level_cache_bytes"] <= 0 or not report["isa"]:
        problems.append("no cache size or no instruction set")
    for c in report["ceilings"]:
        if c["copy_gb_per_s"] < c["memcpy_gb_per_s"] or (c["copy_gb_per_s"] > 0) != ("copy" in kinds) or bool(c["product_gflops"]) != ("product" in kinds):
            problems.append(f"ceilings {c}, expected {kinds}")
    return problems + [p for row in report["kernels"] for p in row_problems(row, report["ceilings"])]


def usage_problems(result, named):
    lines = result.err.splitlines()
    good = result.code == 64 and not result.out and len(lines) == 1 and lines[0].startswith("bench_kernels: error: ") and named in lines[0]
    return [] if good and len(lines[0]) <= 300 else [f"exit 64 and one line that names {named} expected"]


def main():
    program, report = sys.argv[1], harness.Report()
    run = harness.run

    result = run([program, "--list"])
    report.case("every kernel of the table is there", coverage_problems(result.out, GPU_ALONE) if result.code == 0 else ["exit 0 expected"], result)
    result = run([program, "--filter", "scale 1024 x 768", "--threads", "2", "--threads", "1", "--min-time", "0", "--json"])
    report.case("a kernel bound by memory", report_problems(result, 4, [1, 2], {"copy"}), result)
    result = run([program, "--filter", "matmul dx out", "--dtype", "bf16", "--threads", "1", "--min-time", "0", "--json"])
    report.case("a product", report_problems(result, 1, [1], {"product"}), result)
    result = run([program, "--filter", "clip_coefficient", "--threads", "1", "--min-time", "0", "--json"])
    report.case("a kernel too short for a ceiling", report_problems(result, 1, [1], set()), result)
    result = run([program, "--filter", "scale 1024 x 768", "--dtype", "f32", "--threads", "1", "--min-time", "0"])
    words = ["last-level cache", "ceilings of 1 thread: copy", "scale", "GB/s"]
    report.case("the table", [f"'{word}' is missing" for word in words if word not in result.out] + (["exit 0 expected"] if result.code else []), result)

    for flags, named in [(["--filter", "nonsense"], "nonsense"), (["--dtype", "f16"], "--dtype"), (["--threads", "0"], "--threads"),
                         (["--min-time", "-1"], "--min-time"), (["--nonsense"], "--nonsense"), (["--cudnn"], "--cudnn")]:
        result = run([program, *flags])
        report.case(f"refused: {' '.join(flags)}", usage_problems(result, named), result)
    result = run([program, "--device", "cuda", "--list"])
    report.case("every kernel of the table is there for a GPU", coverage_problems(result.out) if result.code == 0 else ["exit 0 expected"], result)
    result = run([program, "--device", "cuda"], env={"CUDA_VISIBLE_DEVICES": ""})
    lines = result.err.splitlines()
    good = result.code == 78 and not result.out and len(lines) == 1 and lines[0].startswith("bench_kernels: error: ")
    report.case("no GPU", [] if good else ["exit 78 and one line expected"], result)
    result = run([program, "--device", "cuda", "--threads", "2"])
    report.case("refused: threads of a GPU", usage_problems(result, "--threads"), result)
    result = run(harness.mpirun(1, [program]))
    report.case("refused under mpirun", usage_problems(result, "mpirun"), result)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
