//! `emel-run --session`: one process goes on where another has stopped.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use emel_tests::fixtures::{SMOLLM2, fixture, real_model};
use serde_json::Value;
use tempfile::TempDir;

use crate::model::Model;
use crate::{command, emel_run, llama, refusal, result, words};

fn run(model: &Path, prompt: &str, count: &str, more: &[&str]) -> Output {
    let arguments = ["-p", prompt, "-n", count, "-c", "200"];
    let arguments = arguments.iter().chain(more).copied();
    let greedy = words("--temp 0 --ignore-eos");
    emel_run(model, arguments.chain(greedy))
}

#[test]
fn a_session_goes_on_in_another_process_with_the_same_bits() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (part, whole, statistics) = (path("part"), path("whole"), path("statistics.json"));
    for name in ["llama", "gemma3", "lfm2", "qwen35moe", "deepseek2"] {
        let model = fixture("arch").join(format!("{name}.gguf"));
        let alone = run(&model, "hello world and all", "20", &["--session", &whole]);
        assert_eq!(String::from_utf8_lossy(&alone.stderr), "", "{name}");
        result(run(&model, "hello world", "0", &["--session", &part]));
        let session = ["--session", &part, "--stats-json", &statistics];
        let resumed = run(&model, "hello world and all", "20", &session);
        assert_eq!(String::from_utf8_lossy(&resumed.stderr), "", "{name}");
        assert_eq!(result(resumed), result(alone), "{name}");
        let found: Value = serde_json::from_slice(&fs::read(&statistics).unwrap()).unwrap();
        let resumed = found["resumed_tokens"].as_u64().unwrap();
        assert!(resumed > 0 && resumed < found["prompt_tokens"].as_u64().unwrap());
        assert!(
            fs::read(&part).unwrap() == fs::read(&whole).unwrap(),
            "{name}"
        );
        fs::remove_file(&part).unwrap();
        fs::remove_file(&whole).unwrap();
    }
}

#[test]
fn the_example_in_the_help_goes_on_with_an_answer() {
    let Some(model) = real_model(SMOLLM2) else {
        return;
    };
    let help = result(command("emel-run").arg("--help").output().unwrap());
    let example = help.lines().map(str::trim);
    let example: Vec<&str> = example.filter(|line| line.starts_with("story")).collect();
    assert_eq!(example.len(), 3, "{help}");
    let script = example
        .join("\n")
        .replace("emel-run MODEL.gguf", "\"$RUN\" \"$MODEL\" -c 512")
        .replace("-n 100", "-n 12");
    let folder = TempDir::new().unwrap();
    let mut shell = Command::new("bash");
    shell.args(["-c", &format!("set -e\n{script}\nprintf %s \"$story\"")]);
    shell.env("RUN", env!("CARGO_BIN_EXE_emel-run"));
    shell
        .env("MODEL", &model)
        .env("XDG_CACHE_HOME", "/dev/null");
    let story = result(shell.current_dir(&folder).output().unwrap());
    let (begin, statistics) = ("Once upon a time", folder.path().join("statistics"));
    assert!(
        story.starts_with(begin) && story.len() > begin.len() + 24,
        "{story}"
    );
    let mut third = command("emel-run");
    third
        .arg(&model)
        .args(["-n", "1", "-c", "512", "-p", &story]);
    third.args(["--session", "story.session", "--stats-json"]);
    result(
        third
            .arg(&statistics)
            .current_dir(&folder)
            .output()
            .unwrap(),
    );
    let found: Value = serde_json::from_slice(&fs::read(&statistics).unwrap()).unwrap();
    // Tokens of the end may be others in a longer text.
    assert!(found["resumed_tokens"].as_u64().unwrap() > 12, "{found}");
}

#[test]
fn a_session_that_does_not_begin_the_prompt_is_said_to_be_of_no_use() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("session").to_str().unwrap().to_owned();
    result(run(&llama(), "hello world", "4", &["--session", &path]));
    let other = run(&llama(), "something else", "4", &["--session", &path]);
    let notes = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(notes.contains("0 of the session's"), "{notes}");
    assert_eq!(
        result(other),
        result(run(&llama(), "something else", "4", &[]))
    );
}

