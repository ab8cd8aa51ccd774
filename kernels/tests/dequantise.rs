//! Dequantisation against the `gguf` package's values.

use emel_kernels::{Format, Kernels};

#[test]
fn every_format_dequantises_bit_for_bit_as_the_gguf_package_does() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
    for &format in Format::ALL {
        let fixture = std::fs::read(format!("{folder}/{format}.bin")).unwrap();
        let (length, rest) = fixture.split_first_chunk::<4>().unwrap();
        let (raw, expected) = rest.split_at(u32::from_le_bytes(*length) as usize);
        let (expected, _) = expected.as_chunks::<4>();
        assert_eq!(
            format.row_bytes(expected.len()),
            Some(raw.len()),
            "{format}"
        );
        for kernels in Kernels::all() {
            let mut weights = vec![f32::NAN; expected.len()];
            kernels.dequantise_row(format, raw, &mut weights);
            for (index, (weight, expected)) in weights.iter().zip(expected).enumerate() {
                let expected = f32::from_le_bytes(*expected);
                let same = weight.to_bits() == expected.to_bits();
                assert!(same, "{format}[{index}]: {weight}, expected {expected}");
            }
        }
    }
}
