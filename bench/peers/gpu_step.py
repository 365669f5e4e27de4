#!/usr/bin/env python3
"""Times the training step of a GPT-2 in PyTorch on one GPU: the model, batch and optimizer of bench_step, compiled, in bf16 by autocast, with
PyTorch's flash attention and its fused AdamW. Prints one line, or one line of JSON. See README.md beside this file."""

import argparse
import contextlib
import json
import pathlib
import re
import statistics
import struct
import sys
import time

from fsdp2_step import PRESETS, SKIP, make_model, make_optimizer, positive

PRODUCT_SIZE, PRODUCT_SAMPLES, SAMPLE_S = 8192, 4, 0.02


def parse(arguments):
    parser = argparse.ArgumentParser(prog="gpu_step", description=__doc__.split(". ")[0])
    parser.add_argument("--preset", choices=PRESETS, default="124M")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="bf16", help="of activations; parameters are f32 and cast where they are used")
    parser.add_argument("--micro-batch", type=positive, default=16, help="sequences in a micro-batch")
    parser.add_argument("--micro-batches", type=positive, default=1, help="micro-batches a step")
    parser.add_argument("--sequence", type=positive, default=1024, help="tokens in a sequence")
    parser.add_argument("--steps", type=positive, default=5, help="timed steps")
    parser.add_argument("--warmup", type=positive, default=3, help="steps before them; the first one compiles")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: to try the program")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--weights", metavar="FILE", help="only the loss of a model that train has saved (model.safetensors), on --tokens")
    parser.add_argument("--tokens", metavar="FILE", help="text whose bytes are the tokens, in windows of --sequence")
    parser.add_argument("--heads", type=positive, help="of the model in --weights")
    parser.add_argument("--check", action="store_true", help="only say whether it can run here")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args(arguments)
    if options.weights and not (options.tokens and options.heads):
        parser.error("--weights needs --tokens and --heads")
    if not options.weights and options.sequence > PRESETS[options.preset][3]:
        parser.error(f"--sequence {options.sequence} is longer than the context of {options.preset}, {PRESETS[options.preset][3]}")
    return options


def import_torch(device):
    """PyTorch, where it has such a device, or None after one line that says what is missing."""
    try:
        import torch

        if device == "cpu" or torch.cuda.is_available():
            return torch
        reason = f"PyTorch {torch.__version__} finds no GPU"
    except (ImportError, OSError, ValueError) as error:  # what an incomplete installation raises
        reason = f"no PyTorch ({str(error).splitlines()[0][:120]})"
    print(f"skipped: {reason}; bench/peers/README.md says how to install it", file=sys.stderr)
    return None


def flash_only(torch, options):
    """PyTorch's flash attention and no other, where it has one."""
    if options.device == "cpu" or options.dtype == "f32":
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(SDPBackend.FLASH_ATTENTION)


def synchronize(torch, device):
    if device == "cuda":
        torch.cuda.synchronize()


class Trainer:
    def __init__(self, torch, options):
        self.torch, self.options = torch, options
        self.model = make_model(torch, PRESETS[options.preset]).to(options.device)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        self.optimizer = make_optimizer(torch, self.model)
        self.run = self.model if options.no_compile else torch.compile(self.model)
        self.random = torch.Generator().manual_seed(0)

    def batch(self):
        vocab = 256 if self.options.preset == "tiny" else 50257
        ids = self.torch.randint(vocab, (self.options.micro_batch, self.options.sequence + 1), generator=self.random).to(self.options.device)
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def loss(self, ids, targets):
        with self.torch.autocast(self.options.device, self.torch.bfloat16, enabled=self.options.dtype == "bf16"), flash_only(self.torch, self.options):
            return self.run(ids, targets)

    def step(self):
        """The loss and the duration in milliseconds."""
        torch, options = self.torch, self.options
        synchronize(torch, options.device)
        start, losses = time.monotonic(), []
        batches = [self.batch() for _ in range(options.micro_batches)]  # within the time, as bench_step's are
        for ids, targets in batches:
            loss = self.loss(ids, targets) / options.micro_batches
            loss.backward()
            losses.append(loss.detach())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        synchronize(torch, options.device)
        return sum(loss.item() for loss in losses), (time.monotonic() - start) * 1e3


