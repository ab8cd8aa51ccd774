//! `emel completions` and `emel man`: what is installed beside the program.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use tempfile::TempDir;

use crate::{command, result, words};

fn completions(arguments: &str) -> String {
    let mut emel = command("emel");
    result(
        emel.arg("completions")
            .args(words(arguments))
            .output()
            .unwrap(),
    )
}

#[test]
fn completions_of_both_programs_know_commands_and_options() {
    for shell in ["bash", "zsh", "fish"] {
        let of_emel = completions(shell);
        for name in ["emel", "doctor", "ram-budget"] {
            assert!(of_emel.contains(name), "{shell}: no {name}");
        }
        let of_run = completions(&format!("{shell} --of emel-run"));
        for name in ["emel-run", "ram-budget"] {
            assert!(of_run.contains(name), "{shell}: no {name}");
        }
        assert!(!of_run.contains("doctor"), "{shell}");
    }
}

#[test]
fn bash_completes_a_command_and_an_option() {
    let complete = |script: &str, words: &str, cursor: &str| {
        let text = format!(
            "source /dev/stdin; COMP_WORDS=({words}); COMP_CWORD={cursor}
             function=$(complete -p \"${{COMP_WORDS[0]}}\" | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
             \"$function\" \"${{COMP_WORDS[0]}}\" \"${{COMP_WORDS[COMP_CWORD]}}\" ''
             echo \"${{COMPREPLY[*]}}\""
        );
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("completions");
        fs::write(&path, script).unwrap();
        let mut bash = Command::new("bash");
        bash.args(["--norc", "-c", &text]);
        bash.stdin(fs::File::open(&path).unwrap());
        result(bash.output().unwrap())
    };
    if Command::new("bash").arg("--version").output().is_err() {
        eprintln!("skipped: there is no bash");
        return;
    }
    let of_emel = completions("bash");
    assert_eq!(complete(&of_emel, "emel do", "1"), "doctor\n");
    assert_eq!(complete(&of_emel, "emel plan --ram", "2"), "--ram-budget\n");
    let of_run = completions("bash --of emel-run");
    assert_eq!(complete(&of_run, "emel-run --ram", "1"), "--ram-budget\n");
}

#[test]
fn there_is_a_man_page_for_each_program_and_command_in_the_help() {
    let folder = TempDir::new().unwrap();
    let pages = folder.path().join("share/man1");
    result(command("emel").arg("man").arg(&pages).output().unwrap());
    let found: BTreeSet<String> = fs::read_dir(&pages)
        .unwrap()
        .map(|page| page.unwrap().file_name().into_string().unwrap())
        .collect();
    let help = result(command("emel").arg("--help").output().unwrap());
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let (commands, _) = commands.split_once("\n\n").unwrap();
    let commands = commands.lines().filter_map(|line| words(line).next());
    // `help` is no command of its own.
    let commands = commands.filter(|&name| name != "help");
    let mut expected: BTreeSet<String> = commands.map(|name| format!("emel-{name}.1")).collect();
    assert!(expected.len() > 7, "{help}");
    expected.insert("emel.1".to_owned());
    assert_eq!(found, expected);
    for page in found {
        let text = fs::read_to_string(pages.join(&page)).unwrap();
        assert!(text.contains(".TH "), "{page}");
    }
    let run = fs::read_to_string(pages.join("emel-run.1")).unwrap();
    assert!(run.contains("\\-\\-ram\\-budget"), "{run}");
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let output = command("emel").args(["man", "/dev/null/man"]).output();
    crate::refusal(
        output.unwrap(),
        1,
        &["/dev/null/man: cannot write man pages"],
    );
}
