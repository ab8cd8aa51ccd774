//! The place of what is learnt about a model's experts: read when the engine starts, written
//! when it ends.

use std::path::PathBuf;

use emel_loader::reader::ReadError;

use super::heat::{self, Heat, Learning};
use crate::blueprint::Blueprint;
use crate::notice::{Notice, NoticeListener};
use crate::pass_runner::PassRunner;

/// Where it is kept, and who hears of what goes wrong.
pub(crate) struct HeatFile {
    path: PathBuf,
    listener: NoticeListener,
}

impl HeatFile {
    /// Lets the runner begin with what an earlier run has left, as the settings say, and
    /// says where to keep what it learns. What cannot be used is left as it is.
    pub(crate) fn new(
        blueprint: &Blueprint,
        listener: &NoticeListener,
        runner: &mut PassRunner,
        mut on_notice: impl FnMut(Notice),
    ) -> Option<Self> {
        let learning = blueprint.settings.learning;
        if learning == Learning::Off || blueprint.plan.expert_slots.is_none() {
            return None;
        }
        let path = heat::place(&blueprint.path);
        match blueprint.learnt() {
            Ok(Some(found)) => runner.warm(found),
            Ok(None) => {}
            Err(why) => {
                on_notice(Notice::LearntIgnored { path, why });
                return None;
            }
        }
        (learning == Learning::Keep).then(|| Self {
            path,
            listener: listener.clone(),
        })
    }

    /// Keeps it, or says why it cannot be kept.
    pub(crate) fn save(&self, learnt: &Heat, identity: Result<u64, ReadError>) {
        let saved = match identity {
            Ok(identity) => learnt
                .save(&self.path, identity)
                .map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(why) = saved {
            let path = self.path.clone();
            self.listener.tell(&Notice::LearntNotKept { path, why });
        }
    }
}
