#!/usr/bin/env python3
"""Times the training step of a GPT-2 in PyTorch on CPUs: the model, batch and optimizer of bench_step, its parameters sharded by FSDP2
over gloo. Starts one process for each rank. Prints one line, or one line of JSON. See README.md beside this file."""

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

SKIP = 77
# layers, heads, width, context, vocabulary as stored: rows up to a multiple of 128
PRESETS = {
    "tiny": (4, 4, 128, 256, 256),
    "124M": (12, 12, 768, 1024, 50304),
    "355M": (24, 16, 1024, 1024, 50304),
    "774M": (36, 20, 1280, 1024, 50304),
    "1.5B": (48, 25, 1600, 1024, 50304),
}


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def parse(arguments):
    parser = argparse.ArgumentParser(prog="fsdp2_step", description=__doc__.split(". ")[0])
    parser.add_argument("--preset", choices=PRESETS, default="124M")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32", help="of parameters and activations; reductions are f32")
    parser.add_argument("--micro-batch", type=positive, default=4, help="sequences in a micro-batch")
    parser.add_argument("--micro-batches", type=positive, default=1, help="micro-batches a rank and step")
    parser.add_argument("--sequence", type=positive, default=256, help="tokens in a sequence")
    parser.add_argument("--steps", type=positive, default=5, help="timed steps")
    parser.add_argument("--warmup", type=int, default=2, help="steps before them")
    parser.add_argument("--ranks", type=positive, default=1)
    parser.add_argument("--threads", type=positive, help="a rank; default: the CPUs divided by the ranks")
    parser.add_argument("--wrap", choices=["fsdp2", "none"], help="default: fsdp2, with one rank none")
    parser.add_argument("--check", action="store_true", help="only say whether it can run here")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args(arguments)
    options.threads = options.threads or max(1, len(os.sched_getaffinity(0)) // options.ranks)
    options.wrap = options.wrap or ("none" if options.ranks == 1 else "fsdp2")
    if options.wrap == "none" and options.ranks > 1:
        parser.error("--wrap none is for one rank")
    if options.sequence > PRESETS[options.preset][3]:
        parser.error(f"--sequence {options.sequence} is longer than the context of {options.preset}, {PRESETS[options.preset][3]}")
    return options


def import_torch():
    """PyTorch with what is needed of it, or None after one line that says what is missing."""
    try:
        import torch
        import torch.distributed as dist
        from torch.distributed.fsdp import fully_shard  # noqa: F401

        if dist.is_gloo_available():
            return torch
        reason = f"PyTorch {torch.__version__} was built without gloo"
    except (ImportError, OSError, ValueError) as error:  # what an incomplete installation raises
        reason = f"no PyTorch with FSDP2 ({str(error).splitlines()[0][:120]})"
    print(f"fsdp2_step: skipped: {reason}; bench/peers/README.md says how to install it", file=sys.stderr)
    return None


def make_model(torch, sizes):
    """`sizes`: as in PRESETS."""
    nn, functional = torch.nn, torch.nn.functional
    layers, heads, width, context, vocab = sizes

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            batch, length, _ = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
            return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Gpt2(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(context, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm = nn.LayerNorm(width)

        def forward(self, ids, targets):
            x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
            for block in self.blocks:
                x = block(x)
            logits = functional.linear(self.norm(x), self.tokens.weight)
            return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    torch.manual_seed(1337)
    model = Gpt2()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            deviation = 0.01 if name.startswith("positions") else 0.02
            writes_residual = ".out." in name or ".down." in name
            nn.init.normal_(parameter, std=deviation / (2 * layers) ** 0.5 if writes_residual else deviation)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    return model


def shard(torch, model, options):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cpu", (options.ranks,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if options.dtype == "bf16" else MixedPrecisionPolicy()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def make_optimizer(torch, model):
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)


class Trainer:
    def __init__(self, torch, options, rank):
        self.torch, self.options = torch, options
        self.model = make_model(torch, PRESETS[options.preset])
        self.parameters = sum(p.numel() for p in self.model.parameters())
        if options.wrap == "fsdp2":
            shard(torch, self.model, options)
        self.optimizer = make_optimizer(torch, self.model)
        self.random = torch.Generator().manual_seed(rank)

    def batch(self):
        vocab = 256 if self.options.preset == "tiny" else 50257
        ids = self.torch.randint(vocab, (self.options.micro_batch, self.options.sequence + 1), generator=self.random)
        return ids[:, :-1], ids[:, 1:].contiguous()

    def step(self):
        """The loss of this rank and the duration in milliseconds."""
        torch, options = self.torch, self.options
        torch.distributed.barrier()
        start, total = time.monotonic(), 0.0
        for _ in range(options.micro_batches):
            ids, targets = self.batch()  # within the time, as bench_step's are
            with torch.autocast("cpu", torch.bfloat16, enabled=options.wrap == "none" and options.dtype == "bf16"):
                loss = self.model(ids, targets) / options.micro_batches
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        torch.distributed.barrier()
        return total, (time.monotonic() - start) * 1e3


def own_memory():
    """Proportional set size now and the largest resident set so far, of this process, in bytes."""
    def field(path, key):
        lines = pathlib.Path(path).read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))

    return field("/proc/self/smaps_rollup", "Pss:"), field("/proc/self/status", "VmHWM:")


