//! `emel`: runs models and looks into them.

use std::process::ExitCode;

fn main() -> ExitCode {
    emel::cli::program::main()
}