def product_gflops(torch, options):
    """The best rate of large products of random matrices, each sample a row of them; as bench_step measures its own."""
    size = PRODUCT_SIZE if options.device == "cuda" else 256
    dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32
    a, b = (torch.rand(size, size, device=options.device).sub_(0.5).to(dtype) for _ in range(2))
    best, count = 0.0, 1
    for transposed in (b, b.t()):
        for sample in range(PRODUCT_SAMPLES + 1):
            synchronize(torch, options.device)
            start = time.monotonic()
            for _ in range(count):
                torch.matmul(a, transposed)
            synchronize(torch, options.device)
            seconds = time.monotonic() - start
            if sample > 0:
                best = max(best, 2e-9 * size**3 * count / seconds)
            count = max(count, int(count * SAMPLE_S / max(seconds, 1e-6)) + 1) if sample <= 1 else count
    return best


def report(torch, options, trainer, outcomes, ceiling):
    layers, _, width, _, _ = PRESETS[options.preset]
    durations = [ms for _, ms in outcomes]
    step_ms = statistics.median(durations)
    tokens_per_s = options.micro_batches * options.micro_batch * options.sequence / step_ms * 1e3
    gflops = tokens_per_s * (6 * trainer.parameters + 6 * layers * width * options.sequence) * 1e-9
    is_gpu = options.device == "cuda"
    result = {"program": "gpu_step", "version": torch.__version__, "device": options.device, "gpu": torch.cuda.get_device_name() if is_gpu else None,
              "compiled": not options.no_compile, "preset": options.preset, "parameters": trainer.parameters, "dtype": options.dtype,
              "micro_batch": options.micro_batch, "micro_batches": options.micro_batches, "sequence": options.sequence, "steps": options.steps,
              "loss": outcomes[-1][0], "tokens_per_s": tokens_per_s, "step_ms": step_ms, "step_ms_min": min(durations), "gflops": gflops,
              "product_ceiling_gflops": ceiling, "pct_of_product_ceiling": 100 * gflops / ceiling,
              "peak_bytes": torch.cuda.max_memory_allocated() if is_gpu else None}
    if options.json:
        print(json.dumps(result))
    else:
        print(f"PyTorch {result['version']}, {result['gpu'] or 'CPU'}, {options.preset} {options.dtype}: {tokens_per_s:.1f} tokens/s, {step_ms:.2f} ms "
              f"a step, {result['pct_of_product_ceiling']:.1f} % of {ceiling:.0f} GFLOP/s, loss {result['loss']:.4f}")


def read_safetensors(torch, path):
    """{name: f32 tensor} of a file as `train` writes it."""
    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__":
            first, last = (8 + length + offset for offset in entry["data_offsets"])
            tensors[name] = torch.frombuffer(bytearray(data[first:last]), dtype=torch.float32).reshape(entry["shape"])
    return tensors


def peer_name(name):
    """What the model of these scripts calls a parameter of zshard's."""
    name = name.replace("token_embedding.", "tokens.").replace("position_embedding.", "positions.")
    return re.sub(r"\.(attention|mlp)\.", ".", name)


def loss_of_weights(torch, options):
    """The mean loss of the saved model over all windows of the text, and its number of parameters."""
    state = {peer_name(name): values for name, values in read_safetensors(torch, options.weights).items()}
    layers = 1 + max(int(name.split(".")[1]) for name in state if name.startswith("blocks."))
    vocab, width = state["tokens.weight"].shape
    model = make_model(torch, (layers, options.heads, width, state["positions.weight"].shape[0], vocab))
    model.load_state_dict(state)
    tokens = torch.tensor(list(pathlib.Path(options.tokens).read_bytes()))
    windows = (len(tokens) - 1) // options.sequence
    ids = tokens[: windows * options.sequence].view(windows, -1).to(options.device)
    targets = tokens[1 : windows * options.sequence + 1].view(windows, -1).to(options.device)
    with torch.no_grad():
        loss = model.to(options.device)(ids, targets).item()
    print(json.dumps({"program": "gpu_step", "loss": loss, "parameters": sum(p.numel() for p in model.parameters())}))
    return 0


def main(arguments):
    options = parse(arguments)
    torch = import_torch(options.device)
    if torch is None:
        return SKIP
    if options.check:
        return 0
    if options.weights:
        return loss_of_weights(torch, options)
    ceiling = product_gflops(torch, options)
    trainer = Trainer(torch, options)
    for _ in range(options.warmup):
        trainer.step()
    outcomes = [trainer.step() for _ in range(options.steps)]
    ceiling = max(ceiling, product_gflops(torch, options))
    report(torch, options, trainer, outcomes, ceiling)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
