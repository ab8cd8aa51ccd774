//! Logits that change because of what the sequence already holds, or because the
//! caller says so: biases, penalties and DRY.
//!
//! They concern few tokens, so before the selection they are applied to these alone.

use std::sync::Arc;

use super::candidates::Candidate;
use super::dry::{Breakers, Dry};
use super::history::{History, Penalties};
use super::options::{SamplerOptions, Stage};

/// The biases, and the penalties of one sequence.
#[derive(Debug)]
pub(super) struct Adjustments {
    /// By id.
    biases: Vec<(u32, f32)>,
    /// The stages that come before any token is left out.
    early: Vec<Stage>,
    history: History,
    penalties: Option<Penalties>,
    dry: Option<Dry>,
    /// The tokens whose logits change before the selection, in order.
    changed: Vec<u32>,
}

impl Adjustments {
    /// The adjustments of `options`, of which `early` come before the selection and
    /// `late` after it.
    pub(super) fn new(
        options: &SamplerOptions,
        early: Vec<Stage>,
        late: &[Stage],
        breakers: Arc<Breakers>,
    ) -> Self {
        let mut biases = options.logit_bias.clone();
        biases.sort_by_key(|bias| bias.0);
        let last_n = |stage, last_n| {
            let is_used = early.contains(&stage) || late.contains(&stage);
            Some(last_n).filter(|_| is_used)
        };
        let penalties_n = last_n(Stage::Penalties, options.repeat_last_n);
        let dry_n = last_n(Stage::Dry, options.dry_penalty_last_n);
        let (recent, repeated) = (penalties_n.unwrap_or(0), dry_n.unwrap_or(0));
        Self {
            changed: Vec::with_capacity(biases.len() + recent + repeated),
            biases,
            early,
            history: History::new(recent.max(repeated)),
            penalties: penalties_n.map(|last_n| {
                Penalties::new(
                    last_n,
                    options.repeat_penalty,
                    options.presence_penalty,
                    options.frequency_penalty,
                )
            }),
            dry: dry_n.map(|_| Dry::new(options, breakers)),
        }
    }

    /// Heap bytes that [`Adjustments::new`] takes.
    pub(super) fn required_bytes(
        options: &SamplerOptions,
        early: &[Stage],
        late: &[Stage],
        breakers: &Breakers,
    ) -> usize {
        let is_used = |stage| early.contains(&stage) || late.contains(&stage);
        let of = |count: usize, bytes: usize| count.saturating_mul(bytes);
        let biases = options.logit_bias.len();
        let mut bytes = of(biases, size_of::<(u32, f32)>()).saturating_add(size_of_val(early));
        let (mut recent, mut repeated) = (0, 0);
        if is_used(Stage::Penalties) {
            recent = options.repeat_last_n;
            bytes = bytes.saturating_add(Penalties::required_bytes(recent));
        }
        if is_used(Stage::Dry) {
            repeated = options.dry_penalty_last_n;
            bytes = bytes.saturating_add(Dry::required_bytes(repeated, breakers));
        }
        let changed = biases.saturating_add(recent).saturating_add(repeated);
        let ids = changed.saturating_add(recent.max(repeated));
        bytes.saturating_add(of(ids, size_of::<u32>()))
    }

    /// Adds a token of the sequence.
    pub(super) fn accept(&mut self, id: u32) {
        if let Some(penalties) = &mut self.penalties {
            penalties.push(id, &self.history);
        }
        self.history.push(id);
    }

    /// Finds what changes for the next token.
    pub(super) fn update(&mut self) {
        if let Some(dry) = &mut self.dry {
            dry.update(&self.history);
        }
        self.changed.clear();
        self.changed.extend(self.biases.iter().map(|bias| bias.0));
        for stage in &self.early {
            match (stage, &self.penalties, &self.dry) {
                (Stage::Penalties, Some(penalties), _) => self.changed.extend(penalties.ids()),
                (Stage::Dry, _, Some(dry)) => self.changed.extend(dry.ids()),
                _ => {}
            }
        }
        self.changed.sort_unstable();
    }

    /// All tokens of a row of logits, after biases and early stages.
    pub(super) fn applied<'a>(&'a self, logits: &'a [f32]) -> impl Iterator<Item = Candidate> + 'a {
        let mut changed = self.changed.iter().copied().peekable();
        (0..).zip(logits).map(move |(id, &logit)| {
            let candidate = Candidate::new(id, logit);
            let mut is_changed = false;
            while changed.next_if_eq(&id).is_some() {
                is_changed = true;
            }
            if is_changed {
                self.changed_logit(candidate)
            } else {
                candidate
            }
        })
    }

    fn changed_logit(&self, candidate: Candidate) -> Candidate {
        let Candidate { id, mut logit } = candidate;
        let first = self.biases.partition_point(|bias| bias.0 < id);
        let own = self.biases[first..].iter().take_while(|bias| bias.0 == id);
        own.for_each(|bias| logit += bias.1);
        let biased = Candidate::new(id, logit);
        self.early.iter().fold(biased, |candidate, &stage| {
            Candidate::new(id, self.penalised(stage, candidate))
        })
    }

    /// The logit of a token after a stage of penalties; another stage leaves it alone.
    pub(super) fn penalised(&self, stage: Stage, candidate: Candidate) -> f32 {
        let Candidate { id, logit } = candidate;
        match (stage, &self.penalties, &self.dry) {
            (Stage::Penalties, Some(penalties), _) => penalties.penalised(id, logit),
            (Stage::Dry, _, Some(dry)) => dry.penalised(id, logit),
            _ => logit,
        }
    }

    /// Heap bytes held.
    pub(super) fn heap_bytes(&self) -> usize {
        self.biases.capacity() * size_of::<(u32, f32)>()
            + self.early.capacity() * size_of::<Stage>()
            + self.history.heap_bytes()
            + self.penalties.as_ref().map_or(0, Penalties::heap_bytes)
            + self.dry.as_ref().map_or(0, Dry::heap_bytes)
            + self.changed.capacity() * size_of::<u32>()
    }
}
