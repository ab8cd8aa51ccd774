#!/usr/bin/env python3
"""Writes tests/fixtures/keys/golden.json.gz: what llama.cpp computes for the models of
tests/fixtures/arch when their metadata keys are changed, added and removed.

    LLAMA_CPP_LIB_PATH=…/build/bin keys_reference.py …/vendor/llama.cpp

takes llama.cpp's source and a CPU build of it; the package `llama_cpp` (its ctypes bindings)
has to be importable. The file has

- `keys`: per architecture the keys that its loader in llama.cpp reads, taken from the source;
- `results`: what variants have in common: the largest absolute logit, and for each of
  `positions` the argmax and the logits of `probe_ids`;
- `variants`: `[model, changes, result]`; a change is a key without its prefix, a type and a
  value, or the key alone where it is removed; the result is an index into `results`, or null
  where llama.cpp refuses the file or computes no numbers.

Files that llama.cpp refuses for their number of tensors are left out: that is no matter of keys.
"""

import ctypes
import gzip
import json
import os
import pathlib
import re
import resource
import signal
import struct
import sys

import numpy as np

os.environ["GGML_NO_BACKTRACE"] = "1"

import llama_cpp  # noqa: E402

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures"
TOKENS = [(5 + 37 * i) % 384 for i in range(40)]
POSITIONS = [5, 23, 39]
PROBES = [3, 51, 147, 243, 339]
CONTEXT = 256

# The file of each architecture in llama.cpp, and the models here.
SOURCES = {
    "llama": "llama", "qwen2": "qwen2", "qwen2moe": "qwen2moe", "qwen3": "qwen3",
    "qwen3moe": "qwen3moe", "gemma2": "gemma2", "gemma3": "gemma3", "phi3": "phi3",
    "olmoe": "olmoe", "granite": "granite", "granitemoe": "granite-moe",
    "glm4moe": "glm4-moe", "minimax-m2": "minimax-m2", "gpt-oss": "openai-moe",
    "lfm2": "lfm2", "lfm2moe": "lfm2moe", "qwen35moe": "qwen35moe", "deepseek2": "deepseek2",
}
MODELS = list(SOURCES) + ["mixtral", "llama-yarn-rope"]

# Keys that count or measure something.
COUNTS = [
    "context_length", "embedding_length", "block_count", "nextn_predict_layers",
    "feed_forward_length", "attention.head_count", "attention.head_count_kv",
    "attention.key_length", "attention.value_length", "rope.dimension_count",
    "rope.scaling.original_context_length", "expert_count", "expert_used_count",
    "expert_group_count", "expert_group_used_count", "expert_feed_forward_length",
    "expert_shared_feed_forward_length", "expert_shared_count", "leading_dense_block_count",
    "expert_gating_func", "attention.sliding_window", "attention.sliding_window_pattern",
    "attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa",
    "shortconv.l_cache", "ssm.conv_kernel", "ssm.inner_size", "ssm.state_size",
    "ssm.time_step_rank", "ssm.group_count", "full_attention_interval", "vocab_size",
    "attention.q_lora_rank", "attention.kv_lora_rank", "attention.key_length_mla",
    "attention.value_length_mla", "attention.temperature_length",
]

U32, I32, F32, BOOL, STR = 4, 5, 6, 7, 8
INTS, FLAGS = "i32s", "bools"


def one(suffix, kind, *values):
    return [[[suffix, kind, value]] for value in values]


