"""What the benchmarks of tests/gpu/run found out, as short lines: read off the JSON that they leave in their logs."""

import json


def reports(log):
    """Every report in a log: lines of JSON that name their program."""
    for line in log.splitlines():
        if line.startswith("{"):
            try:
                report = json.loads(line)
            except ValueError:
                continue
            if isinstance(report, dict) and "program" in report:
                yield report


def kernel_line(row):
    if row["bound"] == "latency":
        return f"{row['kernel'] + ' ' + row['shape']:<52} {row['dtype']:<5}{row['ms_min'] * 1e3:10.1f} us a launch"
    rate = f"{row['gflops'] * 1e-3:10.1f} TFLOP/s" if row["bound"] == "products" else f"{row['gb_per_s']:10.0f} GB/s   "
    return f"{row['kernel'] + ' ' + row['shape']:<52} {row['dtype']:<5}{rate} {row['percent']:6.1f} %"


def kernels_lines(report):
    if "ceilings" not in report:
        return []
    at = report["ceilings"][0]
    products = "".join(f", {dtype} products {gflops * 1e-3:.1f} TFLOP/s" for dtype, gflops in at["product_gflops"].items())
    head = f"{report['gpu']} ({report['isa']}), L2 {report['last_level_cache_bytes'] >> 20} MiB: copy {at['copy_gb_per_s']:.0f} GB/s{products}"
    return [head, *(kernel_line(row) for row in report["kernels"])]


def step_lines(report):
    profile = report["profile"]
    idle = f", idle {100 * profile['idle_ms'] / profile['step_ms']:.1f} %" if profile else ""
    ranks = f" {report['ranks']} ranks over {report['transport']}," if report.get("ranks", 1) > 1 else ""
    shared = f" up to {report['ranks_a_gpu']} on a GPU," if (report.get("ranks_a_gpu") or 1) > 1 else ""
    return [f"{report['preset']} {report['dtype']},{ranks}{shared} {report['micro_batch']} x {report['sequence']} tokens: {report['tokens_per_s']:.0f} tokens/s, "
            f"{report['step_ms']:.2f} ms, {report['pct_of_product_ceiling']:.1f} % of {report['product_ceiling_gflops'] * 1e-3:.1f} TFLOP/s{idle}"]


def overlap_lines(report):
    efficiency = report["overlap_efficiency"]
    hides = "next to nothing can hide" if efficiency is None else f"{100 * efficiency:.0f} % of what can hide hides"
    note = f"; not meaningful: {report['note']}" if report["note"] else ""
    return [f"{report['preset']} {report['dtype']}, {report['ranks']} ranks over {report['transport']}: a step {report['step_ms']:.2f} ms, compute "
            f"{report['compute_ms']:.2f}, communication {report['communication_ms']:.2f}; {hides}{note}"]


def collectives_lines(report):
    """Of the largest size of each."""
    largest = {}
    for row in report["collectives"]:
        key = row["op"], row["dtype"], row["transport"]
        largest[key] = max(row, largest.get(key, row), key=lambda one: one["bytes"])
    head = f"{report['ranks']} ranks, up to {report['ranks_a_gpu']} on one {report['gpu']}: copy by all {report['copy_gb_per_s']:.0f} GB/s"
    return [head, *(f"{op:<16}{dtype:<6}{transport:<8}{row['bytes']:>11} bytes {row['time_us']:10.1f} us  busbw {row['busbw_gbs']:8.1f} GB/s {row['pct_of_copy_ceiling']:6.1f} %"
                    for (op, dtype, transport), row in largest.items())]


def compare_lines(report):
    rows = [(row["what"], "tokens/s", row["tokens_per_s"]) for row in report["steps"]] + [(row["what"], "ms", row["ms"]) for row in report["kernels"]]
    return [f"{what:<46} zshard {both['zshard']:.4g}, PyTorch {both['PyTorch']:.4g} {unit}, {both['ratio']:.2f} times as fast" for what, unit, both in rows]


def peer_step_lines(report):
    return [f"PyTorch {report['version']}, {report['preset']} {report['dtype']}, {report['micro_batch']} x {report['sequence']} tokens: "
            f"{report['tokens_per_s']:.0f} tokens/s, {report['step_ms']:.2f} ms, {report['pct_of_product_ceiling']:.1f} % of "
            f"{report['product_ceiling_gflops'] * 1e-3:.1f} TFLOP/s"]


def peer_kernels_lines(report):
    rates = [f"{row['gflops'] * 1e-3:10.1f} TFLOP/s" if row["flops"] else f"{row['gb_per_s']:10.0f} GB/s" for row in report["kernels"]]
    return [f"{'PyTorch ' + row['kernel'] + ' ' + row['shape']:<52} {row['dtype']:<5}{rate}" for row, rate in zip(report["kernels"], rates)]


KINDS = {"gpu_step": peer_step_lines, "gpu_kernels": peer_kernels_lines,
         "bench_kernels": kernels_lines, "bench_step": step_lines, "bench_overlap": overlap_lines, "bench_collectives": collectives_lines,
         "compare_gpu": compare_lines}


def lines_of(log):
    """The short lines of one test's log; none where it has no report."""
    return [line for report in reports(log) for line in KINDS.get(report["program"], lambda _: [])(report)]
