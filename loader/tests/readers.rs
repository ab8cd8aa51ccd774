//! One suite that every reader passes: the bytes that units and rows are given are
//! the file's, in any order of passes, after errors, cancels and restarts.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::fs::{self, OpenOptions};
use std::future::Future;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use emel_loader::files::{OpenError, OpenFile, OpenFiles};
use emel_loader::gguf::{Catalog, Extent, TensorType};
use emel_loader::page_cache::{cached_pages, evict};
use emel_loader::plan::{Plan, PlanInputs, ROW_SLOTS, Residency, held_bytes};
use emel_loader::reader::{self, Backend, ReadError, ReadRequest};
use emel_loader::slots::SlotTable;
use emel_loader::unit::{Stage, WeightUse, partition};
use emel_loader::weights::{Pass, Weights};
use emel_tests::gguf_writer::GgufWriter;
use emel_tests::run::{READERS, in_process_of_its_own};
use tempfile::TempDir;

const PAGE: usize = 4096;
/// A test that takes longer waits for something that never comes.
const HANG: Duration = Duration::from_secs(120);

/// SplitMix64: enough to choose by.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }

    fn pass(&mut self) -> Pass {
        if self.one_in(2) {
            Pass::Body
        } else {
            Pass::Full
        }
    }
}

/// A random generator whose seed a failing run prints.
fn random(seed: u64) -> Random {
    println!("seed {seed:#x}");
    Random(seed)
}

struct Model {
    // Deletes the files when the test is over.
    _folder: TempDir,
    paths: Vec<PathBuf>,
    bytes: Vec<Vec<u8>>,
    catalog: Catalog,
    uses: Vec<WeightUse>,
    embedding: usize,
}

/// Layers of matrices of many sizes at every offset that is a multiple of 32, and an
/// embedding that is the head too.
fn writer() -> GgufWriter {
    let mut random = Random(7);
    let mut writer = GgufWriter::new("llama");
    let mut add = |name: String, columns: usize, rows: usize| {
        let data = random.bytes(columns * rows);
        let dims = [columns as u64, rows as u64];
        writer = writer.clone().tensor(&name, TensorType::I8, &dims, data);
    };
    add("token_embd".to_owned(), 300, 97);
    for layer in 0..5 {
        add(format!("{layer}.norm"), 33, 1);
        add(format!("{layer}.q"), 513, 11 + layer);
        add(format!("{layer}.k"), 513, 3);
        add(format!("{layer}.v"), 510, 3);
        add(format!("{layer}.up"), 1000, 45 + 7 * layer);
        add(format!("{layer}.down"), 31, 1500);
    }
    add("last".to_owned(), 77, 203);
    writer
}

