//! Models of random weights: they load, run, and are what they are said to be.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use emel_bench::synth::{Architecture, Experts, RandomBlocks, Routing, Synth, SynthError};
use emel_kernels::{Format, Kernels};
use emel_loader::gguf::{Catalog, Tensor, TensorType};
use emel_tests::run::{logits, settings};
use rand_core::SeedableRng;
use rand_pcg::Pcg64Mcg;

fn llama() -> Synth {
    Synth {
        architecture: Architecture::Llama,
        layers: 3,
        embedding: 512,
        feed_forward: 768,
        heads: 8,
        kv_heads: 2,
        head_dim: 64,
        vocabulary: 1000,
        context: 256,
        format: Format::Q4_K,
        head_format: Format::Q6_K,
        tied: true,
        routing: Routing::default(),
        seed: 1,
    }
}

fn qwen3moe() -> Synth {
    let experts = Experts {
        count: 16,
        used: 4,
        feed_forward: 256,
    };
    Synth {
        architecture: Architecture::Qwen3Moe(experts),
        tied: false,
        ..llama()
    }
}

fn written(synth: &Synth, folder: &Path) -> PathBuf {
    let path = folder.join("synth.gguf");
    let bytes = synth.write(&path, 2).unwrap();
    assert_eq!(bytes, path.metadata().unwrap().len());
    path
}

fn weights(catalog: &Catalog, tensor: &Tensor) -> Vec<f32> {
    let mut bytes = vec![0; tensor.extent.bytes as usize];
    std::fs::File::open(&catalog.files()[0].path)
        .unwrap()
        .read_exact_at(&mut bytes, tensor.extent.offset)
        .unwrap();
    let format = Format::from_ggml_type(tensor.tensor_type.id()).unwrap();
    let mut weights = vec![0.0; (tensor.rows() * tensor.columns()) as usize];
    Kernels::scalar().dequantise_row(format, &bytes, &mut weights);
    weights
}

fn mean_and_deviation(numbers: &[f32]) -> (f64, f64) {
    let count = numbers.len() as f64;
    let mean = numbers.iter().map(|&it| f64::from(it)).sum::<f64>() / count;
    let squares = numbers.iter().map(|&it| (f64::from(it) - mean).powi(2));
    (mean, (squares.sum::<f64>() / count).sqrt())
}

#[test]
fn blocks_of_every_format_have_the_wanted_deviation_and_no_mean() {
    for &format in Format::ALL {
        let mut random = Pcg64Mcg::seed_from_u64(7);
        let blocks = RandomBlocks::new(format, 0.02, &mut random);
        let count = 1 << 18;
        let mut bytes = vec![0; format.row_bytes(count).unwrap()];
        blocks.fill(&mut bytes, &mut random);
        let mut weights = vec![0.0; count];
        Kernels::scalar().dequantise_row(format, &bytes, &mut weights);
        let (mean, deviation) = mean_and_deviation(&weights);
        // The scale of MXFP4 is a power of two.
        let factor = if format == Format::MXFP4 { 1.5 } else { 1.1 };
        assert!(
            (0.02 / factor..0.02 * factor).contains(&deviation),
            "{format}: {deviation}"
        );
        assert!(mean.abs() < 0.05 * deviation, "{format}: mean {mean}");
    }
}

#[test]
fn a_llama_runs_and_its_logits_are_of_sane_magnitude() {
    let folder = tempfile::tempdir().unwrap();
    for tied in [true, false] {
        let path = written(&Synth { tied, ..llama() }, folder.path());
        let rows = logits(&path, settings(1 << 30, 16), &[5, 300, 999, 42]).unwrap();
        for row in rows {
            assert_eq!(row.len(), 1000);
            let (_, deviation) = mean_and_deviation(&row);
            assert!((0.5..2.0).contains(&deviation), "tied {tied}: {deviation}");
        }
    }
}

#[test]
fn a_mixture_states_its_experts_and_has_their_matrices() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(written(&qwen3moe(), folder.path())).unwrap();
    let number = |key: &str| catalog.metadata().u32(&format!("qwen3moe.{key}")).unwrap();
    assert_eq!(number("block_count"), Some(3));
    assert_eq!(number("expert_count"), Some(16));
    assert_eq!(number("expert_used_count"), Some(4));
    assert_eq!(number("expert_feed_forward_length"), Some(256));
    let down = catalog.tensor("blk.2.ffn_down_exps.weight").unwrap();
    assert_eq!(down.dims, [256, 512, 16]);
    assert_eq!(down.tensor_type, TensorType::Q4_K);
    let head = catalog.tensor("output.weight").unwrap();
    assert_eq!(head.tensor_type, TensorType::Q6_K);
    let router = catalog.tensor("blk.0.ffn_gate_inp.weight").unwrap();
    assert_eq!(router.tensor_type, TensorType::F32);
    let tokens = catalog.metadata().strings("tokenizer.ggml.tokens").unwrap();
    assert_eq!(tokens.unwrap().len(), 1000);
}