def variants():
    """Changes to try on every model."""
    numbers = {
        "context_length": [256], "embedding_length": [16], "feed_forward_length": [32, 128, 0],
        "attention.head_count": [2, 8], "attention.head_count_kv": [1, 4],
        "attention.key_length": [4, 16], "attention.value_length": [4, 16],
        "rope.dimension_count": [2, 4, 16], "rope.scaling.original_context_length": [16, 0],
        "expert_count": [4], "expert_used_count": [1, 4, 0], "expert_group_count": [2],
        "expert_feed_forward_length": [16, 64, 0],
        "expert_shared_feed_forward_length": [16, 64, 0], "expert_shared_count": [2, 0],
        "leading_dense_block_count": [0, 2], "expert_gating_func": [0, 1, 2, 3, 4],
        "attention.sliding_window": [4, 16, 1000, 0],
        "attention.sliding_window_pattern": [0, 1, 2, 3],
        "attention.key_length_swa": [4, 8], "attention.value_length_swa": [4, 8],
        "rope.dimension_count_swa": [4, 8], "shortconv.l_cache": [2, 4],
        "ssm.conv_kernel": [3], "ssm.inner_size": [16], "ssm.state_size": [4],
        "ssm.time_step_rank": [2], "ssm.group_count": [4], "full_attention_interval": [1, 2, 4],
        "vocab_size": [154880], "attention.q_lora_rank": [16], "attention.kv_lora_rank": [8],
        "attention.key_length_mla": [8, 0], "attention.value_length_mla": [4, 0],
        "attention.temperature_length": [8], "pooling_type": [1], "moe_every_n_layers": [2],
        "interleave_moe_layer_step": [2], "nextn_predict_layers": [0],
        "attention.indexer.top_k": [4], "attention.shared_kv_layers": [1], "num_loops": [2],
    }
    floats = {
        "attention.layer_norm_rms_epsilon": [0.01], "rope.freq_base": [100.0, 500000.0],
        "rope.scale_linear": [2.0, 0.0], "rope.scaling.factor": [2.0, 0.0],
        "rope.scaling.attn_factor": [1.3], "rope.scaling.alpha": [2.0],
        "rope.freq_base_swa": [100.0, 10000.0], "attn_logit_softcapping": [2.0, 0.0],
        "final_logit_softcapping": [2.0, 0.0], "router_logit_softcapping": [2.0],
        "logit_scale": [2.0, 0.0], "residual_scale": [0.3, 0.0], "embedding_scale": [2.0, 0.0],
        "attention.scale": [0.5, 0.0], "attention.clamp_kqv": [0.01],
        "attention.max_alibi_bias": [8.0], "attention.output_scale": [0.5],
        "attention.value_scale": [0.5], "attention.layer_norm_epsilon": [0.01],
        "attention.temperature_scale": [0.3, 0.0], "expert_weights_scale": [0.5, 0.0],
        "rope.scaling.yarn_log_multiplier": [0.05, 0.0],
        "rope.scaling.yarn_ext_factor": [0.0], "rope.scaling.yarn_attn_factor": [2.0],
        "rope.scaling.yarn_beta_fast": [4.0], "rope.scaling.yarn_beta_slow": [2.0],
    }
    flags = ["attention.causal", "rope.scaling.finetuned", "expert_weights_norm",
             "use_parallel_residual", "swin_norm"]
    for suffix, values in numbers.items():
        yield from one(suffix, U32, *values)
    for suffix, values in floats.items():
        yield from one(suffix, F32, *values)
    for suffix in flags:
        yield from one(suffix, BOOL, False, True)
    yield from one("rope.scaling.type", STR, "none", "linear", "yarn", "longrope", "dynamic")
    yield from one("rope.dimension_sections", INTS,
                   [1, 1, 2, 0], [2, 1, 1, 0], [1, 1, 1, 1], [4, 0, 0, 0], [0, 0, 0, 0],
                   [2, 2, 0, 0], [1, 1, 0, 0], [2, 1, 1], [2, 1, 1, -1])
    yarn = [["rope.scaling.type", STR, "yarn"], ["rope.scaling.factor", F32, 4.0],
            ["rope.scaling.original_context_length", U32, 64]]
    yield yarn
    yield yarn + [["rope.scaling.attn_factor", F32, 1.3]]
    yield yarn + [["rope.freq_base_swa", F32, 300.0]]
    yield yarn + [["rope.scaling.yarn_log_multiplier", F32, 0.1]]
    for suffix, value in [("ext_factor", 0.0), ("attn_factor", 2.0), ("beta_fast", 4.0),
                          ("beta_slow", 2.0)]:
        yield yarn + [["rope.scaling.yarn_" + suffix, F32, value]]
    for kind in ["none", "linear", "longrope"]:
        yield [["rope.scaling.type", STR, kind], ["rope.scaling.factor", F32, 4.0]]
        yield [["rope.scaling.type", STR, kind], ["rope.scaling.factor", F32, 4.0],
               ["rope.scaling.attn_factor", F32, 1.3]]
    yield [["rope.scaling.factor", F32, 0.0], ["rope.scale_linear", F32, 4.0]]
    yield [["attention.temperature_scale", F32, 0.3], ["attention.temperature_length", U32, 4]]
    yield [["attention.temperature_scale", F32, 0.3], ["attention.temperature_length", U32, 0]]
    yield [["expert_group_count", U32, 2], ["expert_group_used_count", U32, 1]]
    yield [["expert_count", U32, 0], ["expert_used_count", U32, 0]]
    yield [["attention.sliding_window", U32, 4], ["attention.sliding_window_pattern", U32, 2]]
    yield [["attention.sliding_window", U32, 4], ["rope.freq_base_swa", F32, 300.0]]
    yield [["feed_forward_length", U32, 64], ["expert_feed_forward_length"],
           ["expert_shared_feed_forward_length"]]
    yield [["expert_weights_norm"], ["expert_weights_scale"]]
    yield [["attention.layer_norm_rms_epsilon"], ["rope.freq_base"]]


