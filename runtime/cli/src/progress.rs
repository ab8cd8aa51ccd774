//! Bars on a terminal for what takes long: loading a model, and reading a prompt. They appear
//! after a second; what took over two leaves a line.

use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle, WeakProgressBar};

use super::tell;
use super::units::{duration, estimate, number};
use emel::PromptProgress;
use emel::internals::budget::in_binary_units;

/// Work that takes longer shows its progress.
const QUIET_TIME: Duration = Duration::from_secs(1);

/// Work that took longer leaves a line.
const LINE_TIME: Duration = Duration::from_secs(2);

/// How a bar looks, with its name, width and message.
const TEMPLATE: &str = "{prefix} {bar:20} {msg}";

/// The bar that is shown, or will be: there is one at a time.
static SHOWN: Mutex<Option<WeakProgressBar>> = Mutex::new(None);

/// Writes something to the terminal without tearing the bar that is shown, if any.
pub fn beside_bar(write: impl FnOnce()) {
    let shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let bar = shown.as_ref().and_then(WeakProgressBar::upgrade);
    match bar.filter(|bar| !bar.is_finished()) {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// A spinner on standard error, which appears after a second.
pub fn spinner(what: &'static str) -> ProgressBar {
    let bar = hidden_bar();
    bar.set_style(ProgressStyle::default_spinner());
    bar.set_message(what);
    show_later(&bar);
    bar
}

/// A bar for a model that is loaded. Clones share it.
#[derive(Debug, Clone)]
pub struct LoadingBar {
    bar: ProgressBar,
    begun: Instant,
}

impl LoadingBar {
    /// Begins now.
    pub fn start() -> Self {
        let begun = Instant::now();
        let bar = named_bar("loading");
        Self { bar, begun }
    }

    /// Shows that `bytes` of `total_bytes` are in memory.
    pub fn update(&self, bytes: u64, total_bytes: u64) {
        let (done, total) = (in_binary_units(bytes), in_binary_units(total_bytes));
        let pace = Pace::new(bytes, total_bytes, self.begun.elapsed());
        let rest = pace.map_or_else(String::new, |pace| {
            let per_second = in_binary_units(pace.per_second as u64);
            format!(", {per_second}/s, {} left", estimate(pace.left))
        });
        self.bar.set_length(total_bytes);
        self.bar.set_position(bytes);
        self.bar.set_message(format!("{done} of {total}{rest}"));
    }

    /// Takes the bar away.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }

    /// All is loaded: takes the bar away, and says how long it took.
    pub fn finish(&self) {
        self.clear();
        let time = self.begun.elapsed();
        let bytes = self.bar.position();
        if time >= LINE_TIME && bytes > 0 {
            tell_on_terminal(&format!(
                "loaded {} in {}",
                in_binary_units(bytes),
                duration(time)
            ));
        }
    }
}

/// A bar for a prompt that is read.
#[derive(Debug)]
pub struct PromptBar {
    bar: ProgressBar,
    /// When the prompt's turn came.
    begun: Option<Instant>,
    latest: Option<PromptProgress>,
}

impl PromptBar {
    /// Begins now, without a number until the prompt's turn has come.
    pub fn start() -> Self {
        Self {
            bar: spinner("reading the prompt"),
            begun: None,
            latest: None,
        }
    }

    /// Shows what a [`StreamEvent::Prompt`](emel::StreamEvent::Prompt) says.
    pub fn update(&mut self, progress: &PromptProgress) {
        if self.begun.is_none() {
            self.begun = Some(Instant::now());
            set_style(&self.bar, "prompt");
        }
        self.latest = Some(*progress);
        self.bar.set_length(progress.total as u64);
        self.bar.set_position(progress.computed as u64);
        self.bar.set_message(of_prompt(progress, self.elapsed()));
    }

    /// Takes the bar away; the first time, says how long the prompt took, if all of it was read.
    pub fn finish(&mut self) {
        let time = self.elapsed();
        self.bar.finish_and_clear();
        self.begun = None;
        let Some(progress) = self.latest.take() else {
            return;
        };
        if time >= LINE_TIME && progress.computed == progress.total {
            tell_on_terminal(&prompt_line(&progress, time));
        }
    }

    fn elapsed(&self) -> Duration {
        self.begun.map_or(Duration::ZERO, |begun| begun.elapsed())
    }
}

/// A bar for a text of this many tokens that is scored, which counts them itself.
pub fn text_bar(tokens: usize) -> ProgressBar {
    let bar = hidden_bar();
    let template = "evaluating {bar:20} {pos} of {len} tokens, {per_sec:.0}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_length(tokens as u64);
    show_later(&bar);
    bar
}

/// How fast work goes, and when it will be done.
struct Pace {
    per_second: f64,
    left: Duration,
}

impl Pace {
    /// Once some work is done.
    fn new(done: u64, total: u64, time: Duration) -> Option<Self> {
        let per_second = done as f64 / time.as_secs_f64();
        if done == 0 || !per_second.is_finite() {
            return None;
        }
        let left = total.saturating_sub(done) as f64 / per_second;
        Some(Self {
            per_second,
            left: Duration::try_from_secs_f64(left).unwrap_or(Duration::MAX),
        })
    }
}

/// What is behind a prompt's bar after some time.
fn of_prompt(progress: &PromptProgress, time: Duration) -> String {
    let PromptProgress {
        resumed,
        computed,
        total,
    } = *progress;
    let (done, all) = ((computed - resumed) as u64, (total - resumed) as u64);
    let rest = Pace::new(done, all, time).map_or_else(String::new, |pace| {
        let (per_second, left) = (number(pace.per_second), estimate(pace.left));
        format!(", {per_second}/s, {left} left")
    });
    format!("{computed} of {total} tokens{rest}")
}

/// What is left of a prompt's bar in the end.
fn prompt_line(progress: &PromptProgress, time: Duration) -> String {
    let tokens = progress.total - progress.resumed;
    let rate = number(tokens as f64 / time.as_secs_f64());
    let resumed = match progress.resumed {
        0 => String::new(),
        resumed => format!(" after {resumed} resumed"),
    };
    let time = duration(time);
    format!("read {tokens} tokens of the prompt{resumed} in {time}, {rate}/s")
}

fn tell_on_terminal(line: &str) {
    if io::stderr().is_terminal() {
        tell(line);
    }
}

/// A bar that appears after a second.
fn named_bar(name: &'static str) -> ProgressBar {
    let bar = hidden_bar();
    set_style(&bar, name);
    show_later(&bar);
    bar
}

fn set_style(bar: &ProgressBar, name: &'static str) {
    if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
        bar.set_style(style);
    }
    bar.set_prefix(name);
}

/// Clears itself when it is dropped, as it is when an error ends the work.
fn hidden_bar() -> ProgressBar {
    ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden())
        .with_finish(ProgressFinish::AndClear)
}

