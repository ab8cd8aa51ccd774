//! One run of a contender: cold, a process of its own, in a cgroup of its own.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

use super::cap::SizedCap;
use super::contender::{Answer, Event, Mark, Task, Variant};
use super::drive::{Drive, Moment, evict_all};
use super::free_memory;
use super::group::GroupUsage;
use super::report::{CachedBefore, Figures, Outcome};
use super::under_way::UnderWay;

/// The status of `capped.sh` where no cgroup can be made.
pub const NO_CGROUP: i32 = 77;
/// The status of `timeout` when time is up.
const TIMED_OUT: i32 = 124;
/// And when it had to kill `capped.sh`, which then leaves no report.
const TIMED_OUT_AND_KILLED: i32 = 137;
/// Seconds that a contender has to end by itself when its time is up.
const GRACE_SECONDS: u64 = 20;
/// What a contender says last is cut to this many characters.
const MESSAGE_CHARACTERS_MAX: usize = 300;

/// No memory cgroup can be made here.
#[derive(Debug, thiserror::Error)]
#[error("{said}")]
pub struct NoCgroup {
    said: String,
}

/// What makes the runs.
#[derive(Debug, Clone)]
pub struct Runner {
    /// `bench/capped.sh`.
    pub capper: PathBuf,
    /// How it is to make cgroups.
    pub via: String,
    /// What the contenders are given.
    pub task: Task,
    /// All files of the model.
    pub files: Vec<PathBuf>,
    /// What a run may take.
    pub timeout_seconds: u64,
    /// The drive, where it keeps count.
    pub drive: Option<Drive>,
    /// The run that is made, for whoever is to end it.
    pub under_way: UnderWay,
}

/// What `capped.sh` says of a run.
#[derive(Debug, Deserialize)]
struct CapperReport {
    via: String,
    oom_kills: Option<u64>,
    exit_status: i32,
}

/// What a contender has printed, with the moments at which it arrived.
type Marks = Vec<(Mark, Moment)>;

impl Runner {
    /// How `capped.sh` makes a cgroup of so many bytes: `systemd`, `cgroup2` or `cgroup1`.
    ///
    /// # Errors
    /// [`NoCgroup`] when it can make none; others when it cannot be run.
    pub fn probe(&self, cap_bytes: u64) -> anyhow::Result<String> {
        let folder = tempfile::tempdir()?;
        let report = folder.path().join("report");
        let mut command = self.capped(Some(cap_bytes));
        command.arg("--report").arg(&report).args(["--", "true"]);
        let done = command.output().with_context(|| self.cannot_run())?;
        let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
        if done.status.code() == Some(NO_CGROUP) {
            bail!(NoCgroup { said });
        }
        ensure!(done.status.success(), "{said}");
        Ok(read_report(&report)?
            .context("capped.sh left no report")?
            .via)
    }

    /// Runs a contender, in a cgroup of the cap's size unless there is to be none.
    ///
    /// # Errors
    /// When the run cannot be made; a contender that fails is an [`Outcome`].
    pub fn run(&self, variant: Variant, cap: &SizedCap) -> anyhow::Result<Outcome> {
        let folder = tempfile::tempdir()?;
        let (report, group) = (folder.path().join("report"), folder.path().join("group"));
        let said = folder.path().join("stderr");
        std::fs::create_dir(&group)?;
        let mut command = Command::new("timeout");
        let grace = format!("--kill-after={GRACE_SECONDS}");
        command.args(["--foreground", &grace, &self.timeout_seconds.to_string()]);
        let capped = self.capped(cap.bytes);
        command.arg(capped.get_program()).args(capped.get_args());
        command
            .arg("--report")
            .arg(&report)
            .arg("--files")
            .arg(&group);
        command
            .arg("--")
            .args(self.task.command(variant, cap.budget_bytes));
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(File::create(&said)?);

        let cached_before = evict_all(&self.files)?;
        free_memory::touch(cap.bytes.unwrap_or_else(|| self.model_bytes()));
        let mut stdout = None;
        self.under_way.begin(|| {
            let spawned = command.spawn();
            let mut child = spawned.context("cannot run timeout (coreutils)")?;
            stdout = child.stdout.take();
            Ok(child)
        })?;
        let stdout = stdout.context("the contender has no output")?;
        let marks = self.listen(BufReader::new(stdout));
        let status = self.under_way.wait()?;

        let report = read_report(&report)?;
        let group = match (&report, cap.bytes) {
            (Some(_), Some(_)) => {
                let device = self.drive.as_ref().map(|drive| drive.device.as_str());
                Some(GroupUsage::read(&group, device)?)
            }
            _ => None,
        };
        if let Some(outcome) = self.failure(status, report, group.clone(), &said)? {
            return Ok(outcome);
        }
        let figures = figures(&marks, cached_before.into(), group);
        Ok(match figures {
            Some(figures) => Outcome::Finished(Box::new(figures)),
            None => Outcome::Failed {
                status: status.code(),
                message: "it ended well and said nothing".to_owned(),
            },
        })
    }

