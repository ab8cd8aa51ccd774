//! Files that are no models, or models that cannot be run.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use emel_tests::gguf_writer::Field;
use tempfile::TempDir;

use crate::model::Model;
use crate::{command, emel, emel_run, llama, refusal, result, words};

/// Every command refuses the model for the same reason, and names the file.
#[track_caller]
fn refused(model: &Path, expected: &[&str]) {
    let name = model.file_name().unwrap().to_string_lossy().into_owned();
    let run = refusal(emel_run(model, words("-p hello -n 4")), 1, expected);
    assert!(run.contains(&name), "{run}");
    let plan = refusal(emel("plan", model, words("--ram-budget 64M")), 1, expected);
    assert_eq!(plan, run);
    let evaluation = words("--tokens 1,2 --ram-budget 64M");
    assert_eq!(refusal(emel("eval", model, evaluation), 1, expected), run);
}

#[track_caller]
fn bytes_refused(bytes: &[u8], expected: &[&str]) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("broken.gguf");
    fs::write(&path, bytes).unwrap();
    refused(&path, expected);
    let tokenised = emel("tokenize", &path, words("-p hello"));
    refusal(tokenised, 1, expected);
}

#[track_caller]
fn model_refused(model: &Model, expected: &[&str]) {
    let folder = TempDir::new().unwrap();
    refused(&model.write(&folder), expected);
}

#[test]
fn an_empty_file_is_refused() {
    bytes_refused(b"", &["is empty", "expected a GGUF model", "download"]);
}

#[test]
fn a_text_file_is_refused() {
    bytes_refused(
        b"Hello, world\n",
        &["starts with \"Hell\"", "expected \"GGUF\""],
    );
}

#[test]
fn files_of_other_formats_are_named_as_what_they_are() {
    let mut safetensors = 100u64.to_le_bytes().to_vec();
    safetensors.extend(b"{\"weight\":{\"dtype\":\"F32\"}}");
    safetensors.resize(500, b' ');
    let mut imatrix = 1i32.to_le_bytes().to_vec();
    imatrix.extend(19i32.to_le_bytes());
    imatrix.extend(b"blk.0.attn_q.weight");
    imatrix.extend([0; 64]);
    for (bytes, found, advice) in [
        (
            &b"\n<!DOCTYPE html>\n<html>"[..],
            "a web page",
            "download the file itself",
        ),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
            "a Git LFS pointer",
            "git lfs pull",
        ),
        (&safetensors, "a safetensors file", "convert_hf_to_gguf.py"),
        (b"PK\x03\x04\x14\0\0\0", "a ZIP archive", "PyTorch"),
        (b"\x80\x02}q\0.", "a Python pickle", "PyTorch"),
        (b"tjgg\x03\0\0\0", "ggml's old format", "as GGUF"),
        (b"algg\x01\0\0\0", "a LoRA adapter", "merge it"),
        (&imatrix, "an importance matrix", "that it was made for"),
        (b"{\"error\":\"no access\"}", "a JSON text", ".gguf model"),
        (b"\x1f\x8b\x08\0\0\0", "a compressed file", "unpack it"),
        (b"Entry not found", "a download that failed", "address"),
        (&[0; 4096], "zeros at its start", "download it again"),
    ] {
        bytes_refused(bytes, &[found, "expected a GGUF model; ", advice]);
    }
}

#[test]
fn files_that_go_with_a_model_are_named_as_what_they_are() {
    for (key, value, found) in [
        ("general.type", "adapter", "is a LoRA adapter"),
        ("general.type", "imatrix", "is an importance matrix"),
        ("general.type", "mmproj", "is a vision or audio tower"),
        ("general.architecture", "clip", "is a vision or audio tower"),
        (
            "general.architecture",
            "controlvector",
            "is a control vector",
        ),
    ] {
        let model = Model::llama()
            .without("tokenizer.ggml.model")
            .with(key, Field::string(value));
        let folder = TempDir::new().unwrap();
        let path = model.write(&folder);
        let expected = ["model.gguf: ", found, "expected a language model; "];
        refused(&path, &expected);
        refusal(emel("tokenize", &path, words("-p hi")), 1, &expected);
    }
}

