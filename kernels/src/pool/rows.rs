//! Rows of values, split over the workers.

use std::ops::Range;

use super::Pool;
use crate::shared::SharedSlice;

/// Values of a task: some microseconds of most element-by-element work. Fewer than two tasks' worth,
/// as one token has, are not worth a fork.
pub(crate) const TASK_VALUES: usize = 8192;

impl Pool {
    /// Calls `task(rows, values)` on runs of whole rows that together are all of `values`, on all
    /// workers if they are many; a row is `width` values. What becomes of a row must not depend on
    /// the rows it comes with.
    ///
    /// # Panics
    ///
    /// If `values` is not whole rows, and as [`Pool::run`].
    pub fn run_rows<F>(&self, values: &mut [f32], width: usize, task: F)
    where
        F: Fn(Range<usize>, &mut [f32]) + Sync,
    {
        if values.is_empty() {
            return;
        }
        assert!(
            width > 0 && values.len().is_multiple_of(width),
            "{} values are not whole rows of {width}",
            values.len()
        );
        let rows = values.len() / width;
        let tasks = (values.len() / TASK_VALUES).clamp(1, rows);
        if tasks == 1 {
            return task(0..rows, values);
        }
        let values = SharedSlice::new(values);
        self.run_tasks(tasks, |_, index| {
            let run = rows * index / tasks..rows * (index + 1) / tasks;
            // SAFETY: the runs of different tasks do not meet.
            let values = unsafe { values.range(run.start * width, run.len() * width) };
            task(run, values);
        });
    }
}
