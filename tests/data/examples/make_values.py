#!/usr/bin/env python3
"""What the examples of the documentation compute, by PyTorch in f64: the losses of 20 steps, and of an evaluation behind them. Weights and data follow
from formulas (`plain`), as in tests/examples/examples_test.cpp. A batch is cut into as many parts as there are ranks, whose losses are averaged.
Usage: make_values.py [NAME...]   (writes expected.json beside itself, of these examples or all; needs torch)"""

import json
import math
import pathlib
import sys

import torch
import torch.nn.functional as F

STEPS = 20
SCHEDULES = [(1, 1), (2, 2), (4, 4), (2, 4), (4, 1)]  # ranks of the first ten steps, and of the rest
F64 = torch.float64


def fnv(name, bits=32):
    value, prime = (0x811C9DC5, 0x01000193) if bits == 32 else (0xCBF29CE484222325, 0x100000001B3)
    for byte in name.encode():
        value = (value ^ byte) * prime % 2**bits
    return value


def hashes(name, count, first=0):
    x = (torch.arange(first, first + count, dtype=torch.int64) * 0x9E3779B1 + fnv(name)) & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    x = ((x ^ (x >> 13)) * 0x2C1B3C6D) & 0xFFFFFFFF
    return x ^ (x >> 16)


def plain(name, count, first=0):
    """In [-1, 1), exact in f32."""
    return ((hashes(name, count, first) & 0xFFFF).to(F64) - 32768) / 32768


def numbers(name, shape, step):
    """Of a step's global batch."""
    count = math.prod(shape)
    return plain(name, count, step * count).reshape(shape)


def choices(name, shape, step, of):
    count = math.prod(shape)
    return (hashes(name, count, step * count) % of).reshape(shape)