impl Model {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        writer().write(&path).unwrap();
        // Without the padding, so that the last tensor ends with the file.
        let catalog = Catalog::open(&path).unwrap();
        let extent = catalog.tensor("last").unwrap().extent;
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(extent.offset + extent.bytes).unwrap();
        file.sync_all().unwrap();
        Self::open(folder, vec![path])
    }

    fn sharded() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let paths = writer()
            .write_shards(folder.path(), "model", 4, false)
            .unwrap();
        Self::open(folder, paths)
    }

    fn open(folder: TempDir, paths: Vec<PathBuf>) -> Self {
        let catalog = Catalog::open(&paths[0]).unwrap();
        let index_of = |name: &str| {
            let found = catalog
                .tensors()
                .iter()
                .position(|tensor| tensor.name == name);
            found.unwrap()
        };
        let mut uses = Vec::new();
        for layer in 0..5 {
            for name in ["q", "k", "v", "up", "down"] {
                uses.push(WeightUse {
                    tensor: index_of(&format!("{layer}.{name}")),
                    layer,
                    stage: Stage::Body,
                });
            }
        }
        for name in ["token_embd", "last"] {
            uses.push(WeightUse {
                tensor: index_of(name),
                layer: 5,
                stage: Stage::Head,
            });
        }
        let embedding = index_of("token_embd");
        Self {
            bytes: paths.iter().map(|path| fs::read(path).unwrap()).collect(),
            _folder: folder,
            paths,
            catalog,
            uses,
            embedding,
        }
    }

    fn files(&self, direct: bool) -> Arc<OpenFiles> {
        let paths = self.paths.iter().map(PathBuf::as_path);
        Arc::new(OpenFiles::open(paths, direct).unwrap())
    }

    fn wanted(&self, extent: &Extent) -> &[u8] {
        &self.bytes[extent.file][extent.offset as usize..][..extent.bytes as usize]
    }

    fn row(&self, row: usize) -> Extent {
        let tensor = &self.catalog.tensors()[self.embedding];
        Extent {
            offset: tensor.extent.offset + row as u64 * tensor.row_bytes(),
            bytes: tensor.row_bytes(),
            ..tensor.extent
        }
    }

    /// A plan by hand: units of at most `unit_bytes`, those pinned that `is_pinned`
    /// says, and a ring for the others.
    fn plan(&self, unit_bytes: u64, slots: usize, is_pinned: impl FnMut(usize) -> bool) -> Plan {
        let units = partition(&self.catalog, &self.uses, unit_bytes);
        let residency: Vec<Residency> = (0..units.len())
            .map(is_pinned)
            .map(|pinned| match pinned {
                true => Residency::Pinned,
                false => Residency::Streamed,
            })
            .collect();
        let streams = residency.contains(&Residency::Streamed);
        let row_bytes = self.catalog.tensors()[self.embedding].row_bytes() as usize;
        Plan {
            expert_runs: Vec::new(),
            expert_slots: None,
            spare_expert_slots: None,
            budget_bytes: u64::MAX,
            file_bytes: self.catalog.file_bytes(),
            items: Vec::new(),
            slots: if streams { slots } else { 0 },
            slot_bytes: units.iter().map(held_bytes).max().unwrap() as usize,
            row_slot_bytes: row_bytes.next_multiple_of(PAGE) + PAGE,
            is_mapped: false,
            units,
            residency,
        }
    }

    fn streamed(&self) -> Plan {
        self.plan(20_000, 4, |_| false)
    }

    /// Streamed, every other unit pinned, and all pinned.
    fn plans(&self) -> [Plan; 3] {
        [
            self.streamed(),
            self.plan(20_000, 3, |unit| unit % 2 == 0),
            self.plan(20_000, 0, |_| true),
        ]
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(future)
}

/// Runs `test` for every reader that this machine allows, each on a thread that must end in time.
fn every_reader(test: impl Fn(Backend) + Send + Sync + 'static) {
    let test = Arc::new(test);
    for &backend in READERS.iter() {
        let test = Arc::clone(&test);
        in_time(backend.name(), move || test(backend));
    }
}

fn in_time(name: &str, test: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    if wait.recv_timeout(HANG) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("{name} hangs");
    }
    assert!(thread.join().is_ok(), "{name} has failed");
}

fn open(model: &Model, plan: &Plan, backend: Backend) -> Weights {
    open_files(&model.files(true), plan, backend)
}

fn open_files(files: &Arc<OpenFiles>, plan: &Plan, backend: Backend) -> Weights {
    run(Weights::open(files, plan, backend, &mut |_| {})).unwrap()
}

fn units_of(plan: &Plan, pass: Pass) -> usize {
    match pass {
        Pass::Body => plan.head_start(),
        Pass::Full => plan.units.len(),
    }
}

async fn check_unit(model: &Model, plan: &Plan, weights: &mut Weights, unit: usize) {
    let extent = &plan.units[unit].extent;
    let right = weights
        .with_unit(unit, |bytes| bytes == model.wanted(extent))
        .await;
    assert_eq!(right, Ok(true), "bytes of unit {unit} at {extent:?}");
}

