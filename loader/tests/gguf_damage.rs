//! Damaged headers never panic and never reserve more than the file can justify.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::path::Path;

use emel_loader::counting_allocator::CountingAllocator;
use emel_loader::gguf::Catalog;
use emel_tests::gguf_writer::{Field, GgufWriter};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// The read window, and the elements reserved for an array before they are read.
const FIXED_BYTES: usize = 2 << 20;

/// A pair of 14 bytes becomes a map entry of some 150.
const BYTES_PER_FILE_BYTE: usize = 16;

#[derive(Debug, Clone)]
enum Damage {
    Flip { place: usize, bit: u8 },
    Truncate { length: usize },
    Word { place: usize, word: u32 },
    Long { place: usize, long: u64 },
}

fn damage() -> impl Strategy<Value = Damage> {
    let words = prop_oneof![
        Just(0),
        Just(1),
        Just(u32::MAX),
        Just(1 << 31),
        Just(9),
        any::<u32>()
    ];
    let longs = prop_oneof![
        Just(0),
        Just(u64::MAX),
        Just(1 << 63),
        Just(i64::MAX as u64),
        Just(1 << 32),
        0_u64..4096,
        any::<u64>()
    ];
    let place = any::<usize>;
    prop_oneof![
        (place(), 0..8_u8).prop_map(|(place, bit)| Damage::Flip { place, bit }),
        place().prop_map(|length| Damage::Truncate { length }),
        (place(), words).prop_map(|(place, word)| Damage::Word { place, word }),
        (place(), longs).prop_map(|(place, long)| Damage::Long { place, long }),
    ]
}

/// Applies the damage within the first `reach` bytes.
fn apply(bytes: &mut Vec<u8>, damage: &Damage, reach: usize) {
    let reach = reach.min(bytes.len());
    if reach <= 8 {
        return;
    }
    match *damage {
        Damage::Flip { place, bit } => bytes[place % reach] ^= 1 << bit,
        Damage::Truncate { length } => bytes.truncate(length % reach),
        Damage::Word { place, word } => {
            let place = place % (reach - 4);
            bytes[place..place + 4].copy_from_slice(&word.to_le_bytes());
        }
        Damage::Long { place, long } => {
            let place = place % (reach - 8);
            bytes[place..place + 8].copy_from_slice(&long.to_le_bytes());
        }
    }
}

/// Opens the bytes as a file and checks what it cost.
fn open_within_bounds(bytes: &[u8]) -> Result<(), TestCaseError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.gguf");
    std::fs::write(&path, bytes).unwrap();
    let before = ALLOCATOR.held_bytes();
    ALLOCATOR.reset_max();
    let result = Catalog::open(&path);
    let reserved = ALLOCATOR.held_bytes_max() - before;
    let allowed = FIXED_BYTES + BYTES_PER_FILE_BYTE * bytes.len();
    prop_assert!(reserved <= allowed, "{reserved} bytes > {allowed}");
    match result {
        Ok(catalog) => {
            for tensor in catalog.tensors() {
                let extent = tensor.extent;
                let end = extent.offset.checked_add(extent.bytes);
                prop_assert!(end.is_some_and(|end| end <= bytes.len() as u64));
                prop_assert_eq!(tensor.rows() * tensor.row_bytes(), extent.bytes);
            }
        }
        Err(error) => prop_assert_eq!(error.to_string().lines().count(), 1),
    }
    Ok(())
}

fn small_model() -> Vec<u8> {
    GgufWriter::new("llama")
        .alignment(64)
        .field("words", Field::strings(["one", "two", "three"]))
        .field("types", Field::i32s(&[1, 2, 3]))
        .field("scores", Field::f32s(&[0.5; 3]))
        .field("wide", Field::i64s(&[1 << 40]))
        .field("flags", Field::bools(&[true, false]))
        .field("text", Field::string("text"))
        .f32_tensor("first", &[8], &[1.0; 8])
        .f32_tensor("second", &[8, 2, 2, 1], &[2.0; 32])
        .to_bytes()
}

// One test, because the counters belong to the whole process.
#[test]
fn damaged_headers_never_panic_and_never_over_allocate() {
    let small = small_model();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/arch/llama.gguf");
    let real = std::fs::read(path).unwrap();
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        // The same damage in every run.
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::default()
    });
    let strategy = (any::<bool>(), prop::collection::vec(damage(), 1..4));
    runner
        .run(&strategy, |(take_real, damages)| {
            let (mut bytes, reach) = if take_real {
                (real.clone(), 16 << 10)
            } else {
                (small.clone(), small.len())
            };
            for damage in &damages {
                apply(&mut bytes, damage, reach);
            }
            open_within_bounds(&bytes)
        })
        .unwrap();
    arrays_larger_than_any_models_are_refused_before_they_are_read();
}

/// A sparse file justifies any count, but costs whoever sends it nothing.
fn arrays_larger_than_any_models_are_refused_before_they_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse.gguf");
    for element in 0..13 {
        let bytes = GgufWriter::new("llama")
            .field(
                "large",
                Field::Array {
                    element,
                    count: 1 << 28,
                    bytes: Vec::new(),
                },
            )
            .to_bytes();
        std::fs::write(&path, bytes).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len(4 << 30).unwrap();
        let before = ALLOCATOR.held_bytes();
        ALLOCATOR.reset_max();
        let error = Catalog::open(&path).unwrap_err();
        let reserved = ALLOCATOR.held_bytes_max() - before;
        assert!(reserved <= FIXED_BYTES, "{reserved} bytes for {element}");
        let message = error.to_string();
        for part in ["sparse.gguf", "the value of \"large\"", "over 64 MiB"] {
            assert!(message.contains(part), "{element}: {message}");
        }
    }
}
