//! What the page cache holds of a file is told, and put out.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::fs;
use std::path::PathBuf;

use emel_loader::page::PageSize;
use emel_loader::page_cache::{cached_pages, evict};
use tempfile::TempDir;

fn page_bytes() -> usize {
    PageSize::of_system().bytes()
}

/// A file of some pages and a part of one, all of them in the page cache.
fn file_of(pages: usize) -> (TempDir, PathBuf) {
    // Not in memory, as /tmp may be: there is no drive to drop pages to.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("file");
    fs::write(&path, vec![7; (pages - 1) * page_bytes() + 100]).unwrap();
    (folder, path)
}

#[test]
fn a_file_that_was_just_written_is_resident_until_it_is_evicted() {
    let (_folder, path) = file_of(300);
    let before = cached_pages(&path).unwrap();
    assert_eq!((before.pages, before.resident), (300, 300));
    assert!(before.is_told);
    evict(&path).unwrap();
    let after = cached_pages(&path).unwrap();
    assert_eq!((after.pages, after.resident), (300, 0));
    // Asking has read nothing.
    assert_eq!(cached_pages(&path).unwrap(), after);
}

#[test]
fn what_is_read_again_is_resident_again() {
    let (_folder, path) = file_of(300);
    evict(&path).unwrap();
    assert_eq!(fs::read(&path).unwrap().len(), 299 * page_bytes() + 100);
    assert_eq!(cached_pages(&path).unwrap().resident, 300);
}

#[test]
fn an_empty_file_has_no_pages_and_a_missing_one_is_an_error() {
    let (folder, path) = file_of(1);
    fs::write(&path, "").unwrap();
    evict(&path).unwrap();
    assert_eq!(cached_pages(&path).unwrap().pages, 0);
    let missing = folder.path().join("nothing");
    assert!(evict(&missing).is_err() && cached_pages(&missing).is_err());
}

#[test]
fn a_file_larger_than_what_is_asked_at_once_is_counted_whole() {
    let (_folder, path) = file_of(1);
    // Sparse: it takes no room.
    let bytes = (5_u64 << 30) / 2;
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(bytes).unwrap();
    let found = cached_pages(&path).unwrap();
    assert_eq!(found.pages, bytes / page_bytes() as u64);
    assert_eq!(found.resident, 1);
}
