//! Products of quantised weights and Q8 activations.
//!
//! Sixteen rows form a [`Panel`]: 256 columns of each, unpacked to bytes and laid side by side, four
//! columns at a time, so that a vector's lanes are rows. One integer instruction then multiplies
//! four columns of all sixteen rows by four activations, and no sum ever crosses lanes. A panel is
//! unpacked once and meets every token of a chunk; in decode it meets one.
//!
//! The order of an output element, whatever else is computed beside it: per 16 columns an exact
//! integer dot product, then, in ascending order, `sum = fma(dot, weight_scale · activation_scale,
//! sum)` for both halves of a group of 32, and for formats with a minimum `sum = fma(minimum, Σx,
//! sum)`.

use std::marker::PhantomData;

use super::Share;
use crate::activations::{GROUP_ELEMENTS, PACK_ELEMENTS, Q8Pack, Q8View};
use crate::arch::{PANEL_ROWS, Routine, Simd};
use crate::block::{Meaning, PackRows, QuantisedBlock};
use crate::matrix::Matrix;
use crate::panel::Panel;

/// Panels that are computed together: with two, an activation that was fetched serves 32 rows.
const PANELS: usize = 2;

/// Tokens whose sums are kept on the stack while a panel's columns pass by: 32 KiB.
const TOKENS_NEAR: usize = 256;

/// One sum per row of the panels.
type Sums = [[f32; PANEL_ROWS]; PANELS];

/// Computes the share's rows for all tokens of the product.
pub(super) fn multiply<F: QuantisedBlock>(share: &Share<'_>, view: Q8View<'_>) {
    let tokens = share.product.tokens;
    if tokens == 1 {
        return multiply_near::<F, 1>(share, view, 0, 1);
    }
    for first in (0..tokens).step_by(TOKENS_NEAR) {
        let count = TOKENS_NEAR.min(tokens - first);
        multiply_near::<F, TOKENS_NEAR>(share, view, first, count);
    }
}

/// Computes the share's rows for `count` tokens, at most `NEAR`.
fn multiply_near<F: QuantisedBlock, const NEAR: usize>(
    share: &Share<'_>,
    view: Q8View<'_>,
    first_token: usize,
    count: usize,
) {
    let weights = share.product.weights;
    let mut panels = [Panel::ZERO; PANELS];
    let mut sums = [[[0.0; PANEL_ROWS]; PANELS]; NEAR];
    let sums = &mut sums[..count];
    // One token is bound by memory: the next strip, which is being fetched, should fit near.
    let strip_rows = if count == 1 {
        PANEL_ROWS
    } else {
        PANELS * PANEL_ROWS
    };
    for first_row in share.rows.clone().step_by(strip_rows) {
        let rows = strip_rows.min(share.rows.end - first_row);
        let used = rows.div_ceil(PANEL_ROWS);
        sums.fill([[0.0; PANEL_ROWS]; PANELS]);
        for pack in 0..view.row_packs() {
            for (index, panel) in panels[..used].iter_mut().enumerate() {
                let first_row = first_row + index * PANEL_ROWS;
                share.kernels.dispatch(Unpack::<F> {
                    weights,
                    first_row,
                    rows: PANEL_ROWS.min(share.rows.end - first_row),
                    pack,
                    prefetches: count == 1,
                    panel,
                    format: PhantomData,
                });
            }
            let columns = PACK_ELEMENTS.min(view.columns() - pack * PACK_ELEMENTS);
            share.kernels.dispatch(Multiply::<F::Meaning> {
                panels: &panels,
                used,
                groups: columns / GROUP_ELEMENTS,
                offset_log2: F::OFFSET_LOG2,
                view,
                first_token,
                pack,
                sums,
                meaning: PhantomData,
            });
        }
        for (token, sums) in (first_token..).zip(sums.iter()) {
            share.write(token, first_row, &sums.as_flattened()[..rows]);
        }
    }
}

/// Unpacks a panel.
struct Unpack<'a, F> {
    weights: Matrix<'a>,
    first_row: usize,
    /// How many there are, at most sixteen.
    rows: usize,
    /// Which 256 columns.
    pack: usize,
    /// Whether to ask for what the next panels will need.
    prefetches: bool,
    panel: &'a mut Panel,
    format: PhantomData<F>,
}

impl<F: QuantisedBlock> Routine for Unpack<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let blocks_per_pack = PACK_ELEMENTS / F::ELEMENTS;
        // Rows that do not exist repeat the last one; nothing reads what becomes of them.
        let mut rows: PackRows<'_, F::Raw> = [&[]; PANEL_ROWS];
        for (index, row) in rows.iter_mut().enumerate() {
            let blocks = F::blocks(self.weights.row(self.first_row + index.min(self.rows - 1)));
            let start = self.pack * blocks_per_pack;
            *row = &blocks[start..blocks.len().min(start + blocks_per_pack)];
            if self.prefetches {
                prefetch_next(simd, row, self.weights.row_bytes());
            }
        }
        F::unpack(simd, &rows, self.panel);
    }
}

/// Prefetches what lies at the same place in the next panel.
///
/// Sixteen rows are as many streams, too many for the hardware's own prefetchers.
#[inline(always)]
fn prefetch_next<S: Simd, R>(simd: S, blocks: &[R], row_bytes: usize) {
    const LINE_BYTES: usize = 64;
    let next = blocks.as_ptr().cast::<u8>();
    let next = next.wrapping_add(PANEL_ROWS * row_bytes);
    for line in 0..size_of_val(blocks).div_ceil(LINE_BYTES) {
        simd.prefetch(next.wrapping_add(line * LINE_BYTES));
    }
}