#[test]
fn what_is_no_session_of_the_model_is_refused_before_anything_is_computed() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("session").to_str().unwrap().to_owned();
    let session = ["--session", &path];
    fs::write(&path, "my only copy of a novel").unwrap();
    refusal(
        run(&llama(), "hello", "4", &session),
        1,
        &[&path, "not a session"],
    );
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        "my only copy of a novel"
    );
    fs::remove_file(&path).unwrap();

    result(run(&llama(), "hello", "4", &session));
    let other = fixture("arch/gemma3.gguf");
    refusal(
        run(&other, "hello", "4", &session),
        1,
        &[&path, "another model"],
    );
    let single = ["--session", &path, "--kv", "f32"];
    refusal(run(&llama(), "hello", "4", &single), 1, &["--kv f16"]);
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 9]).unwrap();
    refusal(
        run(&llama(), "hello", "4", &session),
        1,
        &[&path, "damaged or cut off"],
    );
    fs::write(&path, [&bytes[..8], &[9, 0, 0, 0], &bytes[12..]].concat()).unwrap();
    refusal(
        run(&llama(), "hello", "4", &session),
        1,
        &[&path, "format 9"],
    );

    let nowhere = folder.path().join("no").join("folder");
    let session = ["--session", nowhere.to_str().unwrap()];
    let expected = ["no/folder", "cannot write the session"];
    refusal(run(&llama(), "hello", "4", &session), 1, &expected);
    let session = ["--session", folder.path().to_str().unwrap()];
    refusal(
        run(&llama(), "hello", "4", &session),
        1,
        &["cannot read the session", "a directory"],
    );
    let fifo = folder.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let session = ["--session", fifo.to_str().unwrap()];
    let expected = ["/fifo", "is a FIFO", "expected a regular file"];
    refusal(run(&llama(), "hello", "4", &session), 1, &expected);
}

#[test]
fn a_file_for_statistics_is_not_the_session() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (session, link) = (path("session"), path("link"));
    let expected = ["--stats-json", "another file than --session"];
    let same = ["--session", &session, "--stats-json", &session];
    refusal(run(&llama(), "hello", "4", &same), 2, &expected);
    assert!(!Path::new(&session).exists());
    let same = ["--stats-json", &link, "--profile", &link];
    let both = ["--profile", "another file than --stats-json"];
    refusal(run(&llama(), "hello", "4", &same), 2, &both);
    result(run(&llama(), "hello", "4", &["--session", &session]));
    let bytes = fs::read(&session).unwrap();
    symlink(&session, &link).unwrap();
    for statistics in [session.clone(), link, path("./session")] {
        let same = ["--session", &session, "--stats-json", &statistics];
        refusal(run(&llama(), "hello", "4", &same), 2, &expected);
        assert!(fs::read(&session).unwrap() == bytes, "{statistics}");
    }
}

#[test]
fn a_session_of_a_model_with_other_weights_is_refused() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("session").to_str().unwrap().to_owned();
    let session = ["--session", &path];
    result(run(&llama(), "hello", "4", &session));
    for tensor in ["blk.0.ffn_down.weight", "blk.1.attn_q.weight"] {
        let tuned = Model::llama().filled(tensor, 0.25).write(&folder);
        let expected = [path.as_str(), "another model"];
        refusal(run(&tuned, "hello", "4", &session), 1, &expected);
    }
}

#[test]
fn a_saved_session_keeps_its_permissions_and_the_links_to_it() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::create_dir(path("kept")).unwrap();
    let link = path("link");
    symlink("kept/session", &link).unwrap();
    let session = ["--session", &link];
    result(run(&llama(), "hello", "4", &session));
    let kept = path("kept/session");
    assert!(fs::symlink_metadata(&kept).unwrap().is_file());
    let first = fs::read(&kept).unwrap();
    fs::set_permissions(&kept, fs::Permissions::from_mode(0o640)).unwrap();
    result(run(&llama(), "hello", "8", &session));
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(
        fs::metadata(&kept).unwrap().permissions().mode() & 0o777,
        0o640
    );
    assert!(fs::read(&kept).unwrap().len() > first.len());
}
