//! Units and rows of whole passes.

use std::fs::OpenOptions;

use emel_loader::gguf::{Catalog, TensorType};
use emel_loader::page::PageSize;
use emel_loader::plan::{Plan, PlanInputs, ROW_SLOTS, Residency};
use emel_loader::reader::{self, Backend, ReadLimits, ReadRequest, read_blocking};
use emel_loader::slots::SlotTable;
use emel_loader::weights::{Pass, Weights};
use emel_tests::gguf_writer::GgufWriter;

use crate::model::{Model, PAGE, Random, random};
use crate::{
    check_full_pass, check_pass, check_rows, every_reader, open, open_files, poll_and_drop, run,
};

#[test]
fn every_unit_of_every_pass_has_the_bytes_of_the_file() {
    every_reader(|backend| {
        let model = Model::new();
        for plan in model.plans() {
            let mut weights = open(&model, &plan, backend);
            assert_eq!(weights.backend(), backend);
            for _ in 0..5 {
                run(check_full_pass(&model, &plan, &mut weights));
            }
        }
    });
}

#[test]
fn the_plans_of_every_budget_are_served() {
    every_reader(|backend| {
        let model = Model::new();
        let plan_for = |budget_bytes| {
            Plan::new(
                &model.catalog,
                PlanInputs {
                    budget_bytes,
                    items: Vec::new(),
                    uses: &model.uses,
                    experts: &[],
                    embedding: model.embedding,
                    may_map: backend == Backend::Mmap,
                    drive: None,
                    page: PageSize::of_system(),
                },
            )
        };
        let smallest = plan_for(0).unwrap_err().needed_bytes;
        for budget in [smallest, smallest + 100_000, smallest + 200_000, 1 << 30] {
            let plan = plan_for(budget).unwrap();
            let mut weights = open(&model, &plan, backend);
            run(async {
                for _ in 0..2 {
                    check_full_pass(&model, &plan, &mut weights).await;
                    check_rows(&model, &mut weights, &[0, 96, 3]).await;
                }
            });
        }
    });
}

#[test]
fn units_in_several_files_come_from_the_right_one() {
    every_reader(|backend| {
        let model = Model::sharded();
        for plan in model.plans() {
            let mut weights = open(&model, &plan, backend);
            for _ in 0..2 {
                run(check_pass(
                    &model,
                    &plan,
                    &mut weights,
                    Pass::Full,
                    Pass::Body,
                ));
            }
        }
    });
}

#[test]
fn every_misalignment_of_an_offset_is_read_right() {
    every_reader(|backend| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        let mut random = Random::new(3);
        let mut writer = GgufWriter::new("llama");
        // 4128 is 129 times 32: each tensor starts 32 bytes further into a page.
        for index in 0..129 {
            let name = format!("{index:03}");
            let bytes = 4128 - 32 + 1 + random.below(32);
            let data = random.bytes(bytes);
            writer = writer.tensor(&name, TensorType::I8, &[bytes as u64], data);
        }
        writer.write(&path).unwrap();
        let catalog = Catalog::open(&path).unwrap();
        let mut starts: Vec<u64> = catalog
            .tensors()
            .iter()
            .map(|tensor| tensor.extent.offset % PAGE as u64)
            .collect();
        starts.sort_unstable();
        starts.dedup();
        assert_eq!(starts.len(), PAGE / 32);
        let model = Model::of_tensors(folder, path);
        for plan in model.plans() {
            let mut weights = open(&model, &plan, backend);
            for _ in 0..2 {
                run(check_full_pass(&model, &plan, &mut weights));
            }
        }
    });
}

#[test]
fn the_last_bytes_of_a_file_of_any_length_are_read() {
    every_reader(|backend| {
        for extra in [0, 1, 31, 511, 512, 513, 4095] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("model.gguf");
            let bytes = 5 * PAGE + extra;
            let data = Random::new(extra as u64).bytes(bytes);
            GgufWriter::new("llama")
                .tensor("a", TensorType::I8, &[bytes as u64], data)
                .write(&path)
                .unwrap();
            let catalog = Catalog::open(&path).unwrap();
            let extent = catalog.tensors()[0].extent;
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(extent.offset + extent.bytes).unwrap();
            let model = Model::of_tensors(folder, path);
            let plan = model.plan(1 << 20, 2, |_| false);
            for direct in [true, false] {
                let mut weights = open_files(&model.files(direct), &plan, backend);
                for _ in 0..3 {
                    run(check_full_pass(&model, &plan, &mut weights));
                }
            }
            let read = read_blocking(&model.files(true), &extent).unwrap();
            assert!(read == model.wanted(&extent));
        }
    });
}

