#!/usr/bin/env python3
"""Writes tests/fixtures/beside/golden.json.gz: what llama.cpp computes for the models of
tests/fixtures/arch with a scale, a bias, or both beside one of their tensors.

    LLAMA_CPP_LIB_PATH=…/build/bin beside_reference.py

needs what `keys_reference.py` needs. Of each part of a layer the first tensor is tried. The
file has `results` as that of `keys_reference.py`, and `variants`: `[model, tensor, kinds, result]`,
where a tensor `X` means `X.weight`, kinds are of `scale` and `bias`, and the first variant of a
model has neither. A scale has the numbers 0.5, 4, 2, 0.5, … (one number, or one for each expert),
a bias `(place · 7 mod 5) / 8 - 0.25` at each place. The result is null where the file is refused.
"""

import ctypes
import gzip
import json
import sys

import llama_cpp

from keys_reference import CONTEXT, FIXTURES, POSITIONS, PROBES, TOKENS, Model, log, result


def scale(name, shape):
    count = shape[2] if len(shape) == 3 else 1
    return f"{name}.scale", [count], [[0.5, 4.0, 2.0][place % 3] for place in range(count)]


def bias(name, shape):
    shape = shape[1:] or [1]
    count = shape[0] * (shape[1] if len(shape) == 2 else 1)
    return f"{name}.bias", shape, [(place * 7 % 5) / 8 - 0.25 for place in range(count)]


def main():
    llama_cpp.llama_log_set(log, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    results, places, listed = [], {}, []

    def compute(model, name, kinds, added):
        found, _ = result(model.changed([], added))
        place = None
        if found is not None:
            place = places.setdefault(json.dumps(found), len(results))
            if place == len(results):
                results.append(found)
        listed.append([model_name, name, kinds, place])

    for path in sorted((FIXTURES / "arch").glob("*.gguf")):
        model_name, model = path.stem, Model(path)
        compute(model, "", [], [])
        parts = {}
        for tensor, shape in model.shapes.items():
            name, _, kind = tensor.rpartition(".")
            if kind == "weight":
                parts.setdefault(name.split(".")[-1], (name, shape))
        for name, shape in parts.values():
            may_have_bias = f"{name}.bias" not in model.shapes
            compute(model, name, ["scale"], [scale(name, shape)])
            if may_have_bias:
                compute(model, name, ["bias"], [bias(name, shape)])
                compute(model, name, ["scale", "bias"], [scale(name, shape), bias(name, shape)])
        print(model_name, len(listed), len(results), file=sys.stderr)
    golden = {
        "tokens": TOKENS, "positions": POSITIONS, "probe_ids": PROBES, "context": CONTEXT,
        "results": results, "variants": listed,
    }
    folder = FIXTURES / "beside"
    folder.mkdir(exist_ok=True)
    with gzip.GzipFile(folder / "golden.json.gz", "wb", mtime=0) as file:
        file.write(json.dumps(golden, separators=(",", ":")).encode())


if __name__ == "__main__":
    main()
