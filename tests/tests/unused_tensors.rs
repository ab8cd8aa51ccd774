//! Every tensor of a file is computed with, known to be needless, or refused by its name.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use emel::{KvType, Settings};
use emel_loader::gguf::{Catalog, Tensor};
use emel_model::arch;
use emel_model::error::ModelError;
use emel_model::program::UnusedPart;
use emel_tests::fixtures::{fixture, json};
use emel_tests::forward::{Cut, logits, logits_in_context};
use emel_tests::gguf_writer::{Field, GgufWriter};
use emel_tests::run;
use emel_tests::variants::{Results, packed_json};
use serde::Deserialize;

const CUT: Cut = Cut {
    unit_bytes: 1 << 20,
    experts: 16,
    chunk: 3,
    threads: 1,
    joined: true,
    kv_type: KvType::F32,
};

/// Scales of experts, one after the other. Powers of two do not round.
const FACTORS: [f32; 3] = [0.5, 4.0, 2.0];

/// A tiny model of one of the architectures.
struct Fixture {
    name: String,
    architecture: String,
    layers: usize,
    tensors: Vec<Tensor>,
    file: GgufWriter,
}

impl Fixture {
    fn open(path: &Path) -> Self {
        let catalog = Catalog::open(path).unwrap();
        let key = "general.architecture";
        Self {
            name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
            architecture: catalog.metadata().str(key).unwrap().unwrap().to_owned(),
            layers: arch::program(&catalog).unwrap().hyperparameters.layers,
            tensors: catalog.tensors().to_vec(),
            file: GgufWriter::copy_of(path),
        }
    }

    fn of(name: &str) -> Self {
        Self::open(&fixture("arch").join(format!("{name}.gguf")))
    }

    /// All of them.
    fn all() -> Vec<Self> {
        let entries = std::fs::read_dir(fixture("arch")).unwrap();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|it| it == "gguf"));
        paths.sort();
        paths.iter().map(|path| Self::open(path)).collect()
    }

    fn has(&self, name: &str) -> bool {
        self.tensors.iter().any(|tensor| tensor.name == name)
    }

    /// The file with the numbers of a tensor changed, by their place.
    fn changed(&self, tensor: &Tensor, change: impl Fn(usize, f32) -> f32) -> GgufWriter {
        let mut file = self.file.clone();
        let [(name, numbers)] = &file.take_f32(&tensor.name)[..] else {
            panic!("one {}", tensor.name);
        };
        let numbers = numbers.iter().enumerate();
        let numbers: Vec<f32> = numbers.map(|(place, &it)| change(place, it)).collect();
        file.f32_tensor(name, &tensor.dims, &numbers)
    }
}

/// Runs models in a folder of their own.
struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn write(&self, model: &GgufWriter) -> PathBuf {
        let path = self.folder.path().join("model.gguf");
        model.write(&path).unwrap();
        path
    }

    fn logits(&self, model: &GgufWriter) -> Result<Vec<f32>, ModelError> {
        let rows = logits(&self.write(model), CUT, &[5, 80, 300, 12])?;
        Ok(rows.concat())
    }

    fn parts(&self, model: &GgufWriter) -> Result<Vec<UnusedPart>, ModelError> {
        let catalog = Catalog::open(self.write(model)).unwrap();
        Ok(arch::program(&catalog)?.unused)
    }

    #[track_caller]
    fn refuses(&self, model: &GgufWriter, tensor: &str) {
        let error = self.parts(model).expect_err(tensor);
        self.names(&error, tensor);
    }

    #[track_caller]
    fn names(&self, error: &ModelError, tensor: &str) {
        assert!(
            error.to_string().contains(&format!("`{tensor}`")),
            "{error}"
        );
    }
}

/// A compressed model, unpacked into `folder`.
fn unpacked(name: &str, folder: &Path) -> PathBuf {
    let packed = std::fs::File::open(fixture(name)).unwrap();
    let model = folder.join("unpacked.gguf");
    let mut file = std::fs::File::create(&model).unwrap();
    std::io::copy(&mut flate2::read::GzDecoder::new(packed), &mut file).unwrap();
    model
}

#[derive(Deserialize)]
struct Golden {
    tokens: Vec<u32>,
    probe_ids: Vec<usize>,
    /// The largest logit of all.
    largest: f64,
    /// Per position: argmax, its logit, the runner-up's logit, the probes' logits.
    rows: Vec<Vec<f64>>,
}

