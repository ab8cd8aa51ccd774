//! `emel completions` and `emel man`: what an installation takes from the command line's
//! definition. Both are hidden from the help, which is for what a user runs.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;

/// Options of `emel completions`.
#[derive(Debug, Args)]
pub struct CompletionsOptions {
    /// The shell that reads them
    shell: Shell,

    /// The program that they complete
    #[arg(long, value_name = "PROGRAM", value_parser = ["emel", "emel-run"], default_value = "emel")]
    of: String,
}

/// Options of `emel man`.
#[derive(Debug, Args)]
pub struct ManOptions {
    /// The folder that the pages go to; it is made if it is not there
    folder: PathBuf,
}

/// Prints completions of one of `programs`.
///
/// # Errors
/// When standard output does not take them.
pub fn completions(options: &CompletionsOptions, programs: [Command; 2]) -> anyhow::Result<()> {
    let mut script = Vec::new();
    for mut program in programs {
        if program.get_name() == options.of {
            clap_complete::generate(options.shell, &mut program, &options.of, &mut script);
        }
    }
    super::print(&String::from_utf8(script).context("completions are no text")?)?;
    Ok(())
}

/// Writes a man page of each program and of each command.
///
/// # Errors
/// When they cannot be written.
pub fn man(options: &ManOptions, programs: [Command; 2]) -> anyhow::Result<()> {
    let folder = &options.folder;
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(folder)?;
        for program in programs {
            clap_mangen::generate_to(program, folder)?;
        }
        Ok(())
    };
    write().with_context(|| format!("{}: cannot write man pages", folder.display()))
}
