//! Models that are read, and random numbers.

use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::sync::Arc;

use emel_loader::files::OpenFiles;
use emel_loader::gguf::{Catalog, Extent, TensorType};
use emel_loader::page::PageSize;
use emel_loader::plan::{Plan, Residency};
use emel_loader::unit::{Section, WeightUse, partition};
use emel_loader::weights::Pass;
use emel_tests::gguf_writer::GgufWriter;
use emel_tests::random::SplitMix64;
use tempfile::TempDir;

pub(crate) const PAGE: usize = 4096;

/// What the tests choose by.
pub(crate) struct Random(SplitMix64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SplitMix64(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.draw()
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub(crate) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }

    pub(crate) fn pass(&mut self) -> Pass {
        if self.one_in(2) {
            Pass::Body
        } else {
            Pass::Full
        }
    }
}

/// A random generator whose seed a failing run prints.
pub(crate) fn random(seed: u64) -> Random {
    println!("seed {seed:#x}");
    Random::new(seed)
}

pub(crate) struct Model {
    // Deletes the files when the test is over.
    _folder: TempDir,
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) bytes: Vec<Vec<u8>>,
    pub(crate) catalog: Catalog,
    pub(crate) uses: Vec<WeightUse>,
    pub(crate) embedding: usize,
}

/// Layers of matrices of many sizes at every offset that is a multiple of 32, and an
/// embedding that is the head too.
pub(crate) fn writer() -> GgufWriter {
    let mut random = Random::new(7);
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
    pub(crate) fn new() -> Self {
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

    pub(crate) fn sharded() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let paths = writer()
            .write_shards(folder.path(), "model", 4, false)
            .unwrap();
        Self::open(folder, paths)
    }

    pub(crate) fn open(folder: TempDir, paths: Vec<PathBuf>) -> Self {
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
                    section: Section::Body,
                });
            }
        }
        for name in ["token_embd", "last"] {
            uses.push(WeightUse {
                tensor: index_of(name),
                layer: 5,
                section: Section::Head,
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

    /// The model in a file of which each tensor is a layer.
    pub(crate) fn of_tensors(folder: TempDir, path: PathBuf) -> Self {
        let catalog = Catalog::open(&path).unwrap();
        let uses = (0..catalog.tensors().len()).map(|tensor| WeightUse {
            tensor,
            layer: tensor,
            section: Section::Body,
        });
        Self {
            bytes: vec![fs::read(&path).unwrap()],
            _folder: folder,
            uses: uses.collect(),
            paths: vec![path],
            catalog,
            embedding: 0,
        }
    }

    pub(crate) fn files(&self, direct: bool) -> Arc<OpenFiles> {
        let paths = self.paths.iter().map(PathBuf::as_path);
        Arc::new(OpenFiles::open(paths, direct).unwrap())
    }

    pub(crate) fn wanted(&self, extent: &Extent) -> &[u8] {
        &self.bytes[extent.file][extent.offset as usize..][..extent.bytes as usize]
    }

    pub(crate) fn row(&self, row: usize) -> Extent {
        let tensor = &self.catalog.tensors()[self.embedding];
        Extent {
            offset: tensor.extent.offset + row as u64 * tensor.row_bytes(),
            bytes: tensor.row_bytes(),
            ..tensor.extent
        }
    }

    /// A plan by hand: units of at most `unit_bytes`, those pinned that `is_pinned`
    /// says, and a ring for the others.
    pub(crate) fn plan(
        &self,
        unit_bytes: u64,
        slots: usize,
        is_pinned: impl FnMut(usize) -> bool,
    ) -> Plan {
        let units = partition(&self.catalog, &self.uses, unit_bytes);
        let residency: Vec<Residency> = (0..units.len())
            .map(is_pinned)
            .map(|pinned| match pinned {
                true => Residency::Pinned,
                false => Residency::Streamed,
            })
            .collect();
        let page = PageSize::of_system();
        let held_bytes = units.iter().map(|unit| page.held_bytes(&unit.extent));
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
            slot_bytes: held_bytes.max().unwrap() as usize,
            row_slot_bytes: row_bytes.next_multiple_of(4096) + 4096,
            is_mapped: false,
            page,
            units,
            residency,
        }
    }

    pub(crate) fn streamed(&self) -> Plan {
        self.plan(20_000, 4, |_| false)
    }

    /// Streamed, every other unit pinned, and all pinned.
    pub(crate) fn plans(&self) -> [Plan; 3] {
        [
            self.streamed(),
            self.plan(20_000, 3, |unit| unit % 2 == 0),
            self.plan(20_000, 0, |_| true),
        ]
    }
}

/// One matrix of 16 MiB in units of 64 KiB, none of which starts on a page.
pub(crate) fn large_model() -> Model {
    const ROW: usize = 4000;
    const ROWS: usize = (16 << 20) / ROW;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let dims = [ROW as u64, ROWS as u64];
    GgufWriter::new("llama")
        .tensor("a", TensorType::I8, &dims, Random::new(9).bytes(ROW * ROWS))
        .write(&path)
        .unwrap();
    Model::of_tensors(folder, path)
}
