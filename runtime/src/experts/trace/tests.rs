//! Traces that are written and read again, and what is refused.

use twox_hash::XxHash64;

use super::*;

const SHAPE: MixtureShape = MixtureShape {
    layers: 2,
    experts: 300,
    used: 2,
};
/// Bytes of a position: its number, two layers of two experts, three guesses.
const RECORD: usize = 4 + 2 * 2 * 4 + 3 * 2;
const HEADER: usize = TraceHeader::BYTES as usize;

const GUESSED: [u16; 3] = [7, 8, 299];

fn chosen(position: u16) -> [u16; 4] {
    [299, 0, 5, position]
}

fn trace() -> Trace {
    let mut trace = Trace::new(SHAPE, 3, 77).expect("a sane shape");
    for position in 0..3 {
        trace.push(u32::from(position), chosen(position), GUESSED);
    }
    trace
}

fn bytes() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = TraceWriter::new(&mut bytes, *trace().header()).expect("memory takes it");
    for position in 0..3 {
        let choices = chosen(position).map(|id| (id, 0.25));
        writer
            .push(u32::from(position), choices, GUESSED)
            .expect("memory takes it");
    }
    writer.finish().expect("memory takes it");
    bytes
}

fn read(bytes: &[u8]) -> Result<Trace, TraceError> {
    Trace::read(bytes, bytes.len() as u64)
}

/// What is said of a trace after a change, its checksum made right again.
fn refused(change: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut bytes = bytes();
    change(&mut bytes);
    let end = bytes.len() - 8;
    let (content, hash) = bytes.split_at_mut(end);
    hash.copy_from_slice(&XxHash64::oneshot(0, content).to_le_bytes());
    read(&bytes).expect_err("refused").to_string()
}

#[test]
fn what_is_written_comes_back() {
    let found = read(&bytes()).expect("a good trace");
    assert_eq!(found, trace());
    assert_eq!(found.experts(2, 0), [299, 0]);
    assert_eq!(found.guesses(1, 1), [7, 8, 299]);
    assert!(found.guesses(1, 0).is_empty());
    assert!(found.follows(1) && !found.follows(0));
}

#[test]
fn every_cut_and_every_changed_byte_is_refused() {
    let good = bytes();
    for length in 0..good.len() {
        assert!(read(&good[..length]).is_err(), "{length} bytes");
    }
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        assert!(read(&bad).is_err(), "byte {at}");
    }
}

#[test]
fn a_bad_number_is_named() {
    let put = |at: usize, number: u16| {
        move |bytes: &mut Vec<u8>| bytes[at..at + 2].copy_from_slice(&number.to_le_bytes())
    };
    let second = HEADER + RECORD + 4;
    let found = refused(put(second, 300));
    assert!(found.contains("position 1: expert 300 of 300"), "{found}");
    let found = refused(put(second, 0));
    assert!(found.contains("expert 0 twice in a layer"), "{found}");
    let found = refused(put(second + 4, 0x7c00));
    assert!(found.contains("a weight is inf"), "{found}");
    let found = refused(put(HEADER + RECORD - 2, 999));
    assert!(found.contains("position 0: expert 999 of 300"), "{found}");
}

#[test]
fn absurd_sizes_are_refused_before_memory_is_taken() {
    for (at, what) in [
        (12, "layers"),
        (16, "experts"),
        (20, "of them used"),
        (24, "guessed"),
    ] {
        let found = refused(|bytes| bytes[at..at + 4].fill(0xff));
        assert!(
            found.contains("4294967295") && found.contains(what),
            "{found}"
        );
    }
    let found = refused(|bytes| bytes[36..44].fill(0xff));
    assert!(found.contains("bytes, expected"), "{found}");
    // A whole file of one position, but for its experts.
    for (layers, experts) in [(4096_u32, 65536_u32), (1024, 2048)] {
        let found = refused(|bytes| {
            for (at, number) in [(12, layers), (16, experts), (20, 1), (24, 0)] {
                bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
            }
            bytes[36..44].copy_from_slice(&1_u64.to_le_bytes());
            bytes.resize(HEADER + 4 + layers as usize * 4 + 8, 0);
        });
        let expected = format!("{layers} layers with {experts} experts");
        assert!(found.contains(&expected), "{found}");
    }
    let found = Trace::read(&[][..], u64::MAX).expect_err("refused");
    assert!(matches!(found, TraceError::TooLong { .. }));
}

#[test]
fn memory_taken_is_at_most_the_file() {
    let file = bytes();
    let found = read(&file).expect("a good trace");
    let held = found.positions.capacity() * size_of::<u32>()
        + (found.experts.capacity() + found.guesses.capacity()) * size_of::<u16>();
    assert!(held <= file.len(), "{held} bytes of {}", file.len());
}

#[test]
fn a_weight_that_a_trace_cannot_hold_is_not_written() {
    for weight in [70_000.0, f32::NAN] {
        let header = *trace().header();
        let mut writer = TraceWriter::new(Vec::new(), header).expect("memory takes it");
        let choices = chosen(1).map(|id| (id, if id == 5 { weight } else { 1.0 }));
        let error = writer.push(41, choices, GUESSED).expect_err("refused");
        let expected = format!("position 41 expert 5 of layer 1 has weight {weight}");
        assert!(error.to_string().contains(&expected), "{error}");
    }
}

#[test]
fn other_files_and_versions_are_refused() {
    assert!(refused(|bytes| bytes[0] = b'X').contains("this is no trace"));
    assert!(refused(|bytes| bytes[8] = 9).contains("format 9, expected 1"));
}
