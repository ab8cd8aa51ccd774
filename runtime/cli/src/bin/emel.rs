//! `emel`: runs models and looks into them.

use std::process::ExitCode;

fn main() -> ExitCode {
    emel_cli::program::main()
}
