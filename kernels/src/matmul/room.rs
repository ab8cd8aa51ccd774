//! Memory for sums that is not set before it is used.

use std::mem::MaybeUninit;

/// Room on the stack for `N` values. Shares are small and there are many, so that setting all of it
/// for each, and again for each of its strips, would take a twentieth of the time.
pub(super) struct Room<T, const N: usize>([MaybeUninit<T>; N]);

impl<T: Copy, const N: usize> Room<T, N> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self([const { MaybeUninit::uninit() }; N])
    }

    /// The first `count` values, all of them `value`.
    #[inline(always)]
    pub(super) fn filled(&mut self, count: usize, value: T) -> &mut [T] {
        let values = &mut self.0[..count];
        for place in &mut *values {
            place.write(value);
        }
        let values = std::ptr::from_mut(values) as *mut [T];
        // SAFETY: all values of the slice have just been written, and `MaybeUninit<T>` lies in memory
        // as `T` does.
        unsafe { &mut *values }
    }
}
