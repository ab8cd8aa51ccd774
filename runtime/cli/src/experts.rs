//! Options about experts that do not all fit in memory.

use clap::{Args, ValueEnum};

use emel::{Learning, Prefetch, Settings};

/// Options of commands that decode with a mixture of experts.
#[derive(Debug, Clone, Args)]
pub struct ExpertOptions {
    /// Where not all experts fit in memory: which are read before they are needed, while the
    /// drive is idle. Answers do not depend on it
    #[arg(long, value_enum, default_value_t = PrefetchName::Auto)]
    prefetch: PrefetchName,

    /// Do not write what was learnt about experts to MODEL.emel-heat beside the model; a file
    /// that is there is used all the same
    #[arg(long)]
    no_learn: bool,
}

/// The values of `--prefetch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PrefetchName {
    /// Like both, as long as it makes tokens faster
    Auto,
    /// Never
    Off,
    /// Those that the next layer's router chooses, asked one layer early
    Router,
    /// Those that have often followed this layer's experts
    Coact,
    /// Those of router and those of coact
    Both,
}

impl ExpertOptions {
    /// Takes them into an engine's settings.
    pub fn apply(&self, settings: &mut Settings) {
        settings.prefetch = match self.prefetch {
            PrefetchName::Auto => Prefetch::Auto,
            PrefetchName::Off => Prefetch::Off,
            PrefetchName::Router => Prefetch::Router,
            PrefetchName::Coact => Prefetch::Coactivation,
            PrefetchName::Both => Prefetch::Both,
        };
        settings.learning = match self.no_learn {
            true => Learning::Read,
            false => Learning::Keep,
        };
    }
}
