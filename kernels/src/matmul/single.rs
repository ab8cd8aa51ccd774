//! Products of quantised weights and the Q8 activations of one token: decoding.
//!
//! Every weight is read once and used once, so what counts is the instructions per byte. A row's
//! 256 columns are unpacked in registers, with the sixteen halves of its groups in a vector's
//! lanes, and meet the activations, which lie in the same order. Four integer instructions later
//! the lanes hold the row's sixteen dot products. Those of sixteen rows are transposed, so that the
//! lanes are rows, and added up in the order that `integer.rs` prescribes.

use std::marker::PhantomData;

use super::Share;
use super::integer::{add_half, padded_pack, strip, whole_pack};
use crate::activations::{GROUP_ELEMENTS, PACK_ELEMENTS, Q8Pack, Q8View};
use crate::arch::{PANEL_ROWS, Routine, Simd, lane_of};
use crate::block::{Meaning, PackRows, QuantisedBlock};
use crate::panel::PanelScales;

/// Computes the share's rows for the first token.
pub(super) fn multiply<F: QuantisedBlock>(share: &Share<'_>, view: Q8View<'_>) {
    share.kernels.dispatch(Single::<F> {
        share,
        view,
        format: PhantomData,
    });
}

struct Single<'a, F> {
    share: &'a Share<'a>,
    view: Q8View<'a>,
    format: PhantomData<F>,
}

impl<F: QuantisedBlock> Routine for Single<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let weights = &self.share.product.weights;
        let mut scales = PanelScales::ZERO;
        for first_row in self.share.rows.clone().step_by(PANEL_ROWS) {
            let count = PANEL_ROWS.min(self.share.rows.end - first_row);
            let rows = strip::<F>(weights, first_row, count);
            let mut ahead = Prefetch::after(weights.row(first_row), PANEL_ROWS);
            let mut sums = simd.load_rows(&[0.0; PANEL_ROWS]);
            for pack in 0..self.view.row_packs() {
                let padded;
                let rows = match whole_pack::<F>(&rows, pack) {
                    Some(rows) => rows,
                    None => {
                        padded = padded_pack::<F>(&rows, pack);
                        padded.each_ref().map(<[F::Raw; _]>::as_slice)
                    }
                };
                let columns = PACK_ELEMENTS.min(self.view.columns() - pack * PACK_ELEMENTS);
                F::unpack_scales(simd, &rows, &mut scales);
                let pack = self.view.pack(0, pack);
                let dots = dot_products::<S, F>(simd, &rows, pack, &mut ahead);
                for group in 0..columns / GROUP_ELEMENTS {
                    let [first, second] = [0, 1].map(|half| dots[lane_of(group, half)]);
                    sums = add_half::<S, F::Meaning, 0>(simd, first, &scales, pack, group, sums);
                    sums = add_half::<S, F::Meaning, 1>(simd, second, &scales, pack, group, sums);
                }
            }
            let mut out = [0.0; PANEL_ROWS];
            simd.store_rows(sums, &mut out);
            self.share.write(0, first_row, &out[..count]);
        }
    }
}

/// The integer dot products of 256 columns: in each result those of one half, in its lanes the rows.
#[inline(always)]
fn dot_products<S: Simd, F: QuantisedBlock>(
    simd: S,
    rows: &PackRows<'_, F::Raw>,
    pack: &Q8Pack,
    ahead: &mut Prefetch,
) -> [S::Counts; PANEL_ROWS] {
    let start = if F::Meaning::HAS_MINIMUM {
        simd.splat_counts(0)
    } else {
        simd.offset_counts(&pack.counts, F::OFFSET_LOG2)
    };
    let mut counts = [start; PANEL_ROWS];
    for (counts, blocks) in counts.iter_mut().zip(rows) {
        ahead.advance(simd, size_of_val(*blocks));
        let quads = F::unpack_row(simd, blocks);
        for (quads, values) in quads.into_iter().zip(&pack.quants) {
            *counts = if F::Meaning::WIDE {
                simd.dot_lanes::<true>(*counts, quads, values)
            } else {
                simd.dot_lanes::<false>(*counts, quads, values)
            };
        }
    }
    simd.transpose_counts(counts)
}

/// Asks for the next rows, a few lines at a time and in the order of their addresses.
///
/// Sixteen rows are as many streams, too many for the hardware's own prefetchers.
struct Prefetch {
    line: usize,
    until: usize,
}

impl Prefetch {
    /// Of what lies `rows` rows behind `row`.
    #[inline(always)]
    fn after(row: &[u8], rows: usize) -> Self {
        let address = row.as_ptr().addr().wrapping_add(rows * row.len());
        Self {
            line: address,
            until: address,
        }
    }

    /// The next `bytes`.
    #[inline(always)]
    fn advance<S: Simd>(&mut self, simd: S, bytes: usize) {
        const LINE_BYTES: usize = 64;
        self.until = self.until.wrapping_add(bytes);
        while self.line < self.until {
            simd.prefetch(std::ptr::without_provenance(self.line));
            self.line += LINE_BYTES;
        }
    }
}
