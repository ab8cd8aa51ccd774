//! Seeded inputs shared by the tests of this folder.

#![allow(dead_code, reason = "each test binary uses a part")]

use emel_kernels::Format;
use proptest::test_runner::Config as ProptestConfig;

/// Properties are tried on this many inputs, or on as many as `PROPTEST_CASES` says.
pub(crate) fn cases(usual: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok();
    ProptestConfig::with_cases(asked.and_then(|count| count.parse().ok()).unwrap_or(usual))
}

/// A small generator (SplitMix64), so that a seed is all a failure needs to be repeated.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Uniform in -1..1.
    pub(crate) fn value(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.value()).collect()
    }

    /// Any weights: every bit pattern of the quants, and scales around 0.01.
    pub(crate) fn weights(&mut self, format: Format, count: usize) -> Vec<u8> {
        let block_bytes = format.block_bytes();
        let mut bytes: Vec<u8> = Vec::new();
        for _ in 0..count / format.block_elements() {
            match format {
                Format::F32 => bytes.extend(self.value().to_le_bytes()),
                Format::F16 => bytes.extend(half::f16::from_f32(self.value()).to_le_bytes()),
                Format::BF16 => bytes.extend(half::bf16::from_f32(self.value()).to_le_bytes()),
                _ => {
                    let start = bytes.len();
                    bytes.extend((0..block_bytes).map(|_| self.next() as u8));
                    for &offset in scale_offsets(format) {
                        let scale = half::f16::from_f32(self.value() * 0.01).to_le_bytes();
                        bytes[start + offset..][..2].copy_from_slice(&scale);
                    }
                    match format {
                        // The scale is 2^(byte - 128): 2^-13 to 2^-6.
                        Format::MXFP4 => bytes[start] = 115 + bytes[start] % 8,
                        // The top nibbles of four words: a scale of at most 2^-7.
                        Format::IQ1_M => {
                            bytes[start + 55] = bytes[start + 55] & 0x8f | 0x10;
                        }
                        _ => {}
                    }
                }
            }
        }
        bytes
    }
}

/// Where the half-precision scales of a block lie.
fn scale_offsets(format: Format) -> &'static [usize] {
    match format {
        Format::Q4_0 | Format::Q5_0 | Format::Q8_0 => &[0],
        Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K => &[0, 2],
        Format::Q2_K => &[80, 82],
        Format::Q3_K => &[108],
        Format::Q6_K => &[208],
        Format::IQ4_NL | Format::IQ4_XS => &[0],
        Format::IQ3_S | Format::IQ3_XXS => &[0],
        Format::IQ2_S | Format::IQ2_XS | Format::IQ2_XXS | Format::IQ1_S => &[0],
        Format::TQ1_0 => &[52],
        Format::TQ2_0 => &[64],
        Format::IQ1_M | Format::MXFP4 => &[],
        other => panic!("no scales known for {other}"),
    }
}

/// Bits, so that equality means equality.
pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
