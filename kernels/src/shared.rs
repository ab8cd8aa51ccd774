//! A slice that the workers of a pool write in disjoint parts.

use std::marker::PhantomData;

/// A mutable slice shared by the tasks of one kernel call, each of which owns other elements.
#[derive(Clone, Copy)]
pub(crate) struct SharedSlice<'a, T> {
    pointer: *mut T,
    length: usize,
    exclusive: PhantomData<&'a mut [T]>,
}

// SAFETY: the slice is reached through the unsafe methods only, whose callers promise that no two
// threads touch the same element; moving `T` values between threads needs `T: Send`.
unsafe impl<T: Send> Send for SharedSlice<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedSlice<'_, T> {}

impl<'a, T> SharedSlice<'a, T> {
    /// Shares `slice` for as long as it is borrowed.
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self {
            pointer: slice.as_mut_ptr(),
            length: slice.len(),
            exclusive: PhantomData,
        }
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// The elements `start..start + length`. Panics if there are not so many.
    ///
    /// # Safety
    ///
    /// While the returned reference lives, nothing else may access these elements.
    pub(crate) unsafe fn range(&self, start: usize, length: usize) -> &'a mut [T] {
        let end = start.checked_add(length);
        assert!(
            end.is_some_and(|end| end <= self.length),
            "range outside the shared slice"
        );
        // SAFETY: in bounds as just checked; exclusive by the caller's promise and the lifetime.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.add(start), length) }
    }
}
