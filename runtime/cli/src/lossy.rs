//! Options that trade the model's own answers for fewer reads.

use clap::Args;
use emel_model::routing::{CacheRouting, LossyRouting};

/// What a mixture of experts may leave out while it decodes.
#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "LOSSY: these change the answers of a model with experts")]
pub struct LossyOptions {
    /// LOSSY: a token that is decoded goes to its router's best KEEP experts, and for the
    /// other places to those in memory among the router's best AMONG; to its true choices
    /// where these are too few [default: off]
    #[arg(long, value_name = "KEEP,AMONG", allow_hyphen_values = true, value_parser = cache_routing)]
    pub lossy_cache_routing: Option<CacheRouting>,

    /// LOSSY: for a token that is decoded at most N experts of a layer are read; the others
    /// that are not in memory are left out [default: off]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub lossy_expert_budget: Option<usize>,
}

impl LossyOptions {
    /// The rules that were asked for.
    pub fn routing(self) -> LossyRouting {
        LossyRouting {
            cache_routing: self.lossy_cache_routing,
            expert_budget: self.lossy_expert_budget,
        }
    }
}

fn cache_routing(text: &str) -> Result<CacheRouting, String> {
    let numbers = text.split_once(',').and_then(|(kept, among)| {
        let number = |text: &str| text.trim().parse().ok();
        Some((number(kept)?, number(among)?))
    });
    let (kept, among) = numbers.ok_or_else(|| {
        "expected two numbers, as 2,16: how many experts are kept, and among how many of the best the others are chosen".to_owned()
    })?;
    Ok(CacheRouting { kept, among })
}
