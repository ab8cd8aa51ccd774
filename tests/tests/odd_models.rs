//! Models whose hyperparameters are changed one by one: refused, or run without a panic.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use emel_loader::gguf::{Catalog, Value};
use emel_model::kv_cache::KvType;
use emel_tests::fixtures::fixture;
use emel_tests::forward::{Cut, logits};
use emel_tests::gguf_writer::{Field, GgufWriter};

/// Numbers at the edges of what is checked, and some that fit other tensors.
const SIZES: [u32; 10] = [0, 1, 2, 3, 7, 8, 64, (1 << 28) - 1, 1 << 31, u32::MAX];

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

/// The value as it is written.
fn same(value: &Value) -> Option<Field> {
    match value {
        Value::Unsigned(number) => Some(Field::U32(u32::try_from(*number).ok()?)),
        Value::Float(number) => Some(Field::F32(*number as f32)),
        Value::Bool(flag) => Some(Field::Bool(*flag)),
        _ => None,
    }
}

/// The models of all architectures.
fn models() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(fixture("arch")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "gguf")
        })
        .collect()
}

/// Runs variants of the models and counts how many were refused, and how many computed.
#[derive(Default)]
struct Runs {
    refused: usize,
    computed: usize,
}

impl Runs {
    fn run(&mut self, folder: &Path, model: &GgufWriter) {
        let cut = Cut {
            unit_bytes: 1 << 20,
            experts: 16,
            chunk: 3,
            threads: 1,
            joined: true,
            kv_type: KvType::Q8_0,
        };
        let path = folder.join("changed.gguf");
        model.write(&path).unwrap();
        match logits(&path, cut, &[5, 80, 300, 12]) {
            Ok(_) => self.computed += 1,
            Err(_) => self.refused += 1,
        }
    }

    fn check(&self) {
        let Self { refused, computed } = self;
        assert!(*refused > 0 && *computed > 0, "{refused}, {computed}");
    }
}

#[test]
fn a_changed_or_missing_hyperparameter_is_refused_or_computed_with() {
    let folder = tempfile::tempdir().unwrap();
    let mut runs = Runs::default();
    for path in models() {
        let catalog = Catalog::open(&path).unwrap();
        let original = GgufWriter::copy_of(&path);
        let numbers = catalog.metadata().iter();
        for (key, value) in numbers.filter(|(key, _)| !key.starts_with("general.")) {
            println!("{}: no {key}", path.display());
            runs.run(folder.path(), &original.clone().without(key));
            for field in others(value) {
                println!("{}: {key} = {field:?}", path.display());
                let model = original.clone().without(key).field(key, field);
                runs.run(folder.path(), &model);
            }
        }
    }
    runs.check();
}

/// What an architecture says of itself may mean something in another one.
#[test]
fn a_hyperparameter_of_another_architecture_is_refused_or_computed_with() {
    let folder = tempfile::tempdir().unwrap();
    let catalogs: Vec<(PathBuf, Catalog)> = models()
        .into_iter()
        .map(|path| (path.clone(), Catalog::open(&path).unwrap()))
        .collect();
    let prefix = |catalog: &Catalog| {
        let name = catalog.metadata().str("general.architecture").unwrap();
        format!("{}.", name.unwrap())
    };
    let mut known: BTreeMap<String, Field> = BTreeMap::new();
    for (_, catalog) in &catalogs {
        for (key, value) in catalog.metadata().iter() {
            if let (Some(key), Some(field)) = (key.strip_prefix(&prefix(catalog)), same(value)) {
                known.insert(key.to_owned(), field);
            }
        }
    }
    let mut runs = Runs::default();
    for (path, catalog) in &catalogs {
        let original = GgufWriter::copy_of(path);
        for (key, field) in &known {
            let key = prefix(catalog) + key;
            if catalog.metadata().iter().all(|(own, _)| *own != key) {
                println!("{}: {key} = {field:?}", path.display());
                runs.run(folder.path(), &original.clone().field(&key, field.clone()));
            }
        }
    }
    runs.check();
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
        joined: true,
        kv_type: KvType::F16,
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
