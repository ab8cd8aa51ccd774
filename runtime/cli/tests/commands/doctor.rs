//! `emel doctor`, and what `emel plan` makes of what it has kept.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use emel_loader::files::filesystem_id;
use emel_tests::fixtures::{SMOLLM2, real_model};
use emel_tests::gguf_writer::Field;
use serde_json::Value;
use tempfile::TempDir;

use crate::model::Model;
use crate::{command, emel, gemma, llama, refusal, result, words};

#[track_caller]
fn doctor(path: &Path) -> Value {
    serde_json::from_str(&result(emel("doctor", path, ["--json"]))).unwrap()
}

#[test]
fn the_machine_is_described_whatever_the_path() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("text.gguf"), "no model").unwrap();
    let empty = TempDir::new().unwrap();
    for (path, problem) in [
        (
            llama().as_path(),
            "bytes are too few to measure a drive with",
        ),
        (folder.path(), "text.gguf: "),
        (
            empty.path(),
            "no model on its filesystem here; name one to measure its drive",
        ),
    ] {
        let found = doctor(path);
        let reported = found["drive"]["problem"].as_str().unwrap();
        assert!(reported.contains(problem), "{reported}");
        let machine = &found["machine"];
        assert!(machine["processors"].as_u64() > Some(0));
        assert!(machine["kernel"].is_string() && machine["kernels"]["name"].is_string());
        assert!(machine["io_uring"]["available"].is_boolean());
        assert!(["ring", "uring", "pread"].contains(&found["reader"].as_str().unwrap()));
        // The cache folder of these tests cannot be made.
        assert_eq!(found["kept_in"], serde_json::json!([]));
    }
}

#[test]
fn what_is_no_model_is_an_error_and_the_machine_is_described() {
    let folder = TempDir::new().unwrap();
    let text = folder.path().join("text.gguf");
    fs::write(&text, "no model").unwrap();
    let adapter = Model::llama().with("general.type", Field::string("adapter"));
    let adapter = adapter.write(&folder);
    for (path, expected) in [(text, "not a GGUF file"), (adapter, "is a LoRA adapter")] {
        let output = emel("doctor", &path, ["--json"]);
        assert_eq!(output.status.code(), Some(1));
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains(expected), "{message}");
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        let reported = found["drive"]["problem"].as_str().unwrap();
        assert!(reported.contains(expected), "{reported}");
        assert!(found["machine"]["processors"].as_u64() > Some(0));
    }
}

#[test]
fn a_path_that_is_not_there_is_an_error() {
    let output = emel("doctor", Path::new("no/such.gguf"), ["--json"]);
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("no/such.gguf: No such file"), "{message}");
    assert!(output.stdout.is_empty());
}

#[test]
fn a_file_that_is_not_a_model_is_an_error() {
    let folder = TempDir::new().unwrap();
    let text = folder.path().join("text.gguf");
    fs::write(&text, "no model").unwrap();
    for arguments in ["", "--json"] {
        let output = emel("doctor", &text, words(arguments));
        assert_eq!(output.status.code(), Some(1));
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(
            message.starts_with("error: ") && message.contains("text.gguf: "),
            "{message}"
        );
    }
}

#[test]
fn the_verdict_comes_first_and_is_about_the_model_and_the_budget() {
    let first = |path: &Path, options: &str| {
        let text = result(emel("doctor", path, words(options)));
        text.lines().next().unwrap().to_owned()
    };
    let verdict = first(&llama(), "--ram-budget 64M");
    let (before, rest) = verdict.split_once("about ").unwrap();
    assert_eq!(before, "this model fits in 64.0 MiB: ");
    assert!(
        rest.ends_with(" tokens/s; the drive does not matter"),
        "{verdict}"
    );
    let verdict = first(&llama(), "--ram-budget 1M");
    assert!(
        verdict.starts_with("this model does not run: "),
        "{verdict}"
    );
    let empty = TempDir::new().unwrap();
    let verdict = first(empty.path(), "--ram-budget 8G");
    let expected = "in 8.0 GiB, a model of 8B parameters (4.5 GiB in Q4_K_M) fits, and a dense \
                    model of 30B parameters (16.9 GiB in Q4_K_M) reads 9.9 GiB for each token; \
                    the drive is not measured (see below)";
    assert_eq!(verdict, expected);
}

#[test]
fn the_smallest_budget_is_the_one_that_a_plan_names() {
    let smallest = |text: &str| {
        let (_, rest) = text.split_once("smallest that works is ").unwrap();
        rest.split_once(';').unwrap().0.to_owned()
    };
    let verdict = result(emel("doctor", &gemma(), words("--ram-budget 1M")));
    let planned = emel("plan", &gemma(), words("--ram-budget 1M"));
    let planned = refusal(planned, 1, &["too small"]);
    assert_eq!(smallest(&verdict), smallest(&planned));
}