    /// What a contender without a cap may take; nothing of files that cannot be looked at.
    fn model_bytes(&self) -> u64 {
        let sizes = self.files.iter().flat_map(std::fs::metadata);
        sizes.map(|file| file.len()).sum()
    }

    fn capped(&self, cap_bytes: Option<u64>) -> Command {
        let size = cap_bytes.map_or_else(|| "none".to_owned(), |bytes| bytes.to_string());
        let mut command = Command::new(&self.capper);
        command.arg(format!("--memory-max={size}"));
        command.args(["--via", &self.via]);
        command
    }

    fn cannot_run(&self) -> String {
        format!("{}: cannot run", self.capper.display())
    }

    /// Reads what the contender prints, and looks at the drive whenever it does.
    fn listen(&self, output: impl BufRead) -> Marks {
        let lines = output.lines().map_while(Result::ok);
        lines
            .filter_map(|line| {
                let moment = Moment::now(self.drive.as_ref());
                Some((serde_json::from_str(&line).ok()?, moment))
            })
            .collect()
    }

    /// How a run failed, if it did.
    fn failure(
        &self,
        status: ExitStatus,
        report: Option<CapperReport>,
        group: Option<GroupUsage>,
        said: &Path,
    ) -> anyhow::Result<Option<Outcome>> {
        let is_timed_out = match status.code() {
            Some(TIMED_OUT) => true,
            Some(TIMED_OUT_AND_KILLED) | None => report.is_none(),
            Some(_) => false,
        };
        if is_timed_out {
            let seconds = self.timeout_seconds;
            return Ok(Some(Outcome::TimedOut { seconds }));
        }
        if report.as_ref().and_then(|it| it.oom_kills).unwrap_or(0) > 0 {
            return Ok(Some(Outcome::OutOfMemory { group }));
        }
        if status.success() {
            return Ok(None);
        }
        let said = std::fs::read(said)?;
        let message = last_said(&String::from_utf8_lossy(&said));
        if report.is_none() && status.code() == Some(NO_CGROUP) {
            bail!(NoCgroup { said: message });
        }
        Ok(Some(Outcome::Failed {
            status: report.map(|it| it.exit_status).or(status.code()),
            message: self.without_folders(&message),
        }))
    }

    /// A message of a contender without the folders that the model and the contenders' programs are in.
    pub fn without_folders(&self, message: &str) -> String {
        let task = &self.task;
        let programs = [&task.emel, &task.llama_python, &task.llama_script];
        let paths = self.files.iter().chain([&task.model]).chain(programs);
        // As it was given, and as a program may tell it.
        let told = |path: &PathBuf| {
            let (full, linked) = (std::path::absolute(path), path.canonicalize());
            [Some(path.clone()), full.ok(), linked.ok()]
        };
        let folder_of = |path: PathBuf| Some(format!("{}/", path.parent()?.display()));
        let folders = paths.flat_map(told).flatten().filter_map(folder_of);
        let mut folders: Vec<String> = folders.filter(|folder| folder.len() > 1).collect();
        // A folder goes before the one that it is in.
        folders.sort_by_key(|folder| std::cmp::Reverse(folder.len()));
        let without = |message: String, folder: &String| message.replace(folder, "");
        folders.iter().fold(message.to_owned(), without)
    }
}

fn read_report(path: &Path) -> anyhow::Result<Option<CapperReport>> {
    if !path.exists() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(path)?;
    let report = serde_json::from_str(&text);
    Ok(Some(
        report.with_context(|| format!("capped.sh reports {text:?}"))?,
    ))
}

/// The last line that is the contender's own.
fn last_said(said: &str) -> String {
    let lines = said.lines().map(str::trim).rev();
    let is_ours = |line: &&str| {
        line.starts_with("capped.sh: via ") || line.starts_with("capped.sh: uncapped")
    };
    let last = lines.filter(|it| !it.is_empty()).find(|it| !is_ours(it));
    last.unwrap_or("it said nothing")
        .chars()
        .take(MESSAGE_CHARACTERS_MAX)
        .collect()
}

fn figures(
    marks: &Marks,
    cached_before: CachedBefore,
    group: Option<GroupUsage>,
) -> Option<Figures> {
    let at = |event| marks.iter().find(|(mark, _)| mark.event == event);
    let ((first, first_at), (done, done_at)) = (at(Event::FirstToken)?, at(Event::Done)?);
    let Answer {
        load_seconds,
        first_token_seconds,
        token_seconds,
        budget_bytes,
        usage,
    } = done.answer.clone()?;
    let tokens = token_seconds.len() as f64;
    let seconds: f64 = token_seconds.iter().sum();
    let after_first = done.bytes_read.zip(first.bytes_read);
    let after_first = after_first.and_then(|(all, before)| all.checked_sub(before));
    (seconds > 0.0).then_some(Figures {
        tokens_per_second: tokens / seconds,
        first_token_seconds,
        load_seconds,
        token_seconds,
        bytes_per_token: after_first.map(|bytes| bytes as f64 / tokens),
        bytes_read: done.bytes_read,
        major_faults: done.major_faults,
        drive_busy_share: done_at.busy_share_since(first_at),
        budget_bytes,
        cached_before,
        group,
        usage,
    })
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
