//! `emel-run`: another name of `emel run`.

use std::process::ExitCode;

fn main() -> ExitCode {
    emel::cli::program::main()
}