#[test]
fn without_a_model_the_verdict_is_about_what_was_measured_before() {
    let empty = TempDir::new().unwrap();
    let cache = cache_with(empty.path(), "emel-drive 3\npoint 1048576 8 2147483648 1\n");
    let mut asked = command("emel");
    asked
        .arg("doctor")
        .arg(empty.path())
        .env("XDG_CACHE_HOME", cache.path());
    let text = result(
        asked
            .args(words("--io pread --ram-budget 4G"))
            .output()
            .unwrap(),
    );
    let verdict = text.lines().next().unwrap();
    assert!(
        verdict.contains("of 8B parameters (4.5 GiB in Q4_K_M) makes 2.0 tokens/s at most")
            && verdict.ends_with("; the drive gives 2.0 GiB/s"),
        "{verdict}"
    );
}

#[test]
fn a_model_with_holes_is_not_measured_and_nothing_of_it_kept() {
    let folder = TempDir::new().unwrap();
    let model = folder.path().join("model.gguf");
    fs::copy(llama(), &model).unwrap();
    let file = fs::File::options().write(true).open(&model).unwrap();
    file.set_len(80 << 20).unwrap();
    let cache = TempDir::new().unwrap();
    let mut asked = command("emel");
    asked
        .arg("doctor")
        .arg(&model)
        .env("XDG_CACHE_HOME", cache.path());
    let found: Value =
        serde_json::from_str(&result(asked.arg("--json").output().unwrap())).unwrap();
    let problem = found["drive"]["problem"].as_str().unwrap();
    assert!(
        problem.contains("are holes, which no drive is read for"),
        "{problem}"
    );
    assert_eq!(found["drive"]["points"], serde_json::json!([]));
    let kept: Vec<_> = fs::read_dir(cache.path().join("emel")).unwrap().collect();
    let names = kept.iter().map(|entry| entry.as_ref().unwrap().file_name());
    assert!(
        names
            .into_iter()
            .all(|name| !name.to_string_lossy().starts_with("drive-"))
    );
}

#[test]
fn a_folder_is_measured_by_its_largest_model_whatever_else_it_has() {
    let folder = TempDir::new().unwrap();
    let model = folder.path().join("model.gguf");
    fs::copy(llama(), &model).unwrap();
    fs::write(folder.path().join("broken.gguf"), vec![0; 2 << 20]).unwrap();
    fs::create_dir(folder.path().join("folder.gguf")).unwrap();
    // On another filesystem, whose speed tells nothing.
    std::os::unix::fs::symlink("/proc/cpuinfo", folder.path().join("link.gguf")).unwrap();
    let found = doctor(folder.path());
    assert_eq!(found["drive"]["file"].as_str(), model.to_str());
}

#[test]
fn a_folder_that_cannot_be_read_is_told_as_such() {
    let folder = TempDir::new().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o000)).unwrap();
    if fs::read_dir(folder.path()).is_ok() {
        eprintln!("skipped: this user may read all folders");
        return;
    }
    let found = doctor(folder.path());
    let problem = found["drive"]["problem"].as_str().unwrap();
    assert!(problem.contains("Permission denied"), "{problem}");
}

#[test]
fn lines_name_what_they_are_about() {
    let text = result(emel("doctor", &llama(), words("-t 1 --io pread")));
    for part in [
        "system        Linux ",
        "processor     ",
        "kernels       ",
        "io_uring      ",
        "cgroup        ",
        "memory        ",
        "huge pages    ",
        "locked memory ",
        "compute       F32 ",
        "drive         ",
        "not measured  ",
        "reader        pread: as asked\n",
        "not kept      ",
    ] {
        assert!(text.contains(part), "no `{part}` in: {text}");
    }
}

#[test]
fn the_kernels_are_those_that_the_environment_asks_for() {
    let run = |name: &str| {
        let mut command = command("emel");
        command.arg("doctor").arg(llama());
        result(command.env("EMEL_KERNELS", name).output().unwrap())
    };
    let text = run("scalar");
    assert!(
        text.contains("kernels       scalar, as EMEL_KERNELS asks of "),
        "{text}"
    );
    let text = run("abacus");
    assert!(
        text.contains("EMEL_KERNELS=abacus: this machine offers"),
        "{text}"
    );
}

/// A cache folder with a curve for the drive of `model` as `pread` reaches it.
fn cache_with(model: &Path, curve: &str) -> TempDir {
    let cache = TempDir::new().unwrap();
    fs::create_dir(cache.path().join("emel")).unwrap();
    let id = filesystem_id(model).unwrap();
    let path = cache.path().join(format!("emel/drive-{id}-pread.txt"));
    fs::write(path, curve).unwrap();
    cache
}

