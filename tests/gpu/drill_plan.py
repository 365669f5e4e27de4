"""What tests/gpu/drill runs, step by step, as data that the archive carries: part a, and part b for what is left of a quarter of an hour. Every step
has its own limit, in seconds; together they stay below the part's. The kinds:
- cases: the cases of a Catch2 program, spread over `processes`; one that does not pass is run again in a process of its own.
- losses: `train` on so many ranks, against the losses that this archive carries.
- figures: a benchmark, whose report is a line of JSON.
- peer: a benchmark of PyTorch (bench/peers), if this machine's Python has it; one in the background ends when something is timed.
- sanitizer: what has not passed in part a, under compute-sanitizer.
- counters: a launch of each of some kernels in bench_kernels, under ncu."""

KJV_CORPUS, WORDS = "kjv.txt", "words.bin"
PART_SECONDS = {"a": 535, "b": 175}  # of a call's 540 and 180
ON_ONE_GPU = ["--set", "cuda.share_gpu=true", "--set"]
STEP = ["--device", "cuda", "--preset", "124M", "--dtype", "bf16", "--micro-batch", "16", "--sequence", "1024", "--steps", "10"]
KERNELS = ["--device", "cuda", "--dtype", "bf16", "--min-time", "0.05"]
# Kernel and the case of bench_kernels that launches it.
COUNTED = {"zs_attention_forward_64": "attention_forward", "zs_attention_dkeys_64": "attention_backward", "zs_layer_norm_gradients_bf16": "layer_norm_backward",
           "zs_bias_sums_bf16": "bias_backward", "zs_cross_entropy_in_place_bf16": "cross_entropy_in_place", "zs_update": "adamw"}


def cases(name, program, limit_s, args=(), processes=1):
    return {"name": name, "kind": "cases", "program": program, "args": list(args), "processes": processes, "limit_s": limit_s}


def file_cases(name, program, file, limit_s):
    """Of one file of a folder's program."""
    return cases(name, program, limit_s, ["-#", f"[#{file}]~[.]"])


def losses(name, reference, limit_s, transport=None):
    """Of one rank, or of two that share the GPU."""
    return {"name": name, "kind": "losses", "program": "train", "reference": reference, "transport": transport, "limit_s": limit_s,
            "args": [*ON_ONE_GPU, f"cuda.transport={transport}"] if transport else []}


def figures(name, program, limit_s, args):
    return {"name": name, "kind": "figures", "program": program, "args": [*args, "--json"], "limit_s": limit_s}


def peer(name, script, limit_s, args=(), in_background=False):
    return {"name": name, "kind": "peer", "script": script, "args": [*args, *(["--json"] if script == "gpu_step.py" else [])], "limit_s": limit_s,
            "in_background": in_background}


def sanitizer(name, limit_s):
    return {"name": name, "kind": "sanitizer", "limit_s": limit_s}


def counters(name, limit_s, args, counted):
    return {"name": name, "kind": "counters", "program": "bench_kernels", "args": args, "counted": counted, "limit_s": limit_s}


def reference(config, corpus, dtype, steps):
    """Of `train` on the CPU where the archive is packed."""
    return {"config": config, "corpus": corpus, "dtype": dtype, "steps": steps}


