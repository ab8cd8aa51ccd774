//! The steps of a forward pass: a program's operations laid over a plan's units.
//!
//! A step needs at most one unit. It runs to completion on that unit's bytes, and the
//! unit is given back after it. Operations without weights go with the unit around
//! them, or form a step of their own between two units. The experts of a mixture are a
//! step of their own. Which of them are needed is known from the end of an earlier one on,
//! so that they can be read meanwhile.

use emel_loader::unit::{Part, Unit};

use crate::program::{Op, Program};

/// A piece of work in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// An operation without a matrix, by its index in [`Program::ops`].
    Op(usize),
    /// Some rows of a matrix: the operation, and the part of the step's unit.
    Rows(usize, Part),
}

/// What is done without waiting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The unit whose bytes are needed, if any.
    pub unit: Option<usize>,
    /// The experts whose choice is known after it, if any, by their index in
    /// [`Program::expert_groups`].
    pub chooses: Option<usize>,
    /// The experts that are computed, if any, by their index in
    /// [`Program::expert_groups`]: those that the routing names, instead of the work.
    pub experts: Option<usize>,
    /// What is done, in order.
    pub work: Vec<Work>,
    /// Whether only tokens whose logits are wanted take part.
    pub is_head: bool,
    /// Steps from this one on whose products have the same input: where all their units are in
    /// memory, these need not wait for each other ([`Forward::run_together`]).
    ///
    /// [`Forward::run_together`]: crate::forward::Forward::run_together
    pub joined: usize,
}

/// The steps of a pass, in order.
pub fn steps_of(program: &Program, units: &[Unit]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut pending: Vec<Work> = Vec::new();
    let mut is_head = false;
    let mut mixtures = 0;
    let mut parts = units
        .iter()
        .enumerate()
        .flat_map(|(unit, content)| content.parts.iter().map(move |part| (unit, *part)))
        .peekable();
    for (index, op) in program.ops.iter().enumerate() {
        let (Op::Linear { matrix, .. } | Op::LinearHeads { matrix, .. }) = *op else {
            if let Op::Experts { group } = *op {
                flush(&mut steps, &mut pending, is_head);
                steps.push(Step {
                    unit: None,
                    chooses: None,
                    experts: Some(group),
                    work: Vec::new(),
                    is_head,
                    joined: 1,
                });
                continue;
            }
            if *op == Op::KeepLogitTokens {
                flush(&mut steps, &mut pending, is_head);
                is_head = true;
            }
            pending.push(Work::Op(index));
            if let Op::Dispatch { .. } = *op {
                flush(&mut steps, &mut pending, is_head);
                if let Some(step) = steps.last_mut() {
                    step.chooses = Some(mixtures);
                }
                mixtures += 1;
            }
            continue;
        };
        while let Some((unit, part)) = parts.next_if(|(_, part)| part.weight == matrix) {
            match steps.last_mut().filter(|step| step.unit == Some(unit)) {
                Some(step) => step.work.append(&mut pending),
                None => {
                    flush(&mut steps, &mut pending, is_head);
                    steps.push(Step {
                        unit: Some(unit),
                        chooses: None,
                        experts: None,
                        work: Vec::new(),
                        is_head,
                        joined: 1,
                    });
                }
            }
            if let Some(step) = steps.last_mut() {
                step.work.push(Work::Rows(index, part));
            }
        }
    }
    flush(&mut steps, &mut pending, is_head);
    for index in (1..steps.len()).rev() {
        if goes_on(program, &steps[index - 1], &steps[index]) {
            steps[index - 1].joined += steps[index].joined;
        }
    }
    steps
}

/// Whether a step ends with a product and the next begins with one of the same input.
fn goes_on(program: &Program, step: &Step, next: &Step) -> bool {
    let input = |work: Option<&Work>| match *work? {
        Work::Rows(op, _) => match program.ops[op] {
            Op::Linear { input, .. } => Some(input),
            _ => None,
        },
        Work::Op(_) => None,
    };
    let (last, first) = (input(step.work.last()), input(next.work.first()));
    step.chooses.is_none() && step.is_head == next.is_head && last.is_some() && last == first
}

fn flush(steps: &mut Vec<Step>, pending: &mut Vec<Work>, is_head: bool) {
    if !pending.is_empty() {
        steps.push(Step {
            unit: None,
            chooses: None,
            experts: None,
            work: std::mem::take(pending),
            is_head,
            joined: 1,
        });
    }
}
