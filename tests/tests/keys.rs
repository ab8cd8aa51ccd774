//! Metadata keys, changed, added and removed: llama.cpp's logits, or a refusal that names the key.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use emel_loader::gguf::Catalog;
use emel_model::arch;
use emel_model::arch::known_keys::{Absence, known_keys};
use emel_model::kv_cache::KvType;
use emel_model::routing::Gating;
use emel_tests::fixtures::{fixture, json};
use emel_tests::forward::{Cut, logits, logits_in_context};
use emel_tests::gguf_writer::{Field, GgufWriter};
use emel_tests::variants::{Results, TOLERANCE, packed_json, unpacked};
use serde::Deserialize;
use serde_json::Value;

const CUT: Cut = Cut {
    unit_bytes: 1 << 20,
    experts: 16,
    chunk: 16,
    threads: 1,
    joined: true,
    kv_type: KvType::F32,
};

/// `tests/tools/keys_reference.py` describes it.
#[derive(Deserialize)]
struct Golden {
    #[serde(flatten)]
    results: Results,
    keys: BTreeMap<String, Vec<String>>,
    variants: Vec<Variant>,
}

fn golden() -> Golden {
    packed_json("keys/golden.json.gz")
}

/// A value in the type that the golden names.
fn field(kind: &Value, value: &Value) -> Field {
    let elements = || value.as_array().unwrap().iter();
    match (kind.as_u64(), kind.as_str()) {
        (Some(4), _) => Field::U32(value.as_u64().unwrap() as u32),
        (Some(6), _) => Field::F32(value.as_f64().unwrap() as f32),
        (Some(7), _) => Field::Bool(value.as_bool().unwrap()),
        (Some(8), _) => Field::string(value.as_str().unwrap()),
        (_, Some("i32s")) => {
            let numbers = elements().map(|number| number.as_i64().unwrap() as i32);
            Field::i32s(&numbers.collect::<Vec<_>>())
        }
        (_, Some("bools")) => {
            let flags = elements().map(|flag| flag.as_bool().unwrap());
            Field::bools(&flags.collect::<Vec<_>>())
        }
        _ => panic!("type {kind}"),
    }
}

fn architecture(model: &Path) -> String {
    let catalog = Catalog::open(model).unwrap();
    let found = catalog.metadata().str("general.architecture").unwrap();
    found.unwrap().to_owned()
}

/// The model with each key, which is without its prefix, set to its value or removed.
fn changed(original: &GgufWriter, architecture: &str, changes: &[Vec<Value>]) -> GgufWriter {
    let mut model = original.clone();
    for change in changes {
        let key = format!("{architecture}.{}", change[0].as_str().unwrap());
        model = model.without(&key);
        if let [_, kind, value] = &change[..] {
            model = model.field(&key, field(kind, value));
        }
    }
    model
}

/// Whether the family has its own value for a key that is removed: others than llama.cpp's.
fn takes_own_value(architecture: &str, changes: &[Vec<Value>]) -> bool {
    let is_own = |suffix: &str| {
        let key = known_keys(architecture).find(|key| key.suffix == suffix);
        matches!(key.map(|key| key.absence), Some(Absence::Own(_)))
    };
    let mut removed = changes.iter().filter(|change| change.len() == 1);
    removed.any(|change| is_own(change[0].as_str().unwrap()))
}

/// Whether a dense model gets numbers of experts, which llama.cpp refuses to have at hand. They mean
/// nothing.
fn counts_experts_of_none(model: &GgufWriter, changes: &[Vec<Value>]) -> bool {
    let mut changed = changes.iter().map(|change| change[0].as_str().unwrap());
    let counts = [
        "expert_used_count",
        "expert_group_count",
        "expert_group_used_count",
    ];
    changed.all(|suffix| counts.contains(&suffix)) && !model.has_tensor("blk.1.ffn_gate_inp.weight")
}