class Net:
    """Parameters by name, in the order of the model. A name without decay is a bias, or has one dim."""

    def __init__(self, shapes, undecayed=()):
        self.parameters = {}
        for name, shape in shapes.items():
            count = math.prod(shape)
            if name.endswith("bias"):
                centre, scale = 0.0, 0.125
            elif len(shape) == 1:
                centre, scale = 1.0, 0.25
            else:
                centre, scale = 0.0, 1 / torch.tensor(count // shape[0], dtype=torch.float32).sqrt().item()
            scale = torch.tensor(scale, dtype=torch.float32)
            values = torch.tensor(centre, dtype=torch.float32) + scale * plain(name, count).float()
            self.parameters[name] = values.to(F64).reshape(shape).requires_grad_()
        self.undecayed = set(undecayed) | {name for name, shape in shapes.items() if len(shape) == 1}

    def __getitem__(self, name):
        return self.parameters[name]

    def linear(self, name, x):
        return F.linear(x, self[name + ".weight"], self[name + ".bias"])

    def norm(self, name, x):
        return F.layer_norm(x, x.shape[-1:], self[name + ".weight"], self[name + ".bias"])

    def adamw(self, lr, weight_decay, betas=(0.9, 0.95), frozen=(), slow=()):
        groups = []
        for name, parameter in self.parameters.items():
            if any(name.startswith(prefix) for prefix in frozen):
                parameter.requires_grad_(False)
                continue
            scale = 0.1 if any(name.startswith(prefix) for prefix in slow) else 1
            groups.append({"params": [parameter], "lr": lr * scale, "weight_decay": 0 if name in self.undecayed else weight_decay})
        return torch.optim.AdamW(groups, betas=betas, eps=1e-8)

    def step(self, optimizer, loss):
        trained = [p for group in optimizer.param_groups for p in group["params"]]
        for p, grad in zip(trained, torch.autograd.grad(loss, trained)):
            p.grad = grad
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()


def linear_shapes(name, inner, outer):
    return {name + ".weight": (outer, inner), name + ".bias": (outer,)}


class Example:
    """batch(step, ranks): tensors whose outermost dim is cut into the ranks' parts."""

    lr, weight_decay = 0.01, 0.01

    def __init__(self):
        self.optimizer = self.net.adamw(self.lr, self.weight_decay)

    def parts(self, step, ranks):
        return zip(*(tensor.chunk(ranks) for tensor in self.batch(step, ranks)))

    def mean_loss(self, step, ranks, trains):
        return sum(self.loss(step, trains, *part) for part in self.parts(step, ranks)) / ranks

    def train(self, step, ranks):
        loss = self.mean_loss(step, ranks, True)
        self.net.step(self.optimizer, loss)
        return loss.item()

    def evaluate(self, ranks):
        with torch.no_grad():
            return self.mean_loss(1000, ranks, False).item()


class MlpClassifier(Example):
    rows = 48

    def __init__(self):
        self.net = Net(linear_shapes("in", 2, 64) | linear_shapes("middle", 64, 64) | linear_shapes("out", 64, 3))
        super().__init__()

    def batch(self, step, ranks):
        return numbers("places", (self.rows, 2), step), choices("arms", (self.rows,), step, 3)

    def loss(self, step, trains, places, arms):
        hidden = torch.relu(self.net.linear("middle", torch.relu(self.net.linear("in", places))))
        return F.cross_entropy(self.net.linear("out", hidden), arms)


class FineTune(Example):
    rows = 48

    def __init__(self):
        self.net = Net(linear_shapes("in", 2, 64) | linear_shapes("middle", 64, 64) | linear_shapes("head", 64, 1))
        self.optimizer = self.net.adamw(0.01, 0.1, frozen=["in."], slow=["middle."])

    def batch(self, step, ranks):
        return numbers("places", (self.rows, 2), step), numbers("distances", (self.rows, 1), step)

    def loss(self, step, trains, places, distances):
        hidden = torch.relu(self.net.linear("middle", torch.relu(self.net.linear("in", places))))
        return F.mse_loss(self.net.linear("head", hidden), distances)


class ConvNet(Example):
    rows = 24

    def __init__(self):
        self.net = Net({"first.weight": (8, 1, 3, 3), "first.bias": (8,), "norm.weight": (8,), "norm.bias": (8,), "second.weight": (16, 8, 3, 3),
                        "second.bias": (16,)} | linear_shapes("out", 64, 3))
        self.mean, self.variance, self.seen = torch.zeros(8, dtype=F64), torch.ones(8, dtype=F64), []
        super().__init__()

    def batch(self, step, ranks):
        return numbers("pixels", (self.rows, 1, 12, 12), step), choices("kinds", (self.rows,), step, 3), torch.arange(self.rows)

    def normalized(self, x, trains):
        weight, bias = self.net["norm.weight"], self.net["norm.bias"]
        if not trains:
            return F.batch_norm(x, self.mean, self.variance, weight, bias)
        self.seen.append((x.detach().mean((0, 2, 3)), x.detach().var((0, 2, 3))))
        return F.batch_norm(x, None, None, weight, bias, training=True)

    def loss(self, step, trains, pixels, kinds, samples):
        x = F.conv2d(pixels, self.net["first.weight"], self.net["first.bias"], padding=1)
        x = F.max_pool2d(torch.relu(self.normalized(x, trains)), 2)
        x = F.max_pool2d(torch.relu(F.conv2d(x, self.net["second.weight"], self.net["second.bias"])), 2).flatten(1)
        if trains:
            x = x * kept("drop", 0.2, step, samples, x.shape[1]) / 0.8
        return F.cross_entropy(self.net.linear("out", x), kinds)

    def train(self, step, ranks):
        self.seen = []
        loss = super().train(step, ranks)
        mean, variance = (sum(values) / ranks for values in zip(*self.seen))
        self.mean, self.variance = 0.9 * self.mean + 0.1 * mean, 0.9 * self.variance + 0.1 * variance
        return loss


def mix64(x):
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def mix32(x):
    x = (x ^ (x >> 16)) * 0x85EBCA6B % 2**32
    x = (x ^ (x >> 13)) * 0xC2B2AE35 % 2**32
    return x ^ (x >> 16)


def kept(path, probability, step, samples, width, seed=1):
    """(samples, width): 1 where dropout keeps an element of these samples of the step; as documented in kernels/dropout_random.h."""
    place = mix64(fnv(path, 64))
    key = mix64(mix64(seed ^ mix64(step)) ^ mix64(~place % 2**64))
    threshold = int(torch.tensor(probability, dtype=torch.float32).item() * 2**32)

    def is_kept(index):
        first = mix32(((index % 2**32) * 0x9E3779B9 + key % 2**32) % 2**32)
        return mix32(first ^ mix32(((index >> 32) + (key >> 32)) % 2**32)) >= threshold

    return torch.tensor([[float(is_kept(sample * width + i)) for i in range(width)] for sample in samples.tolist()], dtype=F64)


class Lstm(Example):
    weight_decay = 0.0
    width, time, rows = 64, 24, 8

    def __init__(self):
        self.net = Net({"letters.weight": (128, 64)} | linear_shapes("lstm.gates", 128, 256) | linear_shapes("head", 64, 128))
        super().__init__()

    def batch(self, step, ranks):
        return choices("ids", (self.rows, self.time), step, 128), choices("next", (self.rows, self.time), step, 128)

    def loss(self, step, trains, ids, following):
        x = self.net["letters.weight"][ids]
        h = c = torch.zeros(ids.shape[0], self.width, dtype=F64)
        outputs = []
        for t in range(self.time):
            forget, take, new, show = self.net.linear("lstm.gates", torch.cat([x[:, t], h], 1)).chunk(4, 1)
            c = torch.sigmoid(forget + 1) * c + torch.sigmoid(take) * torch.tanh(new)
            h = torch.sigmoid(show) * torch.tanh(c)
            outputs.append(h)
        logits = self.net.linear("head", torch.stack(outputs, 1))
        return F.cross_entropy(logits.flatten(0, 1), following.flatten())


class CustomTrainer(Example):
    """Of 32 rows on each rank."""

    lr, weight_decay = 0.05, 0.1

    def __init__(self):
        self.net = Net({"scale": (32,), "head": (32, 32)})
        super().__init__()

    def batch(self, step, ranks):
        return numbers("rows", (32 * ranks, 32), step), choices("ids", (32 * ranks,), step, 32)

    def loss(self, step, trains, rows, ids):
        return F.cross_entropy(F.linear(rows * rows * self.net["scale"], self.net["head"]), ids)


class CustomOp(Example):
    rows = 48

    def __init__(self):
        self.net = Net(linear_shapes("in", 1, 64) | linear_shapes("middle", 64, 64) | linear_shapes("out", 64, 1))
        self.optimizer = self.net.adamw(0.01, 0.0)

    def batch(self, step, ranks):
        return numbers("places", (self.rows, 1), step), numbers("heights", (self.rows, 1), step)

    def loss(self, step, trains, places, heights):
        x = places
        for layer in ("in", "middle"):
            x = self.net.linear(layer, x)
            x = x + torch.sin(x) ** 2
        return F.mse_loss(self.net.linear("out", x), heights)


class OwnOptimizer(Example):
    rows = 48

    def __init__(self):
        self.net = Net(linear_shapes("in", 2, 32) | linear_shapes("out", 32, 2))
        self.optimizer = torch.optim.Adagrad(self.net.parameters.values(), lr=0.1, eps=1e-6)

    def batch(self, step, ranks):
        return numbers("places", (self.rows, 2), step), choices("kinds", (self.rows,), step, 2)

    def loss(self, step, trains, places, kinds):
        return F.cross_entropy(self.net.linear("out", torch.relu(self.net.linear("in", places))), kinds)


class Transformer(Example):
    """Of two blocks, and a norm behind them."""

    lr, weight_decay = 0.003, 0.1
    rows, heads = 8, 4

    def body_shapes(self, width):
        shapes = {}
        for i in range(2):
            block = f"blocks.{i}."
            shapes |= {block + "norm1.weight": (width,), block + "norm1.bias": (width,)} | linear_shapes(block + "attention.qkv", width, 3 * width)
            shapes |= linear_shapes(block + "attention.out", width, width) | {block + "norm2.weight": (width,), block + "norm2.bias": (width,)}
            shapes |= linear_shapes(block + "mlp.up", width, 4 * width) | linear_shapes(block + "mlp.down", 4 * width, width)
        return shapes | {"norm.weight": (width,), "norm.bias": (width,)}

    def body(self, x, is_causal):
        for i in range(2):
            x = self.block(f"blocks.{i}.", x, is_causal)
        return self.net.norm("norm", x)

    def block(self, name, x, is_causal):
        batch, tokens, width = x.shape
        qkv = self.net.linear(name + "attention.qkv", self.net.norm(name + "norm1", x))
        q, k, v = (part.reshape(batch, tokens, self.heads, -1).transpose(1, 2) for part in qkv.chunk(3, 2))
        gathered = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal).transpose(1, 2).reshape(batch, tokens, width)
        x = x + self.net.linear(name + "attention.out", gathered)
        hidden = F.gelu(self.net.linear(name + "mlp.up", self.net.norm(name + "norm2", x)), approximate="tanh")
        return x + self.net.linear(name + "mlp.down", hidden)


