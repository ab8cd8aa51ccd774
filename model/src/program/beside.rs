//! Which scales and biases may stand beside a matrix: those that llama.cpp computes with. A
//! file with another is refused, for what it would mean there is not known.

use Architectures::{All, AllBut, Only};

/// Architectures that take a scale or a bias.
enum Architectures {
    All,
    AllBut(&'static [&'static str]),
    Only(&'static [&'static str]),
}

/// Parts of a layer, and the architectures that take something beside their matrices.
type Row = (&'static [&'static str], Architectures);

const BIASES: &[Row] = &[
    (&["attn_q", "attn_k", "attn_v"], AllBut(&["deepseek2"])),
    (&["attn_qkv"], AllBut(&["deepseek2", "qwen35moe"])),
    (
        &["attn_output"],
        Only(&["llama", "granite", "granitemoe", "gpt-oss"]),
    ),
    (
        &["ffn_gate", "ffn_up", "ffn_down"],
        Only(&["llama", "granite", "granitemoe"]),
    ),
    (
        &[
            "ffn_gate_inp",
            "ffn_gate_exps",
            "ffn_up_exps",
            "ffn_down_exps",
        ],
        Only(&["gpt-oss"]),
    ),
    (
        &["exp_probs_b"],
        Only(&["deepseek2", "glm4moe", "lfm2", "lfm2moe", "minimax-m2"]),
    ),
];

const SCALES: &[Row] = &[
    (
        &["attn_q", "attn_k", "attn_v", "attn_qkv"],
        AllBut(&["deepseek2"]),
    ),
    (&["attn_output"], All),
    (
        &["ffn_gate", "ffn_up", "ffn_down"],
        Only(&["llama", "qwen3"]),
    ),
    (
        &["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"],
        Only(&["llama", "qwen3moe", "qwen35moe"]),
    ),
    (
        &[
            "ffn_gate_shexp",
            "ffn_up_shexp",
            "ffn_down_shexp",
            "attn_gate",
            "ssm_out",
            "ssm_alpha",
            "ssm_beta",
        ],
        Only(&["qwen35moe"]),
    ),
];

/// Parts that take a scale or a bias, but not both: llama.cpp would multiply the bias as well,
/// which it calls wrong itself.
const EITHER: [&str; 3] = ["ffn_gate", "ffn_up", "ffn_down"];

/// Whether `blk.N.part.bias` belongs to the architecture.
pub(super) fn takes_bias(architecture: &str, tensor: &str) -> bool {
    takes(BIASES, architecture, part_of(tensor))
}

/// Whether `blk.N.part.scale` belongs to the architecture, beside a bias or without one.
pub(super) fn takes_scale(architecture: &str, tensor: &str, has_bias: bool) -> bool {
    let part = part_of(tensor);
    takes(SCALES, architecture, part) && !(has_bias && EITHER.contains(&part))
}

fn takes(rows: &[Row], architecture: &str, part: &str) -> bool {
    let row = rows.iter().find(|(parts, _)| parts.contains(&part));
    row.is_some_and(|(_, architectures)| match architectures {
        All => true,
        AllBut(others) => !others.contains(&architecture),
        Only(named) => named.contains(&architecture),
    })
}

/// The part of a layer in a tensor's name.
fn part_of(tensor: &str) -> &str {
    tensor.split('.').nth(2).unwrap_or("")
}
