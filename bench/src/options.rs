//! Options that several of the programs have, and how their values are read.

use clap::Args;
use emel_kernels::Format;

/// What is answered, and how its tokens are drawn.
#[derive(Debug, Clone, Args)]
pub struct PromptOptions {
    /// Token ids of the prompt
    #[arg(long, value_name = "ID,…", value_delimiter = ',', required = true)]
    pub ids: Vec<u32>,

    /// Temperature at which tokens are drawn; 0 takes the likeliest
    #[arg(long, value_name = "T", default_value = "0", value_parser = temperature)]
    pub temp: f32,
}

/// A temperature.
///
/// # Errors
/// What would be one.
pub fn temperature(text: &str) -> Result<f32, String> {
    let number = text.parse().ok();
    let number = number.filter(|it: &f32| it.is_finite() && *it >= 0.0);
    number.ok_or_else(|| "expected a number of 0 and more".to_owned())
}

/// A weight format by its name, in capitals or not.
///
/// # Errors
/// The names that there are.
pub fn format(name: &str) -> Result<Format, String> {
    let known = Format::ALL.iter();
    known
        .clone()
        .copied()
        .find(|format| format.name().eq_ignore_ascii_case(name))
        .ok_or_else(|| {
            let names: Vec<_> = known.map(|format| format.name()).collect();
            format!("expected one of {}", names.join(", "))
        })
}
