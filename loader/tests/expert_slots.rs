//! Experts in slots: whatever is computed on is the named expert's bytes, in any order of
//! wishes, after restarts and failures, by every reader.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use emel_loader::expert_layout::{EXPERT_PARTS, ExpertId, ExpertLayout, ExpertPart, ExpertUse};
use emel_loader::files::OpenFiles;
use emel_loader::gguf::{Catalog, TensorType};
use emel_loader::page::PageSize;
use emel_loader::plan::{ExpertSlotsPlan, Plan, PlanInputs};
use emel_loader::reader::{Backend, ReadError};
use emel_loader::weights::{PlacedExpert, Weights};
use emel_tests::gguf_writer::GgufWriter;
use emel_tests::run::{READERS, block_on};
use rand_core::Rng;
use rand_pcg::Pcg64;

const MIXTURES: usize = 3;
const EXPERTS: usize = 8;
const SLOTS: usize = 5;

/// A file of experts only, of odd sizes and all bytes different from their neighbours'.
struct Model {
    _folder: tempfile::TempDir,
    path: PathBuf,
    bytes: Vec<u8>,
    catalog: Catalog,
    uses: Vec<ExpertUse>,
}

impl Model {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        let mut random = Pcg64::new(7, 1);
        let mut writer =
            GgufWriter::new("llama").tensor("embedding", TensorType::I8, &[8], vec![1; 8]);
        let mut uses = Vec::new();
        for mixture in 0..MIXTURES {
            for part in 0..EXPERT_PARTS {
                let dims = [700 + 13 * part as u64, 9 + mixture as u64, EXPERTS as u64];
                let mut data = vec![0; dims.iter().product::<u64>() as usize];
                random.fill_bytes(&mut data);
                let name = format!("{mixture}.{part}");
                writer = writer.tensor(&name, TensorType::I8, &dims, data);
            }
        }
        writer.write(&path).unwrap();
        let catalog = Catalog::open(&path).unwrap();
        for mixture in 0..MIXTURES {
            let tensor = |part| catalog.tensor_index(&format!("{mixture}.{part}")).unwrap();
            uses.push(ExpertUse {
                parts: [0, 1, 2].map(tensor).map(ExpertPart::alone),
                experts: EXPERTS,
                used: 2,
            });
        }
        Self {
            _folder: folder,
            bytes: fs::read(&path).unwrap(),
            path,
            catalog,
            uses,
        }
    }

    /// A plan with [`SLOTS`] slots, or one in which all experts stay.
    fn plan(&self, has_slots: bool, backend: Backend) -> Plan {
        let inputs = PlanInputs {
            budget_bytes: u64::MAX,
            items: Vec::new(),
            uses: &[],
            experts: &self.uses,
            embedding: 0,
            may_map: backend == Backend::Mmap,
            drive: None,
            page: PageSize::of_system(),
        };
        let mut plan = Plan::new(&self.catalog, inputs).unwrap();
        assert!(!plan.streams());
        if has_slots {
            plan.expert_runs.clear();
            plan.is_mapped = false;
            plan.expert_slots = Some(ExpertSlotsPlan {
                layout: ExpertLayout::new(&self.catalog, &self.uses, plan.page),
                slots: SLOTS,
                used: 2,
            });
        }
        plan
    }

    fn open(&self, has_slots: bool, backend: Backend) -> Weights {
        let files = OpenFiles::open([self.path.as_path()], backend.needs_buffers()).unwrap();
        let plan = self.plan(has_slots, backend);
        block_on(Weights::open(&Arc::new(files), &plan, backend, &mut |_| {})).unwrap()
    }

    fn check(&self, weights: &Weights, mixture: usize, placed: PlacedExpert) {
        weights.with_experts(mixture, &[placed], |experts| {
            assert_eq!(experts[0].expert, placed.expert);
            for (part, bytes) in experts[0].parts.iter().enumerate() {
                let extent = self.uses[mixture].extent(&self.catalog, part, placed.expert);
                let start = extent.offset as usize;
                let expected = &self.bytes[start..start + extent.bytes as usize];
                assert!(*bytes == expected, "part {part} of {placed:?} of {mixture}");
            }
        });
    }
}

async fn has_landed(weights: &mut Weights, slot: usize, id: ExpertId) -> Result<(), ReadError> {
    while !weights.has_expert(slot, id) {
        weights.next_expert(id.mixture).await?;
    }
    Ok(())
}

/// Polls a future a few times and drops it.
fn poll_and_drop(future: impl Future<Output = Result<(), ReadError>>) {
    let mut future = pin!(future);
    for _ in 0..2 {
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(outcome) = future.as_mut().poll(&mut context) {
            return outcome.unwrap();
        }
    }
}