/// Adds what unpacked panels contribute to the sums of some tokens.
struct Multiply<'a, M> {
    panels: &'a [Panel; PANELS],
    /// How many of the panels hold rows.
    used: usize,
    /// Groups of 32 columns in the panels.
    groups: usize,
    offset_log2: u32,
    view: Q8View<'a>,
    first_token: usize,
    pack: usize,
    sums: &'a mut [Sums],
    meaning: PhantomData<M>,
}

impl<M: Meaning> Routine for Multiply<'_, M> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let sums = std::mem::take(&mut self.sums);
        if S::MANY_REGISTERS && self.used == PANELS {
            return self.tokens::<S, PANELS, 4>(simd, [0, 1], sums);
        }
        for panel in 0..self.used {
            if S::MANY_REGISTERS {
                self.tokens::<S, 1, 4>(simd, [panel], sums);
            } else {
                self.tokens::<S, 1, 3>(simd, [panel], sums);
            }
        }
    }
}

impl<M: Meaning> Multiply<'_, M> {
    /// `P` panels times all tokens, `T` at a time and then one by one.
    #[inline(always)]
    fn tokens<S: Simd, const P: usize, const T: usize>(
        &self,
        simd: S,
        panels: [usize; P],
        sums: &mut [Sums],
    ) {
        let (tiles, rest) = sums.as_chunks_mut::<T>();
        let mut token = self.first_token;
        for sums in tiles {
            self.tile(simd, panels, token, sums);
            token += T;
        }
        for sums in rest {
            self.tile(simd, panels, token, std::array::from_mut(sums));
            token += 1;
        }
    }

    /// `P` panels times `T` tokens, whose sums stay in registers.
    #[inline(always)]
    fn tile<S: Simd, const P: usize, const T: usize>(
        &self,
        simd: S,
        which: [usize; P],
        token: usize,
        memory: &mut [Sums; T],
    ) {
        let panels: [&Panel; P] = std::array::from_fn(|index| &self.panels[which[index]]);
        let packs: [&Q8Pack; T] =
            std::array::from_fn(|index| self.view.pack(token + index, self.pack));
        // Loops and not closures: intrinsics in a closure are not always inlined.
        let mut sums = [[simd.load_rows(&[0.0; PANEL_ROWS]); P]; T];
        for (sums, memory) in sums.iter_mut().zip(&*memory) {
            for (sums, panel) in sums.iter_mut().zip(which) {
                *sums = simd.load_rows(&memory[panel]);
            }
        }
        for group in 0..self.groups {
            self.add_half::<S, P, T, 0>(simd, panels, packs, group, &mut sums);
            self.add_half::<S, P, T, 1>(simd, panels, packs, group, &mut sums);
        }
        for (memory, sums) in memory.iter_mut().zip(sums) {
            for (panel, sums) in which.into_iter().zip(sums) {
                simd.store_rows(sums, &mut memory[panel]);
            }
        }
    }

    /// Adds sixteen columns: half `HALF` of a group.
    #[inline(always)]
    fn add_half<S: Simd, const P: usize, const T: usize, const HALF: usize>(
        &self,
        simd: S,
        panels: [&Panel; P],
        packs: [&Q8Pack; T],
        group: usize,
        sums: &mut [[S::Rows; P]; T],
    ) {
        let mut counts = [[simd.splat_counts(0); P]; T];
        if !M::HAS_MINIMUM {
            for (counts, pack) in counts.iter_mut().zip(packs) {
                let offset = i32::from(pack.counts[HALF][group]) << self.offset_log2;
                *counts = [simd.splat_counts(-offset); P];
            }
        }
        // Written out, because a loop over the four is not always unrolled.
        self.add_quad(simd, panels, packs, group, 4 * HALF, &mut counts);
        self.add_quad(simd, panels, packs, group, 4 * HALF + 1, &mut counts);
        self.add_quad(simd, panels, packs, group, 4 * HALF + 2, &mut counts);
        self.add_quad(simd, panels, packs, group, 4 * HALF + 3, &mut counts);

        let scale_half = if M::HALVES { HALF } else { 0 };
        for panel in 0..P {
            let scales = simd.load_rows(&panels[panel].scales[scale_half][group]);
            for token in 0..T {
                let dots = simd.counts_as_rows(counts[token][panel]);
                let scales = simd.scale_rows(scales, packs[token].scales[HALF][group]);
                sums[token][panel] = simd.add_products(dots, scales, sums[token][panel]);
            }
        }
        if M::HAS_MINIMUM && (M::HALVES || HALF == 1) {
            for panel in 0..P {
                let minima = simd.load_rows(&panels[panel].minima[scale_half][group]);
                for token in 0..T {
                    let pack = packs[token];
                    let share = if M::HALVES {
                        pack.scales[HALF][group] * f32::from(pack.counts[HALF][group])
                    } else {
                        pack.sums[group]
                    };
                    sums[token][panel] = simd.add_scaled(minima, share, sums[token][panel]);
                }
            }
        }
    }

    /// Adds four columns to the integer sums.
    #[inline(always)]
    fn add_quad<S: Simd, const P: usize, const T: usize>(
        &self,
        simd: S,
        panels: [&Panel; P],
        packs: [&Q8Pack; T],
        group: usize,
        quad: usize,
        counts: &mut [[S::Counts; P]; T],
    ) {
        for panel in 0..P {
            let weights = simd.load_quads(&panels[panel].quants[group][quad]);
            for token in 0..T {
                let values = &packs[token].quants[group].as_chunks::<4>().0[quad];
                let count = &mut counts[token][panel];
                *count = if M::WIDE {
                    simd.dot_quads::<true>(*count, weights, values)
                } else {
                    simd.dot_quads::<false>(*count, weights, values)
                };
            }
        }
    }
}
