#!/usr/bin/env python3
"""Makes the files of this folder: numbers, and what bitsandbytes makes of them in NF4, 64 to a block.

    pip install torch numpy bitsandbytes    (made with torch 2.15.0 and bitsandbytes 0.50.2, on the processor)
    python3 make_blocks.py

numbers.f32: blocks of 64; codes.bin: two a byte; absmax.f32: one a block; decoded.f32 and decoded.bf16.
"""

import pathlib

import bitsandbytes.functional as bnb
import numpy
import torch

BLOCK = 64


def numbers():
    """Of all sizes, and what is at the edge: zeros, nearly nothing, the bounds between two values."""
    generator = torch.Generator().manual_seed(7)
    blocks = [torch.randn(BLOCK, generator=generator) * 10.0 ** (i % 9 - 6) for i in range(18)]
    blocks += [torch.randn(BLOCK, generator=generator).to(torch.bfloat16).float() for _ in range(6)]
    values = bnb.get_4bit_type("nf4", device="cpu")
    bounds = (values[:-1] + values[1:]) / 2
    at_bounds = torch.cat([bounds, torch.nextafter(bounds, torch.tensor(2.0)), torch.nextafter(bounds, torch.tensor(-2.0)), values])
    blocks.append(torch.nn.functional.pad(at_bounds, (0, BLOCK - at_bounds.numel())))
    blocks.append(-blocks[-1] * 0.37)
    blocks += [torch.zeros(BLOCK), torch.full((BLOCK,), -3.0), torch.randn(BLOCK, generator=generator) * 1e-39]
    blocks.append(torch.nn.functional.pad(torch.tensor([3.0e38, -1.0e38]), (0, BLOCK - 2)))
    blocks += [torch.rand(BLOCK, generator=generator) * 0.01 + 1, torch.randn(BLOCK, generator=generator) ** 5]
    for most in torch.rand(6, generator=generator) + 0.5:  # what multiplies by 1 / most, and what divides, round these otherwise
        near = [bounds * most]
        for toward in (2.0, -2.0):
            near.append(torch.nextafter(near[0], torch.tensor(toward)))
        near.append(torch.nextafter(near[1], torch.tensor(2.0)))
        blocks.append(torch.nn.functional.pad(torch.cat([most.view(1), *near]), (0, BLOCK - 1 - 4 * bounds.numel())))
    return torch.cat(blocks)


def main():
    folder = pathlib.Path(__file__).parent
    given = numbers()
    # One row a block, so that no block is a shorter last one.
    codes, state = bnb.quantize_4bit(given.view(-1, BLOCK), blocksize=BLOCK, quant_type="nf4", compress_statistics=False)
    decoded = bnb.dequantize_4bit(codes, state)
    state.dtype = torch.bfloat16
    in_bf16 = bnb.dequantize_4bit(codes, state)
    given.numpy().tofile(folder / "numbers.f32")
    codes.reshape(-1).numpy().tofile(folder / "codes.bin")
    state.absmax.numpy().tofile(folder / "absmax.f32")
    decoded.reshape(-1).numpy().tofile(folder / "decoded.f32")
    in_bf16.reshape(-1).view(torch.int16).numpy().astype(numpy.int16).tofile(folder / "decoded.bf16")


if __name__ == "__main__":
    main()
