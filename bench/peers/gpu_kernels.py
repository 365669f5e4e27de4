#!/usr/bin/env python3
"""Times PyTorch's flash attention, forward and backward, and its copy on one GPU, at the shapes of bench_kernels --device cuda. Prints JSON: a
row for each. See README.md beside this file."""

import argparse
import json
import statistics
import sys
import time

from fsdp2_step import SKIP, positive
from gpu_step import flash_only, import_torch, synchronize

SHAPES = ["16,1024,12,64", "4,4096,12,64", "4,4096,12,128"]
COPIED, SETS_OF_CACHE, CPU_CACHE_BYTES = 30_740_800, 4, 1 << 14
SAMPLES, SAMPLE_S = 5, 0.02


def shape(text):
    numbers = tuple(positive(part) for part in text.split(","))
    if len(numbers) != 4:
        raise argparse.ArgumentTypeError(f"{text} is not batch,time,heads,head_dim")
    return numbers


def parse(arguments):
    parser = argparse.ArgumentParser(prog="gpu_kernels", description=__doc__.split(". ")[0])
    parser.add_argument("--shape", type=shape, action="append", metavar="B,T,H,D", help=f"of attention; repeatable; default: {'  '.join(SHAPES)}")
    parser.add_argument("--copy", type=positive, default=COPIED, help="elements that are copied")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="bf16")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: to try the program")
    options = parser.parse_args(arguments)
    options.shape = options.shape or [shape(text) for text in SHAPES]
    return options


def milliseconds(torch, device, calls):
    """Of a call: each sample is a row of them between two waits, 20 ms or more, on one set of operands after the other."""
    def run(count):
        synchronize(torch, device)
        start = time.monotonic()
        for i in range(count):
            calls[i % len(calls)]()
        synchronize(torch, device)
        return time.monotonic() - start

    run(len(calls))
    count = max(1, int(SAMPLE_S * len(calls) / max(run(len(calls)), 1e-6)) + 1)
    return [run(count) / count * 1e3 for _ in range(SAMPLES)]


class Bench:
    def __init__(self, torch, options):
        self.torch, self.options = torch, options
        self.dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32
        is_gpu = options.device == "cuda"
        self.cache_bytes = torch.cuda.get_device_properties(0).L2_cache_size if is_gpu else CPU_CACHE_BYTES

    def random(self, *sizes):
        return self.torch.rand(*sizes, device=self.options.device).sub_(0.5).to(self.dtype)

    def sets(self, bytes_of_call):
        return max(1, SETS_OF_CACHE * self.cache_bytes // bytes_of_call)

    def row(self, kernel, text, calls, bytes_of_call, flops):
        samples = milliseconds(self.torch, self.options.device, calls)
        ms = min(samples)
        return {"kernel": kernel, "shape": text, "dtype": self.options.dtype, "bytes": bytes_of_call, "flops": flops, "ms_min": ms,
                "ms_median": statistics.median(samples), "gb_per_s": bytes_of_call / ms * 1e-6, "gflops": flops / ms * 1e-6}

    def attention(self, dims):
        torch, (batch, length, heads, head_dim) = self.torch, dims
        text = f"{batch} x {length}, {heads} heads of {head_dim}"
        plane = batch * length * heads * head_dim
        product, sums = plane * length, 4 * batch * length * heads
        forward, backward = [], []
        call = torch.nn.functional.scaled_dot_product_attention
        with flash_only(torch, self.options):
            for _ in range(self.sets(4 * plane * self.dtype.itemsize)):
                qkv = [self.random(batch, heads, length, head_dim).requires_grad_() for _ in range(3)]
                out, dout = call(*qkv, is_causal=True), self.random(batch, heads, length, head_dim)
                forward.append(lambda qkv=[t.detach() for t in qkv]: call(*qkv, is_causal=True))
                backward.append(lambda out=out, qkv=qkv, dout=dout: torch.autograd.grad(out, qkv, dout, retain_graph=True))
            rows = [self.row("attention_forward", text, forward, 4 * plane * self.dtype.itemsize + sums, 2 * product),
                    self.row("attention_backward", text, backward, 8 * plane * self.dtype.itemsize + sums, 5 * product)]
        return rows

    def copy(self, elems):
        bytes_of_call = 2 * elems * self.dtype.itemsize
        pairs = [(self.random(elems), self.random(elems)) for _ in range(self.sets(bytes_of_call))]
        return self.row("copy", f"{elems}", [lambda a=a, b=b: a.copy_(b) for a, b in pairs], bytes_of_call, 0)


def main(arguments):
    options = parse(arguments)
    torch = import_torch(options.device)
    if torch is None:
        return SKIP
    bench = Bench(torch, options)
    rows = [bench.copy(options.copy)]
    for dims in options.shape:
        rows += bench.attention(dims)
    gpu = torch.cuda.get_device_name() if options.device == "cuda" else None
    print(json.dumps({"program": "gpu_kernels", "version": torch.__version__, "device": options.device, "gpu": gpu, "kernels": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