/// What is wrong with our answer to a variant, if anything is.
fn fault(
    golden: &Results,
    path: &Path,
    changes: &[Vec<Value>],
    result: Option<usize>,
) -> Option<String> {
    match (
        logits_in_context(path, CUT, &golden.tokens, golden.context),
        result,
    ) {
        (Ok(_), None) => Some("computed, where llama.cpp refuses".to_owned()),
        (Ok(rows), Some(result)) => golden.difference(&rows, result),
        (Err(error), result) => {
            let error = error.to_string();
            let names_change = changes
                .iter()
                .any(|change| error.contains(change[0].as_str().unwrap()));
            // What does not fit together may be named by another part of it.
            let starts = ["tensor `", "hyperparameter `", "metadata key `"];
            let names_part = starts.iter().any(|start| error.starts_with(start));
            let is_named = names_change || result.is_none() && names_part;
            (!is_named).then(|| format!("refused without its name: {error}"))
        }
    }
}

/// One variant of a model: its name, what is changed, and the result of llama.cpp.
type Variant = (String, Vec<Vec<Value>>, Option<usize>);

fn faults(golden: &Results, variants: &[Variant]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("changed.gguf");
    let mut originals = BTreeMap::new();
    let mut faults = Vec::new();
    for (name, changes, result) in variants {
        let (architecture, original) = originals.entry(name).or_insert_with(|| {
            let model = fixture("arch").join(format!("{name}.gguf"));
            (architecture(&model), GgufWriter::copy_of(&model))
        });
        if takes_own_value(architecture, changes)
            || result.is_none() && counts_experts_of_none(original, changes)
        {
            continue;
        }
        let model = changed(original, architecture, changes);
        model.write(&path).unwrap();
        let fault = fault(golden, &path, changes, *result);
        faults.extend(fault.map(|fault| format!("{name} {changes:?}: {fault}")));
    }
    faults
}

#[test]
fn any_key_gives_the_logits_of_llama_cpp_or_is_refused_by_name() {
    let golden = golden();
    let half = golden.variants.len().div_ceil(2);
    let found = std::thread::scope(|scope| {
        let halves = golden.variants.chunks(half);
        let workers: Vec<_> = halves
            .map(|variants| scope.spawn(|| faults(&golden.results, variants)))
            .collect();
        let found = workers.into_iter().map(|worker| worker.join().unwrap());
        found.flatten().collect::<Vec<_>>()
    });
    assert!(
        found.is_empty(),
        "{} faults:\n{}",
        found.len(),
        found.join("\n")
    );
}

/// Keys that change no logits of a text: names, what the embedding of a whole text would be, and
/// what only multi-modal input and other architectures look at.
const WITHOUT_EFFECT: [&str; 7] = [
    "vocab_size",
    "embedding_length_out",
    "pooling_type",
    "classifier.output_labels",
    "classifier.pooling_type",
    "rope.scaling.alpha",
    "rope.scaling.finetuned",
];

#[test]
fn the_table_has_every_key_that_llama_cpp_reads() {
    let golden = golden();
    let supported: BTreeSet<&str> = arch::supported().collect();
    let listed: BTreeSet<&str> = golden.keys.keys().map(String::as_str).collect();
    assert_eq!(supported, listed);
    let tried = golden.variants.iter().map(|(model, ..)| model);
    let tried: BTreeSet<String> = tried
        .map(|model| architecture(&fixture("arch").join(format!("{model}.gguf"))))
        .collect();
    assert_eq!(supported, tried.iter().map(String::as_str).collect());
    for (architecture, keys) in &golden.keys {
        let known: BTreeSet<&str> = known_keys(architecture).map(|key| key.suffix).collect();
        let has_window = known.contains("attention.sliding_window");
        for key in keys {
            let without_effect = WITHOUT_EFFECT.contains(&key.as_str())
                // Layers with a window, and the window of a family that has none in llama.cpp.
                || !has_window && (key.ends_with("_swa") || key == "attention.sliding_window")
                // Families without experts.
                || key.starts_with("expert_group_")
                    && matches!(&**architecture, "qwen2" | "qwen3" | "gemma2" | "gemma3" | "phi3")
                // Images enter there, texts do not.
                || key == "deepstack_mapping";
            assert!(
                known.contains(key.as_str()) || without_effect,
                "{architecture}: {key}"
            );
        }
        for key in known {
            assert!(
                keys.iter().any(|read| read == key),
                "{architecture}: {key} is not read"
            );
        }
    }
}