/// A model against llama.cpp's logits, which may be off by `tolerance` of the largest.
fn check_golden(model: &Path, golden: &Golden, tolerance: f64) {
    let settings = Settings {
        kv_type: KvType::F32,
        ..run::settings(1 << 30, 256)
    };
    let rows = run::logits(model, settings, &golden.tokens).unwrap();
    assert_eq!(rows.len(), golden.rows.len());
    for (position, (row, expected)) in rows.iter().zip(&golden.rows).enumerate() {
        let ids = std::iter::once(expected[0] as usize).chain(golden.probe_ids.iter().copied());
        let logits = std::iter::once(expected[1]).chain(expected[3..].iter().copied());
        for (id, logit) in ids.zip(logits) {
            let difference = (f64::from(row[id]) - logit).abs();
            assert!(
                difference <= tolerance * golden.largest,
                "{}, position {position}: {} is {difference:e} from {logit}",
                model.display(),
                row[id]
            );
        }
    }
}

#[test]
fn a_scaled_matrix_gives_the_golden_logits() {
    let goldens: BTreeMap<String, Option<Golden>> = json("faults/golden.json");
    let name = "llama_scale.gguf";
    let folder = tempfile::tempdir().unwrap();
    let model = unpacked(&format!("faults/{name}.gz"), folder.path());
    check_golden(&model, goldens[name].as_ref().unwrap(), 2e-3);
}

#[test]
fn models_with_every_optional_tensor_give_the_golden_logits() {
    let goldens: BTreeMap<String, Golden> = json("peer/golden.json");
    assert_eq!(goldens.len(), 2);
    let folder = tempfile::tempdir().unwrap();
    for (name, golden) in &goldens {
        let model = unpacked(&format!("peer/{name}.gz"), folder.path());
        check_golden(&model, golden, 5e-4);
    }
}

#[test]
fn a_tensor_that_no_architecture_has_is_refused_by_name() {
    let bench = Bench::new();
    let folder = tempfile::tempdir().unwrap();
    let model = unpacked("faults/llama_extra_tensor.gguf.gz", folder.path());
    let catalog = Catalog::open(&model).unwrap();
    let original = Fixture::of("llama");
    let mut names = catalog.tensors().iter().map(|tensor| &tensor.name);
    let name = names.find(|name| !original.has(name)).unwrap();
    let error = arch::program(&catalog).unwrap_err();
    bench.names(&error, name);
    bench.names(&error, "llama");

    for Fixture { layers, file, .. } in Fixture::all() {
        for name in [
            "extra.weight".to_owned(),
            "blk.0.extra.weight".to_owned(),
            "blk.0.rope_freqs.weight".to_owned(),
            // A block more than the file says it has.
            format!("blk.{layers}.attn_norm.weight"),
        ] {
            bench.refuses(&file.clone().f32_tensor(&name, &[32], &[1.0; 32]), &name);
        }
    }
    let file = Fixture::of("qwen2").file;
    let name = "rope_freqs.weight";
    bench.refuses(&file.f32_tensor(name, &[4], &[1.0; 4]), name);

    let two = Fixture::of("qwen2").file;
    let two = two
        .f32_tensor("one", &[1], &[1.0])
        .f32_tensor("two", &[1], &[1.0]);
    let error = bench.parts(&two).unwrap_err().to_string();
    assert!(
        error.contains("tensor `one` (and another one) has no place"),
        "{error}"
    );
}

/// A model, a tensor, what is done with it, and llama.cpp's result.
type Variant = (String, String, Vec<String>, Option<usize>);

/// `tests/tools/tensors_reference.py` describes it.
#[derive(Deserialize)]
struct Variants {
    #[serde(flatten)]
    results: Results,
    shapes: BTreeMap<String, Vec<u64>>,
    variants: Vec<Variant>,
}

impl Variants {
    fn read() -> Self {
        packed_json("tensors/golden.json.gz")
    }

    /// llama.cpp's result, unless it refuses the file or passes over one of the kinds of what is
    /// beside the tensor.
    fn result(&self, model: &str, tensor: &str, kinds: &[String]) -> Option<usize> {
        let find = |tensor: &str, kinds: &[String]| {
            let is_it = |it: &&Variant| it.0 == model && it.1 == tensor && it.2 == kinds;
            self.variants.iter().find(is_it).and_then(|it| it.3)
        };
        let found = find(tensor, kinds)?;
        let changes = |left_out: usize| {
            let mut others = kinds.to_vec();
            others.remove(left_out);
            let tensor = if others.is_empty() { "" } else { tensor };
            find(tensor, &others) != Some(found)
        };
        (0..kinds.len()).all(changes).then_some(found)
    }

