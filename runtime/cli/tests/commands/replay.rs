//! `emel trace` and `emel replay`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Output;

use emel_tests::fixtures::fixture;

use super::{emel, llama, refusal, result, words};

struct Traced {
    folder: tempfile::TempDir,
}

impl Traced {
    fn new() -> Self {
        let traced = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        let text = "the experts of a mixture are read when they are needed ".repeat(20);
        std::fs::write(traced.path("text"), text).unwrap();
        traced
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn trace(&self, model: &Path, more: &str) -> Output {
        let (text, trace) = (self.path("text"), self.path("trace"));
        let fixed = [
            OsStr::new("-f"),
            text.as_ref(),
            "-o".as_ref(),
            trace.as_ref(),
        ];
        let rest = ["--ram-budget", "64M", "-c", "50"]
            .into_iter()
            .chain(words(more));
        emel(
            "trace",
            model,
            fixed.into_iter().chain(rest.map(OsStr::new)),
        )
    }

    fn replay(&self, arguments: &str) -> Output {
        emel("replay", &self.path("trace"), words(arguments))
    }
}

fn mixture() -> PathBuf {
    fixture("arch/qwen3moe.gguf")
}

fn reports(output: Output) -> Vec<serde_json::Value> {
    serde_json::from_str(&result(output)).unwrap()
}

fn number(report: &serde_json::Value, name: &str) -> f64 {
    report[name].as_f64().unwrap()
}

#[test]
fn a_trace_is_replayed_by_every_policy() {
    let traced = Traced::new();
    let text = result(traced.trace(&mixture(), ""));
    assert!(
        text.contains(" positions, ") && text.contains(" experts, "),
        "{text}"
    );
    let hits = |arguments: &str| {
        let arguments = format!("{arguments} --slots 50% --json");
        let reports = reports(traced.replay(&arguments));
        assert_eq!(reports.len(), 1);
        assert!(number(&reports[0], "demands") > 100.0);
        number(&reports[0], "hit_rate")
    };
    let best = hits("--policy belady");
    for policy in ["learned", "lru", "lfu", "aged-lfu"] {
        let found = hits(&format!("--policy {policy}"));
        assert!((0.0..=best).contains(&found), "{policy}: {found} of {best}");
        hits(&format!("--policy {policy} --per-layer"));
    }
    for source in ["frequent", "coact", "router", "both"] {
        hits(&format!("--predict {source} --guess 3"));
    }
}

#[test]
fn one_table_has_every_policy_and_number_of_slots() {
    let traced = Traced::new();
    result(traced.trace(&mixture(), ""));
    let text = result(traced.replay(""));
    let reports = reports(traced.replay("--json"));
    let rows: Vec<Vec<&str>> = text
        .lines()
        .skip(1)
        .map(|row| words(row).collect())
        .collect();
    assert_eq!(rows[0][..1], ["slots"]);
    assert_eq!(
        rows[0][2..].iter().step_by(2).copied().collect::<Vec<_>>(),
        ["(25%)", "(50%)", "(75%)"]
    );
    let policies: Vec<&str> = rows[1..].iter().map(|row| row[0]).collect();
    assert_eq!(policies, ["learned", "lru", "lfu", "aged-lfu", "belady"]);
    assert_eq!(reports.len(), 15);
    for (index, report) in reports.iter().enumerate() {
        let (row, column) = (1 + index / 3, 1 + index % 3);
        assert_eq!(report["policy"], rows[row][0]);
        assert_eq!(rows[0][2 * column - 1], number(report, "slots").to_string());
        let hits = format!("{:.4}", number(report, "hit_rate"));
        assert_eq!(rows[row][column], hits);
    }
    let widths: Vec<usize> = text
        .lines()
        .skip(1)
        .map(|row| row.chars().count())
        .collect();
    assert!(widths.iter().all(|&width| width == widths[0]), "{text}");

    let text = result(traced.replay("--slots 8,100% --predict both"));
    for row in [
        "learned ",
        "reads per demand ",
        "prefetched and used ",
        "recall of guesses ",
    ] {
        let row = text.lines().find_map(|line| line.strip_prefix(row));
        assert_eq!(words(row.unwrap()).count(), 2, "{text}");
    }
    assert!(!text.contains("lru"), "{text}");
    let text = result(traced.replay("--slots 50% --policy lru,belady"));
    assert_eq!(text.lines().count(), 4, "{text}");
}

#[test]
fn a_chart_has_a_line_for_every_policy() {
    let traced = Traced::new();
    result(traced.trace(&mixture(), ""));
    let svg = traced.path("hits.svg");
    let arguments = format!("--slots 75%,25% --svg {}", svg.to_str().unwrap());
    result(traced.replay(&arguments));
    let svg = std::fs::read_to_string(svg).unwrap();
    for text in [
        "trace: hits of the expert cache",
        "hits per demand",
        "slots, % of all experts",
        "learned",
        "lru",
        "lfu",
        "aged-lfu",
        "belady",
    ] {
        assert!(svg.contains(&format!("\n{text}\n")), "no {text} in {svg}");
    }
    // The learned policy's two points and the mark beside its name.
    let discs = svg.lines().filter(|line| line.starts_with("<circle"));
    let discs = discs.filter(|line| line.contains("fill=\"#0062B2\""));
    assert_eq!(discs.count(), 3);
}

#[test]
fn a_chart_replaces_no_trace() {
    let traced = Traced::new();
    result(traced.trace(&mixture(), ""));
    let before = std::fs::read(traced.path("trace")).unwrap();
    let trace = traced.path("trace");
    let arguments = format!("--svg {}", trace.to_str().unwrap());
    refusal(
        traced.replay(&arguments),
        2,
        &["--svg", "another file than TRACE"],
    );
    assert!(std::fs::read(trace).unwrap() == before);
}

#[test]
fn what_was_learnt_is_kept_and_ignored_with_a_line_if_it_is_of_no_use() {
    let traced = Traced::new();
    result(traced.trace(&mixture(), ""));
    let heat = traced.path("heat");
    let with = |option: &str| {
        let path = heat.to_str().unwrap();
        traced.replay(&format!("--slots 25% --predict coact {option} {path}"))
    };
    let missing = with("--heat");
    assert!(String::from_utf8_lossy(&missing.stderr).contains("is ignored: there is no such file"));
    result(with("--save-heat"));
    let found = with("--heat");
    assert!(found.stderr.is_empty(), "{found:?}");
    result(found);

    let good = std::fs::read(&heat).unwrap();
    std::fs::write(&heat, &good[..good.len() - 1]).unwrap();
    let found = with("--heat");
    assert_eq!(String::from_utf8_lossy(&found.stderr).lines().count(), 1);
    assert!(
        String::from_utf8_lossy(&found.stderr).contains("is ignored: what was learnt is damaged")
    );
    result(found);
}

#[test]
fn what_was_learnt_about_another_model_is_not_replaced() {
    let traced = Traced::new();
    let save = || {
        let heat = traced.path("heat");
        let heat = heat.to_str().unwrap();
        traced.replay(&format!("--slots 50% --predict coact --save-heat {heat}"))
    };
    result(traced.trace(&fixture("arch/minimax-m2.gguf"), ""));
    result(save());
    let before = std::fs::read(traced.path("heat")).unwrap();
    result(traced.trace(&mixture(), ""));
    refusal(save(), 1, &["heat", "of another model; delete it"]);
    assert!(std::fs::read(traced.path("heat")).unwrap() == before);
}

#[test]
fn no_file_of_another_kind_is_overwritten() {
    let traced = Traced::new();
    result(traced.trace(&mixture(), ""));
    let before = std::fs::read(traced.path("text")).unwrap();
    let text = traced.path("text");
    let save = format!("--slots 25% --save-heat {}", text.to_str().unwrap());
    refusal(
        traced.replay(&save),
        2,
        &["--predict is off, expected coact", "--save-heat"],
    );
    refusal(
        traced.replay(&format!("{save} --predict coact")),
        1,
        &["text", "not what emel has learnt"],
    );
    std::fs::remove_file(traced.path("trace")).unwrap();
    std::fs::hard_link(&text, traced.path("trace")).unwrap();
    refusal(
        traced.trace(&mixture(), ""),
        2,
        &["trace", "another file than -f"],
    );
    assert!(std::fs::read(&text).unwrap() == before);
}

#[test]
fn a_fifo_is_refused_and_not_waited_for() {
    let traced = Traced::new();
    nix::unistd::mkfifo(&traced.path("trace"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    refusal(traced.replay("--slots 50%"), 1, &["this is no trace"]);
}

#[test]
fn a_trace_appears_whole_or_not_at_all() {
    let traced = Traced::new();
    result(traced.trace(&mixture(), ""));
    let before = std::fs::read(traced.path("trace")).unwrap();
    // A file of at most 512 bytes, which is too little.
    let script = "ulimit -f 1 && exec \"$0\" \"$@\"";
    let arguments = |trace: &Path| {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", script, env!("CARGO_BIN_EXE_emel"), "trace"]);
        shell.arg(mixture()).args(words("--ram-budget 64M -f"));
        shell.arg(traced.path("text")).arg("-o").arg(trace);
        shell.env("XDG_CACHE_HOME", "/dev/null");
        shell.output().unwrap()
    };
    for name in ["trace", "new"] {
        let expected = ["cannot write the trace", "ulimit -f"];
        let output = arguments(&traced.path(name));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!said.contains(" at path "), "{said}");
        refusal(output, 1, &expected);
    }
    assert!(std::fs::read(traced.path("trace")).unwrap() == before);
    let files = std::fs::read_dir(traced.folder.path()).unwrap();
    assert_eq!(files.count(), 2, "the text and the first trace");
}

#[test]
fn an_interrupt_leaves_no_half_of_a_trace() {
    use nix::sys::signal::{Signal, kill};
    let traced = Traced::new();
    let text = "the experts of a mixture are read when they are needed ".repeat(20_000);
    std::fs::write(traced.path("text"), text).unwrap();
    let mut child = super::command("emel")
        .arg("trace")
        .arg(mixture())
        .args(words("--ram-budget 1G -c 50 -t 1 -f"))
        .arg(traced.path("text"))
        .arg("-o")
        .arg(traced.path("trace"))
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let files = || std::fs::read_dir(traced.folder.path()).unwrap();
    // An empty file is there already when it only looks whether the folder takes one.
    let has_begun = || {
        files().any(|file| {
            let file = file.unwrap();
            let found = file.metadata();
            file.file_name() != "text" && found.is_ok_and(|found| found.len() > 0)
        })
    };
    while !has_begun() {
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    kill(
        nix::unistd::Pid::from_raw(child.id() as i32),
        Signal::SIGTERM,
    )
    .unwrap();
    let ended = child.wait_with_output().unwrap();
    let notes = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(143), "{notes}");
    assert_eq!(files().count(), 1, "{notes}");
}

#[test]
fn a_full_disk_is_named() {
    let traced = Traced::new();
    std::os::unix::fs::symlink("/dev/full", traced.path("trace")).unwrap();
    refusal(
        traced.trace(&mixture(), ""),
        1,
        &["cannot write the trace", "No space left"],
    );
}

#[test]
fn what_cannot_be_traced_or_replayed_is_refused() {
    let traced = Traced::new();
    refusal(
        traced.trace(&llama(), ""),
        1,
        &["no experts", "another model"],
    );
    refusal(traced.replay("--slots 50%"), 1, &["trace", "cannot read"]);
    result(traced.trace(&mixture(), "--look-ahead 0"));
    refusal(
        traced.replay("--slots 1"),
        2,
        &["--slots is 1", "expected 4 or more"],
    );
    refusal(
        traced.replay("--slots 200%"),
        2,
        &["--slots", "share from 0% to 100%"],
    );
    refusal(
        traced.replay("--slots 50% --predict router"),
        2,
        &["--predict is router, expected frequent", "--look-ahead"],
    );
    refusal(
        traced.replay("--slots 50% --predict coact --policy lru"),
        2,
        &["--policy is lru, expected learned", "--predict"],
    );
    refusal(
        traced.replay("--positions 0"),
        2,
        &["--positions is 0, expected 1 or more"],
    );
    let good = std::fs::read(traced.path("trace")).unwrap();
    std::fs::write(traced.path("trace"), &good[..good.len() - 9]).unwrap();
    refusal(
        traced.replay("--slots 50%"),
        1,
        &["bytes, expected", "emel trace"],
    );
    std::fs::write(traced.path("trace"), "something else").unwrap();
    refusal(traced.replay("--slots 50%"), 1, &["this is no trace"]);
}
