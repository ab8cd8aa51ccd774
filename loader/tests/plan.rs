//! Properties of plans, for random models and budgets.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use emel_loader::expert_layout::{ExpertPart, ExpertUse};
use emel_loader::gguf::{Catalog, Extent, TensorType};
use emel_loader::page::PageSize;
use emel_loader::plan::{Item, Plan, PlanError, PlanInputs, Residency};
use emel_loader::unit::{Section, WeightUse};
use emel_tests::gguf_writer::{Description, padding, write_header};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::fs::File;

/// Columns and rows of the tensors of a layer.
type Layer = Vec<(u64, u64)>;

/// Columns and rows of an expert's matrices, experts, and experts that a token goes to.
type Mixture = ([(u64, u64); 3], u64, usize);

#[derive(Debug, Clone)]
struct Shape {
    layers: Vec<Layer>,
    head: Layer,
    mixtures: Vec<Mixture>,
    embedding: (u64, u64),
    /// Whether the embedding is the head's first matrix.
    is_tied: bool,
    items_bytes: u64,
    may_map: bool,
    page: PageSize,
}

struct Model {
    catalog: Catalog,
    uses: Vec<WeightUse>,
    experts: Vec<ExpertUse>,
    items: Vec<Item>,
    may_map: bool,
    page: PageSize,
}

impl Model {
    fn new(shape: &Shape) -> Self {
        let mut uses = Vec::new();
        let mut descriptions = vec![description("embedding".to_owned(), shape.embedding)];
        let sections = (shape.layers.iter().map(|layer| (Section::Body, layer)))
            .chain([(Section::Head, &shape.head)]);
        for (layer, (section, tensors)) in sections.enumerate() {
            if section == Section::Head && shape.is_tied {
                uses.push(WeightUse {
                    tensor: 0,
                    layer,
                    section,
                });
            }
            for &dims in tensors {
                uses.push(WeightUse {
                    tensor: descriptions.len(),
                    layer,
                    section,
                });
                descriptions.push(description(format!("{}", descriptions.len()), dims));
            }
        }
        let mut experts = Vec::new();
        for &(matrices, count, used) in &shape.mixtures {
            let first = descriptions.len();
            for (columns, rows) in matrices {
                let name = format!("{}", descriptions.len());
                descriptions.push(Description {
                    dims: vec![columns, rows, count],
                    bytes: columns * rows * count,
                    ..description(name, (columns, rows))
                });
            }
            experts.push(ExpertUse {
                parts: [first, first + 1, first + 2].map(ExpertPart::alone),
                experts: count as usize,
                used: used.min(count as usize),
            });
        }
        Self {
            catalog: catalog(&descriptions),
            uses,
            experts,
            items: vec![
                Item {
                    name: "cache".to_owned(),
                    bytes: shape.items_bytes,
                },
                Item {
                    name: "scratch".to_owned(),
                    bytes: 1000,
                },
            ],
            may_map: shape.may_map,
            page: shape.page,
        }
    }

    fn plan(&self, budget_bytes: u64) -> Result<Plan, PlanError> {
        Plan::new(
            &self.catalog,
            PlanInputs {
                budget_bytes,
                items: self.items.clone(),
                uses: &self.uses,
                experts: &self.experts,
                embedding: 0,
                may_map: self.may_map,
                drive: None,
                page: self.page,
            },
        )
    }

    fn needed_bytes(&self) -> u64 {
        self.plan(0).unwrap_err().needed_bytes
    }
}

fn description(name: String, (columns, rows): (u64, u64)) -> Description {
    Description {
        name,
        type_id: TensorType::I8.id(),
        dims: vec![columns, rows],
        bytes: columns * rows,
        stated_offset: None,
    }
}

/// The catalog of a file whose data are a hole.
fn catalog(descriptions: &[Description]) -> Catalog {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut file = File::create(&path).unwrap();
    write_header(&mut file, 3, &[], descriptions, 32).unwrap();
    let data: u64 = descriptions
        .iter()
        .map(|it| it.bytes + padding(it.bytes, 32).len() as u64)
        .sum();
    let header = file.metadata().unwrap().len();
    file.set_len(header + data).unwrap();
    Catalog::open(&path).unwrap()
}

fn dims() -> impl Strategy<Value = (u64, u64)> {
    prop_oneof![
        4 => (1_u64..3000, 1_u64..3000),
        2 => (1_u64..5000, 1_u64..4),
        1 => (1_u64..4, 1_u64..100_000),
        1 => (10_000_u64..600_000, 1_u64..40),
    ]
}

