//! The keys of each architecture, as data: those by which llama.cpp computes its result.
//!
//! [`Keys`](crate::keys::Keys) shows an architecture no other key. What is listed is honoured, or
//! refused by name where its value is one that we cannot compute with; what is not listed changes
//! nothing in llama.cpp, and nothing here.

/// A key without the prefix of its architecture.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KnownKey {
    /// What follows the prefix and its dot.
    pub suffix: &'static str,
    /// What its absence means.
    pub absence: Absence,
}

/// What it means that a file does not have a key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Absence {
    /// There is a default, or another key says whether it is needed.
    Default,
    /// The file is refused.
    Refused,
    /// The family's own value is used, and a note says so.
    Own(f32),
    /// The same where the file does not have the other key either; else llama.cpp's default, and
    /// a note says that.
    OwnWithout {
        /// The other key.
        other: &'static str,
        /// The family's own value.
        number: f32,
        /// llama.cpp's.
        default: f32,
    },
}

/// The keys of an architecture; the first of a name counts.
pub fn known_keys(architecture: &str) -> impl Iterator<Item = &'static KnownKey> + use<> {
    let found = BY_ARCHITECTURE
        .iter()
        .find(|(name, _)| *name == architecture);
    found
        .into_iter()
        .flat_map(|(_, lists)| *lists)
        .copied()
        .flatten()
}

const fn key(suffix: &'static str) -> KnownKey {
    KnownKey {
        suffix,
        absence: Absence::Default,
    }
}

const fn required(suffix: &'static str) -> KnownKey {
    KnownKey {
        suffix,
        absence: Absence::Refused,
    }
}

const fn own(suffix: &'static str, value: f32) -> KnownKey {
    KnownKey {
        suffix,
        absence: Absence::Own(value),
    }
}

const EVERY: &[KnownKey] = &[
    required("context_length"),
    required("embedding_length"),
    required("block_count"),
    key("nextn_predict_layers"),
    key("feed_forward_length"),
    required("attention.head_count"),
    key("attention.head_count_kv"),
    key("attention.key_length"),
    key("attention.value_length"),
    key("attention.causal"),
    required("attention.layer_norm_rms_epsilon"),
    key("rope.dimension_count"),
    key("rope.freq_base"),
    key("rope.scale_linear"),
    key("rope.scaling.type"),
    key("rope.scaling.factor"),
    key("rope.scaling.attn_factor"),
    key("rope.scaling.original_context_length"),
    key("expert_count"),
    key("expert_used_count"),
];

/// Mixtures of experts in groups.
const GROUPS: &[KnownKey] = &[key("expert_group_count"), key("expert_group_used_count")];

/// Experts whose width is `feed_forward_length / expert_used_count` where the file does not say.
const EXPERT_WIDTH: &[KnownKey] = &[key("expert_feed_forward_length")];

const REQUIRED_EXPERT_WIDTH: &[KnownKey] = &[required("expert_feed_forward_length")];

const SHARED_EXPERT_WIDTH: &[KnownKey] = &[key("expert_shared_feed_forward_length")];

/// A router that the file describes.
const ROUTER: &[KnownKey] = &[
    key("expert_gating_func"),
    key("expert_weights_norm"),
    key("expert_weights_scale"),
];

/// Dense layers before the mixtures, and experts of every token.
const DEEPSEEK_EXPERTS: &[KnownKey] = &[
    key("leading_dense_block_count"),
    required("expert_shared_count"),
];

/// Layers with a sliding window.
const WINDOW: &[KnownKey] = &[
    key("attention.sliding_window"),
    key("attention.key_length_swa"),
    key("attention.value_length_swa"),
    key("rope.dimension_count_swa"),
];

/// Which layers those are, and how they turn.
const WINDOW_PATTERN: &[KnownKey] = &[
    key("attention.sliding_window_pattern"),
    key("rope.freq_base_swa"),
];

