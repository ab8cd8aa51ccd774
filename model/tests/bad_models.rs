//! Models that lie about themselves: an error that names what is wrong, and no panic.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use emel_loader::gguf::{Catalog, TensorType};
use emel_model::arch;
use emel_model::hyperparameters::Hyperparameters;
use emel_model::program::{Buffer, ProgramBuilder};
use emel_tests::fixtures::fixture;
use emel_tests::gguf_writer::{Field, GgufWriter};

fn open(writer: &GgufWriter) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    writer.write(&path).unwrap();
    let catalog = Catalog::open(&path).unwrap();
    arch::program(&catalog)
        .map(|_| ())
        .map_err(|error| error.to_string())
}

fn copy(name: &str) -> GgufWriter {
    GgufWriter::copy_of(&fixture("arch").join(name))
}

/// Checks that each changed hyperparameter is refused by its name, saying `expected`.
fn refuses(model: &str, architecture: &str, changes: &[(&str, Field, &str)]) {
    let original = copy(model);
    assert!(open(&original).is_ok(), "{model} is good");
    for (suffix, field, expected) in changes {
        let key = format!("{architecture}.{suffix}");
        let changed = original.clone().without(&key).field(&key, field.clone());
        let error = open(&changed).expect_err(&key);
        assert!(
            error.contains(&key) && error.contains(expected),
            "{key}: {error}"
        );
    }
}

#[test]
fn absurd_hyperparameters_are_named() {
    let zero = || Field::U32(0);
    let changes = [
        (
            "attention.head_count",
            zero(),
            "expected a positive integer",
        ),
        (
            "attention.head_count_kv",
            zero(),
            "expected a positive integer",
        ),
        (
            "attention.head_count_kv",
            Field::U32(3),
            "a divisor of the 4",
        ),
        ("block_count", zero(), "expected a positive integer"),
        ("embedding_length", Field::U32(u32::MAX), "below 2^28"),
        ("embedding_length", Field::I32(-1), "expected"),
        ("embedding_length", Field::string("wide"), "expected"),
        ("context_length", zero(), "expected a positive integer"),
        ("rope.dimension_count", Field::U32(7), "an even number"),
        (
            "rope.dimension_count",
            Field::U32(18),
            "up to the head's width 16",
        ),
        ("rope.freq_base", Field::F32(-1.0), "a positive number"),
        ("rope.freq_base", Field::F32(f32::NAN), "a positive number"),
        ("rope.scaling.factor", Field::F32(-1.0), "a positive number"),
        ("attention.causal", Field::Bool(false), "expected true"),
        (
            "rope.dimension_count",
            Field::U32(8),
            "expected the head's width 16",
        ),
        ("rope.scaling.type", Field::string("dynamic"), "`yarn`"),
        (
            "attention.layer_norm_rms_epsilon",
            Field::F32(f32::INFINITY),
            "a positive number",
        ),
        ("nextn_predict_layers", Field::U32(3), "fewer than the 3"),
        (
            "attention.head_count",
            Field::i32s(&[4, 2, 4]),
            "different in each layer",
        ),
    ];
    refuses("qwen3.gguf", "qwen3", &changes);
}

#[test]
fn absurd_mixtures_are_named() {
    refuses(
        "qwen3moe.gguf",
        "qwen3moe",
        &[
            ("expert_used_count", Field::U32(0), "a positive integer"),
            (
                "expert_used_count",
                Field::U32(17),
                "at most the 16 experts",
            ),
            (
                "expert_group_count",
                Field::U32(3),
                "a divisor of the 16 experts",
            ),
        ],
    );
    refuses(
        "glm4moe.gguf",
        "glm4moe",
        &[
            ("expert_gating_func", Field::U32(9), "2 (sigmoid)"),
            (
                "expert_weights_scale",
                Field::F32(-2.0),
                "a positive number",
            ),
            (
                "rope.dimension_sections",
                Field::i32s(&[1, 1]),
                "four numbers",
            ),
        ],
    );
    // Two groups of eight, of which one would do for the four experts in use.
    let grouped = copy("qwen3moe.gguf").field("qwen3moe.expert_group_count", Field::U32(2));
    let error = open(&grouped).unwrap_err();
    assert!(error.contains("expert_group_used_count"), "{error}");
    for (used, is_good) in [(0, false), (1, true), (2, true), (3, false)] {
        let key = "qwen3moe.expert_group_used_count";
        let found = open(&grouped.clone().field(key, Field::U32(used)));
        assert_eq!(found.is_ok(), is_good, "{used} groups");
    }
    // Four groups of four: with five experts in use, one group is too few.
    let narrow = copy("qwen3moe.gguf")
        .without("qwen3moe.expert_used_count")
        .field("qwen3moe.expert_used_count", Field::U32(5))
        .field("qwen3moe.expert_group_count", Field::U32(4))
        .field("qwen3moe.expert_group_used_count", Field::U32(1));
    let error = open(&narrow).unwrap_err();
    assert!(error.contains("2 to 4 groups of 4 experts"), "{error}");
}

