#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::fs;

use emel_tests::programs;
use serde_json::json;
use tempfile::TempDir;

use super::super::cap::Cap;
use super::*;

const CAP: SizedCap = SizedCap {
    asked: Cap::Bytes(1 << 26),
    bytes: Some(1 << 26),
    budget_bytes: Some(1 << 26),
};

fn script(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    programs::write(&path, &format!("#!/bin/bash\n{text}\n"));
    path
}

/// Says that it made a cgroup, and runs the command in none: what a kernel does is not
/// tested here.
const CAPPER: &str = r#"
while [[ $1 != -- ]]; do
  case $1 in
    --report) report=$2 ;;
    --files) files=$2 ;;
  esac
  shift
done
shift
status=0
"$@" || status=$?
kills=0
((status != 137)) || kills=1
echo "{\"via\":\"cgroup2\",\"oom_kills\":$kills,\"exit_status\":$status}" >"$report"
[[ -z $files ]] || {
  echo "oom_kill $kills" >"$files/memory.events"
  echo 4096 >"$files/memory.peak"
}
echo "capped.sh: via cgroup2, and so on" >&2
exit $status"#;

/// A runner whose contenders are all the shell script `contender`.
fn runner(capper: &str, contender: &str) -> (TempDir, Runner) {
    // Where this program is there is a drive to put the model out to; /tmp may be in memory.
    let programs = std::env::current_exe().unwrap();
    let folder = tempfile::tempdir_in(programs.parent().unwrap()).unwrap();
    let model = folder.path().join("model.gguf");
    fs::write(&model, [0; 8192]).unwrap();
    let runner = Runner {
        capper: script(folder.path(), "capper", capper),
        via: "auto".to_owned(),
        files: vec![model.clone()],
        task: Task {
            model,
            ids: vec![1, 2],
            tokens: 3,
            temperature: 0.0,
            threads: 1,
            emel: script(folder.path(), "contender", contender),
            llama_python: PathBuf::new(),
            llama_script: PathBuf::new(),
        },
        timeout_seconds: 60,
        drive: None,
        under_way: UnderWay::default(),
    };
    (folder, runner)
}

fn marks_of(contender: &str) -> Outcome {
    let (_folder, runner) = runner(CAPPER, contender);
    runner.run(Variant::Emel, &CAP).unwrap()
}

#[test]
fn a_run_is_measured_by_what_the_contender_prints_and_the_cgroup_says() {
    let answer = json!({
        "load_seconds": 9.0,
        "first_token_seconds": 4.0,
        "token_seconds": [0.5, 1.5],
    });
    let mark = |event, bytes| json!({ "event": event, "bytes_read": bytes, "major_faults": 7 });
    let mut done = mark("done", 5000);
    done["answer"] = answer;
    let lines = [mark("loaded", 0), mark("first_token", 3000), done];
    let lines: Vec<String> = lines.iter().map(|it| format!("echo '{it}'")).collect();
    let outcome = marks_of(&format!("echo not ours\n{}", lines.join("\n")));
    let Outcome::Finished(figures) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(figures.tokens_per_second, 1.0);
    assert_eq!(figures.first_token_seconds, 4.0);
    assert_eq!(figures.bytes_per_token, Some(1000.0));
    assert_eq!(
        (figures.bytes_read, figures.major_faults),
        (Some(5000), Some(7))
    );
    assert_eq!(figures.cached_before.pages, 2);
    let group = figures.group.unwrap();
    assert_eq!((group.peak_bytes, group.oom_kills), (Some(4096), Some(0)));
}

#[test]
fn a_contender_is_told_the_model_the_prompt_and_the_budget() {
    let outcome = marks_of("echo \"$*\" >&2; exit 3");
    let Outcome::Failed { status, message } = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(status, Some(3));
    let told =
        "model.gguf --io auto --threads 1 --tokens 3 --temp 0 --ids 1,2 --ram-budget 67108864";
    assert_eq!(message, told);
}

#[test]
fn a_kill_is_no_failure_of_another_kind() {
    let outcome = marks_of("kill -KILL $$");
    let Outcome::OutOfMemory { group } = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(group.unwrap().oom_kills, Some(1));
}

#[test]
fn a_contender_that_says_nothing_is_a_failure() {
    let outcome = marks_of("true");
    assert!(
        matches!(&outcome, Outcome::Failed { message, .. } if message.contains("said nothing")),
        "{outcome:?}"
    );
}