async fn check_pass(model: &Model, plan: &Plan, weights: &mut Weights, pass: Pass, next: Pass) {
    weights.begin_pass(pass, next);
    for unit in 0..units_of(plan, pass) {
        check_unit(model, plan, weights, unit).await;
    }
}

async fn check_rows(model: &Model, weights: &mut Weights, rows: &[usize]) {
    let mut seen = vec![0; rows.len()];
    let extents = rows.iter().map(|&row| model.row(row));
    weights
        .with_rows(extents, |index, bytes| {
            assert!(
                bytes == model.wanted(&model.row(rows[index])),
                "bytes of row {}",
                rows[index]
            );
            seen[index] += 1;
        })
        .await
        .unwrap();
    assert!(seen.iter().all(|&times| times == 1), "{seen:?}");
}

/// Polls `future` up to `polls` times with nobody to wake, and drops it.
fn poll_and_drop<T>(future: impl Future<Output = T>, polls: usize) -> Option<T> {
    let mut future = pin!(future);
    for _ in 0..polls {
        if let Poll::Ready(output) = future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            return Some(output);
        }
    }
    None
}

#[test]
fn every_unit_of_every_pass_has_the_bytes_of_the_file() {
    every_reader(|backend| {
        let model = Model::new();
        for plan in model.plans() {
            let mut weights = open(&model, &plan, backend);
            assert_eq!(weights.backend(), backend);
            for _ in 0..5 {
                run(check_pass(
                    &model,
                    &plan,
                    &mut weights,
                    Pass::Full,
                    Pass::Full,
                ));
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
                },
            )
        };
        let smallest = plan_for(0).unwrap_err().needed_bytes;
        for budget in [smallest, smallest + 100_000, smallest + 200_000, 1 << 30] {
            let plan = plan_for(budget).unwrap();
            let mut weights = open(&model, &plan, backend);
            run(async {
                for _ in 0..2 {
                    check_pass(&model, &plan, &mut weights, Pass::Full, Pass::Full).await;
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
        let mut random = Random(3);
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
        let uses = (0..129).map(|tensor| WeightUse {
            tensor,
            layer: tensor,
            stage: Stage::Body,
        });
        let model = Model {
            bytes: vec![fs::read(&path).unwrap()],
            _folder: folder,
            paths: vec![path],
            catalog,
            uses: uses.collect(),
            embedding: 0,
        };
        for plan in model.plans() {
            let mut weights = open(&model, &plan, backend);
            for _ in 0..2 {
                run(check_pass(
                    &model,
                    &plan,
                    &mut weights,
                    Pass::Full,
                    Pass::Full,
                ));
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
            let data = Random(extra as u64).bytes(bytes);
            GgufWriter::new("llama")
                .tensor("a", TensorType::I8, &[bytes as u64], data)
                .write(&path)
                .unwrap();
            let catalog = Catalog::open(&path).unwrap();
            let extent = catalog.tensors()[0].extent;
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(extent.offset + extent.bytes).unwrap();
            let model = Model {
                bytes: vec![fs::read(&path).unwrap()],
                _folder: folder,
                paths: vec![path],
                catalog,
                uses: vec![WeightUse {
                    tensor: 0,
                    layer: 0,
                    stage: Stage::Body,
                }],
                embedding: 0,
            };
            let plan = model.plan(1 << 20, 2, |_| false);
            for direct in [true, false] {
                let mut weights = open_files(&model.files(direct), &plan, backend);
                for _ in 0..3 {
                    run(check_pass(
                        &model,
                        &plan,
                        &mut weights,
                        Pass::Full,
                        Pass::Full,
                    ));
                }
            }
            let read = model.files(true).read(&extent).unwrap();
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
    let reader = reader::open(Backend::Mmap, &model.files(true), Vec::new(), 8, None).unwrap();
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
                    check_pass(&model, &plan, &mut weights, Pass::Full, Pass::Full).await;
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
fn cancels_at_any_place_lose_no_slot_and_no_byte() {
    every_reader(|backend| {
        let mut random = random(0xca9ce1);
        let model = Model::new();
        for (round, slots) in [1, 2, 5, 16].into_iter().enumerate() {
            let plan = model.plan(20_000, slots, |unit| round % 2 == 1 && unit % 3 == 0);
            let mut weights = open(&model, &plan, backend);
            for _ in 0..150 {
                let (pass, next) = (random.pass(), random.pass());
                weights.begin_pass(pass, next);
                let stop = random.below(units_of(&plan, pass));
                run(async {
                    if random.one_in(3) {
                        let row = random.below(97);
                        check_rows(&model, &mut weights, &[row]).await;
                    }
                    for unit in 0..stop {
                        check_unit(&model, &plan, &mut weights, unit).await;
                    }
                });
                if random.one_in(2) {
                    let polls = random.below(4);
                    let wanted = model.wanted(&plan.units[stop].extent);
                    let step = weights.with_unit(stop, |bytes| bytes == wanted);
                    if let Some(right) = poll_and_drop(step, polls) {
                        assert_eq!(right, Ok(true));
                    }
                }
                // Without it the next `begin_pass` must notice by itself.
                if random.one_in(2) {
                    weights.restart();
                }
            }
            for _ in 0..2 {
                run(check_pass(
                    &model,
                    &plan,
                    &mut weights,
                    Pass::Full,
                    Pass::Full,
                ));
            }
        }
    });
}

#[test]
fn a_step_that_was_dropped_while_it_waited_can_be_asked_for_again() {
    every_reader(|backend| {
        let model = Model::new();
        let plan = model.streamed();
        let mut weights = open(&model, &plan, backend);
        for _ in 0..20 {
            weights.begin_pass(Pass::Full, Pass::Full);
            for unit in 0..plan.units.len() {
                let wanted = model.wanted(&plan.units[unit].extent);
                let step = weights.with_unit(unit, |bytes| bytes == wanted);
                match poll_and_drop(step, 1) {
                    Some(right) => assert_eq!(right, Ok(true)),
                    None => run(check_unit(&model, &plan, &mut weights, unit)),
                }
            }
        }
    });
}

#[test]
fn a_step_that_panics_leaves_weights_that_serve() {
    every_reader(|backend| {
        let model = Model::new();
        let plan = model.streamed();
        let mut weights = open(&model, &plan, backend);
        for unit in 0..4 {
            weights.begin_pass(Pass::Full, Pass::Full);
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                run(async {
                    for earlier in 0..unit {
                        check_unit(&model, &plan, &mut weights, earlier).await;
                    }
                    let _ = weights
                        .with_unit(unit, |_| panic!("as the test wants"))
                        .await;
                });
            }));
            assert!(panicked.is_err());
            run(check_pass(
                &model,
                &plan,
                &mut weights,
                Pass::Full,
                Pass::Full,
            ));
        }
    });
}

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
                    check_pass(&model, &plan, &mut weights, Pass::Full, Pass::Full).await;
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
            run(check_pass(
                &model,
                &plan,
                &mut weights,
                Pass::Full,
                Pass::Full,
            ));
        });
    }
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
        run(check_pass(
            &model,
            &plan,
            &mut weights,
            Pass::Full,
            Pass::Full,
        ));
    });
}

