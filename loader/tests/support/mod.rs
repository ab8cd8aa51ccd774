//! A model of the fixtures as the loader sees it, and what its bytes should be.

#![allow(dead_code, reason = "no test uses all of it")]
#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use emel_loader::files::OpenFiles;
use emel_loader::gguf::{Catalog, Extent};
use emel_loader::page::PageSize;
use emel_loader::plan::{Plan, PlanInputs, Residency};
use emel_loader::reader::{Backend, Faults};
use emel_loader::unit::{Section, WeightUse};
use emel_loader::weights::{Pass, Weights};
use emel_tests::fixtures::fixture;

/// For reads that are always reported, on a machine however busy.
const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) struct Model {
    pub(crate) path: PathBuf,
    pub(crate) bytes: Vec<u8>,
    catalog: Catalog,
    uses: Vec<WeightUse>,
    embedding: usize,
}

impl Model {
    pub(crate) fn new() -> Self {
        Self::at(fixture("arch/llama-untied.gguf"))
    }

    pub(crate) fn at(path: PathBuf) -> Self {
        let catalog = Catalog::open(&path).unwrap();
        let tensors = catalog.tensors();
        let position = |name: &str| tensors.iter().position(|tensor| tensor.name == name);
        let embedding = position("token_embd.weight").unwrap();
        let head = position("output.weight").unwrap();
        let body = (0..tensors.len()).filter(|&tensor| {
            let found = &tensors[tensor];
            tensor != embedding && tensor != head && found.rows() > 1
        });
        let uses = body
            .map(|tensor| (tensor, Section::Body))
            .chain([(head, Section::Head)])
            .map(|(tensor, section)| WeightUse {
                tensor,
                layer: tensor,
                section,
            })
            .collect();
        Self {
            bytes: std::fs::read(&path).unwrap(),
            path,
            uses,
            embedding,
            catalog,
        }
    }

    /// The plan for the smallest budget and so much more.
    pub(crate) fn plan(&self, more_bytes: u64) -> Plan {
        self.plan_in_pages(more_bytes, PageSize::of_system())
    }

    /// The same for pages of a size.
    pub(crate) fn plan_in_pages(&self, more_bytes: u64, page: PageSize) -> Plan {
        let plan = |budget_bytes| {
            let inputs = PlanInputs {
                budget_bytes,
                items: Vec::new(),
                uses: &self.uses,
                experts: &[],
                embedding: self.embedding,
                may_map: false,
                drive: None,
                page,
            };
            Plan::new(&self.catalog, inputs)
        };
        let smallest = plan(0).unwrap_err().needed_bytes;
        plan(smallest + more_bytes).unwrap()
    }

    pub(crate) fn files(&self, faults: Option<Arc<dyn Faults>>) -> Arc<OpenFiles> {
        let files = OpenFiles::open([self.path.as_path()], true).unwrap();
        Arc::new(match faults {
            Some(faults) => files.with_faults(faults),
            None => files,
        })
    }

    pub(crate) fn wanted(&self, extent: &Extent) -> &[u8] {
        &self.bytes[extent.offset as usize..][..extent.bytes as usize]
    }

    pub(crate) fn rows(&self, count: usize) -> impl ExactSizeIterator<Item = Extent> {
        let tensor = &self.catalog.tensors()[self.embedding];
        let (start, row_bytes) = (tensor.extent, tensor.row_bytes());
        (0..count).map(move |row| Extent {
            offset: start.offset + row as u64 * row_bytes,
            bytes: row_bytes,
            ..start
        })
    }

    /// Rows and all units of a pass, each compared with the file.
    pub(crate) async fn check_pass(&self, plan: &Plan, weights: &mut Weights) {
        weights.begin_pass(Pass::Full, Pass::Full);
        let extents: Vec<Extent> = self.rows(20).collect();
        weights
            .with_rows(extents.iter().copied(), |index, bytes| {
                assert!(bytes == self.wanted(&extents[index]), "row {index}");
            })
            .await
            .unwrap();
        for (index, unit) in plan.units.iter().enumerate() {
            let is_right = weights
                .with_unit(index, |bytes| bytes == self.wanted(&unit.extent))
                .await;
            assert_eq!(is_right, Ok(true), "unit {index}");
        }
    }
}

pub(crate) fn open(files: &Arc<OpenFiles>, plan: &Plan, backend: Backend) -> Weights {
    run(Weights::open(files, plan, backend, &mut |_| {})).unwrap()
}

pub(crate) fn streamed_units(plan: &Plan) -> Vec<usize> {
    (0..plan.units.len())
        .filter(|&unit| plan.residency[unit] == Residency::Streamed)
        .collect()
}

pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    emel_tests::run::block_on(future)
}

/// Polls `future` up to `polls` times with nobody to wake, and drops it.
pub(crate) fn poll_and_drop<T>(future: impl Future<Output = T>, polls: usize) -> Option<T> {
    let mut future = pin!(future);
    for _ in 0..polls {
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
    }
    None
}

/// Waits for what only reads bring about.
pub(crate) fn wait_until(mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < DEADLINE, "a read is never reported");
        std::thread::sleep(Duration::from_millis(1));
    }
}