/// A value of a type that the key cannot have.
fn wrong(suffix: &str) -> Field {
    match suffix {
        "rope.scaling.type" => Field::U32(1),
        _ => Field::string("wrong"),
    }
}

/// Other keys that have to be there for a key to be read.
fn made_readable(model: GgufWriter, architecture: &str, suffix: &str) -> GgufWriter {
    let with = |model: GgufWriter, suffix: &str, field: Field| {
        let key = format!("{architecture}.{suffix}");
        model.without(&key).field(&key, field)
    };
    match suffix {
        _ if suffix.starts_with("expert_") && suffix != "expert_count" => {
            let model = with(model, "expert_count", Field::U32(8));
            let model = with(model, "expert_used_count", Field::U32(2));
            let model = with(model, "expert_group_count", Field::U32(2));
            with(model, "expert_group_used_count", Field::U32(1))
        }
        "rope.scale_linear" => model.without(&format!("{architecture}.rope.scaling.factor")),
        "attention.temperature_length" => {
            with(model, "attention.temperature_scale", Field::F32(0.1))
        }
        _ => model,
    }
}

#[test]
fn every_key_of_the_table_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("changed.gguf");
    for architecture in arch::supported() {
        let model = fixture("arch").join(format!("{architecture}.gguf"));
        let original = GgufWriter::copy_of(&model);
        for key in known_keys(architecture) {
            let name = format!("{architecture}.{}", key.suffix);
            let model = made_readable(original.clone(), architecture, key.suffix);
            let model = model.without(&name).field(&name, wrong(key.suffix));
            model.write(&path).unwrap();
            let error = arch::program(&Catalog::open(&path).unwrap())
                .map(|_| ())
                .expect_err(&name);
            assert!(error.to_string().contains(&name), "{name}: {error}");
        }
    }
}

/// llama.cpp's logits of a file in `fixtures/faults`.
#[derive(Deserialize)]
struct Fault {
    tokens: Vec<u32>,
    probe_ids: Vec<usize>,
    largest: f64,
    /// Per position: argmax, its logit, the runner-up's logit, the probes' logits.
    rows: Vec<Vec<f64>>,
}

/// Writes a file of `fixtures/faults` into `folder`.
fn write_fault(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, unpacked(&format!("faults/{name}.gz"))).unwrap();
    path
}

#[test]
fn files_of_public_reports_give_the_logits_of_llama_cpp() {
    let folder = tempfile::tempdir().unwrap();
    let mut goldens: BTreeMap<String, Option<Fault>> = json("faults/golden.json");
    for name in [
        "gemma3_no_window_yarn.gguf",
        "deepseek2_temperature.gguf",
        "qwen2moe_old.gguf",
    ] {
        let golden = goldens.remove(name).flatten().unwrap();
        let path = write_fault(folder.path(), name);
        let rows = logits(&path, CUT, &golden.tokens).unwrap();
        assert_eq!(rows.len(), golden.rows.len());
        for (position, (row, expected)) in rows.iter().zip(&golden.rows).enumerate() {
            let probes = golden.probe_ids.iter().zip(&expected[3..]);
            let argmax = (&(expected[0] as usize), &expected[1]);
            for (&id, &expected) in probes.chain([argmax]) {
                let difference = (f64::from(row[id]) - expected).abs();
                let limit = TOLERANCE * golden.largest;
                assert!(
                    difference <= limit,
                    "{name}, {position}, {id}: {difference}"
                );
            }
        }
    }
}