class VisionTransformer(Transformer):
    width = 32

    def __init__(self):
        width = self.width
        shapes = {"summary": (1, 1, width), "places": (1, 17, width), "patches.weight": (width, 1, 4, 4), "patches.bias": (width,)}
        shapes |= self.body_shapes(width) | linear_shapes("head", width, 4)
        self.net = Net(shapes, undecayed=["summary", "places"])
        super().__init__()

    def batch(self, step, ranks):
        return numbers("pixels", (self.rows, 1, 16, 16), step), choices("kinds", (self.rows,), step, 4)

    def loss(self, step, trains, pixels, kinds):
        patches = F.conv2d(pixels, self.net["patches.weight"], self.net["patches.bias"], stride=4).flatten(2).transpose(1, 2)
        x = torch.cat([self.net["summary"].expand(len(pixels), 1, self.width), patches], 1) + self.net["places"]
        return F.cross_entropy(self.net.linear("head", self.body(x, False)[:, 0]), kinds)


class LanguageModel(Transformer):
    width, time, vocab = 64, 32, 256

    def __init__(self):
        self.net = Net({"tokens.weight": (self.vocab, self.width), "positions.weight": (self.time, self.width)} | self.body_shapes(self.width))
        super().__init__()

    def batch(self, step, ranks):
        return choices("ids", (self.rows, self.time), step, self.vocab), choices("next", (self.rows, self.time), step, self.vocab)

    def loss(self, step, trains, ids, following):
        x = self.body(self.net["tokens.weight"][ids] + self.net["positions.weight"], True)
        return F.cross_entropy(F.linear(x, self.net["tokens.weight"]).flatten(0, 1), following.flatten())