const GRANITE: &[KnownKey] = &[
    required("logit_scale"),
    key("residual_scale"),
    key("embedding_scale"),
    key("attention.scale"),
    key("expert_shared_feed_forward_length"),
];

/// Files that ollama writes have neither of the first two keys, and llama.cpp refuses them; where
/// the second alone is missing it has a value of its own.
const GEMMA3: &[KnownKey] = &[
    own("attention.layer_norm_rms_epsilon", 1e-6),
    KnownKey {
        suffix: "rope.freq_base",
        absence: Absence::OwnWithout {
            other: "attention.layer_norm_rms_epsilon",
            number: 1e6,
            default: 10_000.0,
        },
    },
    key("final_logit_softcapping"),
];

const BY_ARCHITECTURE: &[(&str, &[&[KnownKey]])] = &[
    ("llama", &[EVERY, GROUPS]),
    ("qwen2", &[EVERY]),
    (
        "qwen2moe",
        &[EVERY, GROUPS, EXPERT_WIDTH, SHARED_EXPERT_WIDTH],
    ),
    ("qwen3", &[EVERY]),
    ("qwen3moe", &[EVERY, GROUPS, EXPERT_WIDTH]),
    (
        "gemma2",
        &[
            EVERY,
            WINDOW,
            WINDOW_PATTERN,
            &[
                key("attn_logit_softcapping"),
                key("final_logit_softcapping"),
            ],
        ],
    ),
    ("gemma3", &[GEMMA3, EVERY, WINDOW, WINDOW_PATTERN]),
    ("phi3", &[EVERY]),
    ("olmoe", &[EVERY, GROUPS]),
    (
        "granite",
        &[EVERY, GROUPS, GRANITE, &[key("rope.scaling.finetuned")]],
    ),
    ("granitemoe", &[EVERY, GROUPS, GRANITE]),
    (
        "glm4moe",
        &[
            EVERY,
            GROUPS,
            REQUIRED_EXPERT_WIDTH,
            ROUTER,
            DEEPSEEK_EXPERTS,
            &[key("rope.dimension_sections")],
        ],
    ),
    (
        "minimax-m2",
        &[
            EVERY,
            GROUPS,
            REQUIRED_EXPERT_WIDTH,
            &[required("expert_gating_func")],
        ],
    ),
    (
        "gpt-oss",
        &[
            &[required("attention.sliding_window")],
            EVERY,
            GROUPS,
            REQUIRED_EXPERT_WIDTH,
            WINDOW,
            WINDOW_PATTERN,
        ],
    ),
    (
        "lfm2",
        &[EVERY, GROUPS, WINDOW, &[required("shortconv.l_cache")]],
    ),
    (
        "lfm2moe",
        &[
            EVERY,
            GROUPS,
            REQUIRED_EXPERT_WIDTH,
            &[
                required("shortconv.l_cache"),
                key("leading_dense_block_count"),
                required("expert_gating_func"),
            ],
        ],
    ),
    (
        "qwen35moe",
        &[
            EVERY,
            GROUPS,
            EXPERT_WIDTH,
            SHARED_EXPERT_WIDTH,
            &[
                required("rope.dimension_sections"),
                required("ssm.conv_kernel"),
                required("ssm.inner_size"),
                required("ssm.state_size"),
                required("ssm.time_step_rank"),
                required("ssm.group_count"),
                key("attention.recurrent_layers"),
                key("full_attention_interval"),
            ],
        ],
    ),
    (
        "deepseek2",
        &[
            EVERY,
            GROUPS,
            REQUIRED_EXPERT_WIDTH,
            ROUTER,
            DEEPSEEK_EXPERTS,
            &[
                key("vocab_size"),
                key("attention.q_lora_rank"),
                required("attention.kv_lora_rank"),
                key("attention.key_length_mla"),
                key("attention.value_length_mla"),
                key("attention.temperature_scale"),
                key("attention.temperature_length"),
                key("rope.scaling.yarn_log_multiplier"),
            ],
        ],
    ),
];