def run_rank(options, rank, store):
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) >= options.ranks * options.threads:
        os.sched_setaffinity(0, cpus[rank * options.threads : (rank + 1) * options.threads])
    torch = import_torch()
    if torch is None:
        return SKIP
    torch.set_num_threads(options.threads)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=options.ranks)
    trainer = Trainer(torch, options, rank)
    for _ in range(options.warmup):
        trainer.step()
    outcomes = [trainer.step() for _ in range(options.steps)]
    sums = torch.tensor([outcomes[-1][0] / options.ranks, *own_memory()], dtype=torch.float64)
    torch.distributed.all_reduce(sums)
    if rank == 0:
        report(torch, options, trainer.parameters, [ms for _, ms in outcomes], sums.tolist())
    torch.distributed.destroy_process_group()
    return 0


def report(torch, options, parameters, durations, sums):
    step_ms = statistics.median(durations)
    tokens = options.ranks * options.micro_batches * options.micro_batch * options.sequence
    result = {"program": "fsdp2_step", "version": torch.__version__, "wrap": options.wrap, "preset": options.preset, "parameters": parameters,
              "dtype": options.dtype, "ranks": options.ranks, "threads": options.threads, "micro_batch": options.micro_batch,
              "micro_batches": options.micro_batches, "sequence": options.sequence, "steps": options.steps, "loss": sums[0],
              "tokens_per_s": tokens / step_ms * 1e3, "step_ms": step_ms, "step_ms_min": min(durations), "pss_bytes": int(sums[1]),
              "peak_rss_bytes": int(sums[2])}
    if options.json:
        print(json.dumps(result))
    else:
        print(f"PyTorch {result['version']}, {options.preset} {options.dtype}, {options.ranks} x {options.threads} threads: "
              f"{result['tokens_per_s']:.1f} tokens/s, {step_ms:.1f} ms a step, loss {sums[0]:.4f}, PSS {sums[1] / 2**30:.2f} GiB, "
              f"peak RSS {sums[2] / 2**30:.2f} GiB")


def launch(options, arguments):
    """Every rank is this program again; when one fails the others are ended."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")}
        ranks = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: sys.exit(128 + number))  # by way of `finally`
        try:
            for rank in range(options.ranks):
                env.update(FSDP2_STEP_RANK=str(rank), FSDP2_STEP_STORE=folder + "/store")
                ranks.append(subprocess.Popen([sys.executable, __file__, *arguments], env=env, stdin=subprocess.DEVNULL))
            while any(process.poll() is None for process in ranks) and not any(process.poll() for process in ranks):
                time.sleep(0.05)
        finally:
            for process in ranks:
                if process.poll() is None:
                    process.kill()
                process.wait()
        return next((process.returncode for process in ranks if process.returncode > 0), 1 if any(p.returncode for p in ranks) else 0)


def main(arguments):
    options = parse(arguments)
    rank = os.environ.get("FSDP2_STEP_RANK")
    if rank is not None:
        return run_rank(options, int(rank), os.environ["FSDP2_STEP_STORE"])
    if import_torch() is None:  # told once, before any rank is
        return SKIP
    return 0 if options.check else launch(options, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
