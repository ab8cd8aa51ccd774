//! Files that are missing, shorter than they were, or gone.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use emel_loader::files::{OpenError, OpenFile, OpenFiles};
use emel_loader::reader::ReadError;
use emel_loader::weights::{Pass, Weights};
use emel_tests::run::READERS;

use crate::model::{Model, PAGE, random};
use crate::{
    check_full_pass, check_rows, check_unit, every_reader, in_time, open, open_files, run,
};

#[test]
fn a_file_that_became_shorter_is_an_error_that_says_what_is_missing() {
    every_reader(|backend| {
        let model = Model::new();
        let path = &model.paths[0];
        let plan = model.streamed();
        let third = plan.units[3].extent;
        let last = plan.units.last().unwrap().extent;
        let lengths = [
            third.offset,
            third.offset + 1,
            third.offset + third.bytes - 1,
            (third.offset + third.bytes / 2).next_multiple_of(512),
            third.offset - third.offset % PAGE as u64,
            last.offset + last.bytes - 1,
            1,
            0,
        ];
        for direct in [true, false] {
            for length in lengths {
                let mut weights = open_files(&model.files(direct), &plan, backend);
                let file = OpenOptions::new().write(true).open(path).unwrap();
                file.set_len(length).unwrap();
                run(async {
                    weights.begin_pass(Pass::Full, Pass::Full);
                    for unit in 0..plan.units.len() {
                        let extent = plan.units[unit].extent;
                        if extent.offset + extent.bytes <= length {
                            check_unit(&model, &plan, &mut weights, unit).await;
                            continue;
                        }
                        let outcome = weights.with_unit(unit, |_| ()).await;
                        let expected = ReadError::Short {
                            path: path.clone(),
                            offset: extent.offset,
                            wanted: extent.bytes as usize,
                            got: length.saturating_sub(extent.offset) as usize,
                        };
                        assert_eq!(outcome, Err(expected), "file of {length} bytes");
                        break;
                    }
                    if length == 0 {
                        let rows = std::iter::once(model.row(5));
                        let outcome = weights.with_rows(rows, |_, _| ()).await;
                        assert!(
                            matches!(outcome, Err(ReadError::Short { got: 0, .. })),
                            "{outcome:?}"
                        );
                    }
                });
                weights.restart();
                file.write_all_at(&model.bytes[0][length as usize..], length)
                    .unwrap();
                file.sync_all().unwrap();
                run(async {
                    check_full_pass(&model, &plan, &mut weights).await;
                    check_rows(&model, &mut weights, &[5, 96]).await;
                });
            }
        }
    });
}

#[test]
fn a_file_that_shrinks_in_the_middle_of_passes_gives_right_bytes_or_an_error() {
    // Not through a mapping, where a page that is gone is a SIGBUS.
    for &backend in READERS.iter().filter(|it| it.needs_buffers()) {
        in_time(backend.name(), move || {
            let mut random = random(0x5407);
            let model = Model::new();
            let plan = model.plan(20_000, 6, |unit| unit % 5 == 0);
            let mut weights = open(&model, &plan, backend);
            let file = OpenOptions::new()
                .write(true)
                .open(&model.paths[0])
                .unwrap();
            for _ in 0..40 {
                let cut = random.below(plan.units.len());
                let length = random.below(model.bytes[0].len()) as u64;
                let outcome = run(async {
                    weights.begin_pass(Pass::Full, Pass::Full);
                    for unit in 0..plan.units.len() {
                        if unit == cut {
                            file.set_len(length).unwrap();
                        }
                        let wanted = model.wanted(&plan.units[unit].extent);
                        let right = weights.with_unit(unit, |bytes| bytes == wanted).await?;
                        assert!(right, "unit {unit}");
                    }
                    Ok(())
                });
                if let Err(error) = outcome {
                    assert!(matches!(error, ReadError::Short { .. }), "{error:?}");
                }
                file.write_all_at(&model.bytes[0][length as usize..], length)
                    .unwrap();
                weights.restart();
            }
            run(check_full_pass(&model, &plan, &mut weights));
        });
    }
}

#[test]
fn a_pinned_unit_that_cannot_be_read_fails_the_opening() {
    every_reader(|backend| {
        let model = Model::new();
        let plan = model.plan(20_000, 0, |_| true);
        let files = model.files(true);
        let file = OpenOptions::new()
            .write(true)
            .open(&model.paths[0])
            .unwrap();
        file.set_len(PAGE as u64).unwrap();
        let outcome = run(Weights::open(&files, &plan, backend, &mut |_| {}));
        let error = outcome.err().unwrap().to_string();
        assert!(error.contains("truncated"), "{error}");
    });
}

#[test]
fn a_missing_file_is_an_error_that_names_it() {
    let error = OpenFiles::open([Path::new("no/such.gguf")], true).unwrap_err();
    let OpenError::Refused { path, source } = error else {
        panic!("{error}");
    };
    assert_eq!(path, Path::new("no/such.gguf"));
    assert_eq!(source.kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn a_file_that_is_deleted_after_opening_is_still_read() {
    every_reader(|backend| {
        let model = Model::new();
        let plan = model.streamed();
        let mut weights = open(&model, &plan, backend);
        fs::remove_file(&model.paths[0]).unwrap();
        run(check_full_pass(&model, &plan, &mut weights));
    });
}

#[test]
fn a_direct_file_states_an_alignment_that_its_buffers_have() {
    let model = Model::new();
    let file = OpenFile::open(&model.paths[0], true).unwrap();
    assert!(file.alignment().is_power_of_two() && file.alignment() <= PAGE);
    let buffered = OpenFile::open(&model.paths[0], false).unwrap();
    assert_eq!((buffered.alignment(), buffered.is_direct()), (1, false));
}
