#!/usr/bin/env python3
"""Writes tests/fixtures/scales/golden.json: what llama.cpp does with a tensor `X.scale`, `X.bias`
or both beside each matrix `X.weight` of the models of tests/fixtures/arch.

    LLAMA_CPP_LIB_PATH=…/build/bin scales_reference.py

takes a CPU build of llama.cpp; the package `llama_cpp` (its ctypes bindings) has to be importable.
Per architecture and part of a layer the file has

- `scale`: `multiplies` where the logits are those of multiplied weights, `ignored` where they are
  those without the scale, `refused` where llama.cpp does not load the file;
- `bias`: `adds`, `ignored` or `refused`;
- `both`, where the scale multiplies and the bias adds: what is multiplied then, the `product` of
  the weights or its `sum` with the bias; `refused` where llama.cpp does not run such a file.
"""

import ctypes
import json
import os
import struct
import sys

import numpy as np

from keys_reference import FIXTURES, Model, log, logits

import llama_cpp

FACTORS = [0.5, 4.0, 2.0]
F32 = 0


class Tensors(Model):
    """A GGUF file that tensors can be added to and changed in."""

    def __init__(self, path):
        super().__init__(path)
        self.at = self.data.index(self.descriptions)
        self.places = {}
        for _ in range(self.tensors):
            name = self.string()
            dims = [self.number("Q") for _ in range(self.number("I"))]
            kind, offset = self.number("I"), self.number("Q")
            self.places[name] = (dims, kind, offset)

    def values(self, name):
        dims, kind, offset = self.places[name]
        assert kind == F32, name
        return np.frombuffer(self.weights, "<f4", int(np.prod(dims)), offset)

    def with_tensors(self, tensors):
        """The file with these tensors (dimensions, values) added, or in place of its own."""
        descriptions, weights, count = self.descriptions, bytearray(self.weights), self.tensors
        for name, (dims, values) in tensors.items():
            data = np.asarray(values, "<f4").tobytes()
            if name in self.places:
                offset = self.places[name][2]
                weights[offset:offset + len(data)] = data
                continue
            weights += bytes(-len(weights) % 32)
            descriptions += struct.pack("<Q", len(name)) + name.encode()
            descriptions += struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, F32, len(weights))
            weights += data
            count += 1
        out = b"GGUF" + struct.pack("<IQQ", 3, count, len(self.fields))
        for key, field in self.fields.items():
            out += struct.pack("<Q", len(key.encode())) + key.encode() + field
        out += descriptions
        return out + bytes(-len(out) % 32) + bytes(weights)


def result(data):
    """The bits of the logits, or None where llama.cpp refuses the file or aborts."""
    path = f"/dev/shm/scales-{os.getpid()}.gguf"
    with open(path, "wb") as file:
        file.write(data)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        rows = logits(path)
        os.write(writing, b"" if rows is None else rows.tobytes())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        bits = pipe.read()
    os.waitpid(child, 0)
    os.unlink(path)
    return bits or None


def answers(model, matrix, plain):
    """What llama.cpp does with a scale, a bias and both beside a matrix."""
    weight, scale, bias = (f"{matrix}.{kind}" for kind in ["weight", "scale", "bias"])
    dims = model.places[weight][0]
    count = dims[2] if len(dims) == 3 else 1
    factors = np.array([FACTORS[i % len(FACTORS)] for i in range(count)])
    scales = {scale: ([count], factors)}
    weights = model.values(weight).reshape(count, -1) * factors[:, None]
    multiplied = {weight: (dims, weights)}
    bias_dims = dims[1:] or [1]
    values = np.arange(np.prod(bias_dims)) * 7 % 5 / 8 - 0.25
    biases = {bias: (bias_dims, values)}

    def kind(found, done):
        return {None: "refused", plain: "ignored"}.get(found, done)

    found = result(model.with_tensors(scales))
    answer = {
        "scale": kind(found, "multiplies"),
        "bias": kind(result(model.with_tensors(biases)), "adds"),
    }
    if answer["scale"] == "multiplies":
        assert found == result(model.with_tensors(multiplied)), scale
        if answer["bias"] == "adds":
            answer["both"] = both(model, scales, multiplied, biases)
    return answer


def both(model, scales, multiplied, biases):
    """What a scale multiplies where there is a bias, too."""
    found = result(model.with_tensors(scales | biases))
    if found is None:
        return "refused"
    (bias, (dims, values)), = biases.items()
    (_, (count, factors)), = scales.items()
    of_sum = {bias: (dims, values.reshape(count[0], -1) * factors[:, None])}
    kinds = {
        result(model.with_tensors(multiplied | biases)): "product",
        result(model.with_tensors(multiplied | of_sum)): "sum",
    }
    return kinds[found]


def main():
    llama_cpp.llama_log_set(log, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    golden = {}
    for path in sorted((FIXTURES / "arch").glob("*.gguf")):
        model = Tensors(path)
        plain = result(model.with_tensors({}))
        parts = golden.setdefault(model.architecture, {})
        for name in model.places:
            if name.endswith(".weight"):
                matrix = name.removesuffix(".weight")
                part = matrix.split(".", 2)[2] if matrix.startswith("blk.") else matrix
                answer = answers(model, matrix, plain)
                # Layers that are alike are treated alike.
                assert parts.setdefault(part, answer) == answer, (path, matrix)
        print(path.name, file=sys.stderr)
    lines = [f' "{architecture}": {{\n' + ",\n".join(
        f'  "{part}": {json.dumps(answer)}' for part, answer in sorted(parts.items())
    ) + "\n }" for architecture, parts in sorted(golden.items())]
    target = FIXTURES / "scales" / "golden.json"
    target.write_text("{\n" + ",\n".join(lines) + "\n}\n")


main()