#[test]
fn weights_are_dropped_with_reads_under_way() {
    every_reader(|backend| {
        let mut random = random(0xd209);
        let model = Model::new();
        let plan = model.plan(20_000, 16, |_| false);
        let files = model.files(true);
        for _ in 0..200 {
            let mut weights = open_files(&files, &plan, backend);
            weights.begin_pass(Pass::Full, Pass::Full);
            match random.below(4) {
                0 => weights.restart(),
                1 => run(check_unit(&model, &plan, &mut weights, 0)),
                2 => {
                    let rows = (0..40).map(|row| model.row(row));
                    let _ = poll_and_drop(weights.with_rows(rows, |_, _| {}), 2);
                }
                _ => {}
            }
        }
        // Loading is dropped half way too.
        let pinned = model.plan(7_000, 2, |unit| unit % 7 != 0);
        for polls in 0..50 {
            let _ = poll_and_drop(
                Weights::open(&files, &pinned, backend, &mut |_| {}),
                polls % 5,
            );
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
            run(check_pass(
                &model,
                &plan,
                &mut weights,
                Pass::Full,
                Pass::Full,
            ));
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

fn resident_pages(path: &Path) -> usize {
    cached_pages(path).unwrap().resident as usize
}

/// One matrix of 16 MiB in units of 64 KiB, none of which starts on a page.
fn large_model() -> Model {
    const ROW: usize = 4000;
    const ROWS: usize = (16 << 20) / ROW;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let dims = [ROW as u64, ROWS as u64];
    GgufWriter::new("llama")
        .tensor("a", TensorType::I8, &dims, Random(9).bytes(ROW * ROWS))
        .write(&path)
        .unwrap();
    Model {
        bytes: vec![fs::read(&path).unwrap()],
        _folder: folder,
        catalog: Catalog::open(&path).unwrap(),
        paths: vec![path],
        uses: vec![WeightUse {
            tensor: 0,
            layer: 0,
            stage: Stage::Body,
        }],
        embedding: 0,
    }
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
                    check_pass(&model, &plan, &mut weights, Pass::Full, Pass::Full).await;
                    check_rows(&model, &mut weights, &[0, 1, 50, 3000]).await;
                });
            }
            weights.restart();
            // Reads under way have landed when the reader has ended.
            drop(weights);
            let cached = resident_pages(path);
            let pinned = match backend {
                Backend::Mmap => plan.pinned_bytes() as usize / PAGE,
                _ => 0,
            };
            let streamed = model.bytes[0].len() / PAGE - pinned;
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

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn without_descriptors_a_reader_fails_to_open_or_serves() {
    if !in_process_of_its_own("without_descriptors_a_reader_fails_to_open_or_serves") {
        return;
    }
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    every_reader(|backend| {
        let model = Model::sharded();
        let plan = model.streamed();
        let files = model.files(true);
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let mut refused = 0;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        for spare in 0..24 {
            // The lowest number that is free: a refused start of tokio-uring keeps some.
            let used = fs::File::open("/dev/null").unwrap().as_raw_fd();
            setrlimit(Resource::RLIMIT_NOFILE, used as u64 + spare, hard).unwrap();
            let opened = runtime.block_on(Weights::open(&files, &plan, backend, &mut |_| {}));
            match opened {
                Ok(mut weights) => {
                    runtime.block_on(check_pass(
                        &model,
                        &plan,
                        &mut weights,
                        Pass::Full,
                        Pass::Full,
                    ));
                }
                Err(error) => {
                    println!("{} with {spare}: {error}", backend.name());
                    refused += 1;
                }
            }
            setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
        }
        if backend == Backend::Uring {
            assert!((1..24).contains(&refused), "refused {refused} times");
        }
    });
}

#[test]
fn a_reader_that_is_dropped_leaves_no_descriptor_open() {
    if !in_process_of_its_own("a_reader_that_is_dropped_leaves_no_descriptor_open") {
        return;
    }
    every_reader(|backend| {
        let model = Model::new();
        let plan = model.streamed();
        let files = model.files(true);
        drop(open_files(&files, &plan, backend));
        let before = descriptors();
        for _ in 0..20 {
            let mut weights = open_files(&files, &plan, backend);
            weights.begin_pass(Pass::Full, Pass::Full);
        }
        assert_eq!(descriptors(), before);
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
