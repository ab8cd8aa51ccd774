//! Recurrent layers as operations: short convolutions, and the gated delta rule.

use emel_kernels::DeltaRuleShape;

use super::{Buffer, Op, ProgramBuilder};
use crate::error::ModelError;
use crate::state::StateShape;

/// Taps of a short convolution. Far above any model.
const TAPS_MAX: usize = 64;

impl ProgramBuilder<'_> {
    /// The gated short convolution of LFM2 (<https://arxiv.org/abs/2511.23404>), from the
    /// normed stream into the branch: `{block}.in_proj` gives two gates `b`, `c` and the
    /// input `x`; the filters of `{block}.conv`, `taps` long, run over `b ⊙ x`; `c` gates
    /// what comes out, and `{block}.out_proj` brings it back.
    ///
    /// # Errors
    /// When a tensor is missing or of another size.
    pub fn gated_short_convolution(&mut self, block: &str, taps: usize) -> Result<(), ModelError> {
        let width = self.program.hyperparameters.width;
        let name = |part: &str| format!("{block}.{part}");
        self.linear(&name("in_proj"), 3 * width, Buffer::Normed, Buffer::Fused)?;
        self.split(
            Buffer::Fused,
            &[
                (Buffer::InputGate, width),
                (Buffer::OutputGate, width),
                (Buffer::Mixed, width),
            ],
        );
        self.multiply(Buffer::Mixed, Buffer::InputGate);
        self.convolution(&name("conv.weight"), taps, 0)?;
        self.multiply(Buffer::Mixed, Buffer::OutputGate);
        self.linear(&name("out_proj"), width, Buffer::Mixed, Buffer::Branch)
    }

    /// The gated delta rule in the form of Qwen3-Next, from the normed stream into the
    /// branch: queries, keys and values (`{block}.attn_qkv`) go through a short
    /// convolution and SiLU, and then, head by head, into and out of a memory that fades
    /// by `{block}.ssm_alpha` and is written with the strength `{block}.ssm_beta`. What is
    /// read is normed, gated by `{block}.attn_gate` and brought back by `{block}.ssm_out`.
    ///
    /// # Errors
    /// When a tensor is missing or of another size.
    pub fn gated_delta_net(
        &mut self,
        block: &str,
        shape: DeltaRuleShape,
        taps: usize,
    ) -> Result<(), ModelError> {
        let width = self.program.hyperparameters.width;
        let (heads, values) = (shape.value_heads, shape.values());
        let name = |part: &str| format!("{block}.{part}");
        let normed = Buffer::Normed;
        self.linear(&name("attn_qkv"), shape.mixed(), normed, Buffer::Mixed)?;
        self.linear(&name("attn_gate"), values, normed, Buffer::OutputGate)?;
        self.linear(&name("ssm_beta"), heads, normed, Buffer::Strength)?;
        self.linear(&name("ssm_alpha"), heads, normed, Buffer::Decay)?;

        let state = self.convolution(&name("ssm_conv1d.weight"), taps, shape.memory())?;
        self.push(Op::Silu {
            buffer: Buffer::Mixed,
        });
        let rate = self.resident(&name("ssm_a"), heads)?;
        let bias = self.resident(&name("ssm_dt.bias"), heads)?;
        self.widen(Buffer::Attended, values);
        self.push(Op::DeltaRule {
            state,
            shape,
            rate,
            bias,
        });
        self.norm_heads(
            &name("ssm_norm.weight"),
            Buffer::Attended,
            shape.value_width,
        )?;
        self.push(Op::SiluGate {
            buffer: Buffer::Attended,
            gate: Buffer::OutputGate,
        });
        self.linear(&name("ssm_out"), width, Buffer::Attended, Buffer::Branch)
    }

    /// `buffer *= by`, element by element.
    fn multiply(&mut self, buffer: Buffer, by: Buffer) {
        self.push(Op::Multiply { buffer, by });
    }

    /// A short convolution of what is mixed. Its layer keeps the inputs that the next
    /// token needs and `memory` floats besides; their index is returned.
    fn convolution(&mut self, name: &str, taps: usize, memory: usize) -> Result<usize, ModelError> {
        let channels = self.width(Buffer::Mixed);
        let weight = self.resident_rows(name, taps, channels)?;
        let state = self.keep(StateShape::Recurrent {
            history: (taps - 1) * channels,
            memory,
        });
        self.push(Op::Convolution { state, weight });
        Ok(state)
    }

    /// Taps of the short convolutions, which the key `suffix` says.
    ///
    /// # Errors
    /// When the key is missing or absurd.
    pub fn taps(&self, suffix: &str) -> Result<usize, ModelError> {
        let keys = self.keys();
        let taps = keys.size(suffix)?;
        if taps > TAPS_MAX {
            return Err(keys.refuse(suffix, taps, &format!("at most {TAPS_MAX} taps")));
        }
        Ok(taps)
    }
}
