//! Products of quantised weights and Q8 activations.
//!
//! The order of an output element, whatever is computed beside it: per 16 columns an exact integer
//! dot product, then, in ascending order, `sum = fma(dot, weight_scale · activation_scale, sum)`
//! for both halves of a group of 32, and for formats with a minimum `sum = fma(minimum, Σx, sum)`
//! ([`add_half`]). That is float arithmetic and its order counts, so a vector's lanes are sixteen
//! rows there. How the dot products come about does not matter, because they are exact.
//!
//! * One token ([`single`](super::single)): a row's bytes are unpacked in registers and meet the
//!   activations at once; what is laid side by side afterwards is one number per 16 columns.
//! * Many tokens (here): sixteen rows' bytes are laid side by side in a [`Panel`], four columns at a
//!   time. One integer instruction then multiplies four columns of all sixteen rows by four
//!   activations. A panel is unpacked once and meets every token of a chunk.

use std::marker::PhantomData;

use super::packs::{add_half, padded_pack, strip, whole_pack};
use super::room::Room;
use super::{Share, single};
use crate::activations::{GROUP_ELEMENTS, PACK_ELEMENTS, Q8Pack, Q8View};
use crate::arch::{PANEL_ROWS, Routine, Simd};
use crate::block::panel::Panel;
use crate::block::{Meaning, PackRows, QuantisedBlock};
use crate::matrix::Matrix;

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
        return single::multiply::<F>(share, view);
    }
    for first in (0..tokens).step_by(TOKENS_NEAR) {
        let count = TOKENS_NEAR.min(tokens - first);
        multiply_near::<F>(share, view, first, count);
    }
}

/// Computes the share's rows for `count` tokens, at most [`TOKENS_NEAR`].
fn multiply_near<F: QuantisedBlock>(
    share: &Share<'_>,
    view: Q8View<'_>,
    first_token: usize,
    count: usize,
) {
    let weights = share.product.weights;
    let mut panels = [Panel::ZERO; PANELS];
    let mut room = Room::<Sums, TOKENS_NEAR>::new();
    for first_row in share.rows.clone().step_by(PANELS * PANEL_ROWS) {
        let rows = (PANELS * PANEL_ROWS).min(share.rows.end - first_row);
        let used = rows.div_ceil(PANEL_ROWS);
        let sums = room.filled(count, [[0.0; PANEL_ROWS]; PANELS]);
        for pack in 0..view.row_packs() {
            for (index, panel) in panels[..used].iter_mut().enumerate() {
                let first_row = first_row + index * PANEL_ROWS;
                share.kernels.dispatch(Unpack::<F> {
                    weights,
                    first_row,
                    rows: PANEL_ROWS.min(share.rows.end - first_row),
                    pack,
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
    panel: &'a mut Panel,
    format: PhantomData<F>,
}

impl<F: QuantisedBlock> Routine for Unpack<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let rows = strip::<F>(&self.weights, self.first_row, self.rows);
        self.prefetch_next(simd, &rows);
        let padded;
        let rows = match whole_pack::<F>(&rows, self.pack) {
            Some(rows) => rows,
            None => {
                padded = padded_pack::<F>(&rows, self.pack);
                padded.each_ref().map(<[F::Raw; _]>::as_slice)
            }
        };
        self.panel.unpack::<S, F>(simd, &rows);
    }
}

impl<F: QuantisedBlock> Unpack<'_, F> {
    /// Asks for what will be unpacked next, which arrives while this panel is multiplied: the next
    /// 256 columns of each row or, at their end, the first of the next strip.
    ///
    /// Two panels' rows are 32 streams, too many for the hardware's own prefetchers.
    #[inline(always)]
    fn prefetch_next<S: Simd>(&self, simd: S, rows: &PackRows<'_, F::Raw>) {
        const LINE_BYTES: usize = 64;
        let pack_bytes = PACK_ELEMENTS / F::ELEMENTS * size_of::<F::Raw>();
        let row_bytes = self.weights.row_bytes();
        let offset = (self.pack + 1) * pack_bytes;
        let ahead = if offset < row_bytes {
            offset
        } else {
            PANELS * PANEL_ROWS * row_bytes
        };
        for row in rows {
            let next = row.as_ptr().cast::<u8>().wrapping_add(ahead);
            for line in 0..pack_bytes.div_ceil(LINE_BYTES) {
                simd.prefetch(next.wrapping_add(line * LINE_BYTES));
            }
        }
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
    /// `P` panels times all tokens: `T` at a time, of the rest two, and then the last.
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
        let (pairs, rest) = rest.as_chunks_mut::<2>();
        for sums in pairs {
            self.tile(simd, panels, token, sums);
            token += 2;
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
        // As `lane_of` has them, so that the compiler sees that every index is in bounds.
        for section in 0..2 {
            for index in 0..self.groups.saturating_sub(4 * section).min(4) {
                let (group, lane) = (4 * section + index, 8 * section + index);
                self.add_half::<S, P, T, 0>(simd, panels, packs, group, lane, &mut sums);
                self.add_half::<S, P, T, 1>(simd, panels, packs, group, lane + 4, &mut sums);
            }
        }
        for (memory, sums) in memory.iter_mut().zip(sums) {
            for (panel, sums) in which.into_iter().zip(sums) {
                simd.store_rows(sums, &mut memory[panel]);
            }
        }
    }

    /// Adds sixteen columns: half `HALF` of a group, whose activations are in `lane`.
    #[inline(always)]
    fn add_half<S: Simd, const P: usize, const T: usize, const HALF: usize>(
        &self,
        simd: S,
        panels: [&Panel; P],
        packs: [&Q8Pack; T],
        group: usize,
        lane: usize,
        sums: &mut [[S::Rows; P]; T],
    ) {
        let mut counts = [[simd.splat_counts(0); P]; T];
        if !M::HAS_MINIMUM {
            for (counts, pack) in counts.iter_mut().zip(packs) {
                let offset = i32::from(pack.counts[lane]) << self.offset_log2;
                *counts = [simd.splat_counts(-offset); P];
            }
        }
        // Written out, because a loop over the four is not always unrolled.
        self.add_quad(simd, panels, packs, [group, 4 * HALF], lane, &mut counts);
        self.add_quad(
            simd,
            panels,
            packs,
            [group, 4 * HALF + 1],
            lane,
            &mut counts,
        );
        self.add_quad(
            simd,
            panels,
            packs,
            [group, 4 * HALF + 2],
            lane,
            &mut counts,
        );
        self.add_quad(
            simd,
            panels,
            packs,
            [group, 4 * HALF + 3],
            lane,
            &mut counts,
        );

        for panel in 0..P {
            let scales = &panels[panel].scales;
            for token in 0..T {
                let (dots, sums) = (counts[token][panel], &mut sums[token][panel]);
                *sums =
                    add_half::<S, M, HALF>(simd, dots, scales, packs[token], group, lane, *sums);
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
        [group, quad]: [usize; 2],
        lane: usize,
        counts: &mut [[S::Counts; P]; T],
    ) {
        for panel in 0..P {
            let weights = simd.load_quads(&panels[panel].quants[group][quad]);
            for token in 0..T {
                let values = &packs[token].quants[quad % 4][lane];
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
