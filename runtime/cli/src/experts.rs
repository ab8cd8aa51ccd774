//! Options about experts that do not all fit in memory.

use clap::{Args, ValueEnum};

use emel::{Learning, Prefetch, Settings};

/// Options of commands that decode with a mixture of experts.
#[derive(Debug, Clone, Args)]
pub struct ExpertOptions {
    /// Whether experts that do not all fit are read before they are needed, while the drive
    /// is idle; answers do not depend on it
    #[arg(long, value_enum, default_value_t = PrefetchName::Auto)]
    prefetch: PrefetchName,

    /// Do not keep what is learnt about such experts beside the model, in
    /// MODEL.emel-heat; what is there is used all the same
    #[arg(long)]
    no_learn: bool,
}

/// The values of `--prefetch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PrefetchName {
    /// By router and table, while that makes tokens faster
    Auto,
    /// Never
    Off,
    /// Those that the next layer's router would choose now
    Router,
    /// Those that have followed this layer's experts before
    Coact,
    /// By router and table
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