fn mixture() -> impl Strategy<Value = Mixture> {
    let matrix = (1_u64..2000, 1_u64..500);
    let matrices = [matrix.clone(), matrix.clone(), matrix];
    (matrices, 1_u64..40, 1_usize..9)
}

fn shape() -> impl Strategy<Value = Shape> {
    (
        prop::collection::vec(prop::collection::vec(dims(), 1..8), 1..6),
        prop::collection::vec(dims(), 0..3),
        prop_oneof![Just(Vec::new()), prop::collection::vec(mixture(), 1..4)],
        dims(),
        any::<bool>(),
        0_u64..10_000_000,
        any::<bool>(),
        prop_oneof![Just(4), Just(16), Just(64)],
    )
        .prop_map(
            |(layers, head, mixtures, embedding, is_tied, items_bytes, may_map, page_kib)| Shape {
                layers,
                head,
                mixtures,
                embedding,
                is_tied,
                items_bytes,
                may_map,
                page: PageSize::new(page_kib << 10),
            },
        )
}

/// A model and a part of its bytes, in thousandths, to take as the budget.
fn shape_and_part() -> impl Strategy<Value = (Shape, u64)> {
    (shape(), 0_u64..1300)
}

fn budget(model: &Model, part: u64) -> u64 {
    let all: u64 = model.catalog.file_bytes() + model.items.iter().map(|it| it.bytes).sum::<u64>();
    all * part / 1000
}

/// What takes memory of its own, or is given back by itself, is in whole pages, whatever their
/// size, and no more than the plan says.
fn check_pages(model: &Model, plan: &Plan) {
    let page_bytes = model.page.bytes() as u64;
    let in_pages = |extent: &Extent| {
        let (start, end) = (extent.offset, extent.offset + extent.bytes);
        (end.div_ceil(page_bytes) - start / page_bytes) * page_bytes
    };
    let pinned = plan.units.iter().zip(&plan.residency);
    let pinned = pinned.filter(|(_, residency)| **residency == Residency::Pinned);
    let of_units: u64 = pinned.map(|(unit, _)| in_pages(&unit.extent)).sum();
    let runs = plan.expert_runs.iter().map(|run| in_pages(&run.extent));
    assert_eq!(plan.pinned_bytes(), of_units + runs.sum::<u64>());
    let slots = plan.expert_slots.iter().chain(&plan.spare_expert_slots);
    let bytes = slots.map(|slots| slots.layout.slot_bytes as u64);
    let bytes = bytes.chain([plan.slot_bytes as u64, plan.ring_bytes(), plan.row_bytes()]);
    for bytes in bytes {
        assert!(bytes.is_multiple_of(page_bytes), "{bytes} of {page_bytes}");
    }
}

/// Every expert is in memory for good once, or there is a layer's worth of slots at least.
fn check_experts(model: &Model, plan: &Plan) {
    if let Some(slots) = &plan.expert_slots {
        let used = model.experts.iter().map(|it| it.used).max().unwrap();
        let all = model.experts.iter().map(|it| it.experts).sum();
        assert!((used..=all).contains(&slots.slots));
        assert!(plan.expert_runs.is_empty());
        // What every token goes through comes first.
        assert!(slots.slots == used || plan.streamed_bytes() == 0);
        return;
    }
    let mut runs = plan.expert_runs.iter();
    for (mixture, weights) in model.experts.iter().enumerate() {
        for part in 0..3 {
            let mut next = 0;
            while next < weights.experts {
                let run = runs.next().unwrap();
                assert_eq!((run.mixture, run.part, run.first), (mixture, part, next));
                let first = weights.extent(&model.catalog, part, next);
                assert_eq!(run.extent.offset, first.offset);
                assert_eq!(run.extent.bytes, first.bytes * run.count as u64);
                next += run.count;
            }
        }
    }
    assert!(runs.next().is_none());
}