def by_layer(blocks):
    """Changes with a value for each block."""
    alternating = [i % 2 == 0 for i in range(blocks)]
    for suffix in ["attention.sliding_window_pattern", "attention.recurrent_layers"]:
        yield from one(suffix, FLAGS, alternating, [not flag for flag in alternating])
        yield from one(suffix, INTS, [1 - i % 2 for i in range(blocks)])
    yield [["attention.sliding_window", U32, 4],
           ["attention.sliding_window_pattern", FLAGS, alternating]]
    for suffix, value in [("feed_forward_length", 64), ("attention.head_count", 4),
                          ("attention.head_count_kv", 2), ("expert_used_count", 2),
                          ("expert_feed_forward_length", 32)]:
        yield from one(suffix, INTS, [value] * blocks, [value] * (blocks - 1) + [value // 2])


def counts(model, keys):
    """Integers at the ends of what a count may be, and one more than there are."""
    blocks = model.integer("block_count")
    for suffix in COUNTS:
        if suffix not in keys:
            continue
        found = model.integer(suffix)
        values = {0, 1, 2**31, 2**32 - 1, 1 if found is None else found + 1}
        if suffix in ("nextn_predict_layers", "leading_dense_block_count", "full_attention_interval"):
            values |= {blocks - 1, blocks, blocks + 1}
        if suffix.startswith("expert_"):
            values |= {(model.integer("expert_count") or 0) + 1}
        yield from one(suffix, U32, *sorted(values))
    if "expert_group_count" in keys:
        # Not all groups: that is no restriction, but llama.cpp refuses it.
        for used in [0, 3, 2**31, 2**32 - 1]:
            yield [["expert_group_count", U32, 2], ["expert_group_used_count", U32, used]]


class Model:
    """A GGUF file whose keys can be changed."""

    def __init__(self, path):
        self.data = path.read_bytes()
        self.at = 24
        tensors, count = struct.unpack_from("<QQ", self.data, 8)
        self.fields = {}
        for _ in range(count):
            key = self.string()
            start = self.at
            self.fields[key] = (start, self.skip(self.number("I")))
            self.fields[key] = self.data[start:self.at]
        self.shapes, places = {}, {}
        for _ in range(tensors):
            name, dims = self.string(), self.number("I")
            self.shapes[name] = [self.number("Q") for _ in range(dims)]
            places[name] = (self.number("I"), self.number("Q"))
        weights = self.data[-(-self.at // 32) * 32:]
        ends = sorted(offset for _, offset in places.values()) + [len(weights)]
        self.tensors = {
            name: (kind, weights[offset:min(end for end in ends if end > offset)])
            for name, (kind, offset) in places.items()
        }
        architecture = self.fields["general.architecture"]
        self.architecture = architecture[12:].decode()

    def number(self, kind):
        value = struct.unpack_from("<" + kind, self.data, self.at)[0]
        self.at += struct.calcsize(kind)
        return value

    def string(self):
        length = self.number("Q")
        self.at += length
        return self.data[self.at - length:self.at].decode(errors="replace")

    def skip(self, kind):
        if kind == STR:
            self.string()
        elif kind == 9:
            element, count = self.number("I"), self.number("Q")
            for _ in range(count):
                self.skip(element)
        else:
            self.at += {0: 1, 1: 1, 2: 2, 3: 2, 7: 1, 10: 8, 11: 8, 12: 8}.get(kind, 4)

    def integer(self, suffix):
        """The value of an integer key, if there is one number of it."""
        kind, *value = struct.unpack_from("<IIQ", self.fields.get(f"{self.architecture}.{suffix}", b"") + bytes(16))
        return value[0] if kind in (U32, I32) else None

    def changed(self, changes, added=(), removed=None):
        """The file with keys changed, with tensors of F32 added, as (name, shape, numbers), and
        with one removed."""
        fields = dict(self.fields)
        for suffix, *change in changes:
            key = f"{self.architecture}.{suffix}"
            fields.pop(key, None)
            if change:
                fields[key] = encoded(*change)
        tensors = {name: tensor for name, tensor in self.tensors.items() if name != removed}
        tensors |= {name: (0, np.array(numbers, "<f4").tobytes()) for name, _, numbers in added}
        shapes = self.shapes | {name: shape for name, shape, _ in added}
        out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields))
        for key, field in fields.items():
            out += struct.pack("<Q", len(key.encode())) + key.encode() + field
        weights = bytearray()
        for name, (kind, data) in tensors.items():
            shape = shapes[name]
            out += struct.pack(f"<Q{len(name)}sI", len(name), name.encode(), len(shape))
            out += struct.pack(f"<{len(shape)}QIQ", *shape, kind, len(weights))
            weights += data + bytes(-len(data) % 32)
        return out + bytes(-len(out) % 32) + weights


def encoded(kind, value):
    if kind == INTS:
        return struct.pack("<IIQ", 9, I32, len(value)) + struct.pack(f"<{len(value)}i", *value)
    if kind == FLAGS:
        return struct.pack("<IIQ", 9, BOOL, len(value)) + struct.pack(f"<{len(value)}?", *value)
    if kind == STR:
        return struct.pack("<IQ", STR, len(value)) + value.encode()
    return struct.pack("<I" + {U32: "I", F32: "f", BOOL: "?"}[kind], kind, value)


def logits(path):
    """The logits of TOKENS at POSITIONS, or None where the file is refused."""
    parameters = llama_cpp.llama_model_default_params()
    parameters.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(path.encode(), parameters)
    if not model:
        return None
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = CONTEXT
    parameters.n_threads = parameters.n_threads_batch = 1
    parameters.type_k = parameters.type_v = 0
    parameters.flash_attn_type = 0
    context = llama_cpp.llama_init_from_model(model, parameters)
    if not context:
        return None
    batch = llama_cpp.llama_batch_init(len(TOKENS), 0, 1)
    batch.n_tokens = len(TOKENS)
    for i, token in enumerate(TOKENS):
        batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, i, 1
        batch.seq_id[i][0] = 0
        batch.logits[i] = 1
    if llama_cpp.llama_decode(context, batch) != 0:
        return None
    rows = []
    for position in POSITIONS:
        row = llama_cpp.llama_get_logits_ith(context, position)
        rows.append(np.ctypeslib.as_array(row, shape=(384,)).copy())
    rows = np.stack(rows)
    return rows if np.isfinite(rows).all() else None


MESSAGES = []


@llama_cpp.llama_log_callback
def log(level, text, _):
    MESSAGES.append(text.decode(errors="replace"))


def result(data):
    """(result, llama.cpp's messages), computed in a process of its own: it may abort."""
    path = f"/dev/shm/keys-{os.getpid()}.gguf"
    pathlib.Path(path).write_bytes(data)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        # What would take more than this is refused.
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        signal.alarm(20)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        rows = logits(path)
        found = {"messages": "".join(MESSAGES[-20:])}
        if rows is not None:
            number = lambda value: float(f"{value:.6g}")
            found["result"] = [number(np.abs(rows).max())] + [
                [int(row.argmax())] + [number(row[probe]) for probe in PROBES] for row in rows
            ]
        os.write(writing, json.dumps(found).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    os.unlink(path)
    found = json.loads(text) if text else {}
    return found.get("result"), found.get("messages", "")


def keys_read(source):
    """The keys that llama.cpp reads for each architecture, from its source."""
    names = dict(re.findall(r"\{ (LLM_KV_\w+),\s+\"%s\.([\w.]+)\"", (source / "llama-arch.cpp").read_text()))

    def function(path, name):
        text = path.read_text()
        start = text.index(f"::{name}(llama_model_loader & ml) {{")
        return text[start:text.index("\n}\n", start)]

    def read(text):
        found = re.findall(r"ml\.get_\w+\(\s*(LLM_KV_\w+)", text)
        if "load_swa_pattern(ml" in text:
            found.append("LLM_KV_ATTENTION_SLIDING_WINDOW_PATTERN")
        return {names[key] for key in found if key in names}

    common = read(function(source / "llama-model.cpp", "load_hparams"))
    # Audio codecs' part of the common function.
    common -= {suffix for suffix in common if suffix.startswith(("posnet", "convnext", "features"))}
    return {
        name: sorted(common | read(function(source / "models" / f"{file}.cpp", "load_arch_hparams")))
        for name, file in SOURCES.items()
    }


def main():
    llama_cpp.llama_log_set(log, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    keys = keys_read(pathlib.Path(sys.argv[1]) / "src")
    results, places, listed = [], {}, []
    for name in MODELS:
        model = Model(FIXTURES / "arch" / f"{name}.gguf")
        prefix = model.architecture + "."
        own = [key.removeprefix(prefix) for key in model.fields if key.startswith(prefix)]
        removed = [[[suffix]] for suffix in own]
        blocks, own_keys = model.integer("block_count"), keys[model.architecture]
        tried = [[], *removed, *variants(), *by_layer(blocks), *counts(model, own_keys)]
        for changes in {json.dumps(changes): changes for changes in tried}.values():
            found, messages = result(model.changed(changes))
            if found is None and "wrong number of tensors" in messages:
                continue
            place = None
            if found is not None:
                place = places.setdefault(json.dumps(found), len(results))
                if place == len(results):
                    results.append(found)
            listed.append([name, changes, place])
        print(name, len(listed), len(results), file=sys.stderr)
    golden = {
        "tokens": TOKENS, "positions": POSITIONS, "probe_ids": PROBES, "context": CONTEXT,
        "keys": keys,
        "results": results, "variants": listed,
    }
    folder = FIXTURES / "keys"
    folder.mkdir(exist_ok=True)
    with gzip.GzipFile(folder / "golden.json.gz", "wb", mtime=0) as file:
        file.write(json.dumps(golden, separators=(",", ":")).encode())


if __name__ == "__main__":
    main()