fn notes(path: &Path) -> Vec<String> {
    arch::program(&Catalog::open(path).unwrap()).unwrap().notes
}

#[test]
fn gemma3_without_epsilon_and_rope_base_runs_with_its_own_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let ollama = write_fault(folder.path(), "gemma3_ollama_keys.gguf");
    assert_eq!(
        notes(&ollama),
        [
            "`gemma3.attention.layer_norm_rms_epsilon` is missing; 0.000001, the family's own value, is used",
            "`gemma3.rope.freq_base` is missing; 1000000, the family's own value, is used",
        ]
    );
    let complete = folder.path().join("complete.gguf");
    GgufWriter::copy_of(&ollama)
        .field("gemma3.attention.layer_norm_rms_epsilon", Field::F32(1e-6))
        .field("gemma3.rope.freq_base", Field::F32(1e6))
        .write(&complete)
        .unwrap();
    assert!(notes(&complete).is_empty());
    let without_base = folder.path().join("without_base.gguf");
    GgufWriter::copy_of(&complete)
        .without("gemma3.rope.freq_base")
        .write(&without_base)
        .unwrap();
    assert_eq!(
        notes(&without_base),
        ["`gemma3.rope.freq_base` is missing; 10000, llama.cpp's value, is used"]
    );
    let tokens = [5, 80, 300, 12, 7, 9];
    let run = |path: &Path| logits(path, CUT, &tokens).unwrap();
    assert_eq!(run(&ollama), run(&complete));
}

#[test]
fn what_is_read_as_something_else_or_passed_over_is_noted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let noted = |model: &str, key: &str, field: Field| {
        let original = GgufWriter::copy_of(&fixture("arch").join(model));
        original
            .without(key)
            .field(key, field)
            .write(&path)
            .unwrap();
        notes(&path)
    };
    let zero = Field::F32(0.0);
    for (model, key, field, note) in [
        (
            "llama",
            "rope.scaling.factor",
            zero.clone(),
            "is 0, which is read as 1",
        ),
        (
            "llama",
            "rope.scaling.yarn_ext_factor",
            zero,
            "is 0; it is passed over",
        ),
        (
            "phi3",
            "attention.sliding_window",
            Field::U32(7),
            "is 7; it is passed over",
        ),
    ] {
        let key = format!("{model}.{key}");
        let found = noted(&format!("{model}.gguf"), &key, field);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(&format!("`{key}` {note}")), "{found:?}");
    }
}

/// Blocks as many as GLM-4.7-Flash has, all alike but the first.
fn deepened(blocks: usize) -> GgufWriter {
    let path = fixture("arch/deepseek2.gguf");
    let mut model = GgufWriter::copy_of(&path);
    let catalog = Catalog::open(&path).unwrap();
    for tensor in catalog.tensors() {
        let Some(part) = tensor.name.strip_prefix("blk.1.") else {
            continue;
        };
        let (_, numbers) = model.clone().take_f32(&tensor.name).remove(0);
        for block in 3..blocks {
            model = model.f32_tensor(&format!("blk.{block}.{part}"), &tensor.dims, &numbers);
        }
    }
    let key = "deepseek2.block_count";
    model.without(key).field(key, Field::U32(blocks as u32))
}

#[test]
fn glm_4_7_flash_without_its_gating_function_gates_by_sigmoid() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let gating = |blocks: usize, vocabulary: u32| {
        let (count, gating) = ("deepseek2.vocab_size", "deepseek2.expert_gating_func");
        let model = deepened(blocks).without(count).without(gating);
        let model = model.field(count, Field::U32(vocabulary));
        model.write(&path).unwrap();
        let program = arch::program(&Catalog::open(&path).unwrap()).unwrap();
        program.routers[0].gating
    };
    assert_eq!(gating(47, 154_880), Gating::Sigmoid);
    assert_eq!(gating(48, 154_880), Gating::Sigmoid);
    assert_eq!(gating(46, 154_880), Gating::Softmax);
    assert_eq!(gating(47, 384), Gating::Softmax);
}
