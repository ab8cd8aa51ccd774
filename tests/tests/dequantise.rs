//! The tool that writes a model out in F32.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use emel_loader::gguf::{Catalog, TensorType, Value};
use emel_tests::gguf_writer::{Field, GgufWriter};

fn dequantise(input: &Path, output: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_emel-dequantise"))
        .args([input, output])
        .output()
        .unwrap()
}

fn tensor_bytes(catalog: &Catalog, name: &str) -> Vec<u8> {
    let extent = catalog.tensor(name).unwrap().extent;
    let bytes = fs::read(&catalog.files()[extent.file].path).unwrap();
    bytes[extent.offset as usize..][..extent.bytes as usize].to_vec()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|&word| f32::from_le_bytes(word)).collect()
}

/// Rows of one Q8_0 block each: the scale is 0.5 and the weights count up from
/// `first`.
fn q8_0_rows(firsts: &[i8]) -> Vec<u8> {
    let block = |first: i8| {
        let scale = 0x3800_u16.to_le_bytes();
        let weights = (0..32).map(move |index| (first + index) as u8);
        scale.into_iter().chain(weights)
    };
    firsts.iter().copied().flat_map(block).collect()
}

#[test]
fn quantised_weights_become_floats_and_metadata_stay() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (
        folder.path().join("in.gguf"),
        folder.path().join("out.gguf"),
    );
    GgufWriter::new("llama")
        .alignment(64)
        .field("general.file_type", Field::U32(7))
        .field("llama.block_count", Field::U32(1))
        .field("words", Field::strings(["one", "two"]))
        .tensor("weights", TensorType::Q8_0, &[32, 2], q8_0_rows(&[-16, 3]))
        .f32_tensor("norm", &[3], &[1.0, 2.0, 3.0])
        .tensor("ids", TensorType::I32, &[1], vec![7, 0, 0, 0])
        .write(&input)
        .unwrap();
    let done = dequantise(&input, &output);
    assert!(done.status.success(), "{done:?}");

    let (before, after) = (
        Catalog::open(&input).unwrap(),
        Catalog::open(&output).unwrap(),
    );
    for (key, value) in before.metadata().iter() {
        let expected = match key {
            "general.file_type" => &Value::Unsigned(0),
            _ => value,
        };
        assert_eq!(after.metadata().get(key), Some(expected), "{key}");
    }
    let row = |first: i32| (first..first + 32).map(|weight| weight as f32 * 0.5);
    let expected: Vec<f32> = row(-16).chain(row(3)).collect();
    assert_eq!(floats(&tensor_bytes(&after, "weights")), expected);
    assert_eq!(floats(&tensor_bytes(&after, "norm")), [1.0, 2.0, 3.0]);
    assert_eq!(tensor_bytes(&after, "ids"), [7, 0, 0, 0]);
    assert_eq!(after.tensor("weights").unwrap().dims, [32, 2]);
}

#[test]
fn a_model_in_f32_comes_out_the_same() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/arch/llama.gguf");
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.gguf");
    let done = dequantise(&fixture, &output);
    assert!(done.status.success(), "{done:?}");
    let (before, after) = (
        Catalog::open(&fixture).unwrap(),
        Catalog::open(&output).unwrap(),
    );
    assert_eq!(before.tensors().len(), after.tensors().len());
    for tensor in before.tensors() {
        let bytes = tensor_bytes(&before, &tensor.name);
        assert_eq!(bytes, tensor_bytes(&after, &tensor.name), "{}", tensor.name);
    }
}

#[test]
fn shards_become_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.gguf");
    let shards: Vec<PathBuf> = GgufWriter::new("llama")
        .f32_tensor("first", &[1], &[1.0])
        .f32_tensor("second", &[1], &[2.0])
        .write_shards(folder.path(), "model", 2, true)
        .unwrap();
    let done = dequantise(&shards[0], &output);
    assert!(done.status.success(), "{done:?}");
    let after = Catalog::open(&output).unwrap();
    assert_eq!(after.files().len(), 1);
    assert_eq!(floats(&tensor_bytes(&after, "second")), [2.0]);
    assert!(after.metadata().get("split.count").is_none());
}

#[test]
fn a_bad_input_leaves_no_output() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (
        folder.path().join("in.gguf"),
        folder.path().join("out.gguf"),
    );
    fs::write(&input, "Hello").unwrap();
    let done = dequantise(&input, &output);
    assert!(!done.status.success());
    assert!(String::from_utf8_lossy(&done.stderr).contains("not a GGUF file"));
    assert!(!output.exists());
}

#[test]
fn no_model_is_replaced_by_the_result() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.gguf");
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/arch/llama.gguf");
    fs::copy(&fixture, &model).unwrap();
    for input in [&fixture, &model] {
        let done = dequantise(input, &model);
        assert!(!done.status.success());
        let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(stderr.contains("this is a model"), "{stderr}");
    }
    assert!(fs::read(&model).unwrap() == fs::read(&fixture).unwrap());
}
