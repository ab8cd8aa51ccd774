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
        experts: 16,
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

/// Rows of `columns` numbers each, those of the given heads one after the other.
fn heads(numbers: &[f32], head_width: usize, columns: usize, chosen: &[usize]) -> Vec<f32> {
    let size = head_width * columns;
    let head = |&head: &usize| &numbers[head * size..][..size];
    chosen.iter().flat_map(head).copied().collect()
}

/// The model with these key and value heads of its layer 1.
fn with_heads(model: &GgufWriter, chosen: &[usize]) -> GgufWriter {
    let mut changed = model.clone();
    for (part, columns) in [("attn_k", 32), ("attn_v", 32), ("attn_k_norm", 1)] {
        let name = format!("blk.1.{part}.weight");
        let [(_, numbers)] = &changed.clone().take_f32(&name)[..] else {
            panic!("one {name}");
        };
        let numbers = heads(numbers, 8, columns, chosen);
        let rows = 8 * chosen.len() as u64;
        let dims = if columns == 1 {
            vec![rows]
        } else {
            vec![32, rows]
        };
        changed = changed.without(&name).f32_tensor(&name, &dims, &numbers);
    }
    changed
}

#[test]
fn layers_that_differ_in_key_heads_are_normed_each_by_its_own_width() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let cut = Cut {
        unit_bytes: 1 << 20,
        experts: 16,
        chunk: 3,
        threads: 1,
    };
    let run = |model: &GgufWriter| {
        model.write(&path).unwrap();
        logits(&path, cut, &[5, 80, 300, 12]).unwrap()
    };
    let original = GgufWriter::copy_of(&fixture("arch").join("olmoe.gguf"));
    // Four heads of which two are alike are two heads, of twice as many queries each.
    let expected = run(&with_heads(&original, &[0, 0, 2, 2]));
    let key = "olmoe.attention.head_count_kv";
    let narrow = with_heads(&original, &[0, 2])
        .without(key)
        .field(key, Field::i32s(&[4, 2, 4]));
    let found = run(&narrow);
    assert_eq!(found.len(), 4);
    for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
        assert!((found - expected).abs() < 1e-4, "{found} {expected}");
    }
}