#[test]
fn names_of_models_give_the_command_that_downloads_them() {
    let hugging_face = [
        "No such file",
        "hf download unsloth/Qwen3-GGUF --include \"*Q6_K*\" --local-dir .",
    ];
    for name in [
        "unsloth/Qwen3-GGUF:Q6_K",
        "hf.co/unsloth/Qwen3-GGUF:Q6_K",
        "https://huggingface.co/unsloth/Qwen3-GGUF:Q6_K",
    ] {
        let message = refusal(emel_run(Path::new(name), words("-p a")), 1, &hugging_face);
        for subcommand in ["plan", "info", "doctor"] {
            let output = emel(subcommand, Path::new(name), [""; 0]);
            refusal(output, 1, &hugging_face);
        }
        assert!(!message.contains("ollama"), "{message}");
    }
    let ollama = ["ollama show --modelfile", "~/.ollama/models/blobs"];
    let output = emel_run(Path::new("llama3.2:3b"), words("-p a"));
    refusal(output, 1, &ollama);
    let mut run = command("emel-run");
    run.args(words("-hf unsloth/Qwen3-GGUF:Q6_K -p a"));
    let output = run.output().unwrap();
    refusal(output, 2, &["-hf: emel downloads nothing", hugging_face[1]]);
}

#[test]
fn a_file_is_refused_wherever_its_header_ends() {
    let whole = fs::read(llama()).unwrap();
    for length in [3, 4, 7, 15, 24, 30, 100, 1000, 5000, 15_000] {
        bytes_refused(&whole[..length], &["error"]);
    }
    bytes_refused(
        &whole[..100],
        &["ends at byte 100", "truncated", "download"],
    );
}

#[test]
fn a_file_that_ends_inside_tensor_data_is_refused() {
    let whole = fs::read(llama()).unwrap();
    let expected = [
        "needs",
        "before the end of the file",
        "truncated",
        "download",
    ];
    bytes_refused(&whole[..whole.len() / 2], &expected);
    bytes_refused(&whole[..whole.len() - 100], &expected);
}

#[test]
fn a_tensor_past_the_end_is_refused() {
    let bytes = Model::llama()
        .writer()
        .f32_tensor("extra.weight", &[32], &[0.0; 32])
        .stating_offset(1 << 40)
        .to_bytes();
    bytes_refused(&bytes, &["extra.weight", "found 0 before the end"]);
}

#[test]
fn absurd_counts_are_refused() {
    let header = |tensors: u64, keys: u64| {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(tensors.to_le_bytes());
        bytes.extend(keys.to_le_bytes());
        bytes.extend([0; 64]);
        bytes
    };
    for (tensors, keys) in [(u64::MAX, 0), (0, u64::MAX), (1 << 40, 1), (1, 1 << 62)] {
        bytes_refused(&header(tensors, keys), &["broken.gguf"]);
    }
}

#[test]
fn an_unknown_version_is_refused() {
    let bytes = Model::llama().writer().version(9).to_bytes();
    bytes_refused(&bytes, &["version 9", "expected 2 or 3"]);
}

#[test]
fn an_unknown_architecture_is_refused() {
    let model = Model::llama().with("general.architecture", Field::string("mamba"));
    model_refused(
        &model,
        &["`mamba`", "supported: llama, qwen2, ", ", gpt-oss"],
    );
    let nameless = Model::llama().with("general.architecture", Field::string(""));
    model_refused(&nameless, &["architecture"]);
}

#[test]
fn names_from_the_file_cannot_break_the_line_or_fill_the_screen() {
    let hostile = "a\nerror: b\r\u{1b}[2J\u{2028}";
    let model = Model::llama().with("general.architecture", Field::string(hostile));
    model_refused(&model, &["a\\nerror: b\\r\\u{1b}[2J\\u{2028}"]);

    let long = "x".repeat(1 << 20);
    let model = Model::llama().with("general.architecture", Field::string(long));
    let folder = TempDir::new().unwrap();
    let path = model.write(&folder);
    let message = refusal(emel_run(&path, words("-p hello")), 1, &["supported: llama"]);
    assert!(message.len() < 2000, "{} bytes", message.len());

    for key in ["tokenizer.ggml.model", "llama.rope.scaling.type"] {
        let model = Model::llama().with(key, Field::string(hostile));
        model_refused(&model, &["a\\nerror: b"]);
    }
}