fn plan(model: &Path, cache: &Path, budget: &str) -> std::process::Output {
    let mut command = command("emel");
    command.arg("plan").arg(model).env("XDG_CACHE_HOME", cache);
    let arguments = words("-t 2 --io pread -c 64 -no-cnv --ram-budget");
    command.args(arguments).arg(budget).output().unwrap()
}

/// A budget that the small model streams in, on two threads.
fn streaming_budget(model: &Path) -> String {
    let output = plan(model, Path::new("/dev/null"), "1M");
    let message = String::from_utf8(output.stderr).unwrap();
    let (_, rest) = message.split_once("smallest that works is ").unwrap();
    let mebibytes: u64 = rest.split_once('M').unwrap().0.parse().unwrap();
    // Just below what would hold the model whole.
    for kibibytes in (0..mebibytes * 1024).rev().step_by(32) {
        let budget = format!("{kibibytes}K");
        let found = plan(model, Path::new("/dev/null"), &budget);
        if String::from_utf8_lossy(&found.stdout).contains("  per token: ") {
            return budget;
        }
    }
    panic!("the model never streams: {message}");
}

#[test]
fn a_plan_goes_by_a_drive_that_has_been_measured() {
    let model = llama();
    let budget = streaming_budget(&model);
    let unknown = result(plan(&model, Path::new("/dev/null"), &budget));
    assert!(unknown.contains("a drive of 1 GiB/s allows "), "{unknown}");
    let cache = cache_with(&model, "emel-drive 3\npoint 1048576 8 2147483648 1\n");
    let drive = result(plan(&model, cache.path(), &budget));
    assert!(drive.contains("this drive's 2.00 GiB/s allow "), "{drive}");
    let kernels = emel_kernels::Kernels::from_environment().unwrap().name();
    let path = cache.path().join(format!("emel/compute-{kernels}-2.txt"));
    fs::write(path, "emel-compute 2\nrate F32 1e10 1\n").unwrap();
    let both = result(plan(&model, cache.path(), &budget));
    assert!(both.contains(": about "), "{both}");
}

#[test]
fn a_damaged_measurement_is_told_in_a_line_and_passed_over() {
    let model = llama();
    let cache = cache_with(&model, "emel-drive 3\npoint one 8 2 1\n");
    let output = plan(&model, cache.path(), "64M");
    let notes = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(notes.lines().count(), 1, "{notes}");
    assert!(notes.contains("line 2 makes no sense"), "{notes}");
    assert!(result(output).contains("planned"));
}

#[test]
fn what_doctor_measures_is_kept_and_predicts() {
    let Some(model) = real_model(SMOLLM2) else {
        return;
    };
    let cache = TempDir::new().unwrap();
    let mut asked = command("emel");
    asked
        .arg("doctor")
        .arg(&model)
        .env("XDG_CACHE_HOME", cache.path());
    asked.args(words("--io pread -t 2 --json"));
    let found: Value = serde_json::from_str(&result(asked.output().unwrap())).unwrap();
    // A machine that has much else to do gets to few of them in time.
    let points = found["drive"]["points"].as_array().unwrap();
    assert!(!points.is_empty(), "{found}");
    let are_rates = |point: &Value| point["bytes_per_second"].as_f64() > Some(0.0);
    assert!(points.iter().all(are_rates), "{found}");
    assert!(points.contains(&found["drive"]["chosen"]), "{found}");
    let kept = found["kept_in"].as_array().unwrap();
    assert_eq!(kept.len(), 2, "{found}");
    let drive = fs::read_to_string(kept[0].as_str().unwrap()).unwrap();
    assert_eq!(drive.matches("point ").count(), points.len(), "{drive}");
    let output = result(plan(&model, cache.path(), "64M"));
    assert!(output.contains("per token: about "), "{output}");

    let text = |arguments: &str| {
        let mut asked = command("emel");
        asked
            .arg("doctor")
            .arg(&model)
            .env("XDG_CACHE_HOME", cache.path());
        asked.args(words("--io pread -t 2 --ram-budget 64M"));
        result(asked.args(words(arguments)).output().unwrap())
    };
    let (plain, verbose) = (text(""), text("-v"));
    let verdict = plain.lines().next().unwrap();
    let expected = "this model does not fit in 64.0 MiB and runs all the same: about ";
    assert!(verdict.starts_with(expected), "{verdict}");
    assert!(
        verdict.contains(" MiB for each token, and the drive gives ")
            && verdict.ends_with(" GiB/s"),
        "{verdict}"
    );
    assert!(!plain.contains("\nGiB/s "), "{plain}");
    // A busy machine may get to no point in time.
    let is_measured = verbose.contains("\nchosen ");
    assert_eq!(verbose.contains("\nGiB/s "), is_measured, "{verbose}");
}