    /// Whether llama.cpp computes with such a tensor beside this one; all layers are alike.
    fn takes(&self, model: &str, tensor: &str, kind: &str) -> bool {
        let part = tensor.rsplit('.').next();
        let mut tried = self.variants.iter();
        tried.any(|(name, other, kinds, _)| {
            name == model
                && other.rsplit('.').next() == part
                && kinds == &[kind]
                && self.result(model, other, kinds).is_some()
        })
    }
}

/// What `tensors_reference.py` puts beside a tensor.
fn beside(model: GgufWriter, tensor: &Tensor, kind: &str) -> GgufWriter {
    let name = tensor.name.strip_suffix("weight").unwrap().to_owned() + kind;
    let (rows, experts) = rows_and_experts(tensor);
    if kind == "scale" {
        let scales: Vec<f32> = (0..experts.unwrap_or(1) as usize)
            .map(|expert| FACTORS[expert % FACTORS.len()])
            .collect();
        return model.f32_tensor(&name, &[scales.len() as u64], &scales);
    }
    let dims: Vec<u64> = [Some(rows), experts].into_iter().flatten().collect();
    numbered(model, &name, &dims, -0.25)
}

/// The model with a tensor more.
fn numbered(model: GgufWriter, name: &str, dims: &[u64], least: f32) -> GgufWriter {
    let numbers: Vec<f32> = (0..dims.iter().product::<u64>())
        .map(|place| (place * 7 % 5) as f32 / 8.0 + least)
        .collect();
    model.f32_tensor(name, dims, &numbers)
}

impl Variants {
    /// The file of a variant.
    fn file(&self, model: &Fixture, (_, tensor, kinds, _): &Variant) -> GgufWriter {
        let file = model.file.clone();
        match kinds.first().map(String::as_str) {
            Some("removed") => file.without(tensor),
            Some("added") => numbered(file, tensor, &self.shapes[tensor], 0.75),
            _ => {
                let is_it = |it: &&Tensor| it.name.strip_suffix(".weight") == Some(tensor);
                let tensor = model.tensors.iter().find(is_it);
                let beside = |file, kind: &String| beside(file, tensor.unwrap(), kind);
                kinds.iter().fold(file, beside)
            }
        }
    }

    /// What is wrong with our answer to a variant, if anything is.
    fn fault(&self, variant: &Variant, found: Result<Vec<Vec<f32>>, ModelError>) -> Option<String> {
        let (model, tensor, kinds, result) = variant;
        let is_changed = kinds
            .iter()
            .any(|kind| kind == "removed" || kind == "added");
        let taken = match is_changed {
            true => *result,
            false => self.result(model, tensor, kinds),
        };
        match (found, taken) {
            (Ok(rows), Some(result)) => self.results.difference(&rows, result),
            (Ok(_), None) => Some("llama.cpp does not compute with it".to_owned()),
            // Where a tensor is missing or one too many, another may be the first without use.
            (Err(error), None) if is_changed => {
                let error = error.to_string();
                let starts = ["tensor `", "hyperparameter `", "metadata key `"];
                let is_named = starts.iter().any(|start| error.starts_with(start));
                (!is_named).then_some(error)
            }
            (Err(error), taken) => {
                let error = error.to_string();
                let is_refused = taken.is_none() || is_changed;
                (!is_refused || !error.contains(tensor)).then_some(error)
            }
        }
    }
}