#[test]
fn an_unknown_tensor_type_is_refused() {
    let unknown = Model::llama().retyped("blk.0.attn_q.weight", 999, 4096);
    model_refused(&unknown, &["blk.0.attn_q.weight", "type 999", "expected"]);
}

#[test]
fn a_tensor_type_without_kernels_is_refused() {
    // 24 is I8, which no weights are stored in.
    let unsupported = Model::llama().retyped("blk.0.attn_q.weight", 24, 1024);
    model_refused(
        &unsupported,
        &["`blk.0.attn_q.weight`", "I8", "supported: F32"],
    );
}

#[test]
fn a_missing_tensor_is_refused() {
    for name in [
        "token_embd.weight",
        "output_norm.weight",
        "blk.0.attn_norm.weight",
        "blk.1.ffn_down.weight",
        "blk.2.attn_output.weight",
    ] {
        let model = Model::llama().without_tensor(name);
        model_refused(&model, &[name, "is missing", "incomplete"]);
    }
}

#[test]
fn a_tensor_of_another_shape_is_refused() {
    for (name, dims, found) in [
        ("token_embd.weight", &[64, 384][..], "64 × 384"),
        ("blk.0.attn_k.weight", &[32, 32], "32 × 32"),
        ("blk.0.attn_norm.weight", &[31], "31 × 1"),
        ("blk.1.ffn_up.weight", &[32, 64, 2], "32 × 128"),
        ("output_norm.weight", &[32, 2], "32 × 2"),
    ] {
        let model = Model::llama().reshaped(name, dims);
        model_refused(&model, &[name, found, "expected"]);
    }
}

#[test]
fn an_embedding_with_fewer_rows_than_tokens_is_refused() {
    let model = Model::llama().reshaped("token_embd.weight", &[32, 100]);
    model_refused(&model, &["100 rows", "each of the 384 tokens"]);
}

#[test]
fn an_embedding_with_more_rows_than_tokens_works() {
    let folder = TempDir::new().unwrap();
    let model = Model::llama().reshaped("token_embd.weight", &[32, 500]);
    let path = model.write(&folder);
    // All logits are equal, so ids without a token are drawn too.
    let arguments = words("-p hello -n 64 --temp 1 --top-k 0 --top-p 1 --min-p 0 --ignore-eos");
    result(emel_run(&path, arguments));
}

#[test]
fn missing_tokenizer_keys_are_refused() {
    for key in ["model", "tokens", "merges"] {
        let key = format!("tokenizer.ggml.{key}");
        let model = Model::llama().without(&key);
        model_refused(&model, &[&key, "missing", "expected"]);
        let folder = TempDir::new().unwrap();
        let path = model.write(&folder);
        refusal(
            emel("tokenize", &path, words("-p hi")),
            1,
            &[&key, "model.gguf"],
        );
    }
}

#[test]
fn broken_tokenizer_keys_are_refused() {
    for (key, field, expected) in [
        ("model", Field::string("none"), "not supported"),
        ("model", Field::U32(1), "expected"),
        ("tokens", Field::strings([""; 0]), "expected"),
        ("tokens", Field::i32s(&[1, 2]), "expected"),
        ("token_type", Field::i32s(&[1]), "one per token"),
        ("merges", Field::strings(["nospace"]), "two parts"),
        ("eos_token_id", Field::string("eos"), "expected"),
    ] {
        let key = format!("tokenizer.ggml.{key}");
        let model = Model::llama().with(&key, field);
        model_refused(&model, &[&key, expected]);
    }
}