#[test]
fn slots_are_taken_in_another_order_than_their_reads_end() {
    // The mapping needs no buffers, so its requests can be made from here.
    let model = Model::new();
    let plan = model.streamed();
    let table = SlotTable::new(8);
    let limits = ReadLimits::at_once(8, None);
    let reader = reader::open(Backend::Mmap, &model.files(true), Vec::new(), limits).unwrap();
    let mut random = random(0x51);
    for _ in 0..50 {
        for slot in 0..8 {
            reader.submit(ReadRequest {
                extent: plan.units[slot].extent,
                buffer: None,
                completion: table.begin(slot),
            });
        }
        let mut waiting: Vec<usize> = (0..8).collect();
        while !waiting.is_empty() {
            let slot = waiting.swap_remove(random.below(waiting.len()));
            let view = run(std::future::poll_fn(|context| {
                table.register(context.waker());
                table.poll_take(slot)
            }));
            assert_eq!(
                view.unwrap().bytes() as u64,
                plan.units[slot].extent.bytes,
                "slot {slot} has the view of another"
            );
            table.give_back(slot);
        }
    }
    assert_eq!(table.reads(), 50 * 8);
}

#[test]
fn passes_of_any_kind_follow_each_other_whatever_was_expected() {
    every_reader(|backend| {
        let mut random = random(0xb0d7);
        let model = Model::new();
        for round in 0..12 {
            let unit_bytes = [7_000, 20_000, 60_000][round % 3];
            let slots = 2 + random.below(15);
            let pinned_in = 2 + random.below(3);
            let plan = match round % 4 {
                0 => model.plan(unit_bytes, slots, |_| false),
                // Only the head streams, then only the body.
                1 => {
                    let head = model.plan(unit_bytes, slots, |_| false).head_start();
                    model.plan(unit_bytes, slots, |unit| unit < head)
                }
                2 => {
                    let head = model.plan(unit_bytes, slots, |_| false).head_start();
                    model.plan(unit_bytes, slots, |unit| unit >= head)
                }
                _ => model.plan(unit_bytes, slots, |_| random.one_in(pinned_in)),
            };
            let mut weights = open(&model, &plan, backend);
            for _ in 0..20 {
                let (pass, next) = (random.pass(), random.pass());
                run(check_pass(&model, &plan, &mut weights, pass, next));
            }
        }
    });
}

#[test]
fn rows_have_the_bytes_of_the_file_pinned_or_not_in_any_number() {
    every_reader(|backend| {
        let mut random = random(0x2035);
        let model = Model::new();
        for plan in model.plans() {
            let mut weights = open(&model, &plan, backend);
            run(async {
                for count in [0, 1, 2, ROW_SLOTS - 1, ROW_SLOTS, ROW_SLOTS + 1, 97, 200] {
                    let rows: Vec<usize> = (0..count).map(|_| random.below(97)).collect();
                    weights.begin_pass(Pass::Full, Pass::Full);
                    check_rows(&model, &mut weights, &rows).await;
                    check_rows(&model, &mut weights, &vec![96; count]).await;
                    check_full_pass(&model, &plan, &mut weights).await;
                }
            });
        }
    });
}

#[test]
fn rows_are_right_after_a_lookup_that_was_dropped_half_way() {
    every_reader(|backend| {
        let model = Model::new();
        let plan = model.streamed();
        let mut weights = open(&model, &plan, backend);
        let rows: Vec<usize> = (0..40).collect();
        for polls in 1..40 {
            let extents = rows.iter().map(|&row| model.row(row));
            let _ = poll_and_drop(weights.with_rows(extents, |_, _| {}), polls);
            run(check_rows(&model, &mut weights, &rows));
        }
    });
}

#[test]
fn the_bytes_that_loading_reports_end_at_those_that_the_plan_pins() {
    every_reader(|backend| {
        let model = Model::new();
        for plan in model.plans() {
            let mut told = vec![0];
            run(Weights::open(
                &model.files(true),
                &plan,
                backend,
                &mut |bytes| told.push(bytes),
            ))
            .unwrap();
            assert!(told.is_sorted());
            assert_eq!(told.last(), Some(&plan.pinned_bytes()));
        }
    });
}

#[test]
fn a_pass_reads_what_it_streams_and_no_more_than_the_alignment_besides() {
    every_reader(|backend| {
        let model = Model::new();
        let files = model.files(true);
        let plan = model.plan(20_000, 4, |unit| unit % 4 == 0);
        let mut weights = open_files(&files, &plan, backend);
        let loaded = weights.statistics();
        let pinned = plan.units.len() as u64 - {
            let streamed = plan.residency.iter();
            streamed
                .filter(|place| **place == Residency::Streamed)
                .count() as u64
        };
        assert_eq!(loaded.reads, pinned);
        assert!(loaded.bytes_read <= plan.pinned_bytes());
        let passes = 10;
        for _ in 0..passes {
            run(check_full_pass(&model, &plan, &mut weights));
        }
        let read = weights.statistics();
        let reads = read.reads - loaded.reads;
        let bytes = read.bytes_read - loaded.bytes_read;
        let streamed_units = plan.units.len() as u64 - pinned;
        // The ring has read ahead into the next pass.
        let ahead = plan.slots as u64;
        assert!((passes * streamed_units..=passes * streamed_units + ahead).contains(&reads));
        assert!(bytes >= passes * plan.streamed_bytes());
        let alignment = files
            .iter()
            .map(|file| file.alignment() as u64)
            .max()
            .unwrap();
        let most = passes * plan.streamed_bytes()
            + ahead * plan.slot_bytes as u64
            + reads * 2 * (alignment - 1);
        assert!(bytes <= most, "{bytes} bytes read, at most {most} expected");
    });
}