#[test]
fn a_contender_that_takes_too_long_is_ended() {
    let (_folder, mut runner) = runner("exec sleep 100", "");
    runner.timeout_seconds = 1;
    let outcome = runner.run(Variant::Emel, &CAP).unwrap();
    assert!(
        matches!(outcome, Outcome::TimedOut { seconds: 1 }),
        "{outcome:?}"
    );
}

#[test]
fn a_contender_that_had_to_be_killed_with_its_cgroup_has_timed_out() {
    use std::os::unix::process::ExitStatusExt;
    let (folder, runner) = runner("", "");
    let said = folder.path().join("said");
    fs::write(&said, "").unwrap();
    let failure = |code: i32| {
        let status = ExitStatus::from_raw(code << 8);
        runner.failure(status, None, None, &said).unwrap()
    };
    let killed = failure(137);
    assert!(
        matches!(killed, Some(Outcome::TimedOut { seconds: 60 })),
        "{killed:?}"
    );
    let failed = failure(1);
    assert!(matches!(failed, Some(Outcome::Failed { .. })), "{failed:?}");
}

#[test]
fn messages_of_contenders_name_no_folders() {
    let (folder, mut runner) = runner("", "");
    let second = folder.path().join("shards/second.gguf");
    runner.files.push(second.clone());
    let said = format!(
        "{}: and {} too",
        second.display(),
        runner.task.emel.display()
    );
    assert_eq!(
        runner.without_folders(&said),
        "second.gguf: and contender too"
    );
    runner.task.model = PathBuf::from("model.gguf");
    let absolute = std::path::absolute(&runner.task.model).unwrap();
    let said = format!("{}: damaged", absolute.display());
    assert_eq!(runner.without_folders(&said), "model.gguf: damaged");
    runner.files = vec![PathBuf::from("/model.gguf")];
    assert_eq!(
        runner.without_folders("1/2 of model.gguf"),
        "1/2 of model.gguf"
    );
}

#[test]
fn where_no_cgroup_can_be_made_there_is_an_error_and_no_run() {
    let (_folder, runner) = runner("echo capped.sh: cannot cap memory here >&2; exit 77", "");
    for error in [
        runner.run(Variant::Emel, &CAP).unwrap_err(),
        runner.probe(1 << 26).unwrap_err(),
    ] {
        assert!(error.is::<NoCgroup>(), "{error:#}");
        assert!(error.to_string().contains("cannot cap memory here"));
    }
}

#[test]
fn a_probe_says_how_cgroups_are_made() {
    let (_folder, runner) = runner(CAPPER, "");
    assert_eq!(runner.probe(1 << 26).unwrap(), "cgroup2");
    let (_folder, broken) = self::runner("echo what is this >&2; exit 1", "");
    let error = broken.probe(1 << 26).unwrap_err().to_string();
    assert_eq!(error, "what is this");
}

#[test]
fn what_a_contender_said_last_is_its_own_and_short() {
    let said = "first\n  error: no such thing \n\ncapped.sh: via cgroup1, cap 1\n";
    assert_eq!(last_said(said), "error: no such thing");
    assert_eq!(last_said("\n\n"), "it said nothing");
    assert_eq!(last_said(&"é".repeat(9000)).chars().count(), 300);
}

#[test]
fn without_two_marks_there_are_no_figures() {
    let at = Moment::now(None);
    let mark = |event, answer| Mark {
        event,
        bytes_read: None,
        major_faults: None,
        answer,
    };
    let answer = |seconds: &[f64]| Answer {
        load_seconds: 0.0,
        first_token_seconds: 0.0,
        token_seconds: seconds.to_vec(),
        budget_bytes: None,
        usage: json!(null),
    };
    let cached = CachedBefore {
        pages: 0,
        resident: None,
    };
    let first = (mark(Event::FirstToken, None), at);
    let of = |done: Mark| figures(&vec![first.clone(), (done, at)], cached, None);
    assert_eq!(of(mark(Event::Done, None)), None);
    assert_eq!(of(mark(Event::Done, Some(answer(&[])))), None);
    let found = of(mark(Event::Done, Some(answer(&[0.25])))).unwrap();
    assert_eq!(
        (found.tokens_per_second, found.bytes_per_token),
        (4.0, None)
    );
    assert_eq!(figures(&vec![first], cached, None), None);
}