#[test]
fn a_dense_model_has_no_groups_of_experts() {
    for (model, architecture) in [("llama.gguf", "llama"), ("granite.gguf", "granite")] {
        let key = |suffix: &str| format!("{architecture}.{suffix}");
        let grouped = copy(model)
            .field(&key("expert_group_count"), Field::U32(2))
            .field(&key("expert_group_used_count"), Field::U32(1));
        assert_eq!(open(&grouped), Ok(()), "{model}");
        let counted = grouped.field(&key("expert_count"), Field::U32(0));
        assert_eq!(open(&counted), Ok(()), "{model}");
    }
}

#[test]
fn a_norm_that_reaches_into_the_next_token_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    copy("llama.gguf")
        .f32_tensor("narrow", &[5], &[1.0; 5])
        .write(&path)
        .unwrap();
    let catalog = Catalog::open(&path).unwrap();
    let shape = Hyperparameters::read(&catalog).unwrap();
    let mut builder = ProgramBuilder::new(&catalog, shape).unwrap();
    let error = builder.norm_heads("narrow", Buffer::Residual, 5);
    assert_eq!(
        error.unwrap_err().to_string(),
        "tensor `narrow` is 5, expected a divisor of the 32 values that it norms"
    );
}

#[test]
fn absurd_recurrent_and_latent_layers_are_named() {
    let number = Field::U32;
    refuses(
        "lfm2.gguf",
        "lfm2",
        &[
            ("shortconv.l_cache", number(0), "a positive integer"),
            ("shortconv.l_cache", number(65), "at most 64 taps"),
            (
                "attention.head_count_kv",
                Field::i32s(&[0, 2]),
                "one for each of 4",
            ),
            (
                "attention.head_count_kv",
                Field::i32s(&[0, 3, 0, 2]),
                "a divisor of the 4",
            ),
            (
                "attention.head_count_kv",
                Field::i32s(&[0; 4]),
                "heads in some layer",
            ),
            (
                "attention.head_count_kv",
                Field::i32s(&[0, -2, 0, 2]),
                "no negative number",
            ),
        ],
    );
    refuses(
        "qwen35moe.gguf",
        "qwen35moe",
        &[
            ("ssm.conv_kernel", number(u32::MAX), "below 2^28"),
            ("ssm.conv_kernel", number(1000), "at most 64 taps"),
            ("ssm.group_count", number(0), "a positive integer"),
            (
                "ssm.time_step_rank",
                number(3),
                "a multiple of the 2 key heads",
            ),
            ("ssm.inner_size", number(36), "a multiple of 8"),
            ("full_attention_interval", number(0), "a positive integer"),
            (
                "rope.dimension_sections",
                Field::i32s(&[1, 1, 1, 1]),
                "no pair in the fourth section",
            ),
        ],
    );
    refuses(
        "deepseek2.gguf",
        "deepseek2",
        &[
            (
                "attention.key_length_mla",
                number(4),
                "more than the 4 dimensions",
            ),
            ("attention.key_length_mla", number(0), "a positive integer"),
            ("attention.kv_lora_rank", number(0), "a positive integer"),
            ("attention.q_lora_rank", number(u32::MAX), "below 2^28"),
            (
                "rope.scaling.yarn_log_multiplier",
                Field::F32(-1.0),
                "a positive number",
            ),
        ],
    );
}

#[test]
fn missing_hyperparameters_are_named() {
    for (model, key) in [
        ("qwen3.gguf", "qwen3.attention.head_count"),
        ("qwen3.gguf", "qwen3.block_count"),
        ("qwen3.gguf", "qwen3.embedding_length"),
        ("qwen3.gguf", "qwen3.feed_forward_length"),
        ("qwen3.gguf", "qwen3.context_length"),
        ("qwen3moe.gguf", "qwen3moe.expert_used_count"),
        ("qwen3moe.gguf", "qwen3moe.expert_count"),
        ("gpt-oss.gguf", "gpt-oss.attention.sliding_window"),
        ("lfm2.gguf", "lfm2.shortconv.l_cache"),
        ("qwen35moe.gguf", "qwen35moe.ssm.conv_kernel"),
        ("qwen35moe.gguf", "qwen35moe.ssm.inner_size"),
        ("qwen35moe.gguf", "qwen35moe.ssm.state_size"),
        ("qwen35moe.gguf", "qwen35moe.ssm.time_step_rank"),
        ("qwen35moe.gguf", "qwen35moe.ssm.group_count"),
        ("deepseek2.gguf", "deepseek2.attention.kv_lora_rank"),
        ("deepseek2.gguf", "deepseek2.attention.q_lora_rank"),
    ] {
        let error = open(&copy(model).without(key)).expect_err(key);
        assert!(error.contains(key), "{key}: {error}");
    }
}

/// Families whose output head is never the embedding.
const HAVE_OWN_HEAD: [&str; 3] = ["gpt-oss.gguf", "minimax-m2.gguf", "qwen2moe.gguf"];

