//! Models whose hyperparameters are changed one by one: refused, or run without a panic.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use emel_loader::gguf::{Catalog, Value};
use emel_tests::fixtures::fixture;
use emel_tests::forward::{Cut, logits};
use emel_tests::gguf_writer::{Field, GgufWriter};

/// Numbers at the edges of what is checked, and some that fit other tensors.
const SIZES: [u32; 9] = [0, 1, 2, 3, 7, 8, 64, (1 << 28) - 1, u32::MAX];

const FACTORS: [f32; 8] = [0.0, -1.0, 1e-38, 0.5, 1.0, 1e38, f32::INFINITY, f32::NAN];

/// Other values of the same type.
fn others(value: &Value) -> Vec<Field> {
    match value {
        Value::Unsigned(_) => SIZES.map(Field::U32).to_vec(),
        Value::Float(_) => FACTORS.map(Field::F32).to_vec(),
        Value::Bool(flag) => vec![Field::Bool(!flag)],
        Value::Array(array) => SIZES
            .map(|size| Field::i32s(&vec![size as i32; array.len()]))
            .to_vec(),
        _ => Vec::new(),
    }
}

#[test]
fn a_changed_hyperparameter_is_refused_or_computed_with() {
    let folder = tempfile::tempdir().unwrap();
    let changed = folder.path().join("changed.gguf");
    let cut = Cut {
        unit_bytes: 1 << 20,
        chunk: 3,
        threads: 1,
    };
    let (mut refused, mut computed) = (0, 0);
    for entry in std::fs::read_dir(fixture("arch")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "gguf") {
            continue;
        }
        let catalog = Catalog::open(&path).unwrap();
        let original = GgufWriter::copy_of(&path);
        let numbers = catalog.metadata().iter();
        for (key, value) in numbers.filter(|(key, _)| !key.starts_with("general.")) {
            for field in others(value) {
                println!("{}: {key} = {field:?}", path.display());
                let model = original.clone().without(key).field(key, field);
                model.write(&changed).unwrap();
                match logits(&changed, cut, &[5, 80, 300, 12]) {
                    Ok(_) => computed += 1,
                    Err(_) => refused += 1,
                }
            }
        }
    }
    assert!(refused > 0 && computed > 0, "{refused}, {computed}");
}