#[test]
fn missing_hyperparameters_are_refused() {
    for key in [
        "context_length",
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "attention.head_count",
    ] {
        let key = format!("llama.{key}");
        model_refused(&Model::llama().without(&key), &[&key, "expected"]);
    }
}

#[test]
fn impossible_sizes_are_refused() {
    for key in [
        "context_length",
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "rope.dimension_count",
    ] {
        let key = format!("llama.{key}");
        for size in [0, u32::MAX] {
            let model = Model::llama().with(&key, Field::U32(size));
            model_refused(&model, &[&key, &size.to_string(), "expected"]);
        }
        let model = Model::llama().with(&key, Field::string("many"));
        model_refused(&model, &[&key, "expected"]);
        let model = Model::llama().with(&key, Field::I32(-1));
        model_refused(&model, &[&key, "expected"]);
    }
}

#[test]
fn impossible_heads_are_refused() {
    let model = Model::llama().with("llama.attention.head_count_kv", Field::U32(3));
    model_refused(&model, &["head_count_kv", "is 3", "a divisor of the 4"]);
    for width in [7, 10] {
        let model = Model::llama().with("llama.rope.dimension_count", Field::U32(width));
        model_refused(&model, &["rope.dimension_count", "an even number up to"]);
    }
    let model = Model::llama().with("llama.attention.key_length", Field::U32(16));
    model_refused(&model, &["blk.0.attn_q.weight", "expected 32 × 64"]);
    let model = Model::llama().with("llama.block_count", Field::U32(1 << 28));
    model_refused(&model, &["blk.3.attn_norm.weight", "missing"]);
    for (kv_heads, expected) in [
        (&[2, 1, 2][..], "blk.1.attn_k.weight"),
        (&[2, 0, 2], "is 0 for layer 1"),
        (&[0, 0, 0], "expected heads in some layer"),
        (&[2, 3, 2], "expected a divisor of the 4"),
        (&[2, -2, 2], "expected no negative number"),
        (&[2, 2], "expected one for each of 3 layers"),
    ] {
        let kv_heads = Field::i32s(kv_heads);
        let model = Model::llama().with("llama.attention.head_count_kv", kv_heads);
        model_refused(&model, &[expected]);
    }
}

#[test]
fn impossible_factors_are_refused() {
    for key in ["attention.layer_norm_rms_epsilon", "rope.freq_base"] {
        let key = format!("llama.{key}");
        for number in [f32::NAN, f32::INFINITY, -1.0, 0.0] {
            let model = Model::llama().with(&key, Field::F32(number));
            model_refused(&model, &[&key, &number.to_string(), "a positive number"]);
        }
    }
    let model = Model::llama()
        .with("llama.rope.scaling.type", Field::string("linear"))
        .with("llama.rope.scaling.factor", Field::F32(f32::NAN));
    model_refused(&model, &["llama.rope.scaling.factor", "NaN"]);
    let model = Model::llama().with("llama.rope.scaling.type", Field::string("spiral"));
    model_refused(&model, &["llama.rope.scaling.type", "spiral", "`longrope`"]);
}

#[test]
fn extreme_but_possible_numbers_neither_fail_nor_panic() {
    let with = |key: &str, field| Model::llama().with(&format!("llama.{key}"), field);
    let yarn = |key: &str, number| {
        with("rope.scaling.type", Field::string("yarn"))
            .with("llama.rope.scaling.factor", Field::F32(4.0))
            .with("llama.rope.scaling.original_context_length", Field::U32(1))
            .with(&format!("llama.{key}"), Field::F32(number))
    };
    for model in [
        with("context_length", Field::U32(1)),
        with("context_length", Field::U32(1 << 28)),
        with("rope.freq_base", Field::F32(1.0)),
        with("rope.freq_base", Field::F32(f32::MIN_POSITIVE)),
        with("rope.freq_base", Field::F32(f32::MAX)),
        with("attention.layer_norm_rms_epsilon", Field::F32(f32::MAX)),
        yarn("rope.freq_base", 1.0),
        yarn("rope.scaling.yarn_beta_fast", f32::MIN_POSITIVE),
        yarn("rope.scaling.yarn_beta_slow", f32::MAX),
        Model::llama().filled("output_norm.weight", f32::NAN),
        Model::llama().filled("output_norm.weight", f32::INFINITY),
        Model::llama().filled("blk.1.attn_q.weight", f32::NAN),
    ] {
        let folder = TempDir::new().unwrap();
        let path = model.write(&folder);
        for sampling in [
            "--temp 0",
            "--temp 0.8",
            "--temp 1 --top-k 0 --repeat-penalty 2",
        ] {
            let arguments = words("-p l -n 3").chain(words(sampling));
            result(emel_run(&path, arguments));
        }
        let evaluation = words("--tokens 1 --top 3 --json --ram-budget 64M");
        let json = result(emel("eval", &path, evaluation));
        serde_json::from_str::<serde_json::Value>(&json).unwrap();
    }
}