#[test]
fn every_missing_tensor_is_named_unless_the_model_works_without_it() {
    for model in [
        "gemma2.gguf",
        "glm4moe.gguf",
        "gpt-oss.gguf",
        "minimax-m2.gguf",
        "mixtral.gguf",
        "phi3.gguf",
        "qwen2moe.gguf",
        "lfm2moe.gguf",
        "qwen35moe.gguf",
        "deepseek2.gguf",
    ] {
        let original = copy(model);
        let catalog = Catalog::open(fixture("arch").join(model)).unwrap();
        for tensor in catalog.tensors() {
            let is_optional = match tensor.name.as_str() {
                "output.weight" => !HAVE_OWN_HEAD.contains(&model),
                name if name.ends_with("exp_probs_b.bias") => model == "deepseek2.gguf",
                name => ["attn_q.bias", "attn_k.bias", "attn_v.bias"]
                    .iter()
                    .any(|bias| name.ends_with(bias)),
            };
            match open(&original.clone().without(&tensor.name)) {
                Ok(()) => assert!(is_optional, "{model} without {}", tensor.name),
                Err(error) => {
                    assert!(!is_optional, "{model}: {error}");
                    assert!(error.contains(&tensor.name), "{model}: {error}");
                    assert!(error.contains("is missing"), "{model}: {error}");
                }
            }
        }
    }
}

#[test]
fn tensors_of_another_shape_or_type_are_named() {
    for (model, name, dims) in [
        ("mixtral.gguf", "blk.1.ffn_gate_inp.weight", vec![32, 7]),
        ("mixtral.gguf", "blk.1.ffn_up_exps.weight", vec![32, 64, 7]),
        ("mixtral.gguf", "blk.1.ffn_up_exps.weight", vec![32, 512]),
        ("mixtral.gguf", "blk.1.ffn_up_exps.weight", vec![32, 8, 64]),
        (
            "mixtral.gguf",
            "blk.1.ffn_down_exps.weight",
            vec![32, 64, 8],
        ),
        ("mixtral.gguf", "blk.2.attn_q.weight", vec![32, 31]),
        ("mixtral.gguf", "blk.0.attn_norm.weight", vec![31]),
        ("mixtral.gguf", "token_embd.weight", vec![31, 384]),
        ("mixtral.gguf", "output.weight", vec![32, 383]),
        ("glm4moe.gguf", "blk.1.exp_probs_b.bias", vec![9]),
        ("gpt-oss.gguf", "blk.0.attn_sinks.weight", vec![3]),
        ("gpt-oss.gguf", "blk.0.ffn_up_exps.bias", vec![64, 7]),
        ("phi3.gguf", "blk.0.attn_qkv.weight", vec![32, 63]),
        ("phi3.gguf", "blk.0.ffn_up.weight", vec![32, 126]),
        ("phi3.gguf", "rope_factors_long.weight", vec![3]),
        ("lfm2.gguf", "blk.0.shortconv.conv.weight", vec![4, 32]),
        ("lfm2.gguf", "blk.0.shortconv.in_proj.weight", vec![32, 64]),
        ("lfm2.gguf", "token_embd_norm.weight", vec![31]),
        ("qwen35moe.gguf", "blk.0.ssm_conv1d.weight", vec![4, 63]),
        ("qwen35moe.gguf", "blk.0.ssm_a", vec![5]),
        ("qwen35moe.gguf", "blk.0.ssm_norm.weight", vec![9]),
        ("qwen35moe.gguf", "blk.1.attn_q.weight", vec![32, 32]),
        ("deepseek2.gguf", "blk.0.attn_k_b.weight", vec![8, 16, 3]),
        ("deepseek2.gguf", "blk.0.attn_v_b.weight", vec![8, 16, 4]),
        ("deepseek2.gguf", "blk.0.attn_kv_a_norm.weight", vec![20]),
        ("deepseek2.gguf", "blk.0.attn_kv_a_mqa.weight", vec![32, 16]),
    ] {
        let bytes = 4 * dims.iter().product::<u64>() as usize;
        let changed =
            copy(model)
                .without(name)
                .tensor(name, TensorType::F32, &dims, vec![0; bytes]);
        let error = open(&changed).expect_err(name);
        assert!(error.contains("expected"), "{name}: {error}");
        assert!(error.contains(name), "{name}: {error}");
    }
    for (name, dims) in [
        ("blk.1.ffn_up_exps.weight", vec![32, 64, 8]),
        ("blk.1.ffn_norm.weight", vec![32]),
    ] {
        let bytes = 8 * dims.iter().product::<u64>() as usize;
        let changed =
            copy("mixtral.gguf")
                .without(name)
                .tensor(name, TensorType::F64, &dims, vec![0; bytes]);
        let error = open(&changed).expect_err(name);
        assert!(error.contains(name) && error.contains("F64"), "{error}");
    }
}

#[test]
fn an_unsupported_architecture_lists_those_that_work() {
    let error = open(&GgufWriter::new("mamba")).unwrap_err();
    assert!(error.contains("`mamba`"), "{error}");
    for name in arch::supported() {
        assert!(error.contains(name), "{error} lacks {name}");
    }
}
