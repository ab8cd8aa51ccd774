//! Sixteen rows of a quantised matrix, unpacked and laid side by side.

use crate::arch::{PANEL_ROWS, Simd, lane_of};
use crate::block::{PackRows, QuantisedBlock};

/// 256 columns of sixteen rows: eight groups of 32.
#[repr(C, align(64))]
pub(crate) struct Panel {
    /// Per group and four of its columns: four unsigned bytes of each row.
    pub(crate) quants: [[[u8; 4 * PANEL_ROWS]; 8]; 8],
    /// What the bytes are multiplied by.
    pub(crate) scales: PanelScales,
    /// The rows' bytes on the way here, before they are transposed.
    rows: [[[u8; 4 * PANEL_ROWS]; PANEL_ROWS]; 4],
}

/// The scales and minima of 256 columns of sixteen rows.
#[repr(C, align(64))]
pub(crate) struct PanelScales {
    /// Per half and group; the second half only if the format has scales per 16.
    pub(crate) scales: [[[f32; PANEL_ROWS]; 8]; 2],
    /// As the scales, if the format has minima.
    pub(crate) minima: [[[f32; PANEL_ROWS]; 8]; 2],
}

impl PanelScales {
    pub(crate) const ZERO: Self = Self {
        scales: [[[0.0; PANEL_ROWS]; 8]; 2],
        minima: [[[0.0; PANEL_ROWS]; 8]; 2],
    };
}

impl Panel {
    pub(crate) const ZERO: Self = Self {
        quants: [[[0; 4 * PANEL_ROWS]; 8]; 8],
        scales: PanelScales::ZERO,
        rows: [[[0; 4 * PANEL_ROWS]; PANEL_ROWS]; 4],
    };

    /// Unpacks 256 columns of sixteen rows.
    #[inline(always)]
    pub(crate) fn unpack<S: Simd, F: QuantisedBlock>(
        &mut self,
        simd: S,
        rows: &PackRows<'_, F::Raw>,
    ) {
        F::unpack_scales(simd, rows, &mut self.scales);
        F::unpack_quants(simd, rows, self);
    }

    /// Unpacks 256 columns row by row and lays the rows side by side.
    #[inline(always)]
    pub(crate) fn transpose_rows<S: Simd, F: QuantisedBlock>(
        &mut self,
        simd: S,
        rows: &PackRows<'_, F::Raw>,
    ) {
        for (row, blocks) in rows.iter().enumerate() {
            let quads = F::unpack_row(simd, blocks);
            for (quads, rows) in quads.iter().zip(&mut self.rows) {
                simd.store_quads(*quads, &mut rows[row]);
            }
        }
        for (quad, rows) in self.rows.iter().enumerate() {
            let mut lanes = [simd.load_quads(&rows[0]); PANEL_ROWS];
            for (lanes, row) in lanes.iter_mut().zip(rows) {
                *lanes = simd.load_quads(row);
            }
            let lanes = simd.transpose_quads(lanes);
            for (group, quants) in self.quants.iter_mut().enumerate() {
                simd.store_quads(lanes[lane_of(group, 0)], &mut quants[quad]);
                simd.store_quads(lanes[lane_of(group, 1)], &mut quants[4 + quad]);
            }
        }
    }
}
