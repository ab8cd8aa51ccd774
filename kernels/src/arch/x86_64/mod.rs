//! x86-64: AVX2, AVX-VNNI and AVX-512, each a level on top of the same eight lanes.
//!
//! | level | needs | since |
//! |---|---|---|
//! | [`Avx2`] | AVX2, FMA, F16C | 2013–2015 |
//! | [`AvxVnni`] | and AVX-VNNI | 2021–2024 |
//! | [`Avx512`] | and AVX-512 F, BW, VL, VNNI | 2019–2022 |
//!
//! `lanes.rs` has what they share; how a level handles panels of rows is in `ymm.rs` (the first
//! two) and `zmm.rs`.

/// Wraps intrinsics that need the features an [`X86`] proves.
macro_rules! proven {
    ($($body:tt)*) => {
        // SAFETY: an `X86` exists only where the CPU has its level's features; accesses in the body
        // stay within the arrays that their pointers come from, and are unaligned.
        unsafe { $($body)* }
    };
}

mod lanes;
mod ymm;
mod zmm;

use std::marker::PhantomData;

use super::{Panels, Routine};

/// Proof that the CPU has the features of level `L`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct X86<L>(PhantomData<L>);

/// A set of CPU features; each includes AVX2, FMA and F16C.
pub(crate) trait Level: Copy + Send + Sync + std::fmt::Debug + 'static {
    /// Whether this CPU has them.
    fn is_available() -> bool;

    /// Runs a routine with the features on, so that everything inlined into it is compiled for
    /// them.
    ///
    /// # Safety
    ///
    /// The CPU must have the features.
    unsafe fn enter<R: Routine>(simd: X86<Self>, routine: R) -> R::Output
    where
        X86<Self>: Panels;
}

impl<L: Level> X86<L> {
    /// The proof, if the CPU has the features.
    pub(crate) fn detect() -> Option<Self> {
        L::is_available().then_some(Self(PhantomData))
    }
}

/// AVX2, FMA and F16C, and AVX-VNNI if `VNNI`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ymm<const VNNI: bool>;

/// AVX-512 F, BW, VL and VNNI.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Zmm;

/// What every x86-64 server and desktop since 2013–2015 has.
pub(crate) type Avx2 = X86<Ymm<false>>;
/// AVX2 and integer dot products of four.
pub(crate) type AvxVnni = X86<Ymm<true>>;
/// Registers twice as wide and twice as many, and integer dot products of four.
pub(crate) type Avx512 = X86<Zmm>;

/// Four bits times this have bit `i` at the bottom of byte `i`.
const BITS_TO_BYTES: i32 = 1 | 1 << 7 | 1 << 14 | 1 << 21;

/// Four values as one element of a vector.
#[inline(always)]
fn quad(values: &[i8; 4]) -> i32 {
    // One load rather than four bytes put together, so that it can become part of a broadcast.
    // SAFETY: four bytes are read, of which any are an `i32`; the read need not be aligned.
    unsafe { values.as_ptr().cast::<i32>().read_unaligned() }
}
