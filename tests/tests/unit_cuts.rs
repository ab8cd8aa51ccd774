//! How units cut the matrices never shows in the result: not at one row each, for any
//! number of threads, of tokens and experts together, and of steps that are joined.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::path::Path;

use emel_kernels::Format;
use emel_loader::gguf::{Catalog, TensorType};
use emel_model::kv_cache::KvType;
use emel_tests::fixtures::fixture;
use emel_tests::forward::{Cut, logits};
use emel_tests::gguf_writer::GgufWriter;

/// The bits of all logits of all positions.
fn bits(model: &Path, cut: Cut) -> Vec<u32> {
    let tokens: Vec<u32> = (0..TOKENS as u32).map(|index| index * 53 % 384).collect();
    let rows = logits(model, cut, &tokens).unwrap();
    rows.iter().flatten().map(|logit| logit.to_bits()).collect()
}

const TOKENS: usize = 29;

fn check(model: &Path) {
    for kv_type in [KvType::F16, KvType::Q8_0] {
        check_with(model, kv_type);
    }
}

fn check_with(model: &Path, kv_type: KvType) {
    let whole = Cut {
        unit_bytes: 1 << 30,
        experts: 16,
        chunk: TOKENS,
        threads: 1,
        joined: false,
        kv_type,
    };
    let expected = bits(model, whole);
    assert!(
        expected
            .iter()
            .all(|&bits| f32::from_bits(bits).is_finite())
    );
    // Rows of 32 to 64 values: units of one row, of a few, of many.
    for (unit_bytes, experts, chunk, threads, joined) in [
        (1, 1, TOKENS, 2, false),
        (1, 1, TOKENS, 2, true),
        (1000, 2, 7, 1, true),
        (12_500, 3, 1, 3, true),
        (12_500, 5, TOKENS, 2, false),
        (1 << 30, 1, 1, 2, true),
    ] {
        let cut = Cut {
            unit_bytes,
            experts,
            chunk,
            threads,
            joined,
            kv_type,
        };
        assert!(bits(model, cut) == expected, "{}: {cut:?}", model.display());
    }
}

#[test]
fn cuts_do_not_show_in_any_architecture() {
    let mut models: Vec<_> = std::fs::read_dir(fixture("arch"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "gguf")
        })
        .collect();
    models.sort();
    assert!(!models.is_empty());
    for model in models {
        check(&model);
    }
}

/// The model with every matrix that has such rows in `tensor_type`, made of whatever
/// bytes: its numbers are as good as any for a test of equality.
fn quantised(model: &Path, out: &Path, tensor_type: TensorType, block: &[u8]) {
    let catalog = Catalog::open(model).unwrap();
    let mut writer = GgufWriter::copy_of(model);
    for tensor in catalog.tensors() {
        if tensor.name.contains("_exps.weight") {
            let format = Format::from_ggml_type(tensor_type.id()).unwrap();
            let row_bytes = format.row_bytes(tensor.columns() as usize).unwrap();
            let mut data = block.repeat(row_bytes / block.len() * tensor.rows() as usize);
            for (index, byte) in data.iter_mut().enumerate() {
                // The scale in front of a block stays, so that all numbers are modest.
                if index % block.len() >= 2 {
                    *byte = (index * index % 251) as u8;
                }
            }
            writer =
                writer
                    .without(&tensor.name)
                    .tensor(&tensor.name, tensor_type, &tensor.dims, data);
        }
    }
    writer.write(out).unwrap();
}

#[test]
fn cuts_do_not_show_in_quantised_experts() {
    let folder = tempfile::tempdir().unwrap();
    // A half-precision scale of 2^-12 and 32 bytes; an exponent of 2^-7 and 32 nibbles.
    let mut q8_0 = vec![0; 34];
    q8_0[1] = 0x0c;
    let mut mxfp4 = vec![0; 17];
    mxfp4[0] = 120;
    for (name, tensor_type, block) in [
        ("qwen2moe.gguf", TensorType::Q8_0, q8_0),
        ("gpt-oss.gguf", TensorType::MXFP4, mxfp4),
    ] {
        let model = folder.path().join(name);
        quantised(&fixture("arch").join(name), &model, tensor_type, &block);
        check(&model);
    }
}
