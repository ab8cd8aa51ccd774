//! Signals that ask a run to end while an answer is made: Ctrl-C, SIGTERM, SIGHUP.

use std::fmt;
use std::fs;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::{Context, Poll};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::tell;
use emel::internals::whole_file::exit;
use emel::{Error, PromptProgress, StreamEvent, Token, TokenStream};

/// A signal that asks the process to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndSignal {
    /// SIGINT, which Ctrl-C sends.
    Interrupt,
    /// SIGTERM, as from a service manager.
    Terminate,
    /// SIGHUP: the terminal is gone.
    HangUp,
}

/// The signals that are listened for, which no longer end the process then.
#[derive(Debug)]
pub struct Interrupts(Vec<(EndSignal, Signal)>);

/// What an answer goes on with.
pub enum Event {
    /// More of the prompt has been computed.
    Prompt(PromptProgress),
    /// The next token.
    Token(Token),
    /// It failed.
    Failed(Error),
    /// It is over.
    Over,
    /// A signal asks the run to end.
    Interrupted(EndSignal),
}

impl EndSignal {
    /// Of several that have come, the first counts: Ctrl-C may only stop an answer.
    const ALL: [Self; 3] = [Self::Terminate, Self::HangUp, Self::Interrupt];

    fn number(self) -> i32 {
        match self {
            Self::Interrupt => libc::SIGINT,
            Self::Terminate => libc::SIGTERM,
            Self::HangUp => libc::SIGHUP,
        }
    }

    /// The exit status of a command that it has ended, as of one that a shell saw it end.
    pub fn exit_status(self) -> u8 {
        128 + self.number() as u8
    }
}

impl fmt::Display for EndSignal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Interrupt => "interrupted",
            Self::Terminate => "ended by SIGTERM",
            Self::HangUp => "ended by SIGHUP",
        })
    }
}

impl Interrupts {
    /// Listens from now on, except for signals that the process was started to ignore, as with
    /// `nohup`.
    ///
    /// # Errors
    /// When the system refuses it.
    pub fn listen() -> io::Result<Self> {
        let ignored = ignored_signals();
        let listened = EndSignal::ALL
            .into_iter()
            .filter(|one| ignored & 1 << (one.number() - 1) == 0);
        listened
            .map(|one| Ok((one, signal(SignalKind::from_raw(one.number()))?)))
            .collect::<io::Result<_>>()
            .map(Self)
    }

    /// Which has come since the last was seen, if any.
    pub async fn has_come(&mut self) -> Option<EndSignal> {
        // The runtime looks for signals when it would else be idle.
        tokio::task::yield_now().await;
        poll_fn(|context| Poll::Ready(self.poll(context))).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Option<EndSignal> {
        // Each has to be asked, to be woken by any.
        self.0.iter_mut().fold(None, |come, (one, signal)| {
            let has_come = signal.poll_recv(context).is_ready();
            come.or(has_come.then_some(*one))
        })
    }

    /// What `poll` finds, unless a signal comes first.
    pub async fn or<T>(
        &mut self,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Result<T, EndSignal> {
        poll_fn(|context| match self.poll(context) {
            Some(signal) => Poll::Ready(Err(signal)),
            None => poll(context).map(Ok),
        })
        .await
    }

    /// What `work` comes to. A signal that comes first ends the process at once.
    pub async fn or_exit<T>(interrupts: Option<&mut Self>, work: impl Future<Output = T>) -> T {
        let Some(interrupts) = interrupts else {
            return work.await;
        };
        let mut work = pin!(work);
        let outcome = interrupts.or(|context| work.as_mut().poll(context)).await;
        outcome.unwrap_or_else(|signal| {
            tell(&format!(
                "error: {signal}, again; what was not saved is lost"
            ));
            exit(signal.exit_status().into())
        })
    }

    /// What a stream goes on with.
    pub async fn or_next(&mut self, stream: &mut TokenStream) -> Event {
        let next = self.or(|context| stream.poll_next_event(context));
        next.await.map_or_else(Event::Interrupted, Event::of)
    }
}

impl Event {
    /// What the stream's next event is.
    pub fn of(next: Option<Result<StreamEvent, Error>>) -> Self {
        match next {
            Some(Ok(StreamEvent::Prompt(progress))) => Self::Prompt(progress),
            Some(Ok(StreamEvent::Token(token))) => Self::Token(token),
            Some(Err(error)) => Self::Failed(error),
            None => Self::Over,
        }
    }
}

/// The signals that the process ignores, a bit for each from 1 on; none if the system does
/// not tell.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