fn check_cover(model: &Model, plan: &Plan) {
    check_experts(model, plan);
    // The rows seen of each use; they come in order, and the uses too.
    let mut seen = vec![0_usize; model.uses.len()];
    let mut current = 0;
    for unit in &plan.units {
        assert!(!unit.parts.is_empty());
        for part in &unit.parts {
            assert!(part.weight >= current, "uses are out of order");
            current = part.weight;
            let weight = &model.uses[part.weight];
            let tensor = &model.catalog.tensors()[weight.tensor];
            assert_eq!(weight.section, unit.section);
            assert_eq!(part.first_row, seen[part.weight], "rows are out of order");
            assert!(part.rows > 0);
            seen[part.weight] += part.rows;
            assert_eq!(part.bytes as u64, part.rows as u64 * tensor.row_bytes());
            assert_eq!(unit.extent.file, tensor.extent.file);
            assert_eq!(
                unit.extent.offset + part.offset as u64,
                tensor.extent.offset + part.first_row as u64 * tensor.row_bytes()
            );
            assert!((part.offset + part.bytes) as u64 <= unit.extent.bytes);
        }
        let layers = unit
            .parts
            .iter()
            .map(|part| model.uses[part.weight].layer)
            .collect::<std::collections::BTreeSet<_>>();
        assert_eq!(layers.len(), 1, "a unit reaches into the next layer");
    }
    for (weight, rows) in model.uses.iter().zip(seen) {
        assert_eq!(
            rows as u64,
            model.catalog.tensors()[weight.tensor].rows(),
            "rows of use {weight:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        // The same shapes in every run.
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_plan_stays_within_its_budget_and_covers_every_row_once((shape, part) in shape_and_part()) {
        let model = Model::new(&shape);
        let budget_bytes = budget(&model, part);
        let Ok(plan) = model.plan(budget_bytes) else {
            return Ok(());
        };
        prop_assert!(plan.total_bytes() <= budget_bytes);
        prop_assert_eq!(plan.residency.len(), plan.units.len());
        check_cover(&model, &plan);
        check_pages(&model, &plan);

        let streams = plan.residency.contains(&Residency::Streamed);
        prop_assert!(plan.streams() || !streams);
        prop_assert_eq!(plan.streamed_bytes() > 0, streams);
        if streams {
            prop_assert!(plan.slots >= 2);
            for unit in &plan.units {
                prop_assert!(model.page.held_bytes(&unit.extent) as usize <= plan.slot_bytes);
            }
        }

        let head = plan.head_start();
        for (index, unit) in plan.units.iter().enumerate() {
            prop_assert_eq!(unit.section == Section::Head, index >= head);
        }
    }

    #[test]
    fn the_budget_that_an_error_names_works_and_no_smaller_one_does((shape, part) in shape_and_part()) {
        let model = Model::new(&shape);
        let needed = model.needed_bytes();
        prop_assert!(model.plan(needed).is_ok());
        let error = model.plan(needed - 1).unwrap_err();
        prop_assert_eq!(error.needed_bytes, needed);
        let budget_bytes = budget(&model, part);
        match model.plan(budget_bytes) {
            Ok(_) => prop_assert!(budget_bytes >= needed),
            Err(error) => {
                prop_assert!(budget_bytes < needed, "{} needs {}", budget_bytes, needed);
                prop_assert_eq!(error, PlanError { budget_bytes, needed_bytes: needed });
            }
        }
    }

    #[test]
    fn a_larger_budget_streams_no_more_than_a_slot_more((shape, part) in shape_and_part(), more in 0_u64..2_000_000) {
        let model = Model::new(&shape);
        let budget_bytes = budget(&model, part).max(model.needed_bytes());
        let small = model.plan(budget_bytes).unwrap();
        let large = model.plan(budget_bytes + more).unwrap();
        // The ring may have grown by what it now gets, and a unit may not fit by a byte.
        let slack = large.ring_bytes().saturating_sub(small.ring_bytes())
            + large.slot_bytes as u64;
        prop_assert!(
            large.is_mapped || large.pinned_bytes() + slack >= small.pinned_bytes(),
            "{} pinned, then {}", small.pinned_bytes(), large.pinned_bytes()
        );
    }

    #[test]
    fn nothing_streams_when_everything_fits(shape in shape()) {
        let model = Model::new(&shape);
        let plan = model.plan(u64::MAX).unwrap();
        prop_assert!(!plan.streams());
        prop_assert_eq!(plan.streamed_bytes(), 0);
        prop_assert_eq!(plan.is_mapped, shape.may_map);
        let all = plan.total_bytes();
        let just_fits = model.plan(all).unwrap();
        prop_assert!(!just_fits.streams());
        check_cover(&model, &just_fits);
    }
}

#[test]
fn a_pass_without_matrices_needs_its_items_and_rows_only() {
    let model = Model {
        catalog: catalog(&[description("embedding".to_owned(), (100, 100))]),
        uses: Vec::new(),
        experts: Vec::new(),
        items: Vec::new(),
        may_map: false,
        page: PageSize::of_system(),
    };
    let needed = model.needed_bytes();
    let plan = model.plan(needed).unwrap();
    assert_eq!((plan.total_bytes(), plan.units.len()), (needed, 0));
}
