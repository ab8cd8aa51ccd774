//! The probe measures what it may and nothing else, through every reader.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use emel_loader::files::OpenFiles;
use emel_loader::probe::{Curve, FILE_BYTES_MIN, Limits, Point, ProbeError, measure, median};
use emel_tests::run::{READERS, block_on};
use tempfile::TempDir;

const LIMITS: Limits = Limits {
    // Readers are opened in it too, on a machine however busy.
    time: Duration::from_secs(1),
    memory_bytes: 1 << 20,
    block_bytes: &[64 << 10, 256 << 10],
    depths: &[1, 4, 8],
};

/// Files of zeros, which are all on the drive.
fn files(bytes: &[u64]) -> (TempDir, Arc<OpenFiles>) {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = (0..bytes.len())
        .map(|index| folder.path().join(index.to_string()))
        .collect();
    for (path, &bytes) in paths.iter().zip(bytes) {
        std::fs::write(path, vec![0; bytes as usize]).unwrap();
    }
    let opened = OpenFiles::open(paths.iter().map(PathBuf::as_path), true).unwrap();
    (folder, Arc::new(opened))
}

#[test]
fn every_reader_is_measured_at_every_point_that_memory_allows() {
    // Shards that are shorter than a read are passed over.
    let (_folder, files) = files(&[1000, FILE_BYTES_MIN, 100_000]);
    for &backend in READERS.iter() {
        let curve = block_on(measure(&files, backend, LIMITS)).unwrap();
        assert!(!curve.points.is_empty());
        for point in &curve.points {
            assert!(point.bytes_per_second > 0.0, "{point:?}");
            assert!(point.ring_bytes() <= LIMITS.memory_bytes, "{point:?}");
        }
        assert_eq!(curve.points[0].block_bytes, 64 << 10);
    }
}

#[test]
fn without_memory_or_time_there_are_no_points() {
    let (_folder, files) = files(&[FILE_BYTES_MIN]);
    for limits in [
        Limits {
            memory_bytes: 4096,
            ..LIMITS
        },
        Limits {
            time: Duration::ZERO,
            ..LIMITS
        },
    ] {
        let curve = block_on(measure(&files, READERS[0], limits)).unwrap();
        assert_eq!(curve, Curve::default());
        assert_eq!((curve.best(), curve.knee()), (None, None));
    }
}

#[test]
fn files_that_tell_nothing_and_files_that_shrink_are_errors() {
    let (_folder, small) = files(&[FILE_BYTES_MIN - 1, 5]);
    let error = block_on(measure(&small, READERS[0], LIMITS)).unwrap_err();
    assert!(matches!(error, ProbeError::TooSmall { .. }), "{error}");
    let (folder, shrunk) = files(&[FILE_BYTES_MIN]);
    let file = File::options().write(true).open(folder.path().join("0"));
    file.unwrap().set_len(70_000).unwrap();
    for &backend in READERS.iter() {
        let error = block_on(measure(&shrunk, backend, LIMITS)).unwrap_err();
        assert!(error.to_string().contains("truncated"), "{error}");
    }
}

#[test]
fn a_file_with_holes_is_not_measured() {
    let (folder, _) = files(&[FILE_BYTES_MIN]);
    let path = folder.path().join("0");
    let file = File::options().write(true).open(&path).unwrap();
    // The end of a download that was made room for.
    file.set_len(FILE_BYTES_MIN * 2).unwrap();
    let opened = OpenFiles::open([path.as_path()], true).unwrap();
    assert_eq!(opened.get(0).hole_bytes(), FILE_BYTES_MIN);
    let error = block_on(measure(&Arc::new(opened), READERS[0], LIMITS)).unwrap_err();
    let told = error.to_string();
    assert!(matches!(error, ProbeError::Holes { .. }), "{told}");
    for part in ["67108864 of 134217728 bytes are holes", "--sparse=never"] {
        assert!(told.contains(part), "{told}");
    }
    // A hole of a page between data shows in no rate.
    file.write_at(&[1; 4096], FILE_BYTES_MIN * 2 - 4096)
        .unwrap();
    file.set_len(FILE_BYTES_MIN + 4096).unwrap();
    file.write_at(&[1], FILE_BYTES_MIN + 4096).unwrap();
    let opened = OpenFiles::open([path.as_path()], true).unwrap();
    assert_eq!(opened.get(0).hole_bytes(), 4096);
    block_on(measure(&Arc::new(opened), READERS[0], LIMITS)).unwrap();
}

fn point(block_bytes: u64, depth: usize, bytes_per_second: f64) -> Point {
    Point {
        block_bytes,
        depth,
        bytes_per_second,
    }
}

#[test]
fn the_knee_is_the_smallest_ring_that_is_nearly_the_fastest() {
    let curve = Curve {
        points: vec![
            point(4 << 20, 32, 3.00e9),
            point(1 << 20, 8, 2.95e9),
            point(2 << 20, 2, 2.0e9),
        ],
    };
    assert_eq!(curve.best().unwrap().depth, 32);
    assert_eq!(curve.knee().unwrap().depth, 8);
}

#[test]
fn a_ring_grows_with_what_it_reads_and_small_units_cost_steps() {
    // All as fast, but for what a measurement is out by.
    let curve = Curve {
        points: vec![
            point(256 << 10, 32, 3.05e9),
            point(4 << 20, 2, 3.0e9),
            point(4 << 20, 4, 2.99e9),
            point(4 << 20, 8, 3.0e9),
        ],
    };
    let ring = |rest_bytes: u64, ring_bytes_max: u64| {
        let point = curve.fastest_for(4 << 30, rest_bytes << 20, ring_bytes_max << 20);
        point.map(|point| (point.depth, point.ring_bytes() >> 20))
    };
    assert_eq!(ring(100, 100), Some((2, 8)));
    assert_eq!(ring(300, 100), Some((4, 16)));
    assert_eq!(ring(800, 100), Some((8, 32)));
    assert_eq!(ring(4000, 12), Some((2, 8)));
    assert_eq!(ring(800, 4), None);
}

#[test]
fn between_measured_points_a_rate_lies_between_theirs_and_beyond_them_it_is_the_last() {
    let curve = Curve {
        points: vec![
            point(4 << 20, 8, 3.0e9),
            point(1 << 20, 8, 2.0e9),
            point(1 << 20, 2, 1.0e9),
        ],
    };
    assert_eq!(curve.bytes_per_second(1 << 20, 2), Some(1.0e9));
    assert_eq!(curve.bytes_per_second(1 << 20, 4), Some(1.5e9));
    assert_eq!(curve.bytes_per_second(2 << 20, 8), Some(2.5e9));
    assert_eq!(curve.bytes_per_second(2 << 20, 4), Some(2.25e9));
    assert_eq!(curve.bytes_per_second(4 << 10, 1), Some(1.0e9));
    assert_eq!(curve.bytes_per_second(64 << 20, 64), Some(3.0e9));
    assert_eq!(Curve::default().bytes_per_second(1 << 20, 1), None);
}

#[test]
fn a_median_is_not_moved_by_one_hiccup() {
    assert_eq!(median(&mut [3.0, 0.1, 2.9]), Some(2.9));
    assert_eq!(median(&mut [4.0, 2.0]), Some(3.0));
    assert_eq!(median(&mut [5.0]), Some(5.0));
    assert_eq!(median(&mut []), None);
}
