//! Products of quantised weights and the Q8 activations of one token: decoding.
//!
//! Every weight is read once and used once, so what counts is the instructions per byte. A row's
//! 256 columns are unpacked in registers, with the sixteen halves of its groups in a vector's
//! lanes, and meet the activations, which lie in the same order. Four integer instructions later
//! the lanes hold the row's sixteen dot products. Those of sixteen rows are transposed, so that the
//! lanes are rows, and added up in the order that `integer.rs` prescribes.

use std::marker::PhantomData;

use super::Share;
use super::packs::{add_half, padded_pack, strip, whole_pack};
use crate::activations::{GROUP_ELEMENTS, PACK_ELEMENTS, Q8Pack, Q8View};
use crate::arch::{PANEL_ROWS, Routine, Simd, lane_of};
use crate::block::panel::PanelScales;
use crate::block::{Meaning, PackRows, QuantisedBlock};

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
            let mut ahead = Prefetch::<F>::after_strip(weights.row(first_row));
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
                    let (first, second) = (lane_of(group, 0), lane_of(group, 1));
                    sums = add_half::<S, F::Meaning, 0>(
                        simd,
                        dots[first],
                        &scales,
                        pack,
                        group,
                        first,
                        sums,
                    );
                    sums = add_half::<S, F::Meaning, 1>(
                        simd,
                        dots[second],
                        &scales,
                        pack,
                        group,
                        second,
                        sums,
                    );
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
    ahead: &mut Prefetch<F>,
) -> [S::Counts; PANEL_ROWS] {
    let start = if F::Meaning::HAS_MINIMUM {
        simd.splat_counts(0)
    } else {
        simd.offset_counts(&pack.counts, F::OFFSET_LOG2)
    };
    let mut counts = [start; PANEL_ROWS];
    let (fours, _) = counts.as_chunks_mut::<PREFETCH_ROWS>();
    for (counts, rows) in fours.iter_mut().zip(rows.as_chunks::<PREFETCH_ROWS>().0) {
        ahead.advance(simd);
        for (count, blocks) in counts.iter_mut().zip(rows) {
            let quads = F::unpack_row(simd, blocks);
            let mut sum = start;
            for (quads, values) in quads.iter().zip(&pack.quants) {
                sum = if F::Meaning::WIDE {
                    simd.dot_lanes::<true>(sum, *quads, values)
                } else {
                    simd.dot_lanes::<false>(sum, *quads, values)
                };
            }
            *count = sum;
        }
    }
    simd.transpose_counts(counts)
}

/// Rows between two prefetches: the 256 columns of so many are, in most formats, whole lines.
const PREFETCH_ROWS: usize = 4;

/// Asks for the next strip of rows, a few lines at a time and in the order of their addresses.
///
/// Sixteen rows are as many streams, too many for the hardware's own prefetchers.
struct Prefetch<F> {
    next: *const u8,
    format: PhantomData<F>,
}

impl<F: QuantisedBlock> Prefetch<F> {
    /// Of the strip that follows the one of this first row.
    #[inline(always)]
    fn after_strip(first_row: &[u8]) -> Self {
        let next = first_row.as_ptr();
        Self {
            next: next.wrapping_add(PANEL_ROWS * first_row.len()),
            format: PhantomData,
        }
    }

    /// As many bytes as 256 columns of [`PREFETCH_ROWS`] rows take.
    #[inline(always)]
    fn advance<S: Simd>(&mut self, simd: S) {
        const LINE_BYTES: usize = 64;
        let bytes = PREFETCH_ROWS * (PACK_ELEMENTS / F::ELEMENTS) * size_of::<F::Raw>();
        for line in 0..bytes.div_ceil(LINE_BYTES) {
            simd.prefetch(self.next.wrapping_add(line * LINE_BYTES));
        }
        self.next = self.next.wrapping_add(bytes);
    }
}
