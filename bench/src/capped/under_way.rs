//! The run that is under way, which a signal ends with the sweep.

use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How often a run that prints nothing any more is looked after.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The sweep is to end; no run begins or counts any more.
#[derive(Debug, thiserror::Error)]
#[error("the sweep was ended")]
pub struct Ended;

/// The process of a run, if one is under way.
#[derive(Debug, Clone, Default)]
pub struct UnderWay(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    is_ended: bool,
    child: Option<Child>,
}

impl UnderWay {
    /// A run begins.
    ///
    /// # Errors
    /// When no run is to begin any more, in which case it is ended, or it cannot be begun.
    pub fn begin(&self, spawn: impl FnOnce() -> anyhow::Result<Child>) -> anyhow::Result<()> {
        let mut state = self.lock();
        if state.is_ended {
            return Err(Ended.into());
        }
        state.child = Some(spawn()?);
        Ok(())
    }

    /// Waits until the run is over.
    ///
    /// # Errors
    /// When it was ended, or cannot be waited for.
    pub fn wait(&self) -> anyhow::Result<ExitStatus> {
        loop {
            let mut state = self.lock();
            let child = state.child.as_mut().context("no run has begun")?;
            if let Some(status) = child.try_wait()? {
                // Its number may be another process's from here on.
                state.child = None;
                return match state.is_ended {
                    true => Err(Ended.into()),
                    false => Ok(status),
                };
            }
            drop(state);
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Asks the run to end, and lets none begin after it.
    pub fn end(&self) {
        let mut state = self.lock();
        state.is_ended = true;
        if let Some(child) = &state.child {
            // It may be over already.
            let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