class TwoModels(Example):
    """The loss is the generator's."""

    rows = 16

    def __init__(self):
        self.generator = Net(linear_shapes("in", 4, 32) | linear_shapes("out", 32, 2))
        self.critic = Net(linear_shapes("in", 2, 32) | linear_shapes("out", 32, 1))
        self.generator_steps = self.generator.adamw(5e-3, 0.1, betas=(0.5, 0.95))
        self.critic_steps = self.critic.adamw(5e-3, 0.1, betas=(0.5, 0.95))

    @staticmethod
    def run(net, x):
        return net.linear("out", torch.relu(net.linear("in", x)))

    def batch(self, step, ranks):
        return numbers("noise", (self.rows, 4), step), numbers("circle", (self.rows, 2), step)

    def loss(self, step, trains, noise, circle):
        return F.softplus(-self.run(self.critic, self.run(self.generator, noise))).mean()

    def judged(self, noise, circle):
        made = self.run(self.generator, noise).detach()
        return F.softplus(-self.run(self.critic, circle)).mean() + F.softplus(self.run(self.critic, made)).mean()

    def train(self, step, ranks):
        self.critic.step(self.critic_steps, sum(self.judged(*part) for part in self.parts(step, ranks)) / ranks)
        loss = self.mean_loss(step, ranks, True)
        self.generator.step(self.generator_steps, loss)
        return loss.item()


def losses(example, first, then):
    model = example()
    found = [model.train(step, first if step < STEPS // 2 else then) for step in range(STEPS)]
    return found + [model.evaluate(then)]


def main():
    torch.set_num_threads(1)
    path = pathlib.Path(__file__).resolve().parent / "expected.json"
    expected = json.loads(path.read_text()) if sys.argv[1:] else {}
    examples = {"mlp_classifier": MlpClassifier, "fine_tune": FineTune, "conv_net": ConvNet, "lstm": Lstm, "two_models": TwoModels,
                "custom_trainer": CustomTrainer, "custom_op": CustomOp, "own_optimizer": OwnOptimizer, "vision_transformer": VisionTransformer,
                "language_model": LanguageModel}
    for name, example in examples.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        of = {f"{first} {then}": losses(example, first, then) for first, then in SCHEDULES}
        alone = of["1 1"]
        if all(abs(x - y) < 1e-11 * abs(y) for values in of.values() for x, y in zip(values, alone)):
            of = {"any": alone}  # the number of ranks changes rounding alone
        expected[name] = of
    lines = [json.dumps(name) + ": {\n" + ",\n".join(f"    {json.dumps(ranks)}: {json.dumps(values)}" for ranks, values in of.items()) + "\n  }"
             for name, of in expected.items()]
    path.write_text("{\n  " + ",\n  ".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