#[test]
fn the_file_depends_on_the_seed_and_not_on_the_threads() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = |seed, threads| {
        let path = folder.path().join("seeded.gguf");
        Synth { seed, ..qwen3moe() }.write(&path, threads).unwrap();
        std::fs::read(path).unwrap()
    };
    let one = bytes(1, 1);
    assert!(one == bytes(1, 3));
    assert!(one != bytes(2, 1));
}

#[test]
fn a_file_without_weights_has_the_header_and_the_length_of_the_whole_model() {
    let folder = tempfile::tempdir().unwrap();
    let whole = written(&qwen3moe(), folder.path());
    let hollow = folder.path().join("hollow.gguf");
    let bytes = qwen3moe().write_without_weights(&hollow).unwrap();
    assert_eq!(bytes, whole.metadata().unwrap().len());
    assert_eq!(bytes, hollow.metadata().unwrap().len());
    let described = |path: &Path| Catalog::open(path).unwrap().tensors().to_vec();
    assert_eq!(described(&hollow), described(&whole));
}

/// The mean logit of each expert over tokens, per layer, as the first layer sees them.
fn expert_means(routing: Routing) -> Vec<Vec<f32>> {
    let folder = tempfile::tempdir().unwrap();
    let path = written(
        &Synth {
            routing,
            ..qwen3moe()
        },
        folder.path(),
    );
    let catalog = Catalog::open(path).unwrap();
    let embeddings = weights(&catalog, catalog.tensor("token_embd.weight").unwrap());
    let sums = embeddings
        .chunks(512)
        .fold(vec![0.0; 512], |mut sums, row| {
            sums.iter_mut().zip(row).for_each(|(sum, it)| *sum += it);
            sums
        });
    let layers = 0..3;
    let rows = |layer| {
        let name = format!("blk.{layer}.ffn_gate_inp.weight");
        weights(&catalog, catalog.tensor(&name).unwrap())
    };
    let mean = |row: &[f32]| row.iter().zip(&sums).map(|(w, sum)| w * sum / 1000.0).sum();
    layers
        .map(|layer| rows(layer).chunks(512).map(mean).collect())
        .collect()
}

#[test]
fn skew_gives_experts_advantages_and_correlation_makes_them_common_to_layers() {
    let deviation = |numbers: &[f32]| mean_and_deviation(numbers).1;
    for layer in expert_means(Routing::default()) {
        assert!(deviation(&layer) < 0.1, "{layer:?}");
    }
    let routing = Routing {
        skew: 2.0,
        correlation: 0.0,
    };
    for layer in expert_means(routing) {
        // Sixteen experts are a small sample.
        assert!((1.0..3.5).contains(&deviation(&layer)), "{layer:?}");
    }
    let same = expert_means(Routing {
        skew: 2.0,
        correlation: 1.0,
    });
    assert!(same[0] == same[1] && same[1] == same[2]);
}

#[test]
fn impossible_shapes_are_refused() {
    let path = Path::new("/nonexistent/never-written.gguf");
    let refusal = |synth: Synth| match synth.write(path, 1) {
        Err(SynthError::Write(error)) => panic!("not refused before writing: {error}"),
        Err(error) => error.to_string(),
        Ok(_) => panic!("written"),
    };
    let base = llama;
    let text = refusal(Synth {
        embedding: 500,
        ..base()
    });
    assert!(text.contains("token_embd.weight: 500 columns"), "{text}");
    let text = refusal(Synth {
        kv_heads: 3,
        ..base()
    });
    assert!(text.contains("kv-heads is 3"), "{text}");
    let text = refusal(Synth {
        vocabulary: 100,
        ..base()
    });
    assert!(
        text.contains("vocab is 100, expected at least 258"),
        "{text}"
    );
    let routing = Routing {
        skew: 1.0,
        correlation: 0.0,
    };
    let text = refusal(Synth { routing, ..base() });
    assert!(text.contains("0 without experts"), "{text}");
    let text = refusal(Synth {
        routing,
        tied: true,
        ..qwen3moe()
    });
    assert!(text.contains("skew is 1"), "{text}");
}
