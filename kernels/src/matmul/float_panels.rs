//! Products with the `f32` activations of many tokens.
//!
//! Sixteen rows lie side by side in a [`Panel`], so that a vector's lanes are rows, as in the integer
//! products. The eight lanes in which `float.rs` sums an element are then eight numbers, each of which
//! takes every eighth column; a panel has its columns in that order. So every element goes through the
//! same additions as with one token. Panels are unpacked once for all tokens of a chunk, and what is
//! left is one broadcast for two multiplications.

use std::marker::PhantomData;
use std::ops::Range;

use super::Share;
use super::room::Room;
use crate::arch::{LANES, PANEL_ROWS, Routine, Simd};
use crate::block::{BLOCK_ELEMENTS_MAX, FloatBlock, QuantisedBlock};
use crate::cache::floats_as_bytes;
use crate::matrix::Matrix;

/// Panels that are computed together.
const PANELS: usize = 2;

/// Columns in a panel: a whole number of any format's blocks. Two panels are 32 KiB.
const COLUMNS_NEAR: usize = BLOCK_ELEMENTS_MAX;

/// Eights of columns in a panel.
const EIGHTS: usize = COLUMNS_NEAR / LANES;

/// Tokens whose sums are kept on the stack while columns pass by: 256 KiB.
const TOKENS_NEAR: usize = 256;

/// Up to 256 columns of sixteen rows: `[lane][eight][row]`.
type Panel = [[[f32; PANEL_ROWS]; EIGHTS]; LANES];

/// What a token's rows have come to, lane by lane.
type Sums = [[[f32; PANEL_ROWS]; PANELS]; LANES];

/// How a row's weights become floats.
pub(super) trait Unpack {
    /// Writes the weights of columns `first..` of a row, as many as there are and fit, then zeros up to
    /// the next whole eight.
    fn unpack<S: Simd>(simd: S, row: &[u8], first: usize, out: &mut [f32; COLUMNS_NEAR]);
}

/// Weights that are floats.
pub(super) struct Floats<F>(PhantomData<F>);

impl<F: FloatBlock> Unpack for Floats<F> {
    #[inline(always)]
    fn unpack<S: Simd>(simd: S, row: &[u8], first: usize, out: &mut [f32; COLUMNS_NEAR]) {
        let (eights, rest) = F::eights(row);
        let eights = &eights[first / LANES..];
        let (outs, _) = out.as_chunks_mut::<LANES>();
        for (eight, out) in eights.iter().zip(&mut *outs) {
            simd.store(F::load(simd, eight), out);
        }
        if let Some(out) = outs.get_mut(eights.len())
            && !rest.is_empty()
        {
            *out = last_eight::<F>(row);
        }
    }
}

/// Quantised weights.
pub(super) struct Dequantised<F>(PhantomData<F>);

impl<F: QuantisedBlock> Unpack for Dequantised<F> {
    #[inline(always)]
    fn unpack<S: Simd>(_simd: S, row: &[u8], first: usize, out: &mut [f32; COLUMNS_NEAR]) {
        let blocks = &F::blocks(row)[first / F::ELEMENTS..];
        for (raw, out) in blocks.iter().zip(out.chunks_exact_mut(F::ELEMENTS)) {
            F::dequantise(raw, out);
        }
    }
}

/// Computes the share's rows for all tokens of the product.
pub(super) fn multiply<U: Unpack>(share: &Share<'_>, values: &[f32], columns: usize) {
    let tokens = share.product.tokens;
    for first in (0..tokens).step_by(TOKENS_NEAR) {
        let count = TOKENS_NEAR.min(tokens - first);
        let values = &values[first * columns..][..count * columns];
        multiply_near::<U>(share, values, columns, first);
    }
}

