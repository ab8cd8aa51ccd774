//! Sixteen rows of a quantised matrix, unpacked and laid side by side.

use crate::activations::GROUP_ELEMENTS;
use crate::arch::{PANEL_ROWS, Simd};
use crate::block::Meaning;

/// 256 columns of sixteen rows: eight groups of 32.
#[repr(C, align(64))]
pub(crate) struct Panel {
    /// Per group and four of its columns: four unsigned bytes of each row.
    pub(crate) quants: [[[u8; 4 * PANEL_ROWS]; 8]; 8],
    /// Per half and group; the second half only if the format has scales per 16.
    pub(crate) scales: [[[f32; PANEL_ROWS]; 8]; 2],
    /// As the scales, if the format has minima.
    pub(crate) minima: [[[f32; PANEL_ROWS]; 8]; 2],
}

impl Panel {
    pub(crate) const ZERO: Self = Self {
        quants: [[[0; 4 * PANEL_ROWS]; 8]; 8],
        scales: [[[0.0; PANEL_ROWS]; 8]; 2],
        minima: [[[0.0; PANEL_ROWS]; 8]; 2],
    };
}

/// 256 columns of one row, for formats that unpack a row at a time.
#[derive(Clone, Copy)]
#[repr(align(32))]
pub(crate) struct RowPack {
    /// Unsigned bytes.
    pub(crate) quants: [[u8; GROUP_ELEMENTS]; 8],
    /// Scale per group; of its second half too, if the format has one per 16.
    pub(crate) scales: [[f32; 8]; 2],
    /// As the scales, if the format has minima.
    pub(crate) minima: [[f32; 8]; 2],
}

impl RowPack {
    pub(crate) const ZERO: Self = Self {
        quants: [[0; GROUP_ELEMENTS]; 8],
        scales: [[0.0; 8]; 2],
        minima: [[0.0; 8]; 2],
    };
}

/// Lays sixteen rows side by side: the first `groups` groups.
#[inline(always)]
pub(crate) fn assemble<S: Simd, M: Meaning>(
    simd: S,
    rows: &[RowPack; PANEL_ROWS],
    groups: usize,
    panel: &mut Panel,
) {
    for group in 0..groups {
        let mut quants = [&rows[0].quants[group]; PANEL_ROWS];
        for (quants, row) in quants.iter_mut().zip(rows) {
            *quants = &row.quants[group];
        }
        let quads = simd.interleave(&quants);
        for (quads, out) in quads.into_iter().zip(&mut panel.quants[group]) {
            simd.store_quads(quads, out);
        }
    }
    for half in 0..1 + usize::from(M::HALVES) {
        for group in 0..groups {
            for (row, pack) in rows.iter().enumerate() {
                panel.scales[half][group][row] = pack.scales[half][group];
                if M::HAS_MINIMUM {
                    panel.minima[half][group][row] = pack.minima[half][group];
                }
            }
        }
    }
}
