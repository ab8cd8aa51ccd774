//! `emel-run`: another name of `emel run`.

use std::process::ExitCode;

fn main() -> ExitCode {
    emel_cli::program::main()
}