#[test]
fn a_slot_has_the_bytes_of_the_expert_that_was_wanted_last() {
    let model = Model::new();
    for &backend in READERS.iter() {
        let mut weights = model.open(true, backend);
        let mut random = Pcg64::new(11, 1);
        let mut below = |limit: usize| (random.next_u64() % limit as u64) as usize;
        for _ in 0..2000 {
            let slot = below(SLOTS);
            let (mixture, expert) = (below(MIXTURES), below(EXPERTS));
            let id = ExpertId { mixture, expert };
            weights.want_expert(slot, id);
            match below(8) {
                // Others are wanted before this one has landed.
                0..3 => {}
                3 => poll_and_drop(weights.next_expert(mixture)),
                4 => {
                    weights.restart();
                    weights.want_expert(slot, id);
                    block_on(has_landed(&mut weights, slot, id)).unwrap();
                    model.check(&weights, mixture, PlacedExpert { expert, slot });
                }
                _ => {
                    block_on(has_landed(&mut weights, slot, id)).unwrap();
                    model.check(&weights, mixture, PlacedExpert { expert, slot });
                }
            }
        }
    }
}

#[test]
fn slots_that_are_closed_and_opened_while_reads_are_under_way_have_the_experts_bytes() {
    let model = Model::new();
    for &backend in READERS.iter() {
        for has_slots in [true, false] {
            let mut weights = model.open(has_slots, backend);
            let releasable = weights.releasable_bytes();
            // Experts that stay in a mapping are the kernel's to take.
            assert_eq!(releasable > 0, has_slots || backend.needs_buffers());
            weights.set_kept_bytes(0);
            let Some(least) = weights.expert_slots() else {
                continue;
            };
            assert_eq!(least, 2, "as many as a token uses");
            let mut random = Pcg64::new(13, 1);
            let mut below = |limit: usize| (random.next_u64() % limit as u64) as usize;
            for _ in 0..1000 {
                if below(3) == 0 {
                    weights.set_kept_bytes(below(releasable as usize + 1) as u64);
                    assert!(weights.given_back_bytes() <= releasable);
                }
                let slot = below(weights.expert_slots().unwrap());
                let (mixture, expert) = (below(MIXTURES), below(EXPERTS));
                let id = ExpertId { mixture, expert };
                weights.want_expert(slot, id);
                if below(2) == 0 {
                    block_on(has_landed(&mut weights, slot, id)).unwrap();
                    model.check(&weights, mixture, PlacedExpert { expert, slot });
                }
            }
            weights.set_kept_bytes(u64::MAX);
            assert!(weights.expert_slots().unwrap() > least);
        }
    }
}

#[test]
fn all_experts_stay_where_there_is_room() {
    let model = Model::new();
    for &backend in READERS.iter() {
        let weights = model.open(false, backend);
        for mixture in 0..MIXTURES {
            for expert in 0..EXPERTS {
                model.check(&weights, mixture, PlacedExpert { expert, slot: 0 });
            }
        }
    }
}

#[test]
fn an_expert_is_read_once_and_with_little_around_it() {
    let model = Model::new();
    for &backend in READERS.iter() {
        let mut weights = model.open(true, backend);
        let id = ExpertId {
            mixture: 1,
            expert: 4,
        };
        assert!(weights.want_expert(2, id));
        assert!(!weights.want_expert(2, id), "it is on its way");
        block_on(has_landed(&mut weights, 2, id)).unwrap();
        assert!(!weights.want_expert(2, id), "it is there");
        let reading = weights.statistics();
        assert_eq!(reading.reads, 3);
        let layout = ExpertLayout::new(&model.catalog, &model.uses, PageSize::of_system());
        assert!(reading.bytes_read <= layout.slot_bytes as u64);
    }
}

#[test]
#[should_panic(expected = "is not in slot")]
fn an_expert_that_has_not_landed_is_not_computed_on() {
    let model = Model::new();
    let mut weights = model.open(true, Backend::Pread);
    let id = ExpertId {
        mixture: 1,
        expert: 4,
    };
    weights.want_expert(2, id);
    block_on(has_landed(&mut weights, 2, id)).unwrap();
    let other = ExpertId { expert: 5, ..id };
    weights.want_expert(2, other);
    let placed = PlacedExpert { expert: 4, slot: 2 };
    weights.with_experts(1, &[placed], |_| ());
}

#[test]
fn after_a_failed_read_others_are_served_and_the_slot_is_empty() {
    let model = Model::new();
    for &backend in READERS.iter() {
        let mut weights = model.open(true, backend);
        let last = ExpertId {
            mixture: MIXTURES - 1,
            expert: EXPERTS - 1,
        };
        let first = ExpertId {
            mixture: 0,
            expert: 0,
        };
        let file = OpenOptions::new().write(true).open(&model.path).unwrap();
        file.set_len(model.bytes.len() as u64 - 8192).unwrap();
        weights.want_expert(1, last);
        let error = block_on(has_landed(&mut weights, 1, last)).unwrap_err();
        assert!(matches!(error, ReadError::Short { .. }), "{error}");
        weights.restart();
        assert!(!weights.has_expert(1, last));
        for slot in 0..SLOTS {
            weights.want_expert(slot, first);
            block_on(has_landed(&mut weights, slot, first)).unwrap();
            model.check(&weights, 0, PlacedExpert { expert: 0, slot });
        }
        fs::write(&model.path, &model.bytes).unwrap();
    }
}