fn show_later(bar: &ProgressBar) {
    if !io::stderr().is_terminal() {
        return;
    }
    let bar = bar.downgrade();
    *SHOWN.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar.clone());
    let started = Instant::now();
    std::thread::spawn(move || {
        std::thread::sleep(QUIET_TIME.saturating_sub(started.elapsed()));
        if let Some(bar) = bar.upgrade().filter(|bar| !bar.is_finished()) {
            bar.set_draw_target(ProgressDrawTarget::stderr());
            bar.enable_steady_tick(Duration::from_millis(100));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_shows_its_rate_and_the_time_left_once_some_of_it_is_computed() {
        let progress = |computed| PromptProgress {
            resumed: 100,
            computed,
            total: 3100,
        };
        let after =
            |computed, seconds| of_prompt(&progress(computed), Duration::from_secs(seconds));
        assert_eq!(after(100, 3), "100 of 3100 tokens");
        assert_eq!(after(600, 50), "600 of 3100 tokens, 10/s, 4 min 10 s left");
        assert_eq!(after(3100, 300), "3100 of 3100 tokens, 10/s, 0 s left");
        let line = prompt_line(&progress(3100), Duration::from_secs(300));
        assert_eq!(
            line,
            "read 3000 tokens of the prompt after 100 resumed in 5 min, 10/s"
        );
    }

    #[test]
    fn a_line_is_written_once_whether_or_not_there_is_a_bar() {
        let bar = hidden_bar();
        for shown in [None, Some(bar.downgrade())] {
            *SHOWN.lock().unwrap() = shown;
            let mut lines = 0;
            beside_bar(|| lines += 1);
            assert_eq!(lines, 1);
        }
        bar.finish_and_clear();
        let mut lines = 0;
        beside_bar(|| lines += 1);
        assert_eq!(lines, 1);
    }

    #[test]
    fn a_bar_fits_a_narrow_terminal() {
        let progress = PromptProgress {
            resumed: 0,
            computed: 12_345,
            total: 131_072,
        };
        let message = of_prompt(&progress, Duration::from_secs(9000));
        let width = "prompt ".len() + 20 + " ".len() + message.len();
        assert!(width <= 80, "{message}");
    }
}
