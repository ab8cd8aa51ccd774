//! A program in a pseudo-terminal, as somebody at a keyboard meets it.

#![expect(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};

/// A wait that takes longer is in vain, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A terminal of 80 columns with a program in it.
pub struct Terminal {
    child: Child,
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    transcript: String,
    /// Bytes of the transcript that were waited for.
    seen: usize,
    /// The program's end, which keeps the terminal when the program has ended.
    line: File,
}

impl Terminal {
    /// Starts a command in a terminal of its own. Needs `setsid` and `stty`.
    pub fn start(command: &Command) -> Self {
        let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let master = posix_openpt(flags).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let mut options = File::options();
        options.read(true).write(true);
        options.custom_flags(OFlag::O_NOCTTY.bits());
        let line = options.open(ptsname_r(&master).unwrap()).unwrap();
        let mut in_terminal = Command::new("setsid");
        in_terminal.arg("--ctty").arg(command.get_program());
        in_terminal.args(command.get_args()).env("TERM", "xterm");
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => in_terminal.env(name, value),
                None => in_terminal.env_remove(name),
            };
        }
        let end = || Stdio::from(line.try_clone().unwrap());
        let child = in_terminal
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let keyboard = File::from(OwnedFd::from(master));
        let mut output = keyboard.try_clone().unwrap();
        let (shown, screen) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The end of a terminal is an error.
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                if shown.send(bytes[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        let terminal = Self {
            child,
            keyboard,
            screen,
            transcript: String::new(),
            seen: 0,
            line,
        };
        terminal.resize(80, 24);
        terminal
    }

    /// Presses keys.
    pub fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until this is shown, after all that was waited for before, and returns what was
    /// shown up to it.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str) -> String {
        let started = Instant::now();
        loop {
            let new = &self.transcript[self.seen..];
            if let Some(at) = new.find(text) {
                let shown = new[..at].to_owned();
                self.seen += at + text.len();
                return shown;
            }
            let left = PATIENCE.saturating_sub(started.elapsed());
            match self.screen.recv_timeout(left) {
                Ok(bytes) => self.transcript += &String::from_utf8_lossy(&bytes),
                Err(error) => panic!("{text:?} is not shown ({error}) after: {new:?}"),
            }
        }
    }

    /// Changes the size of the terminal; the program gets SIGWINCH.
    pub fn resize(&self, columns: u16, rows: u16) {
        let (columns, rows) = (columns.to_string(), rows.to_string());
        self.stty(&["cols", &columns, "rows", &rows]);
    }

    /// Whether what is typed is shown and given to programs in lines, as in a shell.
    pub fn is_as_before(&self) -> bool {
        let modes = self.stty(&["-a"]);
        ["-echo", "-icanon", "-icrnl"]
            .iter()
            .all(|mode| !modes.split_whitespace().any(|found| found == *mode))
    }

    fn stty(&self, arguments: &[&str]) -> String {
        let mut stty = Command::new("stty");
        stty.args(arguments).stdin(self.line.try_clone().unwrap());
        let output = stty.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The program's process.
    pub fn child_id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end of the program and returns its exit status and all that was shown.
    #[track_caller]
    pub fn end(mut self) -> (Option<i32>, String) {
        let started = Instant::now();
        let status = loop {
            match self.screen.recv_timeout(Duration::from_millis(20)) {
                Ok(bytes) => self.transcript += &String::from_utf8_lossy(&bytes),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            match self.child.try_wait() {
                Ok(Some(status)) => break status.code(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("{error}"),
                Ok(None) => {}
            }
            assert!(started.elapsed() < PATIENCE, "no end: {}", self.transcript);
        };
        assert!(self.is_as_before(), "the terminal is not what it was");
        while let Ok(bytes) = self.screen.recv_timeout(Duration::from_millis(50)) {
            self.transcript += &String::from_utf8_lossy(&bytes);
        }
        (status, self.transcript.clone())
    }
}

impl Drop for Terminal {
    /// A test that fails leaves no program behind.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
