//! Which scales and biases may stand beside a matrix: those by which llama.cpp computes. A file
//! with another is refused, for llama.cpp refuses it too, or loads it and does not look at it.

use self::Architectures::{AllBut, Only};
use super::{Buffer, Op, ProgramBuilder};
use crate::error::ModelError;

/// Architectures that have something.
#[derive(Debug, Clone, Copy)]
enum Architectures {
    AllBut(&'static [&'static str]),
    Only(&'static [&'static str]),
}

/// Parts of a layer, and the architectures in which they have something beside them.
type Row = (&'static [&'static str], Architectures);

const BIASES: [Row; 6] = [
    // Latent attention has none.
    (&["attn_q", "attn_k", "attn_v"], AllBut(&["deepseek2"])),
    // That of qwen35moe feeds the delta rule.
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

const SCALES: [Row; 6] = [
    (
        &["attn_q", "attn_k", "attn_v", "attn_qkv"],
        AllBut(&["deepseek2"]),
    ),
    (&["attn_output"], AllBut(&[])),
    (
        &["ffn_gate", "ffn_up", "ffn_down"],
        Only(&["llama", "qwen3"]),
    ),
    (
        &["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"],
        Only(&["llama", "qwen3moe", "qwen35moe"]),
    ),
    (
        &["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"],
        Only(&["qwen35moe"]),
    ),
    (
        &["attn_gate", "ssm_out", "ssm_alpha", "ssm_beta"],
        Only(&["qwen35moe"]),
    ),
];

impl ProgramBuilder<'_> {
    /// `buffer`, which is a product of the matrix `name`, times `name.scale` and plus
    /// `name.bias`. In feed-forward networks the scale is that of the sum, as in llama.cpp.
    pub(super) fn scale_and_bias(&mut self, name: &str, buffer: Buffer) -> Result<(), ModelError> {
        let [scale, bias] = ["scale", "bias"].map(|kind| format!("{name}.{kind}"));
        if part_of(name).starts_with("ffn_") {
            self.bias_beside(&bias, buffer)?;
            self.scale_beside(&scale, buffer)
        } else {
            self.scale_beside(&scale, buffer)?;
            self.bias_beside(&bias, buffer)
        }
    }

    fn scale_beside(&mut self, name: &str, buffer: Buffer) -> Result<(), ModelError> {
        if self.takes_scale(name) {
            let weight = self.resident(name, 1)?;
            self.push(Op::WeightScale { buffer, weight });
        }
        Ok(())
    }

    fn bias_beside(&mut self, name: &str, buffer: Buffer) -> Result<(), ModelError> {
        match self.takes_bias(name) {
            true => self.bias(name, buffer),
            false => Ok(()),
        }
    }

    /// Whether the file has a scale of this name, and the architecture takes it.
    pub(super) fn takes_scale(&self, name: &str) -> bool {
        self.has(name) && has_row(&SCALES, &self.program.hyperparameters.architecture, name)
    }

    /// Whether the file has a bias of this name, and the architecture takes it.
    pub(super) fn takes_bias(&self, name: &str) -> bool {
        self.has(name) && has_row(&BIASES, &self.program.hyperparameters.architecture, name)
    }
}

/// Whether a tensor belongs to the architecture.
fn has_row(rows: &[Row], architecture: &str, tensor: &str) -> bool {
    let part = part_of(tensor);
    let row = rows.iter().find(|(parts, _)| parts.contains(&part));
    row.is_some_and(|(_, architectures)| match architectures {
        AllBut(named) => !named.contains(&architecture),
        Only(named) => named.contains(&architecture),
    })
}

/// The part of a layer in a tensor's name.
fn part_of(tensor: &str) -> &str {
    tensor.split('.').nth(2).unwrap_or("")
}
