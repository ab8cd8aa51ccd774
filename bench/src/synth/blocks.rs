//! Random weights in any format: uniform bytes, with the scales set so that weights have the
//! wanted magnitude and no mean.
//!
//! A mean would add a matrix of rank one, whose gain grows with the width, to every random
//! matrix, and the activations would drown in it. So a block's scale has a random sign, and where
//! a format has minima they lie in the middle of the weights.

use emel_kernels::{Format, Kernels};
use half::{bf16, f16};
use rand_core::Rng;

/// Weights that the magnitude of a format's random blocks is estimated from.
const SAMPLE_WEIGHTS: usize = 64 * 256;

/// The standard deviation of a uniform number from -1 to 1 is one over this.
const SQRT_3: f32 = 1.732_050_8;

/// Makes rows of one format with weights of one magnitude.
#[derive(Debug, Clone, Copy)]
pub struct RandomBlocks {
    format: Format,
    scale: f32,
}

impl RandomBlocks {
    /// Weights with this standard deviation, as near as the format's scale comes to it.
    pub fn new(format: Format, deviation: f32, random: &mut impl Rng) -> Self {
        let unit = Self { format, scale: 1.0 };
        let blocks = SAMPLE_WEIGHTS / format.block_elements();
        let mut bytes = vec![0; blocks * format.block_bytes()];
        unit.fill(&mut bytes, random);
        let mut weights = vec![0.0; SAMPLE_WEIGHTS];
        Kernels::scalar().dequantise_row(format, &bytes, &mut weights);
        let squares: f64 = weights.iter().map(|&it| f64::from(it).powi(2)).sum();
        let unit_deviation = (squares / weights.len() as f64).sqrt() as f32;
        Self {
            format,
            scale: deviation / unit_deviation,
        }
    }

    /// Fills whole blocks.
    pub fn fill(&self, blocks: &mut [u8], random: &mut impl Rng) {
        match self.format {
            Format::F32 => self.fill_floats(blocks, random, f32::to_le_bytes),
            Format::F16 => self.fill_floats(blocks, random, |it| f16::from_f32(it).to_le_bytes()),
            Format::BF16 => self.fill_floats(blocks, random, |it| bf16::from_f32(it).to_le_bytes()),
            _ => {
                random.fill_bytes(blocks);
                for block in blocks.chunks_exact_mut(self.format.block_bytes()) {
                    let sign = if block[0] & 1 == 0 { 1.0 } else { -1.0 };
                    self.set_scales(block, sign * self.scale);
                }
            }
        }
    }

    fn fill_floats<const N: usize>(
        &self,
        out: &mut [u8],
        random: &mut impl Rng,
        encode: impl Fn(f32) -> [u8; N],
    ) {
        for place in out.as_chunks_mut::<N>().0 {
            *place = encode(self.scale * uniform(random));
        }
    }

    /// The layouts are described in `kernels/src/block/`.
    fn set_scales(&self, block: &mut [u8], scale: f32) {
        match self.format {
            Format::Q4_1 => put_halves(block, 0, &[scale, -7.5 * scale]),
            Format::Q5_1 => put_halves(block, 0, &[scale, -15.5 * scale]),
            Format::Q2_K => {
                for byte in &mut block[..16] {
                    let group = 8 | *byte & 7;
                    *byte = group | group << 4;
                }
                put_halves(block, 80, &[scale, 1.5 * scale]);
            }
            Format::Q4_K => {
                put_halves(block, 0, &[scale, 7.5 * scale]);
                make_minima_equal_scales(&mut block[4..16]);
            }
            Format::Q5_K => {
                put_halves(block, 0, &[scale, 15.5 * scale]);
                make_minima_equal_scales(&mut block[4..16]);
            }
            Format::Q3_K => put_halves(block, 108, &[scale]),
            Format::Q6_K => put_halves(block, 208, &[scale]),
            Format::TQ1_0 => put_halves(block, 52, &[scale]),
            Format::TQ2_0 => {
                for byte in &mut block[..64] {
                    // A pair is 0, 1 or 2: of a 3 the lower bit goes.
                    *byte &= !(*byte >> 1 & 0x55);
                }
                put_halves(block, 64, &[scale]);
            }
            Format::MXFP4 => block[0] = (128.0 + scale.abs().log2().round()) as u8,
            Format::IQ1_M => {
                let bits = f16::from_f32(scale).to_bits();
                for (word, nibble) in (0..4).map(|word| (word, (bits >> (4 * word)) as u8 & 15)) {
                    let top = &mut block[49 + 2 * word];
                    *top = *top & 15 | nibble << 4;
                }
            }
            // All others have it in front.
            _ => put_halves(block, 0, &[scale]),
        }
    }
}

/// A uniform number with mean 0 and standard deviation 1.
pub(crate) fn uniform(random: &mut impl Rng) -> f32 {
    let fraction = (random.next_u32() >> 8) as f32 / (1 << 24) as f32;
    (2.0 * fraction - 1.0) * SQRT_3
}

fn put_halves(block: &mut [u8], offset: usize, values: &[f32]) {
    let places = block[offset..].as_chunks_mut().0;
    for (place, &value) in places.iter_mut().zip(values) {
        *place = f16::from_f32(value).to_le_bytes();
    }
}

/// Q4_K's twelve bytes, with six-bit scales from 32 to 63.
fn make_minima_equal_scales(packed: &mut [u8]) {
    for group in 0..4 {
        // Bit 5 of this scale, and bit 7, which is bit 5 of the scale four groups on.
        packed[group] |= 0xa0;
        packed[4 + group] = packed[group];
        let low = packed[8 + group] & 15;
        packed[8 + group] = low | low << 4;
    }
}
