//! Which scales and biases may stand beside a matrix. A file with another is refused, for
//! nothing says what it would mean there; llama.cpp refuses it, too.

/// Parts of a layer that have a bias, and the architectures in which they do; in all but
/// DeepSeek's, whose attention is latent, if none is named.
const BIASES: [(&[&str], &[&str]); 5] = [
    (&["attn_q", "attn_k", "attn_v", "attn_qkv"], &[]),
    (
        &["attn_output"],
        &["llama", "granite", "granitemoe", "gpt-oss"],
    ),
    (
        &["ffn_gate", "ffn_up", "ffn_down"],
        &["llama", "granite", "granitemoe"],
    ),
    (
        &[
            "ffn_gate_inp",
            "ffn_gate_exps",
            "ffn_up_exps",
            "ffn_down_exps",
        ],
        &["gpt-oss"],
    ),
    (
        &["exp_probs_b"],
        &["deepseek2", "glm4moe", "lfm2", "lfm2moe", "minimax-m2"],
    ),
];

/// Architectures whose biases of queries, keys and values are none.
const LATENT: &str = "deepseek2";

/// Parts that may have a scale, in any architecture.
const SCALES: [&str; 15] = [
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_qkv",
    "attn_gate",
    "attn_output",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "ffn_gate_shexp",
    "ffn_up_shexp",
    "ffn_down_shexp",
    "ssm_out",
    "ssm_alpha",
    "ssm_beta",
];

/// Whether `blk.N.part.bias` belongs to the architecture.
pub(super) fn takes_bias(architecture: &str, tensor: &str) -> bool {
    let part = part_of(tensor);
    let row = BIASES.iter().find(|(parts, _)| parts.contains(&part));
    row.is_some_and(|(_, architectures)| match architectures {
        [] => architecture != LATENT,
        named => named.contains(&architecture),
    })
}

/// Whether `blk.N.part.scale` has a meaning.
pub(super) fn takes_scale(tensor: &str) -> bool {
    let part = part_of(tensor);
    SCALES.contains(&part) || part.starts_with("ffn_") && part.ends_with("_exps")
}

/// The part of a layer in a tensor's name.
fn part_of(tensor: &str) -> &str {
    tensor.split('.').nth(2).unwrap_or("")
}