#[test]
fn shards_that_do_not_belong_together_are_refused() {
    let folder = TempDir::new().unwrap();
    let write = || {
        let writer = Model::llama().writer();
        writer.write_shards(folder.path(), "m", 3, false).unwrap()
    };
    let paths = write();
    result(emel_run(&paths[0], words("-p hello -n 4")));

    refused(
        &paths[1],
        &[
            "shard 2 of 3",
            "expected the first",
            "m-00001-of-00003.gguf",
        ],
    );

    fs::remove_file(&paths[2]).unwrap();
    let message = refusal(
        emel("plan", &paths[0], words("")),
        1,
        &["shard 3 of 3 is missing"],
    );
    assert!(message.contains("m-00003-of-00003.gguf"), "{message}");

    fs::copy(&paths[1], &paths[2]).unwrap();
    refusal(
        emel("plan", &paths[0], words("")),
        1,
        &["m-00003", "split.no", "expected 2"],
    );

    let paths = write();
    let renamed = folder.path().join("renamed.gguf");
    fs::rename(&paths[0], &renamed).unwrap();
    refused(&renamed, &["one of 3 shards", "-00001-of-00003.gguf"]);
}

#[test]
fn what_is_no_regular_file_is_refused() {
    let folder = TempDir::new().unwrap();
    refused(folder.path(), &["is a directory", "holds no .gguf file"]);
    for name in ["b.gguf", "a-00001-of-00002.gguf", "a-00002-of-00002.gguf"] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    let models = "pass the path of a model in it: a-00001-of-00002.gguf, b.gguf";
    refused(folder.path(), &["is a directory", models]);
    let fifo = folder.path().join("fifo.gguf");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    refused(&fifo, &["is a FIFO", "expected a regular file"]);
    refused(Path::new("/dev/null"), &["expected a regular file"]);
}

#[test]
fn a_path_that_leads_nowhere_is_refused_and_the_cause_told_once() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("missing.gguf");
    refused(&path, &["cannot open", "check the path"]);
    let message = refusal(emel("plan", &path, words("")), 1, &[]);
    assert_eq!(message.matches("No such file").count(), 1, "{message}");
    refused(&llama().join("inside.gguf"), &["cannot open"]);
}

#[test]
fn a_file_without_permission_is_refused() {
    if nix::unistd::geteuid().is_root() {
        eprintln!("skipped: root may read everything");
        return;
    }
    let folder = TempDir::new().unwrap();
    let path = Model::llama().write(&folder);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    refused(&path, &["cannot open", "permissions"]);
}

#[test]
fn file_names_of_any_bytes_stay_on_one_line() {
    let folder = TempDir::new().unwrap();
    for name in [
        &b"new\nline.gguf"[..],
        b"escape\x1b[2J.gguf",
        b"not\xffutf8.gguf",
    ] {
        let path = folder.path().join(OsStr::from_bytes(name));
        refusal(emel_run(&path, words("-p hello")), 1, &["cannot open"]);
        fs::copy(llama(), &path).unwrap();
        result(emel_run(&path, words("-p hello -n 1")));
        let mut small = command("emel-run");
        small.arg(&path).args(words("-p hello --ram-budget 1M"));
        refusal(small.output().unwrap(), 1, &["too small"]);
    }
}