#[test]
fn any_change_of_tensors_gives_the_logits_of_llama_cpp_or_is_refused_by_name() {
    let golden = Variants::read();
    let bench = Bench::new();
    let models = Fixture::all().into_iter();
    let models: BTreeMap<String, Fixture> = models.map(|it| (it.name.clone(), it)).collect();
    let architectures: BTreeSet<&str> = models.values().map(|it| &*it.architecture).collect();
    assert_eq!(architectures, arch::supported().collect());
    let tried: BTreeSet<&String> = golden.variants.iter().map(|it| &it.0).collect();
    assert_eq!(tried, models.keys().collect());
    let mut faults = Vec::new();
    for variant in golden
        .variants
        .iter()
        .filter(|variant| !variant.2.is_empty())
    {
        let path = bench.write(&golden.file(&models[&variant.0], variant));
        let (tokens, context) = (&golden.results.tokens, golden.results.context);
        let fault = golden.fault(variant, logits_in_context(&path, CUT, tokens, context));
        faults.extend(fault.map(|fault| format!("{variant:?}: {fault}")));
    }
    assert!(
        faults.is_empty(),
        "{} faults:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

/// Rows of a matrix, and how many experts have one.
fn rows_and_experts(tensor: &Tensor) -> (u64, Option<u64>) {
    match tensor.dims[..] {
        [_] => (1, None),
        [_, rows] => (rows, None),
        [_, rows, experts] => (rows, Some(experts)),
        _ => panic!("{}", tensor.name),
    }
}

/// A factor of two does not round, so the bits are the same.
#[test]
fn a_scale_beside_any_matrix_multiplies_its_weights_or_is_refused_by_name() {
    let bench = Bench::new();
    let golden = Variants::read();
    for model in Fixture::all() {
        let plain = bench.logits(&model.file).unwrap();
        for tensor in &model.tensors {
            let Some(matrix) = tensor.name.strip_suffix(".weight") else {
                continue;
            };
            println!("{}: {matrix}", model.name);
            let name = format!("{matrix}.scale");
            let is_taken = golden.takes(&model.name, matrix, "scale");
            let scaled = beside(model.file.clone(), tensor, "scale");
            match bench.logits(&scaled) {
                Err(error) => {
                    assert!(!is_taken, "{error}");
                    bench.names(&error, &name);
                }
                Ok(found) => {
                    assert!(is_taken, "{name}");
                    let experts = rows_and_experts(tensor).1.unwrap_or(1);
                    let each = (tensor.dims.iter().product::<u64>() / experts) as usize;
                    let multiplied =
                        model.changed(tensor, |place, it| it * FACTORS[place / each % 3]);
                    assert!(found == bench.logits(&multiplied).unwrap(), "{name}");
                    assert!(found != plain, "{name} changes nothing");
                }
            }
        }
    }
}

#[test]
fn a_bias_beside_any_matrix_is_added_or_refused_by_name() {
    let bench = Bench::new();
    let golden = Variants::read();
    for model in Fixture::all() {
        let plain = bench.logits(&model.file).unwrap();
        for tensor in &model.tensors {
            let matrix = tensor.name.strip_suffix(".weight");
            let Some(matrix) = matrix.filter(|it| !model.has(&format!("{it}.bias"))) else {
                continue;
            };
            println!("{}: {matrix}", model.name);
            let name = format!("{matrix}.bias");
            let is_taken = golden.takes(&model.name, matrix, "bias");
            let biased = beside(model.file.clone(), tensor, "bias");
            match bench.logits(&biased) {
                Err(error) => {
                    assert!(!is_taken, "{error}");
                    bench.names(&error, &name);
                }
                Ok(found) => {
                    assert!(is_taken, "{name}");
                    assert!(found != plain, "{name} changes nothing");
                    let mut zeros = biased;
                    let [(_, numbers)] = &zeros.take_f32(&name)[..] else {
                        panic!("one {name}");
                    };
                    let (rows, experts) = rows_and_experts(tensor);
                    let dims: Vec<u64> = [Some(rows), experts].into_iter().flatten().collect();
                    let zeros = zeros.f32_tensor(&name, &dims, &vec![0.0; numbers.len()]);
                    assert!(bench.logits(&zeros).unwrap() == plain, "{name} of zeros");
                }
            }
        }
    }
}

#[test]
fn a_bias_of_the_logits_is_added_to_them() {
    let bench = Bench::new();
    for is_tied in [false, true] {
        let model = Fixture::of("qwen2").file;
        let model = if is_tied {
            model.without("output.weight")
        } else {
            model
        };
        let bias: Vec<f32> = (0..384).map(|id| id as f32 / 16.0 - 10.0).collect();
        let plain = bench.logits(&model).unwrap();
        let biased = model.f32_tensor("output.bias", &[384], &bias);
        let expected = plain.iter().zip(bias.iter().cycle());
        let expected: Vec<f32> = expected.map(|(logit, bias)| logit + bias).collect();
        assert!(bench.logits(&biased).unwrap() == expected);
    }
}

/// Older files have one matrix for queries, keys and values, but a bias for each.
#[test]
fn biases_of_queries_keys_and_values_are_those_of_their_one_matrix() {
    let bench = Bench::new();
    let model = Fixture::of("phi3");
    let qkv = model
        .tensors
        .iter()
        .find(|it| it.name == "blk.0.attn_qkv.weight")
        .unwrap();
    let rows = qkv.rows() as usize;
    let bias: Vec<f32> = (0..rows).map(|row| (row % 9) as f32 / 8.0 - 0.5).collect();
    let whole = model.file.clone();
    let whole = whole.f32_tensor("blk.0.attn_qkv.bias", &[rows as u64], &bias);
    let queries = 32;
    let keys = (rows - queries) / 2;
    let mut apart = model.file.clone();
    let mut rest = bias.as_slice();
    for (part, count) in [("q", queries), ("k", keys), ("v", keys)] {
        let (numbers, others) = rest.split_at(count);
        rest = others;
        apart = apart.f32_tensor(&format!("blk.0.attn_{part}.bias"), &[count as u64], numbers);
    }
    let found = bench.logits(&apart).unwrap();
    assert!(found == bench.logits(&whole).unwrap());
    assert!(found != bench.logits(&model.file).unwrap());
    // llama.cpp passes over some of the three.
    bench.refuses(
        &apart.clone().without("blk.0.attn_v.bias"),
        "blk.0.attn_q.bias",
    );
    // With both it would not be clear which to add.
    let both = apart.f32_tensor("blk.0.attn_qkv.bias", &[rows as u64], &bias);
    bench.refuses(&both, "blk.0.attn_q.bias");
}

#[test]
fn parts_of_no_text_model_are_left_out_and_listed() {
    let bench = Bench::new();
    for (model, tensor, part) in [
        ("qwen3", "cls.output.weight", "cls.output.*"),
        ("gemma3", "dense_2.weight", "dense_2.*"),
        ("gemma3", "dense_3.weight", "dense_3.*"),
        ("gemma3", "v.blk.0.attn_q.weight", "v.*"),
        ("gemma3", "mm.input_projection.weight", "mm.*"),
        ("lfm2", "dense_2.bias", "dense_2.*"),
        ("llama", "blk.0.ffn_up.input_scale", "*.input_scale"),
        ("mixtral", "blk.0.ffn_up_exps.input_scale", "*.input_scale"),
    ] {
        let Fixture { file, .. } = Fixture::of(model);
        let plain = bench.logits(&file).unwrap();
        let more = file.f32_tensor(tensor, &[1], &[3.0]);
        let [found] = &bench.parts(&more).unwrap()[..] else {
            panic!("one part with {tensor}");
        };
        assert_eq!(
            (found.name.as_str(), found.tensors, found.bytes),
            (part, 1, 4)
        );
        assert!(bench.logits(&more).unwrap() == plain, "{tensor}");
    }
    for (model, tensor) in [
        ("llama", "cls.output.weight"),
        ("llama", "dense_2.weight"),
        ("llama", "blk.0.ffn_norm.input_scale"),
        ("llama", "blk.0.other.input_scale"),
        ("llama", "vision.weight"),
    ] {
        let more = Fixture::of(model).file.f32_tensor(tensor, &[1], &[3.0]);
        bench.refuses(&more, tensor);
    }
}

#[test]
fn blocks_for_multi_token_prediction_are_left_out_where_the_file_says_so() {
    let bench = Bench::new();
    for name in ["glm4moe", "deepseek2", "qwen35moe", "qwen3moe"] {
        let model = Fixture::of(name);
        let plain = bench.logits(&model.file).unwrap();
        let (layers, architecture) = (model.layers, &model.architecture);
        let norm = format!("blk.{layers}.attn_norm.weight");
        let more = model.file.f32_tensor(&norm, &[32], &[1.0; 32]).f32_tensor(
            &format!("blk.{layers}.nextn.eh_proj.weight"),
            &[64, 32],
            &[1.0; 64 * 32],
        );
        let key = format!("{architecture}.block_count");
        let ahead = more
            .clone()
            .without(&key)
            .field(&key, Field::U32(layers as u32 + 1))
            .field(
                &format!("{architecture}.nextn_predict_layers"),
                Field::U32(1),
            );
        bench.refuses(&more, &norm);
        if name == "qwen3moe" {
            bench.refuses(&ahead, &norm);
            continue;
        }
        let [found] = &bench.parts(&ahead).unwrap()[..] else {
            panic!("one part of {name}");
        };
        assert_eq!(found.name, format!("blk.{layers}.*"));
        assert_eq!((found.tensors, found.bytes), (2, 4 * (32 + 64 * 32)));
        assert!(bench.logits(&ahead).unwrap() == plain, "{name}");
    }
}