/// Computes the share's rows for at most [`TOKENS_NEAR`] tokens, of which these are the values.
fn multiply_near<U: Unpack>(share: &Share<'_>, values: &[f32], columns: usize, first_token: usize) {
    let mut panels = [[[[0.0; PANEL_ROWS]; EIGHTS]; LANES]; PANELS];
    let mut room = Room::<Sums, TOKENS_NEAR>::new();
    for first_row in share.rows.clone().step_by(PANELS * PANEL_ROWS) {
        let rows = (PANELS * PANEL_ROWS).min(share.rows.end - first_row);
        let used = rows.div_ceil(PANEL_ROWS);
        let zeros = [[[0.0; PANEL_ROWS]; PANELS]; LANES];
        let sums = room.filled(values.len() / columns, zeros);
        for first_column in (0..columns).step_by(COLUMNS_NEAR) {
            for (index, panel) in panels[..used].iter_mut().enumerate() {
                let first_row = first_row + index * PANEL_ROWS;
                share.kernels.dispatch(UnpackPanel::<U> {
                    weights: share.product.weights,
                    first_row,
                    rows: PANEL_ROWS.min(share.rows.end - first_row),
                    first_column,
                    panel,
                    source: PhantomData,
                });
            }
            share.kernels.dispatch(Multiply {
                panels: &panels,
                used,
                values,
                columns,
                first_column,
                sums,
            });
        }
        share.kernels.dispatch(Finish {
            share,
            rows: first_row..first_row + rows,
            first_token,
            used_lanes: match columns % LANES {
                0 => LANES,
                rest => rest,
            },
            sums,
        });
    }
}

/// Unpacks a panel.
struct UnpackPanel<'a, U> {
    weights: Matrix<'a>,
    first_row: usize,
    /// How many there are, at most sixteen.
    rows: usize,
    first_column: usize,
    panel: &'a mut Panel,
    source: PhantomData<U>,
}

impl<U: Unpack> Routine for UnpackPanel<'_, U> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let mut unpacked = [[0.0; COLUMNS_NEAR]; PANEL_ROWS];
        // Rows that do not exist repeat the last one; nothing reads what becomes of them.
        for (index, out) in unpacked.iter_mut().enumerate() {
            let row = self.first_row + index.min(self.rows - 1);
            U::unpack::<S>(simd, self.weights.row(row), self.first_column, out);
        }
        for eight in 0..EIGHTS {
            let mut rows = [&[0; 4 * LANES]; PANEL_ROWS];
            for (row, unpacked) in rows.iter_mut().zip(&unpacked) {
                *row = floats_as_bytes(&unpacked.as_chunks().0[eight]);
            }
            let columns = simd.interleave(&rows);
            for (lane, quads) in self.panel.iter_mut().zip(columns) {
                simd.store_rows(simd.words_as_rows(quads), &mut lane[eight]);
            }
        }
    }
}

/// Adds what unpacked panels contribute to the sums of some tokens.
struct Multiply<'a> {
    panels: &'a [Panel; PANELS],
    /// How many of the panels hold rows.
    used: usize,
    /// Of the tokens whose sums these are.
    values: &'a [f32],
    columns: usize,
    /// Of the panels.
    first_column: usize,
    sums: &'a mut [Sums],
}

impl Routine for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let sums = std::mem::take(&mut self.sums);
        if S::MANY_REGISTERS && self.used == PANELS {
            return self.tokens::<S, PANELS, 8>(simd, [0, 1], sums);
        }
        for panel in 0..self.used {
            if S::MANY_REGISTERS {
                self.tokens::<S, 1, 8>(simd, [panel], sums);
            } else {
                self.tokens::<S, 1, 6>(simd, [panel], sums);
            }
        }
    }
}

