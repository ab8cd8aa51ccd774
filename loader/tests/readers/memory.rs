//! The page cache and mappings.

use std::fs;
use std::path::Path;

use emel_loader::page_cache::{cached_pages, evict};
use emel_loader::reader::Backend;
use emel_loader::weights::Pass;

use crate::model::large_model;
use crate::{
    check_full_pass, check_rows, check_unit, every_reader, in_time, open, open_files, run,
};

fn resident_pages(path: &Path) -> usize {
    cached_pages(path).unwrap().resident as usize
}

/// Whether a plain read leaves pages of the file in the cache and advice drops them:
/// not so on a filesystem in memory, or while somebody else has the file mapped.
fn cache_can_be_dropped(path: &Path) -> bool {
    evict(path).unwrap();
    let before = resident_pages(path);
    fs::read(path).unwrap();
    let between = resident_pages(path);
    evict(path).unwrap();
    before == 0 && between > 0 && resident_pages(path) == 0
}

#[test]
fn reads_through_the_page_cache_are_right_and_leave_little_in_it() {
    every_reader(|backend| {
        let model = large_model();
        let path = &model.paths[0];
        for plan in [
            model.plan(64 << 10, 4, |_| false),
            model.plan(64 << 10, 4, |unit| unit % 4 == 0),
        ] {
            let can_drop = cache_can_be_dropped(path);
            let files = model.files(false);
            assert!(!files.all_direct());
            let mut weights = open_files(&files, &plan, backend);
            for _ in 0..3 {
                run(async {
                    check_full_pass(&model, &plan, &mut weights).await;
                    check_rows(&model, &mut weights, &[0, 1, 50, 3000]).await;
                });
            }
            weights.restart();
            // Reads under way have landed when the reader has ended.
            drop(weights);
            let cached = resident_pages(path);
            let page_bytes = plan.page.bytes();
            let pinned = match backend {
                Backend::Mmap => plan.pinned_bytes() as usize / page_bytes,
                _ => 0,
            };
            let streamed = model.bytes[0].len() / page_bytes - pinned;
            println!(
                "{}: {cached} pages left, {pinned} pinned, {streamed} streamed",
                backend.name()
            );
            // A kernel that does not drop what it is told to is another's fault.
            assert!(
                !can_drop || cached <= pinned + streamed / 2 || !cache_can_be_dropped(path),
                "{}: {cached} pages are left in the cache",
                backend.name()
            );
        }
    });
}

/// Resident bytes of this process's mappings of the file.
fn mapped_resident_bytes(path: &Path) -> usize {
    let name = path.to_str().unwrap();
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_ours = false;
    let mut kibibytes = 0;
    for line in maps.lines() {
        if let Some(resident) = line.strip_prefix("Rss:") {
            if is_ours {
                let number = resident.trim().strip_suffix(" kB").unwrap();
                kibibytes += number.parse::<usize>().unwrap();
            }
        } else if !line.split(' ').next().unwrap().ends_with(':') {
            // The head of a mapping: its addresses, and what is mapped.
            is_ours = line.ends_with(name);
        }
    }
    kibibytes << 10
}

/// The hard case: all of the file is cached, so that every fault maps its neighbours.
#[test]
fn a_mapping_of_a_cached_file_holds_what_is_in_use_and_little_more() {
    in_time("mmap", || {
        let model = large_model();
        let path = &model.paths[0];
        let file_bytes = model.bytes[0].len();
        let plan = model.plan(64 << 10, 4, |unit| unit % 8 == 0);
        let mut weights = open(&model, &plan, Backend::Mmap);
        let mut most = 0;
        for _ in 0..3 {
            weights.begin_pass(Pass::Full, Pass::Full);
            for unit in 0..plan.units.len() {
                if unit % 16 == 0 {
                    // Whoever else uses the file brings it back.
                    assert!(fs::read(path).unwrap() == model.bytes[0]);
                }
                run(check_unit(&model, &plan, &mut weights, unit));
                run(check_rows(&model, &mut weights, &[unit * 7, 4000 - unit]));
                most = most.max(mapped_resident_bytes(path));
            }
        }
        println!("{most} of {file_bytes} bytes were resident");
        let pinned = plan.pinned_bytes() as usize;
        assert!(most >= pinned, "{most} resident, {pinned} pinned");
        // Folios that pinned units share with their neighbours may all be mapped.
        assert!(most < file_bytes / 4 * 3, "{most} of {file_bytes} resident");
    });
}
