//! Ctrl-C while an answer is made.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::Poll;

use futures_core::Stream;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{Error, Token, TokenStream};

/// Interrupts of the process, which no longer end it once they are listened for.
#[derive(Debug)]
pub struct Interrupts(Signal);

/// What an answer goes on with.
pub enum Event {
    /// The next token.
    Token(Token),
    /// It failed.
    Failed(Error),
    /// It is over.
    Over,
    /// The user has pressed Ctrl-C.
    Interrupted,
}

impl Interrupts {
    /// Listens from now on.
    ///
    /// # Errors
    /// When the system refuses it.
    pub fn listen() -> io::Result<Self> {
        signal(SignalKind::interrupt()).map(Self)
    }

    /// Whether one has come since the last was seen.
    pub async fn has_come(&mut self) -> bool {
        // The runtime looks for signals when it would else be idle.
        tokio::task::yield_now().await;
        poll_fn(|context| Poll::Ready(self.0.poll_recv(context).is_ready())).await
    }

    /// What `poll` finds, or `None` once an interrupt has come.
    pub(super) async fn or<T>(
        &mut self,
        mut poll: impl FnMut(&mut std::task::Context<'_>) -> Poll<T>,
    ) -> Option<T> {
        poll_fn(|context| {
            if self.0.poll_recv(context).is_ready() {
                return Poll::Ready(None);
            }
            poll(context).map(Some)
        })
        .await
    }

    /// What a stream goes on with.
    pub async fn or_next(&mut self, stream: &mut TokenStream) -> Event {
        let next = self.or(|context| Pin::new(&mut *stream).poll_next(context));
        match next.await {
            None => Event::Interrupted,
            Some(Some(Ok(token))) => Event::Token(token),
            Some(Some(Err(error))) => Event::Failed(error),
            Some(None) => Event::Over,
        }
    }
}