impl Multiply<'_> {
    /// `P` panels times all tokens, `T` at a time and then fewer.
    #[inline(always)]
    fn tokens<S: Simd, const P: usize, const T: usize>(
        &self,
        simd: S,
        panels: [usize; P],
        sums: &mut [Sums],
    ) {
        let mut token = 0;
        let (tiles, rest) = sums.as_chunks_mut::<T>();
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

    /// `P` panels times `T` tokens, lane after lane: the sums of one stay in registers.
    #[inline(always)]
    fn tile<S: Simd, const P: usize, const T: usize>(
        &self,
        simd: S,
        which: [usize; P],
        first_token: usize,
        memory: &mut [Sums; T],
    ) {
        let width = COLUMNS_NEAR.min(self.columns - self.first_column);
        let whole = width / LANES;
        let mut eights: [&[[f32; LANES]]; T] = [&[]; T];
        let mut rests: [&[f32]; T] = [&[]; T];
        for token in 0..T {
            let start = (first_token + token) * self.columns + self.first_column;
            let (whole_eights, rest) = self.values[start..][..width].as_chunks();
            (eights[token], rests[token]) = (&whole_eights[..whole], rest);
        }
        for lane in 0..LANES {
            let panels: [&[[f32; PANEL_ROWS]; EIGHTS]; P] =
                std::array::from_fn(|index| &self.panels[which[index]][lane]);
            // Loops and not closures: intrinsics in a closure are not always inlined.
            let mut sums = [[simd.load_rows(&[0.0; PANEL_ROWS]); P]; T];
            for (sums, memory) in sums.iter_mut().zip(&*memory) {
                for (sums, panel) in sums.iter_mut().zip(which) {
                    *sums = simd.load_rows(&memory[lane][panel]);
                }
            }
            for eight in 0..whole.min(EIGHTS) {
                for panel in 0..P {
                    let weights = simd.load_rows(&panels[panel][eight]);
                    for token in 0..T {
                        let value = eights[token][eight][lane];
                        sums[token][panel] = simd.add_scaled(weights, value, sums[token][panel]);
                    }
                }
            }
            if lane < width % LANES {
                for panel in 0..P {
                    let weights = simd.load_rows(&panels[panel][whole]);
                    for token in 0..T {
                        let value = rests[token][lane];
                        sums[token][panel] = simd.add_scaled(weights, value, sums[token][panel]);
                    }
                }
            }
            for (memory, sums) in memory.iter_mut().zip(sums) {
                for (panel, sums) in which.into_iter().zip(sums) {
                    simd.store_rows(sums, &mut memory[lane][panel]);
                }
            }
        }
    }
}

/// Reduces the lanes of every sum, as [`Simd::sum`] does, and writes the rows' outputs.
struct Finish<'a> {
    share: &'a Share<'a>,
    rows: Range<usize>,
    first_token: usize,
    /// Lanes to which the last columns of a row go. To the others one token adds a product of zeros,
    /// which shows in the sign of a zero.
    used_lanes: usize,
    sums: &'a [Sums],
}

impl Routine for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let zero = simd.load_rows(&[0.0; PANEL_ROWS]);
        for (token, sums) in (self.first_token..).zip(self.sums) {
            let mut out = [[0.0; PANEL_ROWS]; PANELS];
            for (panel, out) in out.iter_mut().enumerate() {
                let mut lanes = [zero; LANES];
                for (lane, sums) in lanes.iter_mut().zip(sums) {
                    *lane = simd.load_rows(&sums[panel]);
                }
                for lane in &mut lanes[self.used_lanes..] {
                    *lane = simd.add_scaled(zero, 0.0, *lane);
                }
                // A product with one is exact, so this rounds as an addition does.
                let mut half = LANES / 2;
                while half > 0 {
                    for lane in 0..half {
                        lanes[lane] = simd.add_scaled(lanes[lane], 1.0, lanes[lane + half]);
                    }
                    half /= 2;
                }
                simd.store_rows(lanes[0], out);
            }
            let out = &out.as_flattened()[..self.rows.len()];
            self.share.write(token, self.rows.start, out);
        }
    }
}

/// The weights after the last whole eight of a row, padded with zeros.
#[inline(always)]
pub(super) fn last_eight<F: FloatBlock>(row: &[u8]) -> [f32; LANES] {
    let mut padded = [0.0; LANES];
    for (weight, raw) in padded.iter_mut().zip(F::eights(row).1) {
        F::dequantise(raw, std::slice::from_mut(weight));
    }
    padded
}
