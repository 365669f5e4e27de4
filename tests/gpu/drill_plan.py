"""What tests/gpu/drill runs, step by step, as data that the archive carries. Every step has its own limit, in seconds; together they stay below
the drill's. `{data}` in an argument is the archive's data folder. The kinds:
- cases: the cases of a Catch2 program, spread over `processes`; one that does not pass is run again in a process of its own.
- losses: `train` on so many ranks, against the losses that this archive carries.
- figures: a benchmark, whose report is a line of JSON."""

KJV_CORPUS, WORDS = "kjv.txt", "words.bin"
ON_ONE_GPU = ["--set", "cuda.share_gpu=true", "--set", "cuda.transport=staged"]


def cases(name, program, limit_s, args=(), processes=1):
    return {"name": name, "kind": "cases", "program": program, "args": list(args), "processes": processes, "limit_s": limit_s}


def file_cases(name, program, file, limit_s):
    """Of one file of a folder's program."""
    return cases(name, program, limit_s, ["-#", f"[#{file}]~[.]"])


def losses(name, reference, limit_s, ranks=1):
    return {"name": name, "kind": "losses", "program": "train", "reference": reference, "ranks": ranks, "limit_s": limit_s,
            "args": ON_ONE_GPU if ranks > 1 else []}


def figures(name, program, limit_s, args):
    return {"name": name, "kind": "figures", "program": program, "args": [*args, "--json"], "limit_s": limit_s}


def reference(config, corpus, dtype, steps):
    """Of `train` on the CPU where the archive is packed."""
    return {"config": config, "corpus": corpus, "dtype": dtype, "steps": steps}


def full():
    step = ["--device", "cuda", "--preset", "124M", "--dtype", "bf16", "--micro-batch", "16", "--sequence", "1024", "--steps", "10"]
    return {
        "references": {"kjv-tiny f32": reference("kjv-tiny.toml", KJV_CORPUS, "f32", 50),
                       "kjv-tiny bf16": reference("kjv-tiny.toml", KJV_CORPUS, "bf16", 50),
                       "124M bf16": reference("gpt2-124M.toml", WORDS, "bf16", 50)},
        "steps": [
            cases("smoke", "gpu_smoke_test", 30),
            file_cases("streams", "device_test", "stream_test", 15),
            file_cases("errors of streams", "device_test", "stream_errors_test", 15),
            cases("kernels", "kernels_cuda_test", 95, ["~[cpu]"], processes=6),
            file_cases("training", "shard_cuda_test", "cuda_training_test", 45),
            file_cases("steps as graphs", "shard_cuda_test", "cuda_graph_test", 25),
            losses("losses of kjv-tiny, f32", "kjv-tiny f32", 25),
            losses("losses of kjv-tiny, bf16", "kjv-tiny bf16", 25),
            losses("losses of 124M, bf16", "124M bf16", 45),
            losses("losses of two ranks, staged", "kjv-tiny f32", 30, ranks=2),
            file_cases("ranks as threads, staged", "shard_cuda_test", "cuda_ranks_test", 30),
            figures("bench_kernels, bf16", "bench_kernels", 65, ["--device", "cuda", "--dtype", "bf16", "--min-time", "0.05"]),
            figures("bench_step 124M", "bench_step", 25, step),
            figures("bench_step 124M, loss_chunk", "bench_step", 25, [*step, "--set", "train.loss_chunk=4096"]),
            figures("bench_step 124M, no fused_gelu", "bench_step", 25, [*step, "--set", "cuda.fused_gelu=false"]),
        ],
    }


def small():
    """For an emulated GPU, where a product takes seconds; its benchmarks are the CPU's. One step fails, and one does not end."""
    return {
        "references": {"tiny f32": reference("tiny.toml", "corpus.txt", "f32", 3)},
        "steps": [
            cases("smoke", "gpu_smoke_test", 60, ["~[trap]"]),
            cases("kernels", "kernels_cuda_test", 60, ["cross entropy*,embedding*,layer norm follows*"], processes=3),
            losses("losses, f32", "tiny f32", 60),
            losses("losses of two ranks, staged", "tiny f32", 60, ranks=2),
            figures("bench_kernels", "bench_kernels", 60, ["--device", "cpu", "--threads", "1", "--dtype", "f32", "--filter", "norm", "--min-time", "0.01"]),
            figures("a step that fails", "bench_kernels", 20, ["--no-such-option"]),
            figures("a step that does not end", "bench_step", 4, ["--preset", "tiny", "--micro-batch", "1", "--sequence", "16", "--steps", "1000000"]),
            file_cases("the last step", "device_test", "stream_errors_test", 60),
        ],
    }


PLANS = {"full": full, "small": small}
