#!/usr/bin/env python3
"""Writes tests/fixtures/tensors/golden.json.gz: what llama.cpp computes for the models of
tests/fixtures/arch with a scale, a bias, or both beside one of their tensors, without one of
them, and with one that another of the models has.

    LLAMA_CPP_LIB_PATH=…/build/bin tensors_reference.py

needs what `keys_reference.py` needs. Of each part of a layer the first tensor is tried. The
file has `results` as that of `keys_reference.py`, and `variants`: `[model, tensor, kinds, result]`.
Kinds are none for the model itself, some of `scale` and `bias`, which go beside a tensor, or
`removed` or `added`. A scale has the numbers 0.5, 4, 2, 0.5, … (one number, or one for each
expert), a bias `(place · 7 mod 5) / 8 - 0.25` at each place, and what is added as much plus 1, in
the shape that `shapes` has for it. The result is null where the file is refused.
"""

import ctypes
import gzip
import json
import math
import re
import sys

import llama_cpp

from keys_reference import CONTEXT, FIXTURES, POSITIONS, PROBES, TOKENS, Model, log, result


def scale(name, shape):
    count = shape[2] if len(shape) == 3 else 1
    return f"{name}.scale", [count], [[0.5, 4.0, 2.0][place % 3] for place in range(count)]


def numbers(shape, least):
    return [(place * 7 % 5) / 8 + least for place in range(math.prod(shape))]


def bias(name, shape):
    shape = shape[1:] or [1]
    return f"{name}.bias", shape, numbers(shape, -0.25)


def first_of_each(tensors):
    """The first tensor of each part of a layer, by its name in the first layer."""
    found = {}
    for tensor in tensors:
        found.setdefault(re.sub(r"^blk\.\d+", "blk.0", tensor), tensor)
    return found


def main():
    llama_cpp.llama_log_set(log, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    results, places, listed = [], {}, []

    def compute(model, name, kinds, added=(), removed=None):
        found, _ = result(model.changed([], added, removed))
        place = None
        if found is not None:
            place = places.setdefault(json.dumps(found), len(results))
            if place == len(results):
                results.append(found)
        listed.append([model_name, name, kinds, place])

    paths = sorted((FIXTURES / "arch").glob("*.gguf"))
    models = {path.stem: Model(path) for path in paths}
    shapes = {}
    for model in models.values():
        for name, tensor in first_of_each(model.shapes).items():
            shapes.setdefault(name, model.shapes[tensor])
    for model_name, model in models.items():
        compute(model, "", [])
        own = first_of_each(model.shapes)
        for tensor in own.values():
            compute(model, tensor, ["removed"], removed=tensor)
        for name, shape in shapes.items():
            if name not in own:
                compute(model, name, ["added"], [(name, shape, numbers(shape, 0.75))])
        for tensor in own.values():
            name, _, kind = tensor.rpartition(".")
            if kind != "weight":
                continue
            shape = model.shapes[tensor]
            may_have_bias = f"{name}.bias" not in model.shapes
            compute(model, name, ["scale"], [scale(name, shape)])
            if may_have_bias:
                compute(model, name, ["bias"], [bias(name, shape)])
                compute(model, name, ["scale", "bias"], [scale(name, shape), bias(name, shape)])
        print(model_name, len(listed), len(results), file=sys.stderr)
    golden = {
        "tokens": TOKENS, "positions": POSITIONS, "probe_ids": PROBES, "context": CONTEXT,
        "shapes": shapes, "results": results, "variants": listed,
    }
    folder = FIXTURES / "tensors"
    folder.mkdir(exist_ok=True)
    with gzip.GzipFile(folder / "golden.json.gz", "wb", mtime=0) as file:
        file.write(json.dumps(golden, separators=(",", ":")).encode())


if __name__ == "__main__":
    main()
