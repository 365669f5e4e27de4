#!/usr/bin/env python3
"""Makes folder/: ../huggingface/qwen2 as bitsandbytes saves it in NF4, layer 0 with f32 magnitudes, layer 1 with magnitudes of 8 bits; and decoded.json,
the SHA-256 of what it decodes of each tensor, in f32.

    pip install torch numpy safetensors bitsandbytes    (made with torch 2.15.0 and bitsandbytes 0.50.2, on the processor)
    python3 make_folder.py
"""

import hashlib
import json
import pathlib

import bitsandbytes.functional as bnb
import torch
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).parent
GIVEN = HERE.parent / "huggingface" / "qwen2"


def main():
    saved, decoded = {}, {}
    for name, tensor in load_file(GIVEN / "model.safetensors").items():
        tensor = tensor.float().contiguous()
        if ".layers." not in name or tensor.dim() < 2:
            saved[name] = tensor
        else:
            codes, state = bnb.quantize_4bit(tensor, blocksize=64, quant_type="nf4", compress_statistics=".layers.1." in name)
            saved[name] = codes
            saved |= {f"{name}.{key}": value.contiguous() for key, value in state.as_dict(packed=True).items()}
            state.shape = torch.Size((tensor.numel() // 64, 64))  # rows that are no multiple of a block are decoded wrongly on the processor
            tensor = bnb.dequantize_4bit(codes, state)
        decoded[name] = hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()
    folder = HERE / "folder"
    folder.mkdir(exist_ok=True)
    save_file(saved, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((GIVEN / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4",
                                     "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": "float32", "bnb_4bit_quant_storage": "uint8"}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "decoded.json").write_text(json.dumps(decoded, indent=2) + "\n")


if __name__ == "__main__":
    main()