def full_a():
    return [
        peer("PyTorch compiles 124M", "gpu_step.py", 10, ["--preset", "124M", "--steps", "1", "--warmup", "1"], in_background=True),
        cases("smoke", "gpu_smoke_test", 25),
        file_cases("streams", "device_test", "stream_test", 15),
        file_cases("errors of streams", "device_test", "stream_errors_test", 15),
        cases("kernels", "kernels_cuda_test", 70, ["~[cpu]~[cudnn]"], processes=6),
        cases("attention by cuDNN", "kernels_cuda_test", 20, ["[cudnn]"]),
        file_cases("training", "shard_cuda_test", "cuda_training_test", 40),
        file_cases("steps as graphs", "shard_cuda_test", "cuda_graph_test", 20),
        losses("losses of kjv-tiny, f32", "kjv-tiny f32", 20),
        losses("losses of kjv-tiny, bf16", "kjv-tiny bf16", 20),
        losses("losses of 124M, bf16", "124M bf16", 35),
        losses("losses of two ranks, staged", "kjv-tiny f32", 25, "staged"),
        file_cases("ranks as threads, staged", "shard_cuda_test", "cuda_ranks_test", 25),
        figures("bench_kernels, bf16", "bench_kernels", 55, KERNELS),
        figures("bench_kernels, attention by cuDNN", "bench_kernels", 20, [*KERNELS, "--filter", "attention", "--cudnn"]),
        figures("bench_step 124M", "bench_step", 15, STEP),
        figures("bench_step 124M, products by time", "bench_step", 15, [*STEP, "--set", "cuda.tune_products=true"]),
        figures("bench_step 124M, own attention", "bench_step", 15, [*STEP, "--set", "cuda.attention=own"]),
        figures("bench_step 124M, no fused_gelu", "bench_step", 15, [*STEP, "--set", "cuda.fused_gelu=false"]),
        peer("PyTorch 124M", "gpu_step.py", 35, ["--preset", "124M"]),
        peer("PyTorch attention and copy", "gpu_kernels.py", 25),
    ]


def full_b():
    return [
        sanitizer("what has not passed, compute-sanitizer", 45),
        counters("six kernels, ncu", 70, ["--device", "cuda", "--dtype", "bf16", "--min-time", "0.001"], COUNTED),
        losses("losses of two ranks, NCCL", "kjv-tiny f32", 30, "nccl"),
        figures("bench_step 355M", "bench_step", 25, [*STEP, "--preset", "355M", "--micro-batch", "8"]),
    ]


def full():
    return {
        "references": {"kjv-tiny f32": reference("kjv-tiny.toml", KJV_CORPUS, "f32", 50),
                       "kjv-tiny bf16": reference("kjv-tiny.toml", KJV_CORPUS, "bf16", 50),
                       "124M bf16": reference("gpt2-124M.toml", WORDS, "bf16", 50)},
        "parts": {"a": full_a(), "b": full_b()},
    }


def small():
    """For an emulated GPU, where a product takes seconds; its benchmarks are the CPU's. One step fails, and one does not end."""
    on_cpu = ["--device", "cpu", "--threads", "1", "--dtype", "f32", "--filter", "norm", "--min-time", "0.01"]
    return {
        "references": {"tiny f32": reference("tiny.toml", "corpus.txt", "f32", 3)},
        "parts": {"a": [
            peer("PyTorch in the background", "gpu_step.py", 10, in_background=True),
            cases("smoke", "gpu_smoke_test", 60, ["~[trap]"]),
            cases("kernels", "kernels_cuda_test", 60, ["cross entropy*,embedding*,layer norm follows*"], processes=3),
            losses("losses, f32", "tiny f32", 60),
            losses("losses of two ranks, staged", "tiny f32", 60, "staged"),
            figures("bench_kernels", "bench_kernels", 60, on_cpu),
            figures("a step that fails", "bench_kernels", 20, ["--no-such-option"]),
            figures("a step that does not end", "bench_step", 4, ["--preset", "tiny", "--micro-batch", "1", "--sequence", "16", "--steps", "1000000"]),
            file_cases("the last step", "device_test", "stream_errors_test", 60),
            peer("PyTorch", "gpu_kernels.py", 30),
        ], "b": [
            sanitizer("what has not passed", 30),
            counters("kernels, ncu", 30, on_cpu, {"zs_update": "adamw"}),
            losses("losses of two ranks, NCCL", "tiny f32", 60, "nccl"),
            figures("bench_kernels", "bench_kernels", 60, on_cpu),
        ]},
    }


PLANS = {"full": full, "small": small}
