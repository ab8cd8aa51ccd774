//! Experts that lie in the file in another way: the same bits, resident and in slots.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::path::{Path, PathBuf};

use emel::{Io, KvType, RamBudget, Settings};
use emel_loader::gguf::Catalog;
use emel_loader::reader::Backend;
use emel_model::arch;
use emel_tests::fixtures::{MIXTURES, fixture};
use emel_tests::gguf_writer::GgufWriter;
use emel_tests::run::{READERS, logits, settings, smallest_budget};

fn model(name: &str) -> PathBuf {
    fixture("arch").join(format!("{name}.gguf"))
}

/// Experts, and the width of their input, output and inner vectors.
fn shape(model: &Path) -> [usize; 3] {
    let program = arch::program(&Catalog::open(model).unwrap()).unwrap();
    let shape = program.hyperparameters;
    [shape.experts, shape.width, shape.expert_feed_forward]
}

/// Gate and up in one tensor: of each expert first the gate, then up.
fn with_gate_and_up_fused(model: &Path) -> GgufWriter {
    let [experts, width, inner] = shape(model);
    let mut file = GgufWriter::copy_of(model);
    let gates = file.take_f32("ffn_gate_exps.weight");
    let ups = file.take_f32("ffn_up_exps.weight");
    assert!(!gates.is_empty());
    for ((name, gate), (_, up)) in gates.iter().zip(&ups) {
        let both = gate.chunks(width * inner).zip(up.chunks(width * inner));
        let both: Vec<f32> = both.flat_map(|(gate, up)| [gate, up].concat()).collect();
        let dims = [width, 2 * inner, experts].map(|size| size as u64);
        file = file.f32_tensor(&name.replace("gate", "gate_up"), &dims, &both);
    }
    file
}

/// Each expert in tensors of its own, the last one first.
fn with_experts_apart(model: &Path) -> GgufWriter {
    let [_, width, inner] = shape(model);
    let mut file = GgufWriter::copy_of(model);
    for part in ["gate", "up", "down"] {
        let stacked = file.take_f32(&format!("ffn_{part}_exps.weight"));
        assert!(!stacked.is_empty());
        let dims = match part {
            "down" => [inner, width],
            _ => [width, inner],
        };
        for (name, numbers) in &stacked {
            for (expert, numbers) in numbers.chunks(width * inner).enumerate().rev() {
                let name = name.replace("_exps", &format!(".{expert}"));
                file = file.f32_tensor(&name, &dims.map(|size| size as u64), numbers);
            }
        }
    }
    file
}

fn bits(model: &Path, settings: Settings) -> Vec<u32> {
    let tokens: Vec<u32> = (0..24).map(|index| index * 59 % 384).collect();
    let rows = logits(model, settings, &tokens).unwrap();
    rows.concat().iter().map(|logit| logit.to_bits()).collect()
}

#[test]
fn fused_and_separate_experts_have_the_bits_of_stacked_ones() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    for name in MIXTURES {
        let original = model(name);
        let resident = Settings {
            kv_type: KvType::F32,
            all_logits: true,
            ..settings(1 << 30, 24)
        };
        let expected = bits(&original, resident.clone());
        for (layout, file) in [
            ("fused", with_gate_and_up_fused(&original)),
            ("separate", with_experts_apart(&original)),
        ] {
            file.write(&path).unwrap();
            for backend in [READERS[0], Backend::Mmap] {
                let settings = Settings {
                    io: Io::Only(backend),
                    ..resident.clone()
                };
                let smallest = Settings {
                    ram_budget: RamBudget::Bytes(smallest_budget(&path, &settings)),
                    ..settings.clone()
                };
                let is_same = |settings| bits(&path, settings) == expected;
                assert!(is_same(settings), "{name}, {layout}: resident");
                assert!(is_same(smallest), "{name}, {layout}: smallest budget");
            }
        }
    }
}

#[test]
fn separate_experts_of_different_types_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let name = "blk.1.ffn_up.3.weight";
    let file = with_experts_apart(&model("mixtral"));
    let [_, width, inner] = shape(&model("mixtral"));
    let halves = vec![0; 2 * width * inner];
    let dims = [width as u64, inner as u64];
    let mixed =
        file.clone()
            .without(name)
            .tensor(name, emel_loader::gguf::TensorType::F16, &dims, halves);
    for (file, expected) in [(mixed, "has type F16"), (file.without(name), "is missing")] {
        file.write(&path).unwrap();
        let error = arch::program(&Catalog::open(&path).unwrap()).unwrap_err();
        let error = error.to_string();
        assert!(error.contains(name) && error.contains(expected), "{error}");
    }
}

#[test]
fn scales_of_experts_that_are_not_stacked_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    for (layout, parts) in [
        (
            with_gate_and_up_fused as fn(&Path) -> _,
            &["gate", "up"][..],
        ),
        (with_experts_apart, &["gate", "up", "down"]),
    ] {
        for part in parts {
            let name = format!("blk.1.ffn_{part}_exps.scale");
            let scales = [2.0; 8];
            let file = layout(&model("mixtral")).f32_tensor(&name, &[8], &scales);
            file.write(&path).unwrap();
            let error = arch::program(&Catalog::open(&path).unwrap()).unwrap_err();
            assert!(error.to_string().contains(&name), "{error}");
        }
    }
}
