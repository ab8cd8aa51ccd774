//! What the programs say of themselves, and what they refuse to write over.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const PROGRAMS: [&str; 6] = [
    env!("CARGO_BIN_EXE_capped-run"),
    env!("CARGO_BIN_EXE_capped-sweep"),
    env!("CARGO_BIN_EXE_emel-speed"),
    env!("CARGO_BIN_EXE_emel-synth"),
    env!("CARGO_BIN_EXE_kernel-speed"),
    env!("CARGO_BIN_EXE_stream-speed"),
];

fn run(program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.env("XDG_CACHE_HOME", "/dev/null");
    command.args(arguments).output().expect("the binary starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn every_program_tells_what_it_is_for_and_its_version() {
    for program in PROGRAMS {
        let help = run(program, &["--help"]);
        assert!(help.status.success() && help.stderr.is_empty(), "{help:?}");
        let help = text(&help.stdout);
        assert!(help.contains("\nUsage: "), "{help}");
        let version = run(program, &["--version"]);
        let version = text(&version.stdout);
        assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
    }
}

#[test]
fn the_spelling_that_the_help_offers_for_the_model_is_taken() {
    for program in PROGRAMS {
        let help = text(&run(program, &["--help"]).stdout);
        if !help.contains("[also: -m FILE]") {
            continue;
        }
        let output = run(program, &["--ids", "1,2", "-m", "no/such.gguf"]);
        let told = text(&output.stderr);
        // emel-speed wants more ids before it looks for the model.
        let is_taken = told.contains("no/such.gguf: ") || told.contains("2 ids, expected");
        assert!(is_taken, "{program}: {told}");
    }
}

#[test]
fn a_model_of_random_weights_does_not_replace_a_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    let shape = "--arch llama --layers 1 --embedding 256 --feed-forward 256 --heads 2 \
                 --kv-heads 1 --head-dim 64 --vocab 300 --type F32 --head-type F32";
    let write = || {
        let path = path.to_str().expect("UTF-8");
        let arguments: Vec<&str> = [path].into_iter().chain(shape.split_whitespace()).collect();
        run(env!("CARGO_BIN_EXE_emel-synth"), &arguments)
    };
    let first = write();
    assert!(first.status.success(), "{first:?}");
    let before = fs::read(&path).expect("a model");
    let second = write();
    assert_eq!(second.status.code(), Some(1));
    let told = text(&second.stderr);
    assert!(told.contains("this is a model"), "{told}");
    assert!(fs::read(&path).expect("a model") == before);
    // What is no model gives way, as with other programs.
    fs::write(&path, "notes").expect("written");
    assert!(write().status.success());
    let fifo = folder.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    for taken in [fifo.as_path(), folder.path()] {
        let taken = taken.to_str().expect("UTF-8");
        let refused = run(
            env!("CARGO_BIN_EXE_emel-synth"),
            &[taken, "--preset", "moe"],
        );
        assert_eq!(refused.status.code(), Some(1));
        assert!(text(&refused.stderr).contains("no regular file"));
    }
    assert!(!fifo.is_file() && fifo.exists());
    fs::remove_file(fifo).expect("removed");
    // Where a link leads to a place, the model goes there.
    fs::remove_file(&path).expect("removed");
    let kept = folder.path().join("kept");
    std::os::unix::fs::symlink(&kept, &path).expect("linked");
    assert!(write().status.success());
    assert!(path.is_symlink() && kept.is_file());
    fs::remove_file(&kept).expect("removed");
    let dash = run(env!("CARGO_BIN_EXE_emel-synth"), &["-", "--preset", "moe"]);
    assert_eq!(dash.status.code(), Some(2));
    assert!(text(&dash.stderr).contains("no file"));
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
}

#[test]
fn figures_of_the_scripts_do_not_replace_a_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = folder.path().join("model");
    fs::write(&model, "GGUF and so on").expect("written");
    let nowhere = folder.path().join("no/figures");
    for script in ["versus_llama", "stream_limit"] {
        for (path, told) in [
            (&model, "this is a model"),
            (&nowhere, "a folder that is there"),
        ] {
            let mut python = Command::new("python3");
            python.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(script));
            let Ok(output) = python.arg(&model).arg("--json").arg(path).output() else {
                eprintln!("skipped: there is no python3");
                return;
            };
            assert_eq!(output.status.code(), Some(2), "{output:?}");
            let message = text(&output.stderr);
            assert!(message.contains(told), "{message}");
        }
    }
    assert_eq!(fs::read(&model).expect("a model"), b"GGUF and so on");
}
